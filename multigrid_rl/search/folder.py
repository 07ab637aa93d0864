"""A search folder: the request, every trial's run folder, outcomes and the winner."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from multigrid_rl.config.compose import ConfigError, compose
from multigrid_rl.config.overrides import parse
from multigrid_rl.files import write_whole
from multigrid_rl.players.factories import env_factory, gates_of
from multigrid_rl.runs.folder import circumstances, locked
from multigrid_rl.search.outcomes import Outcome, TrialSpec
from multigrid_rl.search.plans import plan_of
from multigrid_rl.search.settings import Settings, load_settings, parse_settings
from multigrid_rl.search.space import OWN_KEYS, Space, load_space, read_yaml
from multigrid_rl.text import expected

Row = TypeVar("Row")
_REQUEST, _BEGUN, _OUTCOMES = "search.yaml", "begun.jsonl", "outcomes.jsonl"
#: Trials end with a checkpoint when they see this file.
STOP = "stop"


def run_path(search: Path | str, trial: str) -> Path:
    """Return the run folder of a trial."""
    return Path(search, "trials", trial)


@dataclass(frozen=True)
class SearchRequest:
    """What a search was asked for."""

    name: str  # of the ready-made search
    seed: int  # of all its draws
    settings: Settings
    space: Space  # what varies, around which overrides

    @classmethod
    def parse(cls, overrides: list[str]) -> "SearchRequest":
        """Read the overrides of a command, and check everything that would make every trial fail.

        Raises ``ConfigError`` or ``PlayerError``: a mistake in what was asked for, before anything starts.
        """
        name, changes, seed, base = sort_overrides(overrides)
        settings = load_settings(name, changes)
        space = load_space(settings.space, base)
        plan_of(settings, space, seed)
        # One configuration out of the middle stands for all.
        config = compose(space.overrides({variable.key: 0.5 for variable in space.variables}))
        if not config.scenario.kind.board and any(v.key.startswith("train.bonus.") for v in space.variables):
            wanted = f"one without train.bonus for scenario={config.scenario.name}, such as control"
            raise ConfigError(expected("search.space", wanted, space.name))
        if settings.kind == "pbt" and config.scenario.league is not None:
            wanted = "another one than pbt with a league, as every run makes its own snapshots"
            raise ConfigError(expected("search", wanted, name))
        factory = env_factory(config)
        try:
            factory.load()
            factory.build(1, 0)
            gates = gates_of(config, factory.specs)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if not gates:
            wanted = "some to search for, such as [{metric: return_mean/*, at_least: 475}]"
            raise ConfigError(expected("scenario.gates", wanted, f"none in {config.scenario.name}"))
        return cls(name, seed, settings, space)

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, for ``search.yaml`` and ``results.json``."""
        space, settings = self.space, self.settings.model_dump(mode="json")
        data = {"search": self.name, "settings": settings, "space": space.name, "variables": space.content}
        return {**data, "base": list(space.base), "seed": self.seed}


def sort_overrides(overrides: list[str]) -> tuple[str, dict[str, Any], int, list[str]]:
    """Split overrides into the search's name, changes of its values, its seed, and what all trials share.

    Raises ``ConfigError``: no override at all, or one of what a search sets itself.
    """
    name, seed, changes, base = "three-stage", 0, {}, []
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign:
            raise ConfigError(f"{override}: expected key=value, for example search=asha")
        if key == "search":
            name = value
        elif key.startswith("search."):
            changes[key.removeprefix("search.")] = parse([override])[key]
        elif key == "seed":
            seed = parse([override])["seed"]
            if not isinstance(seed, int) or not 0 <= seed < 2**31 - 1000:
                raise ConfigError(f"seed: expected a whole number from 0, below 2**31 - 1000, got {seed}")
        elif key in OWN_KEYS or key == "address" or key.partition(".")[0] == "cluster":
            instead = "; a cluster is named by --address" if key in ("address", "cluster", "cluster.address") else ""
            raise ConfigError(f"{override}: a search sets {key} itself, expected overrides without it{instead}")
        else:
            base.append(override)
    if not any(override.startswith("experiment=") for override in base):
        # A recipe is what a search is to find, not where it starts from.
        base.append("experiment=none")
    return name, changes, seed, base


class SearchFolder:
    """Reads and writes one search's folder; made by :meth:`create` and :meth:`reopen`."""

    def __init__(self, path: Path, request: SearchRequest, provenance: dict[str, Any]) -> None:
        self.path, self.request = path, request
        self.provenance = provenance  # command, commit, versions, machine

    @classmethod
    def create(cls, path: Path, request: SearchRequest) -> "SearchFolder":
        """Make a new search's folder. Raises ``ConfigError``: it exists already, or cannot be made."""
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError as error:
            raise ConfigError(f"{path}: exists already, expected a folder that does not, or --resume") from error
        except OSError as error:
            raise ConfigError(expected(path, "a folder that can be made", error.strerror)) from error
        folder = cls(path, request, circumstances())
        folder.write_text(_REQUEST, yaml.safe_dump(request.as_data(), sort_keys=False))
        folder.write_text("provenance.json", json.dumps(folder.provenance, indent=1) + "\n")
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "SearchFolder":
        """Open the folder of a search that is to go on. Raises ``ConfigError``: no search folder, or a damaged one."""
        if not (path / _REQUEST).is_file():
            raise ConfigError(f"--resume {path}: expected the folder of a search, got one without {_REQUEST}")
        content = read_yaml(path / _REQUEST)
        if set(content) != {"search", "settings", "space", "variables", "base", "seed"}:
            raise ConfigError(f"{path / _REQUEST}: expected the file that search wrote, got keys {', '.join(content)}")
        try:
            provenance = json.loads((path / "provenance.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path / 'provenance.json'}: damaged, expected the file that search wrote") from error
        space = Space.build(content["space"], content["variables"], content["base"])
        settings = parse_settings(content["settings"])
        return cls(path, SearchRequest(content["search"], content["seed"], settings, space), provenance)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from searching in the same folder meanwhile. Raises ``ConfigError``: one does."""
        with locked(self.path / "lock"):
            for path in (self.path / _BEGUN, self.path / _OUTCOMES):
                # A kill left an incomplete last line: the next one must start on a new line.
                content = path.read_bytes() if path.exists() else b""
                if content and not content.endswith(b"\n"):
                    os.truncate(path, content.rfind(b"\n") + 1)
            (self.path / STOP).unlink(missing_ok=True)
            yield

    def begin(self, spec: TrialSpec) -> None:
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

    def begun(self) -> list[TrialSpec]:
        """Read all trials that were ever started, in this order. Raises ``ConfigError``: a line is damaged."""
        return self._read(_BEGUN, lambda data: TrialSpec(**data))

    def outcomes(self) -> list[Outcome]:
        """Read all recorded outcomes, in the order in which trials ended. Raises ``ConfigError``: a line is damaged."""
        return self._read(_OUTCOMES, Outcome.from_data)

    def _read(self, name: str, parse: Callable[[dict[str, Any]], Row]) -> list[Row]:
        path = self.path / name
        rows = []
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else [], 1):
            if not line.endswith(b"\n"):
                break  # torn in two by a kill, or half written at this moment
            try:
                rows.append(parse(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"{path}: line {number}: damaged, expected what search wrote") from error
        return rows

    def write_text(self, name: str, text: str) -> None:
        """Write a file completely, or not at all."""
        write_whole(self.path / name, text.encode())
