"""``Match``: a world with background players, in which a learner sees only its seats."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.streams import MIXTURE_PURPOSE, PLAYER_PURPOSE, Streams
from multigrid_rl.text import expected
from multigrid_rl.types import TEAM_ORDER, BatchedStep, Board, Clock, EpisodeTable, GameSpec, Policy, SeatView, Shaping
from multigrid_rl.world.constants import NUM_EVENTS
from multigrid_rl.world.engine import World
from multigrid_rl.world.events import add_up


class Seated:
    """A player in its place in ``N`` games, with its memory and its random streams.

    Args:
        player: the player.
        streams: what it draws from, one stream for each game.
        seat: index of its first agent.
        board: of the games, for players with full observation.
        width: how much of each observation it reads; ``None``: all.
        mixture: of a pool, streams that draw one of its players for each new game. There is one of a team: mates with
            the same pool draw the same player.
    """

    def __init__(
        self,
        player: Policy,
        streams: Streams,
        *,
        seat: int = 0,
        board: Board | None = None,
        width: int | None = None,
        mixture: Streams | None = None,
    ) -> None:
        self.player: Any = player
        self.streams, self.mixture = streams, mixture
        self.memory: Any = player.initial_state(len(streams.state))
        self._seat, self._board, self._width = seat, board, width
        if mixture is not None:
            self._draw(mixture, np.ones(len(streams.state), np.bool_))

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return actions (N, C) or (N, A) for observations (N, D)."""
        view = SeatView(obs[:, : self._width], self._board, self._seat)
        chosen: NDArray[Any]
        chosen, self.memory = self.player.act(view, self.memory, self.streams)
        return chosen[:, None] if chosen.ndim == 1 else chosen

    def restart(self, done: NDArray[np.bool_]) -> None:
        """Reset the memory of the games in ``done`` (N,), and draw who of a pool plays the next ones."""
        # Mixtures are drawn for pools alone, as games end in nearly every step of a batch.
        if done.any():
            self.memory = self.player.reset_state(self.memory, done)
            if self.mixture is not None:
                self._draw(self.mixture, done)

    def _draw(self, mixture: Streams, which: NDArray[np.bool_]) -> None:
        self.player.assign(self.memory, which, mixture.uniform_of(which))


