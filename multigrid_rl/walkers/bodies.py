"""Bodies of Gymnasium's MuJoCo environments, and ``Walker-v0``'s: observations and rewards."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv
from gymnasium.utils import EzPickle
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Body:
    """Observations and rewards of one kind of body, for a batch; this class is HalfCheetah's.

    The formulas are those of ``gymnasium.envs.mujoco.*_v5``, in the same order of operations; their constants come
    from a built environment, so all its arguments count.
    """

    #: Arrays of ``MjData`` that are read after every step, in addition to positions and velocities.
    reads: tuple[str, ...] = ()
    #: Whether forces between bodies are computed after a step.
    forces = False
    #: Length of an episode's state outside of physics, see :meth:`begin`; it is the last array that is read.
    task_state_size = 0

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env: Any = env.unwrapped
        self.model: Any = self.env.model
        self.action_space = env.action_space
        self.limit: int | None = None if env.spec is None else env.spec.max_episode_steps
        self.skipped = int(self.env._exclude_current_positions_from_observation)

    def noise(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return positions and velocities of a fresh episode."""
        env, scale = self.env, self.env._reset_noise_scale
        qpos = env.init_qpos + rng.uniform(low=-scale, high=scale, size=self.model.nq)
        return qpos, np.asarray(env.init_qvel + scale * rng.standard_normal(self.model.nv))

    def begin(self, rng: np.random.Generator) -> Array:  # noqa: ARG002
        """Return a fresh episode's state outside of physics (``task_state_size``,)."""
        return np.zeros(self.task_state_size)

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the observations (N, D)."""
        return np.concatenate((qpos[:, self.skipped :], qvel), axis=1)

    def position(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the forward position (N,) of each body, or its position (N, 3)."""
        return np.array(qpos[:, 0])

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """Return which bodies stand (N,); ``None``: the kind has no such condition."""
        return None

    def cost(self, actions: NDArray[Any], read: list[Array]) -> NDArray[Any]:  # noqa: ARG002
        """Return the cost (N,) of unclipped actions (N, A) and of contacts."""
        weight: float = self.env._ctrl_cost_weight
        return np.asarray(weight * np.sum(np.square(actions), axis=1))

    def reward_and_termination(
        self, moved: Array, actions: NDArray[Any], state: tuple[Array, Array], read: list[Array]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return rewards and terminations (N,) for the distance ``moved`` in one step and the ``state`` after it.

        Reached goals are replaced.
        """
        env = self.env
        rewards = env._forward_reward_weight * (moved / env.dt)
        if (healthy := self.healthy(*state)) is None:
            return rewards - self.cost(actions, read), np.zeros(len(moved), np.bool_)
        rewards = rewards + healthy * env._healthy_reward
        return rewards - self.cost(actions, read), ~healthy & bool(env._terminate_when_unhealthy)


class Walker(Body):
    """Walker2d: stands between two heights and two angles; observed velocities are clipped."""

    def noise(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return positions and velocities of a fresh episode."""
        env, scale = self.env, self.env._reset_noise_scale
        qpos = np.asarray(env.init_qpos + rng.uniform(low=-scale, high=scale, size=self.model.nq))
        return qpos, env.init_qvel + rng.uniform(low=-scale, high=scale, size=self.model.nv)

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:
        """Return the observations (N, D)."""
        return super().observe(qpos, np.clip(qvel, -10, 10), read)

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which bodies stand (N,)."""
        env = self.env
        return _within(qpos[:, 1], env._healthy_z_range) & _within(qpos[:, 2], env._healthy_angle_range)


class Hopper(Walker):
    """Hopper: as Walker2d, and no part of its state may grow without bounds."""

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_]:
        """Return which bodies stand (N,)."""
        state = np.concatenate((qpos, qvel), axis=1)[:, 2:]
        return super().healthy(qpos, qvel) & _within(state, self.env._healthy_state_range).all(axis=1)


class Humanoid(Walker):
    """Humanoid: moves by its centre of mass, and contacts cost; its arguments choose parts of the observation."""

    PARTS = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.skipped *= 2
        env = self.env
        self.included = tuple(name for name in self.PARTS if getattr(env, f"_include_{name}_in_observation"))
        # A fall onto the ground costs up to 10, a step upright mostly nothing: 3 % of what random actions are paid.
        self.forces = bool(env._contact_cost_weight) or "cfrc_ext" in self.included
        self.reads = tuple(dict.fromkeys(("xipos", *self.included, *(("cfrc_ext",) if self.forces else ()))))
        self._mass = self.model.body_mass[:, None]
        self._offsets = {name: 6 if name == "qfrc_actuator" else 1 for name in self.PARTS}

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:
        """Return the observations (N, D)."""
        known = dict(zip(self.reads, read, strict=True))
        parts = [known[name][:, self._offsets[name] :].reshape(len(qpos), -1) for name in self.included]
        return np.concatenate((qpos[:, self.skipped :], qvel, *parts), axis=1)

    def position(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the forward position (N,) of each body's centre of mass."""
        centre = np.sum(self._mass * read[0], axis=1) / np.sum(self._mass)
        return np.asarray(centre[:, 0])

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which bodies stand (N,)."""
        return _within(qpos[:, 2], self.env._healthy_z_range)

    def cost(self, actions: NDArray[Any], read: list[Array]) -> NDArray[Any]:
        """Return the cost (N,) of actions (N, A) and contacts."""
        control = super().cost(actions.astype(np.float64), read)
        if not self.forces:
            return control
        forces = read[self.reads.index("cfrc_ext")]
        contact = self.env._contact_cost_weight * np.sum(np.square(forces).reshape(len(forces), -1), axis=1)
        return np.asarray(control + np.clip(contact, *self.env._contact_cost_range))


class Follower(Humanoid):
    """``Walker-v0``: a humanoid that must walk at one speed to a target, which moves when it is reached.

    Reward and ends are those of ML-Agents' Walker. Directions are relative to the target.
    """

    #: Number of an episode's targets, distance between two (metres), largest change of direction (radians).
    _TARGETS, _DISTANCE, _TURN = 16, (4.0, 8.0), math.pi / 4
    #: Distance at which a target is reached; largest distance that is observed.
    _REACHED, _FARTHEST = 1.0, 10.0
    task_state_size = 1 + 2 * _TARGETS

    def begin(self, rng: np.random.Generator) -> Array:
        """Return the number of the first target and the positions of all."""
        turned = np.cumsum(rng.uniform(-self._TURN, self._TURN, self._TARGETS))
        distances = rng.uniform(*self._DISTANCE, self._TARGETS)
        places = np.cumsum(distances[:, None] * np.stack((np.cos(turned), np.sin(turned)), axis=1), axis=0)
        return np.concatenate(([0.0], places.reshape(-1)))

    def target(self, goals: Array) -> Array:
        """Return the positions (N, 2) of the current targets."""
        places = goals[:, 1:].reshape(len(goals), -1, 2)
        return np.asarray(places[np.arange(len(goals)), goals[:, 0].astype(np.intp)])

    def _to_target(self, qpos: Array, goals: Array) -> tuple[Array, Array]:
        """Return distance (N,) and direction (N, 2) of the targets."""
        offset = self.target(goals) - qpos[:, :2]
        distance = np.sqrt(offset[:, 0] ** 2 + offset[:, 1] ** 2)
        return distance, offset / np.maximum(distance, 1e-6)[:, None]

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:
        """Return height, directions of the torso, joints, velocities, parts, and the target's distance (N, 87)."""
        distance, ahead = self._to_target(qpos, read[-1])
        vectors = np.concatenate((*_axes(qpos), qvel[:, None, :3], read[0][:, 1:] - qpos[:, None, :3]), axis=1)
        x, y = vectors[..., 0], vectors[..., 1]
        along = ahead[:, :1] * x + ahead[:, 1:] * y
        across = ahead[:, :1] * y - ahead[:, 1:] * x
        turned = np.stack((along, across, vectors[..., 2]), axis=2).reshape(len(qpos), -1)
        distance = np.minimum(distance, self._FARTHEST)[:, None]
        return np.concatenate((qpos[:, 2:3], turned, qpos[:, 7:], qvel[:, 3:], distance), axis=1)

    def position(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the mean position (N, 3) of the parts of each body."""
        return np.asarray(np.mean(read[0][:, 1:], axis=1))

    def reward_and_termination(
        self,
        moved: Array,
        actions: NDArray[Any],  # noqa: ARG002
        state: tuple[Array, Array],
        read: list[Array],
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return rewards, matching speed times looking at the target, and falls (N,)."""
        goals, speed = read[-1], self.env.speed
        distance, ahead = self._to_target(state[0], goals)
        velocity_error = moved / self.env.dt
        velocity_error[:, :2] -= speed * ahead
        missed = np.minimum(np.sqrt(np.sum(velocity_error**2, axis=1)), speed) / speed
        forward = _axes(state[0])[0][:, 0]
        looking = (forward[:, 0] * ahead[:, 0] + forward[:, 1] * ahead[:, 1] + 1) / 2
        goals[:, 0] = np.minimum(goals[:, 0] + (distance < self._REACHED), self._TARGETS - 1)
        return (1 - missed**2) ** 2 * looking, ~self.healthy(*state)


def _axes(qpos: Array) -> tuple[Array, Array]:
    """Return the directions of the torso's front and top, each (N, 1, 3), from its quaternion."""
    w, x, y, z = qpos[:, 3:7].T
    front = (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y))
    top = (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y))
    return np.stack(front, axis=1)[:, None], np.stack(top, axis=1)[:, None]


