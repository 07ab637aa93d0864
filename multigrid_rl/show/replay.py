"""Games packed for the replay of a page: each frame as what changed since the one before.

A frame is a vector of bytes, of ``A`` agents and a view of ``V`` by ``V``::

    cells 128 | position A | heading A | hand A | out A | own A | mission A | seen A * ceil(V * V / 8)

``own`` is what the agent's own cell shows in its view, ``seen`` one bit for each cell of its view (bit ``k % 8`` of
byte ``k // 8``). What an agent sees in a cell follows from board, poses and these bits, so views cost next to nothing;
where it does not (recorded rules show the moment before a step's results), the cell is listed as an exception. Frame 0
is written whole, each later one as the number of bytes that changed and then (index, value) pairs.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.judge.replays import GameRecord, Replay, frames, replay
from multigrid_rl.show.captions import Commentator
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import (
    AGENT,
    BLUE,
    EV_BALL,
    EV_DOOR,
    EV_DOOR_WIN,
    EV_ELIMINATED,
    EV_ELIMINATION_WIN,
    EV_KEY,
    EV_VICTIM,
    MISSIONS,
    RED,
    SIDE_ROOM,
)
from multigrid_rl.world.views import view_tables

Bytes = NDArray[np.uint8]

#: Events that the replay lists as moments to jump to.
_MOMENTS = [EV_KEY, EV_BALL, EV_ELIMINATED, EV_VICTIM, EV_DOOR, EV_DOOR_WIN, EV_ELIMINATION_WIN]


@dataclass
class Names:
    """Texts that games refer to by number: each stands in the page once."""

    rows: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of ``text``, a new one if it is new."""
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self.rows)
            self.rows.append(text)
        return known


@dataclass
class Pack:
    """Packed games and what they share; :meth:`data` is what the page's script reads."""

    players: Names = field(default_factory=Names)
    words: Names = field(default_factory=Names)
    specs: list[dict[str, Any]] = field(default_factory=list)
    games: list[dict[str, Any]] = field(default_factory=list)

    def pack(self, game: GameRecord, title: str | None = None) -> dict[str, Any]:
        """One game as plain JSON; it is not added to :attr:`games`.

        Args:
            game: its record.
            title: in the list of games; by default its label and how it ended.

        Raises:
            ReplayError: the record's actions do not make a whole game.
        """
        spec, played = game.game_spec, replay(game)
        vectors, exceptions = frame_vectors(spec, played)
        told, result = _commentary(game)
        words = [[self.words.number(word) for word in row] for row in told]
        return {
            "title": title or f"{game.label}: {result}",
            "spec": self._spec(spec),
            "players": [self.players.number(game.players[seat]) for seat in spec.seats],
            "steps": game.steps,
            "winner": played.winner,
            "result": result,
            "frames": _text(changes(vectors)),
            # Two bytes each, low byte first: a page of many games has more than 256 different texts.
            "words": _text(np.array(words, "<u2").reshape(-1).view(np.uint8)),
            "rewards": [
                value
                for t, a in np.argwhere(played.reward != 0).tolist()
                for value in (t, a, _whole(float(played.reward[t, a])))
            ],
            "moments": np.argwhere(played.events[:, :, _MOMENTS].any(axis=2)).reshape(-1).tolist(),
            "exceptions": exceptions,
        }

    def data(self) -> dict[str, Any]:
        """Everything the replay needs."""
        return {
            "specs": self.specs,
            "players": self.players.rows,
            "words": self.words.rows,
            "missions": list(MISSIONS),
            "games": self.games,
        }

    def _spec(self, spec: GameSpec) -> int:
        row = {
            "seats": list(spec.seats),
            "teams": [BLUE if spec.team_of(seat) == "blue" else RED for seat in spec.seats],
            "view": spec.view_size,
            "limit": spec.max_steps,
            "rooms": [int(cell) for cell in SIDE_ROOM],
            "missions": spec.mission_observed,
        }
        if row not in self.specs:
            self.specs.append(row)
        return self.specs.index(row)


def frame_vectors(spec: GameSpec, played: Replay) -> tuple[Bytes, list[int]]:
    """Frames (T + 1, L) as vectors, and the exceptions as a flat list of (frame, agent, token, value)."""
    area, agents = spec.view_size**2, spec.num_agents
    tokens = played.tokens.astype(np.uint8)
    own = spec.view_size // 2 * spec.view_size + spec.view_size - 1  # window cell [V // 2][V - 1]
    seen = tokens[:, :, :area] > 0
    bits = np.packbits(seen, axis=2, bitorder="little")  # (T + 1, A, ceil(area / 8))
    told = np.where(seen, _shown(spec, played), 0)
    told[:, :, own] = tokens[:, :, own]
    expected = np.concatenate([told, played.heading[:, :, None], tokens[:, :, area + 1 :]], axis=2)
    wrong = np.argwhere(expected != tokens)
    exceptions = [int(v) for t, a, k in wrong for v in (t, a, k, tokens[t, a, k])]
    parts = (
        played.cells, played.position, played.heading, played.hand, played.out.astype(np.uint8),
        tokens[:, :, own], tokens[:, :, area + 1], bits.reshape(len(tokens), agents * bits.shape[2]),
    )  # fmt: skip
    return np.concatenate(parts, axis=1, dtype=np.uint8), exceptions


def _shown(spec: GameSpec, played: Replay) -> Bytes:
    """Codes (T + 1, A, V * V) that the windows lie over: the board with the living agents drawn in."""
    cells = played.cells.copy()
    times = np.arange(len(cells))
    for a, seat in enumerate(spec.seats) if spec.num_agents > 1 else ():
        living = ~played.out[:, a]
        team = BLUE if spec.team_of(seat) == "blue" else RED
        cells[times[living], played.position[living, a]] = AGENT + 4 * team + played.heading[living, a]
    poses = played.position.astype(np.int64) * 4 + played.heading
    where = view_tables(spec.view_size).cells[poses]  # (T + 1, A, V * V)
    shown: Bytes = cells[times[:, None, None], where]
    return shown


def changes(vectors: Bytes) -> Bytes:
    """Frames (T + 1, L) as one run of bytes: the first whole, then what changes. ``L`` must be below 256."""
    if vectors.shape[1] >= 256:
        raise ValueError(f"frames of {vectors.shape[1]} bytes: allowed is up to 255, so that one byte is an index")
    parts = [vectors[0]]
    for before, after in pairwise(vectors):
        where = np.flatnonzero(before != after)
        parts.append(np.array([len(where)], np.uint8))
        parts.append(np.stack([where.astype(np.uint8), after[where]], axis=1).reshape(-1))
    return np.concatenate(parts)


def _commentary(game: GameRecord) -> tuple[list[list[str]], str]:
    """What every agent did in every step (T rows of A texts), and how it ended."""
    taken = np.array([[int(digit) for digit in text] for text in game.actions.values()], np.int8)  # (A, T)
    told: list[list[str]] = []
    result = ""
    shots = frames(game)
    world, _ = next(shots)
    speaker = Commentator(world, game.players)
    for t, (_, step) in enumerate(shots):
        if step is not None:  # only the start has none
            caption = speaker.tell(step, taken[:, t])
            told.append([line.words for line in caption.agents])
            result = caption.result
    return told, result


def _text(data: Bytes) -> str:
    return base64.b64encode(data.tobytes()).decode("ascii")


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() else value
