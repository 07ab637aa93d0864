"""A search folder tells its own story: what was asked, every trial's run folder, what came of it, and who won."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from multigrid_rl.config import ConfigError
from multigrid_rl.rllib.record import circumstances, locked
from multigrid_rl.search.plans import Outcome, Spec
from multigrid_rl.search.settings import AshaSettings, PbtSettings, ThreeStageSettings, parse_settings
from multigrid_rl.search.space import Space, read_yaml, space_of

Row = TypeVar("Row")
AnySettings = ThreeStageSettings | AshaSettings | PbtSettings
_ASKED, _BEGUN, _OUTCOMES = "search.yaml", "begun.jsonl", "outcomes.jsonl"
_KEYS = {"name", "seed", "base", "settings", "space"}


@dataclass(frozen=True)
class Asked:
    """What a search was asked for.

    Attributes:
        name: of the ready-made search.
        seed: of all its draws.
        settings: its values.
        space: what varies, around which overrides.
        content: the space as its yaml has it.
    """

    name: str
    seed: int
    settings: AnySettings
    space: Space
    content: dict[str, Any]


class SearchFolder:
    """Reads and writes one search's folder; made by :meth:`create` and :meth:`reopen`.

    Attributes:
        path: the folder.
        asked: what the search was asked for.
        provenance: command, commit, versions, machine.
    """

    def __init__(self, path: Path, asked: Asked, provenance: dict[str, Any]) -> None:
        self.path = path
        self.asked = asked
        self.provenance = provenance

    @classmethod
    def create(cls, path: Path, asked: Asked) -> SearchFolder:
        """A new search's folder.

        Raises:
            ConfigError: it exists already, or cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError as error:
            raise ConfigError(
                f"{path}: exists already; allowed is a folder that does not exist, or --resume"
            ) from error
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; allowed is a folder that can be made") from error
        written = {
            "name": asked.name,
            "seed": asked.seed,
            "base": list(asked.space.base),
            "settings": asked.settings.model_dump(mode="json"),
            "space": {"name": asked.space.name, "variables": asked.content},
        }
        (path / _ASKED).write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
        folder = cls(path, asked, circumstances())
        folder.write_json("provenance.json", folder.provenance)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> SearchFolder:
        """The folder of a search that is to go on.

        Raises:
            ConfigError: no search folder, or a damaged one.
        """
        if not (path / _ASKED).is_file():
            raise ConfigError(f"--resume {path}: no {_ASKED} in it; allowed is the folder of a search")
        content = read_yaml(path / _ASKED)
        if set(content) != _KEYS:
            raise ConfigError(f"{path / _ASKED}: keys are {', '.join(content)}; allowed is the file that search wrote")
        space = space_of(content["space"]["name"], content["space"]["variables"], content["base"])
        settings = parse_settings(content["settings"])
        asked = Asked(content["name"], content["seed"], settings, space, content["space"]["variables"])
        try:
            provenance = json.loads((path / "provenance.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path / 'provenance.json'}: damaged; allowed is the file that search wrote") from error
        return cls(path, asked, provenance)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from searching in the same folder meanwhile.

        Raises:
            ConfigError: one does.
        """
        with locked(self.path / "lock"):
            for name in (_BEGUN, _OUTCOMES):
                _mend(self.path / name)
            self.stop_file.unlink(missing_ok=True)
            yield

    def run_path(self, trial: str) -> Path:
        """Run folder of a trial."""
        return self.path / "trials" / trial

    @property
    def stop_file(self) -> Path:
        """Trials end with a checkpoint when they see it."""
        return self.path / "stop"

    def begin(self, spec: Spec) -> None:
        """Write a trial down for good, before it starts: its run folder is of this configuration and no other."""
        self._append(_BEGUN, asdict(spec))

    def record(self, outcome: Outcome) -> None:
        """Write an outcome down for good, before anything is made of it."""
        self._append(_OUTCOMES, outcome.as_data())

    def _append(self, name: str, data: dict[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def begun(self) -> list[Spec]:
        """All trials that were ever started, in this order.

        Raises:
            ConfigError: a line is damaged.
        """
        return self._read(_BEGUN, lambda data: Spec(**data))

    def outcomes(self) -> list[Outcome]:
        """All recorded outcomes, in the order in which trials ended.

        Raises:
            ConfigError: a line is damaged.
        """
        return self._read(_OUTCOMES, Outcome.from_data)

    def _read(self, name: str, made_of: Callable[[dict[str, Any]], Row]) -> list[Row]:
        path = self.path / name
        if not path.exists():
            return []
        found = []
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break  # torn in two by a kill, or half written at this moment
            try:
                found.append(made_of(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"{path}: line {number}: damaged; allowed is what search wrote") from error
        return found

    def write_json(self, name: str, content: Any) -> None:
        """Write a file completely, or not at all."""
        self.write_text(name, json.dumps(content, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file completely, or not at all."""
        unfinished = self.path / f".{name}.tmp"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path / name)


def _mend(path: Path) -> None:
    """Cut off a last line that a kill tore in two: the next one is to start a line of its own."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
