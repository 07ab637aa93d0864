"""Agents of a Unity environment made with ML-Agents: each has a place, may skip steps, comes and goes."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import model_validator

from multigrid_rl.config.scenario import EnvironmentKind, OneAgent
from multigrid_rl.envs.base import AGENT, TEAM, Episodes, single_agent_step
from multigrid_rl.text import expected, suggestion
from multigrid_rl.types import MAX_CHOICES, AgentSpec, BatchedStep, EnvFactory, MultiAgentSpec, RunError
from multigrid_rl.walkers.unity_peer import ENGINE, MESSAGES, RESET, STEP, UnityPeer, side_channels

#: Name for the only behaviour of an environment.
ANY = "any"
#: Arguments in ``env_args`` that are not settings of the engine.
_OTHER_ARGS = ("width", "height", "no_graphics", "parameters", "timeout_s", "areas", "args")
#: Rewards (N,), final observations (N, D), terminations and truncations (N,) of a step.
_Outcome: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]
#: Connected peers by port: Unity connects once, but environments may be built more than once.
_PEERS: dict[int, UnityPeer] = {}


class UnityEnvs(Episodes):
    """``num_envs`` places for agents of one behaviour; a ``types.BatchedEnv`` with ``deciding`` for ``learn.rollout``.

    An agent keeps its place from its first decision to its end; the next agent takes a free place. The length of an
    episode is its number of decisions. Unity's state cannot be restored: a state is empty, and a resumed run begins
    with fresh episodes. ``setup``: side channels, sent with every reset.
    """

    def __init__(self, peer: UnityPeer, behavior: str, spec: AgentSpec, num_envs: int, setup: bytes) -> None:
        self._peer, self._behavior, self._spec, self._setup = peer, behavior, spec, setup
        super().__init__(num_envs, 1)
        self.reset(0)

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:  # noqa: ARG002 - Unity gets its seed once
        """Reset all agents; returns observations (N, D), zeros at free places."""
        count = self.num_envs
        self._obs = np.zeros((count, self._spec.observation_size), np.float32)
        self._id = np.full(count, -1)
        self._turn = np.zeros(count, np.bool_)
        self._order: list[int] = []
        self._returns[:], self._length[:] = 0.0, 0
        self._receive(self._peer.exchange(RESET, side_channel=self._setup), self._nothing())
        return self.observations()

    def deciding(self) -> dict[str, NDArray[np.bool_]]:
        """Return the places whose agents decide next (N,)."""
        return {AGENT: self._turn.copy()}

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the observation of each agent at its last decision (N, D)."""
        return {AGENT: self._obs}

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Send the actions (N, A) or (N, C) of the agents that decide, and wait until an agent decides or ends.

        Raises ``RunError``: Unity does not answer, ends, has too many agents, or sends numbers that are not finite.
        """
        mask = self._turn.copy()
        self._length += mask
        self._clock.begin()
        kind = "continuous_actions" if isinstance(self._spec.action_space, spaces.Box) else "discrete_actions"
        chosen = [MESSAGES["AgentAction"](**{kind: actions[AGENT][place].tolist()}) for place in self._order]
        rewards, final, terminated, truncated = outcome = self._nothing()
        self._obs, self._turn = self._obs.copy(), np.zeros(self.num_envs, np.bool_)
        while not (self._turn.any() or (terminated | truncated).any()):
            output, chosen = self._peer.exchange(STEP, {self._behavior: chosen}), []
            self._receive(output, outcome)
        self._clock.lap("engine")
        return single_agent_step(self._obs, final, rewards, mask[:, None], (terminated, truncated))

    def _nothing(self) -> _Outcome:
        count = self.num_envs
        return np.zeros(count), np.zeros_like(self._obs), np.zeros(count, np.bool_), np.zeros(count, np.bool_)

    def _receive(self, output: Any, outcome: _Outcome) -> None:
        rewards, final, terminated, truncated = outcome
        infos = output.rl_output.agentInfos[self._behavior].value
        self._order = []
        for info in sorted(infos, key=lambda info: not info.done):  # places become free before new agents take them
            if (place := self._place(info.id, new=not info.done)) is None:  # it ends before its first decision
                continue
            obs, reward = self._observation(info), info.reward + info.group_reward
            if not (np.isfinite(obs).all() and math.isfinite(reward)):
                bad = obs[~np.isfinite(obs)]
                value = f"an observation of {bad[0]}" if len(bad) else f"a reward of {reward}"
                got = f"{value} of agent {info.id}"
                raise RunError(expected(self._peer.where, "finite observations and rewards", got))
            if self._length[place]:  # a reward before its first action is ignored
                rewards[place] += reward
            self._returns[place] += reward
            if info.done:
                final[place] = obs
                (truncated if info.max_step_reached else terminated)[place] = True
                self._finish(np.arange(self.num_envs) == place)
            else:
                self._obs[place] = obs
                self._turn[place] = True
                self._order.append(place)

    def _place(self, agent: int, *, new: bool) -> int | None:
        known = np.flatnonzero(self._id == agent)
        if len(known):
            return int(known[0])
        free = np.flatnonzero(self._id < 0)
        if not new:
            return None
        if not len(free):
            wanted = f"at least as many as {self._peer.where} has agents of {self._behavior} at a time"
            raise RunError(expected("train.num_envs", wanted, self.num_envs))
        self._id[free[0]] = agent
        return int(free[0])

    def _observation(self, info: Any) -> NDArray[np.float32]:
        obs = np.concatenate([np.array(part.float_data.data, np.float32) for part in info.observations])
        if len(obs) != self._obs.shape[1]:
            raise RunError(expected(self._peer.where, f"{self._obs.shape[1]} numbers to see", len(obs)))
        return obs

    def _begin(self, which: NDArray[np.bool_]) -> None:
        self._id[which], self._length[which], self._returns[which] = -1, 0, 0.0

    def get_state(self) -> dict[str, Any]:
        """Return an empty state: Unity's cannot be restored."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Do nothing: the state is empty."""


