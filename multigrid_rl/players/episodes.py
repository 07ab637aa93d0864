"""Players in place of agents, step by step: the loop of evaluations, films, recordings and experts' labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.grouping import GroupedEnv
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.match import Match, PlayerFaultError, SeatedPlayer
from multigrid_rl.streams import LEARNER_PURPOSE, Streams, purpose_of
from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, BatchedEnv, BatchedStep, EpisodeTable, Policy, RunError, Seats

Array = NDArray[Any]
#: Steps after which an episode counts as endless: more than any registered limit of Gymnasium's.
MOST_STEPS = 30_000


def seat_for_agent(agent: AgentSpec, player: Policy, env: BatchedEnv, streams: Streams) -> SeatedPlayer:
    """Seat a player in place of a learning agent, with its observations; scripted players also read the board."""
    width = int(np.prod(agent.observation_space.shape or (1,)))
    match = env.env if isinstance(env, GroupedEnv) else env
    if not isinstance(match, Match):
        return SeatedPlayer(player, streams, width=width)
    return SeatedPlayer(player, streams, seats=[match.index[seat] for seat in agent.seats], env=match.env, width=width)


class Turn(NamedTuple):
    """One step of ``N`` environments, with the observations and actions before it; arrays by agent."""

    observations: dict[str, Array]  # (N, D) before the step; copies
    actions: dict[str, Array]  # (N, C) or (N, A)
    step: BatchedStep


def turns(
    env: BatchedEnv, agents: Sequence[AgentSpec], players: Mapping[str, Policy], *, seed: int, first: int = 0
) -> Iterator[Turn]:
    """Yield endless steps of players in place of agents, from fresh episodes on.

    Environments are reset with ``seed``; each has separate random streams, by its number from ``first`` on.
    """
    obs = env.reset(seed)
    numbers = np.arange(first, first + env.num_envs, dtype=np.int64)
    streams = [Streams(seed, numbers, purpose_of(LEARNER_PURPOSE, k)) for k in range(len(agents))]
    actors = {
        agent.name: seat_for_agent(agent, players[agent.name], env, agent_streams)
        for agent, agent_streams in zip(agents, streams, strict=True)
    }
    while True:
        current = {name: obs[name].copy() for name in actors}
        actions = {name: actor.act(current[name]) for name, actor in actors.items()}
        step = env.step(actions)
        yield Turn(current, actions, step)
        for actor in actors.values():
            actor.restart(step.done)
        obs = step.observations


class Quota:
    """Number of episodes that each of several environments must still play, set before the first step.

    Counting the episodes that end first would prefer short ones and bias their mean.
    """

    def __init__(self, episodes: int, envs: int) -> None:
        self.left = (episodes - np.arange(envs) + envs - 1) // envs

    def count(self, done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the episodes that ended in the environments ``done`` (N,) count (M,)."""
        counted: NDArray[np.bool_] = self.left[done] > 0
        self.left -= done
        return counted

    @property
    def complete(self) -> bool:
        """Whether every environment has played its episodes."""
        return bool((self.left <= 0).all())


class EpisodeBatch(NamedTuple):
    """``M`` complete episodes: one of each environment in the order of numbers, several in the order of their end."""

    table: EpisodeTable  # unfinished ones have no winner
    actions: Array  # (N, T, ...) of the environments; T = 0 if they were not recorded
    finished: NDArray[np.bool_]  # (N,) False where a player failed
    fault: PlayerFaultError | None  # of the failed player
    first: int  # number of the first environment
    start: NDArray[np.uint8]  # (N, 128) cell codes of boards at the start; (N, 0) without boards
    #: For games without boards: by environment the actions of each seat in each step, for a replay.
    moves: tuple[list[dict[str, Any]], ...] = ()

    def full_table(self) -> EpisodeTable:
        """Return the table. Raises ``PlayerFaultError``: a player failed."""
        if self.fault is not None:
            raise self.fault
        return self.table


def play_episodes(  # noqa: PLR0913 - all by keyword but four
    env: BatchedEnv,
    agents: Sequence[AgentSpec],
    players: Mapping[str, Policy],
    episodes: int,
    *,
    seed: int,
    first: int = 0,
    keep: bool = False,
    may_not_end: str = "",
) -> EpisodeBatch:
    """Play complete episodes, equally many in each environment, so that short ones are not preferred.

    Args:
        env: the environments, as many as ``episodes`` at most; they are reset with ``seed``.
        keep: record the actions of each step, for a replay.
        may_not_end: key and value that name the environment, if its episodes may never end.

    Raises ``RunError``: an episode that does not end.
    """
    count, fault = env.num_envs, None
    quota = Quota(episodes, count)
    tables: list[EpisodeTable] = []
    numbers: list[NDArray[np.intp]] = []
    recorded: list[Array] = []
    length: NDArray[np.int64] = np.zeros(count, np.int64)
    try:
        for turn in turns(env, agents, players, seed=seed, first=first):
            done = turn.step.done
            if keep:
                recorded.append(_recorded_actions(env, turn))
            if done.any():
                counted = quota.count(done)
                numbers.append(np.flatnonzero(done)[counted])
                tables.append(env.drain_episodes().rows(counted))
                if quota.complete:
                    break
            length = np.where(done, 0, length + 1)
            if may_not_end and length.max() >= MOST_STEPS:
                wanted = "an end of its episodes (env_args={max_episode_steps: 200} sets one)"
                raise RunError(expected(may_not_end, wanted, f"none in {MOST_STEPS:,} steps"))
    except PlayerFaultError as error:
        fault = error
    finished: NDArray[np.bool_] = quota.left <= 0
    if isinstance(env, Match):  # others have no faults, so no unfinished episodes
        numbers.append(np.flatnonzero(~finished))
        tables.append(env.unfinished(~finished))
    table = EpisodeTable.concatenate(tables)
    if episodes == count:
        table = table.rows(np.argsort(np.concatenate(numbers)))
    actions = np.stack(recorded, axis=1) if recorded else np.zeros((count, 0), np.int8)
    return EpisodeBatch(table, actions, finished, fault, first, np.zeros((count, 0), np.uint8))


def _recorded_actions(env: Any, turn: Turn) -> Array:
    """Return the actions of a step (N, ...) for a replay: of all seats of a game, or of the only agent."""
    if isinstance(env, Match):
        return np.array(env.env.actions)
    return np.asarray(env.native(*turn.actions.values()))


def play_games(spec: Seats, players: dict[str, Policy], games: int, *, seed: int, first_game: int = 0) -> EpisodeBatch:
    """Play games number ``first_game`` to ``first_game + games - 1`` once each, every seat filled.

    A game depends only on ``seed``, its number and its players, not on the number of games. Actions are (M, T, A), -1
    after a game's end. Raises ``ValueError``: an empty seat, or a player for a seat that the game does not have.
    """
    match = match_of(spec, players, games, seed=seed, first=first_game, auto_reset=False)
    if match.seats:
        empty = ", ".join(match.seats)
        raise ValueError(expected("players", f"one for each of {', '.join(spec.seats)}", f"none for {empty}"))
    start, env_id = match.env.boards(), getattr(spec, "env_id", None)
    endless = f"env_id={env_id}" if env_id else ""
    played = play_episodes(match, (), {}, games, seed=seed, first=first_game, keep=True, may_not_end=endless)
    actions = played.actions if played.actions.size else np.zeros((games, 0, len(spec.seats)), np.int8)
    actions[np.arange(actions.shape[1]) >= played.table.length[:, None]] = -1
    return played._replace(actions=actions, start=start, moves=tuple(getattr(match.env, "played", ())))
