"""HalfCheetah, Walker2d, Hopper, Humanoid, ``Walker-v0``, ``N`` side by side: MuJoCo steps them, numpy does the rest.

Number for number what Gymnasium's own environments do, on all cores (speed: ``make bench-control``): one step of all
bodies is a loop around ``mujoco.mj_step`` (C, which lets go of the interpreter's lock) in as many threads as there are
cores, and one computation of all observations and rewards. A body's whole state is three vectors, positions, velocities
and the solver's warm start, which go in and come out of the one ``MjData`` of a thread; so any thread may step any
body, and a run goes on exactly from arrays. ``mujoco.rollout`` has the same loop in C, which is cheaper with several
threads, but hands back neither the warm start nor what Humanoid's reward reads (centres of mass where the integrator
left them): it would follow Gymnasium only nearly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from multigrid_rl.envs import WALKER
from multigrid_rl.envs.base import SingleAgentEnvs
from multigrid_rl.schema import available_cpus

Array = NDArray[np.float64]
#: A thread that steps fewer bodies than these waits longer than it works.
BODIES_PER_THREAD = 4


def threads_to_use() -> int:
    """Return the threads for a process: its cores, or fewer by ``OMP_NUM_THREADS``: a Ray worker's share of them."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return min(available_cpus(), int(share)) if share.isdecimal() and int(share) else available_cpus()


