"""Check the engine against recorded episodes of the original game, array by array.

A trace file holds the layouts and the actions of many episodes with all outputs of the original game
(`tests/golden/traces/README.md`). The engine starts each episode from its recorded first state, plays the recorded
actions under the classic rules, and must return the same.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.types import TEAM_ORDER, GameSpec, RewardWeights, Rules
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.state import Step

#: Agents of each unit in the recordings: an agent under DTDE and CTDE, a team under CTCE.
Units = dict[str, list[int]]
Arrays = dict[str, NDArray[Any]]

#: State arrays (one row for each state), then step arrays, in the order in which a step produces them.
STATE_ARRAYS = (
    "grid", "agent_pos", "agent_dir", "agent_terminated", "agent_carrying", "agent_carried_object", "agent_mission",
    "ball_discount", "obs_image", "obs_direction", "obs_mission", "obs_mission_value",
)  # fmt: skip
STEP_ARRAYS = (
    "agent_reward", "reward", "terminated", "truncated",
    "info_door_open_done", "info_eliminated_opponents_done", "info_got_eliminated_done", "info_eliminated_opponent_num",
)  # fmt: skip
_REAL = ("ball_discount", "agent_reward", "reward")
RELATIVE_TOLERANCE = 1e-12


def differing(path: Path) -> list[str]:
    """Replay one file; returns the arrays in which engine and recording differ."""
    with np.load(path, allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    meta = json.loads(str(data["meta_json"]))
    replayed = _replay(data, meta, spec_of(meta))
    return [name for name in (*STATE_ARRAYS, *STEP_ARRAYS) if not _same(name, data[name], replayed[name])]


def _same(name: str, wanted: NDArray[Any], found: NDArray[Any]) -> bool:
    if name in _REAL:
        return np.allclose(found, wanted, rtol=RELATIVE_TOLERANCE, atol=0.0, equal_nan=True)
    return np.array_equal(found, wanted)


def spec_of(meta: dict[str, Any]) -> GameSpec:
    """Return the classic game that a trace's ``meta_json`` describes, reward weights included."""
    names = [agent["name"] for agent in meta["agents"]]
    schemes = meta.get("registered_kwargs", {}).get("reward_schemes", {})
    return GameSpec(
        blue=sum(name.startswith("blue") for name in names),
        red=sum(name.startswith("red") for name in names),
        obstacle=meta["obstacle"],
        random_keys=meta["randomization"],
        death_match=meta["death_match"],
        max_steps=meta["max_steps"],
        view_size=meta["view_size"],
        mission_observed=meta["env_class"].endswith("V3"),
        rules=Rules.classic(),
        seat_reward=tuple((name, _weights(schemes[name])) for name in names if name in schemes),
    )


def _weights(scheme: dict[str, Any]) -> RewardWeights:
    return RewardWeights(
        key_pickup=scheme["key_pickup_sparse_reward"],
        ball_pickup=scheme["ball_pickup_dense_reward"],
        ball_discount=scheme["dense_reward_discount_factor"]["ball_carrying_discount_factor"],
        invalid_pickup=-scheme["invalid_pickup_dense_penalty"],
        eliminated_opponent=scheme["eliminated_opponent_sparse_reward"],
    )


def _units(spec: GameSpec, scheme: str) -> Units:
    if scheme != "CTCE":
        return {seat: [a] for a, seat in enumerate(spec.seats)}
    teams = {team: [spec.seats.index(seat) for seat in spec.seats_of(team)] for team in TEAM_ORDER}
    return {team: agents for team, agents in teams.items() if agents}


def _fold(how: Callable[..., NDArray[Any]], values: NDArray[Any], units: Units) -> NDArray[Any]:
    """Turn (N, A) into (N, U): ``how`` (sum, any, all) over the agents of each unit."""
    return np.stack([how(values[:, agents], axis=1) for agents in units.values()], axis=1)


