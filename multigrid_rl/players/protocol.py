"""What is said to an external agent and what it answers: JSON lines (docs/agents.md). No processes here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.players.text import shown
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS, CELL, MISSIONS

PROTOCOL = 1
#: An answer may take so many bytes, its end of line included: 50 times what 200 games of a team of two need.
MAX_LINE = 1_000_000
_CELL_TEXT = [json.dumps(triple, separators=(",", ":")) for triple in CELL.tolist()]
_MISSION_TEXT = [json.dumps(text) for text in MISSIONS]


class AnswerError(ValueError):
    """An answer that is none; the message is one line."""


def encoded(message: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def hello(spec: GameSpec, scenario: str, seats: tuple[str, ...], games: int, seed: int) -> dict[str, Any]:
    """The first message."""
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "scenario": scenario,
        "seats": list(seats),
        "view_size": spec.view_size,
        "actions": list(ACTIONS),
        "max_steps": spec.max_steps,
        "games": games,
        "seed": seed,
    }


def act(
    spec: GameSpec, seats: tuple[str, ...], step: int, running: NDArray[np.intp], tokens: NDArray[np.uint8]
) -> bytes:
    """What the ``C`` seats see in the games ``running`` (n,); ``tokens`` (n, C * D), one seat after another."""
    # Put together from ready-made text: five times as fast as encoding every number of every cell.
    size = spec.view_size
    names = [json.dumps(seat) for seat in seats]
    games = []
    for game, row in zip(running.tolist(), tokens.reshape(len(tokens), len(seats), -1).tolist(), strict=True):
        views = ",".join(f"{name}:{_view(spec, size, seen)}" for name, seen in zip(names, row, strict=True))
        games.append(f'{{"game":{game},"seats":{{{views}}}}}')
    return f'{{"type":"act","step":{step},"games":[{",".join(games)}]}}\n'.encode()


def _view(spec: GameSpec, size: int, seen: list[int]) -> str:
    cells = [_CELL_TEXT[code] for code in seen[:-2]]
    columns = ",".join(f"[{','.join(cells[i : i + size])}]" for i in range(0, size * size, size))
    mission = f',"mission":{_MISSION_TEXT[seen[-1]]}' if spec.mission_observed else ""
    return f'{{"image":[{columns}],"direction":{seen[-2]}{mission}}}'


def read_ready(line: bytes) -> str:
    """Name that the agent gives itself, empty for none. Raises :class:`AnswerError`."""
    answer = _parsed(line)
    if answer.get("type") != "ready":
        raise AnswerError(f'answered {shown(line)}; allowed is {{"type":"ready"}}')
    name = answer.get("name", "")
    return name if isinstance(name, str) else ""


def read_actions(line: bytes, seats: tuple[str, ...], running: NDArray[np.intp]) -> NDArray[np.int8]:
    """Actions (n, C) of the games ``running`` (n,). Raises :class:`AnswerError`."""
    actions = _parsed(line).get("actions")
    if not isinstance(actions, list):
        raise AnswerError(f'answered {shown(line)}; allowed is {{"actions":[...]}}')
    if len(actions) != len(running):
        raise AnswerError(f"{len(actions)} actions; allowed is one for each of the {len(running)} games")
    return np.array(
        [_of_game(entry, seats, game) for entry, game in zip(actions, running.tolist(), strict=True)], np.int8
    ).reshape(len(running), len(seats))


def _of_game(entry: Any, seats: tuple[str, ...], game: int) -> list[int]:
    if isinstance(entry, dict):
        if entry.keys() != set(seats):
            found = shown(", ".join(entry))
            raise AnswerError(f"game {game}: actions for {found}; allowed is one for each of {', '.join(seats)}")
        row = [entry[seat] for seat in seats]
    elif len(seats) == 1:
        row = [entry]
    else:
        raise AnswerError(f"game {game}: {shown(repr(entry))}; allowed is an action for each of {', '.join(seats)}")
    for seat, action in zip(seats, row, strict=True):
        # By type: a bool is an int to Python, and 2.0 equals 2.
        if type(action) is not int or not 0 <= action < len(ACTIONS):
            raise AnswerError(
                f"game {game}: {seat}={shown(repr(action))}: allowed is an integer 0 to {len(ACTIONS) - 1}"
            )
    return row


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"answered {shown(line) or 'an empty line'}, which is not JSON") from error
    if not isinstance(answer, dict):
        raise AnswerError(f"answered {shown(line)}; allowed is a JSON object")
    return answer
