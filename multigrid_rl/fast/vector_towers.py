"""Policy and value towers on the CPU, forward and backward, over vectors of floats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.fast import ForwardPass
from multigrid_rl.fast.distinct import Distinct
from multigrid_rl.fast.towers import KINDS, MAX_WIDTH, Tower, Towers, linear_layers
from multigrid_rl.models.distributions import NO_CHOICE
from multigrid_rl.models.vector import CLIP_OBS, LogStd, Normaliser, VectorActorCritic

Array = NDArray[Any]


class VectorTowers(Towers):
    """Towers over vectors. ``net``: the network, on the CPU, without layer normalisation."""

    def __init__(self, net: VectorActorCritic) -> None:
        spread, normaliser = net.spread, net.normaliser
        self._log_std = spread.log_std if isinstance(spread, LogStd) else None
        self._normaliser = None
        if isinstance(normaliser, Normaliser):
            self._normaliser = normaliser.mean.numpy(), normaliser.std.numpy()
        self._scale, self._legal = net.value_scale.numpy(), net.legal
        flat = linear_layers(net.policy, net.value)
        super().__init__(flat if self._log_std is None else [*flat, self._log_std], KINDS[net.activation])
        # numpy adds up the spread's gradient in pairs where it has one column, and a run's numbers must stay the same.
        self.descent = self.descent if self._log_std is None or len(self._log_std) > 1 else ""

    def _split(self, flat: Sequence[Tensor | None]) -> list[Tower]:
        arrays = [tensor.detach().numpy() for tensor in flat if tensor is not None]
        half = len(arrays) // 4 * 2  # weight and bias of each layer; the rest is the policy's spread
        none, table = np.zeros(0, np.int64), np.zeros((0, len(arrays[1])), np.float32)
        parts = arrays[:half], arrays[half : 2 * half]
        return [Tower((none, table, 0), (none, table), tuple(part[0::2]), tuple(part[1::2])) for part in parts]

    def start(self, obs: Array, memory: Array | None = None, starts: Array | None = None) -> ForwardPass:  # noqa: ARG002
        """Pass through both towers with observations ``obs`` (B, D)."""
        # Rows of floats are hardly ever equal, so nothing looks for duplicates. Values are in the reward's units.
        x = self._normalised(obs)
        layers = self.run(x, 0, 1)
        return self.record(Distinct(x, None), layers, self._outputs(layers[0][-1], obs), layers[1][-1] * self._scale)

    def policy(self, obs: Array) -> Array:
        """Return only the policy's outputs (B, K), without gradients, of observations ``obs`` (B, D)."""
        return self._outputs(self.run(self._normalised(obs), 0)[0][-1], obs)

    def values(self, parts: Sequence[Array]) -> Iterator[Array]:
        """Yield only the values (B,), without gradients, of each of ``parts``: observations (B, D)."""
        for part in parts:
            yield self.run(self._normalised(part), 1)[0][-1][:, 0] * self._scale

    def rows(self, obs: Array) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        """Return observations (R, D) for ``fast.descent``; values' scale, spread, legal choices, spread's gradient."""
        x, none = self._normalised(obs), np.zeros(0, np.float32)
        spread = (none, none)
        if self._log_std is not None:
            spread = self._log_std.detach().numpy(), cast(Tensor, self._log_std.grad).numpy()
        inputs = np.empty((len(x), 0), np.uint8), x, np.zeros(0, np.int64)
        return inputs, (self._scale[0], spread[0], self._shift(obs), spread[1])

    def _shift(self, obs: Array) -> Array:
        """Return the addition to logits (B, K) that rules out illegal choices; no columns where all are legal."""
        shift: Array = (obs[:, obs.shape[1] - self._legal :] - 1) * np.float32(-NO_CHOICE)
        return shift

    def _normalised(self, obs: Array) -> Array:
        """Return ``obs`` (B, D) as normalised by :class:`Normaliser`, if there is one."""
        x = np.ascontiguousarray(obs, np.float32)
        if self._normaliser is None:
            return x
        mean, std = self._normaliser
        result: Array = (x - mean) / std
        return np.clip(result, -CLIP_OBS, CLIP_OBS, out=result)

    def _outputs(self, means: Array, obs: Array) -> Array:
        if self._log_std is None:
            return means + self._shift(obs) if self._legal else means
        result = np.empty((len(means), 2 * means.shape[1]), np.float32)
        result[:, : means.shape[1]], result[:, means.shape[1] :] = means, self._log_std.detach().numpy()
        return result

    def back(
        self, batch: Distinct, layers: list[tuple[Array, ...]], upstream: Sequence[Array], gradients: Sequence[Any]
    ) -> None:
        """Add the gradients of all weights, given those of outputs (B, K) and values (B, 1), to ``gradients``."""
        means, by_values = upstream
        if self._log_std is not None:
            width = means.shape[1] // 2
            # The spread is the same in every state, so its gradient is a sum over rows.
            gradients[-1].numpy()[:] += means[:, width:].sum(axis=0)
            means = means[:, :width]
        super().back(batch, layers, (np.ascontiguousarray(means), by_values * self._scale), gradients)


def vector_towers(net: VectorActorCritic) -> VectorTowers | None:
    """Compile towers over vectors; ``None`` where torch computes them."""
    supported = net.activation in KINDS and not net.layer_norm
    small = max(net.hidden) <= MAX_WIDTH
    return VectorTowers(net) if supported and small and net.value_scale.device.type == "cpu" else None
