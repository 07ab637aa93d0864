"""The default network: separate towers of policy and values, over one-hot tokens or over a vector of floats."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.tokens import first_rows, sum_of_rows

Array = NDArray[Any]
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
#: Normalised observations are clipped to +- this.
CLIP_OBS = 10.0


def tower(
    sizes: Sequence[int],
    activation: str,
    last_gain: float,
    generator: Generator,
    *,
    gain: float = 2**0.5,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Build linear layers from each of ``sizes`` to the next with activations between them, orthogonal by ``gain``."""
    # Orthogonal weights keep the length of what passes through them (Saxe et al. 2014,
    # https://arxiv.org/abs/1312.6120); a gain of sqrt(2) makes up for what activations take away. A last gain of 0.01
    # starts with a nearly uniform policy: one of the details that PPO owes its results to (Engstrom et al. 2020,
    # https://arxiv.org/abs/2005.12729).
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if last else gain, generator=generator)
        nn.init.zeros_(layer.bias)
        # Ba et al. 2016, https://arxiv.org/abs/1607.06450
        norm = [nn.LayerNorm(after)] if layer_norm else []
        layers += [layer] if last else [layer, *norm, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class MLPActorCritic(nn.Module):
    """Separate policy and value towers over tokens."""

    # Towers of their own reach more than a shared trunk, whose two losses need weighing (Andrychowicz et al. 2021,
    # https://arxiv.org/abs/2006.05990, section 3.2). The first layer is a linear layer on the one-hot codes of all
    # tokens (models.tokens), of both towers at once: tokens are looked up once.

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        categories, hidden, generator = layout.observation, layout.hidden, layout.generator
        assert not isinstance(categories, int)
        self.register_buffer("first", first_rows(categories, layout.central), persistent=False)
        self.first: Tensor
        self.sizes = np.array([*categories, *layout.central])
        self.tokens, self.hidden, self.activation = len(categories), hidden, layout.activation
        self.table = table_of(categories, 2 * hidden[0], generator)
        self.bias = nn.Parameter(torch.zeros(2 * hidden[0]))
        self.policy, self.value = (
            nn.Sequential(ACTIVATIONS[self.activation](), *tower((*hidden, outputs), self.activation, gain, generator))
            # The table is a linear layer: the activation after it comes first.
            for outputs, gain in ((layout.outputs, 0.01), (1, 1.0))
        )
        self.central = table_of(layout.central, hidden[0], generator) if layout.central else None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Integer tokens (B, D) to logits (B, K) and values (B,)."""
        policy, critic = self._features(tokens)
        if self.central is not None:
            critic = critic + sum_of_rows(tokens[:, self.tokens :], self.first[self.tokens :], self.central)
        values: Tensor = self.value(critic)
        return self.policy(policy), values.squeeze(-1)

    def logits(self, tokens: Tensor) -> Tensor:
        """Compute only the logits (B, K), for a player, who has no critic-only tokens."""
        logits: Tensor = self.policy(self._features(tokens)[0])
        return logits

    def _features(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer (B, H) of the policy and of the values."""
        both = sum_of_rows(tokens[:, : self.tokens], self.first[: self.tokens], self.table) + self.bias
        return both[:, : self.hidden[0]], both[:, self.hidden[0] :]


def table_of(categories: Sequence[int], width: int, generator: Generator) -> nn.Parameter:
    """Draw a table of a row for each value of each token; one row of each is summed: the sum has unit variance."""
    return nn.Parameter(torch.empty(sum(categories), width).normal_(std=len(categories) ** -0.5, generator=generator))


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


class Normaliser(nn.Module):
    """Normalises observations by their running mean and standard deviation, and clips them to +-10.

    At the start mean and standard deviation change nothing.

    Args:
        size: length ``D`` of an observation.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        # Buffers are saved, shared and hashed with the weights, and no optimiser moves them: only a trainer does,
        # between updates. A player needs them as much as its weights.
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.mean: Tensor
        self.std: Tensor

    def set_statistics(self, mean: Array, std: Array) -> None:
        """Set mean and standard deviation (D,)."""
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    def forward(self, obs: Tensor) -> Tensor:
        """Return normalised observations, of the shape of ``obs`` (..., D)."""
        # One value far out, as a sensor's fault, must not saturate the first layer.
        return ((obs - self.mean) / self.std).clamp(-CLIP_OBS, CLIP_OBS)


class VectorActorCritic(nn.Module):
    """Separate policy and value towers over a vector.

    Values are in units of the reward; inside, in units of ``value_scale``: their standard deviation as measured by a
    trainer, or 1.
    """

    #: No memory between steps.
    state_size = 0

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        size, outputs, generator = layout.observation, layout.outputs, layout.generator
        assert isinstance(size, int)
        self.hidden, self.activation, self.layer_norm = layout.hidden, layout.activation, layout.layer_norm
        self.policy, self.value = (
            tower((size, *self.hidden, last), self.activation, gain, generator, layer_norm=self.layer_norm)
            for last, gain in ((outputs, 0.01), (1, 1.0))
        )
        self.spread = nn.Identity() if layout.log_std is None else LogStd(outputs, layout.log_std)
        self.normaliser = Normaliser(size) if layout.normalise else nn.Identity()
        self.register_buffer("value_scale", torch.ones(1))
        self.value_scale: Tensor

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs (B, K) and values (B,) of observations (B, D)."""
        x = self.normaliser(obs)
        return self.spread(self.policy(x)), self._values(x)

    def logits(self, obs: Tensor) -> Tensor:
        """Compute only the policy's outputs (B, K), for a player."""
        outputs: Tensor = self.spread(self.policy(self.normaliser(obs)))
        return outputs

    def values(self, obs: Tensor) -> Tensor:
        """Compute only the values (B,)."""
        return self._values(self.normaliser(obs))

    def _values(self, x: Tensor) -> Tensor:
        values: Tensor = self.value(x).squeeze(-1) * self.value_scale
        return values

    def rescale_values(self, scale: float) -> float:
        """Set ``value_scale`` without changing the network's values: its last layer is multiplied by what is returned.

        The gradient of a loss in units of the scale changes by the same factor.
        """
        # "Preserving outputs precisely" of PopArt (van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714), its
        # scale alone: without the shift a network's values need no second buffer, and advantages do not depend on it.
        last: Any = self.value[-1]
        factor = float(self.value_scale) / scale
        with torch.no_grad():
            last.weight.mul_(factor)
            last.bias.mul_(factor)
            self.value_scale.fill_(scale)
        return factor


def build(layout: Layout) -> nn.Module:
    """Build towers over a vector or over tokens."""
    return VectorActorCritic(layout) if isinstance(layout.observation, int) else MLPActorCritic(layout)
