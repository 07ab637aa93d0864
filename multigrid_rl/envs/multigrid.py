"""Environments of the ``multigrid`` package, ``N`` side by side, behind the face that matches wear.

One agent sees ``V * V`` cells, its own direction, and a mission. Its tokens are the cells' types, then their colours,
then their states, each as ``[i][j]``, then the direction, then the number of its mission string among all strings of
the mission space. (In ``BlockedUnlockPickup`` that string is drawn apart from the box, so there it says nothing.)

The package is imported when the first environment is built: it pulls in pygame.
"""

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config.scenario import EnvironmentKind
from multigrid_rl.envs.base import TEAM, Episodes, episode_sequence
from multigrid_rl.envs.grouping import GroupedEnv, Scheme, agents_of
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.types import BatchedStep, EnvFactory, MultiAgentSpec

#: What an agent that has finished does while the others play on.
_DONE = 6
#: Values of one token of type uint8.
_MOST_MISSIONS = 256


@lru_cache(maxsize=1)
def _library() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame greets on standard output
    from multigrid.base import MultiGridEnv  # noqa: PLC0415
    from multigrid.core.constants import Color, Direction, State, Type  # noqa: PLC0415
    from multigrid.envs import CONFIGURATIONS  # noqa: PLC0415
    from multigrid.utils.random import RandomMixin  # noqa: PLC0415

    return SimpleNamespace(
        env=MultiGridEnv,
        own_ids=tuple(CONFIGURATIONS),
        mixin=RandomMixin,
        types=len(Type),
        colours=len(Color),
        states=max(len(State), len(Direction)),  # an agent's heading stands where an object's state does
        directions=len(Direction),
    )


def registered_ids() -> tuple[str, ...]:
    """Return the ids of the package's environments, and of classes derived from its own."""
    library = _library()
    derived = [
        name
        for name, spec in gymnasium.registry.items()
        if isinstance(spec.entry_point, type) and issubclass(spec.entry_point, library.env)
    ]
    return tuple(sorted({*library.own_ids, *derived}))


def make_env(env_id: str, agents: int) -> Any:
    """Build one environment, a ``multigrid.base.MultiGridEnv``. Raises ``ValueError``: the id is not registered."""
    known = registered_ids()
    if env_id not in known:
        raise ValueError(unknown("env_id", env_id, known, "one of {}"))
    return gymnasium.make(env_id, agents=agents, disable_env_checker=True).unwrapped


def mission_numbers(env: Any) -> dict[str, int]:
    """Return every string of an environment's mission space and its number, in the order of the space.

    Raises:
        ValueError: more strings than one token has values.
    """
    space = env.mission_space
    strings = dict.fromkeys(str(space.get(index)) for index in np.ndindex(*map(int, space.nvec)))
    if len(strings) > _MOST_MISSIONS:
        raise ValueError(expected(type(env).__name__, f"at most {_MOST_MISSIONS} missions", len(strings)))
    return {string: number for number, string in enumerate(strings)}


def token_categories(env: Any) -> tuple[int, ...]:
    """Return the number of values of each of the ``3 * V * V + 2`` tokens of one agent."""
    library, area = _library(), env.agents[0].view_size ** 2
    cells = (library.types,) * area + (library.colours,) * area + (library.states,) * area
    return (*cells, library.directions, len(mission_numbers(env)))


