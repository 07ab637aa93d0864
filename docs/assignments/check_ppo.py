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
    assert found is not None, "expected numbers, got None: a `return` or a gradient is missing"
    given, wanted = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if given.shape != wanted.shape or not torch.allclose(given, wanted, atol=1e-4):
        shapes = "" if given.shape == wanted.shape else f" (shape {tuple(given.shape)}, not {tuple(wanted.shape)})"
        expected, found = (numbers.round(decimals=4).tolist() for numbers in (wanted, given))
        raise AssertionError(f"expected {expected}, got {found}{shapes}")


def check_gae(file: dict[str, Any]) -> None:
    """Game 0 goes on, 1 ends in its first step, 2 is cut there by a time limit: what follows is another game's."""
    rewards, values = torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([[0.5, 1, 1.5], [2, 3, 4]])
    next_values, no = torch.tensor([[2.0, 9, 8], [7, 6, 5]]), [False] * 3
    terminated, done = torch.tensor([[False, True, False], no]), torch.tensor([[False, True, True], no])
    found = file["gae"](rewards, values, next_values, terminated, done, 0.5, 0.8)
    equal(found, [[1.5 + 0.4 * 5.5, 1, 5.5], [5.5, 5, 4.5]])
    assert values.tolist() == [[0.5, 1, 1.5], [2, 3, 4]], "expected values that stay as they were, got changed ones"


def check_policy_loss(file: dict[str, Any]) -> None:
    """Ratios of 1.5, 0.5 and 1.05: beyond the clip they teach nothing where that was good, and all where it was bad."""
    logp = (torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5, 1.05])) - 1).requires_grad_()
    loss = file["policy_loss"](logp, torch.full((5,), -1.0), torch.tensor([2.0, -2, 2, -2, 2]), 0.1)
    equal(loss, (-2.2 + 3 - 1 + 1.8 - 2.1) / 5)
    loss.backward()
    equal(logp.grad, [0, 3 / 5, -1 / 5, 0, -2.1 / 5])


def check_value_loss(file: dict[str, Any]) -> None:
    """Clip the first value to 2.5, where it is further off, and the last to 3.5: nearer, which does not count."""
    targets = torch.tensor([1.0, 0, 3])
    for clip_vloss, loss, gradient in ((False, 1 + 1.21 + 4, [2, 2.2, 4]), (True, 2.25 + 1.21 + 4, [0, 2.2, 4])):
        values = torch.tensor([2.0, 1.1, 5], requires_grad=True)
        found = file["value_loss"](values, torch.tensor([3.0, 1, 3]), targets, 0.5, clip_vloss=clip_vloss)
        equal(found, loss / 3)
        found.backward()
        equal(values.grad, [each / 3 for each in gradient])


def check_entropy(file: dict[str, Any]) -> None:
    """Of a uniform choice of 7 with one of 1/2, 1/4 and so on, and of a sure one."""
    chances = torch.tensor([[1 / 7] * 7, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 64]])
    logits = chances.log().requires_grad_()
    entropy, second = file["entropy_of"](torch.log_softmax(logits, 1)), 63 / 32 * np.log(2)
    equal(entropy, (np.log(7) + second) / 2)
    entropy.backward()
    equal(logits.grad, torch.stack([torch.zeros(7), -chances[1] * (chances[1].log() + second) / 2]))
    equal(file["entropy_of"](torch.log_softmax(torch.tensor([[50.0, 0, 0, 0, 0, 0, 0]]), 1)), 0.0)


def main() -> int:
    """Run all checks on a file and return the number of those that fail."""
    if len(sys.argv) != 2:
        sys.exit(f"expected one file, as in python check_ppo.py ppo_one_file_todo.py, got {sys.argv[1:]}")
    file, failed = runpy.run_path(sys.argv[1]), 0
    for check in (check_gae, check_policy_loss, check_value_loss, check_entropy):
        try:
            check(file)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is filled in may raise anything
            failed += 1
            plain = isinstance(error, AssertionError | NotImplementedError)
            print(f"{check.__name__}: {error if plain else repr(error)}")
        else:
            print(f"{check.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
