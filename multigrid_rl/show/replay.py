"""Games packed for the replay of a page: every frame as compressed bytes, so that its script needs no game engine.

A frame of ``A`` agents with views of ``V`` by ``V`` cells is a row of bytes, as ``assets/decode.js`` reads them::

    cells 128 | position A | heading A | hand A | out A | tokens A * (V * V + 2)
"""

import base64
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.evaluation.replays import GameRecord, replay, shots
from multigrid_rl.show.captions import Caption, captioned_frames
from multigrid_rl.show.films import GameDrawing
from multigrid_rl.show.page import SCRIPTS, TEXT_SCRIPTS, render
from multigrid_rl.show.video import page_film
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

#: Events that the replay lists as moments to jump to.
_MOMENTS = [c.EV_KEY, c.EV_BALL, c.EV_ELIMINATED, c.EV_VICTIM, c.EV_DOOR, c.EV_DOOR_WIN, c.EV_ELIMINATION_WIN]


def frame_rows(*parts: NDArray[Any]) -> NDArray[np.uint8]:
    """Return frames (T, L) as a page's script reads them, of their parts (T, ...) in the order above."""
    return np.concatenate([part.astype(np.uint8).reshape(len(part), -1) for part in parts], axis=1)


class Pack:
    """Packed games and their shared texts; :meth:`data` is the input of the page's script.

    Texts are referenced by number: each is in the page once.
    """

    def __init__(self) -> None:
        self.players: dict[str, int] = {}
        self.words: dict[str, int] = {}
        self.specs: list[dict[str, Any]] = []
        self.games: list[dict[str, Any]] = []

    @classmethod
    def of(cls, games: list[GameRecord]) -> "Pack":
        """Return all of ``games``, packed."""
        pack = cls()
        pack.games = [row for game in games if (row := pack.pack(game)) is not None]
        return pack

    def pack(self, game: Any, title: str | None = None) -> dict[str, Any] | None:
        """Return one game as plain JSON, not added to :attr:`games`; its title is by default label and result.

        Raises ``ReplayError``: the record's actions are not a complete game.
        """
        captions: list[Caption] = []

        def recorded_frames() -> Iterator[tuple[World, Step | None]]:
            for world, step, caption in captioned_frames(game):
                captions.append(caption)
                yield world, step

        spec, played = game.spec, replay(game, recorded_frames())
        result = captions[-1].result
        rows = frame_rows(played.cells, played.position, played.heading, played.hand, played.out, played.tokens)
        return {
            "title": title or f"{game.label}: {result}",
            "spec": self.add_spec(spec),
            "players": [self.players.setdefault(game.players[seat], len(self.players)) for seat in spec.seats],
            "steps": game.steps,
            **_program_notes(game, spec.seats),
            "winner": played.winner,
            "result": result,
            "frames": base64.b64encode(zlib.compress(rows.tobytes(), 9)).decode("ascii"),
            "words": [
                self.words.setdefault(line.words, len(self.words))
                for caption in captions[1:]  # nothing has been done at the start
                for line in caption.agents
            ],
            "rewards": [
                (t, a, float(played.reward[t, a])) for t, a in np.argwhere(played.reward != 0).tolist()
            ],
            "moments": np.argwhere(played.events[:, :, _MOMENTS].any(axis=2)).tolist(),
        }  # fmt: skip

    def data(self) -> dict[str, Any]:
        """Return everything the replay needs."""
        return {
            "specs": self.specs,
            "players": list(self.players),
            "words": list(self.words),
            "missions": list(c.MISSIONS),
            "games": self.games,
        }

    def add_spec(self, spec: GameSpec) -> int:
        """Add the data of a kind of game, once; returns its number."""
        row = {
            "seats": list(spec.seats),
            "teams": [c.BLUE if spec.team_of(seat) == "blue" else c.RED for seat in spec.seats],
            "view": spec.view_size,
            "rooms": [int(cell) for cell in c.SIDE_ROOM],
            "missions": spec.mission_observed,
        }
        if row not in self.specs:
            self.specs.append(row)
        return self.specs.index(row)


class TextPack(Pack):
    """Packed games that write themselves as text; :meth:`data` is the input of the page's script for texts."""

    def pack(self, game: Any, title: str | None = None) -> dict[str, Any] | None:
        """Return one game as plain JSON, not added to :attr:`games`; ``None`` where it has no text.

        Raises ``ConfigError``: see ``replays.shots``.
        """
        if not GameDrawing(game).texts:
            return None
        seats, text_shots = list(game.players), list(shots(game, "text"))
        self.specs = [{"seats": seats, "teams": [0] * len(seats)}]
        frames = "\0".join(shot.drawn for shot in text_shots).encode()
        return {
            "title": title or (f"{game.label}: {game.result}" if game.result else game.label),
            "spec": 0,
            "players": [self.players.setdefault(game.players[seat], len(self.players)) for seat in seats],
            "steps": game.steps,
            "winner": -1,
            "result": game.result or f"the end after {game.steps} steps",
            "frames": base64.b64encode(zlib.compress(frames, 9)).decode("ascii"),
            "words": [[shot.taken.get(seat) for seat in seats] for shot in text_shots[1:]],
            **_program_notes(game, seats),
            "totals": [[round(shot.totals[seat], 6) for seat in seats] for shot in text_shots],
        }

    def data(self) -> dict[str, Any]:
        """Return everything the replay needs."""
        return {"specs": self.specs, "players": list(self.players), "games": self.games}


def _program_notes(game: Any, seats: Iterable[str]) -> dict[str, Any]:
    """Return the notes of programs, by seat and step, for a page; empty without any."""
    return {"says": [game.notes.get(seat, {}) for seat in seats]} if game.notes else {}


def replays(games: list[Any]) -> dict[str, Any]:
    """Return the arguments of :func:`page.render` to replay games (of ``replays``): their ``data``, and its scripts.

    Raises ``ValueError``: a record that is not a complete game.
    """
    texts = bool(games) and not isinstance(games[0], GameRecord)
    pack = (TextPack if texts else Pack).of(games)
    return {"data": pack.data() if pack.games else None, "scripts": TEXT_SCRIPTS if texts and pack.games else SCRIPTS}


def game_page(game: Any) -> str:
    """Return the page of one game. Raises ``ValueError`` for a record that is not a complete game."""
    seats = ", ".join(f"{seat} {player}" for seat, player in game.players.items())
    lead = f"{game.label}, game {game.game} of seed {game.seed}: {seats}"
    content = replays([game])
    films = [] if content["data"] else [page_film(GameDrawing(game), game.label)]
    return render("game.html", kind="Game", title=game.label, lead=lead, films=films, **content)
