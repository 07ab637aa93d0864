"""A GRU over tokens with its two heads on the CPU, forward and back through time, in one compiled call each.

With ``x`` the encoding of a step's tokens and ``h`` the memory before it (Cho et al. 2014,
https://arxiv.org/abs/1406.1078; the reset gate after the product, as in torch and cuDNN)::

    r = sigmoid(W_r x + U_r h)    z = sigmoid(W_z x + U_z h)    n = tanh(W_n x + r * (U_n h))    h' = n + z (h - n)

Rows are steps of sequences, time before sequence: row ``t * B + b``. A block of sequences passes through all its steps
while it is in the fastest cache; the encoding of equal token rows is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.fast import CompiledNetwork, ForwardPass
from multigrid_rl.fast.dense import BLOCK, TANH, activate, add_bias, multiply, outer, project, slope, tanh, transpose
from multigrid_rl.fast.distinct import Distinct
from multigrid_rl.fast.towers import MAX_WIDTH
from multigrid_rl.jit import float_inlined, float_shared, threads
from multigrid_rl.models.mlp import add_rows, gather, scatter
from multigrid_rl.models.recurrent import RecurrentActorCritic

Array = NDArray[Any]
_HALF, _ONE, _ZERO = np.float32(0.5), np.float32(1), np.float32(0)


class Weights(NamedTuple):
    """Weights of the network, or their gradients, as arrays that share the tensors' memory; ``H`` units."""

    table: Array  # (R, H) of the first layer
    bias: Array  # (H,)
    by_input: Array  # (3 H, H): reset, update and new gate, as ``torch.nn.GRUCell`` has them
    by_hidden: Array  # (3 H, H)
    bias_input: Array  # (3 H,)
    bias_hidden: Array  # (3 H,)
    policy: Array  # (K, H)
    policy_bias: Array  # (K,)
    critic: Array  # (H, H)
    critic_bias: Array  # (H,)
    value: Array  # (1, H)
    value_bias: Array  # (1,)
    central: Array  # (R', H) of the tokens that only the critic reads


@float_inlined
def _share(part: tuple[int, int], count: int) -> tuple[int, int]:
    return count * part[0] // part[1], count * (part[0] + 1) // part[1]


@float_shared
def encode(
    parts: tuple[int, ...], tokens: Array, first: Array, weights: Weights, buffers: tuple[Array, Array, Array]
) -> None:
    """Fill buffers (U, H) and (U, 3 H): the encoding of ``tokens`` (U, D), and the input part of the gates."""
    encoded, inputs, buffer = buffers
    transpose(weights.by_input, buffer)
    for part in prange(len(parts)):
        begin, end = _share((part, len(parts)), len(tokens))
        for low in range(begin, end, BLOCK):
            rows = (low, min(low + BLOCK, end))
            add_bias(weights.bias, rows, encoded)
            gather(tokens, 0, first, weights.table, 0, rows, encoded)
            activate(TANH, rows, encoded)
            add_bias(weights.bias_input, rows, inputs)
            multiply(encoded, buffer, rows, inputs)


@float_inlined
def _games_forward(
    begin: int,
    end: int,
    batch: tuple[Array, ...],
    extra: tuple[Array, ...],
    weights: Weights,
    buffers: tuple[Array, ...],
    activations: tuple[Array, ...],
    outputs: tuple[Array, ...],
) -> None:
    # Time runs inside a block of games: a block's memory never leaves the cache between two of its steps.
    inputs, sources, memory, starts = batch
    before, after, gates, new, critic = activations
    by_hidden, by_critic = buffers
    games, size = memory.shape[0], np.uint64(memory.shape[1])
    for low in range(begin, end, BLOCK):
        high = min(low + BLOCK, end)
        for t in range(starts.shape[0]):
            base = t * games
            rows = (base + low, base + high)
            for b in range(low, high):
                source = memory[b] if t == 0 else after[base - games + b]
                for h in range(size):
                    before[base + b, h] = _ZERO if starts[t, b] else source[h]
            add_bias(weights.bias_hidden, rows, gates)
            multiply(before, by_hidden, rows, gates)
            for row in range(rows[0], rows[1]):
                u = sources[row]
                for h in range(size):
                    k, j = h + size, h + size + size
                    # sigmoid(a) = 1/2 + tanh(a / 2) / 2: one approximation serves all three gates.
                    reset = _HALF + _HALF * tanh(_HALF * (inputs[u, h] + gates[row, h]))
                    update = _HALF + _HALF * tanh(_HALF * (inputs[u, k] + gates[row, k]))
                    candidate = tanh(inputs[u, j] + reset * gates[row, j])
                    gates[row, h], gates[row, k], new[row, h] = reset, update, candidate
                    after[row, h] = candidate + update * (before[row, h] - candidate)
            add_bias(weights.policy_bias, rows, outputs[0])
            project(after, weights.policy, rows, outputs[0])
            add_bias(weights.critic_bias, rows, critic)
            multiply(after, by_critic, rows, critic)
            gather(extra[0], 0, extra[1], weights.central, 0, rows, critic)
            activate(TANH, rows, critic)
            add_bias(weights.value_bias, rows, outputs[1])
            project(critic, weights.value, rows, outputs[1])


