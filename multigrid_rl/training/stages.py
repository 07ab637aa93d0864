"""A curriculum: games that a run is trained in one after the other, the last of them its own scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from multigrid_rl.config.environments import env_factory
from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.gates import Gate
from multigrid_rl.learn.own import validate_user_code
from multigrid_rl.runs.gating import gates_of
from multigrid_rl.runs.tracker import own_metrics
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import EnvFactory

if TYPE_CHECKING:
    from multigrid_rl.players.catalogue import LoadedPlayer


class Stage(NamedTuple):
    """One game of a run."""

    scenario: ScenarioConfig
    factory: EnvFactory
    gates: list[Gate]
    steps: int | None  # ends after so many environment steps; None: no limit
    held: bool  # ends when its gates are held


def stages_of(config: RunConfig, hashes: dict[str, str] | None = None) -> list[Stage]:
    """Return all stages of a run, at least one: the last is its own scenario and has no end.

    Args:
        config: the run.
        hashes: sha256 that frozen players must have, by name.

    Raises:
        ConfigError: the networks of a stage would not fit those of the run.
    """
    scenarios = [stage.scenario for stage in config.curriculum] + [config.scenario]
    ends = [(stage.steps, stage.held) for stage in config.curriculum] + [(None, False)]
    stages: list[Stage] = []
    for scenario, (steps, held) in zip(scenarios, ends, strict=True):
        stage_config = config.model_copy(update={"scenario": scenario})
        factory = env_factory(stage_config, hashes)
        if not scenario.kind.board:
            factory.load()  # reports an unknown id with its key
        gates = gates_of(stage_config, factory.specs)
        own_metrics(gates)  # refused before anything starts
        stages.append(Stage(scenario, factory, gates, steps, held))
    agents = stages[-1].factory.specs.agents
    for k, stage in enumerate(stages):
        if stage.factory.specs.agents != agents:
            wanted = f"one with view_size, mission_observed and team of {config.scenario.name}, as its networks need"
            raise ConfigError(expected(f"curriculum.{k}.scenario", wanted, stage.scenario.name))
    specs = stages[-1].factory.specs
    for module in specs.modules:
        validate_user_code(specs.agent_of(module), config.model.model_dump(), config.train.functions)
    return stages


def seated_in(stages: Sequence[Stage]) -> dict[str, tuple[LoadedPlayer, ...]]:
    """Return the background players of all stages, each once, by seat. Raises what ``MatchFactory.load`` raises."""
    seats: dict[str, dict[str, LoadedPlayer]] = {}
    for stage in stages:
        for seat, players in stage.factory.load().items():
            for player in players:
                seats.setdefault(seat, {}).setdefault(player.name, player)
    return {seat: tuple(players.values()) for seat, players in seats.items()}
