"""Networks for observations that are vectors of floats, and running statistics of these."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.models import Layout
from multigrid_rl.models.distributions import NO_CHOICE
from multigrid_rl.models.mlp import orthogonal, tower

Array = NDArray[Any]
#: Normalised observations are clipped to +- this.
CLIP_OBS = 10.0
#: Of a network for images: convolutions at least, channels of the first and of the others, sides that are small enough.
_CONVOLUTIONS, _CHANNELS, _SMALL = 2, (16, 32), 8


class Moments:
    """Mean and variance of all added rows, in float64."""

    def __init__(self, width: int) -> None:
        self.count, self.mean, self.squares = 0.0, np.zeros(width), np.zeros(width)

    def add(self, rows: NDArray[Any]) -> None:
        """Add ``rows`` (B, width), at least one."""
        # Chan et al. 1979 (http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf): batches are combined
        # by squares around their own means, as a difference of large sums would cancel.
        mean, count = rows.mean(axis=0, dtype=np.float64), self.count + len(rows)
        squares = ((rows - mean) ** 2).sum(axis=0)
        self.squares = self.squares + squares + (mean - self.mean) ** 2 * self.count * len(rows) / count
        self.mean = self.mean + (mean - self.mean) * len(rows) / count
        self.count = count

    def take(self, normaliser: "Normaliser", rows: int) -> None:
        """Take the statistics of a ``normaliser`` as if of ``rows`` rows, in place of all others."""
        self.count, self.mean = float(rows), normaliser.mean.cpu().numpy().astype(np.float64)
        self.squares = normaliser.std.cpu().numpy().astype(np.float64) ** 2 * rows

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation (width,), never 0."""
        return np.sqrt(self.squares / max(self.count, 1.0) + 1e-8)


class LogStd(nn.Module):
    """Appends the logarithm of a standard deviation, learnt but the same in every state, to a Gaussian's means.

    ``width``: numbers ``A`` of an action.
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
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        # Buffers are saved, shared and hashed with the weights, and no optimiser changes them: only a trainer does,
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
        # One outlier, as from a faulty sensor, must not saturate the first layer.
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
        self.legal = layout.legal
        size, outputs = layout.observation, layout.outputs
        assert isinstance(size, int)
        self.hidden, self.activation, self.layer_norm = layout.hidden, layout.activation, layout.layer_norm
        self.policy, self.value = (self._tower(layout, size, last, gain) for last, gain in ((outputs, 0.01), (1, 1.0)))
        self.spread = nn.Identity() if layout.log_std is None else LogStd(outputs, layout.log_std)
        self.normaliser = Normaliser(size) if layout.normalise else nn.Identity()
        self.register_buffer("value_scale", torch.ones(1))
        self.value_scale: Tensor

    def _tower(self, layout: Layout, size: int, last: int, gain: float) -> nn.Sequential:
        sizes = size, *layout.hidden, last
        return tower(sizes, layout.activation, gain, layout.generator, layer_norm=layout.layer_norm)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs (B, K) and values (B,) of observations (B, D)."""
        x = self.normaliser(obs)
        return self._allowed(self.spread(self.policy(x)), obs), self._values(x)

    def logits(self, obs: Tensor) -> Tensor:
        """Compute only the policy's outputs (B, K), for a player."""
        return self._allowed(self.spread(self.policy(self.normaliser(obs))), obs)

    def _allowed(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Take all probability from choices that the end of ``obs`` says are not legal."""
        # Exact zeros in drawing, loss, entropy and mode, and no gradient (Huang and Ontanon 2022,
        # https://arxiv.org/abs/2006.14171): distributions need not know.
        return outputs + (obs[:, -self.legal :] - 1) * -NO_CHOICE if self.legal else outputs

    def values(self, obs: Tensor) -> Tensor:
        """Compute only the values (B,)."""
        return self._values(self.normaliser(obs))

    def _values(self, x: Tensor) -> Tensor:
        values: Tensor = self.value(x).squeeze(-1) * self.value_scale
        return values

    def rescale_values(self, scale: float) -> float:
        """Set ``value_scale`` without changing the network's values: multiplies its last layer by the returned factor.

        The gradient of a loss in units of the scale changes by the same factor.
        """
        # "Preserving outputs precisely" of PopArt (van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714), its
        # scale only: without the shift a network's values need no second buffer, and advantages do not depend on it.
        last: Any = self.value[-1]
        factor = float(self.value_scale) / scale
        with torch.no_grad():
            last.weight.mul_(factor)
            last.bias.mul_(factor)
            self.value_scale.fill_(scale)
        return factor


class CentralActorCritic(VectorActorCritic):
    """The same with a central critic: after an agent's own vector (D,) come those of its team mates, each as long."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        assert isinstance(layout.observation, int)
        self.size = layout.observation
        # A part of the first layer of values, which players do not have.
        central = nn.Linear(sum(layout.central), layout.hidden[0], bias=False)
        self.central = orthogonal(central, 2**0.5, layout.generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs (B, K) and values (B,) of observations (B, D + C)."""
        return self.logits(obs), self.values(obs)

    def logits(self, obs: Tensor) -> Tensor:
        """Compute only the policy's outputs (B, K), of the agent's own vector."""
        return super().logits(obs[:, : self.size])

    def values(self, obs: Tensor) -> Tensor:
        """Compute only the values (B,), of all vectors."""
        views = self.normaliser(obs.reshape(len(obs), -1, self.size))
        first = self.value[0](views[:, 0]) + self.central(views[:, 1:].flatten(1))
        values: Tensor = self.value[1:](first).squeeze(-1) * self.value_scale
        return values


class ImageActorCritic(VectorActorCritic):
    """Separate policy and value towers over an image: 3x3 convolutions until no side is above 8, then dense layers."""

    def _tower(self, layout: Layout, size: int, last: int, gain: float) -> nn.Sequential:  # noqa: ARG002 - flags included
        height, width, channels = layout.image
        layers: list[nn.Module] = [Pixels(layout.image)]
        while len(layers) < 2 * _CONVOLUTIONS or max(height, width) > _SMALL:
            # The first layers halve the sides, as is usual for pixels (Mnih et al. 2015,
            # https://doi.org/10.1038/nature14236); a small board keeps its cells.
            stride = 2 if max(height, width) > _SMALL else 1
            layer = nn.Conv2d(channels, _CHANNELS[len(layers) > 1], 3, stride, padding=1)
            layers += [orthogonal(layer, 2**0.5, layout.generator), nn.ReLU()]
            height, width, channels = -(-height // stride), -(-width // stride), layer.out_channels
        return nn.Sequential(*layers, nn.Flatten(), *super()._tower(layout, height * width * channels, last, gain))


class Pixels(nn.Module):
    """Shows the image (B, C, H, W) that a vector (B, D) begins with. ``image``: height, width and channels."""

    def __init__(self, image: Sequence[int]) -> None:
        super().__init__()
        self._image = tuple(image)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the image (B, C, H, W)."""
        return obs[:, : prod(self._image)].reshape(-1, *self._image).permute(0, 3, 1, 2)