@float_shared
def forward(
    parts: tuple[int, ...],
    batch: tuple[Array, ...],
    extra: tuple[Array, ...],
    weights: Weights,
    buffers: tuple[Array, ...],
    activations: tuple[Array, ...],
    outputs: tuple[Array, ...],
) -> None:
    """Fill ``activations`` and ``outputs``.

    Args:
        parts: as many as there are threads: each takes a share of the games, or of the weights, whose sums keep their
            order. (The length of a tuple is part of its type: for one thread the compiler drops the parallel code.)
        batch: ``inputs`` of distinct tokens; which of them each row has (R,); the memory (B, H) before the first step;
            steps (T, B) before which it is cleared.
        extra: tokens (R, D') that only the critic reads, and the row of each one's value 0.
        buffers: for transposed weights, (H, 3 H) and (H, H).
        activations: memory before and after each step (R, H), gates (R, 3 H): reset, update, and the hidden
            part that the reset gate scales; the new gate (R, H); the critic's hidden layer (R, H).
        outputs: logits (R, K), values (R, 1).
    """
    transpose(weights.by_hidden, buffers[0])
    transpose(weights.critic, buffers[1])
    for part in prange(len(parts)):
        begin, end = _share((part, len(parts)), batch[2].shape[0])
        _games_forward(begin, end, batch, extra, weights, buffers, activations, outputs)


@float_inlined
def _sums(
    part: tuple[int, int],
    rows: Any,
    upstream: tuple[Array, ...],
    activations: tuple[Array, ...],
    buffers: tuple[Array, ...],
    gradients: Weights,
) -> None:
    # d W = d^T x for each linear layer, added up over all steps; each part adds its share of a matrix's
    # rows.
    before, after, _, _, critic = activations
    by_critic, by_hidden = buffers[0], buffers[2]
    if part[0] == 0:
        outer(upstream[1], critic, rows, (0, 1), gradients.value, gradients.value_bias)
    outer(upstream[0], after, rows, _share(part, len(gradients.policy)), gradients.policy, gradients.policy_bias)
    outer(by_critic, after, rows, _share(part, len(gradients.critic)), gradients.critic, gradients.critic_bias)
    outer(by_hidden, before, rows, _share(part, len(gradients.by_hidden)), gradients.by_hidden, gradients.bias_hidden)


@float_inlined
def _games_backward(
    part: tuple[int, int],
    starts: Array,
    upstream: tuple[Array, ...],
    weights: Weights,
    activations: tuple[Array, ...],
    buffers: tuple[Array, ...],
    gradients: Weights,
) -> None:
    # Back through time (Werbos 1990, https://doi.org/10.1109/5.58337): from the last step to the first, a step's memory
    # gets the gradient of the step's heads and of the step after it, unless an episode began in between.
    begin, end = _share(part, starts.shape[1])
    before, after, gates, new, critic = activations
    by_critic, by_memory, by_hidden, by_inputs = buffers
    steps, games = starts.shape
    size = np.uint64(after.shape[1])
    for low in range(begin, end, BLOCK):
        high = min(low + BLOCK, end)
        for t in range(steps - 1, -1, -1):
            base = t * games
            rows = (base + low, base + high)
            multiply(upstream[1], weights.value, rows, by_critic)
            slope(TANH, critic, rows, by_critic)
            multiply(by_critic, weights.critic, rows, by_memory)
            multiply(upstream[0], weights.policy, rows, by_memory)
            for row in range(rows[0], rows[1]):
                for h in range(size):
                    k, j = h + size, h + size + size
                    reset, update, candidate, grad = gates[row, h], gates[row, k], new[row, h], by_memory[row, h]
                    # d h' / d n = 1 - z, d h' / d z = h - n; tanh' = 1 - n^2, sigmoid' = z (1 - z).
                    by_candidate = grad * (_ONE - update) * (_ONE - candidate * candidate)
                    by_update = grad * (before[row, h] - candidate) * update * (_ONE - update)
                    by_reset = by_candidate * gates[row, j] * reset * (_ONE - reset)
                    by_hidden[row, h], by_hidden[row, k], by_hidden[row, j] = by_reset, by_update, by_candidate * reset
                    by_inputs[row, h], by_inputs[row, k], by_inputs[row, j] = by_reset, by_update, by_candidate
                    by_memory[row, h] = grad * update  # from here on with respect to the memory before the step
            if part[1] == 1:  # while they are in the fastest cache
                _sums(part, rows, upstream, activations, buffers, gradients)
            if t == 0:
                continue
            multiply(by_hidden, weights.by_hidden, rows, by_memory)
            for b in range(low, high):
                if not starts[t, b]:
                    for h in range(size):
                        by_memory[base - games + b, h] += by_memory[base + b, h]


