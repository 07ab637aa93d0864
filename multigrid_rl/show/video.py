"""A recorded game or episode as a GIF or MP4, with a caption below each step, in a file or on a page."""

import base64
import logging
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from multigrid_rl.evaluation.replays import GameRecord
from multigrid_rl.files import atomic_path, install_command
from multigrid_rl.show.captions import NARROWEST, Notes, Picture, Strip, captioned_frames
from multigrid_rl.show.films import GameDrawing
from multigrid_rl.show.words import short
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.world.constants import WIDTH
from multigrid_rl.world.rendering import render_frame

LOG = logging.getLogger(__name__)
SUFFIXES = (".gif", ".mp4")
#: Files with games in a folder; the first that exists is read.
GAME_FILES = ("games.json", "results.json")
#: Frames a second: GIF counts time in hundredths of a second, and viewers slow down faster ones.
FPS = (0.5, 50.0)
#: Seconds of the last frame, which shows the winner.
LAST_SECONDS = 2.0
#: ffmpeg holds a complete GIF in memory until it has chosen its colours, three bytes a pixel.
_MOST_GIF_PIXELS = 600_000_000
#: One palette of 256 colours for a GIF, and no dithering: the few colours of a board stay exact.
#: https://ffmpeg.org/ffmpeg-filters.html#palettegen-1
_GIF = ("-filter_complex", "split[a][b];[a]palettegen=reserve_transparent=0[p];[b][p]paletteuse=dither=none",
        "-final_delay", f"{100 * LAST_SECONDS:.0f}")  # fmt: skip
#: Most pictures a second of an episode; steps of faster environments are left out.
FASTEST = 20.0
#: Widest film of an episode, in a file and on a page, in pixels.
WIDEST, PAGE_WIDTH = 640, 400
#: Most pictures of a film on a page: a longer episode goes by faster.
_PAGE_PICTURES = 240
#: Most bytes of a film on a page.
PAGE_BYTES = 1_400_000


class Film(NamedTuple):
    """A sequence of pictures."""

    shots: Callable[[], Iterator[Picture]]  # all of one even size
    frames: int  # how many
    fps: float  # frames a second


class PageFilm(NamedTuple):
    """An episode on a page."""

    label: str  # "best", "median" or "worst"
    total: float  # return
    steps: int
    speed: int  # factor on the environment's time
    film: str  # MP4 in base64


class VideoFile(NamedTuple):
    """Facts about a written file."""

    frames: int  # pictures in the file
    width: int  # pixels
    height: int
    seconds: float  # of playing time


# --- games from files


def find_games(path: Path) -> Path | None:
    """Return ``path`` if it is a file, else the file of games in it; ``None`` if there is none."""
    if path.is_file():
        return path
    return next((path / name for name in GAME_FILES if (path / name).is_file()), None)


# --- pictures


def pictures(game: GameRecord, tile: int = 32) -> Iterator[Picture]:
    """Yield the start and every step of a game, captioned: uint8 (H, 16 * tile, 3), H even.

    Raises ``ConfigError``: not a record of a game, or the game ends before or after its last action.
    """
    strip = Strip(WIDTH * tile, len(game.actions))
    foot = f"game {game.game} of seed {game.seed}"
    try:
        for world, _, caption in captioned_frames(game):
            notes = Notes(f"step {caption.step} of {game.steps}", game.label, foot)
            yield strip.below(render_frame(world, 0, tile), caption, notes)
    except ValueError as error:
        raise ConfigError(f"games: expected a record of a whole game; {error}") from error


def _episode_film(drawing: GameDrawing, label: str, width: int, *, speed: int = 1, fps: float | None = None) -> Film:
    """Return the film of a game, at most ``width`` pixels wide, ``speed`` times as fast as ``fps`` steps a second."""
    steps, drawing_fps = drawing.record.steps, drawing.fps  # raises if it cannot be drawn
    fps = fps or drawing_fps
    skip = math.ceil(fps / FASTEST)
    every = skip * speed

    def shots() -> Iterator[Picture]:
        strip: Strip | None = None
        for total, caption, board in drawing.pictures(every):
            picture = resized(board, width)
            strip = strip or Strip(picture.shape[1], len(caption.agents))
            notes = Notes(f"step {caption.step:,} of {steps:,}", label, f"return {short(total)}")
            yield strip.below(picture, caption, notes)

    return Film(shots, 1 + math.ceil(steps / every), fps / skip)


def resized(picture: Picture, widest: int) -> Picture:
    """Return a picture of at least :data:`NARROWEST` and at most ``widest`` pixels across, both sizes even."""
    height, width = picture.shape[:2]
    new_width = min(max(width, NARROWEST), widest) // 2 * 2
    new_height = max(round(height * new_width / width / 2), 1) * 2
    resampling = Image.Resampling.NEAREST if new_width > width else Image.Resampling.BOX
    if (new_width, new_height) == (width, height):
        return picture
    return np.asarray(Image.fromarray(picture).resize((new_width, new_height), resampling))


