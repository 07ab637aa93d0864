"""User code that files name: whether it runs, how it is imported, and how its errors are reported.

The rule of trust: a file that you load is code that you run; ``--safe`` refuses files that name code.

A run, a card, a scenario or a recipe may name code as ``module:name``. Loading such a file imports it with a warning.
``MULTIGRID_RL_SAFE=1`` refuses such names instead. Files of strangers (handed in to a cup, to be graded or inspected,
or downloaded from a hub) are always read in safe mode: see :func:`strangers`.

Programs of strangers run in a sandbox, unless :data:`TRUSTED` is set.
"""

import importlib
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from multigrid_rl.files import data_root
from multigrid_rl.text import ConfigError, OneLineError, expected, one_line, shown

LOG = logging.getLogger(__name__)
#: Environment variable: 1 refuses files that name code (``--safe``).
SAFE = "MULTIGRID_RL_SAFE"
#: Environment variable: 1 runs programs of others without a sandbox (``--trusted``).
TRUSTED = "MULTIGRID_RL_TRUSTED"
#: Name of user code: ``module:name``. No built-in name has this form.
CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: Errors that mistakes in user code may raise.
MISTAKES = (
    *(TypeError, ValueError, AttributeError, RuntimeError, LookupError),
    *(ArithmeticError, AssertionError, NameError, ImportError, OSError, SyntaxError),
)

_of_strangers: ContextVar[bool] = ContextVar("of_strangers", default=False)
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)
_logged: set[str] = set()


def safe() -> bool:
    """Return whether names of code are refused."""
    return _of_strangers.get() or os.environ.get(SAFE, "") not in ("", "0")


def agents_trusted() -> bool:
    """Return whether programs of others run without a sandbox."""
    return _trusting.get() or os.environ.get(TRUSTED, "") not in ("", "0")


@contextmanager
def trusting_agents(yes: bool) -> Iterator[None]:
    """Run programs of others without a sandbox within the block, if the user says ``yes``."""
    before = _trusting.set(yes or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(before)


@contextmanager
def strangers() -> Iterator[None]:
    """Refuse names of code within the block, whatever the user has set: it reads files of strangers."""
    before = _of_strangers.set(True)
    try:
        yield
    finally:
        _of_strangers.reset(before)


def check_code(key: object, names: Iterable[str], what: str) -> None:
    """Warn of the code that a file makes this process run, once for each name.

    Args:
        key: the file, and the key in it.
        names: names of code: ``module:name``, or the folder of a program.
        what: allowed values that are no code.

    Raises ``ConfigError``: code is refused, see :func:`safe`.
    """
    for name in names:
        if safe():
            raise ConfigError(expected(key, f"{what}, as code is refused here (--safe)", name))
        if name not in _logged:
            _logged.add(name)
            LOG.warning("%s: names code, which is run: %s (`multigrid-rl --safe` refuses it)", key, name)


# --- running user code


def user_code_place(error: BaseException) -> str:
    """Return the last line of user code in an error's traceback, as `` (my_nets.py:12)``, or nothing."""
    excluded = (f"{Path(__file__).parent}/", *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib")), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(excluded)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def mistake(error: BaseException) -> str:
    """Return an error of user code in one line: class, message, and the last line of user code."""
    if isinstance(error, ConfigError):
        return one_line(error)
    return f"{type(error).__name__}: {one_line(error)}{user_code_place(error)}"


@contextmanager
def user_code(key: str, failure: type[OneLineError] = ConfigError) -> Iterator[None]:
    """Raise errors of user code as a ``failure`` for the key that names it; ``RunError``: it has run before."""
    try:
        yield
    except failure:
        raise
    except MISTAKES as error:
        raise failure(one_line(error) if isinstance(error, ConfigError) else f"{key}: {mistake(error)}") from error


def add_module_folders() -> None:
    """Append the working folder and the folder of our configs to ``sys.path``, after all other entries."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    if str(data_root()) not in sys.path:  # for examples/board_games.py, which our scenarios name
        sys.path.append(str(data_root()))


def import_object(key: str, path: str, what: str = "module:function") -> Any:
    """Import ``module:name`` from Python's path, then from the working folder.

    Raises ``ConfigError``: no such module, or no callable with this name in it.
    """
    module, _, name = path.partition(":")
    if not CODE.fullmatch(path) or module.endswith(".py"):
        wanted = f"{what} without .py or a folder, of a module in the working folder or PYTHONPATH"
        raise ConfigError(expected(key, wanted, path))
    add_module_folders()
    try:
        function = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise ConfigError(expected(key, what, f"{path}: {error}{user_code_place(error)}")) from error
    except MISTAKES as error:
        raise ConfigError(expected(key, f"{what} that can be imported", f"{path}: {mistake(error)}")) from error
    if not callable(function):
        raise ConfigError(expected(key, what, f"{path}: {shown(repr(function))}, which cannot be called"))
    return function
