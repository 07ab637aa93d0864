"""What a search may be told: one schema for each kind, values in ``configs/search/``."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from multigrid_rl.config import ConfigError, data_root
from multigrid_rl.search.space import read_yaml


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class _Search(_Part):
    space: str
    #: Trials at a time; 0: as many as there are cores.
    max_concurrent: int = Field(default=0, ge=0)
    #: Environment steps between two words of a trial to the search. Fewer: quicker Ctrl-C and decisions, more traffic.
    report_every: int = Field(default=25_000, ge=1)


class Broad(_Part):
    """Stage 1: evenly drawn configurations on short runs."""

    trials: int = Field(ge=1)
    until: int = Field(ge=1)


class Refine(_Part):
    """Stage 2: configurations near the best of stage 1."""

    trials: int = Field(ge=0)
    until: int = Field(ge=1)
    best: int = Field(ge=1)
    width: float = Field(gt=0, le=1)


class Confirm(_Part):
    """Stage 3: the best configurations on long runs over seeds that no stage before has seen."""

    candidates: int = Field(ge=1)
    attempts: int = Field(ge=1)
    seeds: int = Field(ge=1)
    until: int = Field(ge=1)


class ThreeStageSettings(_Search):
    """Broad, refine, confirm."""

    kind: Literal["three-stage"]
    broad: Broad
    refine: Refine
    confirm: Confirm


class AshaSettings(_Search):
    """Optuna proposes; asynchronous successive halving (Li et al. 2020) ends what lags behind."""

    kind: Literal["asha"]
    trials: int = Field(ge=1)
    until: int = Field(ge=1)
    grace: int = Field(ge=1)
    reduction: int = Field(ge=2)
    startup: int = Field(ge=1)

    @model_validator(mode="after")
    def _grace_fits(self) -> AshaSettings:
        if self.grace > self.until:
            raise ValueError(f"grace={self.grace}: allowed is at most until={self.until}")
        return self


class PbtSettings(_Search):
    """Population based training (Jaderberg et al. 2017) with truncation selection."""

    kind: Literal["pbt"]
    population: int = Field(ge=2)
    generations: int = Field(ge=1)
    interval: int = Field(ge=1)
    quantile: float = Field(gt=0, le=0.5)
    width: float = Field(gt=0, le=1)
    resample: float = Field(ge=0, le=1)


Settings = Annotated[ThreeStageSettings | AshaSettings | PbtSettings, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[ThreeStageSettings | AshaSettings | PbtSettings] = TypeAdapter(Settings)


def search_names() -> list[str]:
    """Names of all ready-made searches, sorted."""
    return sorted(path.stem for path in (data_root() / "configs" / "search").glob("*.yaml"))


def load_settings(name: str, changes: dict[str, str]) -> ThreeStageSettings | AshaSettings | PbtSettings:
    """Read a ready-made search and change values of it.

    Args:
        name: file of ``configs/search/``.
        changes: dotted key -> value as it was typed, for example ``broad.trials`` -> ``8``.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    if name not in search_names():
        raise ConfigError(f"search={name}: unknown; allowed is {', '.join(search_names())}")
    values = read_yaml(data_root() / "configs" / "search" / f"{name}.yaml")
    for key, text in changes.items():
        _set(values, key, text)
    return parse_settings(values)


def parse_settings(values: dict[str, Any]) -> ThreeStageSettings | AshaSettings | PbtSettings:
    """Validate the values of a search.

    Raises:
        ConfigError: a key or value that is not allowed, in one line.
    """
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        # The first word of the place is the kind, by which the schema was chosen.
        key = ".".join(["search", *map(str, first["loc"][1:])])
        shown = f"={first['input']}" if not isinstance(first["input"], dict) else ""
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "allowed is")
        raise ConfigError(f"{key}{shown}: {said}") from error


def _set(values: dict[str, Any], key: str, text: str) -> None:
    *places, last = key.split(".")
    node: Any = values
    for place in places:
        node = node.get(place) if isinstance(node, dict) else None
    if not isinstance(node, dict) or key == "kind" or (places and last not in node):
        known = ", ".join(_keys(values))
        raise ConfigError(f"search.{key}={text}: unknown key; allowed is {known}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"search.{key}={text}: allowed is a number or a word") from error
    # 2e6 is a word to yaml and a whole number to people.
    if isinstance(value, str):
        with suppress(ValueError):  # another word, as the name of a space
            value = float(value)
    if isinstance(value, float) and value.is_integer() and not isinstance(node.get(last), float):
        value = int(value)
    node[last] = value


def _keys(values: dict[str, Any], place: str = "search") -> list[str]:
    rows = [(f"{place}.{key}", value) for key, value in values.items() if key != "kind"]
    return [name for key, value in rows for name in (_keys(value, key) if isinstance(value, dict) else [key])]
