"""From a configuration to its environments."""

from __future__ import annotations

from multigrid_rl.config import ConfigError, RunConfig
from multigrid_rl.players.factory import MatchFactory
from multigrid_rl.players.multigrid_factory import MultigridFactory


def env_factory(config: RunConfig, hashes: dict[str, str] | None = None) -> MatchFactory | MultigridFactory:
    """The recipe for a run's environments; ``hashes`` are those that frozen players must have, by name.

    Raises:
        ConfigError: something was asked for that environments of the multigrid package do not have.
    """
    scenario, train = config.scenario, config.train
    if scenario.game is None:
        return _multigrid_factory(config)
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


def _multigrid_factory(config: RunConfig) -> MultigridFactory:
    scenario, train = config.scenario, config.train
    for key, value, lacks, allowed in (
        ("train.bonus", train.bonus, "events to weigh", "{}"),
        ("train.shaping", train.shaping, "events to hand to a function", "null"),
        ("scenario.seats", scenario.seats, "opponents, every agent learns", "{}"),
    ):
        if value:
            raise ConfigError(f"{key}={value}: scenario={scenario.name} has no {lacks}; allowed is {allowed}")
    return MultigridFactory(
        env_id=str(scenario.env_id),
        agents=scenario.agents,
        seed=config.seed,
        scheme=config.scheme,
        shared=config.shared,
    )
