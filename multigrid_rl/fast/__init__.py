"""Everything compiled for networks, with one entry point: :func:`compile_network`.

The networks of ``models`` are the reference: torch computes them wherever nothing is compiled, and tests compare both.
"""

# It pays because torch needs dozens of calls for a small network, each of which costs more than its arithmetic.
# Compiled code reads the weights in place: nothing is copied before a step, and nothing can be out of date.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from multigrid_rl import jit

Array = NDArray[Any]
#: Compilers of classes of networks; a module is imported with the first network of its class.
_COMPILERS = {
    "multigrid_rl.models.mlp:MLPActorCritic": "multigrid_rl.fast.towers:token_towers",
    "multigrid_rl.models.vector:VectorActorCritic": "multigrid_rl.fast.vector_towers:vector_towers",
    "multigrid_rl.models.recurrent:RecurrentActorCritic": "multigrid_rl.fast.gru:gru",
}


class ForwardPass(NamedTuple):
    """A forward pass, and its backward pass, which needs no graph of torch.

    Rows of sequences lie one sequence after the other: ``B`` is then N * T.
    """

    outputs: Array  # (B, K) of the policy
    values: Array  # (B, 1)
    flat: Sequence[Tensor | None]  # the weights
    back: Callable[[Sequence[Array], Sequence[Tensor | None]], None]  # adds to the latter: see add_gradients
    memory: Array | None = None  # (N, S) after the last step

    def add_gradients(self, upstream: Sequence[Array]) -> None:
        """Add the weights' gradients, given those of ``outputs`` and ``values``, to their ``grad``."""
        self.back(upstream, [None if weight is None else weight.grad for weight in self.flat])


class CompiledNetwork:
    """A compiled network. A row's result does not depend on the other rows.

    Attributes:
        flat: its weights, in the order in which gradients are expected; they are read in place.
        stack_key: networks with an equal one can act in one call (:class:`~multigrid_rl.fast.towers.Stack`).
        descent: path of the function that steps through all minibatches of an update; "": there is none.
    """

    flat: Sequence[Tensor | None]
    stack_key: tuple[Any, ...] | None = None
    descent = ""

    def start(self, obs: Array, memory: Array | None = None, starts: Array | None = None) -> ForwardPass:
        """Pass forward through observations (B, D) or, with memory (N, S) and starts (N, T), sequences (N, T, D)."""
        raise NotImplementedError

    def policy(self, obs: Array) -> Array:
        """Return only the outputs (B, K) of observations (B, D); not of networks with memory."""
        raise NotImplementedError

    def values(self, parts: Sequence[Array]) -> Iterator[Array]:
        """Yield only the values (B,) of each of ``parts``: observations (B, D); not of networks with memory."""
        raise NotImplementedError

    def descend(self, rows: Sequence[Array], minibatches: Array, *settings: Any) -> tuple[Array, Array]:
        """Take a step with each of ``minibatches`` (M, S), rows by number: see :func:`fast.descent.descend`."""
        statistics: tuple[Array, Array] = resolve_name(self.descent)(self, rows, minibatches, *settings)
        return statistics


class Actor(NamedTuple):
    """Network, streams and buffers of an agent that acts for a batch of ``T`` steps."""

    network: CompiledNetwork | None
    distribution: Any
    stream: Array  # (N,) uint64: state of its streams
    obs: Array  # (T, N, D)
    actions: Array  # (T, N, C)
    logp: Array  # (T, N, C) float32
    entropy: Array  # (T, N, C) float32


#: Weak: a copy of a network has other weights, and a network that is gone needs no entry.
_CACHE: WeakKeyDictionary[nn.Module, tuple[CompiledNetwork, list[int]]] = WeakKeyDictionary()


def compile_network(net: nn.Module) -> CompiledNetwork | None:
    """Return the compiled form of a network, valid while its weights stay in place; ``None``: torch computes it."""
    if not jit.state.networks:
        return None
    cached = _CACHE.get(net)
    if cached is not None and cached[1] == addresses(cached[0].flat):
        return cached[0]
    # Only the class itself: a subclass may compute something else.
    kind = type(net)
    if (path := _COMPILERS.get(f"{kind.__module__}:{kind.__qualname__}")) is None:
        return None
    compiled: CompiledNetwork | None = resolve_name(path)(net)
    if compiled is not None:
        _CACHE[net] = compiled, addresses(compiled.flat)
    return compiled


def addresses(flat: Sequence[Tensor | None]) -> list[int]:
    """Return the memory addresses of tensors."""
    return [0 if weight is None else weight.data_ptr() for weight in flat]


def step(net: Any, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one step without gradients: outputs (B, K), values (B,) and the next memory (B, S)."""
    if (compiled := compile_network(net)) is None:
        with torch.no_grad():
            return net(obs, memory) if net.state_size else (*net(obs), memory)
    if not net.state_size:
        result = compiled.start(obs.numpy())
        return torch.from_numpy(result.outputs), torch.from_numpy(result.values).squeeze(-1), memory
    # A step is a sequence of length one; the caller clears memory.
    result = compiled.start(obs.numpy()[:, None], memory.numpy(), np.zeros((len(obs), 1), np.bool_))
    outputs, values, next_memory = map(torch.from_numpy, (result.outputs, result.values, result.memory))
    return outputs, values.squeeze(-1), next_memory


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compiled: CompiledNetwork, obs: Array, *flat: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.passed, ctx.shapes = compiled.start(obs), [None if weight is None else weight.shape for weight in flat]
        return torch.from_numpy(ctx.passed.outputs), torch.from_numpy(ctx.passed.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Into fresh zeros: torch adds what a function returns to ``grad`` itself.
        gradients = [None if shape is None else torch.zeros(shape) for shape in ctx.shapes]
        ctx.passed.back([gradient.contiguous().numpy() for gradient in upstream], gradients)
        return None, None, *gradients


def forward(net: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute outputs (B, K) and values (B,) of a network without memory, differentiable in its weights."""
    if (compiled := compile_network(net)) is None:
        outputs, values = net(obs)
        return outputs, values
    outputs, values = _Forward.apply(compiled, obs.contiguous().numpy(), *compiled.flat)  # type: ignore[no-untyped-call]
    return outputs, values.squeeze(-1)
