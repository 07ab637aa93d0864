"""The one training loop: build, iterate, record, checkpoint, judge."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE

from multigrid_rl.config import RunConfig, available_cpus
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import token_categories, write_player
from multigrid_rl.players.sampling import sample
from multigrid_rl.rllib.algorithm import BatchPPO
from multigrid_rl.rllib.build import algorithm_config, learner_threads, match_factory
from multigrid_rl.rllib.callbacks import ROW
from multigrid_rl.rllib.record import RunFolder
from multigrid_rl.world.constants import ACTIONS

#: Called after each iteration with its row and the gate keeper.
Observer = Callable[[dict[str, Any], GateKeeper], None]


def train(config: RunConfig, folder: RunFolder, observe: Observer, interrupted: Callable[[], bool]) -> dict[str, Any]:
    """Train until the budget is spent, the gates are held, or ``interrupted()``; returns the verdict.

    Raises:
        PlayerError: an opponent's file changed since it was announced.
    """
    opponents = folder.provenance["opponents"]
    hashes = {row["seat"]: row["sha256"] for row in opponents if row["sha256"]}
    torch.set_num_threads(learner_threads(config))
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # it greets every run with advice for its own defaults
    warm_up(config)
    with ray_session(), algorithm_of(config, hashes) as algorithm:
        keeper: GateKeeper = algorithm.keeper
        last_checkpoint, ended = 0, None
        while ended is None:
            row = algorithm.train()[ROW]
            folder.record(row)
            observe(row, keeper)
            ended = _ended(config, row, keeper, interrupted)
            if ended or algorithm.env_steps - last_checkpoint >= config.train.checkpoint_every:
                checkpoint(algorithm, config, folder)
                last_checkpoint = algorithm.env_steps
        verdict = {
            **keeper.verdict(),
            "ended": ended,
            "scenario": config.scenario.name,
            "seed": config.seed,
            "env_steps": row["env_steps"],
            "policy_updates": row["policy_updates"],
            "seconds": row["seconds"],
            "env_steps_per_s": row["env_steps"] / row["seconds"],
            "opponents": opponents,
            "weights": algorithm.sent_weights,
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
    match = match_factory(config).build(1, 0)
    network = build(config.model.model_dump(), token_categories(match.spec), len(ACTIONS))
    tokens = next(iter(match.observations().values()))
    logits, values = network(torch.from_numpy(np.ascontiguousarray(tokens)))
    (logits.sum() + values.sum()).backward()
    drawn = sample(logits.detach().numpy(), np.zeros((1, 1)))
    match.step(dict.fromkeys(match.seats, drawn.actions))


@contextmanager
def ray_session() -> Iterator[None]:
    """A local Ray session for as long as it is needed; one that is already there is used and left alone."""
    if ray.is_initialized():
        yield
        return
    ray.init(num_cpus=available_cpus(), include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def algorithm_of(config: RunConfig, hashes: dict[str, str]) -> Iterator[BatchPPO]:
    """The algorithm of a run, stopped afterwards."""
    algorithm = algorithm_config(config, match_factory(config, hashes)).build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


def checkpoint(algorithm: BatchPPO, config: RunConfig, folder: RunFolder) -> None:
    """Write RLlib's state and every module as a player; a kill half-way leaves the checkpoints before untouched."""
    unfinished = folder.path / "checkpoints" / "unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    algorithm.save_to_path(str((unfinished / "rllib").resolve()))
    state = algorithm.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
    spec = config.scenario.game.spec()
    for seat, weights in state[COMPONENT_LEARNER][COMPONENT_RL_MODULE].items():
        network = build(config.model.model_dump(), token_categories(spec), len(ACTIONS))
        prefix = "net."
        network.load_state_dict({k.removeprefix(prefix): torch.as_tensor(v) for k, v in weights.items()})
        card = {
            "name": f"{config.scenario.name}-{seat}",
            "architecture": config.model.model_dump(mode="json"),
            "observation": {"view_size": spec.view_size, "categories": token_categories(spec)},
            "actions": len(ACTIONS),
            "scenario": config.scenario.name,
            "seats": [seat],
            "provenance": {**folder.provenance, "env_steps": algorithm.env_steps},
        }
        write_player(unfinished / "players" / seat, network, card)
    folder.commit_checkpoint(unfinished, algorithm.env_steps)
