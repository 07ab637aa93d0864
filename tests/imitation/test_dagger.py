"""An expert labels what a learner visits, values warm up first; and cloning, whatever the head."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from composing import error_of
from dynamic_agents import AGENTS, DynamicAgents
from hostile_agents import assert_shares
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.base import AGENT
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.targets import SIDE_BY_SIDE
from multigrid_rl.imitation.cloning import Cloning, play_out
from multigrid_rl.imitation.dagger import Dagger, LabelledSteps, LabellingCollector, LabellingTurnCollector
from multigrid_rl.imitation.demonstrations import Episode, write
from multigrid_rl.imitation.imitation_trainers import DaggerOptions
from multigrid_rl.learn.batches import Batch
from multigrid_rl.learn.update import SECONDS, Update
from multigrid_rl.models.registry import fingerprint, network_of
from multigrid_rl.runs.players import player_in_place_of
from multigrid_rl.tables import HEADS
from multigrid_rl.types import AgentSpec, EpisodeTable
from tiny_runs import tiny_run
from updates import PPO, steady

GAME = compose(["scenario=1v1", "experiment=none", "scenario.seats.blue_0=random"])
CONSTANT = steady(0.01)


def test_expert_share_decays_from_one():
    falls = DaggerOptions(expert="x", schedule="linear", rounds=4, base=0.5)
    assert [falls.beta(k) for k in (0, 1, 4, 9)] == [1.0, 0.75, 0.0, 0.0]
    falls = falls.model_copy(update={"schedule": "exponential"})
    assert [falls.beta(k) for k in (0, 1, 3)] == [1.0, 0.5, 0.125]


def learner_of(name, net, space, seed, *overrides) -> Dagger:
    rates = ["train.lr=0.01", "train.lr_final=null", "train.num_envs=1"]
    config = compose(["scenario=1v1", "experiment=none", "train=dagger", "expert=random", *rates, *overrides])
    return Dagger({name: net}, {name: space}, config.train, None, seed, torch.device("cpu"))


class Labelling:
    def __init__(self, model: str = "mlp", games: int = 4, steps: int = 30) -> None:
        self.factory = env_factory(GAME)
        agents = self.factory.specs.agents
        self.net = network_of(agents[0], {"name": model, "hidden": [16], "activation": "tanh"})
        self.collector = LabellingCollector(
            self.factory.build(games, 0), self.factory.specs, {"red_0": self.net}, seed=1, first=0, steps=steps,
            experts={"red_0": player_in_place_of(agents[0], "key-runner", GAME).player},
        )  # fmt: skip
        self.taken = []
        step = self.collector.env.step

        def spy(actions):
            self.taken.append(actions["red_0"].copy())
            return step(actions)

        self.collector.env.step = spy

    def collect(self, beta: float):
        self.taken.clear()
        self.collector.beta = beta
        self.collector.collect()
        return np.stack(self.taken), self.collector.labels["red_0"].copy()


def test_expert_acts_with_share_beta_and_labels_every_step():
    labelling = Labelling()
    taken, labels = labelling.collect(1.0)
    assert (taken == labels).all()
    assert labelling.collector.env.drain_episodes().winner.tolist().count(0) > 2  # the expert wins
    taken, labels = labelling.collect(0.0)
    assert (taken == labelling.collector.rollouts["red_0"].actions).all()
    assert 0.02 < (taken == labels).mean() < 0.5
    assert len(np.unique(labels)) > 2


@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_labels_resume_exactly(model):
    one, other = Labelling(model), Labelling(model)
    one.collect(0.5)
    state = one.collector.get_state()
    expected = one.collect(0.5)
    rows = one.collector.labelled()["red_0"]
    other.collector.set_state(state)
    for mine, theirs in zip(other.collect(0.5), expected, strict=True):
        assert (mine == theirs).all()
    assert rows.obs.shape[:-1] == rows.active.shape == ((4, 30) if model == "gru" else (120,))
    assert rows.memory.shape == ((4, 16) if model == "gru" else (120, 0))


@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_learner_learns_expert_labels(learning, model):
    labelling = Labelling(model, games=8)
    batch = ["train.num_steps=240", "train.epochs=10", "train.minibatch_size=240"]
    learning_of = partial(
        learner_of, "red_0", labelling.net, labelling.factory.specs.agents[0].action_space, learning.seed, *batch
    )
    learner = learning_of()
    losses = []
    for k in range(4):
        labelling.collect(0.5)
        metrics = learner.learn(labelling.collector.labelled(), 240 * (k + 1))["red_0"]
        state = learner.get_state()
        losses.append(metrics["cloning_loss"])
    assert metrics["dagger/labels"] == 960
    learning.check("gain", losses[0] - losses[-1], above=0.15)
    assert len(learner.known["red_0"].active.reshape(-1)) == 960
    # What comes next follows from weights, labels and the steps before.
    twin = learning_of()
    twin.set_state(state)
    assert (twin._rows("red_0", 720).obs == learner._rows("red_0", 720).obs).all()
    assert (twin._rows("red_0", 720).obs != learner._rows("red_0", 960).obs).any()


BOX = gym.spaces.Box(-np.inf, np.inf, (3,))
ACTS = gym.spaces.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
PLAIN = {"name": "mlp", "hidden": [8], "activation": "tanh"}
KINDS = {
    "vector": (AgentSpec("a", "a", ("a",), BOX, ACTS), {**PLAIN, "normalise": True}),
    "tokens": (AgentSpec("a", "a", ("a",), gym.spaces.MultiDiscrete([4] * 3), gym.spaces.MultiDiscrete([5])), PLAIN),
}


def batch_for(agent: AgentSpec) -> Batch:
    rng, tokens = np.random.default_rng(2), agent.observation_space is not BOX
    floats = [rng.normal(size=64).astype(np.float32) for _ in range(5)]
    return Batch(
        obs=rng.integers(0, 4, (64, 3)).astype(np.uint8) if tokens else rng.normal(size=(64, 3)).astype(np.float32),
        actions=rng.integers(0, 5, (64, 1)) if tokens else rng.normal(size=(64, 2)).astype(np.float32),
        mask=np.ones((64, 1), np.bool_), logp=floats[0], values=floats[1], advantages=floats[2], targets=floats[3],
        entropy=floats[4], memory=np.zeros((64, 0), np.float32), starts=np.zeros((64, 0), np.bool_),
    )  # fmt: skip


def outputs_of(net, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        outputs, values = net(torch.from_numpy(batch.obs))
    return outputs.clone(), values.clone()


# Networks over tokens share their first layer.
@pytest.mark.parametrize(("kind", "apart"), [("vector", False), ("vector", True), ("tokens", False)])
def test_only_values_learn_during_warm_up(kind, apart):
    agent, architecture = KINDS[kind]
    config = replace(
        PPO, epochs=2, minibatch_size=16, lr=CONSTANT, entropy_coef=steady(0.1), grad_clip=1.0, warm_up=128,
        v_iters=2 if apart else None,
    )  # fmt: skip
    teacher, net = (network_of(agent, architecture, seed) for seed in (1, 2))
    if kind == "vector":
        teacher.normaliser.mean.fill_(0.5)
    update = Update({"a": net}, {"a": agent.action_space}, config, device=torch.device("cpu"))
    weights = {name: value.clone() for name, value in teacher.state_dict().items()}
    update.begin_with({"a": weights}, 1000)
    assert fingerprint(net.state_dict()) == fingerprint(weights)
    batch = batch_for(agent)
    policy, values = outputs_of(net, batch)
    for steps in (64, 128):
        update.learn({"a": batch}, steps)
    warm = outputs_of(net, batch)
    assert torch.equal(warm[0], policy)
    assert not torch.allclose(warm[1], values)
    update.learn({"a": batch}, 192)
    assert not torch.allclose(outputs_of(net, batch)[0], policy)
    if kind == "vector":  # what was seen before counts as 1,000 rows
        wanted = (0.5 * 1000 + batch.obs.mean(axis=0) * 64) / 1064
        np.testing.assert_allclose(net.normaliser.mean.numpy(), wanted, rtol=1e-5)
    # Without it the policy learns at once.
    update = Update({"a": teacher}, {"a": agent.action_space}, replace(config, warm_up=0), device=torch.device("cpu"))
    update.learn({"a": batch}, 0)
    assert not torch.allclose(outputs_of(teacher, batch)[0], policy)


def test_a_players_normaliser_counts_as_what_it_was_measured_on():
    factory = GymnasiumFactory("hostile_agents:Target-v0", 1)
    net = network_of(factory.specs.agents[0], {"name": "mlp", "hidden": [4], "normalise": True})
    space = factory.specs.agents[0].action_space
    learner = learner_of("agent_0", net, space, 0, "train.num_steps=8", "train.minibatch_size=8")
    net.normaliser.set_statistics(np.array([3.0]), np.array([2.0]))
    learner.begin_with({"agent_0": net.state_dict()}, 3 * 10**6)
    rows = np.full((10**6, 1), 7.0, np.float32)
    learner.add({"agent_0": LabelledSteps(rows, rows, np.ones(10**6, bool), rows[:, :0], rows[:, :0])})
    assert float(net.normaliser.mean[0]) == pytest.approx(4.0)
    assert float(net.normaliser.std[0]) == pytest.approx(np.sqrt(0.75 * 4 + 3), rel=1e-4)


def test_seat_whose_first_decision_is_not_over_has_no_labels_yet(tmp_path):
    turns = ["env_id=pettingzoo:classic/tictactoe-v3", "shared=false", "train=dagger", "expert=random"]
    few = ["train.num_steps=2", "train.num_envs=32", "train.minibatch_size=32", "train.until=256"]
    verdict, rows = tiny_run(tmp_path / "run", *turns, *few)
    assert verdict["env_steps"] == 256
    assert sum(value for name, value in rows[-1].items() if name.startswith("dagger/labels")) > 0


class Mimic:
    """An expert whose action is the first two numbers that it sees."""

    name = "mimic"

    def initial_state(self, games):
        return None

    def reset_state(self, state, done):
        return None

    def act(self, view, state, rng):
        return view.tokens[:, :2].copy(), None


def test_labels_stay_with_their_rows_where_agents_take_turns():
    net = network_of(AGENTS.agents[0], {"name": "mlp", "hidden": [4]})
    collector = LabellingTurnCollector(
        DynamicAgents(), AGENTS, {AGENT: net}, seed=3, first=0, steps=7, experts={AGENT: Mimic()}
    )
    for beta in (1.0, 0.5, 0.0):
        collector.beta = beta
        collector.collect()
        rows = collector.labelled()[AGENT]
        assert len(rows.obs) > 5
        assert (rows.actions == rows.obs[:, :2]).all()


OBS = gym.spaces.Box(-np.inf, np.inf, (3,))

AGENT_SPEC = AgentSpec("a", "a", ("a",), OBS, ACTS)
RATES = ["train.lr=1e-2", "train.lr_final=1e-3"]
FACTS = {"who": "me", "scenario": "x", "observation": {"size": 3}, "actions": {"low": [-1, -1], "high": [1, 1]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Far from the origin and of different scales; the action is a function of what is seen."""
    rng = np.random.default_rng(0)

    def episode() -> Episode:
        obs = rng.normal(size=(40, 3)) * [1, 50, 0.01] + [0, 300, 5]
        actions = np.tanh(np.stack([obs[:, 0], (obs[:, 1] - 300) / 50 - obs[:, 0]], axis=1))
        return Episode(obs, actions, np.ones(40), True, False, obs[-1], (0, 0, 0))

    folder = tmp_path_factory.mktemp("data") / "x"
    write(folder, [episode() for _ in range(50)], FACTS)
    return folder