class MultigridEnvs(Episodes):
    """``num_envs`` environments of one id; implements ``types.BatchedEnv`` with the seats ``agent_0`` to ``agent_A-1``.

    Finished environments start afresh at once. What environment ``k`` does follows from ``seed``, ``k``, the number of
    its episode and the actions alone. An agent that has finished while others have not stays, does nothing, and its
    ``mask`` is false. The table's winner is 0 where an agent's return was positive.

    Args:
        env_id: id of a registered environment.
        num_envs: how many environments ``N``.
        agents: how many agents ``A`` in each.
        seed: of everything random.
        first: number of the first environment.

    Raises:
        ValueError: the id is not registered, or its observations do not fit into tokens.
    """

    def __init__(self, env_id: str, num_envs: int, *, agents: int = 1, seed: int = 0, first: int = 0) -> None:
        super().__init__(num_envs, agents)
        self.seats = tuple(f"agent_{a}" for a in range(agents))
        self.envs = [make_env(env_id, agents) for _ in range(num_envs)]
        self.categories = token_categories(self.envs[0])
        self._missions = mission_numbers(self.envs[0])
        self._first = first
        shape = (num_envs, agents)
        self._tokens = np.zeros((*shape, len(self.categories)), np.uint8)
        self._final = np.zeros_like(self._tokens)
        self._gone = np.zeros(shape, np.bool_)
        self._played: list[list[list[int]]] = [[] for _ in range(num_envs)]
        self.reset(seed)

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the tokens (N, D) of each seat as the environments stand."""
        return _by_seat(self.seats, self._tokens)

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N,) integers for each seat."""
        mask = ~self._gone
        chosen = np.stack([actions[seat] for seat in self.seats], axis=1)
        chosen[self._gone] = _DONE
        self._clock.begin()
        rewards, timed_out = self._play(chosen)
        self._clock.lap("engine")
        done = timed_out | self._gone.all(axis=1)
        truncated = done & ~self._gone.all(axis=1)
        terminated = self._gone.copy()
        self._returns += rewards
        self._length += 1
        if done.any():
            self._final[done] = self._tokens[done]
            self._finish(done, np.where((self._returns[done] > 0).any(axis=1), 0, -1))
        return BatchedStep(
            observations=self.observations(),
            final_observations=_by_seat(self.seats, self._final),
            rewards=_by_seat(self.seats, rewards),
            terminated=_by_seat(self.seats, terminated),
            mask=_by_seat(self.seats, mask),
            truncated=truncated,
            done=done,
        )

    def get_state(self) -> dict[str, Any]:
        """Return the actions since each episode began, and our arrays: the package's objects cannot be copied."""
        return {**super().get_state(), "played": [[list(row) for row in rows] for rows in self._played]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked: begins the same episodes again and plays the same actions.

        Raises:
            ValueError: a state of other environments.
        """
        super().set_state(state)
        self._begin(np.ones(self.num_envs, np.bool_))
        for env, rows, mine in zip(self.envs, state["played"], self._played, strict=True):
            for row in rows:
                env.step(dict(enumerate(row)))
            mine[:] = [list(row) for row in rows]
        super().set_state(state)  # beginning counted from zero

    def _arrays(self) -> list[NDArray[Any]]:
        return [self._tokens, self._final, self._gone, *super()._arrays()]

    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Step every environment; rewards (N, A), and where the time is over (N,)."""
        rewards = np.zeros(actions.shape)
        timed_out = np.zeros(len(actions), np.bool_)
        # Plain integers: the package compares each action with its enum, and numpy's scalars are slow at that.
        for n, (env, row) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            shown, gained, ended, cut, _ = env.step(dict(enumerate(row)))
            self._played[n].append(row)
            self._see(n, shown)
            agents = range(len(row))
            rewards[n] = [gained[a] for a in agents]
            self._gone[n] |= [ended[a] for a in agents]
            timed_out[n] = any(cut[a] for a in agents)
        return rewards, timed_out

    def _see(self, n: int, shown: dict[int, dict[str, Any]]) -> None:
        for a, seen in shown.items():
            tokens = self._tokens[n, a]
            tokens[:-2] = seen["image"].transpose(2, 0, 1).reshape(-1)
            tokens[-2] = seen["direction"]
            tokens[-1] = self._missions[str(seen["mission"])]

    def _begin(self, which: NDArray[np.bool_]) -> None:
        for n in np.flatnonzero(which).tolist():
            sequence = episode_sequence(self._seed, self._first + n, int(self._episode[n]))
            env = self.envs[n]
            # The package draws layouts from the generator that it was built with, whatever seed a reset is given.
            _library().mixin.__init__(env, np.random.default_rng(sequence))
            shown, _ = env.reset(seed=int(sequence.generate_state(1)[0]))
            self._see(n, shown)
            self._played[n] = []
        self._gone[which] = False
        self._returns[which] = 0.0
        self._length[which] = 0


def _by_seat(seats: tuple[str, ...], columns: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {seat: columns[:, a] for a, seat in enumerate(seats)}


@dataclass(frozen=True)
class MultigridFactory(EnvFactory):
    """Builds environments of one id, in this process or another.

    Args:
        env_id: id of a registered environment, for example ``MultiGrid-Empty-8x8-v0``.
        num_agents: number of agents.
        seed: of all environments.
        scheme: how the seats become learning agents.
        shared: all agents play one network.
    """

    env_id: str
    num_agents: int
    seed: int
    scheme: Scheme = "dtde"
    shared: bool = False

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """Who is in the environments. Raises ``ConfigError`` for an unknown id."""
        try:
            env = make_env(self.env_id, self.num_agents)
        except ValueError as error:
            raise ConfigError(f"scenario.{error}") from error
        seats = {f"agent_{a}": TEAM for a in range(self.num_agents)}
        choices = int(env.action_space[0].n)
        view = token_categories(env)
        return MultiAgentSpec(
            agents=agents_of(self.scheme, shared=self.shared, seats=seats, view=view, choices=choices),
            seats=tuple(seats),
            teams=tuple(seats.values()),
            team_names=(TEAM,),
            events=(),
        )

    def build(self, num_envs: int, first: int) -> GroupedEnv:
        """Build environments number ``first`` to ``first + num_envs - 1``, by agent."""
        envs = MultigridEnvs(self.env_id, num_envs, agents=self.num_agents, seed=self.seed, first=first)
        return GroupedEnv(envs, self.specs)


class Multigrid(EnvironmentKind):
    """Environments of the ``multigrid`` package: all agents are one team, and learn."""

    stock: ClassVar[bool] = True

    env_id: str
    agents: int

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:  # noqa: ARG002 - nobody is seated
        """Return the recipe for a run's environments."""
        return MultigridFactory(self.env_id, self.agents, config.seed, config.scheme, config.shared)
