"""Networks for observations that are vectors of floats."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.jit import float_shared
from multigrid_rl.models import kernels
from multigrid_rl.models.towers import KINDS, MAX_WIDTH, places

Array = NDArray[Any]
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
#: Largest size of a normalised number.
MOST = 10.0


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
    """Shifts and scales observations by what was seen of them, and cuts them off at +-10.

    Mean and standard deviation are part of the weights: they travel with them, and are frozen wherever no trainer
    updates them. A trainer does so between updates (:class:`~multigrid_rl.learn.update.Update`); at the start nothing
    is changed.

    Args:
        size: length ``D`` of an observation.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.mean: Tensor
        self.std: Tensor

    def forward(self, obs: Tensor) -> Tensor:
        """Return normalised observations, of the shape of ``obs`` (..., D)."""
        return ((obs - self.mean) / self.std).clamp(-MOST, MOST)


@float_shared
def _forward(
    x: Array,
    kind: int,
    towers: int,
    weights: Any,
    transposed: Any,
    biases: Any,
    layers: Any,
    weights_1: Any,
    transposed_1: Any,
    biases_1: Any,
    layers_1: Any,
) -> None:
    """Fill the layers of the first tower or of both, blocks of rows shared out to threads: none reads another."""
    blocks = (len(x) + kernels.BLOCK - 1) // kernels.BLOCK
    kernels.transpose(weights, transposed)
    if towers > 1:
        kernels.transpose(weights_1, transposed_1)
    for part in prange(towers * blocks):
        low = part % blocks * kernels.BLOCK
        rows = (low, min(low + kernels.BLOCK, len(x)))
        if part < blocks:
            kernels.dense_forward(x, kind, weights, transposed, biases, layers, rows)
        else:
            kernels.dense_forward(x, kind, weights_1, transposed_1, biases_1, layers_1, rows)


@float_shared
def _both_backward(
    x: Array,
    kind: int,
    weights: Any,
    hidden: Any,
    gradients: Any,
    by_weights: Any,
    by_biases: Any,
    weights_1: Any,
    hidden_1: Any,
    gradients_1: Any,
    by_weights_1: Any,
    by_biases_1: Any,
) -> None:
    """Go back through :func:`_forward` of both: towers share no weight, so no sum is taken in two threads."""
    for which in prange(2):
        if which == 0:
            kernels.dense_backward(x, kind, weights, hidden, gradients, by_weights, by_biases)
        else:
            kernels.dense_backward(x, kind, weights_1, hidden_1, gradients_1, by_weights_1, by_biases_1)


class VectorTowers:
    """Both towers as arrays that share the tensors' memory, ready to run.

    Args:
        net: the network, on the CPU, without layer normalisation.
        kind: of the activation, see :mod:`multigrid_rl.models.kernels`.
    """

    def __init__(self, net: "VectorActorCritic", kind: int) -> None:
        towers = [[layer for layer in tower if isinstance(layer, nn.Linear)] for tower in (net.policy, net.value)]
        spread, normaliser = net.spread, net.normaliser
        self._flat = [weight for tower in towers for layer in tower for weight in (layer.weight, layer.bias)]
        self._log_std = spread.log_std if isinstance(spread, LogStd) else None
        if self._log_std is not None:
            self._flat.append(self._log_std)
        self._at, self._kind, self._depth = places(self._flat), kind, len(towers[0])
        self._normaliser = None
        if isinstance(normaliser, Normaliser):
            self._normaliser = normaliser.mean.numpy(), normaliser.std.numpy()
        self._scale = net.value_scale.numpy()
        self._towers = self._cut(self._flat)
        self._transposed = [tuple(np.empty(w.shape[::-1], w.dtype) for w in t[0]) for t in self._towers]
        self._by, self._by_at = self._towers, self._at

    def _cut(self, flat: Sequence[Tensor]) -> list[tuple[tuple[Array, ...], tuple[Array, ...]]]:
        """Return weights and biases of both towers."""
        arrays = [tensor.detach().numpy() for tensor in flat[: 4 * self._depth]]
        parts = arrays[: 2 * self._depth], arrays[2 * self._depth :]
        return [(tuple(part[0::2]), tuple(part[1::2])) for part in parts]

    def reads(self) -> bool:
        """Whether the weights lie where they did when this was made: it then reads their newest values."""
        return self._at == places(self._flat)

    def policy(self, obs: Array) -> Array:
        """Return outputs (B, K) of the policy alone, without gradients, of ``obs`` (B, D)."""
        return self._outputs(self._run(self._normalised(obs), 0)[0][-1])

    def values(self, parts: Sequence[Array]) -> Iterator[Array]:
        """Yield values (B,) alone, without gradients, of each of ``parts``: observations (B, D)."""
        for part in parts:
            yield self._run(self._normalised(part), 1)[0][-1][:, 0] * self._scale

    def _run(self, x: Array, *which: int) -> list[tuple[Array, ...]]:
        """Return the activations of each hidden layer and the outputs, of each tower named: 0 policy, 1 value."""
        given = []
        for tower in which:
            weights, biases = self._towers[tower]
            layers = tuple(np.empty((len(x), len(bias)), np.float32) for bias in biases)
            given.append((weights, self._transposed[tower], biases, layers))
        _forward(x, self._kind, len(which), *given[0], *given[-1])
        return [layers for *_, layers in given]

    def _normalised(self, obs: Array) -> Array:
        """Return what :class:`Normaliser` makes of ``obs`` (B, D), if there is one."""
        x = np.ascontiguousarray(obs, np.float32)
        if self._normaliser is None:
            return x
        mean, std = self._normaliser
        inside: Array = (x - mean) / std
        return np.clip(inside, -MOST, MOST, out=inside)

    def _outputs(self, means: Array) -> Array:
        if self._log_std is None:
            return means
        result = np.empty((len(means), 2 * means.shape[1]), np.float32)
        result[:, : means.shape[1]], result[:, means.shape[1] :] = means, self._log_std.detach().numpy()
        return result

    def start(self, obs: Array) -> "Pass":
        """Pass over ``obs`` (B, D), side by side where there are threads."""
        x = self._normalised(obs)
        passed = self._run(x, 0, 1)
        return Pass(self, x, passed, self._outputs(passed[0][-1]), passed[1][-1] * self._scale)

    def add_gradients(self, x: Array, passed: Sequence[tuple[Array, ...]], by_outputs: Array, by_values: Array) -> None:
        """Add the gradients of all weights to the parameters', see :meth:`Pass.add_gradients`."""
        gradients: list[Any] = [weight.grad for weight in self._flat]
        at = places(gradients)
        if self._by_at != at:
            self._by, self._by_at = self._cut(gradients), at
        means = by_outputs
        if self._log_std is not None:
            width = by_outputs.shape[1] // 2
            means = by_outputs[:, :width]
            gradients[-1].numpy()[:] += by_outputs[:, width:].sum(axis=0)
        given = []
        for (weights, _), by, layers, upstream in zip(
            self._towers, self._by, passed, (means, by_values * self._scale), strict=True
        ):
            hidden = layers[:-1]
            given.append((weights, hidden, (*map(np.empty_like, hidden), np.ascontiguousarray(upstream)), *by))
        _both_backward(x, self._kind, *given[0], *given[1])


