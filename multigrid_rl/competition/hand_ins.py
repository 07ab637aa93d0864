"""Hand-ins of a class: folders, learning platforms' folders around them, and zip files."""

import errno
import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from multigrid_rl.competition.agents import AGENT_FILE
from multigrid_rl.competition.bundle import folder_kind
from multigrid_rl.competition.folders import (
    DESKTOP_FILES,
    MAX_FOLDER_BYTES,
    MAX_FOLDER_FILES,
    FolderPart,
    ScratchError,
    inner_path,
    write_parts,
)
from multigrid_rl.files import free_path
from multigrid_rl.players.cards import CARD_FILE, PlayerError
from multigrid_rl.text import expected, printable, shown

ZIP = ".zip"
#: Maximum folders and zip files around a submission: a platform's folder, a zip file, and the folder in it.
_MAX_NESTING = 3
#: Maximum unpacked bytes of all zip files of one submission, nested ones included.
_MAX_UNPACKED = 2 * MAX_FOLDER_BYTES
#: Maximum bytes of a zip file's list of files; it is read at once and takes ten times as many in memory.
_MAX_LIST = 400 * MAX_FOLDER_FILES


class Submission(NamedTuple):
    """The submission of one student."""

    name: str  # of the original folder or file
    folder: Path  # with a bundle or an agent, unpacked if necessary
    problem: str | None = None  # the reason why there is none


def hand_ins(folder: Path, scratch: Path) -> list[Submission]:
    """Return everything in ``folder``, one submission for each folder and file, sorted; without hidden ones.

    Zip files are unpacked below ``scratch``. Raises ``PlayerError``: no folder, or nothing in it; ``ScratchError``.
    """
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", *DESKTOP_FILES))]
    except OSError as error:
        raise PlayerError(expected(folder, "a folder with submissions", error.strerror)) from error
    if not paths or {path.name for path in paths} & {CARD_FILE, AGENT_FILE}:
        got = "a submission itself" if paths else "none in it"
        raise PlayerError(expected(folder, "a folder with one folder for each student", got))
    return [hand_in(path, scratch / folder.resolve().name) for path in paths]


def playable(folder: Path, scratch: Path) -> dict[str, Path]:
    """Return the folders of all :func:`hand_ins` that can be read, by ``folder/name``."""
    found = hand_ins(folder, scratch)
    return {f"{folder.resolve().name}/{each.name}": each.folder for each in found if each.problem is None}


def hand_in(path: Path, scratch: Path) -> Submission:
    """Return the submission at ``path``, unpacked below ``scratch`` if zipped. Raises ``ScratchError``."""
    room = Counter(bytes=_MAX_UNPACKED, files=2 * MAX_FOLDER_FILES)
    try:
        return Submission(path.name, _find_folder(path, scratch, _MAX_NESTING, room))
    except PlayerError as error:
        return Submission(path.name, path, reason_of(error, path, path.name).replace(f"{scratch}/", ""))


def entry_name(name: str) -> str:
    """Return the displayed name of a folder: the same, in any alphabet, or its :func:`filed_name` if unsafe."""
    safe = name.isprintable() and name == name.strip() and len(name) <= 64 and name[:1] not in "=+-@"
    return name if safe else filed_name(name)


