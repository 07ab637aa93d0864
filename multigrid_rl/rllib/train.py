"""The one training loop: build, iterate, record, checkpoint, judge."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from multigrid_rl.config import RunConfig, available_cpus
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import CENTRAL, network_of
from multigrid_rl.players.cards import write_player
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.sampling import sample
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.callbacks import ROW
from multigrid_rl.rllib.loss import Rows, Weighting, ppo_loss
from multigrid_rl.rllib.record import RunFolder
from multigrid_rl.rllib.trained import Trained
from multigrid_rl.sizes import Sizes

#: Called after each iteration with its row and the gate keeper.
Observer = Callable[[dict[str, Any], GateKeeper], None]


def train(config: RunConfig, folder: RunFolder, observe: Observer, interrupted: Callable[[], bool]) -> dict[str, Any]:
    """Train until the budget is spent, the gates are held, or ``interrupted()``; returns the verdict.

    Raises:
        PlayerError: an opponent's file changed since it was announced.
    """
    opponents = folder.provenance["opponents"]
    hashes = {row["name"]: row["sha256"] for row in opponents if row["sha256"]}
    torch.set_num_threads(Sizes(config, {}).learner_threads)
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # it greets every run with advice for its own defaults
    warm_up(config)
    with ray_session(), algorithm_of(config, hashes) as algorithm:
        keeper = algorithm.keeper
        last_checkpoint, ended = 0, None
        while ended is None:
            row = algorithm.train()[ROW]
            algorithm.clock.begin()
            folder.record(row)
            observe(row, keeper)
            algorithm.clock.lap("metrics")
            ended = _ended(config, row, keeper, interrupted)
            if ended or algorithm.env_steps - last_checkpoint >= config.train.checkpoint_every:
                checkpoint(algorithm, config, folder)
                algorithm.clock.lap("checkpoint")
                last_checkpoint = algorithm.env_steps
        verdict = {
            **keeper.verdict(),
            "ended": ended,
            "scenario": config.scenario.name,
            "scheme": config.scheme,
            "experiment": config.experiment,
            "seed": config.seed,
            "env_steps": row["env_steps"],
            "policy_updates": row["policy_updates"],
            "seconds": row["seconds"],
            "env_steps_per_s": row["env_steps"] / row["seconds"],
            "opponents": opponents,
            "weights": algorithm.fingerprints(),
            "checkpoint": str(folder.checkpoint_path(algorithm.env_steps).relative_to(folder.path)),
        }
        folder.verdict(verdict)
    return verdict


def _ended(config: RunConfig, row: dict[str, Any], keeper: GateKeeper, interrupted: Callable[[], bool]) -> str | None:
    if config.train.stop_when_held and keeper.held:
        return "held"
    if row["env_steps"] >= config.train.until:
        return "until"
    return "interrupted" if interrupted() else None


def warm_up(config: RunConfig) -> None:
    """Compile or load every kernel before the clock runs and before env runners would all compile them at once."""
    env = env_factory(config).build(1, 0)
    actions = {}
    for unit in env.cast.units:
        network: Any = network_of(unit, config.model.model_dump())
        # Two rows that are alike: there are kernels for repetitions.
        tokens = torch.from_numpy(np.repeat(env.observations()[unit.name], 2, axis=0))
        memory = (torch.zeros(2, network.state_size),) if network.state_size else ()
        logits, values, *_ = network(tokens, *memory)
        seats = len(unit.seats)
        nothing = torch.zeros(2)
        rows = Rows(torch.zeros(2, seats, dtype=torch.int64), nothing, nothing, nothing, torch.ones(2, seats).bool())
        loss, _ = ppo_loss(logits.view(2, seats, -1), values, rows, Weighting(0.2, 0.5, 0.0))
        torch.autograd.backward(loss)
        drawn = sample(logits.detach().numpy().reshape(2 * seats, -1), np.zeros((2 * seats, 1)))
        actions[unit.name] = drawn.actions[None, :seats]
    env.step(actions)


@contextmanager
def ray_session() -> Iterator[None]:
    """A local Ray session for as long as it is needed; one that is already there is used and left alone."""
    if ray.is_initialized():
        yield
        return
    # "local": a cluster that somebody else started on this machine is none of ours.
    ray.init("local", num_cpus=available_cpus(), include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def algorithm_of(config: RunConfig, hashes: dict[str, str]) -> Iterator[Trained]:
    """The algorithm of a run, stopped afterwards."""
    algorithm = algorithm_config(config, env_factory(config, hashes)).build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


def checkpoint(algorithm: Trained, config: RunConfig, folder: RunFolder) -> None:
    """Write RLlib's state and every module as a player; a kill half-way leaves the checkpoints before untouched."""
    unfinished = folder.path / "checkpoints" / "unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    algorithm.save_to_path(str((unfinished / "rllib").resolve()))
    if config.scenario.game is not None:
        for module, weights in algorithm.learner_weights().items():
            _export(unfinished / "players" / module, module, weights, algorithm, config, folder)
    folder.commit_checkpoint(unfinished, algorithm.env_steps)


def _export(
    target: Path, module: str, weights: dict[str, Any], algorithm: Trained, config: RunConfig, folder: RunFolder
) -> None:
    """Write one network as a player: what its actor reads, and nothing that only a central critic has."""
    cast, spec = algorithm.config.env_config["factory"].cast, config.scenario.spec
    unit = cast.unit_of(module)
    prefix = "net."
    named = {name.removeprefix(prefix): torch.as_tensor(value) for name, value in weights.items()}
    card = {
        "name": f"{config.scenario.name}-{module}",
        "architecture": config.model.model_dump(mode="json"),
        "observation": {"view_size": spec.view_size, "categories": list(unit.categories)},
        "actions": unit.choices,
        "members": len(unit.seats),
        "scenario": config.scenario.name,
        "seats": [seat for other in cast.units if other.module == module for seat in other.seats],
        "provenance": {**folder.provenance, "env_steps": algorithm.env_steps},
    }
    write_player(target, {name: value for name, value in named.items() if name != CENTRAL}, card)
