"""Files and folders that a verb writes at its end, of which it must be sure at its start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from multigrid_rl.config import ConfigError


@contextmanager
def written_beside(output: Path, what: str = "file") -> Iterator[Path]:
    """Give a path to write ``output`` to, which gets its name when it is whole; else nothing of it stays.

    Raises:
        ConfigError: at once, if it exists already or cannot be made there.
        OSError: it cannot be written or renamed in the end; names a file.
    """
    try:
        if output.exists():
            raise ConfigError(f"--output {output}: exists already; allowed is a new {what}")
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = TemporaryDirectory(prefix=".unfinished-", dir=output.parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; allowed is a {what} that can be made") from error
    with beside as folder:
        unfinished = Path(folder, output.name)
        try:
            yield unfinished
            unfinished.rename(output)
        except OSError as error:
            error.filename = error.filename or str(output)  # of a full disk the system does not say which
            raise
