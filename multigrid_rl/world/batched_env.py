"""The red/blue-door game by all its seats, batched: what training, background players and evaluation play."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import BatchedStep, Clock, EpisodeTable, GameSpec, Shaping
from multigrid_rl.world.constants import NUM_EVENTS
from multigrid_rl.world.engine import World
from multigrid_rl.world.events import add_up


class DoorsEnv:
    """``num_games`` games by seat; implements ``types.BatchedEnv``, and ``players.match.SeatsEnv``.

    Args:
        spec: the game.
        num_games: how many games ``N``.
        seed: with a game's number, determines all its randomness.
        first_game: number of the first game.
        auto_reset: reset finished games at once.
        shaping: replaces the training reward; the canonical reward still goes into the episode table.

    Attributes:
        actions: (N, A) of the last step; overwritten in the next.
        board: current state of all games, for players with full observation.
    """

    def __init__(
        self,
        spec: GameSpec,
        num_games: int,
        *,
        seed: int = 0,
        first_game: int = 0,
        auto_reset: bool = True,
        shaping: Shaping | None = None,
    ) -> None:
        self.spec = spec
        self.num_envs = num_games
        self.world = World(spec, num_games, seed=seed, first_game=first_game, auto_reset=auto_reset)
        self._shaping = shaping
        self.actions = np.zeros((num_games, spec.num_agents), np.int8)
        self.board = self.world.board()
        self._clock = Clock()
        # Length, returns and events so far of the games that are played.
        self._sums: tuple[NDArray[Any], ...] = (
            np.zeros(num_games, np.int32),
            np.zeros((num_games, spec.num_agents)),
            np.zeros((num_games, spec.num_agents, NUM_EVENTS)),
        )
        self._finished: list[EpisodeTable] = []

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Reset all games with ``seed``; returns tokens (N, D) of each seat."""
        self.world.reset(seed)
        self._clear_sums(np.ones(self.num_envs, np.bool_))
        self._finished = []
        return self.observations()

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the tokens (N, D) of each seat."""
        return self._by_seat(self.world.outputs.tokens)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) or (N, 1) integers for each seat."""
        for a, seat in enumerate(self.spec.seats):
            self.actions[:, a] = actions[seat].reshape(-1)
        self._clock.begin()
        step = self.world.step(self.actions)
        self._clock.lap("engine")
        length, returns, events = self._sums
        add_up(step.reward, step.events, returns, events, length)
        if step.done.any():
            self._finished.append(self._rows(step.done, step.winner))
            self._clear_sums(step.done)
        reward = step.reward
        if self._shaping is not None:
            # Eliminated agents get no reward: a team with a joint action would be rewarded for them.
            reward = np.where(step.acted, self._shaping(step.events, step.reward), 0.0)
        return BatchedStep(
            observations=self._by_seat(step.tokens),
            final_observations=self._by_seat(step.final_tokens),
            rewards=self._by_seat(reward),
            terminated=self._by_seat(step.terminated),
            mask=self._by_seat(step.acted),
            truncated=step.truncated,
            done=step.done,
        )

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Reset the games in ``which`` (N,) before they end; no table includes them."""
        self.world.reset(None, which)
        self._clear_sums(which)

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""
        rows, self._finished = [EpisodeTable.empty(self.spec.num_agents, NUM_EVENTS), *self._finished], []
        return EpisodeTable.concatenate(rows)

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the unfinished games in ``which`` (N,), without a winner."""
        return self._rows(which, np.full(self.num_envs, -1, np.int8))

    def _rows(self, which: NDArray[np.bool_], winner: NDArray[np.int8]) -> EpisodeTable:
        """Return rows of the games in ``which`` (N,), finished or not."""
        nobody = np.zeros((self.num_envs, 0), np.int16)
        return EpisodeTable._make(column[which] for column in (*self._sums, winner, nobody))

    def _clear_sums(self, which: NDArray[np.bool_]) -> None:
        for array in self._sums:
            array[which] = 0

    def get_state(self) -> dict[str, Any]:
        """Return the state of the games, and of what their episodes' rows will say."""
        log = {"sums": [array.copy() for array in self._sums], "finished": list(self._finished)}
        return {"world": self.world.get_state(), "log": log}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other games."""
        self.world.set_state(state["world"])
        for array, saved in zip(self._sums, state["log"]["sums"], strict=True):
            array[:] = saved
        self._finished = list(state["log"]["finished"])

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on the ``engine`` since the last call."""
        return self._clock.drain()

    def _by_seat(self, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {seat: array[:, a] for a, seat in enumerate(self.spec.seats)}