def cloning_of(folder, head: str | None, net=None, **changes) -> Cloning:
    architecture = {"name": "mlp", "hidden": [32], "activation": "tanh", "normalise": True, "log_std": -1.0}
    net = net or network_of(AGENT_SPEC, {**architecture, "head": head, "head_size": head and HEADS[head].size})
    seed = changes.pop("seed", 1)
    options = {"held_out": 0.1, "play_every": 10**9, **changes}
    batch = ["train.num_envs=1", "train.num_steps=1800", "train.minibatch_size=100", "train.until=8000"]
    overrides = [f"train.cloning.{key}={value}" for key, value in options.items()]
    config = compose(["scenario=halfcheetah", "train=bc", "data=x", *batch, *RATES, *overrides])
    return Cloning({"a": net}, {"a": ACTS}, config.train, str(folder), seed, torch.device("cpu"))


@pytest.mark.parametrize("head", [None, *HEADS])
def test_every_head_learns_recorded_actions(folder, learning, head):
    cloning = cloning_of(folder, head, seed=learning.seed)
    net = cloning._networks["a"]
    np.testing.assert_allclose(net.normaliser.mean.numpy(), [0, 300, 5], atol=5)
    before, value = cloning.held_out_losses()["a"], [part.detach().clone() for part in net.value.parameters()]
    statistics = [cloning.learn({}, 1800 * (k + 1)) for k in range(4)]
    assert statistics[0][SECONDS].keys() == {"loss", "minibatch", "network", "optimizer"}
    assert statistics[0]["a"]["gradient_steps"] == 18
    assert statistics[3]["a"]["lr"] == pytest.approx(1e-2 - 7200 / 8000 * 9e-3)  # of the next update
    assert statistics[3]["a"]["cloning_loss"] < statistics[0]["a"]["cloning_loss"]
    learning.check("gain", before - cloning.held_out_losses()["a"], above=0.1)
    assert all(torch.equal(one, other) for one, other in zip(value, net.value.parameters(), strict=True))


