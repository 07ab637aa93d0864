"""Sixteen floats as one number of a kernel."""

import numpy as np
import pytest
from numba.core.errors import TypingError

from multigrid_rl.jit import float_kernel
from multigrid_rl.models.tokens import LANES, load, store


@float_kernel
def _scaled_sum(x, factor, row, column, out):
    store(out, row, column, load(out, row, column) + factor * load(x, row, column))


def test_a_place_is_read_added_to_and_written_and_no_other():
    x = np.arange(3 * 40, dtype=np.float32).reshape(3, 40)
    out, wanted = np.ones_like(x), np.ones_like(x)
    _scaled_sum(x, np.float32(0.5), 1, 7, out)
    wanted[1, 7 : 7 + LANES] += 0.5 * x[1, 7 : 7 + LANES]
    assert (out == wanted).all()


@pytest.mark.parametrize(
    "wrong", [np.ones((40, 3), np.float32).T, np.ones((3, 40)), np.ones(40, np.float32)], ids=["order", "type", "shape"]
)
def test_another_array_is_refused_when_a_kernel_is_compiled(wrong):
    with pytest.raises(TypingError, match="expected a contiguous"):
        _scaled_sum(wrong, np.float32(1), 0, 0, wrong)
