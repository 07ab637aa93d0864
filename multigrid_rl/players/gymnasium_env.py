"""One seat of a game as a Gymnasium environment; players of the catalogue fill the other seats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config import ScenarioConfig, data_root, load_scenario, scenario_names
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import seat_players
from multigrid_rl.players.match import Match
from multigrid_rl.players.own import OwnPlayer, tried
from multigrid_rl.text import expected
from multigrid_rl.types import GameSpec, Policy
from multigrid_rl.world.rendering import render_frame
from multigrid_rl.world.spaces import (
    Info,
    Observation,
    action_space,
    check_action,
    check_render_mode,
    info,
    observation,
    observation_space,
)

#: Who may sit on a seat: a player, or a mixture of players that take turns.
Seated: TypeAlias = "str | Policy | Mapping[str | Policy, float]"


def register_envs() -> list[str]:
    """Make every scenario known to ``gymnasium.make`` and return the ids: ``multigrid_rl/<scenario>-v0``.

    Importing this package registers nothing; call this once in your program. Calling it again does no harm::

        from multigrid_rl.players.gymnasium_env import register_envs

        register_envs()
        env = gymnasium.make("multigrid_rl/1v1-v0", players={"blue_0": "hunter"}, render_mode="rgb_array")

    The keyword arguments are those of :class:`SeatEnv`, ``scenario`` excepted.
    """
    ids = []
    for name in scenario_names():
        env_id = f"multigrid_rl/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, f"{__name__}:{SeatEnv.__name__}", kwargs={"scenario": name})
        ids.append(env_id)
    return ids


class SeatEnv(gymnasium.Env):
    """A game seen from one seat.

    * Observation: see :func:`multigrid_rl.world.spaces.observation_space`.
    * Action: Discrete(7): left, right, forward, pickup, drop, toggle, done.
    * Reward: the seat's canonical reward (rules, section 5).
    * Terminated: the game is won by anyone or, under ``fair`` rules, this seat is eliminated, though its team mates may
      play on. Truncated: after ``max_steps`` steps. A win in the last step is both.
    * Info: see :func:`multigrid_rl.world.spaces.info`; no ``winner`` if this seat is out before the game is over.

    Everything random in a game, the other seats included, follows from ``reset(seed=...)``. Without a seed, each game's
    own is drawn from ``np_random``.

    Args:
        scenario: one of ``multigrid_rl.config.scenario_names()``, the file of another (``./mine.yaml``), or an
            environment name of the original course.
        seat: the seat to play, such as ``red_0``.
        players: for other seats a player: a name, the folder of a frozen one, ``module:Class``, or an object with
            ``act`` (``types.Policy``); or a mixture of such with their weights, one of which plays each game. A seat
            not named keeps the player that the scenario puts there.
        render_mode: ``None``, or ``"rgb_array"`` for frames from ``render()``.
        checkpoints: folder of frozen players; by default the project's own.

    Raises:
        ConfigError: unknown scenario.
        PlayerError: unknown or damaged player, or one that does not fit its seat.
        ValueError: unknown seat or render mode, or a seat that nobody fills.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        scenario: str = "1v1",
        seat: str = "red_0",
        players: Mapping[str, Seated] | None = None,
        render_mode: str | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        chosen = load_scenario(scenario)
        self.game = chosen.spec
        self.game.team_of(seat)
        self.seat = seat
        self.render_mode = check_render_mode(render_mode)
        catalogue = Catalogue(data_root() / "checkpoints" if checkpoints is None else checkpoints)
        self.match = Match(self.game, seated_around(chosen, seat, players or {}, catalogue), 1, auto_reset=False)
        self.observation_space = observation_space(self.game)
        self.action_space = action_space()
        self._agent = self.game.seats.index(seat)
        self._playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start a new game; returns the seat's observation and info. ``options`` are not used.

        Raises:
            gymnasium.error.Error: a negative seed.
        """
        super().reset(seed=seed, options=options)
        self.match.reset(int(self.np_random.integers(2**63)) if seed is None else seed)
        self._playing = True
        return self._observation(), info(self.match.world, self._agent)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Play one step with an action 0 to 6; returns observation, reward, terminated, truncated, info.

        Raises:
            RuntimeError: the episode is over, or none was started.
            ValueError: unknown action.
        """
        if not self._playing:
            raise RuntimeError(f"{self.seat} is not in a game: call reset() before step()")
        chosen = np.full(1, check_action(action, self.seat), np.int8)
        step = self.match.step({self.seat: chosen})
        terminated, truncated = bool(step.terminated[self.seat][0]), bool(step.truncated[0])
        self._playing = not (terminated or truncated)
        reward = float(step.rewards[self.seat][0])
        return self._observation(), reward, terminated, truncated, info(self.match.world, self._agent)

    def render(self) -> NDArray[np.uint8] | None:
        """Frame uint8 (256, 512, 3) of the whole board as it stands; ``None`` if made without a render mode."""
        return None if self.render_mode is None else render_frame(self.match.world, 0)

    def _observation(self) -> Observation:
        return observation(self.game, self.match.world.outputs.tokens[0, self._agent])


def seated_around(
    scenario: ScenarioConfig, focal: str, players: Mapping[str, Seated], catalogue: Catalogue
) -> dict[str, Policy]:
    """Return who plays every seat but ``focal``. Raises as :class:`SeatEnv` does."""
    spec = scenario.spec
    others = [seat for seat in spec.seats if seat != focal]
    for seat in players:
        if seat not in others:
            raise ValueError(expected("players", f"seats beside {focal}: {', '.join(others) or 'none'}", seat))
    seated = {}
    for seat in others:
        given = players.get(seat, scenario.opponents.get(seat, {}))
        mixture = given if isinstance(given, Mapping) else {given: 1.0}
        if not mixture or min(mixture.values()) <= 0:
            wanted = f"one of {', '.join(catalogue.names())}, a folder with a frozen player, or an object that acts"
            raise ValueError(expected(f"players[{seat!r}]", wanted, f"none, and {scenario.name} has none there"))
        seated[seat] = tuple(
            _loaded(who, spec, seat, catalogue)._replace(weight=weight) for who, weight in mixture.items()
        )
    return seat_players(spec, seated)


def _loaded(who: str | Policy, spec: GameSpec, seat: str, catalogue: Catalogue) -> LoadedPlayer:
    if isinstance(who, str):
        return catalogue.seat(who, spec, seat)
    name = str(getattr(who, "name", type(who).__name__))
    return LoadedPlayer(tried(OwnPlayer(name, who), spec, seat), name, None, [])