class Pass(NamedTuple):
    """One pass through both towers on the CPU, and the way back without torch's graph."""

    towers: VectorTowers
    x: Array  # (B, D) what both towers read
    passed: list[tuple[Array, ...]]  # activations of each hidden layer and the outputs, of both towers
    logits: Array  # (B, K) outputs of the policy
    values: Array  # (B, 1)

    def add_gradients(self, upstream: Sequence[Array]) -> None:
        """Add the gradients of all weights, from those by outputs (B, K) and values (B, 1), to the parameters'."""
        self.towers.add_gradients(self.x, self.passed, *upstream)


class VectorActorCritic(nn.Module):
    """Separate policy and value towers over a vector.

    Values come out in units of the reward; inside, ``value_scale`` is their standard deviation as a trainer measured it
    (van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714), or 1.

    Args:
        size: length ``D`` of an observation.
        outputs: numbers that the policy puts out; the means alone of a Gaussian.
        hidden: units of each layer, in both towers.
        activation: a name of :data:`ACTIVATIONS`.
        log_std: of a Gaussian at the start; ``None``: the outputs are logits.
        generator: source of the initial weights: orthogonal (Saxe et al. 2014), outputs scaled as Engstrom et al. 2020.
        layer_norm: normalise each hidden layer before its activation (Ba et al. 2016).
        normalise: put a :class:`Normaliser` before both towers.
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
        *,
        layer_norm: bool = False,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        self.policy = _tower((size, *hidden, outputs), activation, 0.01, generator, layer_norm)
        self.value = _tower((size, *hidden, 1), activation, 1.0, generator, layer_norm)
        self.spread = nn.Identity() if log_std is None else LogStd(outputs, log_std)
        self.normaliser = Normaliser(size) if normalise else nn.Identity()
        self.register_buffer("value_scale", torch.ones(1))
        self.value_scale: Tensor
        self._kind = None if layer_norm or max(hidden) > MAX_WIDTH else KINDS.get(activation)
        self._towers: VectorTowers | None = None

    def start(self, obs: Array) -> Pass | None:
        """Return a pass over ``obs`` (B, D) that needs no graph of torch; ``None`` where torch computes it."""
        towers = self.compiled()
        return None if towers is None else towers.start(obs)

    def compiled(self) -> VectorTowers | None:
        """Return what computes without torch, as long as weights stay in place; ``None`` where torch computes it."""
        if self._kind is None or self.value_scale.device.type != "cpu":
            return None
        if self._towers is None or not self._towers.reads():
            self._towers = VectorTowers(self, self._kind)
        return self._towers

    def __getstate__(self) -> dict[str, Any]:
        # What reads these weights in place must not come along with a copy of them.
        return {**self.__dict__, "_towers": None}

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs (B, K) and values (B,) of observations (B, D)."""
        compute = not torch.is_grad_enabled() and obs.device.type == "cpu"
        passed = self.start(obs.numpy()) if compute else None
        if passed is not None:
            return torch.from_numpy(passed.logits), torch.from_numpy(passed.values).squeeze(-1)
        seen = self.normaliser(obs)
        return self.spread(self.policy(seen)), self._values(seen)

    def logits(self, obs: Tensor) -> Tensor:
        """Compute the policy's outputs (B, K) alone, for a player."""
        outputs: Tensor = self.spread(self.policy(self.normaliser(obs)))
        return outputs

    def values(self, obs: Tensor) -> Tensor:
        """Compute the values (B,) alone."""
        return self._values(self.normaliser(obs))

    def _values(self, seen: Tensor) -> Tensor:
        values: Tensor = self.value(seen).squeeze(-1) * self.value_scale
        return values

    def rescale_values(self, scale: float) -> None:
        """Set ``value_scale`` without changing what the network says: its last layer takes up the difference."""
        last: Any = self.value[-1]
        factor = float(self.value_scale) / scale
        with torch.no_grad():
            last.weight.mul_(factor)
            last.bias.mul_(factor)
            self.value_scale.fill_(scale)


def _tower(
    sizes: Sequence[int], activation: str, last_gain: float, generator: torch.Generator, layer_norm: bool
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        norm = [nn.LayerNorm(after)] if layer_norm else []
        layers += [layer] if last else [layer, *norm, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
