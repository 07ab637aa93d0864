"""A search's request and folder, with the run folders of all trials and their record, an Optuna study.

This module uses Optuna's ``ask`` and ``tell``. Tune's ``OptunaSearch`` identifies a trial by a random name of Tune, so
a later session cannot resume it, and it can neither confirm a configuration on other seeds nor start from a checkpoint.
"""

import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from optuna.pruners import NopPruner, SuccessiveHalvingPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import parse, put
from multigrid_rl.config.recipes import names_in, read_config_file
from multigrid_rl.config.scenario import env_factory, validated
from multigrid_rl.files import write_atomic
from multigrid_rl.runs.folder import lock_file
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.runs.reports import gates_of
from multigrid_rl.search.plans import KINDS, AshaSettings, Outcome, PbtSettings, Score, SearchPart, Status, TrialSpec
from multigrid_rl.search.space import RESERVED_KEYS, Space, load_space, read_yaml
from multigrid_rl.text import ConfigError, expected, unknown

_REQUEST, STUDY = "search.yaml", "study.log"
#: Name of a file in the search's folder; trials end with a checkpoint when it exists.
STOP = "stop"
_SPEC, _OUTCOME = "spec", "outcome"
_STATES: dict[Status, TrialState] = {
    "finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL,
}  # fmt: skip


#: Keys that may change during training: they do not affect the shapes of weights, games and batches.
MAY_CHANGE = (
    *("train.lr", "train.lr_final", "train.entropy_coef", "train.entropy_final", "train.clip", "train.vf_coef"),
    *("train.gamma", "train.lam", "train.grad_clip", "train.epochs", "train.minibatch_size"),
)


def load_settings(name: str, changes: dict[str, Any]) -> SearchPart:
    """Read a predefined search and change some of its values.

    Args:
        name: file of ``configs/search/``.
        changes: dotted key -> value, for example ``broad.trials`` -> 8.

    Raises ``ConfigError``: an unknown name or key, or a value that is not allowed.
    """
    if name not in names_in("search"):
        raise ConfigError(unknown("search", name, names_in("search")))
    values = read_config_file("search", name)
    kind = values["kind"]
    for key, value in changes.items():
        put(values, key, value)
    return parse_settings(kind, values)


def parse_settings(kind: str, values: dict[str, Any]) -> SearchPart:
    """Validate the values of a kind of search. Raises ``ConfigError``: a key or value that is not allowed."""
    if kind not in KINDS:
        raise ConfigError(unknown("search.kind", kind, KINDS))
    return validated(KINDS[kind], values, "search")


@dataclass(frozen=True)
class SearchRequest:
    """Settings and space of a search."""

    name: str  # name of the predefined search
    seed: int  # seed of all random choices
    settings: SearchPart
    space: Space  # variables and fixed overrides

    @classmethod
    def parse(cls, overrides: list[str]) -> "SearchRequest":
        """Read the overrides of a command, and check for mistakes that would make every trial fail.

        Raises ``ConfigError`` or ``PlayerError``: a mistake in the overrides, before anything starts.
        """
        name, changes, seed, base = sort_overrides(overrides)
        settings = load_settings(name, changes)
        space = load_space(settings.space, base)
        # Check one configuration from the middle of the space.
        config = compose(space.overrides({variable.key: variable.at(0.5) for variable in space.variables}))
        if not config.scenario.kind.board and any(v.key.startswith("train.bonus.") for v in space.variables):
            wanted = f"one without train.bonus for scenario={config.scenario.name}, such as control"
            raise ConfigError(expected("search.space", wanted, space.name))
        if isinstance(settings, PbtSettings):
            if fixed := [key for variable in space.variables for key in variable.keys if key not in MAY_CHANGE]:
                wanted = f"what can change during a run ({', '.join(MAY_CHANGE)})"
                raise ConfigError(expected(f"space={space.name}", wanted, fixed[0]))
            if config.scenario.league is not None:
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

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "SearchRequest":
        """Read a request from plain data. Raises ``ConfigError``: this version does not allow a value."""
        space = Space.build(data["space"], data["variables"], data["base"])
        settings = parse_settings(data["settings"].get("kind"), data["settings"])
        return cls(data["search"], data["seed"], settings, space)

    def as_data(self) -> dict[str, Any]:
        """Return the request as plain data, for ``search.yaml``."""
        space, settings = self.space, self.settings.model_dump(mode="json")
        data = {"search": self.name, "settings": settings, "space": space.name, "variables": space.content}
        return {**data, "base": list(space.base), "seed": self.seed}