class Body:
    """What is seen of a body and paid to it, for many at a time; this one is HalfCheetah's.

    The formulas are those of ``gymnasium.envs.mujoco.*_v5``, in the same order of operations; their numbers are read
    from an environment that was built, so all its arguments count.

    Args:
        env: the environment.
    """

    #: Arrays of ``MjData`` that are read after every step, beside positions and velocities.
    reads: tuple[str, ...] = ()
    #: Whether forces between bodies are computed after a step.
    forces = False
    #: Numbers of an episode beside its physics: :meth:`begin`; they come last in what is read.
    goals = 0

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
        """Return what a fresh episode has beside its physics (``goals``,)."""
        return np.zeros(self.goals)

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the observations (N, D)."""
        return np.concatenate((qpos[:, self.skipped :], qvel), axis=1)

    def place(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return how far each body is (N,), or where (N, 3)."""
        return np.array(qpos[:, 0])

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """Return which bodies stand (N,); ``None``: nothing is said of that."""
        return None

    def cost(self, actions: NDArray[Any], read: list[Array]) -> NDArray[Any]:  # noqa: ARG002
        """Return what the actions (N, A), as they came, and contacts cost (N,)."""
        weight: float = self.env._ctrl_cost_weight
        return np.asarray(weight * np.sum(np.square(actions), axis=1))

    def judge(
        self, moved: Array, actions: NDArray[Any], state: tuple[Array, Array], read: list[Array]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return rewards and terminations (N,) of bodies that ``moved`` so far in one step and are in ``state`` now.

        Goals that are reached change.
        """
        env = self.env
        rewards = env._forward_reward_weight * (moved / env.dt)
        healthy = self.healthy(*state)
        if healthy is None:
            return rewards - self.cost(actions, read), np.zeros(len(moved), np.bool_)
        rewards = rewards + healthy * env._healthy_reward
        return rewards - self.cost(actions, read), ~healthy & bool(env._terminate_when_unhealthy)


class Walker(Body):
    """Walker2d: stands between two heights and two angles; shown velocities are clipped."""

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
    """Humanoid: its centre of mass moves, and contacts cost; what its observation holds is chosen by its arguments."""

    SEEN = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.skipped *= 2
        own = self.env
        self.shown = tuple(name for name in self.SEEN if getattr(own, f"_include_{name}_in_observation"))
        # A fall onto the ground costs up to 10, a step upright mostly nothing: 3 % of what random actions are paid.
        self.forces = bool(own._contact_cost_weight) or "cfrc_ext" in self.shown
        self.reads = tuple(dict.fromkeys(("xipos", *self.shown, *(("cfrc_ext",) if self.forces else ()))))
        self._mass = self.model.body_mass[:, None]
        self._offsets = {name: 6 if name == "qfrc_actuator" else 1 for name in self.SEEN}

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:
        """Return the observations (N, D)."""
        known = dict(zip(self.reads, read, strict=True))
        parts = [known[name][:, self._offsets[name] :].reshape(len(qpos), -1) for name in self.shown]
        return np.concatenate((qpos[:, self.skipped :], qvel, *parts), axis=1)

    def place(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return how far each body's centre of mass is (N,)."""
        centre = np.sum(self._mass * read[0], axis=1) / np.sum(self._mass)
        return np.asarray(centre[:, 0])

    def healthy(self, qpos: Array, qvel: Array) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which bodies stand (N,)."""
        return _within(qpos[:, 2], self.env._healthy_z_range)

    def cost(self, actions: NDArray[Any], read: list[Array]) -> NDArray[Any]:
        """Return what the actions (N, A) and contacts cost (N,)."""
        control = super().cost(actions.astype(np.float64), read)
        if not self.forces:
            return control
        forces = read[self.reads.index("cfrc_ext")]
        contact = self.env._contact_cost_weight * np.sum(np.square(forces).reshape(len(forces), -1), axis=1)
        return np.asarray(control + np.clip(contact, *self.env._contact_cost_range))


class Follower(Humanoid):
    """``Walker-v0``: a humanoid that is to walk at one speed to a target, which moves on when it is reached.

    Reward and ends are those of ML-Agents' Walker. Directions are seen from the target: where it is does not matter.
    """

    #: An episode's targets, each so far from the one before (metres), in a direction so different (radians).
    _TARGETS, _AWAY, _TURN = 16, (4.0, 8.0), math.pi / 4
    #: A target is reached from so near; farther ones than the second number look as far as that.
    _REACHED, _FARTHEST = 1.0, 10.0
    goals = 1 + 2 * _TARGETS

    def begin(self, rng: np.random.Generator) -> Array:
        """Return the number of the first target and the places of all."""
        turned = np.cumsum(rng.uniform(-self._TURN, self._TURN, self._TARGETS))
        away = rng.uniform(*self._AWAY, self._TARGETS)
        places = np.cumsum(away[:, None] * np.stack((np.cos(turned), np.sin(turned)), axis=1), axis=0)
        return np.concatenate(([0.0], places.reshape(-1)))

    def target(self, goals: Array) -> Array:
        """Return where the targets (N, 2) are."""
        places = goals[:, 1:].reshape(len(goals), -1, 2)
        return np.asarray(places[np.arange(len(goals)), goals[:, 0].astype(np.intp)])

    def _way(self, qpos: Array, goals: Array) -> tuple[Array, Array]:
        """Return how far the targets are (N,), and in which direction (N, 2)."""
        way = self.target(goals) - qpos[:, :2]
        far = np.sqrt(way[:, 0] ** 2 + way[:, 1] ** 2)
        return far, way / np.maximum(far, 1e-6)[:, None]

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:
        """Return height, directions of the torso, joints, velocities, parts, and how far the target is (N, 87)."""
        far, ahead = self._way(qpos, read[-1])
        parts = read[0][:, 1:] - qpos[:, None, :3]
        seen = np.concatenate((*_axes(qpos), qvel[:, None, :3], parts), axis=1)
        x, y = seen[..., 0], seen[..., 1]
        along = ahead[:, :1] * x + ahead[:, 1:] * y
        across = ahead[:, :1] * y - ahead[:, 1:] * x
        turned = np.stack((along, across, seen[..., 2]), axis=2).reshape(len(qpos), -1)
        far = np.minimum(far, self._FARTHEST)[:, None]
        return np.concatenate((qpos[:, 2:3], turned, qpos[:, 7:], qvel[:, 3:], far), axis=1)

    def place(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return where the parts of each body are on average (N, 3)."""
        return np.asarray(np.mean(read[0][:, 1:], axis=1))

    def judge(
        self,
        moved: Array,
        actions: NDArray[Any],  # noqa: ARG002
        state: tuple[Array, Array],
        read: list[Array],
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return rewards, matching speed times looking at the target, and falls (N,)."""
        goals, speed = read[-1], self.env.speed
        far, ahead = self._way(state[0], goals)
        off = moved / self.env.dt
        off[:, :2] -= speed * ahead
        missed = np.minimum(np.sqrt(np.sum(off**2, axis=1)), speed) / speed
        forward = _axes(state[0])[0][:, 0]
        looking = (forward[:, 0] * ahead[:, 0] + forward[:, 1] * ahead[:, 1] + 1) / 2
        goals[:, 0] = np.minimum(goals[:, 0] + (far < self._REACHED), self._TARGETS - 1)
        return (1 - missed**2) ** 2 * looking, ~self.healthy(*state)


def _axes(qpos: Array) -> tuple[Array, Array]:
    """Return where the torso's front and its top point to, each (N, 1, 3), from its quaternion."""
    w, x, y, z = qpos[:, 3:7].T
    front = (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y))
    top = (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y))
    return np.stack(front, axis=1)[:, None], np.stack(top, axis=1)[:, None]


