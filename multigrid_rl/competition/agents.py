"""Folders with an external agent: what ``agent.yaml`` says, and one hash over all files."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import yaml
from pydantic import Field, ValidationError, field_validator

from multigrid_rl.competition.leftovers import Scratch, ScratchError
from multigrid_rl.config.scenario import Strict
from multigrid_rl.players.cards import OneLine, PlayerError, read_plain_file
from multigrid_rl.text import expected, first_error, shown

AGENT_FILE = "agent.yaml"
MAX_AGENT_FILE_BYTES = 10_000
MAX_FOLDER_BYTES = 50_000_000
MAX_FOLDER_FILES = 5_000
MAX_FOLDER_DEPTH = 50


@dataclass(frozen=True)
class ExternalAgent:
    """An agent that runs in a process of its own."""

    name: str
    command: tuple[str, ...]  # run in `folder`
    about: str  # one line for people, may be empty
    sha256: str  # of all files of the folder and their paths
    folder: Path


class _AgentFile(Strict):
    command: list[OneLine] = Field(min_length=1, max_length=50)
    name: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._+-]*)?$")
    about: OneLine = Field(default="", max_length=200)

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, value: list[str]) -> list[str]:
        if not value[0]:
            raise ValueError("expected a program first")
        return value


def is_agent(folder: Path) -> bool:
    """Whether a folder holds an external agent."""
    return os.path.lexists(folder / AGENT_FILE)


def read_agent(folder: Path) -> ExternalAgent:
    """Read and check ``agent.yaml`` and hash the folder; nothing is run.

    Raises:
        PlayerError: no such file, one that says something else, or a folder that is too large or not self-contained.
    """
    path = folder / AGENT_FILE
    data = read_plain_file(path, MAX_AGENT_FILE_BYTES)
    try:
        # Everything is text to this loader: no tag, date or number of the file is interpreted.
        manifest = _AgentFile.model_validate(yaml.load(data.decode(), Loader=yaml.BaseLoader))
    except ValidationError as error:
        raise PlayerError(f"{path}: {first_error(error)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlayerError(expected(path, "yaml", shown(str(error), 200))) from error
    name = manifest.name or folder.resolve().name
    return ExternalAgent(name, tuple(manifest.command), manifest.about, folder_sha256(folder), folder.resolve())


class Part(NamedTuple):
    """A file, folder or link of a hand-in."""

    path: Path  # relative to the folder
    kind: str
    data: bytes = b""
    mode: int = 0


@contextmanager
def fresh_copy(parts: Iterable[Part], name: str) -> Iterator[ExternalAgent]:
    """Yield an agent called ``name`` in a folder of ``parts`` that ends with the block: it may write there.

    Raises:
        PlayerError: as :func:`read_agent`.
        ScratchError: there is no room for a copy.
    """
    with closing(Scratch()) as scratch:
        home = scratch.path / name
        try:
            write_parts(parts, home)
        except OSError as error:
            raise ScratchError(expected(scratch.path, "a TMPDIR with room", error.strerror)) from error
        yield replace(read_agent(home), name=name)


def folder_sha256(folder: Path) -> str:
    """Return a hash over the relative path, kind and content of everything in ``folder``.

    Raises:
        PlayerError: as :func:`read_parts`.
    """
    return sha256_of_parts(read_parts(folder))


def sha256_of_parts(parts: Iterable[Part]) -> str:
    """Return the hash of a folder that was read."""
    digest = hashlib.sha256()
    for part in parts:
        name = os.fsencode(part.path.as_posix())
        digest.update(f"{part.kind} {len(name)} {len(part.data)}\n".encode() + name + part.data)
    return digest.hexdigest()


def write_parts(parts: Iterable[Part], target: Path) -> None:
    """Write what :func:`read_parts` has read into a new folder; programs stay programs. Raises ``OSError``."""
    target.mkdir(parents=True)
    for part in parts:
        place = target / part.path
        if part.kind == "folder":
            place.mkdir()
        elif part.kind == "link":
            place.symlink_to(os.fsdecode(part.data))
        else:
            place.write_bytes(part.data)
            place.chmod(part.mode & 0o777 | 0o600)


def read_parts(folder: Path) -> Iterator[Part]:
    """Yield everything in ``folder``, folders before what is in them.

    Raises:
        PlayerError: more than :data:`MAX_FOLDER_BYTES` or :data:`MAX_FOLDER_FILES`, folders in more than
            :data:`MAX_FOLDER_DEPTH` others, a link that leads out of the folder, something that is neither file,
            folder nor link, or a file that cannot be read.
    """
    paths: list[Path] = []
    for here, folders, files in os.walk(folder, onerror=_cannot_read):
        paths += [Path(here, name) for name in (*folders, *files)]
        if len(paths) > MAX_FOLDER_FILES:
            raise PlayerError(expected(folder, f"at most {MAX_FOLDER_FILES} files", "more"))
        if folders and len(Path(here).relative_to(folder).parts) >= MAX_FOLDER_DEPTH:
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


def _part(path: Path, folder: Path) -> Part:
    own = path.relative_to(folder)
    if not path.is_symlink():
        if path.is_dir():
            return Part(own, "folder")
        return Part(own, "file", read_plain_file(path, MAX_FOLDER_BYTES), path.stat().st_mode)
    link = path.readlink()
    # An absolute one leads out of every copy of the folder.
    if link.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(folder.resolve()):
        raise PlayerError(expected(path, "a link to what lies in the folder", shown(os.fsencode(link))))
    return Part(own, "link", os.fsencode(link))
