"""The arithmetic of a tower, forward and backward, in one call each: for arrays on the CPU."""

# torch needs dozens of calls for the same, each of which reads and writes whole activations; here a block of rows
# passes through all layers while it is in the fastest cache. Inner loops run over contiguous columns, so that they
# become vector instructions.

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import float_dot, float_inlined, float_kernel
from multigrid_rl.lanes import LANES, load, store
from multigrid_rl.models.mlp import Floats, gather, scatter

#: Rows that pass through all layers together.
BLOCK = 32
TANH, RELU = 0, 1

# tanh as x P(x^2) / Q(x^2), the rational approximation of the Eigen library and of XLA after it
# (https://gitlab.com/libeigen/eigen/-/blob/3.4/Eigen/src/Core/MathFunctionsImpl.h, generic_fast_tanh_float): the
# largest relative error in float32 is 3e-7. It compiles to a handful of vector instructions; torch's own tanh on the
# CPU takes six times as long and was the largest single cost of an update.
_P1, _P3, _P5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
_P7, _P9 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11)
_P11, _P13 = np.float32(2.00018790482477e-13), np.float32(-2.76076847742355e-16)
_Q0, _Q2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_Q4, _Q6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
# The approximation holds up to the bound. Beyond the other one tanh is 1 in float32, and has no slope.
_BOUND, _SATURATED = np.float32(7.90531110763549805), np.float32(9.01)
_ONE, _ZERO = np.float32(1), np.float32(0)


@float_inlined
def add_bias(bias: Floats, rows: Any, values: Floats) -> None:
    """Set the rows of a block to ``bias``."""
    for b in range(rows[0], rows[1]):
        for h in range(values.shape[1]):
            values[b, h] = bias[h]


@float_inlined
def clear(rows: Any, values: Floats) -> None:
    """Set the rows of a block to zero."""
    for b in range(rows[0], rows[1]):
        for h in range(values.shape[1]):
            values[b, h] = _ZERO


