"""What a search is asked for: its kind with its settings, whose values are in ``configs/search/``, space and seed."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from multigrid_rl.config.compose import compose
from multigrid_rl.config.overrides import parse, put
from multigrid_rl.config.recipes import names_in, read_config_file
from multigrid_rl.config.scenario import Part, env_factory
from multigrid_rl.runs.gating import gates_of
from multigrid_rl.search.space import OWN_KEYS, Space, load_space
from multigrid_rl.text import ConfigError, expected, first_error, unknown


class SearchPart(Part):
    """What all kinds share."""

    kind: str
    space: str
    #: Trials at a time; 0: as many as there are cores.
    max_concurrent: int = Field(default=0, ge=0)
    #: Environment steps between two reports of a trial. Fewer: quicker Ctrl-C and decisions, more traffic.
    report_every: int = Field(default=25_000, ge=1)


class Broad(Part):
    """Stage 1: evenly drawn configurations on short runs."""

    trials: int = Field(ge=1)
    until: int = Field(ge=1)


class Refine(Part):
    """Stage 2: configurations that TPE proposes by the outcomes of stage 1."""

    trials: int = Field(ge=0)
    until: int = Field(ge=1)


class Confirm(Part):
    """Stage 3: the best configurations on long runs over seeds that no stage before has seen."""

    candidates: int = Field(ge=1)
    attempts: int = Field(ge=1)
    seeds: int = Field(ge=1)
    until: int = Field(ge=1)


class ThreeStageSettings(SearchPart):
    """Broad, refine, confirm."""

    kind: Literal["three-stage"]
    broad: Broad
    refine: Refine
    confirm: Confirm


class AshaSettings(SearchPart):
    """Optuna's TPE proposes (Bergstra et al. 2011), its asynchronous successive halving ends what lags behind.

    https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization, https://arxiv.org/abs/1810.05934
    """

    kind: Literal["asha"]
    trials: int = Field(ge=1)
    until: int = Field(ge=1)
    grace: int = Field(ge=1)
    reduction: int = Field(ge=2)
    startup: int = Field(ge=1)

    @model_validator(mode="after")
    def _grace_fits(self) -> "AshaSettings":
        if self.grace > self.until:
            raise ValueError(expected("grace", f"at most until={self.until}", self.grace))
        return self


class PbtSettings(SearchPart):
    """Population based training (Jaderberg et al. 2017) with truncation selection."""

    kind: Literal["pbt"]
    population: int = Field(ge=2)
    generations: int = Field(ge=1)
    interval: int = Field(ge=1)
    quantile: float = Field(gt=0, le=0.5)
    width: float = Field(gt=0, le=1)
    resample: float = Field(ge=0, le=1)


#: What may change while a policy learns: nothing that weights, games or batches have the shape of.
MAY_CHANGE = (
    *("train.lr", "train.lr_final", "train.entropy_coef", "train.entropy_final", "train.clip", "train.vf_coef"),
    *("train.gamma", "train.lam", "train.grad_clip", "train.epochs", "train.minibatch_size"),
)
_KINDS: dict[str, type[SearchPart]] = {"three-stage": ThreeStageSettings, "asha": AshaSettings, "pbt": PbtSettings}


def load_settings(name: str, changes: dict[str, Any]) -> SearchPart:
    """Read a ready-made search and change values of it.

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
    if kind not in _KINDS:
        raise ConfigError(unknown("search.kind", kind, _KINDS))
    try:
        return _KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"search.{first_error(error, quoting=True)}") from error


@dataclass(frozen=True)
class SearchRequest:
    """What a search was asked for."""

    name: str  # of the ready-made search
    seed: int  # of all its draws
    settings: SearchPart
    space: Space  # what varies, around which overrides

    @classmethod
    def parse(cls, overrides: list[str]) -> "SearchRequest":
        """Read the overrides of a command, and check everything that would make every trial fail.

        Raises ``ConfigError`` or ``PlayerError``: a mistake in what was asked for, before anything starts.
        """
        name, changes, seed, base = sort_overrides(overrides)
        settings = load_settings(name, changes)
        space = load_space(settings.space, base)
        # One configuration out of the middle stands for all.
        config = compose(space.overrides({variable.key: variable.at(0.5) for variable in space.variables}))
        if not config.scenario.kind.board and any(v.key.startswith("train.bonus.") for v in space.variables):
            wanted = f"one without train.bonus for scenario={config.scenario.name}, such as control"
            raise ConfigError(expected("search.space", wanted, space.name))
        if isinstance(settings, PbtSettings):
            fixed = [key for variable in space.variables for key in variable.keys if key not in MAY_CHANGE]
            if fixed:
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
        """Read it back. Raises ``ConfigError``: it holds what this version does not allow."""
        space = Space.build(data["space"], data["variables"], data["base"])
        settings = parse_settings(data["settings"].get("kind"), data["settings"])
        return cls(data["search"], data["seed"], settings, space)

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, for ``search.yaml``."""
        space, settings = self.space, self.settings.model_dump(mode="json")
        data = {"search": self.name, "settings": settings, "space": space.name, "variables": space.content}
        return {**data, "base": list(space.base), "seed": self.seed}


def sort_overrides(overrides: list[str]) -> tuple[str, dict[str, Any], int, list[str]]:
    """Split overrides into the search's name, changes of its values, its seed, and what all trials share.

    Raises ``ConfigError``: no override at all, or one of what a search sets itself.
    """
    own, base, changes = {"search": "three-stage", "seed": 0}, [], {}
    for override in overrides:
        ((key, value),) = parse([override]).items()
        if key in own:
            own[key] = value
        elif key.startswith("search."):
            changes[key.removeprefix("search.")] = value
        elif key in OWN_KEYS or key == "address" or key.partition(".")[0] == "cluster":
            instead = "; a cluster is named by --address" if key in ("address", "cluster", "cluster.address") else ""
            raise ConfigError(f"{override}: a search sets {key} itself, expected overrides without it{instead}")
        else:
            base.append(override)
    name, seed = str(own["search"]), own["seed"]
    if not isinstance(seed, int) or not 0 <= seed < 2**31 - 1000:
        raise ConfigError(f"seed: expected a whole number from 0, below 2**31 - 1000, got {seed}")
    if not any(override.startswith("experiment=") for override in base):
        # A recipe is what a search is to find, not where it starts from.
        base.append("experiment=none")
    return name, changes, seed, base
