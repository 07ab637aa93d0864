"""Gradient steps of PPO with a GRU, all of an update's minibatches in one compiled call: as ``fast.descent`` does.

A minibatch is sequences by number. Rows of the network are steps, time before sequence; the loss, whose sums have
a fixed order, goes through one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.fast.adam import Adam, adam_step, clip_gradient
from multigrid_rl.fast.descent import Penalty, categorical_penalty, copy_rows
from multigrid_rl.fast.distinct import find_distinct, number_rows, sum_by_row
from multigrid_rl.fast.gru import GRU, Weights, arrays_of, backward, encode, encode_backward, forward
from multigrid_rl.fast.loss import categorical_rows, kernel_columns, shapes
from multigrid_rl.jit import float_shared, inlined, threads
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.models.mlp import add_rows

Array = NDArray[Any]


@inlined
def _order(sequences: Array, starts: Array, order: tuple[Array, Array], cleared: Array) -> None:
    """Fill ``order`` with rows, time before sequence, then sequence before time; and where memory is cleared."""
    steps = starts.shape[1]
    for s in range(len(sequences)):
        for t in range(steps):
            cleared[t, s] = starts[sequences[s], t]
            order[0][t * len(sequences) + s] = order[1][s * steps + t] = sequences[s] * steps + t


@float_shared
def _descend(
    parts: tuple[int, ...],
    minibatches: Array,
    batch: tuple[Array, ...],
    columns: tuple[Array, ...],
    net: tuple[Array, Array, Weights, Weights],
    buffers: Any,
    row: Adam,
    factors: Array,
    limits: Array,
    penalty: Any,
    results: tuple[Array, Array],
) -> int:
    """Take a step with each of ``M`` minibatches; returns the number taken before the policy has moved too far.

    Args:
        parts: see :func:`fast.gru.forward`.
        minibatches: (M, S) sequences of each.
        batch: tokens (R, D) and those that only the critic reads (R, D'), the number of each row among the distinct
            ones (R,), the memory before the first step (G, H) and steps before which it is cleared (G, T).
        columns: see :func:`categorical_rows`.
        net: rows of the tokens' values 0, and of the critic's; the weights and their gradients.
        row: the weights in one row, of which those of ``net`` are parts.
        factors: (M, 6) of :func:`adam_step`.
        limits: weights of the loss (4,), largest norm of a gradient, largest divergence.
        penalty: see :func:`categorical_penalty`, or ``None``.
        results: become the loss's statistics (M, 6) and the norms (M,).
    """
    first, central, weights, gradients = net
    order_buffers, encoder_buffers, (activations, step_outputs), loss_buffers, upstream, backward_buffers = buffers
    order, positions, sources, distinct, assigned, cleared, memory, tokens, critic_tokens = order_buffers
    encoded, inputs, input_t, hidden_t, critic_t = encoder_buffers  # _t: buffers of transposed weights
    (flat, logits, values), (by_logits, by_flat, by_values, terms, seats) = step_outputs, loss_buffers
    by_steps, (by_distinct, by_encoded) = backward_buffers
    sums, norms = results
    for m in range(len(minibatches)):
        row.gradient[:] = 0
        _order(minibatches[m], batch[4], order, cleared)
        copy_rows(batch[3], minibatches[m], minibatches.shape[1], memory)
        count = number_rows(batch[2], order[0], m * len(sources), assigned, sources, distinct)
        copy_rows(batch[0], distinct, count, tokens)
        copy_rows(batch[1], order[0], len(sources), critic_tokens)
        encode(parts, tokens[:count], first, weights, (encoded[:count], inputs[:count], input_t))
        states = (inputs[:count], sources, memory, cleared)
        forward(parts, states, (critic_tokens, central), weights, (hidden_t, critic_t), activations, (flat, values[0]))
        network_out = (logits, values[1], positions)
        categorical_rows(network_out, order[1], columns, limits[:4], by_logits, by_values, terms, seats, sums[m])
        if penalty is not None:
            categorical_penalty(network_out, order[1], columns[1], penalty, by_logits, terms, sums[m])
        # Early stopping before the step: see fast.descent.
        if sums[m, 3] > limits[5]:
            return m
        for b in range(len(positions)):
            upstream[1][positions[b], 0] = by_values[b]
            for k in range(flat.shape[1]):
                upstream[0][positions[b], k] = by_flat[b, k]
        for buffer in by_steps:
            buffer[:] = 0
        backward(parts, cleared, upstream, weights, activations, by_steps, gradients)
        add_rows(critic_tokens, central, by_steps[0], gradients.central)
        by_distinct[:count] = 0
        by_encoded[:count] = 0
        sum_by_row(by_steps[3], sources, by_distinct)
        encoder_gradients = (by_distinct[:count], by_encoded[:count])
        encode_backward(parts, tokens[:count], first, encoded[:count], encoder_gradients, weights, gradients)
        norms[m] = clip_gradient(row.gradient, limits[4])
        adam_step(row.weights, row.gradient, row.mean, row.square, factors[m])
    return len(minibatches)


def descend(
    net: GRU,
    rows: Sequence[Array],
    minibatches: Array,
    distribution: Distribution,
    limits: Sequence[float],
    row: Adam,
    factors: Array,
    penalty: Penalty | None = None,
) -> tuple[Array, Array]:
    """Take a step with each minibatch of sequences: see :func:`multigrid_rl.fast.descent.descend`."""
    obs, *columns, memory, starts = rows
    (games, steps), width = obs.shape[:2], memory.shape[1]
    flat, size, outputs = obs.reshape(games * steps, -1), minibatches.shape[1] * steps, distribution.outputs
    actor_tokens, critic_tokens = (np.ascontiguousarray(part) for part in np.split(flat, [len(net.sizes)], axis=1))
    ids, distinct = find_distinct(actor_tokens, net.sizes)
    batch = actor_tokens, critic_tokens, ids, np.ascontiguousarray(memory), np.ascontiguousarray(starts)

    def empty(*widths: int) -> tuple[Array, ...]:
        return tuple(np.empty((size, columns), np.float32) for columns in widths)

    positions = np.arange(size).reshape(steps, -1).T.ravel()  # of a sequence's step, in rows with time before sequence
    order, numbering = np.empty((2, size), np.int64), (*np.empty((2, size), np.int64), np.full(len(distinct), -1))
    first_memory = np.empty((minibatches.shape[1], width), np.float32)
    tokens = tuple(np.empty((size, part.shape[1]), part.dtype) for part in (actor_tokens, critic_tokens))
    shape, (terms, seats) = shapes(size, distribution)
    (logits, by_logits), values, by_values = empty(outputs, outputs), *np.empty((2, size), np.float32)
    transposed = tuple(np.empty((width, columns), np.float32) for columns in (3 * width, 3 * width, width))
    buffers = (
        ((*order,), positions, *numbering, np.empty((steps, len(first_memory)), np.bool_), first_memory, *tokens),
        (*empty(width, 3 * width), *transposed),
        (empty(width, width, 3 * width, width, width), (logits, logits.reshape(shape), (values[:, None], values))),
        (by_logits.reshape(shape), by_logits, by_values, terms, seats),
        empty(outputs, 1),
        (empty(width, width, 3 * width, 3 * width), empty(3 * width, width)),
    )
    gradients = arrays_of([None if weight is None else weight.grad for weight in net.flat])
    sums, norms = np.empty((len(minibatches), 6), np.float32), np.empty(len(minibatches), np.float32)
    net_arguments = net.first, net.central[: critic_tokens.shape[1]], net.weights, gradients
    loss_columns, weights = kernel_columns(columns, limits)
    step_columns = [column.reshape(games * steps, *column.shape[2:]) for column in loss_columns]
    arguments = (0,) * threads(), minibatches, batch, tuple(step_columns), net_arguments, buffers
    reshaped_penalty = None if penalty is None else (penalty[0], penalty[1].reshape(-1, *shape[1:]))
    step_count = _descend(*arguments, row, factors, weights, reshaped_penalty, (sums, norms))
    return sums[: step_count + 1], norms[:step_count]
