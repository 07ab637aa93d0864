"""Records and replays of single games: specification, seed, number and actions."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from operator import not_
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from multigrid_rl.config.scenario import Strict
from multigrid_rl.envs.base import reset_seed
from multigrid_rl.envs.zoo import LIMIT, DrawMode, open_game, start_episode
from multigrid_rl.players.episodes import EpisodeBatch
from multigrid_rl.players.places import place_of
from multigrid_rl.runs.players import check_env
from multigrid_rl.runs.reader import reading
from multigrid_rl.text import ConfigError, expected, first_error, shown
from multigrid_rl.trust import mistake
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

_MOST_LISTED = 12  # games listed in a refusal
_DIGITS = 18  # of a game's number: it stays below 2**63
#: Seat -> step from 0 -> note of its program's answer.
Notes = dict[str, dict[int, str]]


class ReplayError(ValueError):
    """A record whose actions are not one complete game; the message is one line."""


class GameRecord(Strict):
    """One game on one line of text: everything random in it follows from ``seed`` and ``game``."""

    format: int = Field(default=1, ge=1, le=1)
    label: str  # the reason for storing it: "best", "median", ...
    spec: GameSpec
    seed: int
    game: int = Field(ge=0)
    players: dict[str, str]  # seat -> name of its player
    actions: dict[str, str]  # seat -> one digit a step, an index into world.constants.ACTIONS
    notes: Notes = Field(default={}, exclude_if=not_)

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


class ZooRecord(Strict):
    """One game of PettingZoo; everything random in it follows from ``seed`` and ``game``."""

    format: int = Field(default=1, ge=1, le=1)
    label: str
    env_id: str
    env_args: dict[str, Any]
    seed: int
    game: int = Field(ge=0)
    players: dict[str, str]  # seat -> name of its player
    actions: dict[str, list[Any]]  # seat -> its action in each step; None without one
    returns: dict[str, float]  # by seat
    result: str  # the winner; "" in games without winners
    notes: Notes = Field(default={}, exclude_if=not_)

    @model_validator(mode="after")
    def _every_seat_acts(self) -> "ZooRecord":
        if not self.actions or not set(self.actions) == set(self.players) == set(self.returns):
            raise ValueError(expected("actions", ", ".join(self.players), ", ".join(self.actions)))
        if len({len(row) for row in self.actions.values()}) != 1 or not self.steps:
            raise ValueError("actions: expected equally many for every seat, at least one")
        return self

    @property
    def steps(self) -> int:
        """Length of the game."""
        return len(next(iter(self.actions.values())))


class EpisodeRecord(ZooRecord):
    """One episode of Gymnasium, only in memory while a program shows it."""


def _kind(game: Any) -> str:
    return "other" if isinstance(game, ZooRecord) or (isinstance(game, dict) and "env_id" in game) else "board"


#: A game of either kind.
AnyRecord = Annotated[Annotated[GameRecord, Tag("board")] | Annotated[ZooRecord, Tag("other")], Discriminator(_kind)]


class ReplayedGame(NamedTuple):
    """A game of ``T`` steps and ``A`` agents; frame 0 is the start, frame ``t`` the state after step ``t``."""

    cells: NDArray[np.uint8]  # (T + 1, 128) cell codes without agents, index x * 8 + y
    position: NDArray[np.uint8]  # (T + 1, A) cell index
    heading: NDArray[np.uint8]  # (T + 1, A) 0 +x, 1 +y, 2 -x, 3 -y
    hand: NDArray[np.uint8]  # (T + 1, A) code of the carried object, EMPTY for none
    tokens: NDArray[np.uint8]  # (T + 1, A, D) observations; no action follows the last ones
    actions: NDArray[np.int8]  # (T, A)
    reward: NDArray[np.float64]  # (T, A) canonical
    events: NDArray[np.float32]  # (T, A, E)
    out: NDArray[np.bool_]  # (T + 1, A) the agent is eliminated, or the game is over
    winner: int  # 0 red, 1 blue, -1 none


def record(spec: Any, played: EpisodeBatch, row: int, *, seed: int, players: dict[str, str], label: str) -> Any:
    """Return the record of a played game: a :class:`GameRecord` or a :class:`ZooRecord`."""
    about = {"label": label, "seed": seed, "game": played.first + row, "players": players}
    if played.moves:
        returns, winner = played.table.returns[row].tolist(), int(played.table.winner[row])
        return zoo_record(spec, played.moves[row], returns=returns, winner=winner, **about)
    steps = int(played.table.length[row])
    actions = {seat: "".join(map(str, played.actions[row, :steps, a].tolist())) for a, seat in enumerate(spec.seats)}
    return GameRecord(spec=spec, actions=actions, **about)


def zoo_record(spec: Any, moves: list[dict[str, Any]], *, returns: list[float], winner: int, **about: Any) -> ZooRecord:
    """Return the record of a game of PettingZoo from the actions in each step; ``about``: its other fields."""
    actions = {
        seat: [np.asarray(step[seat]).tolist() if seat in step else None for step in moves] for seat in spec.seats
    }
    teams, can_win = place_of(spec).who(spec).team_names, place_of(spec).who(spec).has_winner
    result = "" if not can_win else f"{teams[winner]} wins" if winner >= 0 else "drawn"
    about |= {"env_id": spec.env_id, "env_args": spec.env_args, "returns": dict(zip(spec.seats, returns, strict=True))}
    return ZooRecord(actions=actions, result=result, **about)


class Shot(NamedTuple):
    """One moment of a game of PettingZoo."""

    step: int  # steps played
    taken: dict[str, str]  # seat -> name of its action in this step; acting seats only
    totals: dict[str, float]  # seat -> return so far
    drawn: Any  # text, or a picture (H, W, 3) uint8; None without drawing


def shots(game: ZooRecord, how: DrawMode, every: int = 1, build: Callable[..., Any] = open_game) -> Iterator[Shot]:
    """Replay a record; yield its start, every ``every``-th step and its last one, drawn.

    ``build`` makes its environment, an ``envs.zoo.Game``.

    Raises ``ConfigError``: another outcome, or the environment cannot be built, played or drawn.
    """
    check_env(f"game {game.game}", game.env_id, game.env_args)
    key = f"{game.env_id}: game {game.game} of seed {game.seed}"
    try:
        with closing(build(game.env_id, game.env_args, how)) as env:
            totals = dict.fromkeys(game.players, 0.0)
            moment = start_episode(env, reset_seed(game.seed, game.game, 0))
            yield Shot(0, {}, dict(totals), env.drawn(how))
            for t in range(1, game.steps + 1):
                moves = {seat: game.actions[seat][t - 1] for seat in moment.turn}
                arrays = [seat for seat, move in moves.items() if not isinstance(move, int)]
                moves |= {seat: np.asarray(moves[seat], env.spaces(seat)[1].dtype) for seat in arrays}
                names = {seat: str(move) if seat in arrays else env.named(seat, move) for seat, move in moves.items()}
                moment = env.play(moves)
                at_limit = bool(moment.turn) and t == game.env_args.get(LIMIT)
                for seat, reward in [*moment.rewards.items(), *(moment.pending_rewards.items() if at_limit else ())]:
                    totals[seat] += reward
                over = at_limit or not moment.turn
                if over != (t == game.steps):
                    break
                if t % every == 0 or t == game.steps:
                    yield Shot(t, names, dict(totals), env.drawn(how))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        raise ConfigError(f"{key}: {mistake(error)}") from error
    if not over or t < game.steps or not np.allclose([*totals.values()], [game.returns[seat] for seat in totals]):
        raise ConfigError(expected(key, "the same game", "another one: it does not follow from its seed and actions"))


def taken_actions(game: GameRecord) -> NDArray[np.int8]:
    """Return the actions (T, A) of a record."""
    return np.asarray(np.array([[int(digit) for digit in text] for text in game.actions.values()], np.int8).T)


def frames(game: GameRecord) -> Iterator[tuple[World, Step | None]]:
    """Yield the world at the start (no step yet) and after each step. The arrays change from one to the next.

    Raises ``ReplayError``: the game ends before or after its last recorded action.
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