@float_inlined
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of a float32."""
    bounded = _BOUND if x > _BOUND else x  # comparisons that leave NaN as it is
    bounded = -_BOUND if bounded < -_BOUND else bounded
    s = bounded * bounded
    p = _P1 + s * (_P3 + s * (_P5 + s * (_P7 + s * (_P9 + s * (_P11 + s * _P13)))))
    y = bounded * p / (_Q0 + s * (_Q2 + s * (_Q4 + s * _Q6)))
    y = _ONE if x > _SATURATED else y
    return -_ONE if x < -_SATURATED else y


@float_inlined
def activate(kind: int, rows: Any, values: Floats) -> None:
    """Apply an activation to the rows of a block."""
    if kind == RELU:
        for b in range(rows[0], rows[1]):
            for h in range(values.shape[1]):
                x = values[b, h]
                values[b, h] = _ZERO if x < _ZERO else x
        return
    for b in range(rows[0], rows[1]):
        for h in range(values.shape[1]):
            values[b, h] = tanh(values[b, h])


@float_inlined
def slope(kind: int, activations: Floats, rows: Any, gradient: Floats) -> None:
    """Multiply a gradient by the slope of an activation, on the rows of a block."""
    if kind == RELU:
        for b in range(rows[0], rows[1]):
            for h in range(gradient.shape[1]):
                gradient[b, h] = gradient[b, h] if activations[b, h] > _ZERO else _ZERO
        return
    for b in range(rows[0], rows[1]):
        for h in range(gradient.shape[1]):
            gradient[b, h] *= _ONE - activations[b, h] * activations[b, h]


@float_inlined
def _four_numbers(x: Floats, flip: bool, r: int, k: int) -> Any:
    return (
        (x[k, r], x[k + 1, r], x[k + 2, r], x[k + 3, r]) if flip else (x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3])
    )


@float_inlined
def _four_rows(matrix: Floats, k: int, j: int) -> Any:
    return load(matrix, k, j), load(matrix, k + 1, j), load(matrix, k + 2, j), load(matrix, k + 3, j)


@float_inlined
def _dot(a: Any, m: Any) -> Any:
    return (a[0] * m[0] + a[1] * m[1]) + (a[2] * m[2] + a[3] * m[3])


@float_inlined
def _products(x: Floats, flip: bool, matrix: Floats, span: Any, inner: Any, out: Floats) -> None:
    """Add the rows ``span`` of ``x @ matrix``, with ``flip`` of ``x^T @ matrix``, summed over ``inner``, to ``out``."""
    # Register blocking, after Goto and van de Geijn 2008 (https://doi.org/10.1145/1356052.1356053): a tile of two rows
    # and twice LANES columns is added up in registers, four products at a time. At an odd end its halves are the same.
    low, high = inner
    fours_end, lanes_end = high - (high - low) % 4, out.shape[1] - out.shape[1] % LANES
    for r in range(span[0], span[1], 2):
        s = min(r + 1, span[1] - 1)
        for j in range(0, lanes_end, 2 * LANES):
            i = min(j + LANES, lanes_end - LANES)
            rj, ri, sj, si = load(out, r, j), load(out, r, i), load(out, s, j), load(out, s, i)
            for k in range(low, fours_end, 4):
                a, c = _four_numbers(x, flip, r, k), _four_numbers(x, flip, s, k)
                left, right = _four_rows(matrix, k, j), _four_rows(matrix, k, i)
                rj, ri, sj, si = rj + _dot(a, left), ri + _dot(a, right), sj + _dot(c, left), si + _dot(c, right)
            for k in range(fours_end, high):
                a0, c0 = (x[k, r], x[k, s]) if flip else (x[r, k], x[s, k])
                m0, m1 = load(matrix, k, j), load(matrix, k, i)
                rj, ri, sj, si = rj + a0 * m0, ri + a0 * m1, sj + c0 * m0, si + c0 * m1
            store(out, r, j, rj)
            store(out, r, i, ri)
            store(out, s, j, sj)
            store(out, s, i, si)
    # Columns that fill no lanes, in the same order: a sum does not depend on its column.
    for r in range(span[0], span[1]):
        for j in range(lanes_end, out.shape[1]):
            total = out[r, j]
            for k in range(low, fours_end, 4):
                total += _dot(_four_numbers(x, flip, r, k), _four_numbers(matrix, True, j, k))
            for k in range(fours_end, high):
                total += (x[k, r] if flip else x[r, k]) * matrix[k, j]
            out[r, j] = total


@float_inlined
def multiply(x: Floats, matrix: Floats, rows: Any, out: Floats) -> None:
    """Compute ``out += x @ matrix`` on the rows of a block."""
    _products(x, False, matrix, rows, (0, x.shape[1]), out)


@float_dot
def project(x: Floats, matrix: Floats, rows: Any, out: Floats) -> None:
    """Compute ``out += x @ matrix^T`` on the rows of a block, for few outputs: one sum of products after the other."""
    # A transposed matrix of seven columns would leave most of a vector register empty.
    inner = np.uint64(x.shape[1])
    for b in range(rows[0], rows[1]):
        for o in range(matrix.shape[0]):
            total = _ZERO
            for i in range(inner):
                total += x[b, i] * matrix[o, i]
            out[b, o] += total


@float_inlined
def outer(gradient: Floats, x: Floats, rows: Any, span: Any, matrix: Floats, bias: Floats) -> None:
    """Compute the rows ``span`` of ``matrix += gradient^T @ x`` and ``bias += gradient.sum(0)`` over a block."""
    _products(gradient, True, x, span, rows, matrix)
    fours_end = rows[1] - (rows[1] - rows[0]) % 4
    for b in range(rows[0], fours_end, 4):
        for o in range(span[0], span[1]):
            bias[o] += (gradient[b, o] + gradient[b + 1, o]) + (gradient[b + 2, o] + gradient[b + 3, o])
    for b in range(fours_end, rows[1]):
        for o in range(span[0], span[1]):
            bias[o] += gradient[b, o]


@float_inlined
def transpose(matrix: Floats, out: Floats) -> None:
    """Fill ``out`` with the transpose of ``matrix``."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[j, i] = matrix[i, j]


@float_kernel
def tower_forward(
    inputs: tuple[NDArray[Any], Floats],
    shared: tuple[NDArray[np.int64], Floats, int],
    extra: tuple[NDArray[np.int64], Floats],
    kind: int,
    weights: tuple[Floats, ...],
    transposed: tuple[Floats, ...],
    biases: tuple[Floats, ...],
    layers: tuple[Floats, ...],
    rows: tuple[int, int],
) -> None:
    """Fill a block of ``layers``: the activations (B, H) of each hidden layer, then the outputs (B, K).

    Args:
        inputs: tokens (B, D + D') and numbers (B, V); one of them has no columns.
        shared: row of value 0 of each of the first ``D`` tokens; the table (R, W); the first of the ``H`` columns of it
            that this tower reads.
        extra: row of value 0 of each of the other ``D'`` tokens, which only this tower reads; their table (R', H).
        kind: ``TANH`` or ``RELU``.
        weights: (outputs, inputs) of each linear layer; the first, (H, V), reads the numbers.
        transposed: their transposes, without the last.
        biases: of each layer.
        layers: to be filled; at least two.
        rows: first row of the block, and the row after its last.
    """
    # h_0 = f(sum of table rows + W_0 x + b_0), h_k = f(W_k h_{k-1} + b_k), and no activation after the last.
    tokens, inputs_below = inputs
    last = len(layers) - 1
    for depth in range(last):
        add_bias(biases[depth], rows, layers[depth])
        if depth == 0:
            gather(tokens, 0, shared[0], shared[1], shared[2], rows, layers[0])
            gather(tokens, len(shared[0]), extra[0], extra[1], 0, rows, layers[0])
        multiply(inputs_below, transposed[depth], rows, layers[depth])
        activate(kind, rows, layers[depth])
        inputs_below = layers[depth]
    add_bias(biases[last], rows, layers[last])
    project(inputs_below, weights[last], rows, layers[last])


