"""MPE's simple-spread and simple-tag, all games in one call.

The games of the package ``mpe2`` (https://mpe2.farama.org) step one body after the other in Python, which is more than
half of a training's time. This module has the same worlds and numbers, except for the last bit of rewards: bodies on a
plane with contact forces (Lowe et al. 2017, https://arxiv.org/abs/1706.02275).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.envs.base import Episodes
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.envs.zoo import LIMIT, StepResult
from multigrid_rl.jit import inlined, kernel

Array = NDArray[Any]
SPREAD, TAG = "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:mpe2.simple_tag_v3"
#: Supported arguments with the game's defaults; ``mpe2`` plays games with other arguments.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    SPREAD: {"N": 3, "local_ratio": 0.5, "max_cycles": 25},
    TAG: {"num_good": 1, "num_adversaries": 3, "num_obstacles": 2, "max_cycles": 25},
}
_DT, _DAMPING, _CONTACT_FORCE, _CONTACT_MARGIN = 0.1, 0.25, 1e2, 1e-3


class Bodies(NamedTuple):
    """Bodies of all games of a batch: ``A`` agents, hunters first, then landmarks, together ``E`` bodies."""

    size: Array  # (E,) radius
    solid: Array  # (E,) others bounce off
    accel: Array  # (A,) force of one action
    speed: Array  # (A,) maximum speed
    hunters: int  # number of agents that hunt the others; -1: all spread over the landmarks
    local: float  # share of an agent's individual reward in its reward


def plays(env_id: str, env_args: Mapping[str, Any]) -> bool:
    """Return whether a game with these arguments is one of the two in the supported version."""
    with suppress(KeyError, PackageNotFoundError):
        return env_args.keys() <= {*_ARGUMENTS[env_id], LIMIT} and version("mpe2").startswith("1.1.")
    return False


def bodies_of(env_id: str, env_args: Mapping[str, Any]) -> Bodies:
    """Return the bodies of a game."""
    arguments = {**_ARGUMENTS[env_id], **env_args}
    if env_id == SPREAD:
        bodies = arguments["N"]
        size, solid = np.repeat([0.15, 0.05], bodies), np.repeat([True, False], bodies)
        return Bodies(size, solid, np.full(bodies, 5.0), np.full(bodies, np.inf), -1, arguments["local_ratio"])
    hunters, prey = arguments["num_adversaries"], arguments["num_good"]
    size = np.repeat([0.075, 0.05, 0.2], [hunters, prey, arguments["num_obstacles"]])
    accel, speed = np.repeat([[3.0, 4.0], [1.0, 1.3]], [hunters, prey], axis=1)
    return Bodies(size, np.ones(len(size), np.bool_), accel, speed, hunters, 1.0)


class ParticleEnvs(PettingZooEnvs):
    """``num_envs`` games of :data:`SPREAD` or :data:`TAG`, never drawn; arguments are those of its base."""

    def _open_games(self, game: ZooSpec) -> list[Any]:
        self._bodies = bodies_of(game.env_id, game.env_args)
        self._last_step = {**_ARGUMENTS[game.env_id], **game.env_args}["max_cycles"]
        agents, bodies = len(self.seats), len(self._bodies.size)
        self._place = np.zeros((self.num_envs, bodies, 2))
        self._velocity, self._force = np.zeros((2, self.num_envs, agents, 2))
        widest = max(spec.size for spec in self._seat_specs.values())
        self._views = np.zeros((self.num_envs, agents, widest), np.float32)
        return []

    def _play(self, chosen: dict[str, Array], terminated: Array, done: Array, truncated: Array) -> None:  # noqa: ARG002
        active = np.asarray(self.turn.any(axis=1))
        choices = np.stack([chosen[seat] for seat in self.seats], axis=1)
        if not self._auto_reset:  # for replays
            for n in np.flatnonzero(active):
                self.played[n].append(dict(zip(self.seats, choices[n], strict=True)))
        done[:] = truncated[:] = active & (self._length + 1 >= min(self._last_step, self._max_steps))
        self._step(active, choices)

    def _step(self, which: Array, choices: Array) -> None:
        step_worlds(self._bodies, which, choices, self._place, self._velocity, self._force, self._rewards)
        self._show(which)

    def _show(self, which: Array) -> None:
        show_agents(self._bodies, which, self._place, self._velocity, self._views)
        for a, obs in enumerate(self._obs.values()):
            obs[which] = self._views[which, a, : obs.shape[1]]

    def get_state(self) -> dict[str, Any]:
        """Return the state of all games, with positions and velocities of the bodies."""
        return {**Episodes.get_state(self), "bodies": [self._place.copy(), self._velocity.copy()]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`; games that ``mpe2`` stepped are played again."""
        if "bodies" in state:
            Episodes.set_state(self, state)
            self._place[...], self._velocity[...] = state["bodies"]
        else:
            super().set_state(state)

    def _begin(self, which: Array) -> None:
        super()._begin(which)
        self._show(which)

    def _call(self, n: int, call: str, argument: Any) -> StepResult:
        if call == "step":
            which = np.arange(self.num_envs) == n
            self._step(which, np.tile([argument[seat] for seat in self.seats], (self.num_envs, 1)))
            return StepResult({}, self.seats)
        generator, agents = np.random.Generator(np.random.PCG64(argument)), len(self.seats)
        reach = 1.0 if self._bodies.hunters < 0 else 0.9
        self._place[n, :agents] = generator.uniform(-1.0, 1.0, (agents, 2))
        self._place[n, agents:] = generator.uniform(-reach, reach, self._place[n, agents:].shape)
        self._velocity[n] = 0.0
        self.turn[n] = True
        return StepResult({}, self.seats)


