"""Parts of a run from its configuration: settings, and stages of a curriculum, the last with the main scenario."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium.spaces import Box
from torch import nn

from multigrid_rl import jit
from multigrid_rl.config.scenario import ScenarioConfig, env_factory, env_signature
from multigrid_rl.config.schema import RunConfig, to_yaml, trainer_of
from multigrid_rl.cores import available_cpus, cpu_quota, free_memory
from multigrid_rl.fast.threads import ThreadTuner
from multigrid_rl.files import MAX_BYTES
from multigrid_rl.gates import Gate
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.losses import UpdateConfig, objective_of, value_loss_of
from multigrid_rl.models.distributions import Gaussian, distribution_of
from multigrid_rl.models.registry import ArchitectureError, actor_of, network_of
from multigrid_rl.players.cards import packed, signature
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer, Seating
from multigrid_rl.runs.folder import tracker_named
from multigrid_rl.runs.reports import gates_of, try_custom_metrics
from multigrid_rl.tables import STARTS, find
from multigrid_rl.text import ConfigError, expected, shown, unknown
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec, Schedule

LOG = logging.getLogger(__name__)
#: Memory of a row of a batch, at least: copies of its observation, for collector and learner; bytes of the
#: remainder. Runs of 0.3 to 3.2 million rows held 1 (2v2, ctde), 2 (1v1) and 5 times as much (a memory).
OBSERVATION_COPIES, ROW_BYTES = 2, 150


class Stage(NamedTuple):
    """One game of a run."""

    scenario: ScenarioConfig
    factory: EnvFactory
    gates: list[Gate]
    steps: int | None  # ends after so many environment steps; None: no limit
    held: bool  # ends when its gates are held


def load_stages(config: RunConfig, before: Path | None) -> tuple[list[Stage], Seating]:
    """Load and check all players before Ray starts: a damaged file costs a second, not a minute.

    ``before`` is the folder of a run to resume: its opponents must be those that it has been trained against.
    """
    for name in config.trackers:
        kind = tracker_named(name)
        if hasattr(kind, "check"):
            kind.check()
    hashes = None
    if before is not None:
        from multigrid_rl.runs.reader import opponent_hashes  # noqa: PLC0415 - a new run reads none

        hashes = opponent_hashes(before)
    try:
        stages = stages_of(config, hashes)
        check_memory(config, stages[-1].factory.specs)
        seated = seated_players(stages)
        seats = [seat for seat in config.scenario.seats if seat not in config.scenario.kind.learning]
        for name in (name for names in config.scenario.held_out.values() for name in names):
            try:
                Catalogue(config.checkpoint_root()).seat(name, config.scenario.kind.spec, seats[0])
            except ValueError as error:
                raise ConfigError(f"scenario.held_out: {error}") from error
        for stage in stages:
            if not stage.scenario.kind.built_once:
                with jit.using(networks=config.train.compiled):  # an opponent keeps the form that it gets here
                    stage.factory.build(1, 0)
            stage.factory.check_reward()
        trainer_of(config.train.trainer).load(config, stages[-1].factory.specs, before)
        if config.init is not None and before is None:
            find(STARTS, "player")(config, stages[-1].factory.specs)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return stages, seated


def stages_of(config: RunConfig, hashes: dict[str, str] | None = None) -> list[Stage]:
    """Return all stages of a run, at least one: the last has the main scenario and no end.

    ``hashes``: sha256 that frozen players must have, by name.

    Raises:
        ConfigError: the networks of a stage would not fit those of the run.
        PlayerError: a player's file cannot hold the trained network.
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
        try_custom_metrics(gates, factory.specs)  # refused before anything starts
        stages.append(Stage(scenario, factory, gates, steps, held))
    # One network goes through all stages (a curriculum: Bengio et al. 2009, https://doi.org/10.1145/1553374.1553380):
    # its observations and actions must not change between them.
    agents = stages[-1].factory.specs.agents
    for k, stage in enumerate(stages):
        if stage.factory.specs.agents != agents:
            wanted = f"one with view_size, mission_observed and team of {config.scenario.name}, as its networks need"
            raise ConfigError(expected(f"curriculum.{k}.scenario", wanted, stage.scenario.name))
    specs = stages[-1].factory.specs
    for module in config.train.modules:
        if module not in specs.modules:
            raise ConfigError(unknown("train.modules", module, specs.modules))
    for module in specs.modules:
        agent = specs.agent_of(module)
        actor = actor_of(_trial_network(agent, config.model.model_dump(), config.train.functions).state_dict(), agent)
        for stage in stages:
            packed(actor, card_of(stage, module, config))  # a file that could not be read again is not trained
    return stages


def card_of(stage: Stage, module: str, config: RunConfig) -> dict[str, Any]:
    """Return the card of a player that a stage trains."""
    specs, scenario = stage.factory.specs, stage.scenario
    agent = specs.agent_of(module)
    return {
        "name": f"{scenario.name}-{module}",
        "architecture": config.model.model_dump(mode="json"),
        **signature(agent, None if scenario.game is None else scenario.game.view_size),
        **({} if agent.own is None else agent.own.card_fields),
        "scenario": scenario.name,
        "env": env_signature(scenario),
        "seats": [seat for agent in specs.agents if agent.module == module for seat in agent.seats],
        "provenance": {},
    }


