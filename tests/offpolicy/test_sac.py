"""Soft actor-critic: what is kept and learned, that it goes on as if it had never stopped, what is refused."""

import numpy as np
import pytest
import torch

from commands import call
from hostile_agents import Target
from multigrid_rl.cli.explain import Sizes, sections
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import Batch, Paths, estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.models.registry import network_of
from multigrid_rl.offpolicy import sac
from multigrid_rl.offpolicy.sac import ReplayBuffer, Sac
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")

TARGET = "hostile_agents:Target-v0"
SMALL = ["train=sac", f"env_id={TARGET}", "train.minibatch_size=32", "train.sac.learning_starts=64", "train.num_envs=8"]
CPU = torch.device("cpu")


def learner(seed: int = 0, **sac: object):
    """A learner over two numbers, its network, and the settings."""
    changes = [f"train.sac.{key}={'null' if value is None else value}" for key, value in sac.items()]
    config = compose([*SMALL, "train.num_steps=4", "model.hidden=[16]", *changes])
    factory = GymnasiumFactory(TARGET, 1)
    (agent,) = factory.specs.agents
    net = network_of(agent, config.model.model_dump(), seed)
    return Sac({AGENT: net}, config.train, seed, CPU), net, config, factory


def played(rows: int = 3):
    """A batch of one environment whose episode is cut after the second step and ends for good in the third."""
    none = np.zeros((rows, 0), np.float32)
    obs = np.arange(1, rows + 1, dtype=np.float32)[:, None]
    ones = np.ones(rows, np.float32)
    batch = Batch(obs, np.full((rows, 2), 0.5, np.float32), np.ones((rows, 1), bool), *(ones,) * 5, none, none)
    flags = np.zeros((3, rows, 1), bool)
    flags[0, 2] = flags[1, 1] = flags[1, 2] = flags[2, 1] = True
    terminated, done, cut = flags
    path = Paths(
        rewards=10 * obs,
        terminated=terminated,
        done=done,
        active=np.ones((rows, 1), bool),
        starts=done,
        cut=cut,
        final_obs=np.array([[7.0]], np.float32),
        last_obs=np.array([[9.0]], np.float32),
    )
    return batch, path


def test_kept_steps_are_what_was_played():
    sac, *_ = learner()
    batch, path = played()
    sac.agents[AGENT].add(batch, [path])
    rows = sac.agents[AGENT].replay.rows[:3]
    #                                  obs, two actions, reward, goes on, next observation
    assert rows[0].tolist() == [1.0, 0.5, 0.5, 10.0, 1.0, 2.0]
    assert rows[1].tolist() == [2.0, 0.5, 0.5, 20.0, 1.0, 7.0], "cut by a limit: the final observation still counts"
    assert rows[2, :5].tolist() == [3.0, 0.5, 0.5, 30.0, 0.0], "ended for good: nothing comes after it"


def test_newest_steps_take_the_place_of_the_oldest():
    replay = ReplayBuffer(4, 1, 1)
    for first in (0, 3):
        replay.add(torch.arange(first, first + 3).float()[:, None].expand(3, 5))
    assert replay.count == 4
    assert replay.rows[:, 0].tolist() == [4.0, 5.0, 2.0, 3.0]
    other = ReplayBuffer(4, 1, 1)
    other.set_state(replay.get_state())
    for both in (replay, other):
        both.add(torch.full((1, 5), 8.0))
    assert torch.equal(replay.rows, other.rows)
    assert replay.rows[:, 0].tolist() == [4.0, 5.0, 8.0, 3.0]


@pytest.mark.parametrize(("capacity", "kept"), [(3, [4, 5, 6]), (8, [2, 3, 4, 5, 6])])
def test_another_buffer_takes_over_the_newest_steps(capacity, kept):
    old, new = ReplayBuffer(5, 1, 1), ReplayBuffer(capacity, 1, 1)
    for k in range(7):
        old.add(torch.full((1, 5), float(k)))
    new.set_state(old.get_state())
    assert new.rows[: new.count, 0].tolist() == kept
    for k in range(7, 7 + capacity):
        new.add(torch.full((1, 5), float(k)))
        assert (new.rows[: new.count, 0] > 0).all(), "no row that nobody played"
    assert sorted(new.rows[:, 0].tolist()) == list(range(7, 7 + capacity))


