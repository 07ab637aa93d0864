"""Batches of ``N`` environments of PettingZoo's kind (:mod:`multigrid_rl.envs.zoo`).

Seats are an environment's agents. Each sees a vector of floats, which ends with flags of the legal choices if the game
has them. A seat that does not move also has an observation and an action, but its ``mask`` is false.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.envs.base import Episodes, TimeLimit, flat_actions, native, one_number, reset_seed
from multigrid_rl.envs.zoo import (
    LEGAL,
    LIMIT,
    DrawMode,
    Game,
    Seat,
    StepResult,
    SwappedRoles,
    describe_game,
    failure_message,
    open_game,
    start_episode,
)
from multigrid_rl.metrics import ahead
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import mistake
from multigrid_rl.types import AgentSpec, BatchedStep, MultiAgentSpec, RunError, Seats

LOG = logging.getLogger(__name__)
Array = NDArray[Any]


class PettingZooEnvs(Episodes):
    """``num_envs`` environments of one id; implements ``types.BatchedEnv`` by seat.

    Finished environments reset at once. ``seed``, ``k``, the number of the episode and the actions determine
    environment ``k``, if it follows PettingZoo's rules of seeding.

    Args:
        num_envs: how many environments ``N``.
        seed: determines all randomness.
        first: number of the first environment.
        auto_reset: reset finished environments at once; otherwise each plays one episode.

    Attributes:
        turn: (N, A) seats to move.
        games: the environments.
        played: actions of each seat in each step of the running or only episode, in the form of its ``step``.
        actions: (N, A) choices of the last step, -1 without a move; (N, 0) if actions are not single choices.
        shaping: see ``base.Episodes``; rewards seats that moved, and its ``info`` also has the seat as ``agent``.

    Raises ``ValueError``: see :func:`~multigrid_rl.envs.zoo.open_game`.
    """

    def __init__(self, game: ZooSpec, num_envs: int, *, seed: int = 0, first: int = 0, auto_reset: bool = True) -> None:
        self.env_id, self.seats, self._first = game.env_id, game.seats, first
        names = [*dict.fromkeys(game.teams.values())]
        self.teams = [names.index(team) for team in game.teams.values()] if game.wins else None
        self._seat_specs = describe_game(game.env_id, game.env_args).seats
        super().__init__(num_envs, len(self.seats))
        self._swapped = game.symmetric if game.swaps else ()
        self.games: list[Any] = self._open_games(game)
        weakref.finalize(self, _close, self.games)
        if self._swapped:
            self.games = [SwappedRoles(game, self._swapped) for game in self.games]
        self._places = {seat: a for a, seat in enumerate(self.seats)}
        self._mask_parts = {seat: spec.parts for seat, spec in self._seat_specs.items() if spec.legal}
        self._copied_shapes = {seat: spec.copied_shape for seat, spec in self._seat_specs.items()}
        self._obs = {seat: np.zeros((num_envs, spec.size), np.float32) for seat, spec in self._seat_specs.items()}
        self._final = {seat: obs.copy() for seat, obs in self._obs.items()}
        self.turn = np.zeros((num_envs, len(self.seats)), np.bool_)
        self._rewards, self._limit = np.zeros(self.turn.shape), TimeLimit()
        self._any_truncated = np.zeros(num_envs, np.bool_)  # an agent was truncated while others went on
        self._infos: list[dict[str, Mapping[str, Any]]] = [{} for _ in range(num_envs)]
        self.played: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
        self._every_step, self._auto_reset = not game.gaps, auto_reset
        self._max_steps = game.env_args.get(LIMIT, np.inf)
        choices = all(isinstance(spec.action_space, spaces.Discrete) for spec in self._seat_specs.values())
        self.actions = np.full((num_envs, len(self.seats) if choices else 0), -1, np.int16)
        if game.gaps:
            self.deciding = lambda: _by_seat(self.seats, self.turn.copy())
        self.reset(seed)

    def _open_games(self, game: ZooSpec) -> list[Any]:
        return [open_game(game.env_id, game.env_args, game.draw_mode) for _ in range(self.num_envs)]

    def observations(self) -> dict[str, Array]:
        """Return the last observation of each seat (N, D) float32."""
        return self._obs

    def step(self, actions: dict[str, Array]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) choices, (N, C) of several parts or (N, A) numbers for each seat.

        Raises:
            RunError: an environment raises, takes too long, or returns an invalid observation or reward.
            RunError: the user's training reward failed.
        """
        mask, count = self.turn.copy(), self.num_envs
        before = None if self.shaping is None else {seat: obs.copy() for seat, obs in self._obs.items()}
        chosen = {seat: native(spec.action_space, actions[seat]) for seat, spec in self._seat_specs.items()}
        self._clock.begin()
        self._rewards = rewards = np.zeros(mask.shape)
        terminated = np.zeros(mask.shape, np.bool_)
        done, truncated = np.zeros((2, count), np.bool_)
        self.actions[:] = -1
        for column, seat, moves in zip(self.actions.T, self.seats, mask.T, strict=False):  # no columns: no choices
            np.copyto(column, chosen[seat], casting="unsafe", where=moves)
        self._play(chosen, terminated, done, truncated)
        self._check_observations("step")
        self._clock.lap("engine")
        if not (fits := np.abs(rewards) <= np.finfo(np.float32).max).all():  # as batches hold them
            n, a = np.argwhere(~fits)[0].tolist()
            raise self._broken(n, f"step: {self.seats[a]}", f"a reward of {rewards[n, a]}")
        self._returns += rewards
        self._length += mask.any(axis=1)
        if before is not None:
            rewards = self._shape_rewards(before, chosen, rewards, mask)
        if done.any():
            for seat, obs in self._obs.items():
                self._final[seat][done] = obs[done]
            self._finish(done, self._winners(self._returns[done]))
        return BatchedStep(
            observations=self._obs,
            final_observations=self._final,
            rewards=_by_seat(self.seats, rewards),
            terminated=_by_seat(self.seats, terminated),
            mask=_by_seat(self.seats, mask),
            truncated=truncated,
            done=done,
        )

    def _play(self, chosen: dict[str, Array], terminated: Array, done: Array, truncated: Array) -> None:
        """Play one step of all games; writes ``terminated`` agents (N, A), and games ``done`` or ``truncated`` (N,)."""
        with self._limit:
            for n, flags in enumerate(self.turn.tolist()):
                actions = {seat: chosen[seat][n] for seat, moves in zip(self.seats, flags, strict=True) if moves}
                if not actions:  # it is over
                    continue
                result = self._call(n, "step", actions)
                self.played[n].append(actions)
                for seat, for_good in result.endings.items():
                    terminated[n, self._places[seat]] = for_good
                done[n], truncated[n] = self._episode_end(n, result)

    def _episode_end(self, n: int, result: StepResult) -> tuple[bool, bool]:
        """Return whether the episode of game ``n`` is over, and truncated; a time limit pays pending rewards."""
        if not all(result.endings.values()):
            self._any_truncated[n] = True
        at_limit = self._reaches_limit(n, result)
        for seat, reward in result.pending_rewards.items() if at_limit else ():
            self._rewards[n, self._places[seat]] += one_number("reward", reward)
        return at_limit or not result.turn, at_limit or (not result.turn and bool(self._any_truncated[n]))

    def _reaches_limit(self, n: int, result: StepResult) -> bool:
        """Return whether the time limit truncates the episode of game ``n`` after this step."""
        return bool(result.turn) and self._length.item(n) + 1 >= self._max_steps

    def _shape_rewards(self, before: dict[str, Array], chosen: dict[str, Array], rewards: Array, mask: Array) -> Array:
        """Return the training reward (N, A) of the seats that moved; 0 for others."""
        assert self.shaping is not None
        shaped = np.zeros(rewards.shape)
        for a, seat in enumerate(self.seats):
            rows = np.flatnonzero(mask[:, a])
            infos = [{**self._infos[n].get(seat, {}), "agent": seat} for n in rows]
            obs, actions, next_obs = before[seat][rows], chosen[seat][rows], self._obs[seat][rows]
            shaped[rows, a] = self.shaping(obs, actions, next_obs, rewards[rows, a], infos)
        return shaped

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began: environments of other packages cannot be copied."""
        return {**super().get_state(), "played": [list(rows) for rows in self.played]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`: begins the same episodes again and plays the same actions.

        Raises ``ValueError``: a state of other environments.
        """
        super().set_state(state)
        saved = [obs.copy() for obs in self._obs.values()]
        self._begin(np.ones(self.num_envs, np.bool_))
        with self._limit:
            for n, rows in enumerate(state["played"]):
                for actions in rows:
                    self._any_truncated[n] |= not all(self._call(n, "step", actions).endings.values())
                self.played[n] = list(rows)
        if any((obs != saved_obs).any() for obs, saved_obs in zip(self._obs.values(), saved, strict=True)):
            LOG.warning("env_id=%s: played again, it shows something else: the run goes on, not exactly", self.env_id)
        super().set_state(state)  # the replay counted from zero

    def _arrays(self) -> list[Array]:
        return [*super()._arrays(), *self._obs.values(), *self._final.values()]

    def _winners(self, returns: Array) -> NDArray[np.int8]:
        """Return the team (M,) with the largest sum of returns (M, A) of each episode, -1 if there are several."""
        if self.teams is None:
            return np.full(len(returns), -1, np.int8)
        sums = np.stack([returns[:, np.equal(self.teams, team)].sum(axis=1) for team in range(max(self.teams) + 1)])
        level = ahead(sums, sums.max(axis=0)) == 0
        return np.where(level.sum(axis=0) == 1, sums.argmax(axis=0), -1).astype(np.int8)

    def _begin(self, which: NDArray[np.bool_]) -> None:
        if not self._auto_reset and self._episode.any():  # each plays once
            self.turn[which] = False
            return
        with self._limit:
            for n in np.flatnonzero(which).tolist():
                self.played[n], self._any_truncated[n] = [], False
                result = self._call(n, "reset", reset_seed(self._seed, self._first + n, int(self._episode[n])))
                if not result.turn:
                    raise self._broken(n, "reset", "an episode that is over when it begins")
        self._check_observations("reset")
        self._returns[which] = 0.0
        self._length[which] = 0

    def _call(self, n: int, call: str, argument: Any) -> StepResult:
        """Reset environment ``n`` by a seed, or step it by actions, and record observations and rewards.

        Raises ``RunError``: it fails, or its answer is invalid.
        """
        game, seat = self.games[n], ""
        try:
            self._limit.calls += 1
            result: StepResult = start_episode(game, argument) if call == "reset" else game.play(argument)
            observed = result.observations
            if call == "step" and self._reaches_limit(n, result):  # values at the cut need the newest observations
                observed = {**result.observe_others(), **observed}
            for seat, (obs, info) in observed.items():
                if type(obs) is np.ndarray and obs.shape == self._copied_shapes[seat] and LEGAL not in info:
                    self._obs[seat][n] = obs
                else:
                    self._seat_specs[seat].read(obs, info, self._obs[seat][n])
                if self.shaping is not None:
                    self._infos[n][seat] = info
            for seat, reward in result.rewards.items() if call == "step" else ():
                self._rewards[n, self._places[seat]] = one_number("reward", reward)
            for seat in (*result.turn, *result.endings.keys() - self._places.keys()):
                if seat not in result.observations:
                    raise ConfigError(expected("agent", f"an observation, and one of {', '.join(self.seats)}", "none"))
        except (Exception, SystemExit) as error:  # untrusted code may raise anything
            agent = seat or (next(iter(argument)) if call == "step" and len(argument) == 1 else "")
            raise self._broken(n, f"{call}: {agent}" if agent else call, mistake(error)) from error
        self.turn[n] = [seat in result.turn for seat in self.seats]
        if self._every_step and call == "step" and not argument.keys() >= set(result.turn):
            missing = min(set(result.turn) - argument.keys(), key=self.seats.index)
            wanted = f"a network without memory where agents come and go, as {missing} does"
            raise RunError(expected(f"env_id={self.env_id}: model", wanted, "one with memory"))
        return result

    def _check_observations(self, call: str) -> None:
        """Check all observations after ``call``: one check of many environments costs as much as of one."""
        for (seat, obs), turn in zip(self._obs.items(), self.turn.T, strict=True):
            bad = ~np.isfinite(obs).all(axis=1)
            if bad.any():
                n = int(np.flatnonzero(bad)[0])
                raise self._broken(n, f"{call}: {seat}", f"an observation of {obs[n][~np.isfinite(obs[n])][0]}")
            if seat in self._mask_parts:
                flags = obs[:, -self._seat_specs[seat].legal :]
                stuck = turn & ~np.add.reduceat(flags, self._mask_parts[seat], axis=1).all(axis=1)
                if stuck.any():
                    n = int(np.flatnonzero(stuck)[0])
                    raise self._broken(n, f"{call}: {seat}", "no legal choice for who is to move")

    def _broken(self, n: int, call: str, got: str) -> RunError:
        where = f"environment {self._first + n}, step {self._length[n] + 1} of its episode {self._episode[n] + 1}"
        return RunError(failure_message(self.env_id, call, f"{got}, in {where}"))


