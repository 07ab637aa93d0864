"""A recorded game as a GIF or MP4: the board step by step with captions below it; any film as such a file."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.evaluation.replays import GameRecord, frames, taken_actions
from multigrid_rl.files import unfinished
from multigrid_rl.show.captions import Commentator
from multigrid_rl.show.pictures import NARROWEST, Notes, Picture, Strip
from multigrid_rl.text import expected, first_error, shown
from multigrid_rl.world.constants import WIDTH
from multigrid_rl.world.rendering import render_frame

SUFFIXES = (".gif", ".mp4")
#: Files of a folder that hold games, in the order in which they are looked for.
GAME_FILES = ("games.json", "results.json")
TILES = (NARROWEST // WIDTH, 96)
#: GIF counts time in hundredths of a second, and viewers slow down what is faster than this.
FPS = (0.5, 50.0)
#: The last frame stays so long, in seconds: it says who won.
LAST_SECONDS = 2.0
#: Pillow holds a whole GIF in memory, one byte a pixel.
_MOST_GIF_BYTES = 600_000_000
_EXACT_COLOURS = 192  # of a GIF's 256
_COLOURS_AT_ONCE = 10_000  # times 256 distances of three numbers
_GAMES = TypeAdapter(list[GameRecord])
_MOST_LISTED = 12  # games listed in a refusal


class VideoError(ConfigError):
    """Games that cannot be shown; the message is one line."""


class Film(NamedTuple):
    """A sequence of pictures."""

    shots: Callable[[], Iterator[Picture]]  # the same pictures at every call; all of one even size
    frames: int  # how many
    fps: float  # frames a second


class Written(NamedTuple):
    """Facts about a written file."""

    frames: int  # pictures in the file
    width: int  # pixels
    height: int
    seconds: float  # of playing time


# --- games from files


def find_games(path: Path) -> Path | None:
    """Find the file of games that ``path`` is, or that lies in it; ``None`` if there is none."""
    if path.is_file():
        return path
    return next((path / name for name in GAME_FILES if (path / name).is_file()), None)


def read_games(path: Path) -> list[GameRecord]:
    """Read a file of game records: a list, or the ``games`` of a cup's results.

    Raises:
        VideoError: unreadable, no games in it, or a damaged one.
    """
    wanted = "a list of games as evaluate, cup or play --record wrote it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VideoError(expected(path, wanted, getattr(error, "strerror", error))) from error
    rows = content.get("games") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows:
        raise VideoError(expected(path, wanted, "no games in it"))
    try:
        return _GAMES.validate_python(rows)
    except ValidationError as error:
        raise VideoError(f"{path}: game {first_error(error)}") from error


def check_game(which: str) -> str:
    """Return the label or number that is meant among games not played yet. Raises ``VideoError``."""
    word = which.partition(" ")[0].lower()
    found = [label for label in ("best", "median", "worst") if word and label.startswith(word)]
    if word.isdecimal() or found:
        return found[0] if found else word
    raise VideoError(expected("--game", "best, median or worst, or the number of a game from 0", which))


def choose(games: list[GameRecord], which: str | None, source: object) -> GameRecord:
    """Choose one of ``games``: by its label, by its place in the list from 0, or by how its label begins.

    ``best`` is the first game whose label begins with it. The default is ``best`` if there is one, else the first.

    Raises:
        VideoError: no such game.
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
    raise VideoError(expected("--game", f"{listed}{more} of {source}", which))


# --- pictures


def pictures(game: GameRecord, tile: int) -> Iterator[Picture]:
    """Yield the start and every step of a game, captioned: uint8 (H, 16 * tile, 3), H even.

    Raises:
        VideoError: not a record of a game, or the game ends before or after its last action.
    """
    actions = taken_actions(game)
    strip = Strip(WIDTH * tile, len(game.actions))
    foot = f"game {game.game} of seed {game.seed}"
    try:
        for t, (world, step) in enumerate(frames(game)):
            if step is None:
                commentator = Commentator(world, game.players)
            caption = commentator.start() if step is None else commentator.step(step, actions[t - 1])
            notes = Notes(f"step {t} of {game.steps}", game.label, foot)
            yield strip.below(render_frame(world, 0, tile), caption, notes)
    except ValueError as error:
        raise VideoError(f"games: expected a record of a whole game; {error}") from error


# --- files


