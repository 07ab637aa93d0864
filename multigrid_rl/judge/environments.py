"""Fresh episodes in environments of other packages: the same judge for players that have no opponents."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config import ConfigError
from multigrid_rl.envs.base import AGENT, reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.judge.evaluation import MODES, means
from multigrid_rl.players.cards import PlayerError, Returns, Source, read_card, read_network
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.frozen import FrozenPlayer, check_agent
from multigrid_rl.players.match import LEARNER_PURPOSE
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import check_env, run_config
from multigrid_rl.schema import RunConfig
from multigrid_rl.text import expected
from multigrid_rl.types import BatchedStep, EnvFactory, EpisodeTable, RunError, SeatView
from multigrid_rl.world.streams import Streams

#: Steps after which an episode counts as one that never ends: more than any registered limit of Gymnasium's.
MOST_STEPS = 30_000
#: Environments that are played side by side.
SIDE_BY_SIDE = 32


@dataclass(frozen=True)
class EnvTarget:
    """A player, or all networks of a run, and the environments that they are judged in."""

    name: str  # what it is called
    factory: EnvFactory  # recipe of the environments
    sources: dict[str, Source]  # folder of the player of each agent


class Recording(NamedTuple):
    """One episode in an environment of Gymnasium: what plays it again, and what it paid."""

    number: int  # of the environment under the seed of the games
    reset_seed: int  # that Gymnasium's environment was reset with
    actions: list[Any]  # one a step, as Gymnasium's environment takes them
    total: float  # return


def run_env_target(run: Path, config: RunConfig | None = None, checkpoint: str | None = None) -> EnvTarget:
    """Return the exported policies of a run in its own environment, or in that of ``config``.

    Raises:
        ConfigError, PlayerError: no run, no such checkpoint, a damaged player, or another environment that it does not
            fit.
    """
    if config is None:
        its = run_config(run).scenario
        check_env(run / "config.yaml", its.env_id, its.env_args)
    factory = _asked(config or run_config(run))
    sources: dict[str, Source] = {
        agent.name: run_player(run, agent.module, checkpoint) for agent in factory.specs.agents
    }
    if config is not None:
        for agent in factory.specs.agents:
            check_agent(read_card(sources[agent.name]), agent)
    return EnvTarget(run.name, factory, sources)


def player_env_target(source: Path, config: RunConfig) -> EnvTarget:
    """Return a frozen player in the environment of ``config``, which has one agent.

    Raises:
        PlayerError: a damaged player, one that reads or decides something else, or several agents.
    """
    factory, card = _asked(config), read_card(source)
    agents = factory.specs.agents
    if len(agents) != 1:
        raise PlayerError(f"{card.name}: expected an environment with one agent, got {len(agents)}")
    check_agent(card, agents[0])
    return EnvTarget(card.name, factory, {agents[0].name: source})


def _asked(config: RunConfig) -> EnvFactory:
    if config.scenario.package == "unity":  # its agents come and go: no episode can be asked for
        raise ConfigError(expected("scenario.package", "gymnasium or multigrid, to play episodes", "unity"))
    return env_factory(config)


def play(target: EnvTarget, episodes: int, *, seed: int, greedy: bool) -> EpisodeTable:
    """Play whole episodes, equally many in each environment side by side; short ones do not come first.

    Args:
        target: who plays where.
        episodes: how many, at least 1.
        seed: of environments and drawn actions.
        greedy: take the likeliest action, the mean of a Gaussian, instead of drawing.

    Raises:
        PlayerError: a damaged player, or one that does not fit.
        RunError: an episode that never ends.
    """
    count = min(episodes, SIDE_BY_SIDE)
    # How many each of them plays is settled before the start: to keep whatever ends first would prefer short episodes.
    each = (episodes - np.arange(count) + count - 1) // count
    kept: list[EpisodeTable] = []
    finished: NDArray[np.int64] = np.zeros(count, np.int64)
    for env, _, step in _steps(target, range(count), seed=seed, greedy=greedy):
        if step.done.any():
            rows = env.drain_episodes()  # in the order of the environments
            kept.append(rows.rows((finished < each)[step.done]))
            finished += step.done
            if (finished >= each).all():
                break
    return EpisodeTable.concatenate(kept)


def record(target: EnvTarget, numbers: range, *, seed: int, greedy: bool) -> list[Recording]:
    """Play the first episode of each of the environments ``numbers`` of ``seed``, and keep what was done.

    Raises:
        ConfigError, PlayerError: no environment of Gymnasium; see :func:`play`.
    """
    if not isinstance(target.factory, GymnasiumFactory):
        raise ConfigError(expected(f"{target.name}: scenario.package", "gymnasium, to keep episodes", "multigrid"))
    kept: list[Recording] = []
    for first in range(numbers.start, numbers.stop, SIDE_BY_SIDE):
        part = range(first, min(first + SIDE_BY_SIDE, numbers.stop))
        taken: list[list[Any]] = [[] for _ in part]
        returns: NDArray[np.float64] = np.zeros(len(part))
        going: NDArray[np.bool_] = np.ones(len(part), np.bool_)
        for env, actions, step in _steps(target, part, seed=seed, greedy=greedy):
            native = env.native(actions[AGENT])
            returns[going] += step.rewards[AGENT][going]
            for k in np.flatnonzero(going).tolist():
                taken[k].append(native[k].item() if native.ndim == 1 else native[k])
            going &= ~step.done
            if not going.any():
                break
        kept += [
            Recording(number, reset_seed(seed, number, 0), actions, float(total))
            for number, actions, total in zip(part, taken, returns, strict=True)
        ]
    return kept


def _steps(
    target: EnvTarget, numbers: range, *, seed: int, greedy: bool
) -> Iterator[tuple[Any, dict[str, NDArray[Any]], BatchedStep]]:
    """Yield the environments ``numbers``, actions by agent and what came of them, step after step without an end."""
    count = len(numbers)
    env = target.factory.build(count, numbers.start)
    obs = env.reset(seed)
    cards = {name: read_card(source) for name, source in target.sources.items()}
    players = {
        name: FrozenPlayer.of(card, read_network(target.sources[name], card), greedy=greedy)
        for name, card in cards.items()
    }
    rows = np.array(numbers, np.int64)
    streams = {name: Streams(seed, rows, LEARNER_PURPOSE + k) for k, name in enumerate(players)}
    length: NDArray[np.int64] = np.zeros(count, np.int64)
    states: dict[str, Any] = {name: player.initial_state(count) for name, player in players.items()}
    while True:
        actions = {}
        for name, player in players.items():
            view = SeatView(obs[name], None, 0)
            try:
                taken, states[name] = player.act(view, states[name], streams[name])
            except (RuntimeError, IndexError) as error:
                raise PlayerError(f"{player.name}: does not fit this environment: {error}") from error
            actions[name] = taken[:, None] if taken.ndim == 1 else taken
        step = env.step(actions)
        yield env, actions, step
        length = np.where(step.done, 0, length + 1)
        if length.max() >= MOST_STEPS:
            wanted = "an end of its episodes (env_args={max_episode_steps: 200} sets one)"
            env_id = getattr(target.factory, "env_id", target.name)
            raise RunError(expected(f"env_id={env_id}", wanted, f"none in {MOST_STEPS:,} steps"))
        if step.done.any():
            states = {name: player.reset_state(states[name], step.done) for name, player in players.items()}
        obs = step.observations


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


def returns_of(target: EnvTarget, episodes: int, seed: int) -> dict[str, Returns]:
    """Measure the returns of fresh episodes, by mode, for a player's card."""
    rows = report(target, episodes=episodes, seed=seed, modes=MODES)["modes"]
    return {
        mode: Returns(episodes=row["episodes"], mean=row["return_mean"], low=low, high=high, seed=seed)
        for mode, row in rows.items()
        for low, high in [row["return_interval"]]
    }
