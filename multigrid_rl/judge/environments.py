"""Fresh episodes in environments of other packages: the same judge for players that have no opponents."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config import ConfigError
from multigrid_rl.judge.evaluation import means
from multigrid_rl.players.cards import Card, PlayerError, Source, read_card, read_network, signature
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import LEARNER_PURPOSE
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import run_config
from multigrid_rl.schema import RunConfig
from multigrid_rl.text import expected
from multigrid_rl.types import EnvFactory, EpisodeTable, SeatView
from multigrid_rl.world.streams import Streams

#: Environments that are played side by side.
SIDE_BY_SIDE = 32


@dataclass(frozen=True)
class EnvTarget:
    """A player, or all networks of a run, and the environments that they are judged in."""

    name: str  # what it is called
    factory: EnvFactory  # recipe of the environments
    sources: dict[str, Source]  # folder of the player of each agent


def run_env_target(run: Path, config: RunConfig | None = None, checkpoint: str | None = None) -> EnvTarget:
    """Return the exported policies of a run in its own environment, or in that of ``config``.

    Raises:
        ConfigError, PlayerError: no run, no such checkpoint, a damaged player.
    """
    factory = env_factory(config or run_config(run))
    sources: dict[str, Source] = {
        agent.name: run_player(run, agent.module, checkpoint) for agent in factory.specs.agents
    }
    return EnvTarget(run.name, factory, sources)


def player_env_target(source: Path, config: RunConfig) -> EnvTarget:
    """Return a frozen player in the environment of ``config``, which has one agent.

    Raises:
        PlayerError: a damaged player, one that reads or decides something else, or several agents.
    """
    factory, card = env_factory(config), read_card(source)
    agents = factory.specs.agents
    if len(agents) != 1:
        raise PlayerError(f"{card.name}: expected an environment with one agent, got {len(agents)}")
    wanted = signature(agents[0], card.observation.view_size)
    needed = Card.model_validate({**card.model_dump(), **wanted})
    for part, theirs in wanted.items():
        if getattr(card, part) != getattr(needed, part):
            mine = card.model_dump(exclude_none=True)[part]
            raise PlayerError(f"{card.name} does not fit this environment: {part}: expected {theirs}, got {mine}")
    return EnvTarget(card.name, factory, {agents[0].name: source})


def play(target: EnvTarget, episodes: int, *, seed: int, greedy: bool) -> EpisodeTable:
    """Play whole episodes, equally many in each environment side by side; short ones do not come first.

    Args:
        target: who plays where.
        episodes: how many, at least 1.
        seed: of environments and drawn actions.
        greedy: take the likeliest action, the mean of a Gaussian, instead of drawing.

    Raises:
        PlayerError: a damaged player, or one that does not fit.
    """
    count = min(episodes, SIDE_BY_SIDE)
    each = -(-episodes // count)
    env = target.factory.build(count, 0)
    obs = env.reset(seed)
    cards = {name: read_card(source) for name, source in target.sources.items()}
    players = {
        name: FrozenPlayer.of(card, read_network(target.sources[name], card), greedy=greedy)
        for name, card in cards.items()
    }
    numbers = np.arange(count, dtype=np.int64)
    streams = {name: Streams(seed, numbers, LEARNER_PURPOSE + k) for k, name in enumerate(players)}
    states: dict[str, Any] = {name: player.initial_state(count) for name, player in players.items()}
    kept: list[EpisodeTable] = []
    finished: NDArray[np.int64] = np.zeros(count, np.int64)
    while (finished < each).any():
        actions = {}
        for name, player in players.items():
            view = SeatView(obs[name], None, 0)
            try:
                taken, states[name] = player.act(view, states[name], streams[name])
            except (RuntimeError, IndexError) as error:
                raise PlayerError(f"{player.name}: does not fit this environment: {error}") from error
            actions[name] = taken[:, None] if taken.ndim == 1 else taken
        step = env.step(actions)
        if step.done.any():
            rows = env.drain_episodes()  # in the order of the environments
            kept.append(rows.rows(finished[step.done] < each))
            finished += step.done
            states = {name: player.reset_state(states[name], step.done) for name, player in players.items()}
        obs = step.observations
    return EpisodeTable.concatenate(kept).rows(np.arange(episodes))


def report(target: EnvTarget, *, episodes: int, seed: int, modes: tuple[str, ...]) -> dict[str, Any]:
    """Play in each mode and sum up: returns and lengths with their 95 % intervals.

    Raises:
        ConfigError, PlayerError: see :func:`play`.
    """
    if episodes < 1:
        raise ConfigError(expected("--episodes", "at least 1", episodes))
    began = time.perf_counter()
    rows = {}
    for mode in modes:
        table = play(target, episodes, seed=seed, greedy=mode == "argmax")
        rows[mode] = {"episodes": table.episodes, **means(table.returns.sum(axis=1), table.length.astype(np.float64))}
    seconds = round(time.perf_counter() - began, 3)
    return {"format": 1, "player": target.name, "seed": seed, "seconds": seconds, "modes": rows}
