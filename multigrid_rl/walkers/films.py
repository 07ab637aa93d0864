"""Episodes of Gymnasium as films: played again from their actions and drawn by the environment's own renderer."""

import base64
import logging
import math
import os
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from PIL import Image

from multigrid_rl.envs.base import reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory, make_env
from multigrid_rl.evaluation.evaluation import MODES, Mode, Part, evaluate, summary
from multigrid_rl.evaluation.replays import check_game
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE, Target, find_target
from multigrid_rl.show.captions import Caption
from multigrid_rl.show.pictures import NARROWEST, Notes, Picture, Strip
from multigrid_rl.show.video import Film, VideoError, Written, write_film
from multigrid_rl.show.words import short
from multigrid_rl.text import ConfigError, expected

LOG = logging.getLogger(__name__)
#: Default number of episodes from which best, median and worst are chosen.
EPISODES = 9
#: Most pictures a second; of faster environments steps are left out.
FASTEST = 20.0
#: Steps a second of an environment without ``render_fps``.
_USUAL_FPS = 30.0
#: Widest film, in a file and on a page, in pixels.
WIDEST, PAGE_WIDTH = 640, 400
#: Most pictures of a film on a page: a longer episode goes by faster.
_PAGE_PICTURES = 240
#: Most bytes of a film on a page.
PAGE_BYTES = 1_400_000


class Recording(NamedTuple):
    """One episode in an environment of Gymnasium: what plays it again, and what it paid."""

    number: int  # of the environment under the seed of the games
    reset_seed: int  # that Gymnasium's environment was reset with
    actions: list[Any]  # one a step, as Gymnasium's environment takes them
    total: float  # return


class Shown(NamedTuple):
    """An episode on a page."""

    label: str  # "best", or "best and median" where they are the same
    number: int  # of the environment under the seed of the games
    total: float  # return
    steps: int
    speed: int  # times as fast as the environment's own time
    film: str  # MP4 in base64


@dataclass(frozen=True)
class OwnEpisodes:
    """Fresh episodes of a run's exported policy."""

    seed: int
    agents: tuple[str, ...]  # that the policy plays
    rows: list[dict[str, Any]]  # one for each mode: "mode", "episodes", means of return and length, their intervals
    films: list[Shown] = field(default_factory=list)
    not_drawn: str = ""  # why there are no films


def play_own_episodes(folder: Path, episodes: int, *, seed: int, films: bool = True) -> OwnEpisodes:
    """Play fresh episodes in each mode with a run's exported policy; draw three of those with sampled actions, or none.

    Raises:
        ConfigError, PlayerError: no checkpoint, a damaged player, or one that does not fit.
    """
    target = find_target(str(folder))
    agents = tuple(target.refs)
    if not isinstance(target.factory, GymnasiumFactory):
        parts = evaluate(target, episodes=episodes, seed=seed).parts
        return OwnEpisodes(seed, agents, [{"mode": part.mode, **summary([part])} for part in parts])
    parts = tuple(_recorded(target, range(episodes), seed=seed, mode=mode) for mode in MODES)
    rows = [{"mode": part.mode, **summary([part])} for part in parts]
    if not films:
        return OwnEpisodes(seed, agents, rows, not_drawn="the report was written without films")
    sampled, labels = recordings_of(parts[0], seed), dict[int, list[str]]()
    for label, episode in ranked(sampled).items():
        labels.setdefault(episode.number, []).append(label)
    try:
        shown = [_page_film(target, sampled[number], " and ".join(names)) for number, names in labels.items()]
        return OwnEpisodes(seed, agents, rows, shown)
    except VideoError as error:
        return OwnEpisodes(seed, agents, rows, not_drawn=str(error))


def _recorded(target: Target, numbers: range, *, seed: int, mode: Mode) -> Part:
    """Play the first episode of each of the environments ``numbers`` of ``seed``, and keep what was done.

    Raises:
        ConfigError, PlayerError: no environment of Gymnasium, or a damaged player.
    """
    if not isinstance(target.factory, GymnasiumFactory):
        raise ConfigError(expected(f"{target.name}: scenario.package", "gymnasium, to keep episodes", "multigrid"))
    lineup = target.lineup(target.team, greedy=mode == "argmax")
    batches = (numbers[k : k + SIDE_BY_SIDE] for k in range(0, len(numbers), SIDE_BY_SIDE))
    played = (lineup.play(len(batch), seed=seed, first=batch.start, keep=True) for batch in batches)
    return Part(mode, lineup, tuple(played))


