"""A search folder: the request, every trial's run folder, outcomes and the winner."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from optuna.pruners import SuccessiveHalvingPruner

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import parse
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import write_whole
from multigrid_rl.runs.folder import locked
from multigrid_rl.runs.gating import gates_of
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.search.plans import plan_of
from multigrid_rl.search.settings import AshaSettings, Settings, load_settings, parse_settings
from multigrid_rl.search.space import OWN_KEYS, Space, load_space, read_yaml
from multigrid_rl.search.study import STUDY, Record, truncated
from multigrid_rl.text import ConfigError, expected

_REQUEST = "search.yaml"
#: Trials end with a checkpoint when they see this file in the search's folder, and one that sees it in its own.
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
        config = compose(space.overrides({variable.key: variable.at(0.5) for variable in space.variables}))
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
        """Return it as plain data, for ``search.yaml``."""
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
        if (path / "outcomes.jsonl").exists():
            raise ConfigError(f"--resume {path}: expected a search of this version, got one of an earlier: start anew")
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

    @cached_property
    def record(self) -> Record:
        """What was begun and what came of it. Raises ``ConfigError``: it is damaged."""
        settings = self.request.settings
        pruner = None
        if isinstance(settings, AshaSettings):
            pruner = SuccessiveHalvingPruner(min_resource=settings.grace, reduction_factor=settings.reduction)
        return Record(self.path / STUDY, self.request.space, self.request.seed, pruner)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from searching in the same folder meanwhile. Raises ``ConfigError``: one does."""
        with locked(self.path / "lock"):
            truncated(self.path / STUDY)
            self.__dict__.pop("record", None)  # read anew
            (self.path / STOP).unlink(missing_ok=True)
            yield

    def write_text(self, name: str, text: str) -> None:
        """Write a file completely, or not at all."""
        write_whole(self.path / name, text.encode())
