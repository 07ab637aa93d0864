"""Replays of single games: a game is its specification, seed, number and actions."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from multigrid_rl.config.scenario import Strict
from multigrid_rl.players.episodes import Played
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

_MOST_LISTED = 12  # games listed in a refusal


class ReplayError(ValueError):
    """A record whose actions are not one whole game; the message is one line."""


class GameRecord(Strict):
    """One game, small enough for a line of text: everything random in it follows from ``seed`` and ``game``."""

    format: int = Field(default=1, ge=1, le=1)
    label: str  # reason to keep it: "best", "median", ...
    spec: GameSpec
    seed: int
    game: int = Field(ge=0)
    players: dict[str, str]  # seat -> name of its player
    actions: dict[str, str]  # seat -> one digit a step, an index into world.constants.ACTIONS

    @model_validator(mode="after")
    def _every_seat_acts(self) -> "GameRecord":
        seats = self.spec.seats
        if tuple(self.actions) != seats or set(self.players) != set(seats):
            raise ValueError(expected("actions", f"{', '.join(seats)} in this order", ", ".join(self.actions)))
        if len({len(text) for text in self.actions.values()}) != 1 or not self.steps:
            raise ValueError("actions: expected equally many for every seat, at least one")
        digits = set("0123456789"[: len(ACTIONS)])
        for seat, text in self.actions.items():
            if not set(text) <= digits:
                raise ValueError(expected(f"actions.{seat}", f"digits 0 to {len(ACTIONS) - 1}", shown(text, 20)))
        return self

    @property
    def steps(self) -> int:
        """Length of the game."""
        return len(next(iter(self.actions.values())))


class Replay(NamedTuple):
    """A game of ``T`` steps and ``A`` agents; frame 0 is the start, frame ``t`` the state after step ``t``."""

    cells: NDArray[np.uint8]  # (T + 1, 128) cell codes, agents not drawn in, index x * 8 + y
    position: NDArray[np.uint8]  # (T + 1, A) cell index
    heading: NDArray[np.uint8]  # (T + 1, A) 0 +x, 1 +y, 2 -x, 3 -y
    hand: NDArray[np.uint8]  # (T + 1, A) code of the carried object, EMPTY for none
    tokens: NDArray[np.uint8]  # (T + 1, A, D) observations; no action follows the last ones
    actions: NDArray[np.int8]  # (T, A)
    reward: NDArray[np.float64]  # (T, A) canonical
    events: NDArray[np.float32]  # (T, A, E)
    out: NDArray[np.bool_]  # (T + 1, A) the agent is eliminated, or the game is over
    winner: int  # 0 red, 1 blue, -1 none


def record(spec: GameSpec, played: Played, row: int, *, seed: int, players: dict[str, str], label: str) -> GameRecord:
    """Record one played game."""
    steps = int(played.table.length[row])
    actions = {seat: "".join(map(str, played.actions[row, :steps, a].tolist())) for a, seat in enumerate(spec.seats)}
    return GameRecord(label=label, spec=spec, seed=seed, game=played.first + row, players=players, actions=actions)


def taken_actions(game: GameRecord) -> NDArray[np.int8]:
    """Return the actions (T, A) of a record."""
    return np.asarray(np.array([[int(digit) for digit in text] for text in game.actions.values()], np.int8).T)


def frames(game: GameRecord) -> Iterator[tuple[World, Step | None]]:
    """Yield the world at the start (no step yet) and after each step. The arrays change from one to the next.

    Raises:
        ReplayError: the game ends before or after its last recorded action.
    """
    world = World(game.spec, 1, seed=game.seed, first_game=game.game, auto_reset=False)
    yield world, None
    actions = taken_actions(game)
    for t in range(game.steps):
        step = world.step(actions[None, t])
        if bool(step.done[0]) != (t == game.steps - 1):
            actual = f"an end after {t + 1}" if step.done[0] else "none"
            raise ReplayError(
                expected(f"game {game.game} of seed {game.seed}", f"an end after {game.steps} steps", actual)
            )
        yield world, step


def replay(game: GameRecord, shots_of: Iterable[tuple[World, Step | None]] | None = None) -> Replay:
    """Play a record again and keep every frame.

    Args:
        game: the record.
        shots_of: its :func:`frames`, where the caller iterates over them as well.

    Raises:
        ReplayError: the game ends before or after its last recorded action.
    """
    shots: dict[str, list[Any]] = {name: [] for name in ("cells", "position", "heading", "hand", "tokens", "out")}
    moves: dict[str, list[Any]] = {name: [] for name in ("reward", "events")}
    winner = -1
    for world, step in shots_of or frames(game):
        for name in ("cells", "position", "heading", "hand", "out"):
            shots[name].append(getattr(world.state, name)[0].copy())
        shots["tokens"].append(world.outputs.tokens[0].copy())
        if step is not None:
            moves["reward"].append(step.reward[0].copy())
            moves["events"].append(step.events[0].copy())
            winner = int(step.winner[0])
    stacked = {name: np.stack(values) for name, values in {**shots, **moves}.items()}
    stacked["out"] = stacked["out"].astype(np.bool_)
    return Replay(**stacked, actions=taken_actions(game), winner=winner)


# --- one of many


def check_game(which: str) -> str:
    """Return the label or number that ``which`` means among games not played yet. Raises ``ConfigError``."""
    word = which.partition(" ")[0].lower()
    found = [label for label in ("best", "median", "worst") if word and label.startswith(word)]
    if word.isdecimal() or found:
        return found[0] if found else word
    raise ConfigError(expected("--game", "best, median or worst, or the number of a game from 0", which))


def choose(games: list[GameRecord], which: str | None, source: object) -> GameRecord:
    """Choose one of ``games``: by its label, by its place in the list from 0, or by how its label begins.

    ``best`` is the first game whose label begins with it. The default is ``best`` if there is one, else the first.

    Raises:
        ConfigError: no such game.
    """
    labels = [game.label for game in games]
    if which in labels:
        return games[labels.index(which)]
    if which is not None and which.isdecimal() and int(which) < len(games):
        return games[int(which)]
    matching = [game for game in games if game.label.lower().startswith((which or "best").lower())]
    if matching or which is None:
        return matching[0] if matching else games[0]
    listed = ", ".join(f"{k} ({shown(label)})" for k, label in enumerate(labels[:_MOST_LISTED]))
    more = f" and {len(games) - _MOST_LISTED} more" if len(games) > _MOST_LISTED else ""
    raise ConfigError(expected("--game", f"{listed}{more} of {source}", which))