def test_gradients_that_are_not_finite_are_left_out_and_told():
    sac, net, *_ = learner(alpha=None, learning_starts=1)
    batch, path = played()
    found = sac.learn({AGENT: batch}, 100, {AGENT: [path._replace(rewards=path.rewards * np.nan)]})[AGENT]
    assert found["dropped_updates"] >= found["gradient_steps"] > 0
    assert found["lr"] > 0
    assert not np.isfinite(found["q_loss"])
    assert np.isfinite(sac.agents[AGENT]._log_alpha.weights.detach()).all()
    assert all(np.isfinite(value).all() for value in net.state_dict().values())
    assert sac.agents[AGENT].dropped() == 0  # told once


def test_statistics_before_and_after_an_update():
    sac, *_, config, _ = learner(learning_starts=200)
    sac._train = config.train.model_copy(update={"lr_final": 0.0, "until": 400})
    batch, path = played()
    found = [sac.learn({AGENT: batch}, steps, {AGENT: [path]})[AGENT] for steps in (100, 200)]
    assert [row["lr"] for row in found] == pytest.approx([0.75 * config.train.lr, 0.5 * config.train.lr])
    assert [bool(np.isnan(row["explained_variance"])) for row in found] == [True, False]


def test_actions_are_kept_in_units_of_their_bounds():
    config = compose(["env_id=Pendulum-v1", "train=sac", "model.hidden=[8]"])
    factory = GymnasiumFactory("Pendulum-v1", 2)
    (agent,) = factory.specs.agents
    net = network_of(agent, config.model.model_dump(), 0)
    sac = Sac({AGENT: net}, config.train, 0, CPU)
    collector = collector_of(factory.build(2, 0), factory.specs, {AGENT: net}, seed=0, first=0, steps=50)
    rollout = collector.collect()[AGENT]
    sac.agents[AGENT].add(estimate(rollout, Estimator(0.99, 0.95)), [collector.paths()[AGENT]])
    kept = sac.agents[AGENT].replay.rows[: sac.agents[AGENT].replay.count, 3]
    torque = rollout.actions.reshape(-1)
    assert np.allclose(kept.numpy() * 2, torque, atol=1e-6)
    assert np.abs(torque).max() > 1.0, "the first actions reach far: they are wide"


def test_weight_of_entropy_moves_towards_target():
    # The output for deviations: nearly still (an entropy of -3.6 for each component), or nearly uniform.
    for spread, target, grows in ((-3.0, -1.0, True), (-3.0, -4.0, False), (0.4, -1.0, False)):
        sac, net, *_ = learner(target_entropy=target)
        net.policy[-1].bias.data[2:] = spread
        batch, path = played()
        sac.agents[AGENT].add(batch, [path])
        before = sac.agents[AGENT].learn(1)["alpha"]
        after = sac.agents[AGENT].learn(1)["alpha"]
        assert before == 1.0
        assert (after > before) == grows
    sac, *_ = learner(alpha=0.2)
    sac.agents[AGENT].add(batch, [path])
    assert sac.agents[AGENT].learn(3)["alpha"] == pytest.approx(0.2)


@pytest.mark.slow
def test_critics_learn_what_an_ended_step_pays():
    # Nothing comes after it: the value is the reward, whatever the policy.
    sac, net, _, factory = learner(learning_starts=1)
    collector = collector_of(factory.build(8, 0), factory.specs, {AGENT: net}, seed=0, first=0, steps=32)
    rollout = collector.collect()[AGENT]
    sac.agents[AGENT].add(estimate(rollout, Estimator(0.99, 0.95)), [collector.paths()[AGENT]])
    sac.agents[AGENT].learn(1500)
    rows = sac.agents[AGENT].replay.rows[:256]
    with torch.no_grad():
        values = sac.agents[AGENT]._values(sac.agents[AGENT]._critics, rows[:, :3])
    for value in values:
        assert float((value - rows[:, 3]).pow(2).mean()) < 0.02 * float(rows[:, 3].var())


def test_finds_the_best_action(learning):
    sac, net, _, factory = learner(learning.seed, q_lr=3e-3)
    sac.schedule(0)
    collector = collector_of(factory.build(8, 0), factory.specs, {AGENT: net}, seed=learning.seed, first=0, steps=4)
    for k in range(60):
        rollout = collector.collect()[AGENT]
        batch = estimate(rollout, Estimator(0.99, 0.95))
        sac.learn({AGENT: batch}, 32 * (k + 1), {AGENT: [collector.paths()[AGENT]]})
    with torch.no_grad():
        best = net.head.bounded(net.head.mode(net.logits(torch.ones(1, 1)).numpy()))[0]
    learning.check("distance from the best action", float(np.abs(best - Target.best).max()), below=0.3)


