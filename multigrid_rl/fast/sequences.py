"""Gradient steps of PPO with a GRU, all of an update's minibatches in one compiled call: as ``fast.descent`` does.

A minibatch is whole sequences by number. Rows of the network are steps, time before sequence; the loss, whose sums have
an order, goes through one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.fast.adam import Adam, adam_step, clip_gradient
from multigrid_rl.fast.descent import Held, categorical_penalty, take
from multigrid_rl.fast.distinct import add_up, number, numbered
from multigrid_rl.fast.gru import GRU, Weights, arrays_of, backward, encode, encode_backward, forward
from multigrid_rl.fast.loss import as_read, categorical_rows, shapes
from multigrid_rl.jit import float_shared, inlined, threads
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.models.tokens import add_rows

Array = NDArray[Any]


@inlined
def _order(chosen: Array, starts: Array, rows: tuple[Array, Array], begins: Array) -> None:
    """Fill the rows of the batch, time before sequence and sequence before time, and where memory is cleared."""
    steps = starts.shape[1]
    for s in range(len(chosen)):
        for t in range(steps):
            begins[t, s] = starts[chosen[s], t]
            rows[0][t * len(chosen) + s] = rows[1][s * steps + t] = chosen[s] * steps + t


@float_shared
def _descend(
    parts: tuple[int, ...],
    chosen: Array,
    batch: tuple[Array, ...],
    columns: tuple[Array, ...],
    net: tuple[Array, Array, Weights, Weights],
    buffers: Any,
    row: Adam,
    factors: Array,
    limits: Array,
    held: Any,
    told: tuple[Array, Array],
) -> int:
    """Take a step with each of ``M`` minibatches; returns how many were taken before the policy had moved too far.

    Args:
        parts: see :func:`fast.gru.forward`.
        chosen: (M, S) sequences of each minibatch.
        batch: tokens (R, D) and those that only the critic reads (R, D'), the number of each row among the distinct
            ones (R,), the memory before the first step (G, H) and steps before which it is cleared (G, T).
        columns: see :func:`categorical_rows`.
        net: rows of the tokens' values 0, and of the critic's; the weights and their gradients.
        row: the weights in one row, of which those of ``net`` are parts.
        factors: (M, 6) of :func:`adam_step`.
        limits: weights of the loss (4,), largest norm of a gradient, largest divergence.
        held: see :func:`categorical_penalty`, or ``None``.
        told: become the loss's statistics (M, 6) and the norms (M,).
    """
    first, central, weights, gradients = net
    ordered, encoding, passed, losses, upstream, back = buffers
    rows, where, which, distinct, seen, begins, before, tokens, extra = ordered
    encoded, inputs, by_input, by_hidden, by_critic = encoding
    (outputs, logits, values), (by_rows, by_outputs, by_values, terms, seats) = passed[1], losses
    by_distinct, by_encoded = back[1]
    sums, norms = told
    for m in range(len(chosen)):
        row.gradient[:] = 0
        _order(chosen[m], batch[4], rows, begins)
        take(batch[3], chosen[m], chosen.shape[1], before)
        count = number(batch[2], rows[0], m * len(which), seen, which, distinct)
        take(batch[0], distinct, count, tokens)
        take(batch[1], rows[0], len(which), extra)
        encode(parts, tokens[:count], first, weights, (encoded[:count], inputs[:count], by_input))
        states = (inputs[:count], which, before, begins)
        forward(parts, states, (extra, central), weights, (by_hidden, by_critic), passed[0], (outputs, values[0]))
        found = (logits, values[1], where)
        categorical_rows(found, rows[1], columns, limits[:4], by_rows, by_values, terms, seats, sums[m])
        if held is not None:
            categorical_penalty(found, rows[1], columns[1], held, by_rows, terms, sums[m])
        # Early stopping before the step: see fast.descent.
        if sums[m, 3] > limits[5]:
            return m
        for b in range(len(where)):
            upstream[1][where[b], 0] = by_values[b]
            for k in range(outputs.shape[1]):
                upstream[0][where[b], k] = by_outputs[b, k]
        for part in back[0]:
            part[:] = 0
        backward(parts, begins, upstream, weights, passed[0], back[0], gradients)
        add_rows(extra, central, back[0][0], gradients.central)
        by_distinct[:count] = 0
        by_encoded[:count] = 0
        add_up(back[0][3], which, by_distinct)
        halves = (by_distinct[:count], by_encoded[:count])
        encode_backward(parts, tokens[:count], first, encoded[:count], halves, weights, gradients)
        norms[m] = clip_gradient(row.gradient, limits[4])
        adam_step(row.weights, row.gradient, row.mean, row.square, factors[m])
    return len(chosen)


def descend(
    net: GRU,
    rows: Sequence[Array],
    chosen: Array,
    distribution: Distribution,
    limits: Sequence[float],
    row: Adam,
    factors: Array,
    held: Held | None = None,
) -> tuple[Array, Array]:
    """Take a step with each minibatch of sequences: see :func:`multigrid_rl.fast.descent.descend`."""
    obs, *columns, memory, starts = rows
    (games, steps), width = obs.shape[:2], memory.shape[1]
    flat, size, outputs = obs.reshape(games * steps, -1), chosen.shape[1] * steps, distribution.outputs
    own, extra = (np.ascontiguousarray(part) for part in np.split(flat, [len(net.sizes)], axis=1))
    ids, distinct = numbered(own, net.sizes)
    batch = own, extra, ids, np.ascontiguousarray(memory), np.ascontiguousarray(starts)

    def empty(*widths: int) -> tuple[Array, ...]:
        return tuple(np.empty((size, columns), np.float32) for columns in widths)

    where = np.arange(size).reshape(steps, -1).T.ravel()  # of a sequence's step, among rows with time before sequence
    orders, ordered = np.empty((2, size), np.int64), (where, *np.empty((2, size), np.int64), np.full(len(distinct), -1))
    begins, before = np.empty((steps, chosen.shape[1]), np.bool_), np.empty((chosen.shape[1], width), np.float32)
    tokens = tuple(np.empty((size, part.shape[1]), part.dtype) for part in (own, extra))
    shape, (terms, seats) = shapes(size, distribution)
    (logits, by_rows), values, by_values = empty(outputs, outputs), *np.empty((2, size), np.float32)
    transposed = tuple(np.empty((width, columns), np.float32) for columns in (3 * width, 3 * width, width))
    buffers = (
        ((*orders,), *ordered, begins, before, *tokens),
        (*empty(width, 3 * width), *transposed),
        (empty(width, width, 3 * width, width, width), (logits, logits.reshape(shape), (values[:, None], values))),
        (by_rows.reshape(shape), by_rows, by_values, terms, seats),
        empty(outputs, 1),
        (empty(width, width, 3 * width, 3 * width), empty(3 * width, width)),
    )
    gradients = arrays_of([None if weight is None else weight.grad for weight in net.flat])
    sums, norms = np.empty((len(chosen), 6), np.float32), np.empty(len(chosen), np.float32)
    whole = net.first, net.central[: extra.shape[1]], net.weights, gradients
    read, weights = as_read(columns, limits)
    steps_of = [column.reshape(games * steps, *column.shape[2:]) for column in read]
    arguments = (0,) * threads(), chosen, batch, tuple(steps_of), whole, buffers
    penalty = None if held is None else (held[0], held[1].reshape(-1, *shape[1:]))
    taken = _descend(*arguments, row, factors, weights, penalty, (sums, norms))
    return sums[: taken + 1], norms[:taken]
