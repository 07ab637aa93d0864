"""The one rule of trust: a file that you load is code that you run; ``--safe`` refuses what names code.

A run, a card, a scenario or a recipe may name code as ``module:name``. Loading such a file imports it, and says so.
``MULTIGRID_RL_SAFE=1`` refuses such names instead. Files of strangers (what is handed in to a cup, to be graded
or inspected, what comes from a hub) are always read so: see :func:`strangers`.

Programs of strangers are another matter: they run in a sandbox, unless :data:`TRUSTED` says that they are trusted.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from multigrid_rl.text import ConfigError, expected

LOG = logging.getLogger(__name__)
#: Environment variable: 1 refuses files that name code (``--safe``).
SAFE = "MULTIGRID_RL_SAFE"
#: Environment variable: 1 runs programs of others without a sandbox, as one's own (``--trusted``).
TRUSTED = "MULTIGRID_RL_TRUSTED"

_of_strangers: ContextVar[bool] = ContextVar("of_strangers", default=False)
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)
_said: set[str] = set()


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
    """Say which code a file makes this process run, once for each name.

    Args:
        key: the file, and where in it.
        names: of code: ``module:name``, or the folder of a program.
        what: what it could name instead.

    Raises:
        ConfigError: code is refused, see :func:`safe`.
    """
    for name in names:
        if safe():
            raise ConfigError(expected(key, f"{what}, as code is refused here (--safe)", name))
        if name not in _said:
            _said.add(name)
            LOG.warning("%s: runs code of yours, %s", key, name)
