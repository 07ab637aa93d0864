"""Networks for observations that are vectors of floats."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.models import kernels
from multigrid_rl.models.towers import KINDS, MAX_WIDTH

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


class _Towers:
    """Both towers as arrays that share the tensors' memory.

    Args:
        layers: linear layers of the policy and of the value tower.
        kind: of the activation, see :mod:`multigrid_rl.models.kernels`.
    """

    def __init__(self, layers: Sequence[Sequence[nn.Linear]], kind: int) -> None:
        self.places = _places(layers)
        self.kind = kind
        self._layers = layers
        self._weights = [tuple(layer.weight.detach().numpy() for layer in tower) for tower in layers]
        self._biases = [tuple(layer.bias.detach().numpy() for layer in tower) for tower in layers]
        self._transposed = [tuple(np.empty(w.shape[::-1], w.dtype) for w in tower[:-1]) for tower in self._weights]

    def run(self, x: Array, which: int) -> tuple[Array, ...]:
        """Return activations (B, H) of each hidden layer and the outputs of tower 0, the policy, or 1, the value."""
        biases = self._biases[which]
        layers = tuple(np.empty((len(x), len(bias)), np.float32) for bias in biases)
        kernels.dense_forward(x, self.kind, self._weights[which], self._transposed[which], biases, layers)
        return layers

    def add_gradients(self, x: Array, passed: tuple[Array, ...], upstream: Array, which: int) -> None:
        """Add the gradients of one tower's weights, from those by its outputs (B, K), to those of its parameters."""
        grads: list[Any] = [(layer.weight.grad, layer.bias.grad) for layer in self._layers[which]]
        by_weights, by_biases = (tuple(grad.numpy() for grad in column) for column in zip(*grads, strict=True))
        hidden = passed[:-1]
        inner = (*map(np.empty_like, hidden), np.ascontiguousarray(upstream))
        kernels.dense_backward(x, self.kind, self._weights[which], hidden, inner, by_weights, by_biases)


def _places(layers: Sequence[Sequence[nn.Linear]]) -> list[int]:
    return [layer.weight.data_ptr() for tower in layers for layer in tower]


class Pass:
    """One pass through both towers on the CPU, and the way back without torch's graph.

    Args:
        net: the network.
        obs: (B, D) float32.

    Attributes:
        logits: (B, K) outputs of the policy.
        values: (B, 1).
    """

    def __init__(self, net: "VectorActorCritic", towers: _Towers, obs: Array) -> None:
        self._net, self._towers = net, towers
        self._x = net.normalised(obs)
        self._passed = [towers.run(self._x, which) for which in (0, 1)]
        means, values = self._passed[0][-1], self._passed[1][-1]
        self.logits = means
        if isinstance(net.spread, LogStd):
            log_std = net.spread.log_std.detach().numpy()
            self.logits = np.concatenate([means, np.broadcast_to(log_std, means.shape)], axis=1)
        self.values = values * net.value_scale.numpy()

    def add_gradients(self, upstream: Sequence[Array]) -> None:
        """Add the gradients of all weights, from those by outputs (B, K) and values (B, 1), to the parameters'."""
        by_outputs, by_values = upstream
        if isinstance(self._net.spread, LogStd):
            means, by_log_std = np.split(by_outputs, 2, axis=1)
            grad: Any = self._net.spread.log_std.grad
            grad.add_(torch.from_numpy(by_log_std.sum(axis=0)))
        else:
            means = by_outputs
        self._towers.add_gradients(self._x, self._passed[0], means, 0)
        self._towers.add_gradients(self._x, self._passed[1], by_values * self._net.value_scale.numpy(), 1)


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

    def __init__(  # noqa: PLR0913 - what a network is
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
        self._towers: _Towers | None = None

    def start(self, obs: Array) -> Pass | None:
        """Return a pass over ``obs`` (B, D) that needs no graph of torch; ``None`` where torch computes it."""
        if self._kind is None or self.value_scale.device.type != "cpu":
            return None
        layers = [[layer for layer in tower if isinstance(layer, nn.Linear)] for tower in (self.policy, self.value)]
        if self._towers is None or self._towers.places != _places(layers):
            self._towers = _Towers(layers, self._kind)
        return Pass(self, self._towers, np.ascontiguousarray(obs, np.float32))

    def normalised(self, obs: Array) -> Array:
        """Return what :class:`Normaliser` makes of ``obs`` (B, D), if there is one."""
        if not isinstance(self.normaliser, Normaliser):
            return obs
        mean, std = self.normaliser.mean.numpy(), self.normaliser.std.numpy()
        inside: Array = np.clip((obs - mean) / std, -MOST, MOST)
        return inside

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
