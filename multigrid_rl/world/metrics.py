"""Metrics of the red/blue-door game: how often what happens in it."""

from collections.abc import Sequence
from typing import Any

from multigrid_rl.metrics import MetricGroup, Sample
from multigrid_rl.types import EpisodeTable, GameSpec, MultiAgentSpec
from multigrid_rl.world.constants import EVENTS

_NAMES = {
    "behaviour/<seat>/door_open": ("own door opened by this seat, per episode", "count"),
    "behaviour/<seat>/eliminated_opponents": ("opponents eliminated by this seat, per episode", "count"),
    "behaviour/<seat>/got_eliminated": ("times this seat was eliminated, per episode", "count"),
    "behaviour/<seat>/key_pickup": ("first pickups of the own key by this seat, per episode", "count"),
    "behaviour/<seat>/ball_pay": ("factors paid for ball pickups, per episode", "sum"),
    "behaviour/<seat>/invalid_pickup": ("pickup actions that cost the penalty, per episode", "count"),
}
#: The events of the engine that they average.
BEHAVIOUR = tuple(name.rpartition("/")[2] for name in _NAMES)


def game_specs(spec: GameSpec, pools: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> MultiAgentSpec:
    """Return who is in a game in which players fill every seat; ``pools``: seats where several take turns."""
    return MultiAgentSpec((), spec.seats, tuple(map(spec.team_of, spec.seats)), ("red", "blue"), EVENTS, pools)


def _samples(table: EpisodeTable, specs: MultiAgentSpec, who: Sequence[str]) -> dict[str, Sample]:
    return {
        f"behaviour/{seat}/{name}": Sample.of(table.events[:, specs.seats.index(seat), specs.events.index(name)])
        for seat in who
        if seat in specs.seats
        for name in BEHAVIOUR
        if name in specs.events
    }


def _absent(config: Any, specs: MultiAgentSpec) -> dict[str, str]:  # noqa: ARG001
    return {f"behaviour/*/{name}": "there is no such event" for name in BEHAVIOUR if name not in specs.events}


DOORS = MetricGroup(_NAMES, _samples, _absent, column=False)