def filed_name(name: str) -> str:
    """Return the name of a folder in paths: the same, or in ASCII letters with a hash."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}", name):
        return name
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)[:40].lstrip("-. ")
    return f"{plain}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:6]}".lstrip("-")


def reason_of(error: BaseException, folder: Path | None, name: str) -> str:
    """Return the error of an entry in one line."""
    text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
    text = printable(text or type(error).__name__)
    if folder is not None:
        # The entry's page shows no absolute paths of this machine.
        place = printable(str(folder))
        text = text.replace(f"{place}/", "").replace(place, name)
    # The reason follows a path that may be long.
    return text if len(text) <= 400 else f"{text[:100]} ... {text[-300:]}"


def _find_folder(path: Path, scratch: Path, depth: int, room: Counter[str]) -> Path:
    """Return the folder of the bundle or agent at ``path``, or within the folders and zip files around it.

    ``room``: bytes and files that may still be unpacked.
    """
    if not path.is_dir():
        if path.suffix.lower() != ZIP or (path.exists() and not path.is_file()):  # a pipe would never open
            raise PlayerError(expected(path, f"a bundle or an agent, as a folder or in a {ZIP} file", "another file"))
        path = _unpack(path, free_path(scratch, path.stem), room)
    try:
        folder_kind(path)
    except PlayerError:
        folders = []
        for inner in _inner_paths(path) if depth else ():
            with suppress(PlayerError):
                folders.append(_find_folder(inner, scratch, depth - 1, room))
            if room["bytes"] <= 0 or room["files"] < 0:
                most = f"{_MAX_UNPACKED} bytes" if room["bytes"] <= 0 else f"{2 * MAX_FOLDER_FILES} files"
                raise PlayerError(expected(path, f"at most {most} when unpacked", "more")) from None
        if len(folders) > 1:
            names = " and ".join(shown(inner.name) for inner in folders)
            raise PlayerError(expected(path, "one bundle or one agent", names)) from None
        if not folders:
            raise
        path = folders[0]
    return path


def _inner_paths(folder: Path) -> list[Path]:
    """Return folders and zip files in a folder without links, which lead out of the submission."""
    with suppress(OSError):
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", *DESKTOP_FILES))]
        return [path for path in paths if not path.is_symlink() and (path.is_dir() or path.suffix.lower() == ZIP)]
    return []


def _unpack(path: Path, target: Path, room: Counter[str]) -> Path:
    """Unpack a stranger's zip file into the new folder ``target``, and nowhere else. Raises as :func:`hand_ins`."""
    try:
        if (size := path.stat().st_size) > MAX_FOLDER_BYTES:
            raise PlayerError(expected(path, f"at most {MAX_FOLDER_BYTES} bytes", size))
        write_parts(_parts(path, room), target)
    except PlayerError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ScratchError(expected(target, "a TMPDIR with room", error.strerror)) from error
        raise PlayerError(expected(path, "a zip file that can be unpacked", error.strerror or error)) from error
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError) as error:
        raise PlayerError(expected(path, "a zip file that can be read", shown(str(error)))) from error
    return target


class _ZipFile(FileIO):
    """An opened zip file; while its list of files is read, with a limit."""

    reads_list = True

    def read(self, size: int | None = -1) -> bytes:
        """Read as a file does. Raises ``BadZipFile``."""
        if not self.reads_list:
            return super().read(size)
        is_bounded = size is not None and 0 <= size <= _MAX_LIST
        data = super().read(size if is_bounded else _MAX_LIST + 1)
        if len(data) > _MAX_LIST:
            raise zipfile.BadZipFile(f"a list of files of more than {_MAX_LIST} bytes")
        return data


def _parts(path: Path, allowance: Counter[str]) -> Iterator[FolderPart]:
    """Yield folders and files of a zip file, folders before their content. Raises as :func:`_unpack`."""
    with _ZipFile(path) as opened, zipfile.ZipFile(opened) as archive:
        opened.reads_list = False
        folders: set[PurePosixPath] = set()
        room, files = min(MAX_FOLDER_BYTES, allowance["bytes"]), 0
        for member in archive.infolist():
            name = inner_path(path, member.filename)
            _check_member(path, member)
            if not name.parts or {*name.parts} & {*DESKTOP_FILES}:
                continue
            parents = [parent for parent in reversed(name.parents) if parent.parts]
            new_folders = [each for each in [*parents, *([name] if member.is_dir() else [])] if each not in folders]
            folders.update(new_folders)
            files += not member.is_dir()
            allowance["files"] -= len(new_folders) + (not member.is_dir())
            if len(folders) + files > MAX_FOLDER_FILES or allowance["files"] < 0:
                raise PlayerError(expected(path, f"at most {MAX_FOLDER_FILES} files", "more"))
            yield from (FolderPart(Path(each), "folder") for each in new_folders)
            if not member.is_dir():
                with archive.open(member) as file:
                    data = file.read(room + 1)  # a few bytes may unpack to any number
                room -= len(data)
                allowance["bytes"] -= len(data)
                if room < 0:
                    raise PlayerError(expected(path, f"at most {MAX_FOLDER_BYTES} bytes when unpacked", "more"))
                yield FolderPart(Path(name), "file", data, member.external_attr >> 16)


def _check_member(path: Path, member: zipfile.ZipInfo) -> None:
    # The file type in the file system that packed it; 0 where there are no types.
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise PlayerError(expected(path, "files and folders alone", f"a link or a device, {shown(member.filename)}"))
    if member.flag_bits & 1:
        raise PlayerError(expected(path, "files without a password", shown(member.filename)))
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may need gigabytes of memory
        got = f"another compression of {shown(member.filename)}"
        raise PlayerError(expected(path, "stored or deflated files", got))
