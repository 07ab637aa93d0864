"""Training learns: short runs of every kind reach a bound that chance does not, with any seed (--learning-seed)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from hostile_agents import Target
from multigrid_rl.cli.train import run_training
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.imitation.demonstrations import Episode, write
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import Update, UpdateConfig
from multigrid_rl.models.distributions import Gaussian, distribution_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.streams import Streams
from multigrid_rl.types import AgentSpec
from tiny_runs import rows_of
from updates import PPO, steady

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

#: Opponents that do nothing: against others no bound holds for every seed in so few steps.
IDLE = ("scenario.seats.blue_0=idle", "scenario.seats.blue_1=idle", "train.until=65536")
SMALL = ("train.num_envs=32", "train.num_steps=16", "train.minibatch_size=256", "model.hidden=[32]", "train.lr=3e-3")


def learned(path: Path, learning, *overrides: str) -> list[dict[str, float]]:
    """Train on one core (the others test, too), and return the reports."""
    seed = f"seed={learning.seed}"
    run_training([f"run_dir={path / 'run'}", seed, "train.stop_when_held=false", "train.threads=1", *overrides])
    return [row for row in rows_of(path / "run") if "report_episodes" in row]


def test_red_learns_to_beat_idle_within_131_072_steps(tmp_path, learning):
    reports = learned(tmp_path, learning, "scenario.seats.blue_0=idle", "train.until=131072")
    # Uniform random play scores 0.3 against idle (more in the first reports: short games finish first). The best game
    # there is comes to 1.47 (docs/game.md, section 9).
    assert reports[0]["return_mean/red_0"] < 1.0
    assert reports[0]["episode_len_mean"] > 30
    learning.check("return", reports[-1]["return_mean/red_0"], above=1.3)
    learning.check("length", reports[-1]["episode_len_mean"], below=22)
    learning.check("win", reports[-1]["win/red_0"], above=0.95)
    assert reports[-1]["env_steps"] == 131_072


def test_cartpole_is_balanced_within_50_000_steps(tmp_path, learning):
    # The course's bound, in half of its steps; 500 is the most there is, chance about 22.
    last = learned(tmp_path, learning, "env_id=CartPole-v1", "train.until=50000")[-1]
    learning.check("return", last["return_mean/agent_0"], above=400)


@pytest.mark.long
def test_gaussian_learns_pendulum_swing_up(tmp_path, learning):
    # Chance earns about -1,200.
    last = learned(tmp_path, learning, "experiment=pendulum", "train.until=70000")[-1]
    learning.check("return", last["return_mean/agent_0"], above=-700)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "above", "below"),
    [("gru", 0.95, 1.01), pytest.param("lstm", 0.95, 1.01, marks=pytest.mark.long), ("mlp", 0.25, 0.75)],
)
def test_only_recurrent_network_recalls_cue(tmp_path, monkeypatch, learning, model, above, below):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    overrides = ("env_id=hostile_agents:Recall-v0", f"model={model}", "train.until=16000", *SMALL)
    last = learned(tmp_path, learning, *overrides)[-1]
    learning.check("return", last["return_mean/agent_0"], above=above, below=below)


@pytest.mark.long
def test_convolutions_learn_to_beat_idle(tmp_path, learning):
    sizes = ("train.num_envs=64", "train.epochs=2", "train.until=98304")
    last = learned(tmp_path, learning, "scenario.seats.blue_0=idle", "model=cnn", "experiment=none", *sizes)[-1]
    learning.check("return", last["return_mean/red_0"], above=0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("scheme=ctde",), (), pytest.param(("model=attention",), marks=pytest.mark.long), ("scheme=dtde", "shared=true")],
    ids=["central critics", "joint action", "joint action of attention", "shared network"],
)
def test_team_learns(tmp_path, learning, words):
    last = learned(tmp_path, learning, "scenario=2v2", *words, *IDLE)[-1]
    learning.check("return", last["team_return_mean/red"], above=1.5)


@pytest.mark.slow
def test_mixture_of_opponents_is_beaten_one_by_one(tmp_path, learning):
    seats = "scenario.seats.blue_0=random:1,idle:1"
    last = learned(tmp_path, learning, "scenario=1v1", seats, "train.until=125000")[-1]
    for opponent in ("random", "idle"):
        learning.check(opponent, last[f"win_against/red_0/{opponent}"], above=0.8)


@pytest.mark.slow
def test_self_play_leaves_earlier_selves_behind(tmp_path, learning):
    last = learned(tmp_path, learning, "scenario=1v1-selfplay", "train.until=450000")[-1]
    assert last["league/size"] >= 2
    learning.check("win", last["win_against/red_0/snapshots"], above=0.7)
    learning.check("return", last["return_mean/red_0"], above=0.8)


@pytest.mark.slow
def test_asked_expert_teaches_what_it_does(tmp_path, learning):
    # The teacher, who sees the board, wins 99 % against blue-rookie; chance 13 %.
    overrides = ("scenario=1v1", "train=dagger", "expert=key-runner", "train.until=50000")
    last = learned(tmp_path, learning, *overrides)[-1]
    learning.check("win", last["win/red_0"], above=0.6)


@pytest.fixture
def pushes(tmp_path):
    """Recorded play of a player who always takes the best action of an environment with episodes of one step."""
    rng = np.random.default_rng(1)

    def episode(k: int) -> Episode:
        actions = np.array([[0.6, -0.3]]) + rng.normal(scale=0.05, size=(1, 2))
        return Episode(
            np.ones((1, 1), np.float32), actions, np.zeros(1), True, False, np.ones(1, np.float32), (1, k, 0)
        )

    facts = {
        "who": "expert", "scenario": "gymnasium", "env": {"package": "gymnasium", "env_id": "hostile_agents:Target-v0"},
        "observation": {"size": 1}, "actions": {"low": [-1.0, -1.0], "high": [1.0, 1.0]},
    }  # fmt: skip
    write(tmp_path / "demo", map(episode, range(500)), facts)
    return tmp_path / "demo"


@pytest.mark.slow
def test_gail_earns_reward_that_it_never_saw(tmp_path, monkeypatch, learning, pushes):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    overrides = (
        "env_id=hostile_agents:Target-v0", "train=gail", f"data={pushes}", "train.until=16000",
        "train.adversarial.allow_variable_horizon=true", "train.adversarial.lr=3e-3", *SMALL, "train.entropy_coef=0",
        "model.log_std=-1",
    )  # fmt: skip
    reports = learned(tmp_path, learning, *overrides)
    # Its draws alone cost .27 at first, what their mean misses .45 more.
    learning.check("return at first", reports[0]["return_mean/agent_0"], below=-0.5)
    learning.check("return", reports[-1]["return_mean/agent_0"], above=-0.3)


# --- heads learn two ways to act at once, which a Gaussian and a mean cannot


ACTS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
ACTOR = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), ACTS)
SIZES = {"mixture": 3, "bins": 21, "diffusion": 10}


def fitted(head: str | None, steps: int, seed: int = 0):
    """A network cloned from a player that goes left or right, further the larger the observation; its head."""
    shape = {"name": "mlp", "hidden": [32, 32], "activation": "tanh", "head": head, "head_size": SIZES.get(head)}
    net = network_of(ACTOR, shape, seed=seed + 1)
    ours = distribution_of(ACTS, network=net)
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        obs = torch.rand((256, 1), generator=generator) * 2 - 1
        side = torch.where(torch.rand((256, 1), generator=generator) < 0.7, 1.0, -1.0)
        noise = torch.randn((256, 2), generator=generator) * torch.tensor([0.08, 0.02])
        actions = torch.cat([side * (1 + 0.4 * obs), 0.5 + 0.3 * side], 1) + noise
        adam.zero_grad()
        ours.cloning_loss(net.logits(obs), actions).mean().backward()
        adam.step()
        schedule.step()
    return net, ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "steps"), [("mixture", 300), ("bins", 300), ("diffusion", 1500), ("gaussian", 300), ("deterministic", 300)]
)
def test_multimodal_heads_learn_two_modes(learning, head, steps):
    net, ours = fitted(head, steps, learning.seed)
    drawn = 1000
    with torch.no_grad():
        outputs = net.logits(torch.full((drawn, 1), 0.5)).numpy()
    actions = ours.bounded(ours.draw(outputs, Streams(3, np.arange(drawn, dtype=np.int64))).actions)
    right, left = (
        (np.abs(actions - [side * 1.2, 0.5 + 0.3 * side]) < [0.4, 0.15]).all(axis=1).mean() for side in (1, -1)
    )
    if head in ("gaussian", "deterministic"):  # in between, or everywhere
        learning.check("near either", right + left, below=0.6)
    else:  # ten steps of diffusion leave some in between
        learning.check("near either", right + left, above=0.9 if head == "diffusion" else 0.95)
        learning.check("right", right, above=0.6, below=0.8)


def objective_learned(config: UpdateConfig, bound: str, updates: int, seed: int) -> tuple[np.ndarray, list[float], int]:
    """The action that the mean stands for, mean rewards of each batch, and optimiser steps taken."""
    factory = GymnasiumFactory("Target-v0", 1)
    (agent,) = factory.specs.agents
    architecture = {"name": "mlp", "hidden": [8], "activation": "tanh", "log_std": -0.5}
    net = network_of(agent, architecture, seed)
    collector = collector_of(
        factory.build(32, 0), factory.specs, {AGENT: net}, seed=seed, first=0, steps=4, bound=bound
    )
    update = Update({AGENT: net}, {AGENT: agent.action_space}, config, device=torch.device("cpu"))
    rewards = []
    for k in range(updates):
        rollout = collector.collect()[AGENT]
        rewards.append(float(rollout.rewards.mean()))
        update.learn({AGENT: estimate(rollout, Estimator(0.99, 0.95))}, k)
    with torch.no_grad():
        outputs = net(torch.ones(1, 1))[0].numpy()
    (state,) = update.optimizers[AGENT][0].state.values()
    distribution = Gaussian(agent.action_space.low, agent.action_space.high, bound)
    return distribution.bounded(distribution.mode(outputs))[0], rewards, int(state["step"])


FAST = replace(PPO, lr=steady(0.02), seed=1)
A2C = replace(FAST, objective="policy_gradient", epochs=1, minibatch_size=None)


@pytest.mark.parametrize("bound", ["clip", "tanh", "clip3"])
@pytest.mark.parametrize(("config", "updates", "steps"), [(FAST, 40, 320), (A2C, 120, 120)], ids=["ppo", "a2c"])
def test_gaussian_finds_best_action(learning, config, bound, updates, steps):
    best, rewards, taken = objective_learned(config, bound, updates, learning.seed)
    assert taken == steps
    learning.check("loss over the first", np.mean(rewards[-5:]) / np.mean(rewards[:5]), below=0.4)
    learning.check("distance to the best", np.abs(best - Target.best).max(), below=0.25)