def sort_overrides(overrides: list[str]) -> tuple[str, dict[str, Any], int, list[str]]:
    """Split overrides into the search's name, changes of its values, its seed, and overrides of all trials.

    Raises ``ConfigError``: a word without ``=``, or a key that the search sets.
    """
    search_values, base, changes = {"search": "three-stage", "seed": 0}, [], {}
    for override in overrides:
        ((key, value),) = parse([override]).items()
        if key in search_values:
            search_values[key] = value
        elif key.startswith("search."):
            changes[key.removeprefix("search.")] = value
        elif key in RESERVED_KEYS or key == "address" or key.partition(".")[0] == "cluster":
            instead = "; a cluster is named by --address" if key in ("address", "cluster", "cluster.address") else ""
            raise ConfigError(f"{override}: a search sets {key} itself, expected overrides without it{instead}")
        else:
            base.append(override)
    name, seed = str(search_values["search"]), search_values["seed"]
    if not isinstance(seed, int) or not 0 <= seed < 2**31 - 1000:
        raise ConfigError(f"seed: expected a whole number from 0, below 2**31 - 1000, got {seed}")
    if not any(override.startswith("experiment=") for override in base):
        # The search should find the values that a recipe would set.
        base.append("experiment=none")
    return name, changes, seed, base