def _within(values: Array, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    return np.asarray((bounds[0] < values) & (values < bounds[1]))


class WalkerEnv(HumanoidEnv):
    """A humanoid walks at one speed to a target and looks at it; a reached target moves.

    Each step pays (1 - (|v - v*| / |v*|)^2)^2 times half of 1 plus the cosine between the torso's direction and the
    target's: between 0 and 1. ``v`` is the mean velocity of all parts in the step and ``v*`` is ``speed`` towards
    the target; a larger difference than ``speed`` counts as that. It ends where the torso is below 1 m or above 2 m.
    Physics are stepped by MuJoCo's Euler, one evaluation of forces for each 3 ms instead of Humanoid's four. ``speed``:
    wanted speed, in metres a second.
    """

    def __init__(self, speed: float = 1.0, render_mode: str | None = None) -> None:
        if not 0 < speed <= 10:
            raise ValueError(f"speed: expected a number above 0 and at most 10, got {speed}")
        self.speed = float(speed)
        unseen = {f"include_{part}_in_observation": False for part in Follower.PARTS}
        camera = {"trackbodyid": 1, "distance": 7.0, "lookat": np.array((0.0, 0.0, 1.5)), "elevation": -20.0}
        super().__init__(contact_cost_weight=0.0, default_camera_config=camera, render_mode=render_mode, **unseen)
        EzPickle.__init__(self, speed, render_mode)
        self.model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER  # 4 times as fast; game engines do so, too
        self._body = Follower(self)
        self._goals: NDArray[np.float64] = np.zeros((1, Follower.task_state_size))
        self.observation_space = spaces.Box(-np.inf, np.inf, self._get_obs().shape, np.float64)
        self.observation_structure: dict[str, Any] = {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Play one step."""
        qpos, qvel, read = self._state()
        before = self._body.position(qpos, read)
        self.do_simulation(action, self.frame_skip)
        qpos, qvel, read = self._state()
        moved = self._body.position(qpos, read) - before
        rewards, fallen = self._body.reward_and_termination(moved, np.asarray(action)[None], (qpos, qvel), read)
        if self.render_mode == "human":
            self.render()
        return self._get_obs(), float(rewards[0]), bool(fallen[0]), False, {}

    def reset_model(self) -> NDArray[np.float64]:
        """Begin an episode."""
        self.set_state(*self._body.noise(self.np_random))
        self._goals[0] = self._body.begin(self.np_random)
        return self._get_obs()

    def _state(self) -> tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.float64]]]:
        return self.data.qpos[None], self.data.qvel[None], [self.data.xipos[None], self._goals]

    def _get_obs(self) -> NDArray[np.float64]:
        obs: NDArray[np.float64] = self._body.observe(*self._state())[0]
        return obs

    def render(self) -> Any:
        """Draw the body and, as a red ball, the target."""
        viewer = self.mujoco_renderer._get_viewer(self.render_mode)
        place = (*self._body.target(self._goals)[0], 0.2)
        viewer.add_marker(pos=place, size=(0.2, 0.2, 0.2), rgba=(0.9, 0.2, 0.1, 1.0), type=2, label="")
        return super().render()


_PACKAGE = "gymnasium.envs.mujoco."
_BODIES: dict[str, type[Body]] = {
    f"{_PACKAGE}half_cheetah_v5:HalfCheetahEnv": Body,
    f"{_PACKAGE}walker2d_v5:Walker2dEnv": Walker,
    f"{_PACKAGE}hopper_v5:HopperEnv": Hopper,
    f"{_PACKAGE}humanoid_v5:HumanoidEnv": Humanoid,
    "multigrid_rl.walkers.bodies:WalkerEnv": Follower,
}


def body_of(env: gymnasium.Env[Any, Any]) -> Body | None:
    """Return the body of an environment of Gymnasium's; ``None`` for another environment, or one with wrappers.

    A model of the user's own (``xml_file``) may have muscles or plugins, whose state is in none of the three vectors.
    """
    inner, layer = type(env.unwrapped), env
    kind = _BODIES.get(f"{inner.__module__}:{inner.__qualname__}")
    while isinstance(layer, gymnasium.Wrapper) and type(layer) in (TimeLimit, OrderEnforcing):
        layer = layer.env
    if kind is None or layer is not env.unwrapped:
        return None
    model = layer.model
    state_size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    return kind(env) if state_size == 1 + model.nq + model.nv else None
