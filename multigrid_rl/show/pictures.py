"""Frames with words: a strip of captions below the board, and panels of text over it. No window, no files."""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from multigrid_rl.show.captions import AgentLine, Caption
from multigrid_rl.show.words import shortened

Picture = NDArray[np.uint8]  # (height, width, 3) red, green, blue

BACKGROUND = (22, 22, 26)
WHITE = (238, 238, 238)
GREY = (160, 160, 166)
GOLD = (255, 214, 90)
#: Lighter than the board's own colours, which are too dark for text.
TEAM_COLOURS = {"red": (255, 110, 105), "blue": (125, 165, 255)}
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
        image = Image.new("RGB", (self._width, self.height), BACKGROUND)
        draw = ImageDraw.Draw(image)
        self._write(draw, 0, [(notes.head, self._bold, WHITE)], (notes.aside, self._font, GREY))
        for row, line in enumerate(caption.agents, 1):
            self._agent(draw, row, line)
        foot = (caption.result, self._bold, GOLD) if caption.result else (notes.foot, self._font, GREY)
        self._write(draw, len(caption.agents) + 1, [foot], ("", self._font, GREY))
        return np.concatenate([board, np.asarray(image)])

    def _agent(self, draw: Any, row: int, line: AgentLine) -> None:
        colour = GREY if line.out else TEAM_COLOURS.get(line.seat.partition("_")[0], WHITE)
        # Rounded, then added to zero: never "-0.00".
        total = ("" if line.total is None else f"{round(line.total, 2) + 0.0:+.2f}", self._bold, WHITE)
        names = [f"{line.seat} {shortened(line.player)}", line.seat]
        # Where both do not fit, the player's name is left out: the events matter more.
        room = self._width - 3 * self._pad - self._bold.getlength(total[0])
        fits = (self._bold.getlength(n) + self._font.getlength(f": {line.words}") <= room for n in names)
        name = names[0] if next(fits) else names[1]
        words = f": {line.words}" if line.words else ""
        self._write(draw, row, [(name, self._bold, colour), (words, self._font, WHITE)], total)

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


def panel(picture: Picture, lines: list[str]) -> Picture:
    """Return the picture, darkened, with lines of text in its middle; the first is a title. Tabs make two columns."""
    height, width = picture.shape[:2]
    image = Image.fromarray((picture * 0.25).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    size = min(max(min(width // 36, round(height / (len(lines) + 2) / 1.45)), _SMALLEST), _LARGEST)
    top = (height - len(lines) * size * 1.45) / 2
    for number, line in enumerate(lines):
        face = font(size, bold=number == 0)
        for text, share in zip(line.split("\t"), (0.12, 0.45), strict=False):
            clipped = fitted(text, face, width * (0.98 - share))
            draw.text((width * share, top), clipped, font=face, fill=GOLD if number == 0 else WHITE)
        top += size * 1.45
    return np.asarray(image)


@lru_cache(maxsize=16)
def font(size: int, *, bold: bool = False, mono: bool = False) -> Any:
    """Return DejaVu Sans, as it comes with matplotlib."""
    # Imported here: matplotlib takes a quarter of a second, and only its font files are wanted.
    import matplotlib  # noqa: PLC0415 - see above

    name = f"DejaVuSans{'Mono' if mono else ''}{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