@inlined
def _distance(place: Array, a: int, b: int) -> Any:
    across, up = place[a, 0] - place[b, 0], place[a, 1] - place[b, 1]
    return math.sqrt(across * across + up * up)


@kernel
def step_worlds(  # noqa: PLR0913, PLR0917 - arrays of one batch
    world: Bodies, which: Array, choices: Array, place: Array, velocity: Array, force: Array, rewards: Array
) -> None:
    """Move the bodies (N, E, 2) of the games in ``which`` (N,) by a choice of each agent (N, A), and write rewards."""
    for n in range(len(which)):
        if which[n]:
            for a in range(velocity.shape[1]):
                force[n, a, 0] = world.accel[a] * ((choices[n, a] == 2) - (choices[n, a] == 1))
                force[n, a, 1] = world.accel[a] * ((choices[n, a] == 4) - (choices[n, a] == 3))
            _push_apart(world, place[n], force[n])
            _integrate(world, place[n], velocity[n], force[n])
            rewards[n] = 0.0
            if world.hunters < 0:
                _pay_spread(world, place[n], rewards[n])
            else:
                _pay_tag(world, place[n], rewards[n])


@inlined
def _push_apart(world: Bodies, place: Array, force: Array) -> None:
    """Add contact forces, which grow smoothly as bodies overlap."""
    for a in range(len(force)):
        for b in range(a + 1, len(place)):
            if world.solid[a] and world.solid[b]:
                distance = _distance(place, a, b)
                push = -(distance - (world.size[a] + world.size[b])) / _CONTACT_MARGIN
                depth = max(push, 0.0) + math.log1p(math.exp(-abs(push)))  # log(1 + exp(push))
                for axis in range(2):
                    shove = _CONTACT_FORCE * (place[a, axis] - place[b, axis]) / distance * (depth * _CONTACT_MARGIN)
                    force[a, axis] += shove
                    if b < len(force):
                        force[b, axis] -= shove


@inlined
def _integrate(world: Bodies, place: Array, velocity: Array, force: Array) -> None:
    """Move agents by Euler's step and limit their speeds."""
    for a in range(len(velocity)):
        for axis in range(2):
            place[a, axis] += velocity[a, axis] * _DT
            velocity[a, axis] = velocity[a, axis] * (1 - _DAMPING) + force[a, axis] * _DT
        speed = math.sqrt(velocity[a, 0] ** 2 + velocity[a, 1] ** 2)
        if speed > world.speed[a]:
            for axis in range(2):
                velocity[a, axis] = velocity[a, axis] / speed * world.speed[a]


@inlined
def _pay_spread(world: Bodies, place: Array, rewards: Array) -> None:
    """Charge all agents for distances between landmarks and their nearest agents, and each for its collisions."""
    shared = 0.0
    for landmark in range(len(rewards), len(place)):
        nearest = np.inf
        for a in range(len(rewards)):
            nearest = min(nearest, _distance(place, a, landmark))
        shared -= nearest
    for a in range(len(rewards)):
        for b in range(len(rewards)):
            rewards[a] -= b != a and _distance(place, a, b) < world.size[a] + world.size[b]
        rewards[a] = shared * (1 - world.local) + rewards[a] * world.local


@inlined
def _pay_tag(world: Bodies, place: Array, rewards: Array) -> None:
    """Pay every hunter for each touch of prey, and charge prey for touches and for leaving the screen."""
    caught = 0.0
    for prey in range(world.hunters, len(rewards)):
        for hunter in range(world.hunters):
            if _distance(place, prey, hunter) < world.size[prey] + world.size[hunter]:
                caught += 10.0
                rewards[prey] -= 10.0
        for axis in range(2):
            distance = abs(place[prey, axis])
            rewards[prey] -= min(math.exp(2 * distance - 2), 10.0) if distance >= 1.0 else max(distance - 0.9, 0.0) * 10
    for hunter in range(world.hunters):
        rewards[hunter] = caught


@kernel
def show_agents(world: Bodies, which: Array, place: Array, velocity: Array, views: Array) -> None:
    """Write the observations (N, A, D) of the games in ``which`` (N,)."""
    for n in range(len(which)):
        if which[n]:
            for a in range(velocity.shape[1]):
                _show_agent(world, a, place[n], velocity[n], views[n, a])


@inlined
def _show_agent(world: Bodies, a: int, place: Array, velocity: Array, view: Array) -> None:
    """Write an agent's velocity and position, then the relative positions of the others, landmarks first.

    The velocities of the other prey follow; without hunters, the empty messages.
    """
    agents, at = len(velocity), 4
    for axis in range(2):
        view[axis], view[2 + axis] = velocity[a, axis], place[a, axis]
    for k in range(len(place)):
        other = (k + agents) % len(place)
        if other != a:
            view[at], view[at + 1] = place[other, 0] - place[a, 0], place[other, 1] - place[a, 1]
            at += 2
    for prey in range(world.hunters if world.hunters >= 0 else agents, agents):
        if prey != a:
            view[at], view[at + 1] = velocity[prey, 0], velocity[prey, 1]
            at += 2