def _close(games: list[Game]) -> None:
    for game in games:
        with suppress(Exception, SystemExit):  # of untrusted code; it is released in any case
            game.close()


def _by_seat(seats: tuple[str, ...], columns: Array) -> dict[str, Array]:
    return {seat: columns[:, a] for a, seat in enumerate(seats)}


def kinds_of(seats: Mapping[str, Seat]) -> dict[str, str]:
    """Return the kind of each seat: its name without a final number, if all such seats have the same spaces."""
    stems = {seat: re.sub(r"[_. ]*\d+$", "", seat) or "agent" for seat in seats}
    looks = {stem: {str(seats[seat]) for seat in seats if stems[seat] == stem} for stem in stems.values()}
    return {seat: stem if len(looks[stem]) == 1 else seat for seat, stem in stems.items()}


@dataclass(frozen=True)
class ZooSpec(Seats):
    """One game of PettingZoo's kind: an entry of ``tables.PLACES`` has its seating rules.

    Args:
        env_id, env_args: see :func:`~multigrid_rl.envs.zoo.open_game`; episodes are truncated after
            ``max_episode_steps``.
        teams: seat -> team, of all seats in index order.
        wins: the team with the largest sum of returns wins.
        symmetric: groups of seats that the same player can play.
        gaps: seats need not decide in every step (``learn.rollout``); otherwise each does until it leaves.
        draw_mode: form in which environments must draw; ``None``: they need not draw.
        swaps: roles in these groups are drawn anew for each game.
    """

    env_id: str
    env_args: dict[str, Any]
    teams: dict[str, str]
    wins: bool
    symmetric: tuple[tuple[str, ...], ...] = ()
    gaps: bool = True
    draw_mode: DrawMode | None = None
    swaps: bool = False

    @property
    def seats(self) -> tuple[str, ...]:
        """Seat names in index order."""
        return tuple(self.teams)

    def team_of(self, seat: str) -> str:
        """Return the team of a seat. Raises ``ValueError`` for a seat that the game does not have."""
        if seat not in self.teams:
            raise ValueError(expected("seat", ", ".join(self.seats), repr(seat)))
        return self.teams[seat]

    def specs(self, learning: Iterable[str] = (), *, shared: bool = False) -> MultiAgentSpec:
        """Return agents, seats and teams; with ``shared``, seats of a kind play one network."""
        seats = describe_game(self.env_id, self.env_args).seats
        modules = kinds_of(seats) if shared else {seat: seat for seat in seats}
        agents = tuple(
            AgentSpec(
                *(seat, modules[seat], (seat,), seats[seat].space, flat_actions(seats[seat].action_space)),
                legal=seats[seat].legal,
                image=seats[seat].image,
                own=seats[seat],
            )
            for seat in learning
        )
        team_names = tuple(dict.fromkeys(self.teams.values()))
        return MultiAgentSpec(agents, self.seats, tuple(self.teams.values()), team_names, (), has_winner=self.wins)
