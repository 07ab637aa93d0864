"""The settings of a search: one schema for each kind, values in ``configs/search/``."""

from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from multigrid_rl.config.overrides import put
from multigrid_rl.config.recipes import names_in, read_config_file
from multigrid_rl.config.scenario import Part
from multigrid_rl.text import ConfigError, expected, first_error, unknown


class Settings(Part):
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


class ThreeStageSettings(Settings):
    """Broad, refine, confirm."""

    kind: Literal["three-stage"]
    broad: Broad
    refine: Refine
    confirm: Confirm


class AshaSettings(Settings):
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


class PbtSettings(Settings):
    """Population based training (Jaderberg et al. 2017) with truncation selection."""

    kind: Literal["pbt"]
    population: int = Field(ge=2)
    generations: int = Field(ge=1)
    interval: int = Field(ge=1)
    quantile: float = Field(gt=0, le=0.5)
    width: float = Field(gt=0, le=1)
    resample: float = Field(ge=0, le=1)


_KINDS: dict[str, type[Settings]] = {"three-stage": ThreeStageSettings, "asha": AshaSettings, "pbt": PbtSettings}


def load_settings(name: str, changes: dict[str, Any]) -> Settings:
    """Read a ready-made search and change values of it.

    Args:
        name: file of ``configs/search/``.
        changes: dotted key -> value, for example ``broad.trials`` -> 8.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    if name not in names_in("search"):
        raise ConfigError(unknown("search", name, names_in("search")))
    values = read_config_file("search", name)
    kind = values["kind"]
    for key, value in changes.items():
        put(values, key, value)
    return parse_settings(kind, values)


def parse_settings(kind: str, values: dict[str, Any]) -> Settings:
    """Validate the values of a kind of search. Raises ``ConfigError``: a key or value that is not allowed."""
    if kind not in _KINDS:
        raise ConfigError(unknown("search.kind", kind, _KINDS))
    try:
        return _KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"search.{first_error(error, quoting=True)}") from error
