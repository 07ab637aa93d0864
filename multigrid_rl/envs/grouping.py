"""Training schemes, which group learning seats into agents.

* DTDE (decentralised training, decentralised execution): each seat is an agent; actor and critic read its own view.
* CTDE: each seat is an agent; its critic also reads the views and, of tokens, last actions of all team mates.
* CTCE: the team is one agent; it reads all its members' views and decides for all of them.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import MultiDiscrete
from numpy.typing import NDArray

from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, BatchedEnv, BatchedStep, EpisodeTable, MultiAgentSpec

Scheme = Literal["dtde", "ctde", "ctce"]
Array = NDArray[Any]


def agents_of(
    scheme: Scheme, *, shared: bool, seats: dict[str, str], view: tuple[int, ...], choices: int
) -> tuple[AgentSpec, ...]:
    """Group the learning ``seats`` (seat -> team, in index order) into agents.

    Args:
        shared: all learning seats of a team play one network.
        view: number of values of each token of one seat's own view.
    """
    teams = {team: [s for s, t in seats.items() if t == team] for team in dict.fromkeys(seats.values())}
    groups = teams if scheme == "ctce" else {seat: [seat] for seat in seats}
    agents = []
    for name, members in groups.items():
        count, team = len(members), seats[members[0]]
        mates = len(teams[team]) - count
        # Last actions of the agent and its mates; one more value for "none yet".
        central = MultiDiscrete(view * mates + (choices + 1,) * (mates + 1)) if scheme == "ctde" else None
        reads, acts = MultiDiscrete(view * count), MultiDiscrete((choices,) * count)
        agents.append(AgentSpec(name, team if shared else name, tuple(members), reads, acts, central))
    return tuple(agents)


class GroupedEnv:
    """Groups the seats of an environment into agents; implements ``types.BatchedEnv``.

    Observations are the agent's tokens, seat by seat, then the part that only its critic reads: the views of its
    team mates in index order, its last action, and the mates' last actions in index order. A seat that is out of
    the game, or has not acted yet, has the number of actions as its last action.
    """

    def __init__(self, env: BatchedEnv, specs: MultiAgentSpec) -> None:
        self.env = env
        self.specs = specs
        self.num_envs = env.num_envs
        self._mates = {agent.name: self._mates_of(agent) for agent in specs.agents}
        if hasattr(env, "deciding"):  # seats do not decide in every step: see learn.rollout
            self.deciding = lambda: {agent.name: env.deciding()[agent.seats[0]] for agent in specs.agents}
        self._critics = any(isinstance(agent.critic_space, MultiDiscrete) for agent in specs.agents)
        action_spaces: Any = [agent.action_space for agent in specs.agents]
        self._none_yet = int(action_spaces[0].nvec[0]) if self._critics else 0
        self._last_actions = np.full((len(specs.seats) * self._critics, self.num_envs), self._none_yet, np.uint8)
        learning = specs.learning if self._critics else ()
        self._last_action = {seat: self._last_actions[specs.seats.index(seat)] for seat in learning}

    def _mates_of(self, agent: AgentSpec) -> list[str]:
        if agent.critic_space is None:
            return []
        team = self.specs.teams[self.specs.seats.index(agent.seats[0])]
        return [seat for seat in self.specs.members(team) if seat not in agent.seats]

    def reset(self, seed: int) -> dict[str, Array]:
        """Start all environments afresh; returns tokens (N, D) of each agent."""
        obs = self.env.reset(seed)
        self._last_actions[:] = self._none_yet
        return self._by_agent(obs)

    def observations(self) -> dict[str, Array]:
        """Return the current tokens (N, D) of each agent."""
        return self._by_agent(self.env.observations())

    def step(self, actions: dict[str, Array]) -> BatchedStep:
        """Play one step; ``actions`` holds (N, C) integers, or numbers (N, A) of its only seat, for each agent."""
        agents = self.specs.agents
        seat_actions = {
            seat: actions[agent.name][:, c] if actions[agent.name].shape[1] == len(agent.seats) else actions[agent.name]
            for agent in agents
            for c, seat in enumerate(agent.seats)
        }
        step = self.env.step(seat_actions)
        for seat, last in self._last_action.items():
            last[:] = np.where(step.mask[seat], seat_actions[seat], self._none_yet)
        final = self._by_agent(step.final_observations) if step.done.any() else step.final_observations
        if self._critics:
            self._last_actions[:, step.done] = self._none_yet
        return BatchedStep(
            observations=self._by_agent(step.observations),
            final_observations=final,
            rewards={agent.name: _combined(np.sum, step.rewards, agent) for agent in agents},
            terminated={agent.name: _combined(np.all, step.terminated, agent) for agent in agents},
            mask={agent.name: np.stack([step.mask[seat] for seat in agent.seats], axis=1) for agent in agents},
            truncated=step.truncated,
            done=step.done,
        )

    def play(self, acting: dict[str, Any]) -> BatchedStep | None:
        """Play a batch of steps in one call (``players.compiled_match``); ``None``: it must be played step by step."""
        play = getattr(self.env, "play", None)
        step: BatchedStep | None = play and play(acting, self.specs.agents, self._mates, self._last_actions)
        return None if step is None else step._replace(observations=self.observations())

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""
        return self.env.drain_episodes()

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on ``engine`` and ``players`` since the last call."""
        return self.env.drain_seconds()

    def get_state(self) -> dict[str, Any]:
        """Return the state of the environments, and the last actions that central critics read."""
        return {"env": self.env.get_state(), "last": {seat: last.copy() for seat, last in self._last_action.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other environments."""
        if set(state["last"]) != set(self._last_action):
            raise ValueError(expected("state", f"the seats {', '.join(self._last_action)}", ", ".join(state["last"])))
        self.env.set_state(state["env"])
        for seat, last in self._last_action.items():
            last[:] = state["last"][seat]

    def _by_agent(self, tokens: dict[str, Array]) -> dict[str, Array]:
        obs = {}
        for agent in self.specs.agents:
            if len(agent.seats) == 1 and agent.critic_space is None:
                obs[agent.name] = tokens[agent.seats[0]]
                continue
            members = (*agent.seats, *self._mates[agent.name])
            parts = [tokens[seat] for seat in members]
            if self._critics:
                parts += [self._last_action[seat][:, None] for seat in members]
            obs[agent.name] = np.concatenate(parts, axis=1)
        return obs


def _combined(reduce: Callable[..., Any], parts: dict[str, Array], agent: AgentSpec) -> Array:
    if len(agent.seats) == 1:
        return parts[agent.seats[0]]
    return np.asarray(reduce([parts[seat] for seat in agent.seats], axis=0))