def test_restored_state_determines_next_updates(folder):
    one = cloning_of(folder, None)
    one.learn({}, 1800)
    other = cloning_of(folder, None)
    other._networks["a"].load_state_dict(one._networks["a"].state_dict())
    other.optimizers["a"][0].load_state_dict(deepcopy(one.optimizers["a"][0].state_dict()))
    other.set_state(one.get_state())
    other.schedule(1800)
    assert other.learn({}, 3600)["a"] == one.learn({}, 3600)["a"]
    assert len({fingerprint(cloning._networks["a"].state_dict()) for cloning in (one, other)}) == 1


@pytest.mark.parametrize("head", [None, "mixture", "deterministic"])
def test_action_at_a_bound_counts_as_outputs_beyond_it_if_censored(folder, head):
    rows = SimpleNamespace(obs=np.full((2, 3), [0, 300, 5], np.float32), actions=np.float32([[1, 1], [0.5, 0]]))
    found = []
    for censored in (True, False):
        cloning = cloning_of(folder, head, censored=censored)
        torch.nn.init.constant_(list(cloning._networks["a"].policy.parameters())[-1], 2.0)  # outputs beyond the bound
        found.append(cloning.losses("a", rows).tolist())
    (bound, inside), (plain, same) = found
    assert bound != pytest.approx(plain)
    assert inside == pytest.approx(same)


