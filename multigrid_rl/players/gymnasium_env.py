"""One seat of a game, or of many games, as a Gymnasium environment; catalogue players take the other seats."""

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from multigrid_rl.config.compose import load_scenario, named
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.classes import checked_player
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.players.match import Match
from multigrid_rl.text import ConfigError, check_integer, expected
from multigrid_rl.types import GameSpec, Policy
from multigrid_rl.world import spaces
from multigrid_rl.world.constants import ACTIONS, EVENTS
from multigrid_rl.world.rendering import render_frame

#: Player of a seat, or a mixture of players with weights.
Choice: TypeAlias = "str | os.PathLike[str] | Policy | Mapping[str | os.PathLike[str] | Policy, float]"
Bools = NDArray[np.bool_]
#: Player of a learning seat of the scenario without a named player: every id can be made without arguments.
DEFAULT = "random"


class SeatEnv(gymnasium.Env):
    """A game from the view of one seat.

    * Observation: see :func:`multigrid_rl.world.spaces.observation_space`, or ``flat_space`` there.
    * Action: Discrete(7): left, right, forward, pickup, drop, toggle, done.
    * Reward: the seat's canonical reward (docs/game.md, section 5).
    * Terminated: the game is won by anyone or, under ``fair`` rules, this seat is eliminated, though its team mates may
      play on. Truncated: after ``max_steps`` steps. A win in the last step is both.
    * Info: see :func:`multigrid_rl.world.spaces.info`.

    ``reset(seed=...)`` determines all randomness in a game, the other seats included. Without a seed, each game's seed
    is drawn from ``np_random``.

    Args:
        scenario: one of ``multigrid_rl.config.recipes.scenario_names()``, the file of another (``./mine.yaml``), or an
            environment name of the original course.
        seat: the seat to play, such as ``red_0``.
        players: for other seats a player: a name, the folder of a frozen one or of a run, ``module:Class``, or an
            object with ``act`` (``types.Policy``) or its class; or a mixture of these with weights, one of which is
            drawn for each game. Other seats keep the scenario's players, and those that learn there have ``random``.
        render_mode: ``None``, or ``"rgb_array"`` for frames from ``render()``.
        checkpoints: folder of frozen players; by default the user's and the project's.
        flat: observations are vectors.

    Raises:
        ConfigError: unknown scenario.
        PlayerError: unknown or damaged player, or one that does not fit its seat.
        ValueError: unknown seat or render mode, or a mixture of no players.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        scenario: str = "1v1",
        seat: str = "red_0",
        players: Mapping[str, Choice] | None = None,
        render_mode: str | None = None,
        checkpoints: Path | None = None,
        *,
        flat: bool = False,
    ) -> None:
        self.render_mode = spaces.check_render_mode(render_mode)
        self.match = match_around(scenario, [seat], players, checkpoints, 1)
        self.game, self.seat = self.match.env.spec, seat
        self._encode = spaces.flat_observation if flat else spaces.observation
        self.observation_space = spaces.flat_space(self.game) if flat else spaces.observation_space(self.game)
        self.action_space = spaces.action_space()
        self._agent = self.game.seats.index(seat)
        self._playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, spaces.Info]:
        """Start a new game; returns the seat's observation and info. ``options`` are not used.

        Raises ``gymnasium.error.Error``: a negative seed.
        """
        super().reset(seed=seed, options=options)
        self.match.reset(int(self.np_random.integers(2**63)) if seed is None else seed)
        self._playing = True
        return self._observation(), spaces.info(self.match.env.world, self._agent)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, spaces.Info]:
        """Play one step with an action 0 to 6; returns observation, reward, terminated, truncated, info.

        Raises:
            RuntimeError: the episode is over, or none was started.
            ValueError: unknown action.
        """
        if not self._playing:
            raise RuntimeError(f"{self.seat} is not in a game: call reset() before step()")
        step = self.match.step({self.seat: np.full(1, spaces.check_action(action, self.seat), np.int8)})
        terminated, truncated = bool(step.terminated[self.seat][0]), bool(step.truncated[0])
        self._playing = not (terminated or truncated)
        reward = float(step.rewards[self.seat][0])
        return self._observation(), reward, terminated, truncated, spaces.info(self.match.env.world, self._agent)

    def render(self) -> NDArray[np.uint8] | None:
        """Frame uint8 (256, 512, 3) of the whole board; ``None`` without a render mode."""
        return None if self.render_mode is None else render_frame(self.match.env.world, 0)

    def _observation(self) -> Any:
        return self._encode(self.game, self.match.env.world.outputs.tokens[0, self._agent])


class SeatVectorEnv(VectorEnv):
    """``num_envs`` games from the view of one seat, stepped together; see :class:`SeatEnv` for spaces and rewards.

    A finished game resets in the same step (``AutoresetMode.SAME_STEP``): its last observation is in
    ``infos["final_obs"]``, rows ``infos["_final_obs"]``. All other infos are of the last step, arrays (N,). Raises
    ``ValueError``: as ``SeatEnv``, or no game.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1024,
        scenario: str = "1v1",
        seat: str = "red_0",
        players: Mapping[str, Choice] | None = None,
        checkpoints: Path | None = None,
        *,
        flat: bool = False,
    ) -> None:
        check_integer("num_envs", num_envs, 1)
        self.num_envs = num_envs
        self.match = match_around(scenario, [seat], players, checkpoints, num_envs, auto_reset=True)
        self.game, self.seat = self.match.env.spec, seat
        self._encode = spaces.flat_observation if flat else spaces.observation
        self.single_observation_space = spaces.flat_space(self.game) if flat else spaces.observation_space(self.game)
        self.single_action_space = spaces.action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._agent = self.game.seats.index(seat)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all games; a ``seed`` determines all their randomness, or one for each, as ``SeatEnv`` takes it.

        ``options`` are not used. Raises ``ValueError``: another number of seeds.
        """
        listed = isinstance(seed, Sequence | np.ndarray)
        seeds: list[Any] = [*seed] if listed else [seed]  # type: ignore[misc]
        valid = all(isinstance(item, int | np.integer | None) for item in seeds)
        if not valid or len(seeds) != (self.num_envs if listed else 1):
            raise ConfigError(expected("seed", f"an integer, or a list of {self.num_envs}", seed))
        super().reset(seed=None if seeds[0] is None else int(seeds[0]), options=options)
        game_seeds = [int(self.np_random.integers(2**63)) if item is None else int(item) for item in seeds]
        tokens = self.match.reset(game_seeds if listed else game_seeds[0])[self.seat]
        return self._encode(self.game, tokens), self._infos()

    def step(self, actions: NDArray[Any]) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Play one step with actions (N,) of 0 to 6; returns observations, rewards, terminated, truncated, infos.

        Raises ``ValueError``: actions of another shape, or unknown ones.
        """
        chosen = np.asarray(actions)
        fits = chosen.shape == (self.num_envs,) and np.issubdtype(chosen.dtype, np.integer)
        if not fits or ((chosen < 0) | (chosen >= len(ACTIONS))).any():
            wanted = f"({self.num_envs},) integers 0 to {len(ACTIONS) - 1}"
            raise ConfigError(expected("actions", wanted, f"{chosen.shape}: {chosen.tolist()}"[:80]))
        step = self.match.step({self.seat: chosen})
        terminated, truncated = step.terminated[self.seat].copy(), step.truncated.copy()
        rewards, infos = step.rewards[self.seat].copy(), self._infos()
        ended = terminated | truncated
        if ended.any():
            self.match.drain_episodes()  # not used
            # The episode of an eliminated seat ends, though team mates could play on: its game is reset, too.
            early = ended & ~step.done
            final = np.where(early[:, None], step.observations[self.seat], step.final_observations[self.seat])[ended]
            infos |= {"final_obs": _spread(self._encode(self.game, final), ended), "_final_obs": ended}
            if early.any():
                self.match.restart(early)
        return self._encode(self.game, self.match.observations()[self.seat]), rewards, terminated, truncated, infos

    def _infos(self) -> dict[str, Any]:
        outputs = self.match.env.world.outputs
        events = outputs.events[:, self._agent].copy()
        infos = {name: events[:, e] for e, name in enumerate(EVENTS)}
        return infos | {"mission": outputs.obs_mission[:, self._agent].copy(), "winner": outputs.winner.copy()}