def replay(game: GameRecord, shots_of: Iterable[tuple[World, Step | None]] | None = None) -> ReplayedGame:
    """Replay a record and return every frame.

    ``shots_of``: its :func:`frames`, if the caller uses them, too. Raises ``ReplayError``: the game ends before or
    after its last recorded action.
    """
    boards, tokens, moves, winner = [], [], [], -1
    for world, step in shots_of or frames(game):
        boards.append([part[0].copy() for part in world.board()])
        tokens.append(world.outputs.tokens[0].copy())
        if step is not None:
            moves.append((step.reward[0].copy(), step.events[0].copy()))
            winner = int(step.winner[0])
    cells, position, heading, hand, out = map(np.stack, zip(*boards, strict=True))
    reward, events = map(np.stack, zip(*moves, strict=True))
    board = cells, position, heading, hand
    return ReplayedGame(*board, np.stack(tokens), taken_actions(game), reward, events, out.astype(np.bool_), winner)


# --- files


def read_games(path: Path) -> list[Any]:
    """Read a file of games (one of each kind): a list, or the ``games`` of a cup's results.

    Raises ``ConfigError``: unreadable, no games, or a damaged one.
    """
    wanted = "a list of games as evaluate, cup or play --record wrote it"
    with reading(path, wanted):
        content = json.loads(path.read_text(encoding="utf-8"))
    rows = content.get("games") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows:
        raise ConfigError(expected(path, wanted, "no games in it"))
    games: list[Any] = []
    for row in rows:
        kind = ZooRecord if isinstance(row, dict) and "env_id" in row else GameRecord
        try:
            games.append(kind.model_validate(row))
        except ValidationError as error:
            raise ConfigError(f"{path}: game {len(games)}.{first_error(error)}") from error
    return games


# --- choice of a game


def check_game(which: str) -> str:
    """Return the label or number of a future game for the option ``which``. Raises ``ConfigError``."""
    word = which.partition(" ")[0].lower()
    found = [label for label in ("best", "median", "worst") if word and label.startswith(word)]
    if found or (word.isdecimal() and len(word) <= _DIGITS):
        return found[0] if found else word
    wanted = f"best, median or worst, or the number of a game from 0, of at most {_DIGITS} digits"
    raise ConfigError(expected("--game", wanted, shown(which)))


def choose(games: list[Any], which: str | None, source: object) -> Any:
    """Choose one of ``games``: by its label, its index from 0, or the beginning of its label.

    ``best`` is the first game with a label that begins so. The default is ``best`` if there is one, else the first.

    Raises ``ConfigError``: no such game.
    """
    labels = [game.label for game in games]
    if which in labels:
        return games[labels.index(which)]
    if which is not None and which.isdecimal() and int(which) < len(games):
        return games[int(which)]
    matching = [game for game in games if game.label.lower().startswith((which or "best").lower())]
    if matching or which is None:
        return matching[0] if matching else games[0]
    listing = ", ".join(f"{k} ({shown(label)})" for k, label in enumerate(labels[:_MOST_LISTED]))
    more = f" and {len(games) - _MOST_LISTED} more" if len(games) > _MOST_LISTED else ""
    raise ConfigError(expected("--game", f"{listing}{more} of {source}", which))
