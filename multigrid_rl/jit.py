"""Compilation of kernels: compiler options, the cache of machine code on disk, and its invalidation."""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from importlib import import_module
from pathlib import Path
from threading import local
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., object])

# ``nogil`` lets two Python threads step two halves of one batch. Kernels allocate nothing, so ``_nrt`` switches off
# reference counting of their array arguments, which took two thirds of the time of a step.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_DIGEST = hashlib.sha256().digest_size
#: This user's folder for kernels in the temporary folder, used if no other can be written.
TEMPORARY = f"multigrid-rl-kernels-{os.getuid()}"


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())  # this file sets the compiler options
    package = Path(__file__).parent
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if b"multigrid_rl.jit" in text or source.name in ("constants.py", "state.py"):
            digest.update(text)
    return digest.hexdigest()


class NotCompiledError(Exception):
    """A kernel is not on disk, and this process must not compile it."""


class _State:
    """Which kernels this process uses, and how it handles those that are not on disk."""

    def __init__(self) -> None:
        self.forbid_compiling = False  # a missing kernel raises ``NotCompiledError``
        self.networks = True  # false: torch computes networks and losses, step by step (``train.compiled``)
        #: Called when a kernel is missing; when one was compiled.
        self.missing: Callable[[], None] = lambda: None
        self.compiled: Callable[[], None] = lambda: None
        #: Returns whether another process still compiles kernels for several threads.
        self.busy: Callable[[], bool] = bool


state = _State()


@contextmanager
def using(**values: bool) -> Iterator[None]:
    """Change attributes of :data:`state` within a block."""
    before = {name: getattr(state, name) for name in values}
    vars(state).update(values)
    try:
        yield
    finally:
        vars(state).update(before)


class _KernelFile(IndexDataCacheFile):
    """Machine code of one kernel: one file per signature, with a digest that shows whether it is complete and current.

    Numba drops a cached kernel when its source file changes, but not when an imported constant or kernel does: after an
    update a user would play by the old rules. So the digest of every kernel covers all sources of kernels.
    Numba would also fail at every start on a file that a power cut left incomplete: such a file counts as missing.
    """

    def __init__(self, function: Callable[..., object], folder: str, name: str) -> None:
        super().__init__(folder, name, None)
        # This folder can be read even if it cannot be written, as in the sandbox of an agent.
        self._source_folder = Path(function.__code__.co_filename).parent / "__pycache__"

    def load(self, key: tuple[Any, ...]) -> Any:
        file = self._place(key)
        for place in (file, self._source_folder / file.name):
            with suppress(OSError):
                content = place.read_bytes()
                body = content[_DIGEST:]
                if content[:_DIGEST] == self._digest(key, body):
                    return pickle.loads(body)
        state.missing()
        if state.forbid_compiling:
            raise NotCompiledError
        return None

    def save(self, key: tuple[Any, ...], data: Any) -> None:
        """Save ``data`` for ``key`` in place of an older file."""
        body = self._dump(data)
        with self._open_for_write(self._place(key)) as file:
            file.write(self._digest(key, body) + body)
        state.compiled()

    def _place(self, key: tuple[Any, ...]) -> Path:
        # The last part of the key is a hash of the bytecode; without it, a new version overwrites the old file.
        signature = hashlib.sha256(repr(key[:-1]).encode()).hexdigest()[:16]
        return Path(self._index_path).with_suffix(f".{signature}.nbc")

    def _digest(self, key: tuple[Any, ...], body: bytes) -> bytes:
        return hashlib.sha256(f"{_sources_digest()} {self._version} {key!r}".encode() + body).digest()