class Match:
    """``num_games`` games with background players; implements ``types.BatchedEnv``.

    Args:
        spec: the game.
        players: a player for each background seat, by seat; by team (``red``) one that acts for all its seats. All
            other seats are focal, the learners'.
        num_games: how many games ``N``.
        seed: with a game's number, determines all its randomness, background players included.
        first_game: number of the first game.
        auto_reset: reset finished games at once.
        shaping: replaces the training reward; the canonical reward still goes into the episode table.

    Attributes:
        actions: (N, A) of the last step; overwritten in the next.
        board: current state of all games, for players with full observation.

    Raises:
        ValueError: a player for a seat that the game does not have.
    """

    def __init__(  # noqa: PLR0913 - all but three have defaults
        self,
        spec: GameSpec,
        players: dict[str, Policy],
        num_games: int,
        *,
        seed: int = 0,
        first_game: int = 0,
        auto_reset: bool = True,
        shaping: Shaping | None = None,
    ) -> None:
        self._agents = {name: _agents_of(spec, name) for name in players}
        occupied = {a for agents in self._agents.values() for a in agents}
        self.spec = spec
        self.num_envs = num_games
        self.world = World(spec, num_games, seed=seed, first_game=first_game, auto_reset=auto_reset)
        self.seats = tuple(seat for a, seat in enumerate(spec.seats) if a not in occupied)
        self._focal = {seat: spec.seats.index(seat) for seat in self.seats}
        self._players = players
        self._shaping = shaping
        self.actions = np.zeros((num_games, spec.num_agents), np.int8)
        self.board = self.world.board()
        self._clock = Clock()
        self._start(seed)

    def _start(self, seed: int) -> None:
        first, games = self.world.first_game, self.num_envs
        numbers = np.arange(first, first + games, dtype=np.int64)
        self._seated = []
        for name, player in self._players.items():
            first_agent = self._agents[name][0]
            team = TEAM_ORDER.index(self.spec.team_of(self.spec.seats[first_agent]))
            mixture = Streams(seed, numbers, MIXTURE_PURPOSE + team) if hasattr(player, "assign") else None
            streams = Streams(seed, numbers, PLAYER_PURPOSE + first_agent)
            self._seated.append(Seated(player, streams, seat=first_agent, board=self.board, mixture=mixture))
        places = zip(self._agents.values(), self._seated, strict=True)
        pooled = {a: seated for agents, seated in places if seated.mixture is not None for a in agents}
        self._pooled = [pooled[a] for a in sorted(pooled)]
        # Length, returns and events so far of the games that are played.
        shape = (games, self.spec.num_agents)
        self._sums: tuple[NDArray[Any], ...] = (
            np.zeros(games, np.int32),
            np.zeros(shape),
            np.zeros((*shape, NUM_EVENTS)),
        )
        self._finished: list[EpisodeTable] = []

    def _players_of_pools(self) -> NDArray[np.int16]:
        """Return the current player of each seat with a pool (N, P), seats in index order."""
        if not self._pooled:
            return np.zeros((self.num_envs, 0), np.int16)
        return np.stack([seated.memory.chosen for seated in self._pooled], axis=1).astype(np.int16)

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Reset all games with ``seed``; returns tokens (N, D) for each focal seat."""
        self.world.reset(seed)
        self._start(seed)
        return self._by_seat(self.world.outputs.tokens)

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the tokens (N, D) of each focal seat."""
        return self._by_seat(self.world.outputs.tokens)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) integers for each focal seat."""
        tokens = self.world.outputs.tokens
        for seat, a in self._focal.items():
            self.actions[:, a] = actions[seat]
        self._clock.begin()
        for agents, seated in zip(self._agents.values(), self._seated, strict=True):
            of_team = tokens[:, agents].reshape(len(tokens), -1) if len(agents) > 1 else tokens[:, agents[0]]
            self.actions[:, agents] = seated.act(of_team)
        self._clock.lap("players")
        step = self.world.step(self.actions)
        self._clock.lap("engine")
        length, returns, events = self._sums
        add_up(step.reward, step.events, returns, events, length)
        if step.done.any():
            self._finished.append(self._rows(step.done, step.winner))
            self._clear_sums(step.done)
        for seated in self._seated:
            seated.restart(step.done)
        reward = step.reward
        if self._shaping is not None:
            # Eliminated agents get no reward: a team with a joint action would be rewarded for them.
            reward = np.where(step.acted, self._shaping(step.events, step.reward), 0.0)
        return BatchedStep(
            observations=self._by_seat(step.tokens),
            final_observations=self._by_seat(step.final_tokens),
            rewards={seat: reward[:, a] for seat, a in self._focal.items()},
            terminated={seat: step.terminated[:, a] for seat, a in self._focal.items()},
            mask={seat: step.acted[:, a] for seat, a in self._focal.items()},
            truncated=step.truncated,
            done=step.done,
        )

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Reset the games in ``which`` (N,) before they end; no table includes them."""
        self.world.reset(None, which)
        self._clear_sums(which)
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
        empty = EpisodeTable.empty(self.spec.num_agents, NUM_EVENTS, len(self._pooled))
        rows, self._finished = EpisodeTable.concatenate([empty, *self._finished]), []
        return rows

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the unfinished games in ``which`` (N,), without a winner."""
        return self._rows(which, np.full(self.num_envs, -1, np.int8))

    def _rows(self, which: NDArray[np.bool_], winner: NDArray[np.int8]) -> EpisodeTable:
        """Return rows of the games in ``which`` (N,), finished or not."""
        return EpisodeTable._make(column[which] for column in (*self._sums, winner, self._players_of_pools()))

    def _clear_sums(self, which: NDArray[np.bool_]) -> None:
        for array in self._sums:
            array[which] = 0

    def get_state(self) -> dict[str, Any]:
        """Return the state of games, memories and random streams, without the players."""
        return {
            "world": self.world.get_state(),
            "memories": copy.deepcopy([seated.memory for seated in self._seated]),
            "streams": [stream.state.copy() for stream in self._streams()],
            "log": {"sums": [array.copy() for array in self._sums], "finished": list(self._finished)},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other games or players."""
        streams = self._streams()
        if len(state["memories"]) != len(self._seated) or len(state["streams"]) != len(streams):
            raise ValueError(expected("state", f"{len(self._seated)} background players", len(state["memories"])))
        self.world.set_state(state["world"])
        for seated, memory in zip(self._seated, copy.deepcopy(state["memories"]), strict=True):
            seated.memory = seated.player.with_memories(memory) if seated.mixture is not None else memory
        for stream, numbers in zip(streams, state["streams"], strict=True):
            stream.state[:] = numbers
        for array, saved in zip(self._sums, state["log"]["sums"], strict=True):
            array[:] = saved
        self._finished = list(state["log"]["finished"])

    def _streams(self) -> list[Streams]:
        pairs = ((seated.streams, seated.mixture) for seated in self._seated)
        return [stream for pair in pairs for stream in pair if stream is not None]

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on ``engine`` and ``players`` since the last call."""
        return self._clock.drain()

    def _by_seat(self, tokens: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {seat: tokens[:, a] for seat, a in self._focal.items()}


def _agents_of(spec: GameSpec, name: str) -> list[int]:
    if name in TEAM_ORDER:
        return [spec.seats.index(seat) for seat in spec.seats_of(name)]
    spec.team_of(name)
    return [spec.seats.index(name)]


class PlayerFaultError(RuntimeError):
    """A player failed during a game.

    Args:
        name: of the player.
        reason: the message.
        words: the end of the reason, if the player wrote it itself: it may be anything, what it has read included.
    """

    def __init__(self, name: str, reason: str, words: str = "") -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason
        self.without_words = reason.removesuffix(words)