@float_kernel
def stack_forward(
    tokens: NDArray[Any],
    first: NDArray[np.int64],
    tables: Floats,
    kind: int,
    transposed: tuple[Floats, ...],
    heads: Floats,
    biases: tuple[Floats, ...],
    layers: tuple[Floats, ...],
) -> None:
    """Fill ``layers`` as :func:`tower_forward` does, each row by one of ``N`` networks of equal shape.

    Args:
        tokens: (B, D + 1); the last is the number of the row's network. Rows of a network are contiguous.
        first: row of value 0 of each of the ``D`` tokens.
        tables: (N, R, H) of the first layer.
        kind: ``TANH`` or ``RELU``.
        transposed: (N, inputs, outputs) of each hidden layer; the first, which has a table, has no inputs.
        heads: (N, outputs, inputs) of the last layer.
        biases: (N, outputs) of each layer.
        layers: to be filled.
    """
    batch, last = tokens.shape[0], len(layers) - 1
    low = 0
    while low < batch:
        n = tokens[low, len(first)]
        high = low + 1
        while high < min(low + BLOCK, batch) and tokens[high, len(first)] == n:
            high += 1
        rows = (low, high)
        add_bias(biases[0][n], rows, layers[0])
        gather(tokens, 0, first, tables[n], 0, rows, layers[0])
        activate(kind, rows, layers[0])
        for depth in range(1, last):
            add_bias(biases[depth][n], rows, layers[depth])
            multiply(layers[depth - 1], transposed[depth][n], rows, layers[depth])
            activate(kind, rows, layers[depth])
        add_bias(biases[last][n], rows, layers[last])
        project(layers[last - 1], heads[n], rows, layers[last])
        low = high


@float_kernel
def tower_backward(
    inputs: tuple[NDArray[Any], Floats],
    shared: tuple[NDArray[np.int64], Floats, int],
    extra: tuple[NDArray[np.int64], Floats],
    kind: int,
    weights: tuple[Floats, ...],
    hidden: tuple[Floats, ...],
    gradients: tuple[Floats, ...],
    by_weights: tuple[Floats, ...],
    by_biases: tuple[Floats, ...],
) -> None:
    """Add a tower's gradients to the tables of ``shared`` and ``extra``, ``by_weights`` and ``by_biases``.

    Other arguments are those of :func:`tower_forward`; ``shared`` and ``extra`` have the table's gradient in its place.

    Args:
        hidden: activations (B, H) of each hidden layer.
        gradients: buffer (B, H) for the gradient of each hidden layer before its activation; then the gradient of the
            outputs (B, K).
        by_weights: gradients of ``weights``.
        by_biases: gradients of the biases.
    """
    # Backpropagation: d W_k = d_k^T h_{k-1} and d_{k-1} = (d_k W_k) f'(h_{k-1}), where tanh' = 1 - h^2.
    tokens, numbers = inputs
    columns = (0, gradients[0].shape[1])
    for low in range(0, len(tokens), BLOCK):
        rows = (low, min(low + BLOCK, len(tokens)))
        for depth in range(len(hidden), 0, -1):
            span = (0, gradients[depth].shape[1])
            outer(gradients[depth], hidden[depth - 1], rows, span, by_weights[depth], by_biases[depth])
            clear(rows, gradients[depth - 1])
            multiply(gradients[depth], weights[depth], rows, gradients[depth - 1])
            slope(kind, hidden[depth - 1], rows, gradients[depth - 1])
        if numbers.shape[1]:
            outer(gradients[0], numbers, rows, columns, by_weights[0], by_biases[0])
            continue
        for b in range(rows[0], rows[1]):
            for h in range(columns[1]):
                by_biases[0][h] += gradients[0][b, h]
    scatter(tokens, 0, shared[0], gradients[0], columns, shared[2], shared[1])
    scatter(tokens, len(shared[0]), extra[0], gradients[0], columns, 0, extra[1])
