"""Batches of HalfCheetah, Walker2d, Hopper, Humanoid and ``Walker-v0``: MuJoCo steps them, numpy does the rest.

The numbers equal those of Gymnasium's environments; all cores are used (speed: ``make bench-control``): one step of all
bodies is a compiled loop around MuJoCo's ``mj_step``, without the interpreter and its lock, in as many threads as
there are cores, and one computation of all observations and rewards. A body's state is three vectors, positions,
velocities and the solver's warm start, which go in and come out of the one ``MjData`` of a thread; so any thread may
step any body, and a run goes on exactly from arrays. ``mujoco.rollout`` has such a loop, but returns neither the
warm start nor the centres of mass that Humanoid's reward reads: it would follow Gymnasium only nearly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import mujoco
import numba
import numpy as np
from gymnasium.utils import seeding
from llvmlite import ir
from numba import prange
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from multigrid_rl.cores import available_cpus
from multigrid_rl.envs.base import SingleAgentEnvs
from multigrid_rl.jit import shared, threads
from multigrid_rl.walkers.bodies import Body, body_of

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
#: A thread that steps fewer bodies than these waits longer than it works.
BODIES_PER_THREAD = 4


def threads_to_use() -> int:
    """Return the threads for a process: its cores, or fewer by ``OMP_NUM_THREADS``: a Ray worker's share of them."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return min(available_cpus(), int(share)) if share.isdecimal() and int(share) else available_cpus()


_FUNCTIONS = ("mj_step", "mj_rnePostConstraint")
#: Of a body's arrays, control, positions, velocities and warm start are inputs; all except control are outputs.
_INPUTS, _FIRST_OUTPUT = 4, 1


