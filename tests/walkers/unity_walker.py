"""A peer that speaks as Unity does: a scripted walker of several agents that miss decisions, fall and are interrupted.

``python unity_walker.py --mlagents-port N`` is the same as a program.
"""

import socket
import sys
import threading

import grpc
import numpy as np

from multigrid_rl.walkers.unity_peer import MESSAGES, QUIT, RESET

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
SEEN, MOVED = 5, 3


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


class Agent:
    """One agent from its first decision to its end; ``story``: [seen, action, paid, end] of each decision."""

    def __init__(self, number: int) -> None:
        self.number, self.asked, self.story = number, False, []


class FakeWalker(threading.Thread):
    """Calls on a port until it is told to quit.

    Args:
        port: that somebody listens on.
        agents: how many at a time.
        version: of communication that it claims.
        steps: after which it says nothing any more; ``None``: never.
        over: after these steps it says that it ends.
        names: of its behaviours; the first has the agents.
        shape: of what is seen.
        discrete: branches of discrete actions, if any.
        bad: what is paid from the third step on.
    """

    def __init__(self, port: int, agents: int = 10, *, version="1.5.0", steps=None, over=None, names=("Walker?team=0",),
                 shape=(SEEN,), discrete=(), bad=None, seed: int = 0) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.port, self.agents, self.version, self.steps, self.over = port, agents, version, steps, over
        self.names, self.shape, self.discrete, self.bad = names, shape, discrete, bad
        self.rng = np.random.default_rng(seed)
        self.ended, self.here, self.count = [], [], 0
        self.resets, self.quit, self.played, self.initial, self.side = 0, False, 0, None, []
        self.error = None

    def run(self) -> None:
        try:
            self._talk()
        except grpc.RpcError as error:
            self.error = error

    def _talk(self) -> None:
        kinds = MESSAGES
        message = kinds["UnityMessage"]
        with grpc.insecure_channel(f"localhost:{self.port}") as channel:
            call = channel.unary_unary(METHOD, message.SerializeToString, message.FromString)

            def exchange(status=200, **parts):
                reply = message(header={"status": status})
                for name, part in parts.items():
                    getattr(reply.unity_output, name).CopyFrom(part)
                return call(reply, wait_for_ready=True, timeout=600)

            hello = kinds["InitialOutput"](name="scripted", communication_version=self.version, package_version="2.2.1")
            answer = exchange(rl_initialization_output=hello)
            self.initial = answer.unity_input.rl_initialization_input
            if answer.header.status == 200:
                answer = exchange()
            while answer.header.status == 200 and answer.unity_input.rl_input.command != QUIT:
                output = self._played(answer.unity_input.rl_input)
                if self.over is not None and self.played > self.over:
                    exchange(status=500, rl_output=output)
                    return
                if self.steps is not None and self.played > self.steps:
                    return
                answer = exchange(rl_output=output, rl_initialization_output=self._brains())
            self.quit = True

    def _brains(self):
        found = MESSAGES["InitialOutput"]()
        for name in self.names:
            brain = found.brain_parameters.add(brain_name=name)
            brain.action_spec.num_continuous_actions = 0 if self.discrete else MOVED
            brain.action_spec.num_discrete_actions = len(self.discrete)
            brain.action_spec.discrete_branch_sizes.extend(self.discrete)
        return found

    def _played(self, request):
        """Do what is told; returns what the agents see then."""
        output, rng = MESSAGES["Output"](), self.rng
        if request.side_channel:
            self.side.append(request.side_channel)
        if request.command == RESET:
            self.resets += 1
            self.here, self.ended = [self._new() for _ in range(self.agents)], []
        else:
            self.played += 1
            rows = request.agent_actions[self.names[0]].value
            asked = [agent for agent in self.here if agent.asked]
            assert len(rows) == len(asked), (len(rows), len(asked))
            for agent, row in zip(asked, rows, strict=True):
                agent.story[-1][1] = list(row.discrete_actions if self.discrete else row.continuous_actions)
        infos = output.agentInfos[self.names[0]].value
        for name in self.names[1:]:
            self._tell(output.agentInfos[name].value, Agent(0), 0.0)
        for agent in list(self.here):
            self._go_on(agent, infos, request.command == RESET)
        while request.command != RESET and len(self.here) < self.agents and rng.uniform() < 0.5:
            agent = self._new()
            self.here.append(agent)
            self._tell(infos, agent, float(rng.normal()))  # paid before it did anything
        for agent in self.here:
            agent.asked, agent.waits = agent.waits, False
        return output

    def _new(self) -> Agent:
        self.count += 1
        agent = Agent(self.count)
        agent.waits = False
        return agent

    def _go_on(self, agent: Agent, infos, beginning: bool) -> None:
        if beginning:
            self._tell(infos, agent, 0.0)
            return
        paid = np.float32(self.rng.normal()) if self.bad is None or self.played < 3 else self.bad
        agent.owed = getattr(agent, "owed", np.float32(0)) + paid  # told when it decides or ends
        chance = self.rng.uniform(size=3)
        if agent.story and chance[0] < 0.1:
            agent.story[-1][2], agent.story[-1][3] = agent.owed, "truncated" if chance[1] < 0.5 else "terminated"
            self._tell(infos, agent, agent.owed, end=agent.story[-1][3])
            self.here.remove(agent)
            self.ended.append(agent)
        elif chance[2] < 0.7:
            if agent.story:
                agent.story[-1][2], agent.story[-1][3] = agent.owed, "next"
            self._tell(infos, agent, agent.owed)
            agent.owed = np.float32(0)

    def _tell(self, infos, agent: Agent, paid, end: str = "") -> None:
        seen = self.rng.normal(size=self.shape).astype(np.float32)
        info = infos.add(id=agent.number, reward=paid, done=bool(end), max_step_reached=end == "truncated")
        first = info.observations.add(shape=self.shape[:1] if len(self.shape) == 1 else self.shape)
        first.float_data.data.extend(seen.reshape(-1))
        if not end:
            agent.waits = True
            agent.story.append([seen, None, None, ""])

    @property
    def stories(self):
        """Every decision that was told what came of it, and those that were not."""
        every = [row for agent in (*self.ended, *self.here) for row in agent.story]
        return [row for row in every if row[3]], [row for row in every if not row[3]]


if __name__ == "__main__":
    walker = FakeWalker(int(sys.argv[sys.argv.index("--mlagents-port") + 1]), agents=3)
    walker.run()
