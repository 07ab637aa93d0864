"""Games of PettingZoo's kind and episodes of Gymnasium to be filmed: chosen, and played again for their pictures."""

import os
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from multigrid_rl.envs.base import AGENT, reset_with_seed
from multigrid_rl.envs.gymnasium import make_env
from multigrid_rl.envs.zoo import QUIET, DrawMode, Game, StepResult, open_game
from multigrid_rl.evaluation.evaluation import Mode, PlayedPart, evaluate, labelled_games, record_of
from multigrid_rl.evaluation.replays import EpisodeRecord, Shot, ZooRecord, choose, shots
from multigrid_rl.evaluation.targets import Sides, Target
from multigrid_rl.players.cards import CARD_FILE
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue, runs_code
from multigrid_rl.show.captions import AgentLine, Caption, Picture
from multigrid_rl.show.words import plural, short
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import user_code

#: Steps a second of an environment of Gymnasium without ``render_fps``.
_USUAL_FPS = 30.0
#: Most seats with a caption below a picture.
_MAX_SEATS = 8


def pick(target: Target, label_or_number: str | None, episodes: int, *, seed: int, mode: Mode, side: Sides) -> Any:
    """Return the record of a fresh game or episode of several, by its label, or of one by its number.

    Raises ``ConfigError``, ``PlayerError``: no such label, an environment without records, or a damaged player.
    """
    label = label_or_number or ("best" if target.rivals else "median")
    if label.isdecimal():
        lineup = target.lineup(target.teams(side)[0], greedy=mode == "argmax")
        played = lineup.play(1, seed=seed, first=int(label), keep=True)
        return record_of(target, PlayedPart(mode, lineup, (played,)), 0, seed, f"{target.name} ({mode}, {lineup.team})")
    games = labelled_games(evaluate(target, episodes=episodes, seed=seed, modes=(mode,), sides=side, keep=True))
    if not games:
        raise ConfigError(expected(f"{target.name}: scenario.package", "one whose episodes can be kept", "another"))
    return choose(games, label, f"{episodes} games of {target.name}")


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


class OneSeat(Game):
    """One environment as a game with one seat (``envs.zoo.Game``), to play an episode again; raises as ``make_env``."""

    agents, turns = (AGENT,), False

    def __init__(self, env_id: str, env_args: dict[str, Any], how: DrawMode | None = None) -> None:
        os.environ.update({**QUIET, **os.environ})
        _choose_headless_driver()
        self.env = make_env(env_id, env_args, render=how is not None)
        draws_pictures = "rgb_array" in self.env.metadata.get("render_modes", ())
        self.draws: dict[DrawMode, dict[str, Any]] = {"picture": {}} if draws_pictures else {}
        self.fps = float(self.env.metadata.get("render_fps") or _USUAL_FPS)
        renderer = getattr(self.env.unwrapped, "mujoco_renderer", None)
        if how is not None and renderer is not None:
            # A quarter of the shadow resolution and no multisampling: a quarter of the time without a graphics card.
            renderer.model.vis.quality.shadowsize, renderer.model.vis.quality.offsamples = 1024, 0

    def spaces(self, agent: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:  # noqa: ARG002 - there is one
        """Return observation and action space."""
        return self.env.observation_space, self.env.action_space

    def start(self, seed: int) -> StepResult:
        """Begin an episode."""
        observation, info = reset_with_seed(self.env.reset, seed)
        return StepResult({AGENT: (observation, info)}, (AGENT,))

    def play(self, actions: dict[str, Any]) -> StepResult:
        """Play one step."""
        action = np.asarray(actions[AGENT], self.env.action_space.dtype)[()]
        observation, reward, terminated, truncated, info = self.env.step(action)
        turn, ended = ((), {AGENT: bool(terminated)}) if terminated or truncated else ((AGENT,), {})
        return StepResult({AGENT: (observation, info)}, turn, {AGENT: float(reward)}, ended)

    def drawn(self, mode: DrawMode, agent: str | None = None) -> Any:  # noqa: ARG002 - pictures alone
        """Draw the current state."""
        return self.env.render()

    def close(self) -> None:
        """Let go of windows."""
        self.env.close()


@dataclass(frozen=True)
class GameDrawing:
    """One recorded game that its renderer draws. ``counted_seats``: those whose returns count; all if it is empty."""

    record: ZooRecord
    counted_seats: tuple[str, ...] = ()

    @property
    def _build(self) -> Any:
        return OneSeat if isinstance(self.record, EpisodeRecord) else open_game

    @cached_property
    def _game(self) -> Any:
        with user_code(f"game {self.record.game}"):
            return self._build(self.record.env_id, self.record.env_args)

    @property
    def texts(self) -> bool:
        """Whether the game writes itself as text. Raises ``ConfigError``: it cannot be built."""
        return "text" in self._game.draws

    @property
    def fps(self) -> float:
        """Steps a second. Raises ``ConfigError``: the game cannot be built, or draws no pictures."""
        if "picture" not in self._game.draws:
            wanted = "one that draws itself (rgb_array)"
            raise ConfigError(expected(f"env_id={self.record.env_id}", wanted, "one that does not"))
        return float(self._game.fps)

    @property
    def total(self) -> float:
        """The return of the counted seats."""
        return self._counted_return(self.record.returns)

    def _counted_return(self, returns: dict[str, float]) -> float:
        return sum(returns[seat] for seat in self.counted_seats or returns)

    def pictures(self, every: int) -> Iterator[tuple[float, Caption, Picture]]:
        """Yield return so far, caption and picture of the start, of every ``every``-th step and of the last one.

        Raises ``ConfigError``: see ``replays.shots``; a rendered frame is no picture.
        """
        for shot in shots(self.record, "picture", every, self._build):
            picture = np.asarray(shot.drawn)
            if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
                raise ConfigError(expected(self.record.env_id, "pictures (height, width, 3) of bytes", picture.shape))
            yield self._counted_return(shot.totals), self._caption(shot), picture

    def _caption(self, shot: Shot) -> Caption:
        game, lines = self.record, tuple[AgentLine, ...]()
        if not isinstance(game, EpisodeRecord) and len(game.players) <= _MAX_SEATS:
            lines = tuple(
                AgentLine(seat, player, shot.taken.get(seat, ""), shot.totals[seat], out=False)
                for seat, player in game.players.items()
            )
        end = game.result or f"return {short(self.total)} after {plural(game.steps, 'step')}"
        return Caption(shot.step, lines, end if shot.step == game.steps else "")


def _choose_headless_driver() -> None:
    """Let MuJoCo draw by a driver without windows, where there is no screen and none was chosen."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        backends = [name for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if find_library(library)]
        if backends:
            os.environ.setdefault("MUJOCO_GL", backends[0])