@intrinsic
def _call(typing: Any, function: Any, model: Any, data: Any) -> Any:  # noqa: ARG001
    """Call ``void function(model, data)`` of C; all three arguments are addresses."""

    def build(context: Any, builder: Any, _: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return numba.types.void(function, model, data), build


@intrinsic
def _copy(typing: Any, to: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
    """Copy ``size`` bytes from one address to another."""

    def build(context: Any, builder: Any, _: Any, values: Any) -> Any:
        to, source = (builder.inttoptr(value, cgutils.voidptr_t) for value in values[:2])
        cgutils.raw_memcpy(builder, to, source, values[2], 1)
        return context.get_dummy_value()

    return numba.types.void(to, source, size), build


@shared
def _advance(calls: Numbers, fields: Numbers, origins: Numbers, sizes: Numbers, first: int, last: int) -> None:
    """Step the bodies ``first`` to ``last - 1``, equally many in each thread.

    Args:
        calls: (threads, 5) addresses of two functions (0: none), the model and the thread's ``MjData``; steps to take.
        fields: (threads, F) addresses of that ``MjData``'s control, positions, velocities, warm start and more.
        origins: (F,) addresses of the same of all bodies, one after the other.
        sizes: (F,) bytes of one body.
    """
    count, bodies = len(calls), last - first
    for thread in prange(count):
        step, forces, model, data, frames = calls[thread]
        for k in range(first + thread * bodies // count, first + (thread + 1) * bodies // count):
            for j in range(_INPUTS):
                _copy(fields[thread, j], origins[j] + k * sizes[j], sizes[j])
            for _ in range(frames):
                _call(step, model, data)
            if forces:
                _call(forces, model, data)
            for j in range(_FIRST_OUTPUT, len(sizes)):
                _copy(origins[j] + k * sizes[j], fields[thread, j], sizes[j])


class MujocoEnvs(SingleAgentEnvs):
    """``num_envs`` environments with one body each; implements ``types.BatchedEnv``.

    Equal to ``GymnasiumEnvs`` in every number, whatever the number of threads.

    Args:
        body: see :func:`body_of`.
        threads: number of threads that step bodies; 0: :func:`threads_to_use`.
    """

    def __init__(
        self, env_id: str, body: Body, num_envs: int, *, seed: int = 0, first: int = 0, threads: int = 0
    ) -> None:
        self._body, self._model = body, body.model
        super().__init__(env_id, num_envs, body.action_space, int(body.env.observation_space.shape[0]), first)
        self.threads = max(1, min(threads or threads_to_use(), num_envs // BODIES_PER_THREAD))
        self._datas = datas = [mujoco.MjData(self._model) for _ in range(self.threads)]
        self._ctrl = np.zeros((num_envs, self._model.nu))
        names = ("qpos", "qvel", "qacc_warmstart", *body.reads)
        self._physics: list[Array] = [np.zeros((num_envs, *getattr(self._datas[0], name).shape)) for name in names]
        if body.task_state_size:
            self._physics.append(np.zeros((num_envs, body.task_state_size)))
        self._names = names
        functions = ctypes.CDLL(mujoco._functions.__file__)  # MuJoCo's library, as loaded by its module
        step, forces = (ctypes.cast(getattr(functions, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS)
        addresses = step, forces if body.forces else 0, self._model._address
        rows = [(*addresses, data._address, body.env.frame_skip) for data in datas]
        arrays = (self._ctrl, *self._physics[: len(names)])  # the addresses of arrays and fields never change
        field_rows = [[getattr(data, name).ctypes.data for name in ("ctrl", *names)] for data in datas]
        columns = rows, field_rows, [array.ctypes.data for array in arrays], [array[0].nbytes for array in arrays]
        calls, fields, origins, widths = (np.array(column, np.int64) for column in columns)
        self._tables = calls, fields, origins, widths
        self._thread_tables = [(calls[k : k + 1], fields[k : k + 1], origins, widths) for k in range(self.threads)]
        self._pool = ThreadPoolExecutor(self.threads - 1, "mujoco") if self.threads > 1 else None
        self.reset(seed)

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._physics]

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        body, (qpos, qvel, _, *read) = self._body, self._physics
        self._ctrl[:] = actions
        before = body.position(qpos, read)
        if self._pool is None or threads() >= self.threads:
            _advance(*self._tables, 0, self.num_envs)
        else:  # cores may be busy: a free thread takes the next bodies
            starts = iter(range(0, self.num_envs, BODIES_PER_THREAD))
            others = [self._pool.submit(self._step_bodies, k, starts) for k in range(1, self.threads)]
            self._step_bodies(0, starts)
            for other in others:
                other.result()
        rewards, terminated = body.reward_and_termination(
            body.position(qpos, read) - before, actions, (qpos, qvel), read
        )
        limit = body.limit
        truncated = np.zeros(self.num_envs, np.bool_) if limit is None else self._length + 1 >= limit
        return body.observe(qpos, qvel, read), rewards, terminated, truncated

    def _step_bodies(self, thread: int, starts: Iterator[int]) -> None:
        """Step bodies with the memory of one thread until none are left."""
        for start in starts:
            _advance(*self._thread_tables[thread], start, min(start + BODIES_PER_THREAD, self.num_envs))

    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        data = self._datas[0]
        for k, seed in seeds.items():
            rng, _ = seeding.np_random(seed)
            mujoco.mj_resetData(self._model, data)
            data.qpos[:], data.qvel[:] = self._body.noise(rng)
            mujoco.mj_forward(self._model, data)
            values = [getattr(data, name) for name in self._names]
            if self._body.task_state_size:
                values.append(self._body.begin(rng))
            for array, value in zip(self._physics, values, strict=True):
                array[k] = value
        which = list(seeds)
        qpos, qvel, _, *read = (array[which] for array in self._physics)
        return self._body.observe(qpos, qvel, read)


def side_by_side(env: gymnasium.Env[Any, Any], num_envs: int, seed: int, first: int) -> MujocoEnvs | None:
    """Return ``num_envs`` environments like ``env``, from number ``first`` on; ``None`` if we have no such body."""
    body = body_of(env)
    assert env.spec is not None
    return None if body is None else MujocoEnvs(env.spec.id, body, num_envs, seed=seed, first=first)
