"""Environments of PettingZoo's kind (:mod:`multigrid_rl.envs.zoo`), ``N`` side by side, behind the batched face.

Seats are an environment's agents. Each sees a vector of floats, at whose end stand flags of the legal choices where the
game has such. A seat that is not to move is shown and asked like the others, but its ``mask`` is false.
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

from multigrid_rl.envs.base import BrokenEnvError, Episodes, TimeLimit, flat_actions, native, reset_seed, single
from multigrid_rl.envs.zoo import (
    LEGAL,
    LIMIT,
    Game,
    Happened,
    How,
    Seat,
    SwappedParts,
    begun,
    described,
    failed,
    open_game,
)
from multigrid_rl.metrics import ahead
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import mistake
from multigrid_rl.types import AgentSpec, BatchedStep, MultiAgentSpec, RunError, Seats

LOG = logging.getLogger(__name__)
Array = NDArray[Any]


class PettingZooEnvs(Episodes):
    """``num_envs`` environments of one id; implements ``types.BatchedEnv`` by seat.

    Finished environments start afresh at once. What environment ``k`` does follows from ``seed``, ``k``, the number of
    its episode and the actions alone, as far as the environment keeps PettingZoo's seeding.

    Args:
        env_id, env_args: see :func:`~multigrid_rl.envs.zoo.open_game`; episodes are truncated after
            ``max_episode_steps``.
        num_envs: how many environments ``N``.
        teams: team of each seat, as numbers; ``None``: nobody wins.
        gaps: seats decide now and then (``learn.rollout``); otherwise each decides in every step until it leaves.
        seed: of everything random.
        first: number of the first environment.
        auto_reset: reset finished environments at once; otherwise each plays one episode.
        swapped: groups of seats of which it is drawn anew for each episode who takes whose part.
        how: environments are to be drawn so.

    Attributes:
        turn: (N, A) whose turn it is.
        games: the environments.
        played: what each seat did in each step of their running or only episodes, as their ``step`` took it.
        actions: (N, A) choices of the last step, -1 where a seat did nothing; (N, 0) where actions are no choices.
        shaping: see ``base.Episodes``; pays who moved, and its ``info`` holds the seat as ``agent``, too.

    Raises:
        ValueError: see :func:`~multigrid_rl.envs.zoo.open_game`.
    """

    def __init__(  # noqa: PLR0913 - all by keyword but two
        self,
        env_id: str,
        num_envs: int,
        *,
        env_args: Mapping[str, Any] | None = None,
        teams: tuple[int, ...] | None = None,
        gaps: bool = True,
        seed: int = 0,
        first: int = 0,
        auto_reset: bool = True,
        how: How | None = None,
        swapped: Iterable[tuple[str, ...]] = (),
    ) -> None:
        self.env_id, self.teams, self._first = env_id, teams, first
        self._about = described(env_id, env_args or {}).seats
        self.seats = tuple(self._about)
        super().__init__(num_envs, len(self.seats))
        self.games: list[Any] = self._opened(env_args or {}, how)
        weakref.finalize(self, _close, self.games)
        if swapped:
            self.games = [SwappedParts(game, swapped) for game in self.games]
        self._places = {seat: a for a, seat in enumerate(self.seats)}
        self._parts = {seat: about.parts for seat, about in self._about.items() if about.legal}
        self._plain = {seat: about.plain for seat, about in self._about.items()}
        self._obs = {seat: np.zeros((num_envs, about.size), np.float32) for seat, about in self._about.items()}
        self._final = {seat: obs.copy() for seat, obs in self._obs.items()}
        self.turn = np.zeros((num_envs, len(self.seats)), np.bool_)
        self._paid, self._limit = np.zeros(self.turn.shape), TimeLimit()
        self._was_cut = np.zeros(num_envs, np.bool_)  # where an agent's part was cut, though others went on
        self._infos: list[dict[str, Mapping[str, Any]]] = [{} for _ in range(num_envs)]
        self.played: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
        self._steady, self._auto_reset, self._most = not gaps, auto_reset, (env_args or {}).get(LIMIT, np.inf)
        single = all(isinstance(about.acts, spaces.Discrete) for about in self._about.values())
        self.actions = np.full((num_envs, len(self.seats) if single else 0), -1, np.int16)
        if gaps:
            self.deciding = lambda: _by_seat(self.seats, self.turn.copy())
        self.reset(seed)

    def _opened(self, env_args: Mapping[str, Any], how: How | None) -> list[Any]:
        return [open_game(self.env_id, env_args, how) for _ in range(self.num_envs)]

    def observations(self) -> dict[str, Array]:
        """Return what each seat saw last (N, D) float32."""
        return self._obs

    def step(self, actions: dict[str, Array]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) choices, (N, C) of several parts or (N, A) numbers for each seat.

        Raises:
            BrokenEnvError: an environment raises, takes too long, or shows or pays what is no number.
        RunError: the training reward of the user's own failed.
        """
        mask, count = self.turn.copy(), self.num_envs
        before = None if self.shaping is None else {seat: obs.copy() for seat, obs in self._obs.items()}
        chosen = {seat: native(about.acts, actions[seat]) for seat, about in self._about.items()}
        self._clock.begin()
        self._paid = rewards = np.zeros(mask.shape)
        ended = np.zeros(mask.shape, np.bool_)
        done, cut = np.zeros((2, count), np.bool_)
        self.actions[:] = -1
        for column, seat, its in zip(self.actions.T, self.seats, mask.T, strict=False):  # no columns: no choices
            np.copyto(column, chosen[seat], casting="unsafe", where=its)
        self._play(chosen, ended, done, cut)
        self._check("step")
        self._clock.lap("engine")
        if not np.isfinite(rewards).all():
            n, a = np.argwhere(~np.isfinite(rewards))[0].tolist()
            raise self._broken(n, f"step: {self.seats[a]}", f"a reward of {rewards[n, a]}")
        self._returns += rewards
        self._length += mask.any(axis=1)
        if before is not None:
            rewards = self._shaped(before, chosen, rewards, mask)
        if done.any():
            for seat, obs in self._obs.items():
                self._final[seat][done] = obs[done]
            self._finish(done, self._winners(self._returns[done]))
        return BatchedStep(
            observations=self._obs,
            final_observations=self._final,
            rewards=_by_seat(self.seats, rewards),
            terminated=_by_seat(self.seats, ended),
            mask=_by_seat(self.seats, mask),
            truncated=cut,
            done=done,
        )

    def _play(self, chosen: dict[str, Array], ended: Array, done: Array, cut: Array) -> None:
        """Play one step of all games; writes down whose episode ended for good (N, A), which games are over (N,)."""
        with self._limit:
            for n, whose in enumerate(self.turn.tolist()):
                taken = {seat: chosen[seat][n] for seat, its in zip(self.seats, whose, strict=True) if its}
                if not taken:  # it is over
                    continue
                now = self._call(n, "step", taken)
                self.played[n].append(taken)
                for seat, good in now.ended.items():
                    ended[n, self._places[seat]] = good
                done[n], cut[n] = self._over(n, now)

    def _over(self, n: int, now: Happened) -> tuple[bool, bool]:
        """Return whether the episode of game ``n`` is over, and whether it was cut; a time limit pays what is owed."""
        if not all(now.ended.values()):
            self._was_cut[n] = True
        late = self._late(n, now)
        for seat, paid in now.owed.items() if late else ():
            self._paid[n, self._places[seat]] += single("reward", paid)
        return late or not now.turn, late or (not now.turn and bool(self._was_cut[n]))

    def _late(self, n: int, now: Happened) -> bool:
        """Return whether the time limit cuts the episode of game ``n`` after this step."""
        return bool(now.turn) and self._length.item(n) + 1 >= self._most

    def _shaped(self, before: dict[str, Array], chosen: dict[str, Array], rewards: Array, mask: Array) -> Array:
        """Return what is paid (N, A) by the training reward to who moved; to others nothing."""
        assert self.shaping is not None
        paid = np.zeros(rewards.shape)
        for a, seat in enumerate(self.seats):
            its = np.flatnonzero(mask[:, a])
            infos = [{**self._infos[n].get(seat, {}), "agent": seat} for n in its]
            seen, acts, after = before[seat][its], chosen[seat][its], self._obs[seat][its]
            try:
                paid[its, a] = self.shaping(seen, acts, after, rewards[its, a], infos)
            except ConfigError as error:
                raise RunError(str(error)) from error
        return paid

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began: environments of strangers cannot be copied."""
        return {**super().get_state(), "played": [list(rows) for rows in self.played]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked: begins the same episodes again and plays the same actions.

        Raises:
            ValueError: a state of other environments.
        """
        super().set_state(state)
        shown = [obs.copy() for obs in self._obs.values()]
        self._begin(np.ones(self.num_envs, np.bool_))
        with self._limit:
            for n, rows in enumerate(state["played"]):
                for taken in rows:
                    self._was_cut[n] |= not all(self._call(n, "step", taken).ended.values())
                self.played[n] = list(rows)
        if any((now != then).any() for now, then in zip(self._obs.values(), shown, strict=True)):
            LOG.warning("env_id=%s: played again, it shows something else: the run goes on, not exactly", self.env_id)
        super().set_state(state)  # beginning counted from zero

    def _arrays(self) -> list[Array]:
        return [*super()._arrays(), *self._obs.values(), *self._final.values()]

    def _winners(self, returns: Array) -> NDArray[np.int8]:
        """Return the team (M,) with the largest sum of returns (M, A) of each episode, -1 where there are several."""
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
                self.played[n], self._was_cut[n] = [], False
                now = self._call(n, "reset", reset_seed(self._seed, self._first + n, int(self._episode[n])))
                if not now.turn:
                    raise self._broken(n, "reset", "an episode that is over when it begins")
        self._check("reset")
        self._returns[which] = 0.0
        self._length[which] = 0

    def _call(self, n: int, what: str, given: Any) -> Happened:
        """Start environment ``n`` (by a seed) or let it play (actions), and write down what it shows and pays to whom.

        Raises:
            BrokenEnvError: it fails, or its answer is none.
        """
        game, seat = self.games[n], ""
        try:
            self._limit.calls += 1
            now: Happened = begun(game, given) if what == "reset" else game.play(given)
            # Who moved before sees by now what came of it: that is what a time limit goes on from.
            shown = {**now.others(), **now.seen} if what == "step" and self._late(n, now) else now.seen
            for seat, (obs, info) in shown.items():
                if type(obs) is np.ndarray and obs.shape == self._plain[seat] and LEGAL not in info:
                    self._obs[seat][n] = obs
                else:
                    self._about[seat].read(obs, info, self._obs[seat][n])
                if self.shaping is not None:
                    self._infos[n][seat] = info
            for seat, paid in now.paid.items() if what == "step" else ():
                self._paid[n, self._places[seat]] = single("reward", paid)
            for seat in now.turn:
                if seat not in now.seen:
                    raise ConfigError(expected("agent", f"an observation, and one of {', '.join(self.seats)}", "none"))
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            who = seat or (next(iter(given)) if what == "step" and len(given) == 1 else "")
            raise self._broken(n, f"{what}: {who}" if who else what, mistake(error)) from error
        self.turn[n] = [seat in now.turn for seat in self.seats]
        if self._steady and what == "step" and not given.keys() >= set(now.turn):
            late = min(set(now.turn) - given.keys(), key=self.seats.index)
            wanted = f"a network without memory where agents come and go, as {late} does"
            raise BrokenEnvError(expected(f"env_id={self.env_id}: model", wanted, "one with memory"))
        return now

    def _check(self, what: str) -> None:
        """Check what all are shown after ``what``: one look at many environments takes as long as one at one."""
        for (seat, obs), turn in zip(self._obs.items(), self.turn.T, strict=True):
            bad = ~np.isfinite(obs).all(axis=1)
            if bad.any():
                n = int(np.flatnonzero(bad)[0])
                raise self._broken(n, f"{what}: {seat}", f"an observation of {obs[n][~np.isfinite(obs[n])][0]}")
            if seat in self._parts:
                flags = obs[:, -self._about[seat].legal :]
                stuck = turn & ~np.add.reduceat(flags, self._parts[seat], axis=1).all(axis=1)
                if stuck.any():
                    n = int(np.flatnonzero(stuck)[0])
                    raise self._broken(n, f"{what}: {seat}", "no legal choice for who is to move")

    def _broken(self, n: int, what: str, got: str) -> BrokenEnvError:
        where = f"environment {self._first + n}, step {self._length[n] + 1} of its episode {self._episode[n] + 1}"
        return BrokenEnvError(failed(self.env_id, what, f"{got}, in {where}"))


