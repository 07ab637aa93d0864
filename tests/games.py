"""Shared by tests: set up one position by hand, play one step, read the outcome by seat name."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from multigrid_rl.types import GameSpec, Rules
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

EAST, SOUTH, WEST, NORTH = range(4)
VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
RED_KEY, RED_KEY_USED, BLUE_KEY, BLUE_KEY_USED = range(c.KEY, c.KEY + 4)
RED_BALL, BLUE_BALL = c.BALL, c.BALL + 1
RED_DOOR, BLUE_DOOR = (4, 6), (11, 1)
RED_FRONT, BLUE_FRONT = (5, 6), (10, 1)
ROOM = [(x, y) for x in range(5, 11) for y in range(1, 7)]
RULE_SETS = {"classic": Rules.classic(), "fair": Rules()}
both_rules = pytest.mark.parametrize("rules", list(RULE_SETS))


def approx(value: float) -> Any:
    """Equal but for the last bits of a float."""
    return pytest.approx(value, rel=1e-12)


@dataclass(frozen=True)
class Outcome:
    """One step of game 0, by seat name."""

    reward: dict[str, float]
    events: dict[str, dict[str, float]]  # only those that are not zero, and never "door_ready"
    terminated: dict[str, bool]
    acted: dict[str, bool]
    truncated: bool
    done: bool
    winner: int


class Always:
    """Plays one action, counts in its memory the steps of each game, and notes the counts that it acts on."""

    def __init__(self, action: int) -> None:
        self.name, self.action = f"always-{action}", action
        self.seen: list[list[int]] = []

    def initial_state(self, games: int) -> Any:
        return np.zeros(games, int)

    def reset_state(self, state: Any, done: Any) -> Any:
        return np.where(done, 0, state)

    def act(self, view: Any, state: Any, rng: Any) -> Any:
        self.seen.append(state.tolist())
        return np.full(len(view.tokens), self.action, np.int8), state + 1


def spec(rules: Rules | str = "classic", *, blue: int = 1, red: int = 1, **changes: Any) -> GameSpec:
    """A game with fixed keys and 300 steps, unless told otherwise."""
    chosen = RULE_SETS[rules] if isinstance(rules, str) else rules
    settings: dict[str, Any] = {"random_keys": False, "max_steps": 300, **changes}
    return GameSpec(blue=blue, red=red, rules=chosen, **settings)


def world(rules: Rules | str = "classic", **changes: Any) -> World:
    """One game that stays finished at its end."""
    return World(spec(rules, **changes), 1, auto_reset=False)


def place(w: World, seat: str, x: int, y: int, heading: int, hand: int = c.EMPTY) -> None:
    """Put an agent of game 0 somewhere, with something in its hands."""
    a = w.spec.seats.index(seat)
    w.state.position[0, a] = c.cell_index(x, y)
    w.state.heading[0, a] = heading
    w.state.hand[0, a] = w.state.shown[0, a] = hand


def put(w: World, cell: tuple[int, int], code: int) -> None:
    """Write one cell of game 0."""
    w.state.cells[0, c.cell_index(*cell)] = code


def at(w: World, cell: tuple[int, int]) -> int:
    """Read one cell of game 0."""
    return int(w.state.cells[0, c.cell_index(*cell)])


def find(w: World, code: int) -> list[tuple[int, int]]:
    """Cells of game 0 that hold ``code``."""
    return [divmod(int(k), c.HEIGHT) for k in np.flatnonzero(w.state.cells[0] == code)]


def clear(w: World) -> None:
    """Take every key and ball off the board of game 0."""
    cells = w.state.cells[0]
    cells[(cells >= c.KEY) & (cells <= BLUE_BALL)] = c.EMPTY


def where(w: World, seat: str) -> tuple[int, int]:
    """Cell of an agent of game 0."""
    return divmod(int(w.state.position[0, w.spec.seats.index(seat)]), c.HEIGHT)


def hand(w: World, seat: str) -> int:
    """What an agent of game 0 carries."""
    return int(w.state.hand[0, w.spec.seats.index(seat)])


def image(w: World, seat: str) -> np.ndarray:
    """The (V, V, 3) view that was handed out last to an agent of game 0."""
    v = w.spec.view_size
    return c.decode(w.outputs.tokens[0, w.spec.seats.index(seat), : v * v]).reshape(v, v, 3)


def heading_and_mission(w: World, seat: str) -> tuple[int, int]:
    """The last two tokens of an agent of game 0."""
    tokens = w.outputs.tokens[0, w.spec.seats.index(seat)]
    return int(tokens[-2]), int(tokens[-1])


def play(w: World, order: tuple[str, ...] | None = None, **actions: int) -> Outcome:
    """One step: ``play(w, red_0=FORWARD)``. Seats not named do nothing; ``order`` names those handled first."""
    seats = w.spec.seats
    row = np.full((1, len(seats)), c.DONE, np.int8)
    for seat, action in actions.items():
        row[0, seats.index(seat)] = action
    given = None
    if order is not None:
        rest = [s for s in seats if s not in order]
        given = np.array([[seats.index(s) for s in (*order, *rest)]], np.int8)
    step = w.step(row, given)
    # door_ready tells that a position became ready or ceased to be. Positions set by hand become so out of nothing, in
    # whatever step is played next: unit/test_shaping.py looks at that event, everybody else leaves it out.
    rows = [{k: float(v) for k, v in zip(c.EVENTS, row, strict=True) if v} for row in step.events[0]]
    events = [{name: value for name, value in row.items() if name != "door_ready"} for row in rows]
    return Outcome(
        reward=dict(zip(seats, step.reward[0].tolist(), strict=True)),
        events=dict(zip(seats, events, strict=True)),
        terminated=dict(zip(seats, step.terminated[0].tolist(), strict=True)),
        acted=dict(zip(seats, step.acted[0].tolist(), strict=True)),
        truncated=bool(step.truncated[0]),
        done=bool(step.done[0]),
        winner=int(step.winner[0]),
    )