class SearchFolder:
    """Reads and writes one search's folder; made by :meth:`create` and :meth:`reopen`."""

    def __init__(self, path: Path, request: SearchRequest, provenance: dict[str, Any]) -> None:
        self.path, self.request = path, request
        self.provenance = provenance  # command, commit, versions, machine

    @classmethod
    def from_overrides(cls, overrides: list[str], path: Path | None) -> "SearchFolder":
        """Make the folder for the overrides of a command. Raises ``ConfigError``, ``PlayerError``."""
        request = SearchRequest.parse(overrides)
        scenario, now = request.space.config.scenario.name, datetime.now()
        return cls.create(path or Path("runs", "search", f"{scenario}-{request.name}-{now:%Y%m%d-%H%M%S}"), request)

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
        write_atomic(path / _REQUEST, yaml.safe_dump(request.as_data(), sort_keys=False).encode())
        write_atomic(path / "provenance.json", (json.dumps(folder.provenance, indent=1) + "\n").encode())
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "SearchFolder":
        """Open the folder of a search to resume. Raises ``ConfigError``: no search folder, or a damaged one."""
        if not (path / _REQUEST).is_file():
            raise ConfigError(f"--resume {path}: expected the folder of a search, got one without {_REQUEST}")
        if (path / "outcomes.jsonl").exists():
            raise ConfigError(f"--resume {path}: expected a search of this version, got one of an earlier: start anew")
        content = read_yaml(path / _REQUEST)
        if set(content) != {"search", "settings", "space", "variables", "base", "seed"}:
            raise ConfigError(f"{path / _REQUEST}: expected the file that search wrote, got keys {', '.join(content)}")
        return cls(path, SearchRequest.from_data(content), read_yaml(path / "provenance.json"))  # as all JSON is yaml

    def run_path(self, trial: str) -> Path:
        """Return the run folder of a trial."""
        return self.path / "trials" / trial

    @cached_property
    def study(self) -> optuna.Study:
        """The record of all trials and their outcomes. Raises ``ConfigError``: it is damaged."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path, settings = self.path / STUDY, self.request.settings
        pruner: optuna.pruners.BasePruner = NopPruner()
        if isinstance(settings, AshaSettings):
            pruner = SuccessiveHalvingPruner(min_resource=settings.grace, reduction_factor=settings.reduction)
        try:
            known: dict[str, Any] = {"direction": "maximize"} if not path.exists() else {}
            make: Any = optuna.create_study if known else optuna.load_study
            storage = JournalStorage(JournalFileBackend(str(path)))
            study: optuna.Study = make(study_name="search", storage=storage, pruner=pruner, **known)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: damaged, expected the record that search wrote") from error
        return study

    def _rows(self) -> dict[str, FrozenTrial]:
        # A kill between Optuna's proposal and the next line leaves a row without a spec, which is ignored.
        rows = self.study.get_trials(deepcopy=False)
        return {row.user_attrs[_SPEC]["id"]: row for row in rows if _SPEC in row.user_attrs}

    def begin(self, spec: TrialSpec) -> TrialSpec:
        """Record a trial once, before it starts; returns it with its values.

        Raises:
            ConfigError: the record has another trial with this id.
            OSError: the record cannot be written.
        """
        facts = {key: value for key, value in asdict(spec).items() if key != "params"}
        row = self._rows().get(spec.id)
        if row is None and spec.params is None:
            self.study.sampler = self._sampler(spec)
            trial = self.study.ask(self.request.space.distributions)
            trial.set_user_attr(_SPEC, facts)
            return replace(spec, params=trial.params)
        if row is None:
            attributes, known = {_SPEC: facts}, self.request.space.distributions
            self.study.add_trial(
                create_trial(state=TrialState.RUNNING, params=spec.params, distributions=known, user_attrs=attributes)
            )
            return spec
        if row.user_attrs[_SPEC] != facts or spec.params not in (None, row.params):
            raise ConfigError(f"trial {spec.id}: expected the values that this version draws, got a record of others")
        return replace(spec, params=row.params)

    def _sampler(self, spec: TrialSpec) -> optuna.samplers.BaseSampler:
        # One stream per trial: draws depend on the seed, the trial's id and earlier outcomes, not on the session.
        seed = int(np.random.default_rng([self.request.seed, *spec.id.encode()]).integers(2**31))
        if not spec.guided:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # "multivariate" is experimental; without it TPE ignores interactions of variables.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)

    def _trial(self, name: str) -> optuna.Trial:
        # Optuna has no public way to a trial that another process created.
        return optuna.Trial(self.study, self._rows()[name]._trial_id)

    def report_progress(self, name: str, env_steps: int, number: float) -> bool:
        """Report the score of a running trial; returns whether the pruner stops it."""
        trial = self._trial(name)
        if env_steps not in self._rows()[name].intermediate_values:
            trial.report(number, env_steps)
        return trial.should_prune()

    def end(self, outcome: Outcome) -> None:
        """Record an outcome, before it is used. Raises ``OSError``."""
        trial, score = self._trial(outcome.spec.id), outcome.score
        facts: dict[str, Any] = {key: getattr(outcome, key) for key in ("env_steps", "seconds", "reason")}
        if score is not None:
            facts |= {"held": score.env_steps_to_held, "margin": score.margin if math.isfinite(score.margin) else None}
        trial.set_user_attr(_OUTCOME, facts)
        value = score.number if score is not None and outcome.status == "finished" else None
        self.study.tell(trial, value, _STATES[outcome.status])

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all trials that ended, in the order of their starts."""
        statuses = {state: status for status, state in _STATES.items()}
        result = []
        for row in self._rows().values():
            if row.state in statuses:
                facts = dict(row.user_attrs[_OUTCOME])
                margin = facts.pop("margin", None)
                score = Score(facts.pop("held"), -math.inf if margin is None else margin) if "held" in facts else None
                spec = TrialSpec(**row.user_attrs[_SPEC], params=row.params)
                result.append(Outcome(spec, statuses[row.state], score, **facts))
        return result

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other searches within the block. Raises ``ConfigError``: another one runs there."""
        with lock_file(self.path / "lock"):
            file = self.path / STUDY
            # A killed search may leave an incomplete line, and a lock.
            if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
                os.truncate(file, text.rfind(b"\n") + 1)
            for leftover in (file.with_name(f"{STUDY}.lock"), self.path / STOP):
                leftover.unlink(missing_ok=True)
            self.__dict__.pop("study", None)  # the next access reads the file again
            yield
