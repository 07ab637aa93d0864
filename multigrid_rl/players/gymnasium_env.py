"""One seat of a game as a Gymnasium environment; players of the catalogue fill the other seats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config import ScenarioConfig, load_scenario
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import seat_players
from multigrid_rl.players.match import Match
from multigrid_rl.players.own import OwnPlayer, tried
from multigrid_rl.text import expected
from multigrid_rl.types import GameSpec, Policy
from multigrid_rl.world import spaces
from multigrid_rl.world.rendering import render_frame

#: Who may sit on a seat: a player, or a mixture of players that take turns.
Seated: TypeAlias = "str | Policy | Mapping[str | Policy, float]"


class SeatEnv(gymnasium.Env):
    """A game seen from one seat.

    * Observation: see :func:`multigrid_rl.world.spaces.observation_space`, or ``flat_space`` there.
    * Action: Discrete(7): left, right, forward, pickup, drop, toggle, done.
    * Reward: the seat's canonical reward (rules, section 5).
    * Terminated: the game is won by anyone or, under ``fair`` rules, this seat is eliminated, though its team mates may
      play on. Truncated: after ``max_steps`` steps. A win in the last step is both.
    * Info: see :func:`multigrid_rl.world.spaces.info`.

    Everything random in a game, the other seats included, follows from ``reset(seed=...)``. Without a seed, each game's
    own is drawn from ``np_random``.

    Args:
        scenario: one of ``multigrid_rl.config.scenario_names()``, the file of another (``./mine.yaml``), or an
            environment name of the original course.
        seat: the seat to play, such as ``red_0``.
        players: for other seats a player: a name, the folder of a frozen one, ``module:Class``, or an object with
            ``act`` (``types.Policy``) or its class; or a mixture of such with their weights, one of which plays each
            game. A seat not named keeps the player that the scenario puts there.
        render_mode: ``None``, or ``"rgb_array"`` for frames from ``render()``.
        checkpoints: folder of frozen players; by default the user's and the project's.
        flat: observations are vectors.

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
        *,
        flat: bool = False,
    ) -> None:
        chosen = load_scenario(scenario)
        self.game = chosen.spec
        self.game.team_of(seat)
        self.seat = seat
        self.render_mode = spaces.check_render_mode(render_mode)
        self.match = match_around(chosen, seat, players, checkpoints, 1)
        self._seen = spaces.flat_observation if flat else spaces.observation
        self.observation_space = spaces.flat_space(self.game) if flat else spaces.observation_space(self.game)
        self.action_space = spaces.action_space()
        self._agent = self.game.seats.index(seat)
        self._playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, spaces.Info]:
        """Start a new game; returns the seat's observation and info. ``options`` are not used.

        Raises:
            gymnasium.error.Error: a negative seed.
        """
        super().reset(seed=seed, options=options)
        self.match.reset(int(self.np_random.integers(2**63)) if seed is None else seed)
        self._playing = True
        return self._observation(), spaces.info(self.match.world, self._agent)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, spaces.Info]:
        """Play one step with an action 0 to 6; returns observation, reward, terminated, truncated, info.

        Raises:
            RuntimeError: the episode is over, or none was started.
            ValueError: unknown action.
        """
        if not self._playing:
            raise RuntimeError(f"{self.seat} is not in a game: call reset() before step()")
        chosen = np.full(1, spaces.check_action(action, self.seat), np.int8)
        step = self.match.step({self.seat: chosen})
        terminated, truncated = bool(step.terminated[self.seat][0]), bool(step.truncated[0])
        self._playing = not (terminated or truncated)
        reward = float(step.rewards[self.seat][0])
        return self._observation(), reward, terminated, truncated, spaces.info(self.match.world, self._agent)

    def render(self) -> NDArray[np.uint8] | None:
        """Frame uint8 (256, 512, 3) of the whole board as it stands; ``None`` if made without a render mode."""
        return None if self.render_mode is None else render_frame(self.match.world, 0)

    def _observation(self) -> Any:
        return self._seen(self.game, self.match.world.outputs.tokens[0, self._agent])


def match_around(
    scenario: ScenarioConfig, focal: str, players: Mapping[str, Seated] | None, checkpoints: Path | None, games: int
) -> Match:
    """Return games in which every seat but ``focal`` is filled; several begin anew when they end.

    Raises as :class:`SeatEnv` does.
    """
    catalogue = Catalogue(checkpoints)
    seated = _seated_around(scenario, focal, players or {}, catalogue)
    return Match(scenario.spec, seated, games, auto_reset=games > 1)


def _seated_around(
    scenario: ScenarioConfig, focal: str, players: Mapping[str, Seated], catalogue: Catalogue
) -> dict[str, Policy]:
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
    player = who(spec) if isinstance(who, type) else who
    name = str(getattr(player, "name", type(player).__name__))
    return LoadedPlayer(tried(OwnPlayer(name, player), spec, seat), name, None, [])
