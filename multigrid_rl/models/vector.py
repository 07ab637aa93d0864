"""Networks for observations that are vectors of floats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class LogStd(nn.Module):
    """Appends the logarithm of a standard deviation, learnt but the same in every state, to a Gaussian's means.

    Args:
        width: numbers ``A`` of an action.
        initial: value at the start.
    """

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((width,), float(initial)))

    def forward(self, means: Tensor) -> Tensor:
        """Return means and log standard deviations (B, 2 A) of means (B, A)."""
        return torch.cat([means, self.log_std.expand_as(means)], dim=-1)


class VectorActorCritic(nn.Module):
    """Separate policy and value towers over a vector.

    Args:
        size: length ``D`` of an observation.
        outputs: numbers that the policy puts out; the means alone of a Gaussian.
        hidden: units of each layer, in both towers.
        activation: ``tanh`` or ``relu``.
        log_std: of a Gaussian at the start; ``None``: the outputs are logits.
        generator: source of the initial weights: orthogonal (Saxe et al. 2014), outputs scaled as Engstrom et al. 2020.
    """

    #: No memory between steps.
    state_size = 0

    def __init__(
        self,
        size: int,
        outputs: int,
        hidden: Sequence[int],
        activation: str,
        log_std: float | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.policy = _tower((size, *hidden, outputs), ACTIVATIONS[activation], 0.01, generator)
        self.value = _tower((size, *hidden, 1), ACTIVATIONS[activation], 1.0, generator)
        self.spread = nn.Identity() if log_std is None else LogStd(outputs, log_std)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs (B, K) and values (B,) of observations (B, D)."""
        return self.logits(obs), self.value(obs).squeeze(-1)

    def logits(self, obs: Tensor) -> Tensor:
        """Compute the policy's outputs (B, K) alone, for a player."""
        outputs: Tensor = self.spread(self.policy(obs))
        return outputs


def _tower(
    sizes: Sequence[int], activation: type[nn.Module], last_gain: float, generator: torch.Generator
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)