@float_shared
def backward(
    parts: tuple[int, ...],
    starts: Array,
    upstream: tuple[Array, ...],
    weights: Weights,
    activations: tuple[Array, ...],
    buffers: tuple[Array, ...],
    gradients: Weights,
) -> None:
    """Go back through :func:`forward`, with its arguments: add to ``gradients``, except of encoder and central tokens.

    Args:
        upstream: gradients with respect to logits (R, K) and values (R, 1).
        buffers: zeros; become the gradients with respect to the critic's hidden layer (R, H), the memory before and
            after each step (R, H), and the hidden (R, 3 H) and the input part (R, 3 H) of the gates.
    """
    # Gradients within each game first; sums over all games after them, split by weights and not by games, so that
    # the order of additions, and with it the last bit, does not depend on the number of threads.
    for part in prange(len(parts)):
        _games_backward((part, len(parts)), starts, upstream, weights, activations, buffers, gradients)
    if len(parts) == 1:
        return
    steps, games = starts.shape
    for part in prange(len(parts)):
        for low in range(0, games, BLOCK):
            for t in range(steps - 1, -1, -1):
                rows = (t * games + low, t * games + min(low + BLOCK, games))
                _sums((part, len(parts)), rows, upstream, activations, buffers, gradients)


@float_inlined
def _add_columns(values: Array, columns: tuple[int, int], out: Array) -> None:
    # A separate function: in a parallel loop numba would turn the sum into one per thread.
    for b in range(len(values)):
        for h in range(columns[0], columns[1]):
            out[h] += values[b, h]


@float_shared
def encode_backward(
    parts: tuple[int, ...],
    tokens: Array,
    first: Array,
    encoded: Array,
    upstream: tuple[Array, Array],
    weights: Weights,
    gradients: Weights,
) -> None:
    """Go back through :func:`encode`; ``upstream``: gradients of ``inputs`` (U, 3 H), and zeros (U, H)."""
    by_inputs, buffer = upstream
    for part in prange(len(parts)):
        begin, end = _share((part, len(parts)), len(tokens))
        for low in range(begin, end, BLOCK):
            rows = (low, min(low + BLOCK, end))
            if len(parts) == 1:
                outer(by_inputs, encoded, rows, (0, by_inputs.shape[1]), gradients.by_input, gradients.bias_input)
            multiply(by_inputs, weights.by_input, rows, buffer)
            slope(TANH, encoded, rows, buffer)
    for part in prange(len(parts)):
        span = _share((part, len(parts)), by_inputs.shape[1])
        for low in range(0, len(tokens) if len(parts) > 1 else 0, BLOCK):
            rows = (low, min(low + BLOCK, len(tokens)))
            outer(by_inputs, encoded, rows, span, gradients.by_input, gradients.bias_input)
        columns = _share((part, len(parts)), buffer.shape[1])
        _add_columns(buffer, columns, gradients.bias)
        scatter(tokens, 0, first, buffer, columns, 0, gradients.table)


def arrays_of(flat: Sequence[Tensor | None]) -> Weights:
    """Return weights, or gradients in the same order, as arrays that share the tensors' memory."""
    width = len(flat[1]) if flat[1] is not None else 0
    none = np.zeros((0, width), np.float32)
    return Weights(*(none if tensor is None else tensor.detach().numpy() for tensor in flat))


