"""Databases of tests: SQLite in a file, and Postgres in a folder of its own where it is installed."""

import importlib.util
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

#: Debian's place first: what lies on the path there are links to some of them.
PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))
LACKS = (
    "Postgres is not installed"
    if not (PROGRAMS / "initdb").exists()
    else "psycopg is not installed"
    if importlib.util.find_spec("psycopg") is None
    else ""
)
_NOBODY = 65534


def _run(folder, *command) -> None:
    """Postgres refuses to run as root."""
    user = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    words = [*user, *map(str, command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=folder)


@contextmanager
def postgres(folder: Path):
    """Yield the address of a new server that listens on a socket in ``folder`` alone, which anybody may enter."""
    data = folder / "data"
    data.mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (folder, data):
            shutil.chown(path, _NOBODY, _NOBODY)
    _run(folder, PROGRAMS / "initdb", "-D", data, "-U", "course", "-A", "trust", "-E", "UTF8")
    options = f"-c listen_addresses='' -k {folder} -c fsync=off"
    _run(folder, PROGRAMS / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    try:
        yield f"postgresql+psycopg://course@/postgres?host={folder}"
    finally:
        _run(folder, PROGRAMS / "pg_ctl", "-D", data, "-m", "immediate", "stop")
