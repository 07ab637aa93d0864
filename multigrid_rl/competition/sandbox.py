"""Programs of strangers in a sandbox, bubblewrap: whether there is one, its command, and what of this machine is in it.

There is no second way to contain them: without bubblewrap they do not run, unless the user trusts them
(``--trusted``). Then they are children like any other, who can read, write and send what the user can.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected
from multigrid_rl.trust import TRUSTED, agents_trusted

#: What of the system a sandbox holds.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
#: What of the interpreter: the environment may be the very folder in which a class's files are.
_INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
_NOBODY = "65534"
#: Where an agent's own folder lies in the sandbox, to be read, and the one folder that it may write.
_FILES, _HOME = "/handed-in", "/tmp"
#: Runs the command in a copy of what was handed in: its folder is its own, and what it writes there is gone afterwards.
#: The shell stays as the first process, and holds no pipe of the agent's.
_RUN = f'cp -R {_FILES} {_HOME}/agent; cd {_HOME}/agent; exec 3<&0; "$@" <&3 3<&- & exec <&- >&- 2>&- 3<&-; wait $!'
_SHARED_MEMORY = 16 * 2**20
_LAUNCHER = Path(__file__).with_name("launch.py")
_FILE_BYTES = 64_000_000
#: Of ``prctl``, Linux alone: orphans become children of this process.
_PR_SET_CHILD_SUBREAPER = 36
#: An agent that starts processes faster than they are ended is given up at last.
_KILL_S = 5.0
#: Seconds for all answers of an agent that is compared with others: they are a tenth of a pairing's.
_PROBE_S = 30.0


@dataclass(frozen=True)
class Limits:
    """What an agent may use in one pairing."""

    start_s: float = 20.0  # from its start to its "ready"
    step_s: float = 5.0  # for each answer, all games of the step together
    total_s: float = 120.0  # for all answers together
    memory_mb: int = 2048  # address space of each of its processes, and what all together hold
    disk_mb: int = 256  # everything that it writes in a sandbox

    @property
    def probe_limits(self) -> "Limits":
        """What it may use where it is only watched, to be compared with others."""
        return replace(self, total_s=min(self.total_s, _PROBE_S))


def uses_sandbox() -> bool:
    """Return whether agents run in a sandbox: they do, but for a user who trusts them.

    Raises ``PlayerError``: there is no bubblewrap that works, and agents are not trusted.
    """
    if agents_trusted():
        return False
    if not bwrap_available():
        wanted = "bubblewrap that works here (apt-get install bubblewrap; docs/instructors.md), or their user's trust"
        raise PlayerError(expected("agents", wanted, f"neither: --trusted or {TRUSTED}=1 runs them as you, unconfined"))
    return True


@lru_cache(maxsize=1)
def bwrap_available() -> bool:
    """Return whether this machine has a sandbox that works: some have bubblewrap and no user namespaces."""
    if shutil.which("bwrap") is None:
        return False
    # The interpreter is run: where its files are root's alone, an agent could not.
    command = (sys.executable, "-I", "-S", "-c", "")
    try:
        with TemporaryDirectory() as empty_folder:
            sandboxed = launch_command(command, Path(empty_folder), Limits(), in_sandbox=True)
            result = subprocess.run(sandboxed, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def launch_command(command: Sequence[str], folder: Path, limits: Limits, *, in_sandbox: bool) -> list[str]:
    """Return a command that runs ``command`` within limits, in a sandbox or not, see ``launch.py``."""
    # The agent ends with its referee, killed or not. Processes that it has put beside itself do not, but they end by
    # themselves at last: they cannot compute for ever.
    seconds = 4 * int(limits.start_s + limits.total_s + 1)
    bounds = [limits.memory_mb * 2**20, _FILE_BYTES, seconds, os.getpid()]
    inner = bwrap_command(command, folder, limits.disk_mb) if in_sandbox else command
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *map(str, bounds), *inner]


def bwrap_command(command: Sequence[str], folder: Path, disk_mb: int) -> list[str]:
    """Return a command that runs ``command`` in a sandbox, in a copy of ``folder``; it may write so many megabytes."""
    # Namespaces of its own for users, processes, network and the rest; everything in it ends with this process.
    arguments = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY]
    arguments += ["--die-with-parent", "--as-pid-1", "--hostname", "agent"]
    arguments += ["--perms", "1777", "--size", str(disk_mb * 2**20), "--tmpfs", _HOME]
    parents: set[Path] = set()
    for path, readable in _visible_places().items():
        for parent in [*path.parents][-2::-1]:  # else made for root alone
            arguments += [] if parent in parents else ["--perms", "0755", "--dir", str(parent)]
            parents.add(parent)
        if not readable:
            arguments += ["--size", str(_SHARED_MEMORY), "--tmpfs", str(path)]
        elif path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]  # noqa: PTH115 - as it is written
        else:
            arguments += ["--ro-bind-try", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    arguments += ["--ro-bind", str(folder), _FILES]
    # The kernel's settings in /proc/sys among them.
    arguments += [word for place in ("/proc", "/dev", "/") for word in ("--remount-ro", place)]
    arguments += ["--chdir", _HOME, "--setenv", "HOME", _HOME, "--setenv", "TMPDIR", _HOME]
    return [*arguments, "--", "/bin/sh", "-ec", _RUN, "sh", *command]


def _visible_places() -> dict[Path, bool]:
    """Return what of this machine lies in a sandbox, whole folders, and of these what is hidden again."""
    interpreter = [Path(root, part) for root in (sys.prefix, sys.base_prefix) for part in _INTERPRETER]
    package = Path(__file__).parents[1]
    wanted = dict.fromkeys([*map(Path, _SYSTEM), *interpreter, package], True)
    # A wheel has players and rubrics in the package.
    wanted |= {} if data_root() == package.parent else {data_root(): False}
    places: dict[Path, bool] = {}
    for path, readable in (wanted | {data_root() / "configs" / "scenario": True}).items():
        outer = [place for place in places if path.is_relative_to(place)]
        if not outer or places[outer[-1]] != readable:
            places[path] = readable
    return places


def check_not_bound(*paths: Path) -> None:
    """Check that agents in a sandbox cannot read what lies at ``paths``. Raises ``PlayerError``: they can."""
    places = _visible_places()
    for path in paths:
        outer = [place for place in places if path.resolve().is_relative_to(place.resolve())]
        if outer and places[outer[-1]]:
            raise PlayerError(expected(path, "a place that agents in a sandbox cannot read", f"one in {outer[-1]}"))


@contextmanager
def kill_descendants() -> Iterator[None]:
    """End, with the block, every process that was started in it, also by others on behalf of this one.

    Within the block a process whose parent leaves becomes a child of this one: no daemon gets out of sight.
    """
    before = _children(parents_of_all())
    _adopt(yes=True)
    try:
        yield
    finally:
        _end_all(before)
        _adopt(yes=False)


def _adopt(*, yes: bool) -> None:
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _end_all(spared: set[int]) -> None:
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        parents = parents_of_all()
        children = _children(parents) - spared
        if not children:
            return
        for pid in family_of(children, parents):
            with suppress(OSError):  # it ended, or its number is another's by now
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def parents_of_all() -> dict[int, int]:
    """Return the parent of each process of this machine; nothing where there is no process table to read."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that has ended meanwhile
            parents[int(process.name)] = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return parents


def _children(parents: dict[int, int]) -> set[int]:
    this_process = os.getpid()
    return {pid for pid, parent in parents.items() if parent == this_process}


def family_of(pids: set[int], parents: dict[int, int]) -> set[int]:
    """Return processes and all that they started, and those started, by :func:`parents_of_all`."""
    family: set[int] = set()
    young = pids
    while young:
        family |= young
        young = {pid for pid, parent in parents.items() if parent in young} - family
    return family
