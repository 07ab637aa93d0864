"""Hand-in folders: their files in memory, one hash over all of them; scratch folders, locks."""

import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from multigrid_rl.files import read_plain_file
from multigrid_rl.text import PlayerError, expected, shown
from multigrid_rl.types import RunError

MAX_FOLDER_BYTES = 50_000_000
MAX_FOLDER_FILES = 5_000
MAX_FOLDER_DEPTH = 50
#: Files that desktops add to folders and archives.
DESKTOP_FILES = ("__MACOSX", ".DS_Store")
_PREFIX = "multigrid-rl-scratch-"
#: A younger scratch folder may belong to a process that has not locked it yet.
_YOUNG_S = 60.0


class FolderPart(NamedTuple):
    """A file, folder or link of a submission."""

    path: Path  # relative to the folder
    kind: str
    data: bytes = b""
    mode: int = 0


def folder_sha256(folder: Path) -> str:
    """Return a hash over the relative path, kind and content of all in ``folder``. Raises as :func:`read_parts`."""
    return sha256_of_parts(read_parts(folder))


def sha256_of_parts(parts: Iterable[FolderPart]) -> str:
    """Return the hash of a folder's parts."""
    digest = hashlib.sha256()
    for part in parts:
        name = os.fsencode(part.path.as_posix())
        digest.update(f"{part.kind} {len(name)} {len(part.data)}\n".encode() + name + part.data)
    return digest.hexdigest()


def write_parts(parts: Iterable[FolderPart], target: Path) -> None:
    """Write the parts of :func:`read_parts` into a new folder, executable bits included. Raises ``OSError``."""
    target.mkdir(parents=True)
    for part in parts:
        path = target / part.path
        if part.kind == "folder":
            path.mkdir()
        elif part.kind == "link":
            path.symlink_to(os.fsdecode(part.data))
        else:
            path.write_bytes(part.data)
            path.chmod(part.mode & 0o777 | 0o600)


def read_parts(folder: Path) -> Iterator[FolderPart]:
    """Yield everything in ``folder``, folders before their content.

    Raises ``PlayerError``: more than :data:`MAX_FOLDER_BYTES` or :data:`MAX_FOLDER_FILES`, folders in more than
    :data:`MAX_FOLDER_DEPTH` others, a link out of the folder, something else than a file, folder or link, or a file
    that cannot be read.
    """
    paths: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=_cannot_read):
        paths += [Path(parent, name) for name in (*folders, *files)]
        if len(paths) > MAX_FOLDER_FILES:
            raise PlayerError(expected(folder, f"at most {MAX_FOLDER_FILES} files", "more"))
        if folders and len(Path(parent).relative_to(folder).parts) >= MAX_FOLDER_DEPTH:
            raise PlayerError(expected(folder, f"at most {MAX_FOLDER_DEPTH} folders in one another", "more"))
    total = 0
    for path in sorted(paths):
        try:
            part = _part(path, folder)
        except OSError as error:
            _cannot_read(error)
        total += len(part.data)
        if total > MAX_FOLDER_BYTES:
            raise PlayerError(expected(folder, f"at most {MAX_FOLDER_BYTES} bytes", "more"))
        yield part


def _cannot_read(error: OSError) -> NoReturn:
    raise PlayerError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _part(path: Path, folder: Path) -> FolderPart:
    relative = path.relative_to(folder)
    if not path.is_symlink():
        if path.is_dir():
            return FolderPart(relative, "folder")
        return FolderPart(relative, "file", read_plain_file(path, MAX_FOLDER_BYTES), path.stat().st_mode)
    link = path.readlink()
    # An absolute link leads out of every copy of the folder.
    if link.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(folder.resolve()):
        raise PlayerError(expected(path, "a link to what lies in the folder", shown(os.fsencode(link))))
    return FolderPart(relative, "link", os.fsencode(link))


class ScratchError(RunError):
    """Scratch folders cannot be used; the message is one line. It is no agent's fault."""


def inner_path(where: Path, name: str) -> PurePosixPath:
    """Return the path of a file in a submission folder. Raises ``PlayerError``: it leads out of the folder."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and not {"\\", "\0"} & {*name}
    if not inside or len(path.parts) > MAX_FOLDER_DEPTH:
        raise PlayerError(expected(where, "paths that stay in the folder", shown(name)))
    return path


class Scratch:
    """A new folder, removed with ``close()``, when this object is garbage-collected, or when Python ends.

    It is locked: an unlocked folder's owner was killed, and each new instance removes such folders. Raises
    ``ScratchError``: there is no room for one.
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

    def filled(self, name: str, parts: Iterable[FolderPart] = ()) -> Path:
        """Return a new folder in this one with a copy of ``parts``. Raises :class:`ScratchError`: no room."""
        try:
            write_parts(parts, self.path / name)
        except OSError as error:
            raise ScratchError(expected(self.path, "a TMPDIR with room", error.strerror)) from error
        return self.path / name


def _remove(folder: Path, handle: int) -> None:
    remove_tree(folder)
    os.close(handle)


def lock(handle: int) -> bool:
    """Lock an open file or folder until it is closed; return whether another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a network drive without locks
        return False
    return False


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Make ``folder`` and lock it for the block. Raises ``PlayerError``: it is in use, or cannot be made."""
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
    """Remove the scratch folders of killed processes; never raises."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(handle)
                old = time.time() - status.st_mtime > _YOUNG_S
                if old and status.st_uid == os.geteuid() and not lock(handle):
                    remove_tree(path)
            finally:
                os.close(handle)


def remove_tree(folder: Path) -> None:
    """Remove a folder; never raises. Unlike ``shutil.rmtree``, ``rm`` removes a thousand nested folders."""
    with suppress(OSError):
        if not folder.is_symlink():  # another process may have replaced it
            subprocess.run(["chmod", "-R", "u+rwx", "--", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)
