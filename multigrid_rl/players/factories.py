"""From a configuration to its environments."""

from __future__ import annotations

from typing import Any

from multigrid_rl.config import ConfigError, RunConfig, ScenarioConfig
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.envs.multigrid import MultigridFactory
from multigrid_rl.players.factory import MatchFactory
from multigrid_rl.types import EnvFactory


def env_factory(config: RunConfig, hashes: dict[str, str] | None = None) -> EnvFactory:
    """The recipe for a run's environments; ``hashes`` are those that frozen players must have, by name.

    Raises:
        ConfigError: something was asked for that environments of other packages do not have.
    """
    scenario, train = config.scenario, config.train
    if scenario.game is None:
        return _package_factory(config)
    return MatchFactory(
        spec=scenario.spec,
        opponents=scenario.opponents,
        checkpoints=config.checkpoint_root(),
        hashes=hashes or {},
        seed=config.seed,
        scheme=config.scheme,
        shared=config.shared,
        shaping=train.shaping,
        bonus=train.bonus,
    )


def env_signature(scenario: ScenarioConfig) -> dict[str, Any] | None:
    """Return what a card says of the environment; ``None`` for the red/blue-door game."""
    if scenario.game is not None:
        return None
    return scenario.model_dump(include={"package", "env_id", "env_args", "agents"})


def _package_factory(config: RunConfig) -> EnvFactory:
    scenario, train = config.scenario, config.train
    for key, value, lacks, allowed in (
        ("train.bonus", train.bonus, "events to weigh", "{}"),
        ("train.shaping", train.shaping, "events to hand to a function", "null"),
        ("scenario.seats", scenario.seats, "opponents, every agent learns", "{}"),
    ):
        if value:
            raise ConfigError(f"{key}={value}: scenario={scenario.name} has no {lacks}; allowed is {allowed}")
    if scenario.package == "gymnasium":
        return GymnasiumFactory(env_id=str(scenario.env_id), env_args=scenario.env_args, seed=config.seed)
    return MultigridFactory(
        env_id=str(scenario.env_id),
        num_agents=scenario.agents,
        seed=config.seed,
        scheme=config.scheme,
        shared=config.shared,
    )