def by_seat(players: Any) -> Mapping[str, Any]:
    """Return players by seat. Raises ``ConfigError`` for anything but a mapping or ``None``."""
    if not isinstance(players or {}, Mapping):
        raise ConfigError(expected("players", "a player for each seat, such as {'blue_0': 'hunter'}", repr(players)))
    return {seat: _saved(who) for seat, who in (players or {}).items()}


def _saved(who: Any) -> Any:
    """Return the checkpoint's folder of an algorithm or a result, whose players play; other players unchanged."""
    return who if callable(who) or hasattr(who, "act") else named(who)


def match_around(
    scenario: str,
    focal: Sequence[str],
    players: Mapping[str, Choice] | None,
    checkpoints: Path | None,
    games: int,
    *,
    auto_reset: bool = False,
) -> Match[Any]:
    """Return games with a player on every seat that is not in ``focal``. Raises as :class:`SeatEnv`."""
    selected, catalogue, overrides = load_scenario(scenario), Catalogue(checkpoints), by_seat(players)
    spec = selected.spec
    for seat in focal:
        spec.team_of(seat)
    others = [seat for seat in spec.seats if seat not in focal]
    if wrong := [seat for seat in overrides if seat not in others]:
        wanted = f"seats beside {', '.join(focal)}: {', '.join(others) or 'none'}"
        raise ConfigError(expected("players", wanted, wrong[0]))
    seated = {}
    for seat in others:
        choice = overrides.get(seat, selected.kind.opponents.get(seat, DEFAULT))
        single = {choice: 1.0} if isinstance(choice, Hashable) else {}
        mixture: Mapping[Any, float] = choice if isinstance(choice, Mapping) else single
        if not mixture or not all(isinstance(w, Real) and 0 < float(w) < math.inf for w in mixture.values()):
            raise ConfigError(expected(f"players[{seat!r}]", "a player, or players with weights above 0", choice))
        seated[seat] = tuple(_loaded(who, spec, seat, catalogue)._replace(weight=w) for who, w in mixture.items())
    return match_of(spec, seat_players(spec, seated), games, auto_reset=auto_reset)


def _loaded(choice: str | os.PathLike[str] | Policy, spec: GameSpec, seat: str, catalogue: Catalogue) -> LoadedPlayer:
    if isinstance(saved := _saved(choice), str | os.PathLike):
        return catalogue.seat(os.fspath(saved), spec, seat)
    player = choice(spec) if isinstance(choice, type) else choice
    name = str(getattr(player, "name", type(player).__name__))
    return LoadedPlayer(checked_player(name, player, spec, seat), name)


def _spread(parts: Any, rows: Bools) -> Any:
    """Return arrays (N, ...) with ``parts`` in the ``rows`` (N,) and zeros elsewhere."""
    if isinstance(parts, dict):
        return {key: _spread(part, rows) for key, part in parts.items()}
    spread = np.zeros((len(rows), *parts.shape[1:]), parts.dtype)
    spread[rows] = parts
    return spread
