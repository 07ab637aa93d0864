"""The one training loop: build, iterate, record, checkpoint, judge."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multigrid_rl.config import ConfigError, RunConfig
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import CENTRAL, network_of
from multigrid_rl.players.cards import write_player
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.sampling import sample
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.callbacks import ROW
from multigrid_rl.rllib.checkpoints import UNFINISHED, clear, commit, prune, read_state, seal, write_state
from multigrid_rl.rllib.divergence import Divergence, diverged, not_finite
from multigrid_rl.rllib.errors import StorageError
from multigrid_rl.rllib.loss import Rows, Weighting, ppo_loss
from multigrid_rl.rllib.record import RunFolder
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.rllib.trained import Trained
from multigrid_rl.sizes import Sizes

LOG = logging.getLogger(__name__)
#: Called after each iteration with its row and the gate keeper.
Observer = Callable[[dict[str, Any], GateKeeper], None]


def train(
    config: RunConfig,
    folder: RunFolder,
    observe: Observer,
    interrupted: Callable[[], bool],
    start: Path | None = None,
) -> dict[str, Any]:
    """Train until the budget is spent, the gates are held, or ``interrupted()``; returns the verdict.

    Args:
        config: the run. Its values count, also where ``start`` was trained with others.
        folder: takes rows, checkpoints and verdict.
        observe: told of every iteration.
        interrupted: asked after every iteration.
        start: a checkpoint of one's own to go on from: weights, optimisers, counters, random streams, games and gates.

    Raises:
        ConfigError: weights of ``start`` are not finite.
        PlayerError: an opponent's file changed since it was announced.
        RunError: env runners, a learner or the folder failed, or the run diverged; what was reported and the last
            checkpoint stay.
    """
    torch.set_num_threads(Sizes(config, {}).learner_threads)
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # it greets every run with advice for its own defaults
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)  # whoever is lost, the crew says so
    warm_up(config)
    with ray_session(config), algorithm_of(config, folder.hashes) as algorithm:
        row, ended, divergence = folder.last_row(), None, Divergence(folder.path)
        if start is not None:
            restore(algorithm, start)
            if row is not None:  # killed between its last checkpoint and its verdict: that alone is missing
                ended = _ended(config, algorithm, lambda: False)
            if ended is None and algorithm.stage_over():  # it ended in the very iteration in which the run did
                algorithm.enter(algorithm.stage + 1)
        last_checkpoint = algorithm.env_steps
        while ended is None:
            row = algorithm.train()[ROW]
            algorithm.clock.begin()
            folder.record(row)
            observe(row, algorithm.keeper)
            divergence.check(row, algorithm)
            algorithm.clock.lap("metrics")
            ended = _ended(config, algorithm, interrupted)
            if ended is None and algorithm.stage_over():
                algorithm.enter(algorithm.stage + 1)
            if ended or algorithm.env_steps - last_checkpoint >= config.train.checkpoint_every:
                checkpoint(algorithm, config, folder)
                algorithm.clock.lap("checkpoint")
                last_checkpoint = algorithm.env_steps
        assert row is not None
        verdict = verdict_of(algorithm, config, folder, row, ended)
        folder.verdict(verdict)
    return verdict


def verdict_of(
    algorithm: Trained, config: RunConfig, folder: RunFolder, row: dict[str, Any], ended: str
) -> dict[str, Any]:
    """What a run achieved, as ``verdict.json`` tells it; ``row`` is its last one."""
    return {
        **algorithm.keeper.verdict(),
        "ended": ended,
        "scenario": config.scenario.name,
        "scheme": config.scheme,
        "experiment": config.experiment,
        "seed": config.seed,
        "stage": algorithm.stage,
        "stages": len(algorithm.stages),
        "env_steps": row["env_steps"],
        "policy_updates": row["policy_updates"],
        "seconds": row["seconds"],
        "env_steps_per_s": row["env_steps"] / row["seconds"],
        "env_runner_losses": algorithm.env_runner_losses,
        "opponents": folder.provenance["opponents"],
        "weights": algorithm.fingerprints(),
        "checkpoint": str(folder.checkpoint_path(algorithm.env_steps).relative_to(folder.path)),
    }


def _ended(config: RunConfig, algorithm: Trained, interrupted: Callable[[], bool]) -> str | None:
    last_stage = algorithm.stage == len(algorithm.stages) - 1
    if config.train.stop_when_held and last_stage and algorithm.keeper.held:
        return "held"
    if algorithm.env_steps >= config.train.until:
        return "until"
    return "interrupted" if interrupted() else None


def restore(algorithm: Trained, start: Path) -> None:
    """Go on from a checkpoint; says so where the games could not be taken up where they stood.

    Raises:
        ConfigError: its weights are not finite.
    """
    whole = algorithm.restore_run(start / "rllib", read_state(start))
    lost = not_finite(algorithm.learner_weights())
    if lost is not None:
        raise ConfigError(f"{start}: {lost} is not finite; allowed is a checkpoint whose weights are finite")
    if not whole:
        LOG.warning("other env runners than before: weights and gates go on, games start afresh")


def warm_up(config: RunConfig) -> None:
    """Compile or load every kernel before the clock runs and before env runners would all compile them at once."""
    env = env_factory(config).build(1, 0)
    env.observations()
    env.step({unit.name: np.zeros((1, len(unit.seats)), np.int64) for unit in env.cast.units})
    warm_up_networks(config)


def warm_up_networks(config: RunConfig) -> None:
    """Compile or load every kernel of the networks and their loss."""
    for unit in env_factory(config).cast.units:
        network: Any = network_of(unit, config.model.model_dump())
        # Two rows that are alike: there are kernels for repetitions.
        tokens = torch.zeros((2, unit.num_tokens), dtype=torch.uint8)
        memory = (torch.zeros(2, network.state_size),) if network.state_size else ()
        logits, values, *_ = network(tokens, *memory)
        seats = len(unit.seats)
        nothing = torch.zeros(2)
        rows = Rows(torch.zeros(2, seats, dtype=torch.int64), nothing, nothing, nothing, torch.ones(2, seats).bool())
        loss, _ = ppo_loss(logits.view(2, seats, -1), values, rows, Weighting(0.2, 0.5, 0.0))
        torch.autograd.backward(loss)
        sample(logits.detach().numpy().reshape(2 * seats, -1), np.zeros((2 * seats, 1)))


@contextmanager
def algorithm_of(config: RunConfig, hashes: dict[str, str]) -> Iterator[Trained]:
    """The algorithm of a run, stopped afterwards."""
    algorithm = algorithm_config(config, hashes).build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


def checkpoint(algorithm: Trained, config: RunConfig, folder: RunFolder) -> None:
    """Write RLlib's state, the run's own and every module as a player, whole or not at all; remove what is too old.

    Raises:
        DivergedError: there are weights that are not finite; nothing was written.
        StorageError: it could not be written; the checkpoints before are untouched.
    """
    weights_of = algorithm.learner_weights()
    lost = not_finite(weights_of)
    if lost is not None:
        raise diverged(algorithm.env_steps, f"{lost} is not finite", folder.path)
    root = folder.path / "checkpoints"
    unfinished = root / UNFINISHED
    try:
        clear(unfinished)
        unfinished.mkdir(parents=True)
        with algorithm.learning():
            algorithm.save_to_path(str((unfinished / "rllib").resolve()))
        write_state(unfinished, algorithm.run_state())
        scenario = algorithm.stages[algorithm.stage].scenario
        if scenario.game is not None:
            for module, weights in weights_of.items():
                _export(unfinished / "players" / module, module, weights, algorithm, config, folder)
        margin = algorithm.keeper.margin()
        facts = {
            "env_steps": algorithm.env_steps,
            "stage": algorithm.stage,
            "gate_margin": margin if math.isfinite(margin) else None,
            "metrics_bytes": folder.sync_metrics(),
        }
        seal(unfinished, facts)
        commit(unfinished, folder.checkpoint_path(algorithm.env_steps))
    except OSError as error:
        raise StorageError(
            f"{error.filename or unfinished}: {error.strerror or error}: no checkpoint at step "
            f"{algorithm.env_steps:,}; those before it are whole"
        ) from error
    try:
        prune(root, config.train.keep_checkpoints)
    except OSError as error:
        raise StorageError(f"{error.filename or root}: {error.strerror or error}: old checkpoints stay") from error


def _export(
    target: Path, module: str, weights: dict[str, Any], algorithm: Trained, config: RunConfig, folder: RunFolder
) -> None:
    """Write one network as a player: what its actor reads, and nothing that only a central critic has."""
    stage = algorithm.stages[algorithm.stage]
    cast, spec, scenario = stage.factory.cast, stage.scenario.spec, stage.scenario.name
    unit = cast.unit_of(module)
    prefix = "net."
    named = {name.removeprefix(prefix): torch.as_tensor(value) for name, value in weights.items()}
    card = {
        "name": f"{scenario}-{module}",
        "architecture": config.model.model_dump(mode="json"),
        "observation": {"view_size": spec.view_size, "categories": list(unit.categories)},
        "actions": unit.choices,
        "members": len(unit.seats),
        "scenario": scenario,
        "seats": [seat for other in cast.units if other.module == module for seat in other.seats],
        "provenance": {**folder.provenance, "env_steps": algorithm.env_steps},
    }
    write_player(target, {name: value for name, value in named.items() if name != CENTRAL}, card)