def _trial_network(agent: AgentSpec, architecture: dict[str, Any], functions: dict[str, str]) -> nn.Module:
    """Build the network of an agent and find the functions of its training; calls those from outside once.

    ``functions``: by key, as ``TrainConfig.functions`` has them. Raises ``ConfigError``: one line naming the key, what
    is expected and what came.
    """
    if ":" in str(architecture["name"]):
        from multigrid_rl.learn.trial_calls import try_network  # noqa: PLC0415 - only for user code

        network = try_network(agent, architecture)
    else:
        try:
            network = network_of(agent, architecture)
        except ArchitectureError as error:  # keys as a card has them
            raise ConfigError(str(error).replace("architecture.", "model.", 1)) from error
    distribution = distribution_of(agent.action_space, architecture["bound"], network)
    for key, default in (("bound", None), ("log_std", 0.0)):
        if not isinstance(agent.action_space, Box) and architecture[key] != default:
            LOG.warning("model.%s=%s: not read, as actions are choices, not numbers", key, architecture[key])
    if isinstance(distribution, Gaussian) and distribution.bound == "clip" and not distribution.fills_bounds:
        pairs = zip(distribution.low, distribution.high, strict=True)
        bounds = shown(", ".join(f"{low:g} to {high:g}" for low, high in pairs), 80)
        remedy = "tanh or clip3 do, null chooses" if distribution.finite else "an ActionWrapper of yours does"
        said = "model.bound: draws begin around 0, within +-3, and clip does not spread them over %s: %s"
        LOG.warning(said, bounds, remedy)
    objective_of(functions["train.objective"])
    value_loss_of(functions["train.value_loss"])
    if any(":" in name for name in functions.values()):
        from multigrid_rl.learn.trial_calls import try_functions  # noqa: PLC0415 - only for user code

        try_functions(functions, distribution)
    return network


def seated_players(stages: Sequence[Stage]) -> Seating:
    """Return the background players of all stages, each once, by seat. Raises as ``MatchFactory.load``."""
    seats: dict[str, dict[str, LoadedPlayer]] = {}
    for stage in stages:
        for seat, players in stage.factory.load().items():
            for player in players:
                seats.setdefault(seat, {}).setdefault(player.name, player)
    return {seat: tuple(players.values()) for seat, players in seats.items()}


# --- settings of the parts


def update_config(config: RunConfig) -> UpdateConfig:
    """Return the settings of a run's update."""
    train, lr = config.train, config.train.schedules["lr"]
    return UpdateConfig(
        objective=train.objective,
        value_loss=train.value_loss,
        epochs=train.passes,
        minibatch_size=train.minibatch_size,
        **train.schedules,
        vf_coef=train.vf_coef,
        grad_clip=train.grad_clip,
        seed=config.seed,
        v_iters=train.v_iters,
        v_lr=None if train.v_lr is None else Schedule(train.v_lr, train.v_lr * lr.end / lr.start, lr.steps),
        target_kl=train.target_kl,
        standardise=train.standardise,
        warm_up=train.warm_up,
        recompute=estimator_of(config) if train.recompute else None,
        vf_clip=train.vf_clip,
        kl_coef=train.kl_coef,
        kl_target=train.kl_target,
        modules={name: update_config(config_of(config, name)) for name in train.modules},
    )


def config_of(config: RunConfig, module: str) -> RunConfig:
    """Return a run with one network's settings for all networks."""
    return config.model_copy(update={"train": config.train.of(module)})


def estimator_of(config: RunConfig) -> Estimator:
    """Return the estimator of advantages, the weights of log-probabilities."""
    train = config.train
    return Estimator(train.gamma, train.lam, train.psi, train.vf_coef > 0, train.time_limits == "death")


def thread_tuner(config: RunConfig) -> ThreadTuner:
    """Return the tuner of a run's threads; a container's quota may allow fewer cores than visible."""
    # Env runners and other learners have a core each; threads beyond the cores wait for each other at every pass.
    cores = min(available_cpus(), cpu_quota() or math.inf)
    cluster = config.cluster
    return ThreadTuner(config.train.threads, cores, others=cluster.runners, single=bool(cluster.num_learners))


def batch_memory(config: RunConfig, specs: MultiAgentSpec) -> int:
    """Return the least number of bytes of a batch while it is played and learned from."""
    rows = [agent.observation_size * (4 if isinstance(agent.observation_space, Box) else 1) for agent in specs.agents]
    return config.train.batch_size * sum(OBSERVATION_COPIES * size + ROW_BYTES for size in rows)


def check_memory(config: RunConfig, specs: MultiAgentSpec) -> None:
    """Raise ``ConfigError`` for a batch beyond memory, which would swap or be killed, or too long a ``config.yaml``."""
    # Written as yaml only if it might be too large to be read again: JSON takes a hundredth of the time.
    if len(config.model_dump_json()) > MAX_BYTES // 16 and (size := len(to_yaml(config))) > MAX_BYTES:
        wanted = f"at most {MAX_BYTES:,} bytes in config.yaml (an environment may read a file)"
        raise ConfigError(expected("scenario.env_args", wanted, f"{size:,}"))
    needed, free = batch_memory(config, specs), free_memory()
    if free is not None and needed > free:
        batch = f"train.num_envs={config.train.num_envs} x train.num_steps={config.train.num_steps}"
        wanted = f"a batch that fits into {free / 2**30:.1f} GiB of free memory"
        raise ConfigError(expected(batch, wanted, f"at least {needed / 2**30:.1f} GiB"))
