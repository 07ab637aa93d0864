"""``Match``: an environment of several seats with background players, in which a learner sees only its seats."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.streams import MIXTURE_PURPOSE, PLAYER_PURPOSE, Streams, purpose_of
from multigrid_rl.text import expected
from multigrid_rl.types import TEAM_ORDER, BatchedEnv, BatchedStep, Board, Clock, EpisodeTable, Policy, SeatView


class SeatedPlayer:
    """A player on its seats in ``N`` games, with its memory and its random streams.

    Args:
        streams: random streams of the player, one for each game.
        seats: indices of its agents.
        env: the games; it may have a ``board``, for full observation, and a ``turn`` (N, A), the agents to move.
        width: length of the part of each observation that the player reads; ``None``: all.
        mixture: for a pool, streams that draw its player of each new game; a team has one stream.
    """

    def __init__(
        self,
        player: Policy,
        streams: Streams,
        *,
        seats: Sequence[int] = (0,),
        env: object = None,
        width: int | None = None,
        mixture: Streams | None = None,
    ) -> None:
        self.player: Any = player
        self.streams, self.mixture = streams, mixture
        self.memory: Any = player.initial_state(len(streams.state))
        self._seat_indices, self._width = list(seats), width
        self._board: Board | None = getattr(env, "board", None)
        self._turn: NDArray[np.bool_] | None = getattr(env, "turn", None)
        if mixture is not None:
            self._draw(mixture, np.ones(len(streams.state), np.bool_))

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return actions (N, C) or (N, A) for observations (N, D)."""
        turn = None if self._turn is None else self._turn[:, self._seat_indices]
        view = SeatView(obs[:, : self._width], self._board, self._seat_indices[0], turn)
        chosen: NDArray[Any]
        chosen, self.memory = self.player.act(view, self.memory, self.streams)
        return chosen[:, None] if chosen.ndim == 1 else chosen

    def hear(self, *rewards: NDArray[np.float64]) -> None:
        """Tell the player the rewards (N,) of each of its seats in a step."""
        self.player.hear(self.memory, np.stack(rewards, axis=1))

    def restart(self, done: NDArray[np.bool_]) -> None:
        """Reset the memory of the games in ``done`` (N,), and draw the players of a pool for the next ones."""
        # Only pools draw, as games end in nearly every step of a batch.
        if done.any():
            self.memory = self.player.reset_state(self.memory, done)
            if self.mixture is not None:
                self._draw(self.mixture, done)

    def _draw(self, mixture: Streams, which: NDArray[np.bool_]) -> None:
        self.player.assign(self.memory, which, mixture.uniform_of(which))


class SeatsEnv(BatchedEnv, Protocol):
    """An environment that shows all its seats and drains episodes in the order of their end: by step, then by number.

    Attributes:
        shaping: training reward in place of the environment's, which still counts in episodes; ``None``: no shaping.
    """

    shaping: Any

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Start the environments in ``which`` (N,) afresh before their episodes end; no table includes these."""

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the unfinished episodes in ``which`` (N,), without a winner."""


Env = TypeVar("Env", bound=SeatsEnv)


