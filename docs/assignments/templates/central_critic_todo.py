"""A central critic, to fill in: what it reads beside an agent's own view, while the actor reads that view alone.

    python central_critic_todo.py                    # closed-form checks: what is filled in is right, or not
    multigrid-rl train scenario=coop scheme=ctde model=central_critic_todo:CentralCritic
    multigrid-rl train scenario=coop scheme=dtde model=mlp

Under ``scheme=ctde`` an observation is a row of whole numbers: the D tokens of the agent's own view, those of each of
its M team mates, then the last action of the agent and of each mate; 7 stands for none yet.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete
from torch import Tensor, nn

# ---- what the critic reads


def split(obs: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return own view (B, D), mates' views (B, M, D), last actions (B, M + 1) of ``obs`` (B, D + M D + M + 1).

    ``size`` is D.
    """
    # TODO split: M follows from the length of a row; own view first, then the mates' in order, then the actions
    raise NotImplementedError("split is to be filled in")


def one_hot(tokens: Tensor, counts: list[int]) -> Tensor:
    """Return (B, sum of counts): for each token of (B, D) a 1 at its value among ``counts`` of that token."""
    # TODO one_hot: side by side, as a number such as 12 for a wall is no quantity
    raise NotImplementedError("one_hot is to be filled in")


def critic_input(obs: Tensor, counts: list[int], actions: int) -> Tensor:
    """Return what the critic reads, one-hot: own view, mates' views, last actions, each of ``actions`` + 1 values."""
    # TODO critic_input: V(o_i, o_j, a_i, a_j) of Lowe et al. 2017, section 4.1, https://arxiv.org/abs/1706.02275
    raise NotImplementedError("critic_input is to be filled in")


# ---- the network: nothing to fill in


class CentralCritic(nn.Module):
    """Policy over an agent's own view, values over :func:`critic_input`.

    A player is built without ``central_space``, and does without ``central``.
    """

    state_size = 0

    def __init__(
        self,
        observation_space: MultiDiscrete,
        outputs: int,
        hidden: tuple[int, ...],
        generator: torch.Generator,
        central_space: MultiDiscrete | None = None,
    ) -> None:
        super().__init__()
        self.counts, self.actions = observation_space.nvec.tolist(), outputs
        self.policy = tower(sum(self.counts), outputs, hidden, 0.01, generator)
        if central_space is not None:
            width = sum(self.counts) + int(central_space.nvec.sum())
            self.central = tower(width, 1, hidden, 1.0, generator)

    def logits(self, obs: Tensor) -> Tensor:
        """Return logits (B, 7): the actor's, of the own view alone."""
        return self.policy(one_hot(obs[:, : len(self.counts)], self.counts))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, 7) and values (B,)."""
        return self.logits(obs), self.central(critic_input(obs, self.counts, self.actions)).squeeze(1)


def tower(inputs: int, outputs: int, hidden: tuple[int, ...], last_gain: float, rng: torch.Generator) -> nn.Sequential:
    """Return linear layers with orthogonal weights and tanh between them."""
    sizes, layers = (inputs, *hidden, outputs), []
    for k, (before, after) in enumerate(pairwise(sizes)):
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if k == len(hidden) else 2**0.5, generator=rng)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# ---- checks in closed form


def equal(found: object, expected: object) -> None:
    """Raise ``AssertionError`` unless all numbers are equal."""
    assert found is not None, "expected numbers, got None: a `return` or a gradient is missing"
    given, wanted = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if given.shape != wanted.shape or not torch.allclose(given, wanted, atol=1e-6):
        raise AssertionError(f"expected {wanted.tolist()}, got {given.tolist()}")


def check_split() -> None:
    """Views of two tokens: alone, with one mate, with two."""
    for row, parts in (
        ([1, 2, 7], ([1, 2], [], [7])),
        ([1, 2, 3, 4, 7, 6], ([1, 2], [[3, 4]], [7, 6])),
        ([1, 2, 3, 4, 5, 6, 0, 1, 2], ([1, 2], [[3, 4], [5, 6]], [0, 1, 2])),
    ):
        own, views, last = split(torch.tensor([row, row]), 2)
        equal(own, [parts[0]] * 2)
        equal(views, np.array([parts[1]] * 2).reshape(2, -1, 2))
        equal(last, [parts[2]] * 2)


def check_one_hot() -> None:
    """Two tokens, of three values and of two."""
    equal(one_hot(torch.tensor([[2, 0], [0, 1]], dtype=torch.uint8), [3, 2]), [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])


def check_critic_input() -> None:
    """Own view, the mates', own last action, the mates'; here there are two actions, and 2 stands for none yet."""
    seen = critic_input(torch.tensor([[1, 0, 2, 0]]), [2], 2)
    equal(seen, [[0, 1, 1, 0, 0, 0, 1, 1, 0, 0]])
    seen = critic_input(torch.tensor([[1, 0, 1, 2, 0, 1]]), [2], 2)
    equal(seen, [[0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0]])


def check_actor() -> None:
    """Only the critic may change where the mate's part does."""
    rng = torch.Generator().manual_seed(0)
    net = CentralCritic(MultiDiscrete([3, 2]), 7, (8,), rng, MultiDiscrete([3, 2, 8, 8]))
    rows = torch.tensor([[2, 1, 0, 0, 7, 7], [2, 1, 2, 1, 7, 7]])
    logits, values = net(rows)
    equal(logits[0], logits[1])
    if torch.isclose(values[0], values[1]):
        raise AssertionError("expected other values where the mate sees something else, got the same")


CHECKS = (check_split, check_one_hot, check_critic_input, check_actor)


def check() -> int:
    """Run all checks and return the number of those that fail."""
    failed = 0
    for one in CHECKS:
        try:
            one()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is filled in may raise anything
            failed += 1
            plain = isinstance(error, AssertionError | NotImplementedError)
            print(f"{one.__name__}: {error if plain else repr(error)}")
        else:
            print(f"{one.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(check() > 0)
