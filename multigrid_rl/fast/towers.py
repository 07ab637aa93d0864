"""Policy and value towers on the CPU, forward and backward, over tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.fast import CompiledNetwork, ForwardPass, addresses
from multigrid_rl.fast import dense as kernels
from multigrid_rl.fast.distinct import Distinct, check_count, distinct_rows, find_distinct, hash_table
from multigrid_rl.jit import float_shared
from multigrid_rl.models.mlp import MLPActorCritic
from multigrid_rl.text import expected

Array = NDArray[Any]
KINDS = {"tanh": kernels.TANH, "relu": kernels.RELU}
#: Rows of a long batch that are deduplicated together: their hash table then stays in the cache.
_CHUNK = 1 << 14
#: Wider layers are left to torch, whose matrix product is blocked for the cache.
MAX_WIDTH = 256


class Tower(NamedTuple):
    """One tower's weights, or their gradients, as arrays that share the tensors' memory."""

    shared: tuple[Array, Array, int]  # see kernels.tower_forward
    extra: tuple[Array, Array]
    weights: tuple[Array, ...]  # (outputs, inputs) of each linear layer; the first has no inputs where there are tables
    biases: tuple[Array, ...]


@float_shared
def both_forward(inputs: Any, kind: int, towers: int, first: Any, second: Any) -> None:
    """Fill the layers of the first tower or of both, with independent blocks of rows distributed over threads."""
    shared, extra, weights, transposed, biases, layers = first
    shared_1, extra_1, weights_1, transposed_1, biases_1, layers_1 = second
    batch = len(inputs[0])
    blocks = (batch + kernels.BLOCK - 1) // kernels.BLOCK
    for depth in range(len(weights) - 1):
        kernels.transpose(weights[depth], transposed[depth])
        if towers > 1:
            kernels.transpose(weights_1[depth], transposed_1[depth])
    for part in prange(towers * blocks):
        low = part % blocks * kernels.BLOCK
        rows = (low, min(low + kernels.BLOCK, batch))
        if part < blocks:
            kernels.tower_forward(inputs, shared, extra, kind, weights, transposed, biases, layers, rows)
        else:
            kernels.tower_forward(inputs, shared_1, extra_1, kind, weights_1, transposed_1, biases_1, layers_1, rows)


@float_shared
def policy_forward(rows: Array, sizes: Array, kind: int, tower: Any, buffers: tuple[Array, ...], out: Array) -> int:
    """Fill ``out`` (B, K) with a tower's outputs of tokens (B, D), equal rows once; returns distinct_rows' count."""
    slots, inverse, tokens, numbers = buffers
    count = distinct_rows(rows, sizes, slots, inverse)
    for u in range(count):
        for d in range(rows.shape[1]):
            tokens[u, d] = rows[slots[u], d]
    if count > 0:
        both_forward((tokens[:count], numbers[:count]), kind, np.int64(1), tower, tower)
        layers = tower[5]
        for b in range(len(rows)):
            for k in range(out.shape[1]):
                out[b, k] = layers[-1][inverse[b], k]
    return count


@float_shared
def both_backward(inputs: Any, kind: int, first: Any, second: Any) -> None:
    """Go back through :func:`both_forward`: towers share no weights, so no sum is split between threads."""
    shared, extra, weights, hidden, gradients, by_weights, by_biases = first
    shared_1, extra_1, weights_1, hidden_1, gradients_1, by_weights_1, by_biases_1 = second
    for tower in prange(2):
        if tower == 0:
            kernels.tower_backward(inputs, shared, extra, kind, weights, hidden, gradients, by_weights, by_biases)
        else:
            kernels.tower_backward(
                inputs, shared_1, extra_1, kind, weights_1, hidden_1, gradients_1, by_weights_1, by_biases_1
            )


class Towers(CompiledNetwork):
    """A network's policy and value tower as arrays that share the tensors' memory.

    Args:
        flat: the network's weights in a fixed order, float32 on the CPU.
        kind: ``kernels.TANH`` or ``kernels.RELU``.
    """

    descent = "multigrid_rl.fast.descent:descend"

    def __init__(self, flat: Sequence[Tensor | None], kind: int) -> None:
        self.flat, self.kind = flat, kind
        # Views of the tensors: an optimiser's step shows without a copy.
        self.towers = self._gradients = self._split(flat)
        # Gradients lie in one place for a whole run: they are split into towers once, not in every step.
        self._gradient_addresses: list[int] = []
        self._transposed = [tuple(np.empty_like(w.T, order="C") for w in t.weights) for t in self.towers]

    def _split(self, flat: Sequence[Tensor | None]) -> list[Tower]:
        """Return the policy's and the value's part of weights, or of gradients in the same order."""
        raise NotImplementedError

    def run(self, rows: Array, *towers: int) -> list[tuple[Array, ...]]:
        """Activations (B, H) of each hidden layer and the outputs (B, K) of each tower named: 0 policy, 1 value."""
        arguments = [self._forward(tower, len(rows)) for tower in towers]
        both_forward(_inputs(rows), self.kind, len(towers), arguments[0], arguments[-1])
        return [layers for *_, layers in arguments]

    def _forward(self, tower_index: int, rows: int) -> tuple[Any, ...]:
        shared, extra, weights, biases = self.towers[tower_index]
        layers = tuple(np.empty((rows, len(bias)), np.float32) for bias in biases)
        return shared, extra, weights, self._transposed[tower_index], biases, layers

    def _backward(self, tower_index: int, hidden: tuple[Array, ...], upstream: Array) -> tuple[Any, ...]:
        shared, extra, by_weights, by_biases = self._gradients[tower_index]
        inner = (*map(np.empty_like, hidden), upstream)
        return shared, extra, self.towers[tower_index].weights, hidden, inner, by_weights, by_biases

    def record(self, batch: Distinct, layers: list[tuple[Array, ...]], outputs: Array, values: Array) -> ForwardPass:
        """Return the forward pass over ``batch``, given the ``layers`` of both towers (:meth:`run`)."""
        return ForwardPass(outputs, values, self.flat, partial(self.back, batch, layers))

    def back(
        self,
        batch: Distinct,
        layers: list[tuple[Array, ...]],
        upstream: Sequence[Array],
        gradients: Sequence[Tensor | None],
    ) -> None:
        """Add the gradients of all weights to ``gradients``, given those of outputs (B, K) and values (B, 1)."""
        self._into(gradients)
        arguments = (self._backward(k, layers[k][:-1], batch.gather(upstream[k])) for k in (0, 1))
        both_backward(_inputs(batch.tokens), self.kind, *arguments)

    def _into(self, gradients: Sequence[Tensor | None]) -> None:
        current = addresses(gradients)
        if self._gradient_addresses != current:
            self._gradients, self._gradient_addresses = self._split(gradients), current

    def both(self, rows: int) -> tuple[Any, Any]:
        """Return arguments of :func:`both_forward` and :func:`both_backward`, with buffers, for up to ``rows`` rows."""
        self._into([None if weight is None else weight.grad for weight in self.flat])
        forward = self._forward(0, rows), self._forward(1, rows)
        layers = [arguments[-1] for arguments in forward]
        return forward, tuple(self._backward(k, tower[:-1], np.empty_like(tower[-1])) for k, tower in enumerate(layers))

    def rows(self, obs: Array) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        """Return observations (R, D) as ``fast.descent`` reads them, and its other inputs."""
        raise NotImplementedError


def _inputs(rows: Array) -> tuple[Array, Array]:
    """Return ``rows`` (B, D) as the tokens and the numbers of :func:`kernels.tower_forward`."""
    if rows.dtype == np.float32:
        return np.empty((len(rows), 0), np.uint8), rows
    return rows, np.empty((len(rows), 0), np.float32)


def linear_layers(*towers: nn.Module) -> list[Tensor]:
    """Return weight and bias of each linear layer of ``towers``, one tower after the other."""
    layers = [layer for tower in towers for layer in tower.children() if isinstance(layer, nn.Linear)]
    return [weight for layer in layers for weight in (layer.weight, layer.bias)]


class TokenTowers(Towers):
    """Towers over tokens, whose first layer is a table with a row for each value of each token."""

    def __init__(self, net: MLPActorCritic) -> None:
        self.first, self.sizes, self.tokens = net.first.numpy(), net.sizes, net.tokens
        # Table (R, 2 H), the policy's half before the value's; bias (2 H,); the central table (R', H) or None.
        flat = [net.table, net.bias, net.central, *linear_layers(net.policy, net.value)]
        super().__init__(flat, KINDS[net.activation])
        self._acting: Any = None  # buffers of the last :meth:`policy`
        self.stack_key = tuple(self.sizes.tolist()), self.kind, *(len(bias) for bias in self.towers[0].biases)

    def _split(self, flat: Sequence[Tensor | None]) -> list[Tower]:
        arrays: list[Any] = [weight if weight is None else weight.detach().numpy() for weight in flat]
        table, bias, central, *linear = arrays
        width, half, split = len(bias) // 2, len(linear) // 2, self.tokens
        towers = []
        for tower_index in (0, 1):
            layers = linear[tower_index * half :][:half]
            extra = self.first[:0], np.zeros((0, width), np.float32)
            if tower_index == 1 and central is not None:
                extra = self.first[split:], central
            weights = (np.zeros((width, 0), np.float32), *layers[0::2])
            biases = (bias[tower_index * width :][:width], *layers[1::2])
            towers.append(Tower((self.first[:split], table, tower_index * width), extra, weights, biases))
        return towers

    def start(self, obs: Array, memory: Array | None = None, starts: Array | None = None) -> ForwardPass:  # noqa: ARG002
        """Pass through both towers with tokens ``obs`` (B, D); equal rows are computed once.

        Raises ``IndexError``: wrong number of tokens, or a token out of range.
        """
        batch = Distinct.of(self._checked(obs), self.sizes)
        layers = self.run(batch.tokens, 0, 1)
        return self.record(batch, layers, *(batch.expand(tower[-1]) for tower in layers))

    def _checked(self, obs: Array) -> Array:
        if obs.shape[1] != len(self.sizes):
            raise IndexError(expected("tokens", f"{len(self.sizes)} columns", obs.shape[1]))
        return np.ascontiguousarray(obs)

    def rows(self, obs: Array) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        """Return tokens (R, D) as ``fast.descent`` reads them, without other inputs."""
        tokens = self._checked(obs)
        ids, _ = find_distinct(tokens, self.sizes)
        none = np.zeros(0, np.float32)
        # One type of tokens, so that one form of the kernel is compiled.
        small = tokens.astype(np.uint8 if self.sizes.max() <= 256 else np.int64, copy=False)
        return (*_inputs(small), ids), (np.float32(1), none, np.zeros((0, 0), np.float32), none)

    def policy(self, obs: Array) -> Array:
        """Return only the logits (B, K), without gradients, of tokens ``obs`` (B, D)."""
        if not self.tokens <= obs.shape[1] <= len(self.sizes):
            raise IndexError(expected("tokens", f"{self.tokens} to {len(self.sizes)} columns", obs.shape[1]))
        # Critic-only tokens would make equal rows distinct.
        actor_tokens = np.ascontiguousarray(obs[:, : self.tokens])
        (sizes, kind, tower, buffers), out = self.acting(len(actor_tokens), actor_tokens.dtype)
        check_count(policy_forward(actor_tokens, sizes, kind, tower, buffers, out), actor_tokens, sizes)
        return out

    def acting(self, rows: int, dtype: Any = np.uint8) -> tuple[tuple[Any, ...], Array]:
        """Return the inputs of :func:`policy_forward` after so many rows of tokens, and a buffer for logits (B, K)."""
        if self._acting is None or (len(self._acting[0][1]), self._acting[0][2].dtype) != (rows, dtype):
            buffers = *hash_table(rows), np.empty((rows, self.tokens), dtype), np.empty((rows, 0), np.float32)
            self._acting = buffers, self._forward(0, rows)
        buffers, tower = self._acting
        return (self.sizes[: self.tokens], self.kind, tower, buffers), np.empty_like(tower[-1][-1])

    def values(self, parts: Sequence[Array]) -> Iterator[Array]:
        """Yield only the values (B,), without gradients, of each of ``parts``: tokens (B, D)."""
        tokens = np.concatenate(parts)
        result = np.empty(len(tokens), np.float32)
        for low in range(0, len(tokens), _CHUNK):
            rows = slice(low, low + _CHUNK)
            batch = Distinct.of(tokens[rows], self.sizes)
            result[rows] = batch.expand(self.run(batch.tokens, 1)[0][-1])[:, 0]
        yield from np.split(result, np.cumsum([len(part) for part in parts[:-1]]))


def token_towers(net: MLPActorCritic) -> TokenTowers | None:
    """Compile towers over tokens; ``None`` where torch computes them."""
    supported = net.table.device.type == "cpu" and net.table.dtype == torch.float32
    return TokenTowers(net) if supported and max(net.hidden) <= MAX_WIDTH else None


class Stack:
    """The policies of networks of one ``stack_key`` in one call, for players with fixed weights.

    ``networks``: at least one, compiled, of one ``stack_key``; their weights are copied.
    """

    def __init__(self, networks: Sequence[Any]) -> None:
        # A league's opponents have a few games each: the overhead of separate passes would exceed their computation.
        reference, towers = networks[0], [network.towers[0] for network in networks]
        self._first, self._kind = towers[0].shared[0], reference.kind
        self._sizes = np.append(reference.sizes[: reference.tokens], len(networks))
        self._number = np.min_scalar_type(len(networks))
        width = len(towers[0].biases[0])
        self._tables = np.stack([tower.shared[1][:, :width] for tower in towers])
        *hidden, self._heads = (np.stack(layer) for layer in zip(*(tower.weights for tower in towers), strict=True))
        self._biases = tuple(np.stack(layer) for layer in zip(*(tower.biases for tower in towers), strict=True))
        self._transposed = tuple(np.ascontiguousarray(weights.swapaxes(1, 2)) for weights in hidden)

    def policy(self, tokens: Array, numbers: Array) -> Array:
        """Logits (B, K) of ``tokens`` (B, D), of each row by the network ``numbers`` (B,), which ascend."""
        # The number is one more token: rows of two players never count as equal.
        numbered = np.empty((len(tokens), len(self._sizes)), np.result_type(tokens, self._number))
        numbered[:, :-1] = tokens[:, : len(self._first)]
        numbered[:, -1] = numbers
        batch = Distinct.of(numbered, self._sizes)
        layers = tuple(np.empty((len(batch.tokens), bias.shape[1]), np.float32) for bias in self._biases)
        arguments = self._tables, self._kind, self._transposed, self._heads, self._biases
        kernels.stack_forward(batch.tokens, self._first, *arguments, layers)
        return batch.expand(layers[-1])
