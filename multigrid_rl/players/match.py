"""``Match``: a world whose background seats are filled, so that a learner sees only its own seats; and whole games."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.clock import Clock
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.text import expected
from multigrid_rl.types import TEAM_ORDER, BatchedStep, Board, EpisodeTable, GameSpec, Policy, SeatView, Shaping
from multigrid_rl.world.constants import NUM_EVENTS
from multigrid_rl.world.engine import World
from multigrid_rl.world.shaping import add_up
from multigrid_rl.world.state import Step
from multigrid_rl.world.streams import Streams

#: Purposes of random streams: the engine draws from 0, background players from here on, learners from further on.
PLAYER_PURPOSE = 16
MIXTURE_PURPOSE = 48
LEARNER_PURPOSE = 64


class _EpisodeLog:
    """Adds up lengths, returns and events, and keeps the rows of finished episodes."""

    def __init__(self, games: int, agents: int) -> None:
        self._sums: tuple[Any, ...] = (
            np.zeros(games, np.int32),
            np.zeros((games, agents)),
            np.zeros((games, agents, NUM_EVENTS)),
        )
        self._finished: list[EpisodeTable] = []

    def add(self, step: Step, players: NDArray[np.int16]) -> None:
        """Take one step's rewards, events and ends; ``players`` (N, P) are those of the pools."""
        length, returns, events = self._sums
        add_up(step.reward, step.events, returns, events, length)
        done = step.done
        if done.any():
            self._finished.append(self.rows(done, step.winner, players))
            self.forget(done)

    def forget(self, which: NDArray[np.bool_]) -> None:
        """Begin the sums of the games in ``which`` (N,) anew."""
        for array in self._sums:
            array[which] = 0

    def rows(self, which: NDArray[np.bool_], winner: NDArray[np.int8], players: NDArray[np.int16]) -> EpisodeTable:
        """Return rows of the games in ``which`` as far as they went."""
        return EpisodeTable._make(column[which] for column in (*self._sums, winner, players))

    def get_state(self) -> dict[str, Any]:
        """Return copies of the sums so far."""
        return {"sums": [array.copy() for array in self._sums], "finished": list(self._finished)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with these sums."""
        for array, kept in zip(self._sums, state["sums"], strict=True):
            array[:] = kept
        self._finished = list(state["finished"])

    def drain(self, pools: int) -> EpisodeTable:
        """Return rows of the episodes that finished since the last call."""
        empty = EpisodeTable.empty(self._sums[1].shape[1], NUM_EVENTS, pools)
        rows, self._finished = EpisodeTable.concatenate([empty, *self._finished]), []
        return rows


class _Bench:
    """One background player, the agents it acts for, its memory and its random streams.

    Args:
        player: who plays.
        agents: indices of its agents, all of one team.
        team: index of the team in ``TEAM_ORDER``.
        seed: of the games.
        numbers: of the games (N,).
    """

    def __init__(self, player: Policy, agents: list[int], team: int, seed: int, numbers: NDArray[np.int64]) -> None:
        self.player: Any = player
        self.agents = agents
        self.memory: Any = player.initial_state(len(numbers))
        self.rng = Streams(seed, numbers, PLAYER_PURPOSE + agents[0])
        # One stream for a team: mates with the same pool draw the same player. Most matches have no pool, and games end
        # in nearly every step of a batch.
        self.mixed = isinstance(player, OpponentPool)
        self.streams = [self.rng, Streams(seed, numbers, MIXTURE_PURPOSE + team)] if self.mixed else [self.rng]

    def act(self, tokens: NDArray[np.uint8], board: Board, actions: NDArray[np.int8]) -> None:
        """Write its agents' columns of ``actions`` (N, A)."""
        first = self.agents[0]
        alone = len(self.agents) == 1
        seen = tokens[:, first] if alone else tokens[:, self.agents].reshape(len(tokens), -1)
        chosen, self.memory = self.player.act(SeatView(seen, board, first), self.memory, self.rng)
        actions[:, self.agents] = chosen[:, None] if alone else chosen

    def draw(self, which: NDArray[np.bool_]) -> None:
        """Draw who of a pool plays the games in ``which``, which begin."""
        if self.mixed:
            self.player.assign(self.memory, which, self.streams[1].uniform_of(which))

    def restart(self, done: NDArray[np.bool_]) -> None:
        """Forget the games in ``done`` and begin new ones."""
        self.memory = self.player.reset_state(self.memory, done)
        self.draw(done)


class Match:
    """``num_games`` games with background players; implements ``types.BatchedEnv``.

    Args:
        spec: the game.
        players: a player for each background seat, by seat; by team (``red``) one that acts for all its seats. All
            other seats are focal.
        num_games: how many games ``N``.
        seed: with a game's number it decides everything random in it, background players included.
        first_game: number of the first game.
        auto_reset: start finished games afresh at once.
        shaping: replaces the training reward; the canonical reward still goes into the episode table.

    Attributes:
        actions: those (N, A) of the last step; the match writes over them in the next.
        board: of all games as they stand, for those who may see it.

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
        taken = {a for agents in self._agents.values() for a in agents}
        self.spec = spec
        self.num_envs = num_games
        self.world = World(spec, num_games, seed=seed, first_game=first_game, auto_reset=auto_reset)
        self.seats = tuple(seat for a, seat in enumerate(spec.seats) if a not in taken)
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
        self._benches = []
        for name, player in self._players.items():
            agents = self._agents[name]
            team = TEAM_ORDER.index(self.spec.team_of(self.spec.seats[agents[0]]))
            self._benches.append(_Bench(player, agents, team, seed, numbers))
            self._benches[-1].draw(np.ones(games, np.bool_))
        pooled = {a: bench for bench in self._benches if bench.mixed for a in bench.agents}
        self._pooled = [pooled[a] for a in sorted(pooled)]
        self._log = _EpisodeLog(games, self.spec.num_agents)

    def _players_of_pools(self) -> NDArray[np.int16]:
        """Return who plays each seat that has a pool (N, P), seats in index order."""
        if not self._pooled:
            return np.zeros((self.num_envs, 0), np.int16)
        return np.stack([bench.memory.chosen for bench in self._pooled], axis=1).astype(np.int16)

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Start all games afresh under ``seed``; returns tokens (N, D) for each focal seat."""
        self.world.reset(seed)
        self._start(seed)
        return self._shown(self.world.outputs.tokens)

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the tokens (N, D) of each focal seat as the games stand."""
        return self._shown(self.world.outputs.tokens)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) integers for each focal seat."""
        tokens = self.world.outputs.tokens
        for seat, a in self._focal.items():
            self.actions[:, a] = actions[seat]
        self._clock.begin()
        for bench in self._benches:
            bench.act(tokens, self.board, self.actions)
        self._clock.lap("players")
        step = self.world.step(self.actions)
        self._clock.lap("engine")
        self._log.add(step, self._players_of_pools())
        if step.done.any():
            for bench in self._benches:
                bench.restart(step.done)
        reward = step.reward
        if self._shaping is not None:
            # Whoever is out of the game earns nothing more: a team with a joint action would be paid for its dead.
            reward = np.where(step.acted, self._shaping(step.events, step.reward), 0.0)
        return BatchedStep(
            observations=self._shown(step.tokens),
            final_observations=self._shown(step.final_tokens),
            rewards={seat: reward[:, a] for seat, a in self._focal.items()},
            terminated={seat: step.terminated[:, a] for seat, a in self._focal.items()},
            mask={seat: step.acted[:, a] for seat, a in self._focal.items()},
            truncated=step.truncated,
            done=step.done,
        )

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Begin the games in ``which`` (N,) anew before they are over; they are in no table."""
        self.world.reset(None, which)
        self._log.forget(which)
        for bench in self._benches:
            bench.restart(which)

    def join(self, team: str, newcomers: Mapping[int, Policy], weights: Mapping[int, float]) -> None:
        """Change who takes turns as a whole ``team``, from the next games on; see ``OpponentPool.update``."""
        bench = self._benches[list(self._players).index(team)]
        bench.memory = bench.player.update(newcomers, weights, bench.memory)

    def pooled(self) -> set[int]:
        """Return the numbers of all players that have games under way in a pool."""
        return {int(number) for bench in self._pooled for number in np.unique(bench.memory.chosen)}

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""
        return self._log.drain(len(self._pooled))

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the games in ``which`` (N,) as far as they went, without a winner."""
        nobody = np.full(self.num_envs, -1, np.int8)
        return self._log.rows(which, nobody, self._players_of_pools())

    def get_state(self) -> dict[str, Any]:
        """Return games, players' memories and random streams, without the players themselves."""
        return {
            "world": self.world.get_state(),
            "memories": copy.deepcopy([bench.memory for bench in self._benches]),
            "streams": [stream.state.copy() for stream in self._streams()],
            "log": self._log.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked. Raises ``ValueError`` for a state of other games or players."""
        mine = self._streams()
        if len(state["memories"]) != len(self._benches) or len(state["streams"]) != len(mine):
            raise ValueError(expected("state", f"{len(self._benches)} background players", len(state["memories"])))
        self.world.set_state(state["world"])
        for bench, memory in zip(self._benches, copy.deepcopy(state["memories"]), strict=True):
            bench.memory = bench.player.taken_up(memory) if bench.mixed else memory
        for stream, numbers in zip(mine, state["streams"], strict=True):
            stream.state[:] = numbers
        self._log.set_state(state["log"])

    def _streams(self) -> list[Streams]:
        return [stream for bench in self._benches for stream in bench.streams]

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on ``engine`` and ``players`` since the last call."""
        return self._clock.drain()

    def _shown(self, tokens: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {seat: tokens[:, a] for seat, a in self._focal.items()}


def _agents_of(spec: GameSpec, name: str) -> list[int]:
    if name in TEAM_ORDER:
        return [spec.seats.index(seat) for seat in spec.seats_of(name)]
    spec.team_of(name)
    return [spec.seats.index(name)]


class PlayerFaultError(RuntimeError):
    """A player that cannot go on in the middle of its games; ``name`` says who, the message why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


class Played(NamedTuple):
    """``M`` games played once each; rows are in the order of the games' numbers."""

    table: EpisodeTable  # of an unfinished game: as far as it went, without a winner
    actions: NDArray[np.int8]  # (M, T, A), -1 behind a game's end
    start: NDArray[np.uint8]  # (M, 128) cell codes of the boards at the start
    finished: NDArray[np.bool_]  # (M,) all but where a player gave up
    fault: PlayerFaultError | None  # of the player that gave up
    first_game: int  # number of the game in row 0


def play_games(spec: GameSpec, players: dict[str, Policy], games: int, *, seed: int, first_game: int = 0) -> Played:
    """Play games number ``first_game`` to ``first_game + games - 1`` once each, every seat filled.

    A game depends on ``seed``, its number and its players alone, not on how many others are played beside it.

    Raises:
        ValueError: an empty seat, or a player for a seat that the game does not have.
    """
    match = Match(spec, players, games, seed=seed, first_game=first_game, auto_reset=False)
    if match.seats:
        empty = ", ".join(match.seats)
        raise ValueError(expected("players", f"one for each of {', '.join(spec.seats)}", f"none for {empty}"))
    start = match.world.state.cells.copy()
    finished = np.zeros(games, np.bool_)
    order: list[NDArray[np.intp]] = []
    actions: list[NDArray[np.int8]] = []
    fault: PlayerFaultError | None = None
    while not finished.all():
        try:
            done = match.step({}).done
        except PlayerFaultError as error:
            fault = error
            break
        actions.append(np.where(finished[:, None], np.int8(-1), match.actions))
        if done.any():
            order.append(np.flatnonzero(done))
            finished |= done
    order.append(np.flatnonzero(~finished))
    table = EpisodeTable.concatenate([match.drain_episodes(), match.unfinished(~finished)])
    rows = np.argsort(np.concatenate(order))
    steps = np.stack(actions, axis=1) if actions else np.zeros((games, 0, spec.num_agents), np.int8)
    return Played(table.rows(rows), steps, start, finished, fault, first_game)


def play_episodes(spec: GameSpec, players: dict[str, Policy], episodes: int, *, seed: int) -> EpisodeTable:
    """Play ``episodes`` whole games, one for each game number, every seat filled; rows in the order of the numbers.

    Raises:
        PlayerFaultError: a player gave up.
    """
    played = play_games(spec, players, episodes, seed=seed)
    if played.fault is not None:
        raise played.fault
    return played.table
