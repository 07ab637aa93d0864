"""Spaces, observations and infos shared by the PettingZoo and Gymnasium environments."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS, CELL, EVENTS, MISSIONS, decode, encode
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import token_categories

#: One seat's info, only numbers: event name -> value, ``mission`` and ``winner``.
Info: TypeAlias = dict[str, Any]

#: Largest number in any (type, colour, state) triple. Below 255, so that libraries do not rescale views as images.
_HIGHEST = int(CELL.max())


def observation_space(spec: GameSpec) -> spaces.Dict:
    """Return the space of one seat's observation, a new object at each call.

    * ``image``: Box uint8 (V, V, 3), (type, colour, state) of each window cell (docs/game.md, sections 1 and 4);
    * ``direction``: Discrete(4), the heading: 0 +x, 1 +y, 2 -x, 3 -y;
    * ``mission``: Discrete(4), index in ``constants.MISSIONS``; left out where ``spec.mission_observed`` is false.
    """
    size = spec.view_size
    parts: dict[str, Any] = {
        "image": spaces.Box(0, _HIGHEST, (size, size, 3), np.uint8),
        "direction": spaces.Discrete(4),
    }
    if spec.mission_observed:
        parts["mission"] = spaces.Discrete(len(MISSIONS))
    return spaces.Dict(parts)


def action_space() -> spaces.Discrete:
    """Return a seat's action space, Discrete(7) in the order of ``constants.ACTIONS``; a new object each time."""
    return spaces.Discrete(len(ACTIONS))


def observation(spec: GameSpec, tokens: NDArray[np.uint8]) -> dict[str, Any]:
    """Turn a seat's tokens (..., D) into a new dictionary in :func:`observation_space`."""
    size = spec.view_size
    obs: dict[str, Any] = {
        "image": decode(tokens[..., : size * size]).reshape(*tokens.shape[:-1], size, size, 3),
        "direction": tokens[..., -2].astype(np.int64)[()],  # a scalar for one game
    }
    if spec.mission_observed:
        obs["mission"] = tokens[..., -1].astype(np.int64)[()]
    return obs


def tokens_of(obs: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return the tokens (..., D) of an observation in :func:`observation_space`, or of several.

    Raises ``ValueError``: a view of something that is not in this game.
    """
    codes = encode(np.asarray(obs["image"]))
    heading = np.asarray(obs["direction"])
    mission = np.asarray(obs.get("mission", np.zeros_like(heading)))
    cells = codes.reshape(*heading.shape, -1)
    return np.concatenate([cells, heading[..., None], mission[..., None]], axis=-1).astype(np.uint8)


def token_rows(observation: Any) -> tuple[NDArray[np.uint8], bool]:
    """Return tokens (N, D) of tokens or of an argument of :func:`tokens_of`, and whether there are several rows.

    Raises ``ConfigError``: numbers that are not tokens.
    """
    tokens = tokens_of(observation) if isinstance(observation, Mapping) else np.asarray(observation)
    if tokens.dtype.kind not in "biuf" or not ((tokens >= 0) & (tokens <= 255) & (tokens % 1 == 0)).all():
        raise ConfigError(expected("observation", "tokens, whole numbers from 0 to 255", shown(str(tokens), 80)))
    return np.atleast_2d(tokens).astype(np.uint8), tokens.ndim > 1


def flat_space(spec: GameSpec) -> spaces.Box:
    """Return the space of one-hot observation vectors: cells, heading and mission in turn."""
    return spaces.Box(0.0, 1.0, (sum(token_categories(spec)),), np.float32)


def flat_observation(spec: GameSpec, tokens: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn a seat's tokens (..., D) into vectors in :func:`flat_space`."""
    categories = token_categories(spec)
    width, starts = sum(categories), np.cumsum([0, *categories[:-1]])
    rows = tokens.reshape(-1, len(categories))
    one_hot = np.zeros(len(rows) * width, np.float32)
    one_hot[np.arange(len(rows))[:, None] * width + starts + rows] = 1.0
    return one_hot.reshape(*tokens.shape[:-1], width)


def info(world: World, agent: int) -> Info:
    """Return the events of one agent of game 0 in the last step; zeros after a reset.

    Keys are ``constants.EVENTS`` (float), ``mission`` (index in ``constants.MISSIONS``) and ``winner``: 0 red, 1 blue,
    -1 none (yet).
    """
    o = world.outputs
    events: Info = dict(zip(EVENTS, o.events[0, agent].tolist(), strict=True))
    return events | {"mission": int(o.obs_mission[0, agent]), "winner": int(o.winner[0])}


def check_action(action: Any, seat: str) -> int:
    """Return ``action`` as an ``int``. Raises ``ValueError`` unless it is an integer from 0 to 6."""
    number = action.item() if isinstance(action, np.ndarray) and action.ndim == 0 else action
    if not isinstance(number, int | np.integer) or not 0 <= number < len(ACTIONS):
        listed = ", ".join(f"{k} {name}" for k, name in enumerate(ACTIONS))
        raise ConfigError(expected(f"action of {seat}", listed, repr(action)))
    return int(number)


def check_render_mode(render_mode: str | None) -> str | None:
    """Return ``render_mode``; raises ``ValueError`` if it is neither ``None`` nor ``"rgb_array"``."""
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(expected("render_mode", "None or 'rgb_array' (the verb play shows games)", repr(render_mode)))
    return render_mode