def check_video(path: Path, *, fps: float | None = None, tile: int | None = None, force: bool) -> None:
    """Check the arguments of a video before any games are played.

    Raises:
        VideoError: unknown suffix, a file that exists (unless ``force``), speed or size out of bounds.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise VideoError(expected("--output", f"a file that ends with {' or '.join(SUFFIXES)}", path))
    if tile is not None and not TILES[0] <= tile <= TILES[1]:
        raise VideoError(expected("--tile", f"{TILES[0]} to {TILES[1]} pixels", tile))
    if fps is not None and not FPS[0] <= fps <= FPS[1]:
        raise VideoError(expected("--fps", f"{FPS[0]:g} to {FPS[1]:g} steps a second", f"{fps:g}"))
    if path.is_dir() or (path.exists() and not force):
        raise VideoError(expected("--output", "a new file, or --force", f"{path}, which exists already"))


def write_video(game: GameRecord, path: Path, *, fps: float = 4.0, tile: int = 32, force: bool = False) -> Written:
    """Write a game as ``.gif`` or ``.mp4`` (H.264, yuv420p); ``path`` changes only once the video is complete.

    Raises:
        VideoError: see :func:`check_video`; a damaged record; a GIF too large for memory; no place to write.
    """
    check_video(path, fps=fps, tile=tile, force=force)
    return write_film(Film(lambda: pictures(game, tile), game.steps + 1, fps), path)


def write_film(film: Film, path: Path, *, quality: tuple[str, ...] = ("-crf", "18")) -> Written:
    """Write a film as ``.gif`` or ``.mp4``, replacing an existing file; ``quality`` are arguments of ffmpeg for an MP4.

    Raises:
        VideoError: a GIF too large for memory; no place to write; errors of the film's pictures.
    """
    try:
        with unfinished(path) as beside:
            return _write_gif(film, beside) if path.suffix.lower() == ".gif" else _write_mp4(film, beside, quality)
    except OSError as error:
        got = f"{path}: {error.strerror or error}"
        raise VideoError(expected("--output", "a file that can be written", got)) from error


def _write_gif(film: Film, path: Path) -> Written:
    height, width = next(film.shots()).shape[:2]
    count = film.frames
    if count * height * width > _MOST_GIF_BYTES:
        raise VideoError(
            expected("--output", "an .mp4, or smaller pictures", f"{count} frames of {width} x {height} pixels")
        )
    palette = Palette(film.shots())
    images = (palette.image(picture) for picture in film.shots())
    # Whole hundredths, and no frame is the same as another (each has its step's number), so none is merged.
    each = max(round(100 / film.fps), 2) * 10
    durations = [each] * (count - 1) + [round(LAST_SECONDS * 1000)]
    next(images).save(
        path, format="GIF", save_all=True, append_images=images, duration=durations, loop=0, optimize=False, disposal=1
    )
    return Written(count, width, height, sum(durations) / 1000)


class Palette:
    """The 256 colours of a GIF: the most frequent ones exactly, all others by the nearest of those and a few means.

    Pillow's own mapping merges similar colours; the few colours of a board stay exact.
    """

    def __init__(self, shots: Iterator[Picture]) -> None:
        colours, counts = np.zeros(0, np.uint32), np.zeros(0, np.int64)
        for picture in shots:
            own, own_counts = np.unique(_packed(picture), return_counts=True)
            colours, place = np.unique(np.concatenate([colours, own]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, own_counts])).astype(np.int64)
        row = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.uint8)
        ranked = row[np.argsort(-counts, kind="stable")]
        exact, rest = ranked[:_EXACT_COLOURS], ranked[_EXACT_COLOURS:]
        # Each of the rest counts once, so that rare ones, such as a carried key's, are kept.
        means = Image.fromarray(rest[None]).quantize(256 - _EXACT_COLOURS).getpalette() if len(rest) else []
        self._colours = colours
        self._entries = [*exact.ravel().tolist(), *means]
        entries = np.array(self._entries).reshape(-1, 3)
        # In parts: a board has a hundred colours, but pictures of other environments may have a million.
        parts = np.array_split(row[:, None].astype(np.int64), len(row) // _COLOURS_AT_ONCE + 1)
        nearest = [((part - entries) ** 2).sum(axis=2).argmin(axis=1) for part in parts]
        self._nearest = np.concatenate(nearest).astype(np.uint8)

    def image(self, picture: Picture) -> Any:
        """Return the picture (H, W, 3), one of those it was made from, in the palette's colours."""
        image = Image.fromarray(self._nearest[np.searchsorted(self._colours, _packed(picture))])
        image.putpalette(self._entries)  # of a grey picture it makes one in colours
        return image


def _packed(picture: Picture) -> NDArray[np.uint32]:
    packed: NDArray[np.uint32] = picture.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    return packed


def _write_mp4(film: Film, path: Path, quality: tuple[str, ...]) -> Written:
    # Imported here: a game is shown as GIF without it.
    import imageio_ffmpeg  # noqa: PLC0415 - see above

    shots = film.shots()
    first = next(shots)
    height, width = first.shape[:2]
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=film.fps, codec="libx264", pix_fmt_out="yuv420p", quality=None,
        macro_block_size=2, output_params=[*quality, "-movflags", "+faststart"],
    )  # fmt: skip
    hold = max(round(LAST_SECONDS * film.fps), 1)
    writer.send(None)
    try:
        for picture in chain([first], shots):
            writer.send(picture.tobytes())
        for _ in range(hold - 1):
            writer.send(picture.tobytes())
    finally:
        writer.close()
    count = film.frames + hold - 1
    return Written(count, width, height, count / film.fps)