def _load_first_states(world: World, data: Arrays) -> None:
    first = data["ep_state_start"]
    s = world.state
    s.cells[:] = c.encode(data["grid"][first]).reshape(len(first), c.CELLS)
    s.position[:] = data["agent_pos"][first] @ np.array([c.HEIGHT, 1], np.int64)
    s.heading[:] = data["agent_dir"][first]
    s.hand[:] = c.encode(data["agent_carried_object"][first])
    s.shown[:] = c.encode(data["agent_carrying"][first])
    s.out[:] = data["agent_terminated"][first]
    s.mission[:] = data["agent_mission"][first]
    observed = data["obs_mission_value"][first]
    s.mission_value[:] = np.where(observed >= 0, observed, s.mission)
    s.ball_factor[:] = data["ball_discount"][first][:, [1, 0]]  # recorded as (blue, red)
    world.observe()


def _replay(data: Arrays, meta: dict[str, Any], spec: GameSpec) -> Arrays:
    lengths, steps, states = (data[k].astype(np.int64) for k in ("ep_len", "ep_step_start", "ep_state_start"))
    assert list(spec.seats) == [agent["name"] for agent in meta["agents"]]
    world = World(spec, len(lengths), auto_reset=False)
    _load_first_states(world, data)
    units = _units(spec, meta["training_scheme"])
    assert list(units) == list(meta["units"])
    out: Arrays = {name: np.zeros_like(data[name]) for name in (*STATE_ARRAYS, *STEP_ARRAYS)}
    running = lengths >= 0
    _record_state(world, out, states[running], running)
    actions = np.full((len(lengths), spec.num_agents), c.DONE, np.int8)
    orders = np.tile(np.arange(spec.num_agents, dtype=np.int8), (len(lengths), 1))
    for t in range(int(lengths.max())):
        running = lengths > t
        actions[running] = data["action"][steps[running] + t]
        orders[running] = data["order"][steps[running] + t]
        step = world.step(actions, orders)
        _record_step(step, units, out, steps[running] + t, running)
        _record_state(world, out, states[running] + t + 1, running)
    return out


def _record_state(world: World, out: Arrays, rows: NDArray[np.int64], games: NDArray[np.bool_]) -> None:
    s, o, v = world.state, world.outputs, world.spec.view_size
    tokens = o.tokens[games]
    out["grid"][rows] = c.decode(s.cells[games]).reshape(-1, c.WIDTH, c.HEIGHT, 3)
    out["agent_pos"][rows] = np.stack(np.divmod(s.position[games], c.HEIGHT), axis=-1)
    out["agent_dir"][rows] = s.heading[games]
    out["agent_terminated"][rows] = s.out[games]
    out["agent_carrying"][rows] = c.decode(s.shown[games])
    out["agent_carried_object"][rows] = c.decode(s.hand[games])
    out["agent_mission"][rows] = s.mission[games]
    out["ball_discount"][rows] = s.ball_factor[games][:, [1, 0]]
    out["obs_image"][rows] = c.decode(tokens[..., : v * v]).reshape(*tokens.shape[:2], v, v, 3)
    out["obs_direction"][rows] = tokens[..., v * v]
    out["obs_mission"][rows] = o.obs_mission[games] if world.spec.mission_observed else -1
    out["obs_mission_value"][rows] = tokens[..., v * v + 1] if world.spec.mission_observed else -1


def _record_step(step: Step, units: Units, out: Arrays, rows: NDArray[np.int64], games: NDArray[np.bool_]) -> None:
    events = step.events[games]
    out["agent_reward"][rows] = step.reward[games]
    out["reward"][rows] = _fold(np.sum, step.reward[games], units)
    out["terminated"][rows] = _fold(np.all, step.terminated[games], units)
    out["truncated"][rows] = step.truncated[games][:, None]
    out["info_door_open_done"][rows] = _fold(np.any, events[..., c.EV_DOOR_WIN] > 0, units)
    out["info_eliminated_opponents_done"][rows] = _fold(np.any, events[..., c.EV_ELIMINATION_WIN] > 0, units)
    out["info_got_eliminated_done"][rows] = _fold(np.any, events[..., c.EV_VICTIM] > 0, units)
    winners = events[..., c.EV_ELIMINATION_WIN]  # those who were rewarded
    out["info_eliminated_opponent_num"][rows] = _fold(np.sum, winners, units)
