"""What an env runner hands to the learner: only what was lived, and exactly what the weights say about it."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.learn.batches import Experience
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.env_runner import BatchedEnvRunner
from multigrid_rl.rllib.learner import GroupLearner
from multigrid_rl.world.constants import EV_VICTIM

pytestmark = pytest.mark.filterwarnings("ignore")

GAMES, STEPS = 12, 24
DEADLY = [
    *("scenario=2v2-deathmatch", "experiment=none", "scenario.seats.blue_0=hunter", "scenario.seats.blue_1=random"),
    *("scenario.game.max_steps=40", "model.hidden=[8]", "seed=3"),
    *(f"train.num_envs={GAMES}", f"train.num_steps={STEPS}", f"train.minibatch_size={STEPS}"),
]
SCHEMES = ["scheme=dtde", "scheme=ctde", "scheme=ctce", "shared=true"]
NETWORKS = ["mlp", "gru", "lstm"]


def runner_of(config) -> BatchedEnvRunner:
    """An env runner whose policies are far from uniform, so that a wrong log-probability shows."""
    runner = BatchedEnvRunner(config=algorithm_config(config), worker_index=0)
    with torch.no_grad():
        for module in runner.module.values():
            for name, weight in module.net.named_parameters():
                if name.startswith("policy"):
                    weight.mul_(50)
    return runner


class Spied:
    """An env runner, and a record of what its environment said."""

    def __init__(self, *overrides: str) -> None:
        self.config = compose([*DEADLY, *overrides])
        factory = env_factory(self.config)
        self.runner = runner_of(self.config)
        self.specs = factory.specs
        self.env = self.runner.collector.env
        self.match = self.env.env
        self.shown, self.steps = [], []
        self.alive = []  # (N, seats), from the engine's own events
        self._living = np.ones((GAMES, len(self.specs.seats)), bool)
        step = self.env.step

        def spy(actions):
            self.shown.append({name: np.array(tokens) for name, tokens in self.env.observations().items()})
            self.alive.append(self._living.copy())
            outcome = step(actions)
            self._living &= self.match.env.world.outputs.events[..., EV_VICTIM] == 0
            self._living[outcome.done] = True
            self.steps.append(
                SimpleNamespace(
                    rewards={name: row.copy() for name, row in outcome.rewards.items()},
                    terminated={name: row.copy() for name, row in outcome.terminated.items()},
                    final={name: np.array(row) for name, row in outcome.final_observations.items()},
                    truncated=outcome.truncated.copy(),
                    done=outcome.done.copy(),
                )
            )
            return outcome

        self.env.step = spy

    def sample(self) -> Experience:
        self.shown, self.steps, self.alive = [], [], []
        return self.runner.sample()

    def net(self, agent):
        return self.runner.module[agent.module].net

    def living(self, agent) -> np.ndarray:
        """(T, N, C): the agent's seats that were in the game when each step began."""
        return np.stack(self.alive)[..., [self.specs.seats.index(seat) for seat in agent.seats]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_eliminated_seats_add_no_rows(scheme):
    spied = Spied(scheme)
    for _ in range(3):
        experience = spied.sample()
        missing = half = 0
        for agent in spied.specs.agents:
            batch, living = experience.batches[agent.name], spied.living(agent)
            lived = living.any(axis=2)
            shown = np.stack([row[agent.name] for row in spied.shown])
            np.testing.assert_array_equal(batch.obs, shown[lived])
            np.testing.assert_array_equal(batch.mask, living[lived])
            missing += int((~lived).sum())
            half += int((~batch.mask).any(axis=1).sum())
        assert (half if scheme == "scheme=ctce" else missing) > 20
        if scheme != "scheme=ctce":
            assert half == 0


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_sequences_are_whole_and_mark_living_steps(network):
    spied = Spied("scheme=dtde", f"model={network}", "model.hidden=[8]")
    starts, missing = np.ones(GAMES, bool), 0
    for _ in range(3):
        experience = spied.sample()
        for agent in spied.specs.agents:
            batch, living = experience.batches[agent.name], spied.living(agent)
            shown = np.stack([row[agent.name] for row in spied.shown], axis=1)
            np.testing.assert_array_equal(batch.obs, shown)
            np.testing.assert_array_equal(batch.mask, living.swapaxes(0, 1))
            missing += int((~batch.mask).sum())
            assert not batch.advantages[~batch.mask.any(axis=2)].any()
            done = np.stack([step.done for step in spied.steps])
            np.testing.assert_array_equal(batch.starts, np.concatenate([starts[None], done[:-1]]).T)
        starts = done[-1]
    assert missing > 20
    assert batch.starts[:, 1:].any()


def joint(logits, batch):
    """Log-probability and entropy (rows,) of what was done, summed over living members, in double precision."""
    rows = batch.actions.reshape(-1, batch.actions.shape[-1])
    mask = batch.mask.reshape(rows.shape)
    log_all = torch.log_softmax(torch.as_tensor(logits).double().view(*rows.shape, 7), dim=2).numpy()
    chosen = np.take_along_axis(log_all, rows[..., None], axis=2)[..., 0]
    return (chosen * mask).sum(1), (-(np.exp(log_all) * log_all).sum(2) * mask).sum(1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_learner_reproduces_sampled_log_probs_and_values(network, scheme):
    spied = Spied(scheme, f"model={network}", "model.hidden=[8]")
    for round_ in range(3):
        experience = spied.sample()
        for agent in spied.specs.agents:
            batch = experience.batches[agent.name]
            columns = batch._make(map(torch.from_numpy, batch))
            assert (columns.memory.shape[1] > 0) == (columns.starts.shape[1] > 0) == (network != "mlp")
            net = spied.net(agent)
            with torch.no_grad():
                if network == "mlp":
                    outputs, values = net(columns.obs)
                else:
                    outputs, values = net.sequence(columns.obs, columns.memory, columns.starts)
            logp, entropy = joint(outputs, batch)
            np.testing.assert_allclose(batch.logp.flatten(), logp, atol=2e-5)
            np.testing.assert_allclose(batch.entropy.flatten(), entropy, atol=2e-5)
            np.testing.assert_allclose(batch.values.flatten(), values.numpy(), atol=2e-5)
            assert batch.logp.std() > 0.05
            if network != "mlp":
                carried = np.abs(batch.memory).sum(axis=1) > 0
                assert not carried[batch.starts[:, 0]].any()
                assert carried[~batch.starts[:, 0]].all()
                assert carried.any() == (round_ > 0)


@pytest.mark.parametrize("scheme", ["scheme=dtde", "scheme=ctde", "scheme=ctce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_targets_bootstrap_from_right_value(network, scheme):
    # With lambda 0 the target of a step is r + gamma V(what follows): the next observation's value, the final
    # observation's where the game was cut, nothing where the agent's episode was over.
    spied = Spied(scheme, f"model={network}", "model.hidden=[8]", "train.lam=0", "train.gamma=0.5")
    state = {agent.name: torch.zeros(GAMES, spied.net(agent).state_size) for agent in spied.specs.agents}
    cut_alive = 0

    def value(agent, tokens, memory):
        net = spied.net(agent)
        rows = torch.from_numpy(np.ascontiguousarray(tokens))
        with torch.no_grad():
            if not net.state_size:
                return net(rows)[1].numpy(), memory
            _, values, following = net(rows, memory)
            return values.numpy(), following

    for _ in range(3):
        experience = spied.sample()
        after = spied.env.observations()
        for agent in spied.specs.agents:
            name, wanted = agent.name, []
            for t, step in enumerate(spied.steps):
                _, following = value(agent, spied.shown[t][name], state[name])
                state[name] = following * torch.from_numpy(~step.done)[:, None]
                upcoming = spied.shown[t + 1][name] if t + 1 < STEPS else after[name]
                ahead, _ = value(agent, upcoming, state[name])
                if step.done.any():
                    final, _ = value(agent, step.final[name], following)
                    ahead = np.where(step.done, np.where(step.truncated, final, 0), ahead)
                cut_alive += int((step.done & step.truncated & ~step.terminated[name]).sum())
                wanted.append(step.rewards[name] + 0.5 * np.where(step.terminated[name], 0, ahead))
            batch, lived = experience.batches[name], spied.living(agent).any(axis=2)
            if network == "mlp":
                np.testing.assert_allclose(batch.targets, np.stack(wanted)[lived], atol=2e-5)
            else:
                np.testing.assert_allclose(batch.targets[lived.T], np.stack(wanted).T[lived.T], atol=2e-5)
    assert cut_alive > 0


def test_agents_sharing_network_learn_together():
    spied = Spied("shared=true")
    collected = [spied.sample(), spied.sample()]
    (batch,) = GroupLearner(None, spied.specs)._by_module(collected)[0].values()
    rows = [experience.batches[name] for name in ("red_0", "red_1") for experience in collected]
    np.testing.assert_array_equal(batch.obs, np.concatenate([part.obs for part in rows]))
    np.testing.assert_array_equal(batch.advantages, np.concatenate([part.advantages for part in rows]))
    assert batch.mask.shape == (len(batch.obs), 1)


@pytest.mark.parametrize("scheme", ["scheme=dtde", "scheme=ctce"])
def test_games_are_independent_of_concurrent_runs(scheme):
    # What seats do is drawn from their game's own stream.
    all_of_them = Spied(scheme).sample().batches
    few = compose([*DEADLY, scheme, "train.num_envs=4"])
    for name, batch in runner_of(few).sample().batches.items():
        first = {row.tobytes() for row in all_of_them[name].obs}
        assert {row.tobytes() for row in batch.obs} <= first


# --- batches that are played in one compiled call: the same numbers as step by step, or step by step


SMALL = ["experiment=none", "model.hidden=[64,64]", "train.num_envs=12", "train.minibatch_size=96"]
SHORT = "scenario.game.max_steps=7"
MATCHES = {
    "rookie": ["scenario=1v1"],
    "time limits, no bonus": ["scenario=1v1", SHORT],
    "a bonus": ["scenario=1v1", "train.bonus={all: {key_pickup: 1.0, step: -0.01}}", SHORT],
    "a reward function of the user's": ["scenario=1v1", "train.shaping=tests.unit.test_rollouts:halved", SHORT],
    "on the other side": ["scenario=1v1", "scenario.seats.red_0=blue-rookie", "scenario.seats.blue_0=learn"],
    "both learn": ["scenario=1v1", "scenario.seats.blue_0=learn"],
    "alone": ["scenario=single", SHORT],
    "a team as one": ["scenario=2v2-deathmatch", "scheme=ctce", "scenario.game.max_steps=15"],
    "critics that see mates": ["scenario=2v2-deathmatch", "scheme=ctde", "scenario.game.max_steps=15"],
    "a network for all": ["scenario=2v2", "scheme=dtde", "shared=true", "train.bonus={all: {mates: 0.5}}"],
}
ROOKIES = ["scenario.seats.blue_0=2v2-rookie", "scenario.seats.blue_1=2v2-rookie"]


def halved(events, reward):
    return reward / 2 + events[..., 0]


def collector(overrides, *, whole: bool) -> StepCollector:
    config = compose([*SMALL, *overrides])
    factory = env_factory(config)
    networks = {}
    for module in factory.specs.modules:
        networks[module] = net = network_of(factory.specs.agent_of(module), config.model.model_dump())
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if name.startswith("policy"):
                    weight.mul_(20)  # far from uniform, so that games differ by who plays them
    env = factory.build(12, 5)
    if not whole:
        env.play = lambda acting: None
    return collector_of(env, factory.specs, networks, seed=3, first=5, steps=16)


def equal(one, two) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = [*one.values()], [*two.values()]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            equal(a, b)
        return
    if isinstance(one, torch.Tensor):
        one, two = one.numpy(), two.numpy()
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", MATCHES)
def test_a_batch_in_one_call_is_the_batch_step_by_step(name):
    overrides = MATCHES[name] + (ROOKIES if "2v2" in MATCHES[name][0] else [])
    one, other = collector(overrides, whole=True), collector(overrides, whole=False)
    calls = []
    play = one.env.play
    one.env.play = lambda acting: calls.append(play(acting)) or calls[-1]
    ended = 0
    for k in range(12):
        equal(one.collect(), other.collect())
        equal(one.paths(), other.paths())
        table = one.env.drain_episodes()
        equal(table, other.env.drain_episodes())
        ended += table.episodes
        if k == 5:  # what one goes on from, the other can go on from
            states = one.get_state(), other.get_state()
            equal(*states)
            one.set_state(copy.deepcopy(states[1]))
    assert ended > 3
    assert None not in calls


def test_a_reward_that_comes_later_is_paid():
    one, other = collector(["scenario=1v1"], whole=True), collector(["scenario=1v1"], whole=False)
    for shaping in (None, halved):
        for side in (one, other):
            side.env.env.env.shaping = shaping
        for _ in range(3):
            equal(one.collect(), other.collect())


@pytest.mark.parametrize(
    "overrides",
    [
        ["scenario=1v1", "scenario.seats.blue_0=hunter"],  # no network
        ["scenario=1v1", "scenario.seats.blue_0={blue-rookie: 1, blue-adept: 1}"],  # a pool
        ["scenario=1v1", "model.hidden=[64]"],  # another depth than the rookie's
        ["scenario=1v1", "model=gru", "model.hidden=[64]"],
    ],
    ids=["scripted", "pool", "depth", "memory"],
)
def test_who_cannot_be_compiled_together_plays_step_by_step(overrides):
    one, other = collector(overrides, whole=True), collector(overrides, whole=False)
    for _ in range(3):
        equal(one.collect(), other.collect())
    parts = {**one.clock.drain(), **one.env.drain_seconds()}
    assert "engine" in parts
    assert "play" not in parts