class Match(Generic[Env]):
    """An environment of several seats, some of them with background players; implements ``types.BatchedEnv``.

    Args:
        env: the environment; players with full observation see its ``board``, if it has one.
        teams: team of each seat, seats in index order.
        players: one for each background seat, by seat, or by team for all its seats; learners play the focal others.
        seed: with an environment's number, determines all randomness of background players.
        first: number of the first environment.

    Raises ``ValueError``: a player for a seat that the environment does not have.
    """

    def __init__(
        self, env: Env, teams: Mapping[str, str], players: Mapping[str, Policy], *, seed: int = 0, first: int = 0
    ) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.index = {seat: k for k, seat in enumerate(teams)}
        self._teams, self._players, self._first = teams, players, first
        self._seat_names = {name: _seats_of(teams, name) for name in players}
        occupied = {seat for seats in self._seat_names.values() for seat in seats}
        self.seats = tuple(seat for seat in teams if seat not in occupied)
        if hasattr(env, "deciding"):  # seats do not decide in every step: see learn.rollout
            self.deciding = env.deciding
        self.clock = Clock()
        self.batch: Any = None  # arrays of compiled_match.play
        self._start(seed)

    def _start(self, seed: int | Sequence[int]) -> None:
        numbers = np.arange(self._first, self._first + self.num_envs, dtype=np.int64)
        # Red and blue keep their numbers where one of them has no seats.
        order = list(dict.fromkeys((*TEAM_ORDER, *self._teams.values())))
        self._seated = []
        for name, player in self._players.items():
            seat = self._seat_names[name][0]
            purpose = purpose_of(MIXTURE_PURPOSE, order.index(self._teams[seat]), room=16)
            mixture = Streams(seed, numbers, purpose) if hasattr(player, "assign") else None
            streams = Streams(seed, numbers, purpose_of(PLAYER_PURPOSE, self.index[seat]))
            seats = [self.index[seat] for seat in self._seat_names[name]]
            self._seated.append(SeatedPlayer(player, streams, seats=seats, env=self.env, mixture=mixture))
        pairs = self.seated()
        self._reward_listeners = [pair for pair in pairs if getattr(pair[1].player, "hears", False)]
        pools = [pair for pair in pairs if pair[1].mixture is not None]
        self._pooled = [seated for seat in self._teams for seats, seated in pools if seat in seats]
        self._played = [np.zeros((0, len(self._pooled)), np.int16)]  # players of pools in finished episodes (M, P)

    def _players_of_pools(self) -> NDArray[np.int16]:
        """Return the current player of each seat with a pool (N, P), seats in index order."""
        chosen = [seated.memory.chosen for seated in self._pooled]
        rows: NDArray[np.int16] = np.array(chosen, np.int16).reshape(-1, self.num_envs).T
        return rows

    def reset(self, seed: int | Sequence[int]) -> dict[str, NDArray[Any]]:
        """Start all environments afresh with ``seed``; returns observations (N, D) of each focal seat.

        Red/blue doors take a seed for each, too.
        """
        obs = self.env.reset(seed)  # type: ignore[arg-type]
        self._start(seed)
        return self._focal(obs)

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the observations (N, D) of each focal seat."""
        return self._focal(self.env.observations())

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds the environment's actions of each focal seat."""
        obs, taken = self.env.observations(), self._focal(actions)
        self.clock.begin()
        for seats, seated in self.seated():
            if len(seats) == 1:
                taken[seats[0]] = seated.act(obs[seats[0]])
                continue
            chosen = seated.act(np.concatenate([obs[seat] for seat in seats], axis=1))
            taken.update(zip(seats, np.split(chosen, len(seats), axis=1), strict=True))
        self.clock.lap("players")
        step = self.env.step(taken)
        for seats, seated in self._reward_listeners:
            seated.hear(*(step.rewards[seat] for seat in seats))
        if step.done.any():
            if self._pooled:
                self._played.append(self._players_of_pools()[step.done])
            for seated in self._seated:
                seated.restart(step.done)
        observations, final, rewards, terminated, mask = (self._focal(part) for part in step[:5])
        return BatchedStep(observations, final, rewards, terminated, mask, step.truncated, step.done)

    def play(self, *batch: Any) -> BatchedStep | None:
        """Play a batch of steps in one call (:func:`compiled_match.play`); ``None``: it must be played step by step."""
        if not hasattr(self.env, "world"):
            return None
        from multigrid_rl.players import compiled_match  # noqa: PLC0415 - most environments are not compiled

        return compiled_match.play(self, *batch)

    def seated(self) -> list[tuple[list[str], SeatedPlayer]]:
        """Return the background players with their seats."""
        return list(zip(self._seat_names.values(), self._seated, strict=True))

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Start the environments in ``which`` (N,) afresh before their episodes end; no table includes these."""
        self.env.restart(which)
        for seated in self._seated:
            seated.restart(which)

    def join(self, team: str, newcomers: Mapping[int, Policy], weights: Mapping[int, float]) -> None:
        """Change the pool of a whole ``team``, from the next games on; see ``OpponentPool.update``."""
        seated = self._seated[list(self._players).index(team)]
        seated.memory = seated.player.update(newcomers, weights, seated.memory)

    def pooled(self) -> set[int]:
        """Return the numbers of all pool players with running games."""
        return {int(number) for seated in self._pooled for number in np.unique(seated.memory.chosen)}

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""
        played, self._played = np.concatenate(self._played), self._played[:1]
        table = self.env.drain_episodes()
        return table._replace(players=played) if self._pooled else table

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the unfinished episodes in ``which`` (N,), without a winner."""
        return self.env.unfinished(which)._replace(players=self._players_of_pools()[which])

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments, memories and random streams, without the players."""
        return {
            "env": self.env.get_state(),
            "memories": copy.deepcopy([seated.memory for seated in self._seated]),
            "streams": [stream.state.copy() for stream in self._streams()],
            "played": list(self._played),
            "pools": self._pools(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other environments or players."""
        streams = self._streams()
        here = [_memory_kind(seated.memory) for seated in self._seated]
        saved = [_memory_kind(memory) for memory in state["memories"]]
        if here != saved or len(state["streams"]) != len(streams) or state.get("pools", self._pools()) != self._pools():
            found = "others" if len(here) == len(saved) else len(saved)
            raise ValueError(expected("state", f"{len(here)} background players", found))
        self.env.set_state(state.get("env", state))  # earlier versions wrote the games' state beside the players'
        for seated, memory in zip(self._seated, copy.deepcopy(state["memories"]), strict=True):
            if seated.mixture is not None:
                seated.memory = seated.player.with_memories(memory)
            elif _memory_kind(memory):
                seated.memory = memory
        for stream, numbers in zip(streams, state["streams"], strict=True):
            stream.state[:] = numbers
        self._played = list(state.get("played", self._played[:1]))

    def _pools(self) -> list[tuple[str, ...]]:
        """Return the permanent members of pools; a league adds and removes others."""
        return [getattr(seated.player, "permanent", ()) for seated in self._seated if seated.mixture is not None]

    def _streams(self) -> list[Streams]:
        pairs = ((seated.streams, seated.mixture) for seated in self._seated)
        return [stream for pair in pairs for stream in pair if stream is not None]

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on ``engine`` and ``players`` since the last call."""
        return {**self.env.drain_seconds(), **self.clock.drain()}

    def _focal(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {seat: arrays[seat] for seat in self.seats}


def _memory_kind(memory: Any) -> tuple[Any, ...]:
    """Return type and shape of a memory, which players share that can replace each other; nothing for an empty one."""
    shape = getattr(memory, "shape", None)
    return () if memory is None or (shape and not shape[-1]) else (type(memory), shape)


def _seats_of(teams: Mapping[str, str], name: str) -> list[str]:
    found = [seat for seat, team in teams.items() if team == name] or [seat for seat in teams if seat == name]
    if not found:
        raise ValueError(expected("seat", ", ".join(teams), repr(name)))
    return found


class PlayerFaultError(RuntimeError):
    """A player failed during a game.

    ``words``: the end of the reason, if the player wrote it: any text, such as what it has read.
    """

    def __init__(self, name: str, reason: str, words: str = "") -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason
        self.without_words = reason.removesuffix(words)
