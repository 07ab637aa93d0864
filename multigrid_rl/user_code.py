"""Code that a configuration names: how it is imported, and how its mistakes are reported; ``trust.py``: whether."""

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multigrid_rl.text import ConfigError, expected, one_line

#: How something outside of this project is named: ``module:name``. Nothing of our own is called like that.
CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: What user code may raise by mistake.
MISTAKES = (
    *(TypeError, ValueError, AttributeError, RuntimeError, LookupError),
    *(ArithmeticError, AssertionError, NameError, ImportError, OSError),
)


def own_place(error: BaseException) -> str:
    """Return where an error passed through a file of the user's own last, as `` (my_nets.py:12)``, or nothing."""
    others = (f"{Path(__file__).parent}/", *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib")), "<")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def mistake(error: BaseException) -> str:
    """Return what a user's code raised, in one line: class, message, and the last line of a file of the user's own."""
    return f"{type(error).__name__}: {one_line(error)}{own_place(error)}"


@contextmanager
def user_code(key: str) -> Iterator[None]:
    """Turn errors of user code into a :class:`ConfigError` at the key that names it."""
    try:
        yield
    except ConfigError:
        raise
    except MISTAKES as error:
        raise ConfigError(f"{key}: {mistake(error)}") from error


def look_in_working_folder() -> None:
    """Let modules be found in the working folder, after all other places: none there hides an installed one."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))


def import_object(key: str, path: str, what: str = "module:function") -> Any:
    """Import ``module:name`` from Python's path, then from the working folder.

    Raises:
        ConfigError: no such module, or nothing of that name in it that can be called.
    """
    module, _, name = path.partition(":")
    if not CODE.fullmatch(path) or module.endswith(".py"):
        wanted = f"{what} without .py or a folder, of a module in the working folder or PYTHONPATH"
        raise ConfigError(expected(key, wanted, path))
    look_in_working_folder()
    try:
        function = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise ConfigError(expected(key, what, f"{path}: {error}{own_place(error)}")) from error
    except (*MISTAKES, SyntaxError) as error:
        raise ConfigError(expected(key, f"{what} that can be imported", f"{path}: {mistake(error)}")) from error
    if not callable(function):
        raise ConfigError(expected(key, what, f"{path}: {function!r} is no function"))
    return function