# --- files


def check_video(path: Path, *, fps: float | None = None, force: bool) -> None:
    """Check the arguments of a video before any games are played.

    Raises ``ConfigError``: unknown suffix, a file that exists (unless ``force``), speed out of bounds.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(expected("--output", f"a file that ends with {' or '.join(SUFFIXES)}", path))
    if fps is not None and not FPS[0] <= fps <= FPS[1]:
        raise ConfigError(expected("--fps", f"{FPS[0]:g} to {FPS[1]:g} steps a second", f"{fps:g}"))
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(expected("--output", "a new file, or --force", f"{path}, which exists already"))


def write_video(game: Any, path: Path, *, fps: float | None = None, tile: int = 32, force: bool = False) -> VideoFile:
    """Write a game (of ``replays``) as ``.gif`` or ``.mp4`` (H.264, yuv420p), once it is complete.

    Raises ``ConfigError``: see :func:`check_video`; a damaged record, or one that cannot be drawn or differs; a GIF too
    large for memory; no place to write.
    """
    check_video(path, fps=fps, force=force)
    if isinstance(game, GameRecord):
        return write_film(Film(lambda: pictures(game, tile), game.steps + 1, fps or 4.0), path)
    return write_film(_episode_film(GameDrawing(game), game.label, WIDEST, fps=fps), path)


def short_film(drawing: GameDrawing, label: str, pictures: int) -> tuple[Film, int]:
    """Return a film of an episode of about so many pictures, and its speed as a factor."""
    speed = math.ceil(drawing.record.steps / (pictures * math.ceil(drawing.fps / FASTEST)))
    return _episode_film(drawing, label, PAGE_WIDTH, speed=speed), speed


def page_film(drawing: GameDrawing, label: str) -> PageFilm:
    """Draw an episode for a page. Raises ``ConfigError``: it cannot be drawn, or the replay differs."""
    film, speed = short_film(drawing, label, _PAGE_PICTURES)
    LOG.warning("drawing the %s episode, %s pictures (report --no-films: none)", label, film.frames)
    rate = round(8 * PAGE_BYTES * film.fps / (film.frames + 2 * film.fps))  # bits a second
    _, content = film_bytes(film, ".mp4", quality=("-crf", "26", "-maxrate", str(rate), "-bufsize", str(rate)))
    return PageFilm(label, drawing.total, drawing.record.steps, speed, base64.b64encode(content).decode("ascii"))


def film_bytes(film: Film, suffix: str, **options: Any) -> tuple[VideoFile, bytes]:
    """Return a film as the content of a file; options and errors as of :func:`write_film`."""
    with TemporaryDirectory() as folder:
        path = Path(folder, f"film{suffix}")
        return write_film(film, path, **options), path.read_bytes()


def write_film(film: Film, path: Path, *, quality: tuple[str, ...] = ("-crf", "18")) -> VideoFile:
    """Write a film as ``.gif`` or ``.mp4``, replacing an existing file; ``quality`` are arguments of ffmpeg for an MP4.

    Raises ``ConfigError``: a GIF too large for memory; no place to write; errors of the film's pictures.
    """
    try:
        with atomic_path(path) as temporary:
            return _write(film, temporary, quality)
    except OSError as error:
        got = f"{path}: {error.strerror or error}"
        raise ConfigError(expected("--output", "a file that can be written", got)) from error


def _write(film: Film, path: Path, quality: tuple[str, ...]) -> VideoFile:
    try:
        import imageio_ffmpeg  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigError(expected("film", f"the extra films ({install_command('films')})", error)) from error

    shots = film.shots()
    first = next(shots)
    height, width = first.shape[:2]
    gif, count = path.suffix.lower() == ".gif", film.frames
    if gif and count * height * width > _MOST_GIF_PIXELS:
        got = f"{count} frames of {width} x {height} pixels"
        raise ConfigError(expected("--output", "an .mp4, or smaller pictures", got))
    codec, pixels, more = (
        ("gif", "pal8", _GIF) if gif else ("libx264", "yuv420p", (*quality, "-movflags", "+faststart"))
    )
    # A GIF says how long its last picture stays; in an MP4 it is repeated.
    hold = 0 if gif else max(round(LAST_SECONDS * film.fps), 1) - 1
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=film.fps, codec=codec, pix_fmt_out=pixels, output_params=list(more),
        quality=None, macro_block_size=2, ffmpeg_log_level="error",
    )  # fmt: skip
    writer.send(None)
    try:
        picture = first
        for picture in chain([first], shots):
            writer.send(picture.tobytes())
        for _ in range(hold):
            writer.send(picture.tobytes())
    finally:
        writer.close()
    seconds = (count - 1) / film.fps + LAST_SECONDS if gif else (count + hold) / film.fps
    return VideoFile(count + hold, width, height, seconds)
