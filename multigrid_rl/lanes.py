"""A numba type of sixteen floats, with which kernels control what stays in registers and what goes to memory.

A compiler that vectorises a loop must check at each start whether its arrays overlap, and must write a sum before it
reads on. A tile of lanes is read once, summed in registers, and written once.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

#: Number of floats: one register of AVX-512; on other processors the compiler uses several registers.
LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
# As for :func:`multigrid_rl.jit.float_kernel`: a multiplication and an addition may become one instruction.
_CONTRACT = ("contract",)


class _Lanes(types.Type):
    """The type of ``LANES`` float32 numbers."""


lanes = _Lanes(name="lanes")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _place(context: Any, builder: Any, kinds: Any, args: Any) -> Any:
    """Return a pointer to the lanes of an array (R, C) that begin at a row and a column."""
    array = context.make_array(kinds[0])(context, builder, value=args[0])
    row, column = (
        context.cast(builder, value, kind, types.intp) for value, kind in zip(args[1:3], kinds[1:3], strict=True)
    )
    width = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    item = builder.gep(array.data, [builder.add(builder.mul(row, width), column)])
    return builder.bitcast(item, _VECTOR.as_pointer())


def _check_array(array: Any) -> None:
    kind = (getattr(array, name, None) for name in ("ndim", "layout", "dtype"))
    if tuple(kind) != (2, "C", types.float32):
        raise TypingError(f"lanes: expected a contiguous (R, C) float32 array, got {array}")


@intrinsic
def load(_: Any, array: Any, row: Any, column: Any) -> Any:
    """Return ``array[row, column : column + LANES]``; bounds are not checked."""
    _check_array(array)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, sig.args, args), align=4)

    return lanes(array, row, column), generate


@intrinsic
def store(_: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """Set ``array[row, column : column + LANES]``."""
    _check_array(array)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[3], _place(context, builder, sig.args, args), align=4)
        return context.get_dummy_value()

    return types.void(array, row, column, value), generate


@infer_global(operator.add)
class _Add(ConcreteTemplate):
    cases = [signature(lanes, lanes, lanes)]  # noqa: RUF012 - numba's own name


@infer_global(operator.mul)
class _Times(ConcreteTemplate):
    cases = [signature(lanes, types.float32, lanes)]  # noqa: RUF012 - numba's own name


@lower_builtin(operator.add, lanes, lanes)
def _add(_: Any, builder: Any, __: Any, args: Any) -> Any:
    return builder.fadd(*args, flags=_CONTRACT)


@lower_builtin(operator.mul, types.float32, lanes)
def _times(_: Any, builder: Any, __: Any, args: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.fmul(builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask), args[1], flags=_CONTRACT)
