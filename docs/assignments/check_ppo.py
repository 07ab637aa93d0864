"""Closed-form checks of what is filled in of ``ppo_one_file_todo.py``.

python docs/assignments/check_ppo.py docs/assignments/templates/ppo_one_file_todo.py
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import numpy as np
import torch


def equal(found: object, expected: object) -> None:
    """Raise ``AssertionError`` unless shapes are the same and all numbers are equal."""
    given, wanted = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if given.shape != wanted.shape or not torch.allclose(given, wanted, atol=1e-4):
        raise AssertionError(f"expected {wanted.tolist()}, got {given.tolist()} of shape {tuple(given.shape)}")


def check_gae(file: dict[str, Any]) -> None:
    """Game 0 goes on, 1 ends in its first step, 2 is cut there by a time limit: what follows is another game's."""
    ones, zeros, no = torch.ones(2, 3), torch.zeros(2, 3), [False] * 3
    terminated, done = torch.tensor([[False, True, False], no]), torch.tensor([[False, True, True], no])
    gamma, lam = 0.9, 0.8
    one = 1 + gamma  # a reward of 1 and what follows, which is worth 1
    expected = [[one + gamma * lam * one, 1, one], [one] * 3]
    equal(file["gae"](ones, zeros, ones, terminated, done, gamma, lam), expected)


def check_policy_loss(file: dict[str, Any]) -> None:
    """Find that a ratio beyond the clip teaches nothing where it was good, and all where it was bad."""
    logp = torch.log(torch.tensor([1.5, 1.5, 1.1])).requires_grad_()
    loss = file["policy_loss"](logp, torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]), 0.2)
    equal(loss, (-1.2 + 1.5 - 1.1) / 3)
    loss.backward()
    equal(logp.grad, [0.0, 0.5, -1.1 / 3])


def check_value_loss(file: dict[str, Any]) -> None:
    """Values that were 1: clipped at 1.2, the first one is further off, the last one nearer, which does not count."""
    values = torch.tensor([2.0, 1.1, 2.0], requires_grad=True)
    rows = values, torch.ones(3), torch.tensor([2.0, 0.0, 0.0])
    equal(file["value_loss"](*rows, 0.2, clip_vloss=False), (1.21 + 4) / 3)
    loss = file["value_loss"](*rows, 0.2, clip_vloss=True)
    equal(loss, (0.64 + 1.21 + 4) / 3)
    loss.backward()
    equal(values.grad, [0.0, 2.2 / 3, 4 / 3])


def check_entropy(file: dict[str, Any]) -> None:
    """Of a uniform choice of 7, and of a sure one."""
    equal(file["entropy_of"](torch.log(torch.full((2, 7), 1 / 7))), np.log(7))
    equal(file["entropy_of"](torch.log_softmax(torch.tensor([[50.0, 0, 0, 0, 0, 0, 0]]), 1)), 0.0)


def main() -> int:
    """Run all checks on a file and return the number of those that fail."""
    file, failed = runpy.run_path(sys.argv[1]), 0
    for check in (check_gae, check_policy_loss, check_value_loss, check_entropy):
        try:
            check(file)
        except (NotImplementedError, AssertionError, RuntimeError, TypeError, ValueError, IndexError) as error:
            failed += 1
            print(f"{check.__name__}: {error}")
        else:
            print(f"{check.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
