"""Fresh episodes in environments of other packages: the same judge for players that have no opponents."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.envs.base import AGENT, reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.evaluation import MODES, means
from multigrid_rl.players.cards import PlayerError, Returns, Source, read_card, read_network
from multigrid_rl.players.episodes import Quota, Turn, turns
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.runs.players import config_of, env_player, is_run
from multigrid_rl.text import expected
from multigrid_rl.types import BatchedEnv, EnvFactory, EpisodeTable, RunError

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

    def players(self, *, greedy: bool) -> dict[str, FrozenPlayer]:
        """Load the player of each agent. Raises ``PlayerError`` for a damaged one."""
        cards = {name: read_card(source) for name, source in self.sources.items()}
        return {
            name: FrozenPlayer.of(card, read_network(self.sources[name], card), greedy=greedy)
            for name, card in cards.items()
        }


class Recording(NamedTuple):
    """One episode in an environment of Gymnasium: what plays it again, and what it paid."""

    number: int  # of the environment under the seed of the games
    reset_seed: int  # that Gymnasium's environment was reset with
    actions: list[Any]  # one a step, as Gymnasium's environment takes them
    total: float  # return


def env_target(who: str, overrides: Sequence[str] = (), checkpoint: str | None = None) -> EnvTarget:
    """Return a frozen player, or the exported policies of a run, in its own environment or as ``overrides`` say.

    Raises:
        ConfigError, PlayerError: no such player, run or checkpoint, a damaged player, or one of another environment.
    """
    config, trained = config_of(who, overrides), is_run(who)
    if config.scenario.package == "unity":  # its agents come and go: no episode can be asked for
        raise ConfigError(expected("scenario.package", "gymnasium or multigrid, to play episodes", "unity"))
    factory = env_factory(config)
    agents = factory.specs.agents
    sources: dict[str, Source] = {agent.name: env_player(agent, who, config, checkpoint) for agent in agents}
    name = Path(who).resolve().name if trained else read_card(sources[agents[0].name]).name
    if len(agents) != 1 and not trained:
        raise PlayerError(f"{name}: expected an environment with one agent, got {len(agents)}")
    return EnvTarget(name, factory, sources)


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
    env, quota = target.factory.build(count, 0), Quota(episodes, count)
    kept: list[EpisodeTable] = []
    for turn in _turns(target, env, 0, seed=seed, greedy=greedy):
        if turn.step.done.any():
            kept.append(env.drain_episodes().rows(quota.count(turn.step.done)))  # in the order of the environments
            if quota.met:
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
        env = target.factory.build(len(part), part.start)
        for turn in _turns(target, env, part.start, seed=seed, greedy=greedy):
            native = env.native(turn.actions[AGENT])
            returns[going] += turn.step.rewards[AGENT][going]
            for k in np.flatnonzero(going).tolist():
                taken[k].append(native[k].item() if native.ndim == 1 else native[k])
            going &= ~turn.step.done
            if not going.any():
                break
        kept += [
            Recording(number, reset_seed(seed, number, 0), actions, float(total))
            for number, actions, total in zip(part, taken, returns, strict=True)
        ]
    return kept


def _turns(target: EnvTarget, env: BatchedEnv, first: int, *, seed: int, greedy: bool) -> Iterator[Turn]:
    """Play the environments from number ``first`` on. Raises ``RunError`` where an episode does not end."""
    length: NDArray[np.int64] = np.zeros(env.num_envs, np.int64)
    players = target.players(greedy=greedy)
    for turn in turns(env, target.factory.specs.agents, players, seed=seed, first=first):
        yield turn
        length = np.where(turn.step.done, 0, length + 1)
        if length.max() >= MOST_STEPS:
            wanted = "an end of its episodes (env_args={max_episode_steps: 200} sets one)"
            env_id = getattr(target.factory, "env_id", target.name)
            raise RunError(expected(f"env_id={env_id}", wanted, f"none in {MOST_STEPS:,} steps"))


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
