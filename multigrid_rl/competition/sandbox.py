"""Sandbox for programs of strangers, bubblewrap: its availability, its command, and its visible files.

Without bubblewrap such programs do not run, unless the user trusts them (``--trusted``). Then they are ordinary child
processes with all rights of the user.
"""

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

from multigrid_rl.competition.launch import set_option
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected
from multigrid_rl.trust import TRUSTED, agents_trusted

#: Visible paths of the system.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
#: Visible parts of the interpreter: its environment's folder may contain a class's files.
_INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
_NOBODY = "65534"
#: In the sandbox: the agent's files, read-only, and the only writable folder.
_FILES, _HOME = "/handed-in", "/tmp"
#: Runs the command in a copy of the agent's files, which is writable and temporary.
#: The shell stays as the first process, and holds none of the agent's pipes.
_RUN = f'cp -R {_FILES} {_HOME}/agent; cd {_HOME}/agent; exec 3<&0; "$@" <&3 3<&- & exec <&- >&- 2>&- 3<&-; wait $!'
_SHARED_MEMORY = 16 * 2**20
_LAUNCHER = Path(__file__).with_name("launch.py")
_FILE_BYTES = 64_000_000
#: Option of ``prctl``, only on Linux: orphans become children of this process.
_PR_SET_CHILD_SUBREAPER = 36
#: Maximum seconds for ending an agent's processes, as it may start new ones faster.
_KILL_S = 5.0
#: Seconds for all answers of an agent's probe, which is a tenth of a pairing.
_PROBE_S = 30.0


@dataclass(frozen=True)
class Limits:
    """Limits of an agent in one pairing."""

    start_s: float = 20.0  # from its start to its "ready"
    step_s: float = 5.0  # for each answer, all games of the step together
    total_s: float = 120.0  # for all answers together
    memory_mb: int = 2048  # address space of each process, and memory of all together
    disk_mb: int = 256  # files in its sandbox

    @property
    def probe_limits(self) -> "Limits":
        """Limits of an agent's probe for comparison with others."""
        return replace(self, total_s=min(self.total_s, _PROBE_S))


def uses_sandbox() -> bool:
    """Return whether agents run in a sandbox: they do unless trusted.

    Raises ``PlayerError``: there is no working bubblewrap, and agents are not trusted.
    """
    if agents_trusted():
        return False
    if not bwrap_available():
        wanted = "bubblewrap that works here (apt-get install bubblewrap; docs/instructors.md), or their user's trust"
        raise PlayerError(expected("agents", wanted, f"neither: --trusted or {TRUSTED}=1 runs them as you, unconfined"))
    return True


@lru_cache(maxsize=1)
def bwrap_available() -> bool:
    """Return whether this machine has a working sandbox: some have bubblewrap without user namespaces."""
    if shutil.which("bwrap") is None:
        return False
    # The test runs the interpreter: its files may be readable only by root.
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
    # The agent ends with its referee, killed or not. Its detached processes do not, but their computing time is
    # limited.
    seconds = 4 * int(limits.start_s + limits.total_s + 1)
    bounds = [limits.memory_mb * 2**20, _FILE_BYTES, seconds, os.getpid()]
    inner = bwrap_command(command, folder, limits.disk_mb) if in_sandbox else command
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *map(str, bounds), *inner]


def bwrap_command(command: Sequence[str], folder: Path, disk_mb: int) -> list[str]:
    """Return a command that runs ``command`` in a sandbox, in a copy of ``folder``, with ``disk_mb`` of files."""
    # Separate namespaces for users, processes, network and the rest; everything in them ends with this process.
    arguments = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY]
    arguments += ["--die-with-parent", "--as-pid-1", "--hostname", "agent"]
    arguments += ["--perms", "1777", "--size", str(disk_mb * 2**20), "--tmpfs", _HOME]
    parents: set[Path] = set()
    for path, readable in _visible_places().items():
        for parent in [*path.parents][-2::-1]:  # otherwise only root could read it
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
    # Includes the kernel's settings in /proc/sys.
    arguments += [word for place in ("/proc", "/dev", "/") for word in ("--remount-ro", place)]
    arguments += ["--chdir", _HOME, "--setenv", "HOME", _HOME, "--setenv", "TMPDIR", _HOME]
    return [*arguments, "--", "/bin/sh", "-ec", _RUN, "sh", *command]


def _visible_places() -> dict[Path, bool]:
    """Return this machine's paths in a sandbox: visible (true), or hidden within a visible one (false)."""
    interpreter = [Path(root, part) for root in (sys.prefix, sys.base_prefix) for part in _INTERPRETER]
    package = Path(__file__).parents[1]
    wanted = dict.fromkeys([*map(Path, _SYSTEM), *interpreter, package], True)
    # An installed package contains players and rubrics.
    wanted |= {} if data_root() == package.parent else {data_root(): False}
    places: dict[Path, bool] = {}
    for path, readable in (wanted | {data_root() / "configs" / "scenario": True}).items():
        outer = [place for place in places if path.is_relative_to(place)]
        if not outer or places[outer[-1]] != readable:
            places[path] = readable
    return places


def check_not_bound(*paths: Path) -> None:
    """Check that agents in a sandbox cannot read ``paths``. Raises ``PlayerError``: they can."""
    places = _visible_places()
    for path in paths:
        outer = [place for place in places if path.resolve().is_relative_to(place.resolve())]
        if outer and places[outer[-1]]:
            raise PlayerError(expected(path, "a place that agents in a sandbox cannot read", f"one in {outer[-1]}"))


@contextmanager
def kill_descendants() -> Iterator[None]:
    """End at the block's end every process started in it, also by child processes.

    Within the block orphans become children of this process: no daemon escapes.
    """
    before = _children(parents_of_all())
    set_option(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _end_all(before)
        set_option(_PR_SET_CHILD_SUBREAPER, 0)


def _end_all(spared: set[int]) -> None:
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        parents = parents_of_all()
        if not (children := _children(parents) - spared):
            return
        for pid in family_of(children, parents):
            with suppress(OSError):  # it ended, or its number belongs to another process
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def parents_of_all() -> dict[int, int]:
    """Return the parent of each process of this machine; empty without a readable process table."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(process.name)] = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return parents


def _children(parents: dict[int, int]) -> set[int]:
    return {pid for pid, parent in parents.items() if parent == os.getpid()}


def family_of(pids: set[int], parents: dict[int, int]) -> set[int]:
    """Return processes and all their descendants, by :func:`parents_of_all`."""
    family: set[int] = set()
    young = pids
    while young:
        family |= young
        young = {pid for pid, parent in parents.items() if parent in young} - family
    return family