def _close(games: list[Game]) -> None:
    for game in games:
        with suppress(Exception, SystemExit):  # of a stranger; it is let go in any case
            game.close()


def _by_seat(seats: tuple[str, ...], columns: Array) -> dict[str, Array]:
    return {seat: columns[:, a] for a, seat in enumerate(seats)}


def kinds_of(seats: Mapping[str, Seat]) -> dict[str, str]:
    """Return the kind of each seat: what its name begins with before a number, if all such seats see and do alike."""
    stems = {seat: re.sub(r"[_. ]*\d+$", "", seat) or "agent" for seat in seats}
    alike = {stem: {str(seats[seat]) for seat in seats if stems[seat] == stem} for stem in stems.values()}
    return {seat: stem if len(alike[stem]) == 1 else seat for seat, stem in stems.items()}


@dataclass(frozen=True)
class ZooSpec(Seats):
    """One game of PettingZoo's kind: an entry of ``tables.PLACES`` says how players are seated in it.

    Args:
        env_id, env_args: see :func:`~multigrid_rl.envs.zoo.open_game`.
        teams: seat -> team, of all seats in index order.
        wins: the team with the largest sum of returns wins.
        symmetric: groups of seats on which the same player can sit.
        gaps, how: see :class:`PettingZooEnvs`.
        swaps: who of such a group takes whose part is drawn anew for each game.
    """

    env_id: str
    env_args: dict[str, Any]
    teams: dict[str, str]
    wins: bool
    symmetric: tuple[tuple[str, ...], ...] = ()
    gaps: bool = True
    how: How | None = None
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
        """Return who is in the game; seats of a kind play one network if it is ``shared``."""
        seats = described(self.env_id, self.env_args).seats
        modules = kinds_of(seats) if shared else {seat: seat for seat in seats}
        agents = tuple(
            AgentSpec(
                *(seat, modules[seat], (seat,), seats[seat].space, flat_actions(seats[seat].acts)),
                legal=seats[seat].legal,
                image=seats[seat].image,
                own=seats[seat],
            )
            for seat in learning
        )
        names = tuple(dict.fromkeys(self.teams.values()))
        return MultiAgentSpec(agents, self.seats, tuple(self.teams.values()), names, (), has_winner=self.wins)
