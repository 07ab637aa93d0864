"""Folders with an external agent: what ``agent.yaml`` says, and one hash over all files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from multigrid_rl.players.cards import PlayerError, read_plain_file

AGENT_FILE = "agent.yaml"
MAX_AGENT_FILE_BYTES = 10_000
MAX_FOLDER_BYTES = 50_000_000
MAX_FOLDER_FILES = 5_000


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
        where = ".".join(map(str, first["loc"]))
        raise PlayerError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlayerError(f"{path}: not valid yaml: {' '.join(str(error).split())[:200]}") from error
    name = told.name or folder.resolve().name
    return AgentSpec(name, tuple(told.command), told.about, folder_sha256(folder), folder.resolve())


def folder_sha256(folder: Path) -> str:
    """Hash over the relative path, kind and content of everything in ``folder``.

    Raises:
        PlayerError: more than :data:`MAX_FOLDER_BYTES` or :data:`MAX_FOLDER_FILES`, a link that leads out of the
            folder, something that is neither file, folder nor link, or a file that cannot be read.
    """
    digest = hashlib.sha256()
    total = 0
    paths = list(islice(folder.rglob("*"), MAX_FOLDER_FILES + 1))
    if len(paths) > MAX_FOLDER_FILES:
        raise PlayerError(f"{folder}: more than {MAX_FOLDER_FILES} files; allowed is at most that")
    for path in sorted(paths):
        name = os.fsencode(path.relative_to(folder).as_posix())
        kind, data = _content(path, folder)
        total += len(data)
        if total > MAX_FOLDER_BYTES:
            raise PlayerError(f"{folder}: more than {MAX_FOLDER_BYTES} bytes; allowed is at most that")
        digest.update(f"{kind} {len(name)} {len(data)}\n".encode() + name + data)
    return digest.hexdigest()


def _content(path: Path, folder: Path) -> tuple[str, bytes]:
    if not path.is_symlink():
        return ("folder", b"") if path.is_dir() else ("file", read_plain_file(path, MAX_FOLDER_BYTES))
    if not Path(os.path.realpath(path)).is_relative_to(folder.resolve()):
        raise PlayerError(f"{path}: a link that leads out of the folder; allowed is what lies in it")
    return "link", os.fsencode(path.readlink())