class GRU(CompiledNetwork):
    """The network's weights, ready to run. ``net``: the network over tokens, on the CPU."""

    descent = "multigrid_rl.fast.sequences:descend"

    def __init__(self, net: RecurrentActorCritic) -> None:
        assert net.table is not None
        heads = [part for layer in (net.policy, net.value_hidden, net.value) for part in (layer.weight, layer.bias)]
        self.flat = [net.table, net.bias, *net.core.parameters(), *heads, net.central]
        self.weights = arrays_of(self.flat)
        first, tokens = net.first.numpy(), net.tokens
        self.first, self.central = first[:tokens], first[tokens:]
        self.sizes = net.sizes

    def start(self, obs: Array, memory: Array | None = None, starts: Array | None = None) -> ForwardPass:
        """Pass through tokens ``obs`` (B, T, D + D') from ``memory`` (B, H), cleared where ``starts`` (B, T) says so.

        Raises ``IndexError``: wrong number of tokens, or a token out of range.
        """
        assert memory is not None
        assert starts is not None
        weights, (games, steps), size = self.weights, obs.shape[:2], memory.shape[1]
        count = games * steps
        step_rows = np.ascontiguousarray(obs.swapaxes(0, 1)).reshape(count, -1)
        cleared = np.ascontiguousarray(starts.T)
        extra = np.ascontiguousarray(step_rows[:, len(self.sizes) :])
        distinct = Distinct.of(np.ascontiguousarray(step_rows[:, : len(self.sizes)]), self.sizes)
        sources = np.arange(count) if distinct.inverse is None else distinct.inverse
        encoded, inputs = _empty(len(distinct.tokens), size), _empty(len(distinct.tokens), 3 * size)
        buffers = encoded, inputs, _empty(size, 3 * size)
        encode((0,) * threads(), distinct.tokens, self.first, weights, buffers)
        activations = tuple(_empty(count, width) for width in (size, size, 3 * size, size, size))
        results = _empty(count, len(weights.policy)), _empty(count, 1)
        batch = inputs, sources, np.ascontiguousarray(memory), cleared
        transposed = _empty(size, 3 * size), _empty(size, size)
        # The input part of the gates needs no memory: it is computed for all steps at once, before the loop over time.
        # Players pass no critic-only tokens.
        critic_inputs = extra, self.central[: extra.shape[1]]
        forward((0,) * threads(), batch, critic_inputs, weights, transposed, activations, results)
        outputs, values = (_swapped(rows, steps) for rows in results)
        back = partial(self._back, distinct, encoded, cleared, critic_inputs, activations)
        return ForwardPass(outputs, values, self.flat, back, activations[1][count - games :])

    def _back(
        self,
        distinct: Distinct,
        encoded: Array,
        starts: Array,
        critic_inputs: tuple[Array, Array],
        activations: tuple[Array, ...],
        upstream: Sequence[Array],
        gradients: Sequence[Tensor | None],
    ) -> None:
        """Go back through :meth:`start`, whose arrays come first."""
        totals, size = arrays_of(gradients), encoded.shape[1]
        by_outputs = tuple(_swapped(rows, starts.shape[1]) for rows in upstream)
        buffers = tuple(np.zeros((starts.size, width), np.float32) for width in (size, size, 3 * size, 3 * size))
        backward((0,) * threads(), starts, by_outputs, self.weights, activations, buffers, totals)
        add_rows(*critic_inputs, buffers[0], totals.central)
        by_inputs = distinct.gather(buffers[3]), np.zeros_like(encoded)
        encode_backward((0,) * threads(), distinct.tokens, self.first, encoded, by_inputs, self.weights, totals)


def gru(net: RecurrentActorCritic) -> GRU | None:
    """Compile a GRU over tokens with logits; ``None`` where torch computes it."""
    supported = isinstance(net.core, nn.GRUCell) and isinstance(net.spread, nn.Identity)
    if not supported or net.core.hidden_size > MAX_WIDTH or net.table is None:
        return None
    return GRU(net) if net.table.device.type == "cpu" and net.table.dtype == torch.float32 else None


def _swapped(rows: Array, count: int) -> Array:
    """Transpose ``rows``, which are ``count`` parts one after the other: the first rows of all parts come first."""
    return np.ascontiguousarray(rows.reshape(count, len(rows) // count, -1).swapaxes(0, 1)).reshape(len(rows), -1)


def _empty(rows: int, width: int) -> Array:
    return np.empty((rows, width), np.float32)