def _within(values: Array, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    return np.asarray((bounds[0] < values) & (values < bounds[1]))


_ROOM = "gymnasium.envs.mujoco."
_BODIES: dict[str, type[Body]] = {
    f"{_ROOM}half_cheetah_v5:HalfCheetahEnv": Body,
    f"{_ROOM}walker2d_v5:Walker2dEnv": Walker,
    f"{_ROOM}hopper_v5:HopperEnv": Hopper,
    f"{_ROOM}humanoid_v5:HumanoidEnv": Humanoid,
    WALKER: Follower,
}


def carries(env_id: str) -> bool:
    """Return whether an id is registered for one of the bodies of this module; nothing is built."""
    spec = gymnasium.registry.get(env_id)
    return spec is not None and spec.entry_point in _BODIES


def body_of(env: gymnasium.Env[Any, Any]) -> Body | None:
    """Return the body of an environment of Gymnasium's; ``None`` where it is another, or more than a body.

    A model of one's own (``xml_file``) may have muscles or plugins, whose state is in none of the three vectors.
    """
    import mujoco  # noqa: PLC0415 - an extra: not every installation has it

    inner, layer = type(env.unwrapped), env
    kind = _BODIES.get(f"{inner.__module__}:{inner.__qualname__}")
    while isinstance(layer, gymnasium.Wrapper) and type(layer) in (TimeLimit, OrderEnforcing):
        layer = layer.env
    if kind is None or layer is not env.unwrapped:
        return None
    model = layer.model
    whole = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    return kind(env) if whole == 1 + model.nq + model.nv else None


class MujocoEnvs(SingleAgentEnvs):
    """``num_envs`` environments with one body each; implements ``types.BatchedEnv``.

    Equal to ``GymnasiumEnvs`` in every number, whatever the number of threads.

    Args:
        env_id: what messages call it.
        body: what :func:`body_of` returned.
        num_envs: how many environments ``N``.
        seed: of everything random.
        first: number of the first environment.
        threads: how many step bodies; 0: :func:`threads_to_use`.
    """

    def __init__(
        self, env_id: str, body: Body, num_envs: int, *, seed: int = 0, first: int = 0, threads: int = 0
    ) -> None:
        import mujoco  # noqa: PLC0415

        self._mujoco, self._body, self._model = mujoco, body, body.model
        size = int(body.env.observation_space.shape[0])
        super().__init__(env_id, num_envs, body.action_space, size, first)
        self.threads = max(1, min(threads or threads_to_use(), num_envs // BODIES_PER_THREAD))
        self._datas = [mujoco.MjData(self._model) for _ in range(self.threads)]
        self._pool = ThreadPoolExecutor(self.threads - 1, "mujoco") if self.threads > 1 else None
        self._ctrl = np.zeros((num_envs, self._model.nu))
        names = ("qpos", "qvel", "qacc_warmstart", *body.reads)
        self._physics: list[Array] = [np.zeros((num_envs, *getattr(self._datas[0], name).shape)) for name in names]
        if body.goals:
            self._physics.append(np.zeros((num_envs, body.goals)))
        self._names = names
        #: Views of each body's control, positions, velocities, warm start, and what else is read.
        self._rows = list(zip(self._ctrl, *self._physics[: len(names)], strict=True))
        self.reset(seed)

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._physics]

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        body, (qpos, qvel, _, *read) = self._body, self._physics
        self._ctrl[:] = actions
        before = body.place(qpos, read)
        bodies = iter(range(self.num_envs))  # shared: whoever is free takes the next
        others = [self._pool.submit(self._advance, data, bodies) for data in self._datas[1:]] if self._pool else []
        self._advance(self._datas[0], bodies)
        for other in others:
            other.result()
        rewards, terminated = body.judge(body.place(qpos, read) - before, actions, (qpos, qvel), read)
        limit = body.limit
        truncated = np.zeros(self.num_envs, np.bool_) if limit is None else self._length + 1 >= limit
        return body.observe(qpos, qvel, read), rewards, terminated, truncated

    def _advance(self, data: Any, bodies: Iterator[int]) -> None:
        """Step bodies with the memory of one thread, until there are none left."""
        step, model, frames = self._mujoco.mj_step, self._model, self._body.env.frame_skip
        forces = self._mujoco.mj_rnePostConstraint if self._body.forces else None
        ctrl, qpos, qvel, warm = data.ctrl, data.qpos, data.qvel, data.qacc_warmstart
        others = [getattr(data, name) for name in self._names[3:]]
        rows = self._rows
        for k in bodies:
            its_ctrl, its_qpos, its_qvel, its_warm, *its_others = rows[k]
            ctrl[:], qpos[:], qvel[:], warm[:] = its_ctrl, its_qpos, its_qvel, its_warm
            step(model, data, frames)
            if forces is not None:
                forces(model, data)
            its_qpos[:], its_qvel[:], its_warm[:] = qpos, qvel, warm
            for mine, value in zip(its_others, others, strict=True):
                mine[...] = value

    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        data = self._datas[0]
        for k, seed in seeds.items():
            rng, _ = seeding.np_random(seed)
            self._mujoco.mj_resetData(self._model, data)
            data.qpos[:], data.qvel[:] = self._body.noise(rng)
            self._mujoco.mj_forward(self._model, data)
            values = [getattr(data, name) for name in self._names]
            if self._body.goals:
                values.append(self._body.begin(rng))
            for array, value in zip(self._physics, values, strict=True):
                array[k] = value
        which = list(seeds)
        qpos, qvel, _, *read = (array[which] for array in self._physics)
        return self._body.observe(qpos, qvel, read)