@dataclass(frozen=True)
class UnityFactory(EnvFactory):
    """Builds places for the agents of one behaviour.

    Args:
        behavior: its name, without the part from a question mark on, or ``any``.
        seed: seed for Unity.
        port: port to listen on.
        env_path: program to start; ``None``: the user presses Play in the editor.
        env_args: settings of the engine and of Unity's start.
    """

    behavior: str
    seed: int
    port: int
    env_path: str | None = None
    env_args: dict[str, Any] = field(default_factory=dict)

    def _peer(self) -> UnityPeer:
        if self.port not in _PEERS or _PEERS[self.port].closed:
            args = self.env_args
            command = [] if self.env_path is None else [self.env_path, *map(str, args.get("args", ()))]
            if command and args.get("no_graphics", True):
                command += ["-nographics", "-batchmode"]
            timeout_s, areas = float(args.get("timeout_s", 60)), int(args.get("areas", 1))
            _PEERS[self.port] = UnityPeer(self.port, command, timeout_s=timeout_s, seed=self.seed, areas=areas)
        return _PEERS[self.port]

    @property
    def _setup(self) -> bytes:
        return side_channels(self.env_args, self.env_args.get("parameters", {}))

    @cached_property
    def _behavior_spec(self) -> tuple[str, AgentSpec]:
        """Name and spaces of the behaviour. Raises ``RunError``: Unity does not answer, or has no such behaviour."""
        peer = self._peer()
        brains: dict[str, Any] = {}
        infos: dict[str, Any] = {}
        for output in (peer.first, peer.exchange(RESET, side_channel=self._setup)):
            brains |= {brain.brain_name: brain for brain in output.rl_initialization_output.brain_parameters}
            infos |= {name: rows.value[0] for name, rows in output.rl_output.agentInfos.items() if rows.value}
        full_names = {name.partition("?")[0]: name for name in brains if name in infos}
        matching = [name for name in full_names if self.behavior in (name, ANY)]
        if len(matching) != 1:
            got = f"{self.behavior}{suggestion(self.behavior, full_names)}"
            raise RunError(expected("scenario.env_id", f"one of {', '.join(full_names) or 'no behaviours'}", got))
        name = full_names[matching[0]]
        return name, AgentSpec(AGENT, AGENT, (AGENT,), _observations(name, infos[name]), _actions(name, brains[name]))

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """The only agent, which has many instances. Raises ``RunError``: see :class:`UnityPeer`."""
        return MultiAgentSpec((self._behavior_spec[1],), (AGENT,), (TEAM,), (TEAM,), (), has_winner=False)

    def load(self) -> dict[str, tuple[Any, ...]]:
        """Check the arguments and wait for Unity. Raises ``ValueError`` for an unknown argument."""
        check_args(self.env_args)
        return super().load()

    def close(self) -> None:
        """Quit Unity, if it is connected."""
        if (peer := _PEERS.pop(self.port, None)) is not None:
            peer.close()

    def build(self, num_envs: int, first: int) -> UnityEnvs:  # noqa: ARG002 - Unity draws its own episodes
        """Build ``num_envs`` places."""
        return UnityEnvs(self._peer(), *self._behavior_spec, num_envs, self._setup)