# A buffer that fills up, and one that a longer run would have larger if it went by the budget.
@pytest.mark.slow
@pytest.mark.parametrize("buffer", [300, 100_000])
def test_run_resumes_number_for_number(tmp_path, buffer):
    run = [*SMALL, "train.num_steps=8", f"train.sac.buffer={buffer}", "seed=3"]
    whole = tiny_run(tmp_path / "whole", *run, "train.until=1024")[1]
    tiny_run(tmp_path / "parts", *run, "train.until=512")
    resume_training(tmp_path / "parts", ["train.until=1024"])
    assert without_time(rows_of(tmp_path / "parts")) == without_time(whole)
    assert {"learner/agent_0/q_loss", "learner/agent_0/q_mean", "learner/agent_0/alpha"} <= whole[-1].keys()
    assert [name for name in whole[-1] if not any(matches(name, pattern) for pattern in glossary())] == []
    assert whole[-1]["gradient_steps"] == 64 * len(whole), "64 steps of an iteration, a gradient step for each"


def test_a_minibatch_may_be_larger_than_what_was_just_played(tmp_path):
    one_step = ["train.num_envs=1", "train.num_steps=1", "train.sac.updates_per_step=1", "train.sac.learning_starts=5"]
    rows = tiny_run(tmp_path / "run", *SMALL, *one_step, "train.until=12")[1]
    assert [row["gradient_steps"] for row in rows] == [0, 0, 0, 0, *range(1, 9)]
    assert ["learner/agent_0/q_loss" in row for row in rows] == [False] * 4 + [True] * 8


@pytest.mark.parametrize("name", ["halfcheetah", "hopper", "walker2d", "humanoid", "walker", "lunarlander-continuous"])
def test_bodies_have_its_recipe(name):
    assert compose([f"scenario={name}", "train=sac"]).experiment == "sac"
    assert compose([f"scenario={name}", "train=dac", "data=x"]).model.head == "tanh-gaussian"


def test_gradient_steps_are_explained():
    config = compose([*SMALL, "train.num_steps=8", "train.until=1024"])
    size = Sizes.of(config, [AGENT])
    assert (size.gradient_steps_per_update, size.gradient_steps) == (64, 1024)
    shown = sections(config, env_factory(config).specs, {})["One update: play, then learn"]
    assert "train.epochs" not in [name for name, *_ in shown]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.head=null"], "model.head: expected tanh-gaussian with train=sac"),
        (["model.normalise=true"], "model.normalise: expected false with train=sac, got True"),
        (["cluster.num_learners=2"], "cluster.num_learners: expected 0 with train=sac, got 2"),
        (["train.sac.tau=0"], "train.sac.tau"),
        (["train.time_limits=death"], "train.time_limits: expected bootstrap with train=sac, got death"),
        (["model.norm=layer"], "model.norm: expected none with train=sac, got layer"),
        (["init=x", "train.warm_up=50"], "train.warm_up: expected 0 with train=sac, got 50"),
        (["train.num_steps=8", "train.sac.buffer=63"], "train.sac.buffer: expected at least a batch of 64 steps with"),
        (["train.sac.buffer=31", "train.num_steps=1"], "train.minibatch_size: expected at most sac.buffer=31"),
        (["train.num_steps=8", "train.sac.updates_per_step=0.001"], "expected a gradient step for a batch of 64 steps"),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        compose([*SMALL, *overrides])


def test_a_buffer_beyond_the_free_memory_is_refused(monkeypatch):
    monkeypatch.setattr(sac, "free_memory", lambda: 2**20)
    with pytest.raises(ConfigError, match=r"train.sac.buffer: expected steps that fit into 0.0 GiB of free"):
        learner(buffer=100_000)
    learner(buffer=10_000)


def test_choices_are_refused():
    result = call("train", "env_id=CartPole-v1", "train=sac", "train.until=1000")
    assert result.exit_code == 2
    assert "null for choices, as heads are for numbers (Box)" in result.output, result.output
    result = call("train", "scenario=1v1", "train=sac", "train.until=1000")
    assert "scenario: expected actions that are numbers (Box) with train=sac, got 1v1" in result.output, result.output
