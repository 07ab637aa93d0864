"""Gymnasium's HalfCheetah, Walker2d, Hopper and Humanoid, ``N`` side by side: MuJoCo steps them, numpy does the rest.

Number for number what Gymnasium's own environments do, on all cores (speed: ``make bench-control``): one step of all
bodies is a compiled loop around MuJoCo's own ``mj_step``, without the interpreter and its lock, in as many threads as
there are cores, and one computation of all observations and rewards. A body's whole state is three vectors, positions,
velocities and the solver's warm start, which go in and come out of the one ``MjData`` of a thread; so any thread may
step any body, and a run goes on exactly from arrays. ``mujoco.rollout`` has such a loop, but hands back neither the
warm start nor what Humanoid's reward reads (centres of mass where the integrator left them): it would follow Gymnasium
only nearly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numba
import numpy as np
from gymnasium.utils import seeding
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

from multigrid_rl.envs.base import SingleAgentEnvs
from multigrid_rl.jit import kernel
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

    def observe(self, qpos: Array, qvel: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return the observations (N, D)."""
        return np.concatenate((qpos[:, self.skipped :], qvel), axis=1)

    def place(self, qpos: Array, read: list[Array]) -> Array:  # noqa: ARG002
        """Return how far each body is (N,)."""
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
        """Return rewards and terminations (N,) of bodies that ``moved`` so far in one step and are in ``state`` now."""
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

    _SEEN = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.skipped *= 2
        own = self.env
        self.shown = tuple(name for name in self._SEEN if getattr(own, f"_include_{name}_in_observation"))
        # A fall onto the ground costs up to 10, a step upright mostly nothing: 3 % of what random actions are paid.
        self.forces = bool(own._contact_cost_weight) or "cfrc_ext" in self.shown
        self.reads = tuple(dict.fromkeys(("xipos", *self.shown, *(("cfrc_ext",) if self.forces else ()))))
        self._mass = self.model.body_mass[:, None]
        self._offsets = {name: 6 if name == "qfrc_actuator" else 1 for name in self._SEEN}

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


def _within(values: Array, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    return np.asarray((bounds[0] < values) & (values < bounds[1]))


_CALLED = ("mj_step", "mj_rnePostConstraint")
#: Of a body's arrays, control, positions, velocities and warm start go in; all but the control come out.
_GO_IN, _COME_OUT = 4, 1


@intrinsic
def _call(typing: Any, function: Any, model: Any, data: Any) -> Any:  # noqa: ARG001
    """Call ``void function(model, data)`` of C, all three of them addresses."""

    def build(context: Any, builder: Any, _: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return numba.types.void(function, model, data), build


@kernel
def _advance(
    addresses: tuple[int, int, int, int, int],
    memory: tuple[Array, ...],
    everybody: tuple[Array, ...],
    start: int,
    end: int,
) -> None:
    """Step some bodies, one after the other, in ``memory``: the arrays of one ``MjData`` (size,), as in (N, size)."""
    step, forces, model, data, frames = addresses
    for k in range(start, end):
        for j in range(_GO_IN):
            for i in range(memory[j].size):
                memory[j][i] = everybody[j][k, i]
        for _ in range(frames):
            _call(step, model, data)
        if forces:
            _call(forces, model, data)
        for j in range(_COME_OUT, len(memory)):
            for i in range(memory[j].size):
                everybody[j][k, i] = memory[j][i]


_ROOM = "gymnasium.envs.mujoco."
_BODIES: dict[str, type[Body]] = {
    f"{_ROOM}half_cheetah_v5:HalfCheetahEnv": Body,
    f"{_ROOM}walker2d_v5:Walker2dEnv": Walker,
    f"{_ROOM}hopper_v5:HopperEnv": Hopper,
    f"{_ROOM}humanoid_v5:HumanoidEnv": Humanoid,
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
        self._names = names
        everybody = tuple(array.reshape(num_envs, -1) for array in (self._ctrl, *self._physics))
        functions = ctypes.CDLL(mujoco._functions.__file__)  # MuJoCo's library, as its own module found it
        step, forces = (ctypes.cast(getattr(functions, name), ctypes.c_void_p).value or 0 for name in _CALLED)
        self._calls = [
            (
                (step, forces if body.forces else 0, self._model._address, data._address, body.env.frame_skip),
                tuple(getattr(data, name).reshape(-1) for name in ("ctrl", *names)),
                everybody,
            )
            for data in self._datas
        ]
        self.reset(seed)

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._physics]

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        body, (qpos, qvel, _, *read) = self._body, self._physics
        self._ctrl[:] = actions
        before = body.place(qpos, read)
        starts = iter(range(0, self.num_envs, BODIES_PER_THREAD))  # shared: whoever is free takes the next
        others = [self._pool.submit(self._advance, k, starts) for k in range(1, self.threads)] if self._pool else []
        self._advance(0, starts)
        for other in others:
            other.result()
        rewards, terminated = body.judge(body.place(qpos, read) - before, actions, (qpos, qvel), read)
        limit = body.limit
        truncated = np.zeros(self.num_envs, np.bool_) if limit is None else self._length + 1 >= limit
        return body.observe(qpos, qvel, read), rewards, terminated, truncated

    def _advance(self, thread: int, starts: Iterator[int]) -> None:
        """Step bodies with the memory of one thread, until there are none left."""
        for start in starts:
            _advance(*self._calls[thread], start, min(start + BODIES_PER_THREAD, self.num_envs))

    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        data = self._datas[0]
        for k, seed in seeds.items():
            rng, _ = seeding.np_random(seed)
            self._mujoco.mj_resetData(self._model, data)
            data.qpos[:], data.qvel[:] = self._body.noise(rng)
            self._mujoco.mj_forward(self._model, data)
            for array, name in zip(self._physics, self._names, strict=True):
                array[k] = getattr(data, name)
        which = list(seeds)
        qpos, qvel, _, *read = (array[which] for array in self._physics)
        return self._body.observe(qpos, qvel, read)
