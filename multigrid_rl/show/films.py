"""Episodes of Gymnasium to be filmed: played, kept by their actions, and played again for their pictures."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from multigrid_rl.envs.base import reset_by, reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumFactory, make_env
from multigrid_rl.evaluation.evaluation import Mode, PlayedPart, evaluate, kept_games
from multigrid_rl.evaluation.replays import check_game, choose, record
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE, Sides, Target
from multigrid_rl.players.cards import CARD_FILE
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue, runs_code
from multigrid_rl.show.pictures import Picture
from multigrid_rl.text import ConfigError, expected

#: Steps a second of an environment without ``render_fps``.
_USUAL_FPS = 30.0


class Recording(NamedTuple):
    """One episode in an environment of Gymnasium: what plays it again, and what it paid."""

    number: int  # of the environment under the seed of the games
    reset_seed: int  # that Gymnasium's environment was reset with
    actions: list[Any]  # one a step, as Gymnasium's environment takes them
    total: float  # return


def recorded(target: Target, numbers: range, *, seed: int, mode: Mode) -> PlayedPart:
    """Play the first episode of each of the environments ``numbers`` of ``seed``, and keep what was done.

    Raises ``ConfigError``, ``PlayerError``: no environment of Gymnasium, or a damaged player.
    """
    if not isinstance(target.factory, GymnasiumFactory):
        raise ConfigError(expected(f"{target.name}: scenario.package", "gymnasium, to keep episodes", "multigrid"))
    lineup = target.lineup(target.team, greedy=mode == "argmax")
    batches = (numbers[k : k + SIDE_BY_SIDE] for k in range(0, len(numbers), SIDE_BY_SIDE))
    played = (lineup.play(len(batch), seed=seed, first=batch.start, keep=True) for batch in batches)
    return PlayedPart(mode, lineup, tuple(played))


def recordings_of(part: PlayedPart, seed: int) -> list[Recording]:
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


def pick(target: Target, which: str, episodes: int, *, seed: int, mode: Mode) -> "tuple[str, Drawing]":
    """Return label and drawing of an episode: ``best``, ``median`` or ``worst`` of some, or by its number.

    Raises ``ConfigError``, ``PlayerError``: another word, no environment of Gymnasium, or a damaged player.
    """
    label = check_game(which)
    numbers = range(int(label), int(label) + 1) if label.isdecimal() else range(episodes)
    part = recorded(target, numbers, seed=seed, mode=mode)
    assert isinstance(target.factory, GymnasiumFactory)  # only these are recorded
    recordings = recordings_of(part, seed)
    if label.isdecimal():
        return mode, Drawing(target.factory, recordings[0])
    return f"{label} of {episodes}, {mode}", Drawing(target.factory, ranked(recordings)[label])


def pick_game(target: Target, which: str | None, episodes: int, *, seed: int, mode: Mode, side: Sides) -> Any:
    """Return the record of a fresh game of several, by its label, or of one by its number.

    Raises ``ConfigError``, ``PlayerError``: no such label, or a damaged player.
    """
    if which is not None and which.isdecimal():
        lineup = target.lineup(target.teams(side)[0], greedy=mode == "argmax")
        played, label = lineup.play(1, seed=seed, first=int(which)), f"{target.name} ({mode}, {lineup.team})"
        return record(target.spec, played, 0, seed=seed, players=lineup.names, label=label)
    evaluation = evaluate(target, episodes=episodes, seed=seed, modes=(mode,), sides=side)
    return choose(kept_games(evaluation), which, f"{episodes} games of {target.name}")


def usual_side(source: str) -> Sides:
    """Return the side that a player learned, or a run. Raises ``ConfigError``: it is neither."""
    path = Path(source)
    if source in BUILT_IN or (path / "config.yaml").is_file() or runs_code(source):
        return "own"
    if path.is_dir() and not (path / CARD_FILE).is_file():
        wanted = "a folder with games.json, results.json, a run or a player"
        raise ConfigError(expected(source, wanted, "none of them"))
    if not path.exists() and ("/" in source or path.suffix):
        raise ConfigError(expected(source, "a file of games, a run folder or a player", "no such file or folder"))
    card = Catalogue().card_of(source)
    if card and card.env is not None:
        return "own"
    seats = card.seats if card else ()
    return "blue" if seats and all(seat.startswith("blue") for seat in seats) else "red"


@dataclass(frozen=True)
class Drawing:
    """One recorded episode that its environment draws."""

    factory: GymnasiumFactory
    episode: Recording

    @cached_property
    def fps(self) -> float:
        """Steps a second. Raises ``ConfigError``: the environment cannot be built, or draws nothing."""
        env = self._made()
        env.close()
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            wanted = "an environment that draws itself (rgb_array)"
            raise ConfigError(expected("env_id", wanted, self.factory.env_id))
        return float(env.metadata.get("render_fps") or _USUAL_FPS)

    def pictures(self, every: int, width: int) -> Iterator[tuple[int, float, Picture]]:
        """Yield step, return so far and picture: of the start, of every ``every``-th step and of the last one.

        Args:
            every: steps from one picture to the next.
            width: in pixels; MuJoCo draws none that are wider.

        Raises ``ConfigError``: any error of the environment while it replays and draws the episode.
        """
        _use_headless_drivers()
        hint = ""
        try:
            with closing(self._made(render=True)) as env:
                if hasattr(env.unwrapped, "mujoco_renderer"):
                    hint = _OPENGL
                    _draw_less(env.unwrapped.mujoco_renderer, width)
                yield from self._played_again(env, every)
        except ConfigError:
            raise
        except Exception as error:  # foreign code, and MuJoCo raises bare ones
            got = f"{type(error).__name__}: {error}{hint}"
            raise ConfigError(expected(self.factory.env_id, "an environment that can be drawn here", got)) from error

    def _played_again(self, env: gymnasium.Env[Any, Any], every: int) -> Iterator[tuple[int, float, Picture]]:
        total, done, t, actions = 0.0, False, 0, self.episode.actions
        reset_by(env.reset, self.episode.reset_seed)
        yield 0, 0.0, self._render(env)
        for t, action in enumerate(actions, 1):
            _, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
            if done and (t < len(actions) or not np.isclose(total, self.episode.total)):
                break
            if t % every == 0 or t == len(actions):
                yield t, total, self._render(env)
        if not done or t < len(actions) or not np.isclose(total, self.episode.total):
            wanted = f"episode {self.episode.number} to play again as it did"
            raise ConfigError(expected(self.factory.env_id, wanted, "another one: it does not follow from its seed"))

    def _made(self, *, render: bool = False) -> Any:
        try:
            return make_env(self.factory.env_id, self.factory.env_args, render=render)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _render(self, env: gymnasium.Env[Any, Any]) -> Picture:
        picture: Any = env.render()
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            got = getattr(picture, "shape", type(picture).__name__)
            raise ConfigError(expected(self.factory.env_id, "pictures (height, width, 3) of bytes", got))
        return picture


def _draw_less(renderer: Any, width: int) -> None:
    """Let MuJoCo draw no more than is shown: without a graphics card drawing time grows with pixels."""
    renderer.width, renderer.height = min(renderer.width, width), min(renderer.height, width)
    # Shadows a quarter as fine and no multisampling: without a graphics card a quarter of the time.
    renderer.model.vis.quality.shadowsize, renderer.model.vis.quality.offsamples = 1024, 0


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
