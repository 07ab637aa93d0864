"""What agents and trainings leave behind, folders and processes: gone afterwards, and kept apart from what is used."""

import ctypes
import fcntl
import os
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import expected

_PREFIX = "multigrid-rl-scratch-"
#: A folder that is younger may belong to a process that has not locked it yet.
_YOUNG_S = 60.0


class ScratchError(RuntimeError):
    """The place for scratch folders cannot be used; the message is one line. No agent is to blame for it."""


class Scratch:
    """A new folder, removed with ``close()``, when this object is forgotten, or when Python ends.

    It is locked: who finds it unlocked knows that its owner was killed. Each new one removes those.

    Raises:
        ScratchError: there is no room for one.
    """

    def __init__(self) -> None:
        remove_leftovers()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ScratchError(expected(tempfile.gettempdir(), "a TMPDIR with room", error.strerror)) from error
        lock(handle)
        self.close = weakref.finalize(self, _remove, self.path, handle)


def _remove(folder: Path, handle: int) -> None:
    remove_tree(folder)
    os.close(handle)


def lock(handle: int) -> bool:
    """Lock an open file or folder until it is closed; return whether another process has done so before."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a network drive without locks
        return False
    return False


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Make ``folder`` and keep it locked for the block.

    Raises:
        PlayerError: another cup or grading is at work in it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise PlayerError(expected(folder, "a folder that can be written", error.strerror)) from error
    try:
        if lock(handle):
            raise PlayerError(expected(folder, "another --output, or to wait", "a folder in which another is at work"))
        yield
    finally:
        os.close(handle)


def remove_leftovers() -> None:
    """Remove the scratch folders of processes that were killed; never raises."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(handle)
                old = time.time() - found.st_mtime > _YOUNG_S
                if old and found.st_uid == os.geteuid() and not lock(handle):
                    remove_tree(path)
            finally:
                os.close(handle)


def remove_tree(folder: Path) -> None:
    """Remove a folder, however deep it is and whatever its modes are; never raises.

    ``shutil.rmtree`` gives up at a thousand folders in one another; ``rm`` does not.
    """
    with suppress(OSError):
        if not folder.is_symlink():  # put in its place by another process
            subprocess.run(["chmod", "-R", "u+rwx", "--", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


#: Of Linux alone; elsewhere the process group must do.
_PR_SET_CHILD_SUBREAPER = 36
#: An agent that starts processes faster than they are ended is given up at last.
_PATIENCE_S = 5.0


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
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        parents = parents_of_all()
        new = _children(parents) - spared
        if not new:
            return
        for pid in family_of(new, parents):
            with suppress(OSError):  # it ended, or its number is another's by now
                os.kill(pid, signal.SIGKILL)
        for pid in new:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def parents_of_all() -> dict[int, int]:
    """Return the parent of each process of this machine; nothing where there is no process table to read."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(status.parent.name)] = int(status.read_bytes().rpartition(b")")[2].split()[1])
    return found


def _children(parents: dict[int, int]) -> set[int]:
    own = os.getpid()
    return {pid for pid, parent in parents.items() if parent == own}


def family_of(pids: set[int], parents: dict[int, int]) -> set[int]:
    """Return processes and all that they started, and those started, by :func:`parents_of_all`."""
    family: set[int] = set()
    young = pids
    while young:
        family |= young
        young = {pid for pid, parent in parents.items() if parent in young} - family
    return family