class _KernelCache(FunctionCache):
    """Lets a second process start at once. If no folder can be written, each process compiles its kernels."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._cache_file = _KernelFile(function, self._cache_path, self._impl.filename_base)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk or quota, which ``doctor`` reports
            super().save_overload(sig, data)


_threads = local()


def threads() -> int:
    """Return the number of threads that compute a pass of a network, this one included."""
    return getattr(_threads, "count", 1)


def use_threads(count: int) -> None:
    """Compute passes of networks in ``count`` threads, at most :func:`most_threads`. Results do not change."""
    count = min(count, most_threads())
    if count > 1:
        import_module("numba.np.ufunc.parallel")._launch_threads()  # here, and not during the first pass
        numba.set_num_threads(count)
    _threads.count = count


@lru_cache(maxsize=1)
def most_threads() -> int:
    """Return the largest useful number of threads: 1 if numba has no OpenMP threads, since others start too slowly."""
    with suppress(ImportError):
        import_module("numba.np.ufunc.omppool")  # OpenMP threads start in 3 microseconds; numba's workqueue needs 75
        numba.config.THREADING_LAYER = "omp"
        return int(numba.config.NUMBA_NUM_THREADS)
    return 1


def temporary_folder() -> Path:
    """Make :data:`TEMPORARY`, writable only by this user. Raises ``OSError`` if that fails."""
    folder = Path(tempfile.gettempdir()) / TEMPORARY
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Machine code runs without a check, and any user may make folders there.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder}: others may write there")
    return folder


def _cache(function: Callable[..., object]) -> _KernelCache | None:
    with suppress(RuntimeError):  # numba can write neither next to the sources nor in the home folder
        return _KernelCache(function)
    with suppress(RuntimeError, OSError):
        # An environment variable: the multigrid package caches kernels, too, and child processes inherit it.
        os.environ["NUMBA_CACHE_DIR"] = str(temporary_folder())
        numba.config.reload_config()
        return _KernelCache(function)
    return None


def _compile(function: F, **extra: Any) -> F:
    dispatcher = numba.njit(**_OPTIONS, **extra)(function)
    if (cache := _cache(function)) is not None:
        dispatcher._cache = cache
    return cast(F, dispatcher)


def kernel(function: F) -> F:
    """Compile a function that Python calls; its machine code is saved on disk for later processes."""
    return _compile(function)


def inlined(function: F) -> F:
    """Compile a function that only kernels call, inlined into its callers: its arguments are never copied."""
    # Explicit, since a caller's ``fastmath`` would be inherited, and saved on disk for all other callers.
    return _compile(function, forceinline=True, fastmath=False)


# For networks: a multiplication and an addition may become one instruction. Not for the game, whose rewards must agree
# with recorded ones to the last bit.
_FLOAT = {"fastmath": {"contract"}}


def float_kernel(function: F) -> F:
    """As :func:`kernel`, for the arithmetic of networks."""
    return _compile(function, **_FLOAT)


# Only ``prange`` runs in parallel: filling an array of a few thousand numbers is faster in one thread.
_PRANGE_ALONE = {"prange": True} | dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)


def shared(function: F, **extra: Any) -> F:
    """As :func:`kernel`; iterations of ``numba.prange`` run in the threads of :func:`use_threads`.

    If it calls another shared function, both run in parallel, or neither.
    """
    forms = []
    rounds = {"parallel": _PRANGE_ALONE} if "prange" in function.__code__.co_names else {}
    for form, options in enumerate(({}, rounds)):
        names = {name: getattr(value, "forms", {form: value})[form] for name, value in function.__globals__.items()}
        copied = FunctionType(function.__code__, names)
        copied.__name__ = copied.__qualname__ = function.__name__ + "_beside" * form  # files are named after it
        copied.__module__ = function.__module__
        forms.append(_compile(copied, **options, **extra))

    @wraps(function)
    def call(*args: Any) -> Any:
        return forms[threads() > 1](*args)

    call.__dict__["forms"] = forms
    return cast(F, call)


def float_shared(function: F) -> F:
    """As :func:`shared`, for the arithmetic of networks."""
    return shared(function, **_FLOAT)


def float_inlined(function: F) -> F:
    """As :func:`inlined`, for the arithmetic of networks."""
    return _compile(function, forceinline=True, **_FLOAT)


def float_dot(function: F) -> F:
    """As :func:`float_inlined`; additions may be reordered, so that a sum of products is vectorised."""
    return _compile(function, forceinline=True, fastmath={"contract", "reassoc"})