def check_args(args: dict[str, Any]) -> None:
    """Raise ``ValueError`` for an unknown argument, or one of another type."""
    known = (*ENGINE, *_OTHER_ARGS)
    for key, value in args.items():
        if key not in known:
            wanted = f"one of {', '.join(known)}"
            raise ValueError(expected("scenario.env_args", wanted, f"{key}{suggestion(key, known)}"))
        kinds: Any = {"parameters": dict, "args": list, "no_graphics": bool}.get(key, (int, float))
        values = value.values() if isinstance(value, dict) else ()
        if not isinstance(value, kinds) or not all(isinstance(part, int | float) for part in values):
            raise ValueError(expected(f"scenario.env_args.{key}", _WANTED.get(key, "a number"), value))
    if ("width" in args) != ("height" in args):
        raise ValueError(expected("scenario.env_args", "width and height together", args))


_WANTED = {"parameters": "numbers by name", "args": "a list of words", "no_graphics": "true or false"}


def _observations(name: str, info: Any) -> spaces.Box:
    for part in info.observations:
        if len(part.shape) != 1 or part.compression_type:
            raise RunError(expected(f"scenario.env_id={name}", "vectors to see", f"{part.name} {list(part.shape)}"))
    if not (size := sum(part.shape[0] for part in info.observations)):
        raise RunError(expected(f"scenario.env_id={name}", "vectors to see", "none"))
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _actions(name: str, brain: Any) -> spaces.Space[Any]:
    spec = brain.action_spec
    if bool(spec.num_continuous_actions) == bool(spec.num_discrete_actions):
        got = f"{spec.num_continuous_actions} and {spec.num_discrete_actions}"
        raise RunError(expected(f"scenario.env_id={name}", "continuous actions or discrete ones", got))
    if spec.num_continuous_actions:
        return spaces.Box(-1.0, 1.0, (spec.num_continuous_actions,), np.float32)
    choices = [int(count) for count in spec.discrete_branch_sizes]
    if max(choices) > MAX_CHOICES:
        raise RunError(expected(f"scenario.env_id={name}", f"at most {MAX_CHOICES} choices of a branch", max(choices)))
    return spaces.MultiDiscrete(choices)


class Unity(EnvironmentKind):
    """Agents of a Unity environment: it connects to one process, and its agents may skip steps, come and go."""

    vectors: ClassVar[bool] = True
    memory: ClassVar[bool] = False
    remote: ClassVar[bool] = False
    built_once: ClassVar[bool] = True
    judged: ClassVar[bool] = False

    env_id: str
    env_args: dict[str, Any]
    agents: OneAgent
    port: int | None
    env_path: str | None

    @model_validator(mode="after")
    def _check_port(self) -> "Unity":
        if self.port is None:
            raise ValueError(expected("port", "a number with package unity", "null"))
        return self

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:  # noqa: ARG002 - no seated players
        """Return the recipe for a run's places."""
        return UnityFactory(self.env_id, config.seed, self.port or 0, self.env_path, self.env_args)
