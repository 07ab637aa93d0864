"""What the PettingZoo and Gymnasium faces share: spaces, observation dictionaries and info dictionaries."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.text import expected
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS, BLUE, CELL, EVENTS, MISSIONS, RED, decode
from multigrid_rl.world.engine import World

#: One seat's observation: the keys are those of :func:`observation_space`.
Observation: TypeAlias = dict[str, Any]
#: One seat's info: event name -> value, ``mission`` -> string and, once the game is over, ``winner``.
Info: TypeAlias = dict[str, Any]

#: Largest number in any (type, colour, state) triple. Below 255, so that nobody takes a view for a picture to rescale.
_HIGHEST = int(CELL.max())
_WINNERS = {RED: "red", BLUE: "blue", -1: None}


def observation_space(spec: GameSpec) -> spaces.Dict:
    """Space of one seat's observation, a new object at each call.

    * ``image``: Box uint8 (V, V, 3), the (type, colour, state) triple of each window cell (rules, sections 1 and 4);
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
    """Space of one seat's action, Discrete(7) in the order of ``constants.ACTIONS``; a new object at each call."""
    return spaces.Discrete(len(ACTIONS))


def observation(spec: GameSpec, tokens: NDArray[np.uint8]) -> Observation:
    """Turn one seat's tokens (D,) into a dictionary that :func:`observation_space` contains; nothing is shared."""
    size = spec.view_size
    seen: Observation = {
        "image": decode(tokens[: size * size]).reshape(size, size, 3),
        "direction": np.int64(tokens[-2]),
    }
    if spec.mission_observed:
        seen["mission"] = np.int64(tokens[-1])
    return seen


def info(world: World, agent: int) -> Info:
    """Tell what happened to one agent of game 0 in the last step; zeros after a reset.

    Keys are ``constants.EVENTS`` (float), ``mission`` (string) and, in the step that ends the game, ``winner``:
    ``"red"``, ``"blue"`` or ``None``.
    """
    o = world.outputs
    told: Info = dict(zip(EVENTS, o.events[0, agent].tolist(), strict=True))
    told["mission"] = MISSIONS[o.obs_mission[0, agent]]
    if world.state.over[0]:
        told["winner"] = _WINNERS[int(o.winner[0])]
    return told


def check_action(action: Any, seat: str) -> int:
    """Return ``action`` as an ``int``.

    Raises:
        ValueError: not one of the integers 0 to 6.
    """
    number = action.item() if isinstance(action, np.ndarray) and action.ndim == 0 else action
    if not isinstance(number, int | np.integer) or not 0 <= number < len(ACTIONS):
        listed = ", ".join(f"{k} {name}" for k, name in enumerate(ACTIONS))
        raise ValueError(expected(f"action of {seat}", listed, repr(action)))
    return int(number)


def check_render_mode(render_mode: str | None) -> str | None:
    """Return ``render_mode``; raises ``ValueError`` if it is neither ``None`` nor ``"rgb_array"``."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(expected("render_mode", "None or 'rgb_array'", repr(render_mode)))
    return render_mode