def test_weight_decay_pulls_weights_towards_zero(folder):
    sizes = []
    for decay in (0.0, 3.0):
        cloning = cloning_of(folder, None, weight_decay=decay)
        cloning.learn({}, 1800)
        sizes.append(sum(float(part.detach().pow(2).sum()) for part in cloning._networks["a"].policy.parameters()))
    assert sizes[1] < sizes[0]


def test_heads_without_probability_clone_but_reject_ppo():
    config = compose(["scenario=halfcheetah", "train=bc", "data=x", "model.head=diffusion"])
    assert (config.model.head, config.model.hidden, config.train.cloning.play_every) == ("diffusion", (256, 256), 10**6)
    assert error_of("scenario=halfcheetah", "model.head=diffusion").startswith("model.head: expected gaussian, ")


@pytest.mark.parametrize("episodes", [5, 50, 64, 100])
def test_every_environment_of_play_out_plays_its_share(episodes):
    def played_out(episodes, seed):
        factory = GymnasiumFactory("hostile_agents:Geometric-v0", seed)
        net = network_of(factory.specs.agents[0], {"name": "mlp", "hidden": [8], "activation": "tanh"})
        sizes = {"num_envs": SIDE_BY_SIDE, "first": 0, "seed": seed}
        return play_out(factory, {"agent_0": net}, episodes, **sizes, bound="clip")[0]

    assert_shares(played_out, episodes)


def test_play_out_of_a_game_by_turns_counts_episodes_as_they_were_played():
    factory = env_factory(compose(["env_id=pettingzoo:classic/leduc_holdem-v4"]))
    nets = {agent.module: network_of(agent, {"name": "mlp", "hidden": [8]}) for agent in factory.specs.agents}
    table = play_out(factory, nets, 150, num_envs=4, first=0, seed=1, bound="clip")[0]
    assert len(table.length) == 150


def test_entropy_of_play_out_is_of_all_visited_states(monkeypatch):
    """Not the mean of two rollouts' means, of which the second has four decisions among 64."""
    parts = [(2.0, np.ones((32, 2), np.bool_)), (0.0, np.arange(64).reshape(32, 2) < 4)]

    class Playing:
        def collect(self):
            value, active = parts.pop(0)
            self.ended = [np.full(2, not parts)]
            return {"a": SimpleNamespace(entropy=np.full((32, 2, 1), value), mask=np.ones((32, 2, 1)), active=active)}

    empty = EpisodeTable.empty(1, 0, 0)
    both = EpisodeTable._make(np.zeros((2, *column.shape[1:]), column.dtype) for column in empty)
    env = SimpleNamespace(drain_episodes=lambda: empty if parts else both)
    specs = SimpleNamespace(agents=[SimpleNamespace(name="a", module="m")], modules=["m"])
    monkeypatch.setattr("multigrid_rl.imitation.cloning.collector_of", lambda *_, **__: Playing())
    factory = SimpleNamespace(specs=specs, build=lambda *_: env)
    _, entropy = play_out(factory, {}, 2, num_envs=2, first=0, seed=1, bound=None)
    assert entropy == {"m": pytest.approx(64 * 2.0 / 68)}
