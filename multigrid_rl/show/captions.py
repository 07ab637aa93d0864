"""Captions of a game, one for the start and one after each step, and the strip below a picture that shows them."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from multigrid_rl.evaluation.replays import GameRecord, frames, taken_actions
from multigrid_rl.show.words import plural, shortened
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import INK, PAPER, SOFT, TEAM_INKS
from multigrid_rl.world.state import Step

#: Actions in words, by number.
ACTION_WORDS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "wait")
#: Teams by number, as ``Step.winner`` counts them.
TEAMS = ("red", "blue")
#: Events of an agent in words, in the order of a caption.
_OUTCOMES = {
    c.EV_KEY: "picks up its key",
    c.EV_BALL: "is rewarded for the ball",
    c.EV_INVALID: "picks up nothing",
    c.EV_DOOR: "opens its door",
    c.EV_ELIMINATED: "eliminates an opponent",
    c.EV_VICTIM: "is eliminated",
    c.EV_DOOR_WIN: "wins",
    c.EV_ELIMINATION_WIN: "wins",
}

Picture = NDArray[np.uint8]  # (height, width, 3) red, green, blue

#: Colour of the result.
_ACCENT = "#0a6b64"
_TEAM_INKS = dict(zip(TEAMS, TEAM_INKS, strict=True))
#: Least width of a strip in pixels: below this most words would be cut off.
NARROWEST = 256
_SMALLEST, _LARGEST = 11, 30  # pixels of a letter's size


class AgentLine(NamedTuple):
    """Last action of one agent, and its return so far."""

    seat: str
    player: str  # name of its player
    words: str  # "pick up, picks up its key"
    total: float  # canonical return so far
    out: bool  # it has been eliminated


class Caption(NamedTuple):
    """One moment of a game in words."""

    step: int  # steps played; 0 at the start
    agents: tuple[AgentLine, ...]  # in index order
    result: str  # winner and how; empty until the end


class Commentator:
    """Captions a game, a batch of one; made before its first step. ``players``: seat -> name of its player."""

    def __init__(self, world: World, players: dict[str, str]) -> None:
        self._world, self._players = world, players
        self._totals = np.zeros(world.spec.num_agents)
        self._out = np.zeros(world.spec.num_agents, np.bool_)
        self._steps = 0

    def start(self) -> Caption:
        """Return the caption of the start."""
        return self._caption([""] * self._world.spec.num_agents, "")

    def step(self, step: Step, actions: NDArray[np.int8]) -> Caption:
        """Return the caption after a step in which the agents took ``actions`` (A,)."""
        spec, events = self._world.spec, step.events[0]
        self._steps += 1
        self._totals += step.reward[0]
        words = [
            ", ".join([ACTION_WORDS[action], *(text for event, text in _OUTCOMES.items() if events[a, event])])
            if step.acted[0, a]
            else "out of the game"
            for a, action in enumerate(actions.tolist())
        ]
        self._out |= events[:, c.EV_VICTIM] > 0
        result = result_words(spec, int(step.winner[0]), self._steps, events) if step.done[0] else ""
        return self._caption(words, result)

    def _caption(self, words: list[str], result: str) -> Caption:
        rows = zip(self._world.spec.seats, words, self._totals.tolist(), self._out.tolist(), strict=True)
        lines = (AgentLine(seat, self._players[seat], text, total, out) for seat, text, total, out in rows)
        return Caption(self._steps, tuple(lines), result)


def captioned_frames(game: GameRecord) -> Iterator[tuple[World, Step | None, Caption]]:
    """Yield the frames of a recorded game, each with its caption. Raises ``ReplayError``: see ``replays.frames``."""
    shots = frames(game)
    world, _ = next(shots)
    commentator = Commentator(world, game.players)
    yield world, None, commentator.start()
    for (world, step), actions in zip(shots, taken_actions(game), strict=True):
        assert step is not None  # only the start has none
        yield world, step, commentator.step(step, actions)


def result_words(spec: GameSpec, winner: int, steps: int, events: NDArray[np.float32]) -> str:
    """Return how a game ended: ``winner`` is 0 red, 1 blue, -1 none; ``events`` (A, E) are those of the last step."""
    if winner < 0:
        return f"nobody wins in {plural(steps, 'step')}"
    winners = [k for k, seat in enumerate(spec.seats) if spec.team_of(seat) == TEAMS[winner]]
    way = "by elimination" if events[winners, c.EV_ELIMINATION_WIN].any() else "through its door"
    return f"{TEAMS[winner]} wins {way} after {plural(steps, 'step')}"


# --- strips


class Notes(NamedTuple):
    """Text in the strip around the caption."""

    head: str  # "step 3 of 14"
    aside: str = ""  # to the right of it
    foot: str = ""  # last line, until there is a result


class Strip:
    """Draws captions of ``agents`` lines below a board of ``width`` pixels, at least :data:`NARROWEST`."""

    def __init__(self, width: int, agents: int) -> None:
        self._width = width
        size = min(max(width // 36, _SMALLEST), _LARGEST)
        self._font, self._bold = font(size), font(size, bold=True)
        self._line = round(size * 1.45)
        self._pad = size // 2
        #: Height in pixels; even, since video formats want even sizes.
        self.height = -(-(self._line * (agents + 2) + 2 * self._pad) // 2) * 2

    def below(self, board: Picture, caption: Caption, notes: Notes) -> Picture:
        """Return the board (H, W, 3) with its caption below: (H + height, W, 3)."""
        image = Image.new("RGB", (self._width, self.height), PAPER)
        draw = ImageDraw.Draw(image)
        self._write(draw, 0, [(notes.head, self._bold, INK)], (notes.aside, self._font, SOFT))
        for row, line in enumerate(caption.agents, 1):
            self._agent(draw, row, line)
        foot = (caption.result, self._bold, _ACCENT) if caption.result else (notes.foot, self._font, SOFT)
        self._write(draw, len(caption.agents) + 1, [foot], ("", self._font, SOFT))
        return np.concatenate([board, np.asarray(image)])

    def _agent(self, draw: Any, row: int, line: AgentLine) -> None:
        colour = SOFT if line.out else _TEAM_INKS.get(line.seat.partition("_")[0], INK)
        # Rounded, then added to zero: never "-0.00".
        total = (f"{round(line.total, 2) + 0.0:+.2f}", self._bold, INK)
        names = [f"{line.seat} {shortened(line.player)}", line.seat]
        # Where both do not fit, the player's name is left out: the events matter more.
        room = self._width - 3 * self._pad - self._bold.getlength(total[0])
        fits = (self._bold.getlength(n) + self._font.getlength(f": {line.words}") <= room for n in names)
        name = names[0] if next(fits) else names[1]
        words = f": {line.words}" if line.words else ""
        self._write(draw, row, [(name, self._bold, colour), (words, self._font, INK)], total)

    def _write(self, draw: Any, row: int, parts: list[tuple[str, Any, Any]], right: tuple[str, Any, Any]) -> None:
        top, left = self._pad + row * self._line, float(self._pad)
        edge = self._width - self._pad - right[1].getlength(right[0])
        draw.text((edge, top), right[0], font=right[1], fill=right[2])
        for text, face, colour in parts:
            clipped = fit_text(text, face, edge - self._pad - left)
            draw.text((left, top), clipped, font=face, fill=colour)
            left += face.getlength(clipped)


def fit_text(text: str, face: Any, room: float) -> str:
    """Return ``text``, cut off with an ellipsis where it is wider than ``room`` pixels in a font."""
    if face.getlength(text) <= room:
        return text
    while text and face.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…" if text else ""


@lru_cache(maxsize=16)
def font(size: int, *, bold: bool = False) -> Any:
    """Return DejaVu Sans, as it comes with matplotlib."""
    # Imported here: matplotlib takes a quarter of a second, and only its font files are needed.
    import matplotlib  # noqa: PLC0415 - see above

    name = f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
