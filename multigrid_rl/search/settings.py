"""The settings of a search: one schema for each kind, values in ``configs/search/``."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from multigrid_rl.config.scenario import Strict, whole
from multigrid_rl.files import data_root
from multigrid_rl.search.space import read_yaml
from multigrid_rl.text import ConfigError, expected, first_error, unknown


class _Part(Strict):
    model_config = ConfigDict(frozen=True, strict=True)


class _Search(_Part):
    space: str
    #: Trials at a time; 0: as many as there are cores.
    max_concurrent: int = Field(default=0, ge=0)
    #: Environment steps between two reports of a trial. Fewer: quicker Ctrl-C and decisions, more traffic.
    report_every: int = Field(default=25_000, ge=1)


class Broad(_Part):
    """Stage 1: evenly drawn configurations on short runs."""

    trials: int = Field(ge=1)
    until: int = Field(ge=1)


class Refine(_Part):
    """Stage 2: configurations that TPE proposes by the outcomes of stage 1."""

    trials: int = Field(ge=0)
    until: int = Field(ge=1)


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


class PbtSettings(_Search):
    """Population based training (Jaderberg et al. 2017) with truncation selection."""

    kind: Literal["pbt"]
    population: int = Field(ge=2)
    generations: int = Field(ge=1)
    interval: int = Field(ge=1)
    quantile: float = Field(gt=0, le=0.5)
    width: float = Field(gt=0, le=1)
    resample: float = Field(ge=0, le=1)


Settings = ThreeStageSettings | AshaSettings | PbtSettings
_ADAPTER: TypeAdapter[Settings] = TypeAdapter(Annotated[Settings, Field(discriminator="kind")])


def search_names() -> list[str]:
    """List the names of all ready-made searches, sorted."""
    return sorted(path.stem for path in (data_root() / "configs" / "search").glob("*.yaml"))


def load_settings(name: str, changes: dict[str, Any]) -> Settings:
    """Read a ready-made search and change values of it.

    Args:
        name: file of ``configs/search/``.
        changes: dotted key -> value, for example ``broad.trials`` -> 8.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    if name not in search_names():
        raise ConfigError(unknown("search", name, search_names()))
    values = read_yaml(data_root() / "configs" / "search" / f"{name}.yaml")
    places = {key: (values, key) for key, value in values.items() if not isinstance(value, dict) and key != "kind"}
    for part in (part for part in values if isinstance(values[part], dict)):
        places |= {f"{part}.{key}": (values[part], key) for key in values[part]}
    for key, value in changes.items():
        if key not in places:
            raise ConfigError(f"search.{key}: unknown key, expected search.{', search.'.join(places)}")
        node, last = places[key]
        node[last] = whole(value)
    return parse_settings(values)


def parse_settings(values: dict[str, Any]) -> Settings:
    """Validate the values of a search. Raises ``ConfigError``: a key or value that is not allowed, in one line."""
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        kind = f"{values.get('kind')}."  # by which the schema was chosen: the first word of the place
        raise ConfigError(f"search.{first_error(error, quoting=True).removeprefix(kind)}") from error
