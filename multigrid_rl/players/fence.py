"""A sandbox for agents, bubblewrap: no network, no sight of this machine's files and processes, and bounded memory.

In it an agent has the system's programs, this interpreter with its packages, and a copy of its own folder, in memory.
"""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from multigrid_rl.files import data_root

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_NOBODY = "65534"
#: Where an agent's own folder lies in the sandbox, to be read, and the one folder that it may write.
_HANDED_IN, _OWN = "/handed-in", "/tmp"
#: Runs the command in a copy of what was handed in: its folder is its own, and what it writes there is gone afterwards.
_BEGIN = f'cp -R {_HANDED_IN} {_OWN}/agent && cd {_OWN}/agent && exec "$@"'
_SHARED_MEMORY = 16 * 2**20


@lru_cache(maxsize=1)
def at_hand() -> bool:
    """Whether this machine has a sandbox that works: some have bubblewrap and no user namespaces."""
    if shutil.which("bwrap") is None:
        return False
    try:
        with TemporaryDirectory() as nothing:
            tried = subprocess.run(fenced(("true",), Path(nothing), 1), capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def fenced(command: tuple[str, ...], folder: Path, disk_mb: int) -> list[str]:
    """Return a command that runs ``command`` in a sandbox.

    Args:
        command: run in a copy of ``folder``.
        folder: what the agent handed in.
        disk_mb: size of everything that it may write.
    """
    # Namespaces of its own for users, processes, network and the rest; everything in it ends with this process.
    walls = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    walls += ["--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "agent"]
    walls += ["--size", str(disk_mb * 2**20), "--tmpfs", _OWN]
    ours = [Path(__file__).parents[1], data_root() / "configs", data_root() / "checkpoints"]  # to import and load
    seen = dict.fromkeys([*_SYSTEM, sys.prefix, sys.base_prefix, *map(str, ours)])
    for path in seen:
        if Path(path).is_symlink():
            walls += ["--symlink", os.readlink(path), path]  # noqa: PTH115 - as it is written
        else:
            walls += ["--ro-bind-try", path, path]
    walls += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    walls += ["--ro-bind", str(folder), _HANDED_IN, "--remount-ro", "/dev", "--remount-ro", "/"]
    walls += ["--chdir", _OWN, "--setenv", "HOME", _OWN, "--setenv", "TMPDIR", _OWN]
    return [*walls, "--", "/bin/sh", "-c", _BEGIN, "sh", *command]
