"""Training schemes: how focal seats become learning units.

* DTDE (decentralised training, decentralised execution): each seat is a unit; actor and critic read its own view.
* CTDE: each seat is a unit; its critic also reads the views and last actions of all team mates, its actor does not.
* CTCE: the team is one unit; it reads all its members' views and decides for all of them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import BatchedStep, Cast, EpisodeTable, SeatedEnv, Unit

Scheme = Literal["dtde", "ctde", "ctce"]
Array = NDArray[Any]


def units_of(
    scheme: Scheme, *, shared: bool, seats: dict[str, str], categories: tuple[int, ...], choices: int
) -> tuple[Unit, ...]:
    """Units of the learning ``seats`` (seat -> team, in index order).

    ``shared`` lets all learning seats of a team play one network. ``categories`` are those of one seat's own view.
    """
    teams = {team: [s for s, t in seats.items() if t == team] for team in dict.fromkeys(seats.values())}
    if scheme == "ctce":
        return tuple(
            Unit(team, team, tuple(members), categories * len(members), choices=choices)
            for team, members in teams.items()
        )
    units = []
    for seat, team in seats.items():
        mates = len(teams[team]) - 1
        # Own last action and the mates'; one value more for "none yet".
        central = categories * mates + (choices + 1,) * (mates + 1) if scheme == "ctde" else ()
        units.append(Unit(seat, team if shared else seat, (seat,), categories, central, choices))
    return tuple(units)


class Units:
    """Shows a seated environment by unit; implements ``types.BatchedEnv``.

    Observations are the unit's own tokens, one seat after the other, then what only its critic reads: the views of its
    team mates in index order, the unit's own last action, and the mates' last actions in index order. A seat that is
    out of the game, or has not acted yet, has the last action ``choices``.
    """

    def __init__(self, env: SeatedEnv, cast: Cast) -> None:
        self.env = env
        self.cast = cast
        self.num_envs = env.num_envs
        self._mates = {
            unit.name: [
                seat
                for seat, team in zip(cast.seats, cast.teams, strict=True)
                if team == cast.teams[cast.seats.index(unit.seats[0])] and seat not in unit.seats
            ]
            if unit.central
            else []
            for unit in cast.units
        }
        self._remembers = any(unit.central for unit in cast.units)
        self._last = {seat: np.empty(self.num_envs, np.uint8) for seat in cast.learning}
        self._forget(np.ones(self.num_envs, np.bool_))

    def _forget(self, which: NDArray[np.bool_]) -> None:
        for unit in self.cast.units:
            for seat in unit.seats:
                self._last[seat][which] = unit.choices

    def reset(self, seed: int) -> dict[str, Array]:
        """Start all environments afresh; returns tokens (N, D) for each unit."""
        shown = self.env.reset(seed)
        self._forget(np.ones(self.num_envs, np.bool_))
        return self._shown(shown)

    def observations(self) -> dict[str, Array]:
        """Tokens (N, D) of each unit as the environments stand."""
        return self._shown(self.env.observations())

    def step(self, actions: dict[str, Array]) -> BatchedStep:
        """Play one step; ``actions`` holds (N, C) integers for each unit."""
        units = self.cast.units
        taken = {seat: actions[unit.name][:, c] for unit in units for c, seat in enumerate(unit.seats)}
        step = self.env.step(taken)
        if self._remembers:
            for unit in units:
                for seat in unit.seats:
                    self._last[seat][:] = np.where(step.acted[seat], taken[seat], unit.choices)
        final = self._shown(step.final_observations) if step.done.any() else step.final_observations
        if self._remembers:
            self._forget(step.done)
        return BatchedStep(
            observations=self._shown(step.observations),
            final_observations=final,
            rewards={u.name: _total(step.rewards, u) for u in units},
            terminated={u.name: _all(step.terminated, u) for u in units},
            acted={u.name: _each(step.acted, u) for u in units},
            truncated=step.truncated,
            done=step.done,
        )

    def drain_episodes(self) -> EpisodeTable:
        """Episodes that finished since the last call."""
        return self.env.drain_episodes()

    def drain_seconds(self) -> dict[str, float]:
        """Seconds spent on ``engine`` and ``players`` since the last call."""
        return self.env.drain_seconds()

    def get_state(self) -> dict[str, Any]:
        """State of the environments, and the last actions that central critics are shown."""
        return {"env": self.env.get_state(), "last": {seat: taken.copy() for seat, taken in self._last.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked. Raises ``ValueError`` for a state of other environments."""
        if set(state["last"]) != set(self._last):
            raise ValueError(f"state of the seats {', '.join(state['last'])}; allowed is {', '.join(self._last)}")
        self.env.set_state(state["env"])
        for seat, taken in self._last.items():
            taken[:] = state["last"][seat]

    def _shown(self, tokens: dict[str, Array]) -> dict[str, Array]:
        shown = {}
        for unit in self.cast.units:
            if len(unit.seats) == 1 and not unit.central:
                shown[unit.name] = tokens[unit.seats[0]]
                continue
            mates = self._mates[unit.name]
            parts = [tokens[seat] for seat in (*unit.seats, *mates)]
            if unit.central:
                parts += [self._last[seat][:, None] for seat in (*unit.seats, *mates)]
            shown[unit.name] = np.concatenate(parts, axis=1)
        return shown


def _total(rewards: dict[str, NDArray[np.float64]], unit: Unit) -> NDArray[np.float64]:
    if len(unit.seats) == 1:
        return rewards[unit.seats[0]]
    total: NDArray[np.float64] = np.sum([rewards[seat] for seat in unit.seats], axis=0)
    return total


def _each(flags: dict[str, NDArray[np.bool_]], unit: Unit) -> NDArray[np.bool_]:
    if len(unit.seats) == 1:
        return flags[unit.seats[0]][:, None]
    return np.stack([flags[seat] for seat in unit.seats], axis=1)


def _all(flags: dict[str, NDArray[np.bool_]], unit: Unit) -> NDArray[np.bool_]:
    if len(unit.seats) == 1:
        return flags[unit.seats[0]]
    everybody: NDArray[np.bool_] = np.all([flags[seat] for seat in unit.seats], axis=0)
    return everybody
