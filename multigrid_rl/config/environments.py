"""From a run's configuration to the recipe for its environments, whatever their kind."""

from typing import Any

from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import EnvFactory


def env_factory(config: RunConfig, hashes: dict[str, str] | None = None) -> EnvFactory:
    """Return the recipe for a run's environments; ``hashes``: required sha256 of frozen players, by name.

    Raises:
        ConfigError: a setting that this kind of environments does not support.
    """
    scenario, train, kind = config.scenario, config.train, config.scenario.kind
    for key, value, wanted, missing in (
        ("train.bonus", train.bonus, "{}", "events to weigh"),
        ("train.shaping", train.shaping, "null", "events to hand to a function"),
        ("scenario.seats", scenario.seats, "{}", "opponents, every agent learns"),
    ):
        if value and not kind.board:
            raise ConfigError(expected(key, f"{wanted}, as scenario={scenario.name} has no {missing}", value))
    return kind.factory(config, hashes or {})


def env_signature(scenario: ScenarioConfig) -> dict[str, Any] | None:
    """Return the environment's entry in a card; ``None`` for the red/blue-door game."""
    return None if scenario.kind.board else scenario.model_dump(include={"package", "env_id", "env_args", "agents"})
