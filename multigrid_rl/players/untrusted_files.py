"""Files of strangers: read without waiting, within bounds, refused in one line. Nothing here takes long to import."""

import os
import stat
from pathlib import Path

from multigrid_rl.text import OneLineError, expected, printable

#: Not blocking: to open a named pipe would wait for a writer. Windows has neither flag.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class PlayerError(OneLineError, ValueError):
    """A player that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        # Names of files and keys come from strangers, and are printed on terminals.
        super().__init__(printable(message))


def read_plain_file(path: Path, most: int, due: int | None = None) -> bytes:
    """Return the content of a file of at most ``most`` bytes, of exactly ``due`` if given. Never waits for a pipe.

    Raises ``PlayerError``: a link, a folder or anything else that is no plain file; another size; not readable.
    """
    try:
        if path.is_symlink():
            raise PlayerError(expected(path, "a plain file", "a symbolic link"))
        handle = os.open(path, _OPEN)
        with os.fdopen(handle, "rb", buffering=0) as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise PlayerError(expected(path, "a plain file", "a pipe or a device"))
            check_size(path, found.st_size, most, due)
            data = file.read(most + 1)  # it may have grown meanwhile
        check_size(path, len(data), most, due)
    except OSError as error:
        raise PlayerError(f"{path}: cannot be read: {error.strerror}") from error
    return data


def check_size(path: Path, size: int, most: int, due: int | None) -> None:
    """Check the bytes that a file has. Raises ``PlayerError``: more than ``most``, or not the ``due`` ones."""
    if size > most:
        raise PlayerError(expected(path, f"at most {most} bytes", f"{size} bytes"))
    if due is not None and size != due:
        hint = " (truncated?)" if size < due else ""
        raise PlayerError(expected(path, f"the {due} bytes of its card", f"{size} bytes{hint}"))
