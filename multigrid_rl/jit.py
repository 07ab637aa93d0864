"""One place that decides how kernels are compiled, where their machine code is kept, and when it is stale."""

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

# ``nogil`` lets two Python threads step two halves of one batch. Kernels allocate nothing, so reference counting of
# their array arguments is left out (``_nrt``): it was two thirds of the time of a step.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_DIGEST = hashlib.sha256().digest_size
#: This user's folder for kernels in the temporary folder, where no other can be written.
TEMPORARY = f"multigrid-rl-kernels-{os.getuid()}"


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())  # it holds the compiler's options
    package = Path(__file__).parent
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if b"multigrid_rl.jit" in text or source.name in ("constants.py", "state.py"):
            digest.update(text)
    return digest.hexdigest()


class NotCompiledError(Exception):
    """A kernel is not on disk, and must not be compiled by this process."""


class _State:
    """What a process does about kernels that are not on disk."""

    def __init__(self) -> None:
        self.forbid_compiling = False
        #: Called when one is missing; when one was compiled.
        self.missing: Callable[[], None] = _nothing
        self.compiled: Callable[[], None] = _nothing
        #: Returns whether forms for several threads are still being compiled elsewhere.
        self.busy: Callable[[], bool] = bool


def _nothing() -> None:
    pass


state = _State()


@contextmanager
def forbid_compiling(on: bool) -> Iterator[None]:
    """Raise ``NotKeptError`` instead of compiling within a block, if ``on``."""
    state.forbid_compiling = on
    try:
        yield
    finally:
        state.forbid_compiling = False


class _KernelFile(IndexDataCacheFile):
    """Machine code of one kernel: one file per signature, with a digest that shows whether it is complete and current.

    Numba drops a cached kernel when its own file changes, but not when a constant or a kernel that it imports does:
    after an update a user would play by the old rules. So every kernel is as old as all sources of kernels together.
    And what a power cut leaves of a file, numba would read and fail, at every start: such a file counts as none.
    """

    def __init__(self, function: Callable[..., object], folder: str, name: str) -> None:
        super().__init__(folder, name, None)
        # Where it may not be written, as in the sandbox of an agent, it may still be read.
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
        """Keep ``data`` for ``key``, in place of what was there."""
        body = self._dump(data)
        with self._open_for_write(self._place(key)) as file:
            file.write(self._digest(key, body) + body)
        state.compiled()

    def _place(self, key: tuple[Any, ...]) -> Path:
        # The last part of the key is a hash of the bytecode: the file of an older version is overwritten.
        signature = hashlib.sha256(repr(key[:-1]).encode()).hexdigest()[:16]
        return Path(self._index_path).with_suffix(f".{signature}.nbc")

    def _digest(self, key: tuple[Any, ...], body: bytes) -> bytes:
        inputs = f"{_sources_digest()} {self._version} {key!r}"
        return hashlib.sha256(inputs.encode() + body).digest()


class _KernelCache(FunctionCache):
    """Lets a second process start at once. Where nothing can be written, each one compiles for itself."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._cache_file = _KernelFile(function, self._cache_path, self._impl.filename_base)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, a used up quota: ``doctor`` reports it
            super().save_overload(sig, data)


_threads = local()


def threads() -> int:
    """Return how many threads this one shares the passes of networks with, itself included."""
    return getattr(_threads, "count", 1)


def use_threads(count: int) -> None:
    """Share the passes of networks out to ``count`` threads, at most :func:`most_threads`. No result changes."""
    count = min(count, most_threads())
    if count > 1:
        import_module("numba.np.ufunc.parallel")._launch_threads()  # here, and not in the midst of a first pass
        numba.set_num_threads(count)
    _threads.count = count


@lru_cache(maxsize=1)
def most_threads() -> int:
    """Return how many threads can be had: 1 where numba finds none that hand work over fast."""
    with suppress(ImportError):
        import_module("numba.np.ufunc.omppool")  # they wait for work awake: 3 microseconds; numba's own need 75
        numba.config.THREADING_LAYER = "omp"
        return int(numba.config.NUMBA_NUM_THREADS)
    return 1


def temporary_folder() -> Path:
    """Make :data:`TEMPORARY`, for this user alone. Raises ``OSError`` where that fails."""
    folder = Path(tempfile.gettempdir()) / TEMPORARY
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Machine code is run without a check, and any user may make folders there.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder}: others may write there")
    return folder


def _cache(function: Callable[..., object]) -> _KernelCache | None:
    with suppress(RuntimeError):  # raised by numba when it can write neither beside the sources nor in the home folder
        return _KernelCache(function)
    with suppress(RuntimeError, OSError):
        # In the environment: the multigrid package caches kernels, too, and child processes inherit it.
        os.environ["NUMBA_CACHE_DIR"] = str(temporary_folder())
        numba.config.reload_config()
        return _KernelCache(function)
    return None


def _compile(function: F, **extra: Any) -> F:
    dispatcher = numba.njit(**_OPTIONS, **extra)(function)
    cache = _cache(function)
    if cache is not None:
        dispatcher._cache = cache
    return cast(F, dispatcher)


def kernel(function: F) -> F:
    """Compile a function that Python calls; machine code is kept on disk between processes."""
    return _compile(function)


def inlined(function: F) -> F:
    """Compile a function that only kernels call, into its callers: its arguments are never copied."""
    # Said here, as it would be inherited from the caller, and kept on disk for all others.
    return _compile(function, forceinline=True, fastmath=False)


# For networks: a multiplication and the addition after it may be one instruction. Not for the game, whose rewards are
# recorded to the last bit.
_FLOAT = {"fastmath": {"contract"}}


def float_kernel(function: F) -> F:
    """As :func:`kernel`, for the arithmetic of networks."""
    return _compile(function, **_FLOAT)


# Filling an array of a few thousand numbers takes less time than handing a part of it over.
_PRANGE_ALONE = {"prange": True} | dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)


def shared(function: F, **extra: Any) -> F:
    """As :func:`kernel`; rounds of ``numba.prange`` are shared out to the threads of :func:`use_threads`.

    Where it calls another one, both are shared out, or neither.
    """
    forms = []
    rounds = {"parallel": _PRANGE_ALONE} if "prange" in function.__code__.co_names else {}
    for form, options in enumerate(({}, rounds)):
        names = {name: getattr(value, "forms", {form: value})[form] for name, value in function.__globals__.items()}
        copied = FunctionType(function.__code__, names)
        copied.__name__ = copied.__qualname__ = function.__name__ + "_beside" * form  # machine code is kept by name
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
    """As :func:`float_inlined`; additions may be reordered, without which a sum of products is not vectorised."""
    return _compile(function, forceinline=True, fastmath={"contract", "reassoc"})
