"""Folders with an external agent: what ``agent.yaml`` says, and one hash over all files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from multigrid_rl.players.cards import PlayerError, read_plain_file
from multigrid_rl.players.leftovers import Scratch, ScratchError
from multigrid_rl.text import shown

AGENT_FILE = "agent.yaml"
MAX_AGENT_FILE_BYTES = 10_000
MAX_FOLDER_BYTES = 50_000_000
MAX_FOLDER_FILES = 5_000
MAX_FOLDER_DEPTH = 50


@dataclass(frozen=True)
class AgentSpec:
    """An agent that runs in a process of its own."""

    name: str
    command: tuple[str, ...]  # run in `folder`
    about: str  # one line for people, may be empty
    sha256: str  # of all files of the folder and their paths
    folder: Path


class _AgentFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1, max_length=50)
    name: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._+-]*)?$")
    about: str = Field(default="", max_length=200)

    @field_validator("command", "about")
    @classmethod
    def _printable(cls, value: str | list[str]) -> str | list[str]:
        parts = [value] if isinstance(value, str) else value
        if not all(part.isprintable() for part in parts) or (isinstance(value, list) and not value[0]):
            raise ValueError("allowed is printable text in one line")
        return value


def read_agent(folder: Path) -> AgentSpec:
    """Read and check ``agent.yaml`` and hash the folder; nothing is run.

    Raises:
        PlayerError: no such file, one that says something else, or a folder that is too large or not self-contained.
    """
    path = folder / AGENT_FILE
    data = read_plain_file(path, MAX_AGENT_FILE_BYTES)
    try:
        # Everything is text to this loader: no tag, date or number of the file is interpreted.
        content = yaml.load(data.decode(), Loader=yaml.BaseLoader)
        told = _AgentFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = shown(".".join(map(str, first["loc"])))
        raise PlayerError(f"{path}: {where + ': ' if where else ''}{shown(first['msg'], 200)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlayerError(f"{path}: not valid yaml: {' '.join(str(error).split())[:200]}") from error
    name = told.name or folder.resolve().name
    return AgentSpec(name, tuple(told.command), told.about, folder_sha256(folder), folder.resolve())


@contextmanager
def fresh_copy(folder: Path, name: str) -> Iterator[AgentSpec]:
    """An agent called ``name`` in a copy of its folder that ends with the block: it may write there what it likes.

    Raises:
        PlayerError: as :func:`read_agent`.
        ScratchError: there is no room for a copy.
    """
    with Scratch() as scratch:
        home = scratch / name
        try:
            copy_folder(folder, home)
        except OSError as error:
            raise ScratchError(f"{scratch}: {error.strerror}; allowed is a TMPDIR with room") from error
        yield replace(read_agent(home), name=name)


def folder_sha256(folder: Path) -> str:
    """Hash over the relative path, kind and content of everything in ``folder``.

    Raises:
        PlayerError: more than :data:`MAX_FOLDER_BYTES` or :data:`MAX_FOLDER_FILES`, folders in more than
            :data:`MAX_FOLDER_DEPTH` others, a link that leads out of the folder, something that is neither file,
            folder nor link, or a file that cannot be read.
    """
    digest = hashlib.sha256()
    for part in _parts(folder):
        name = os.fsencode(part.path.relative_to(folder).as_posix())
        digest.update(f"{part.kind} {len(name)} {len(part.data)}\n".encode() + name + part.data)
    return digest.hexdigest()


def copy_folder(folder: Path, target: Path) -> None:
    """Copy everything that :func:`folder_sha256` reads into the new folder ``target``; programs stay programs.

    Raises:
        PlayerError: as :func:`folder_sha256`.
        OSError: ``target`` cannot be written.
    """
    target.mkdir(parents=True)
    for part in _parts(folder):
        place = target / part.path.relative_to(folder)
        if part.kind == "folder":
            place.mkdir()
        elif part.kind == "link":
            place.symlink_to(os.fsdecode(part.data))
        else:
            place.write_bytes(part.data)
            place.chmod(part.mode & 0o777 | 0o600)


class _Part(NamedTuple):
    """A file, folder or link of an agent."""

    path: Path
    kind: str
    data: bytes = b""
    mode: int = 0


def _parts(folder: Path) -> Iterator[_Part]:
    total = 0
    for path in _paths(folder):
        try:
            part = _part(path, folder)
        except OSError as error:
            raise PlayerError(f"{path}: cannot be read: {error.strerror}") from error
        total += len(part.data)
        if total > MAX_FOLDER_BYTES:
            raise PlayerError(f"{folder}: more than {MAX_FOLDER_BYTES} bytes; allowed is at most that")
        yield part


def _paths(folder: Path) -> list[Path]:
    """All paths in ``folder``, those of folders before what is in them."""
    # Not ``rglob``: that passes over folders that it may not read, and ends in a RecursionError in deep ones.
    paths: list[Path] = []
    waiting = [(folder, 1)]
    while waiting:
        here, depth = waiting.pop()
        if depth > MAX_FOLDER_DEPTH:
            raise PlayerError(f"{folder}: folders nested more than {MAX_FOLDER_DEPTH} deep; allowed is at most that")
        try:
            with os.scandir(here) as found:
                entries = list(islice(found, MAX_FOLDER_FILES + 1))
        except OSError as error:
            raise PlayerError(f"{here}: cannot be read: {error.strerror}") from error
        paths += [here / entry.name for entry in entries]
        if len(paths) > MAX_FOLDER_FILES:
            raise PlayerError(f"{folder}: more than {MAX_FOLDER_FILES} files; allowed is at most that")
        waiting += [(here / entry.name, depth + 1) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(paths)


def _part(path: Path, folder: Path) -> _Part:
    if not path.is_symlink():
        if path.is_dir():
            return _Part(path, "folder")
        return _Part(path, "file", read_plain_file(path, MAX_FOLDER_BYTES), path.stat().st_mode)
    link = path.readlink()
    # An absolute one leads out of every copy of the folder.
    if link.is_absolute() or not Path(os.path.realpath(path)).is_relative_to(folder.resolve()):
        raise PlayerError(f"{path}: a link that leads out of the folder; allowed is what lies in it")
    return _Part(path, "link", os.fsencode(link))