def recordings_of(part: Part, seed: int) -> list[Recording]:
    """Return the episodes of a part whose actions were kept, in the order of their environments."""
    return [
        Recording(played.first + k, reset_seed(seed, played.first + k, 0), [_plain(a) for a in actions[:steps]], total)
        for played in part.played
        for k, (actions, steps, total) in enumerate(
            zip(played.actions, played.table.length.tolist(), played.table.returns[:, 0].tolist(), strict=True)
        )
    ]


def _plain(action: Any) -> Any:
    return action.item() if action.ndim == 0 else action


def ranked(recordings: list[Recording]) -> dict[str, Recording]:
    """Return the best, the median and the worst by their return, then by their length."""
    order = sorted(recordings, key=lambda episode: (episode.total, len(episode.actions)))
    return {"best": order[-1], "median": order[len(order) // 2], "worst": order[0]}


def pick(target: Target, which: str, episodes: int, *, seed: int, mode: Mode) -> tuple[str, Recording]:
    """Return label and recording of an episode: ``best``, ``median`` or ``worst`` of some, or by its number.

    Raises:
        VideoError: another word.
        ConfigError, PlayerError: no environment of Gymnasium, or a damaged player.
    """
    label = check_game(which)
    numbers = range(int(label), int(label) + 1) if label.isdecimal() else range(episodes)
    recordings = recordings_of(_recorded(target, numbers, seed=seed, mode=mode), seed)
    if label.isdecimal():
        return mode, recordings[0]
    return f"{label} of {episodes}, {mode}", ranked(recordings)[label]


def write_episode(target: Target, episode: Recording, path: Path, *, label: str, fps: float | None = None) -> Written:
    """Write an episode as ``.gif`` or ``.mp4``; replaces an existing file.

    Args:
        target: its environment and players.
        episode: the recording.
        path: file to write.
        label: its name in the captions.
        fps: steps a second; those of the environment by default.

    Raises:
        VideoError: it cannot be drawn or written, or the replay differs from the recording.
    """
    drawing = _EpisodeDrawing(target, episode, label, WIDEST, fps)
    film = drawing.film(every=drawing.skip)
    if path.suffix.lower() == ".gif":  # needs its pictures three times: drawn once, and kept
        pictures = list(film.shots())
        film = film._replace(shots=lambda: iter(pictures))
    return write_film(film, path)


def _page_film(target: Target, episode: Recording, label: str) -> Shown:
    drawing, steps = _EpisodeDrawing(target, episode, label, PAGE_WIDTH), len(episode.actions)
    speed = math.ceil(steps / (_PAGE_PICTURES * drawing.skip))
    film = drawing.film(every=drawing.skip * speed)
    LOG.warning("drawing the %s episode, %s pictures (report --no-films: none)", label, film.frames)
    rate = round(8 * PAGE_BYTES * film.fps / (film.frames + 2 * film.fps))  # bits a second
    with TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        write_film(film, path, quality=("-crf", "26", "-maxrate", str(rate), "-bufsize", str(rate)))
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Shown(label, episode.number, episode.total, steps, speed, data)


class _EpisodeDrawing:
    """Draws one episode, at most ``width`` pixels wide; ``fps`` steps a second, by default the environment's."""

    def __init__(self, target: Target, episode: Recording, label: str, width: int, fps: float | None = None) -> None:
        assert isinstance(target.factory, GymnasiumFactory)  # only these are recorded
        self._factory, self._episode, self._label, self._width = target.factory, episode, label, width
        self._name = target.factory.env_id
        env = self._made()
        env.close()
        self._mujoco = hasattr(env.unwrapped, "mujoco_renderer")
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            raise VideoError(expected("env_id", "an environment that draws itself (rgb_array)", self._name))
        _use_headless_drivers()
        self._fps = fps or float(env.metadata.get("render_fps") or _USUAL_FPS)
        #: Steps from one picture to the next.
        self.skip = math.ceil(self._fps / FASTEST)

    def film(self, every: int) -> Film:
        """Return the start, every ``every``-th step and the last one."""
        return Film(
            lambda: self._shots(every), 1 + math.ceil(len(self._episode.actions) / every), self._fps / self.skip
        )

    def _shots(self, every: int) -> Iterator[Picture]:
        strip: Strip | None = None
        steps, ending = len(self._episode.actions), f"return {short(self._episode.total)} after "
        for t, total, raw in self._drawn(every):
            picture = resized(raw, self._width)
            strip = strip or Strip(picture.shape[1], 0)
            result = f"{ending}{steps:,} step{'s'[: steps != 1]}" if t == steps else ""
            notes = Notes(f"step {t:,} of {steps:,}", self._label, f"return {short(total)}")
            yield strip.below(picture, Caption(t, (), result), notes)

    def _drawn(self, every: int) -> Iterator[tuple[int, float, Picture]]:
        """Yield step, return so far and the environment's picture.

        Raises:
            VideoError: any error of the environment while it replays and draws the episode.
        """
        try:
            yield from self._played_again(every)
        except VideoError:
            raise
        except Exception as error:  # foreign code, and MuJoCo raises bare ones
            hint = _OPENGL if self._mujoco else ""
            got = f"{type(error).__name__}: {error}{hint}"
            raise VideoError(expected(self._name, "an environment that can be drawn here", got)) from error

    def _played_again(self, every: int) -> Iterator[tuple[int, float, Picture]]:
        env, total, done, t = self._made(render=True), 0.0, False, 0
        actions = self._episode.actions
        if self._mujoco:  # no larger than shown: without a graphics card drawing time grows with pixels
            renderer = env.unwrapped.mujoco_renderer
            renderer.width, renderer.height = min(renderer.width, self._width), min(renderer.height, self._width)
            # Shadows a quarter as fine and no multisampling: without a graphics card a quarter of the time.
            renderer.model.vis.quality.shadowsize, renderer.model.vis.quality.offsamples = 1024, 0
        try:
            env.reset(seed=self._episode.reset_seed)
            yield 0, 0.0, self._render(env)
            for t, action in enumerate(actions, 1):
                _, reward, terminated, truncated, _ = env.step(action)
                total, done = total + float(reward), terminated or truncated
                if done and (t < len(actions) or not np.isclose(total, self._episode.total)):
                    break
                if t % every == 0 or t == len(actions):
                    yield t, total, self._render(env)
        finally:
            env.close()
        if not done or t < len(actions) or not np.isclose(total, self._episode.total):
            wanted = f"episode {self._episode.number} to play again as it did"
            raise VideoError(expected(self._name, wanted, "another one: it does not follow from its seed"))

    def _made(self, *, render: bool = False) -> gymnasium.Env[Any, Any]:
        try:
            return make_env(self._name, self._factory.env_args, render=render)
        except ValueError as error:
            raise VideoError(str(error)) from error

    def _render(self, env: gymnasium.Env[Any, Any]) -> Picture:
        picture: Any = env.render()
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            got = getattr(picture, "shape", type(picture).__name__)
            raise VideoError(expected(self._name, "pictures (height, width, 3) of bytes", got))
        return picture


#: Hint for environments of MuJoCo that cannot be drawn.
_OPENGL = "; MuJoCo draws without a screen through libEGL (MUJOCO_GL=egl) or libOSMesa (MUJOCO_GL=osmesa)"


def _use_headless_drivers() -> None:
    """Set drivers of pygame and MuJoCo that need no window, unless environment variables are set."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame greets on standard output
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        backends = [name for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if find_library(library)]
        if backends:
            os.environ.setdefault("MUJOCO_GL", backends[0])


def resized(picture: Picture, widest: int) -> Picture:
    """Return a picture of at least :data:`NARROWEST` and at most ``widest`` pixels across, both sizes even."""
    height, width = picture.shape[:2]
    across = min(max(width, NARROWEST), widest) // 2 * 2
    down = max(round(height * across / width / 2), 1) * 2
    how = Image.Resampling.NEAREST if across > width else Image.Resampling.BOX
    if (across, down) == (width, height):
        return picture
    return np.asarray(Image.fromarray(picture).resize((across, down), how))
