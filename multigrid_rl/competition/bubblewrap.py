"""A sandbox for programs of strangers: what of this machine is in it, and the command of bubblewrap that makes it."""

import os
import sys
from pathlib import Path

from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected

#: What of the system a sandbox holds.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
#: What of the interpreter: the environment may be the very folder in which a class's files are.
_INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
_NOBODY = "65534"
#: Where an agent's own folder lies in the sandbox, to be read, and the one folder that it may write.
_HANDED_IN, _OWN = "/handed-in", "/tmp"
#: Runs the command in a copy of what was handed in: its folder is its own, and what it writes there is gone afterwards.
#: The shell stays as the first process, and holds no pipe of the agent's.
_COPY = f"cp -R {_HANDED_IN} {_OWN}/agent; cd {_OWN}/agent; "
_GIVE = f"chown -Rh {_NOBODY}:{_NOBODY} .; "
_RUN = 'exec 3<&0; "$@" <&3 3<&- & exec <&- >&- 2>&- 3<&-; wait $!'
_AS_NOBODY = ("setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups", "--inh-caps=-all", "--")
_SHARED_MEMORY = 16 * 2**20


def bwrap_command(command: tuple[str, ...], folder: Path, disk_mb: int) -> list[str]:
    """Return a command that runs ``command`` in a sandbox; for root, from within ``launch.separate_users``.

    Args:
        command: run in a copy of ``folder``.
        folder: what the agent handed in.
        disk_mb: size of everything that it may write.
    """
    # Namespaces of its own for processes, network and the rest; everything in it ends with this process.
    arguments = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "agent"]
    if os.geteuid() == 0:
        arguments += [word for right in ("SETUID", "SETGID", "CHOWN") for word in ("--cap-add", f"CAP_{right}")]
    else:
        arguments += ["--unshare-user", "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY]
    arguments += ["--perms", "1777", "--size", str(disk_mb * 2**20), "--tmpfs", _OWN]
    made: set[Path] = set()
    for path, readable in _places().items():
        for parent in [*path.parents][-2::-1]:  # else made for root alone
            arguments += [] if parent in made else ["--perms", "0755", "--dir", str(parent)]
            made.add(parent)
        if not readable:
            arguments += ["--size", str(_SHARED_MEMORY), "--tmpfs", str(path)]
        elif path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]  # noqa: PTH115 - as it is written
        else:
            arguments += ["--ro-bind-try", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    arguments += ["--ro-bind", str(folder), _HANDED_IN]
    # The kernel's settings in /proc/sys among them.
    arguments += [word for place in ("/proc", "/dev", "/") for word in ("--remount-ro", place)]
    arguments += ["--chdir", _OWN, "--setenv", "HOME", _OWN, "--setenv", "TMPDIR", _OWN]
    if os.geteuid() == 0:
        return [*arguments, "--", "/bin/sh", "-ec", _COPY + _GIVE + _RUN, "sh", *_AS_NOBODY, *command]
    return [*arguments, "--", "/bin/sh", "-ec", _COPY + _RUN, "sh", *command]


def _places() -> dict[Path, bool]:
    """Return what of this machine lies in a sandbox, whole folders, and of these what is hidden again."""
    interpreter = [Path(root, part) for root in (sys.prefix, sys.base_prefix) for part in _INTERPRETER]
    package = Path(__file__).parents[1]
    wanted = dict.fromkeys([*map(Path, _SYSTEM), *interpreter, package], True)
    # A wheel has players and rubrics in the package.
    wanted |= {} if data_root() == package.parent else {data_root(): False}
    places: dict[Path, bool] = {}
    for path, readable in (wanted | {data_root() / "configs" / "scenario": True}).items():
        around = [place for place in places if path.is_relative_to(place)]
        if not around or places[around[-1]] != readable:
            places[path] = readable
    return places


def check_not_bound(*paths: Path) -> None:
    """Check that agents in a sandbox cannot read what lies at ``paths``.

    Raises:
        PlayerError: one is within what every agent can read.
    """
    places = _places()
    for path in paths:
        around = [place for place in places if path.resolve().is_relative_to(place.resolve())]
        if around and places[around[-1]]:
            raise PlayerError(expected(path, "a place that agents in a sandbox cannot read", f"one in {around[-1]}"))
