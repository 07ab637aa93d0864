"""One place that decides how kernels are compiled and when their machine code is stale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

# ``nogil`` lets two Python threads step two halves of one batch; the cache lets a second process start at once.
# Kernels allocate nothing, so reference counting of their array arguments is left out (``_nrt``): it was two thirds of
# the time of a step.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())  # it holds the compiler's options
    package = Path(__file__).parent
    for room in ("world", "models", "players", "learn"):
        for source in sorted((package / room).glob("*.py")):
            text = source.read_bytes()
            if b"multigrid_rl.jit" in text or source.name in ("constants.py", "state.py"):
                digest.update(text)
    return digest.hexdigest()


def _compile(function: F, **extra: Any) -> F:
    dispatcher = numba.njit(**_OPTIONS, **extra)(function)
    # Numba drops a cached kernel when its own file changes, but not when a constant or a kernel that it imports does:
    # after an update a user would play by the old rules. So every kernel is as old as all sources of kernels together.
    dispatcher._cache._cache_file._source_stamp = _sources_digest()
    return cast(F, dispatcher)


def kernel(function: F) -> F:
    """Compile a function that Python calls; machine code is kept on disk between processes."""
    return _compile(function)


def inlined(function: F) -> F:
    """Compile a function that only kernels call, into its callers: its arguments are never copied."""
    return _compile(function, forceinline=True)


# For networks: a multiplication and the addition after it may be one instruction. Not for the game, whose rewards are
# recorded to the last bit.
_FLOAT = {"fastmath": {"contract"}}


def float_kernel(function: F) -> F:
    """As :func:`kernel`, for the arithmetic of networks."""
    return _compile(function, **_FLOAT)


def float_inlined(function: F) -> F:
    """As :func:`inlined`, for the arithmetic of networks."""
    return _compile(function, forceinline=True, **_FLOAT)


def float_dot(function: F) -> F:
    """As :func:`float_inlined`; additions may be reordered, without which a sum of products is not vectorised."""
    return _compile(function, forceinline=True, fastmath={"contract", "reassoc"})
