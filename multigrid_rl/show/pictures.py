"""Frames with words: a strip of captions below the board. No files."""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from multigrid_rl.show.captions import AgentLine, Caption
from multigrid_rl.show.words import shortened
from multigrid_rl.world.rendering import INK, PAPER, SOFT, TEAM_INKS

Picture = NDArray[np.uint8]  # (height, width, 3) red, green, blue

#: Colour of who wins.
_ACCENT = "#0a6b64"
_TEAM_INKS = dict(zip(("red", "blue"), TEAM_INKS, strict=True))
#: A strip is no narrower than this many pixels: below, words would be cut off everywhere.
NARROWEST = 256
_SMALLEST, _LARGEST = 11, 30  # pixels of a letter's size


class Notes(NamedTuple):
    """Text in the strip beside the caption."""

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
        total = ("" if line.total is None else f"{round(line.total, 2) + 0.0:+.2f}", self._bold, INK)
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
            clipped = fitted(text, face, edge - self._pad - left)
            draw.text((left, top), clipped, font=face, fill=colour)
            left += face.getlength(clipped)


def fitted(text: str, face: Any, room: float) -> str:
    """Return ``text``, cut off with an ellipsis where it is wider than ``room`` pixels in a font."""
    if face.getlength(text) <= room:
        return text
    while text and face.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…" if text else ""


@lru_cache(maxsize=16)
def font(size: int, *, bold: bool = False, mono: bool = False) -> Any:
    """Return DejaVu Sans, as it comes with matplotlib."""
    # Imported here: matplotlib takes a quarter of a second, and only its font files are wanted.
    import matplotlib  # noqa: PLC0415 - see above

    name = f"DejaVuSans{'Mono' if mono else ''}{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
