"""Uses of a game's events: metrics, and training rewards that help exploration.

Gates, evaluation and the cup always use the canonical reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import kernel
from multigrid_rl.metrics import MetricGroup, Sample
from multigrid_rl.text import ConfigError, expected, shown, unknown
from multigrid_rl.trust import import_object, user_code
from multigrid_rl.types import Colour, EpisodeTable, GameSpec, MultiAgentSpec
from multigrid_rl.world.constants import EVENTS, NUM_EVENTS

#: Pseudo-event: 1 in every step that the agent plays.
STEP = "step"
#: Pseudo-event: the team mates' reward in this step. With a weight of 1 for all, teams share their reward.
MATES = "mates"
#: Key for every seat.
EVERY_SEAT = "all"
#: Factor of a rewarded ball from which it no longer counts.
SMALLEST_FACTOR = 1e-9


def check_reward(name: str, agents: int) -> None:
    """Call a user's training reward, ``module:function``, with events of games of ``agents`` agents.

    Raises ``ConfigError``: one line with the key, the expected and the returned value.
    """
    function = import_object("train.shaping", name)
    key = f"train.shaping={name}"
    for games in (3, 4):  # finds a function that fits only three games
        events = (np.arange(games * agents * NUM_EVENTS) % 2).astype(np.float32).reshape(games, agents, NUM_EVENTS)
        reward = np.linspace(-1.0, 1.0, games * agents).reshape(games, agents)
        before = events.copy(), reward.copy()
        with user_code(key):
            result = function(events, reward)
        if not isinstance(result, np.ndarray) or result.shape != reward.shape or result.dtype.kind not in "fiu":
            shape = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
            raise ConfigError(expected(key, f"numbers of shape {reward.shape}, (games, agents), as an array", shape))
        if not np.isfinite(result).all():
            raise ConfigError(expected(key, "finite numbers", shown(str(result.tolist()))))
        if not (np.array_equal(events, before[0]) and np.array_equal(reward, before[1])):
            raise ConfigError(expected(key, "events and rewards as they were before the call", "a change in place"))


class EventBonus:
    """Canonical reward plus weights on events; a ``types.Shaping``.

    Args:
        spec: the game.
        weights: seat (or ``all``) -> event of ``constants.EVENTS`` (or ``step``, ``mates``) -> weight. A seat's entry
            replaces single weights of ``all``.

    Raises ``ValueError``: an unknown seat or event; the message lists the known ones.
    """

    #: The reward depends only on the events of the step: many steps may be one call.
    by_game = True

    def __init__(self, spec: GameSpec, weights: Mapping[str, Mapping[str, float]]) -> None:
        known = (*EVENTS, STEP, MATES)
        for seat, row in weights.items():
            if seat != EVERY_SEAT and seat not in spec.seats:
                raise ValueError(unknown("train.bonus", seat, (EVERY_SEAT, *spec.seats), "seats {}"))
            for event in row:
                if event not in known:
                    raise ValueError(unknown(f"train.bonus.{seat}", event, known, "events {}"))
        table = np.zeros((spec.num_agents, len(known)))
        for a, seat in enumerate(spec.seats):
            for event, value in {**weights.get(EVERY_SEAT, {}), **weights.get(seat, {})}.items():
                table[a, known.index(event)] = value
        self._events, self._step = table[:, : len(EVENTS)], table[:, known.index(STEP)]
        teams = np.array([spec.team_of(seat) for seat in spec.seats])
        mates = (teams[:, None] == teams) & ~np.eye(spec.num_agents, dtype=bool)
        parts = mates * table[:, [known.index(MATES)]]  # (A, A): part of the column's reward that the row gets
        self._mates = parts.T if parts.any() else None

    def __call__(self, events: NDArray[np.float32], reward: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the training reward (N, A) for events (N, A, E) and canonical reward (N, A)."""
        shaped = reward + self._step
        if self._mates is not None:
            shaped += reward @ self._mates
        _add_bonus(events, self._events, shaped)
        return shaped


@kernel
def _add_bonus(events: NDArray[np.float32], weights: NDArray[np.float64], reward: NDArray[np.float64]) -> None:
    for n in range(events.shape[0]):
        for a in range(events.shape[1]):
            for e in range(events.shape[2]):
                reward[n, a] += events[n, a, e] * weights[a, e]


# --- metrics: frequencies of events

_METRICS = {
    "behaviour/<seat>/door_open": ("own door opened by this seat, per episode", "count"),
    "behaviour/<seat>/eliminated_opponents": ("opponents eliminated by this seat, per episode", "count"),
    "behaviour/<seat>/got_eliminated": ("times this seat was eliminated, per episode", "count"),
    "behaviour/<seat>/key_pickup": ("first pickups of the own key by this seat, per episode", "count"),
    "behaviour/<seat>/ball_pay": ("factors paid for ball pickups, per episode", "sum"),
    "behaviour/<seat>/invalid_pickup": ("pickup actions that cost the penalty, per episode", "count"),
}
#: Events of the engine in these metrics.
BEHAVIOUR = tuple(name.rpartition("/")[2] for name in _METRICS)


def game_specs(spec: GameSpec) -> MultiAgentSpec:
    """Return the seats, teams and events of a game without learning agents."""
    return MultiAgentSpec((), spec.seats, tuple(map(spec.team_of, spec.seats)), ("red", "blue"), EVENTS)


def _samples(table: EpisodeTable, specs: MultiAgentSpec, seats: Sequence[str]) -> dict[str, Sample]:
    return {
        f"behaviour/{seat}/{name}": Sample.of(table.events[:, specs.seats.index(seat), specs.events.index(name)])
        for seat in seats
        if seat in specs.seats
        for name in BEHAVIOUR
        if name in specs.events
    }


def _absent(config: Any, specs: MultiAgentSpec) -> dict[str, str]:  # noqa: ARG001
    return {f"behaviour/*/{name}": "there is no such event" for name in BEHAVIOUR if name not in specs.events}


DOORS = MetricGroup(_METRICS, _samples, _absent, column=False)


def best_return(spec: GameSpec, team: Colour) -> float:
    """Return an upper bound on the return of a team in a game.

    The key, all rewarded pickups of the ball, all eliminations, and a success in step 0 (docs/game.md, section 5). The
    success of an agent without team mates replaces the reward of its last elimination.
    """
    members, opponents = len(spec.seats_of(team)), spec.num_agents - len(spec.seats_of(team))
    weights = spec.weights_of(spec.seats_of(team)[0])
    total, factor = weights.key_pickup + weights.success, weights.ball_discount
    if spec.death_match:
        total += weights.eliminated_opponent * (opponents if members > 1 else max(opponents - 1, 0))
    while spec.obstacle and factor > SMALLEST_FACTOR:
        total, factor = total + weights.ball_pickup * factor, factor**2
    return total
