"""Untrusted files: read without waiting and within bounds, refused in one line. This module imports quickly."""

import os
import stat
from pathlib import Path

from multigrid_rl.text import OneLineError, expected, printable

#: Not blocking: opening a named pipe would wait for a writer. Windows has neither flag.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class PlayerError(OneLineError, ValueError):
    """A player that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        # Names of files and keys are untrusted, and terminals print them.
        super().__init__(printable(message))


def read_plain_file(path: Path, max_bytes: int, exact_bytes: int | None = None) -> bytes:
    """Return the content of a file of at most ``max_bytes``, exactly ``exact_bytes`` if given. Never waits for a pipe.

    Raises ``PlayerError``: not a plain file (a link, a folder, ...), another size, or not readable.
    """
    try:
        if path.is_symlink():
            raise PlayerError(expected(path, "a plain file", "a symbolic link"))
        handle = os.open(path, _OPEN)
        with os.fdopen(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise PlayerError(expected(path, "a plain file", "a pipe or a device"))
            check_size(path, status.st_size, max_bytes, exact_bytes)
            data = file.read(max_bytes + 1)  # it may have grown meanwhile
        check_size(path, len(data), max_bytes, exact_bytes)
    except OSError as error:
        raise PlayerError(f"{path}: cannot be read: {error.strerror}") from error
    return data


def check_size(path: Path, size: int, max_bytes: int, exact_bytes: int | None) -> None:
    """Check the size of a file. Raises ``PlayerError``: more than ``max_bytes``, or not ``exact_bytes``."""
    if size > max_bytes:
        raise PlayerError(expected(path, f"at most {max_bytes} bytes", f"{size} bytes"))
    if exact_bytes is not None and size != exact_bytes:
        hint = " (truncated?)" if size < exact_bytes else ""
        raise PlayerError(expected(path, f"the {exact_bytes} bytes of its card", f"{size} bytes{hint}"))
