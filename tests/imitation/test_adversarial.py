"""Adversarial imitation: formulas, horizons, exact resume, a policy that does what was shown; whole runs."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hostile_agents  # noqa: F401 - registers environments
from commands import call, complaint, works
from demonstrated import Shown, pusher
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.imitation.adversarial import AdversarialConfig, AdversarialUpdate, Discriminator, Steps, encoded
from multigrid_rl.imitation.imitation_trainers import AdversarialOptions
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.models.registry import network_of
from multigrid_rl.types import RunError
from run_folders import killed
from tiny_runs import rows_of, tiny_run, unknown_metrics, without_time
from updates import PPO

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

HOW = Estimator(0.9, 0.95)
GAIL = AdversarialConfig(
    kind="gail", hidden=(64,), lr=3e-3, steps=5, minibatch_size=64,
    payoff="softplus", gradient_penalty=0.0, allow_variable_horizon=False, estimator=HOW, seed=3,
)  # fmt: skip
AIRL = GAIL.model_copy(update={"kind": "airl", "payoff": "logit"})
STEADY = GAIL.model_copy(update={"payoff": "logit", "gradient_penalty": 1.0})
CPU = torch.device("cpu")
SHOWN = np.array([-1.0, 0.8], np.float32)


def shown(rows: int = 400, each: int = 4, actions: Any = None) -> Shown:
    """Somebody who always does the same in an environment that shows noise, the time and what was done last."""
    rng = np.random.default_rng(6)
    obs = np.concatenate([rng.normal(size=(rows, 2)), np.zeros((rows, 3))], 1).astype(np.float32)
    time = np.arange(rows) % each
    obs[:, 2] = time
    obs[time > 0, 3:] = SHOWN.sum(), SHOWN.max()
    final = obs[each - 1 :: each] + np.array([0, 0, 1, 0, 0], np.float32)
    taken = np.tile(SHOWN, (rows, 1)) if actions is None else actions
    return Shown(obs, taken, np.zeros(rows, np.bool_), np.arange(each, rows + 1, each), final)


def parts(
    config: AdversarialConfig,
    *,
    recompute: bool = False,
    log_std: float = -1.0,
    expert: Any = None,
    seed: int = 1,
    **args,
):
    """A collector of eight environments, its network, and the update that imitates ``expert``."""
    factory = GymnasiumFactory("EchoCut-v0", 1, {"actions": "vector"} | args)
    (agent,) = factory.specs.agents
    net = network_of(agent, {"name": "mlp", "hidden": [16], "activation": "tanh", "log_std": log_std}, seed)
    collector = collector_of(factory.build(8, 0), factory.specs, {AGENT: net}, seed=seed, first=0, steps=32)
    ppo, recorded = replace(PPO, recompute=HOW) if recompute else PPO, expert or shown()
    update = AdversarialUpdate(config, recorded, {AGENT: net}, {AGENT: agent.action_space}, ppo, device=CPU)
    return collector, net, update


def once(collector, update) -> tuple[dict[str, float], Any]:
    rollout = collector.collect()[AGENT]
    batch = estimate(rollout, HOW)
    return update.learn({AGENT: batch}, 0, {AGENT: [collector.paths()[AGENT]]})[AGENT], batch


def steps_of(rows: int = 6) -> Steps:
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randn((rows, width), generator=generator) for width in (3, 2, 3)]
    return Steps(*columns, torch.tensor([0.0, 1.0] * (rows // 2)), torch.linspace(-3, 0, rows))


def test_gail_rewards_expert_like_steps():
    net, steps = Discriminator(3, 2, GAIL), steps_of()
    chance = torch.sigmoid(net(steps))  # that a step is the expert's
    torch.testing.assert_close(net.rewards(steps), -torch.log(1 - chance))
    plain = steps._replace(logp=torch.zeros(6))
    torch.testing.assert_close(net(plain), net.reward(torch.cat([steps.obs, steps.actions], 1))[:, 0])


def test_gail_pays_logit_if_configured():
    net, steps = Discriminator(3, 2, GAIL.model_copy(update={"payoff": "logit"})), steps_of()
    chance = torch.sigmoid(net(steps))
    torch.testing.assert_close(net.rewards(steps), torch.log(chance) - torch.log(1 - chance))


def test_airl_pays_f_alone_if_configured():
    net, whole = Discriminator(3, 2, AIRL.model_copy(update={"payoff": "f"})), Discriminator(3, 2, AIRL)
    steps = steps_of()
    torch.testing.assert_close(net.rewards(steps), whole.rewards(steps) + steps.logp)
    torch.testing.assert_close(net(steps), whole(steps))


def test_gradient_penalty_measures_distance_of_slope_from_one():
    net, steps = Discriminator(3, 2, GAIL), steps_of()
    net.normaliser.std.fill_(2.0)  # slopes are by what the network reads
    weights = torch.tensor([[3.0, 0.0, 0.0, 0.0, 4.0]])
    net.reward = torch.nn.Linear(5, 1)
    net.reward.weight.data.copy_(weights)
    off = net.gradient_penalty(steps, Steps._make(2 * column for column in steps), torch.rand(6, 1))
    torch.testing.assert_close(off, torch.tensor((5.0 - 1.0) ** 2))
    off.backward()
    torch.testing.assert_close(net.reward.weight.grad, 2 * (5.0 - 1.0) * weights / 5.0)


def test_airl_rewards_f_less_log_probability():
    net, steps = Discriminator(3, 2, AIRL), steps_of()
    g = net.reward(torch.cat([steps.obs, steps.actions], 1))[:, 0]
    before, after = net.shaping(steps.obs)[:, 0], net.shaping(steps.next_obs)[:, 0]
    f = g + 0.9 * torch.tensor([1.0, 0.0] * 3) * after - before
    torch.testing.assert_close(net.rewards(steps), f - steps.logp)
    # D = exp(f) / (exp(f) + pi)
    chance = f.exp() / (f.exp() + steps.logp.exp())
    torch.testing.assert_close(torch.sigmoid(net(steps)), chance)


def test_actions_are_scaled_to_bounds_if_any_and_choices_one_hot():
    numbers = encoded(Gaussian([-2, 0], [2, 1], "clip"), np.array([[-2.0, 0.75]], np.float32))
    np.testing.assert_allclose(numbers, [[-1.0, 0.5]])
    unbounded = encoded(Gaussian([-np.inf, 0], [np.inf, np.inf], "clip"), np.array([[-7.0, 3.0]], np.float32))
    np.testing.assert_allclose(unbounded, [[-7.0, 3.0]])
    np.testing.assert_array_equal(encoded(Categorical((2, 3)), np.array([[1, 0]])), [[0, 1, 1, 0, 0]])


@pytest.mark.parametrize("config", [GAIL, AIRL], ids=["gail", "airl"])
def test_discriminator_pays_whole_batch(config):
    collector, _, update = parts(config)
    adversary, kept = update.adversaries[AGENT], {}
    learn = adversary.learn

    def spied(batch, paths):
        kept["paths"], statistics = learn(batch, paths)
        kept["mine"] = adversary._policy_steps(batch, paths)
        return kept["paths"], statistics

    adversary.learn = spied
    statistics, _ = once(collector, update)
    (path,) = kept["paths"]
    with torch.no_grad():
        wanted = adversary.discriminator.rewards(kept["mine"]).numpy()
    np.testing.assert_allclose(path.rewards.reshape(-1), wanted, rtol=1e-5)
    assert statistics["learnt_reward"] == pytest.approx(float(wanted.mean()), rel=1e-5)
    assert {"discriminator_loss", "discriminator_accuracy", "explained_variance", "policy_loss"} <= set(statistics)


def test_discriminator_loss_leaves_out_the_gradient_penalty():
    losses = []
    for weight in (0.0, 10.0):
        collector, _, update = parts(STEADY.model_copy(update={"gradient_penalty": weight, "steps": 1}))
        losses.append(once(collector, update)[0]["discriminator_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("config", "recompute"), [(GAIL, False), (AIRL, True), (STEADY, False)], ids=["gail", "airl", "steady"]
)
def test_resumed_update_equals_unbroken_update(config, recompute):
    statistics = []
    for halves in (False, True):
        collector, net, update = parts(config, recompute=recompute)
        once(collector, update)
        if halves:
            # What a checkpoint holds: weights, the policy's optimiser, and the update's own state.
            weights, adam = net.state_dict(), update.optimizers[AGENT][0].state_dict()
            _, other, again = parts(config, recompute=recompute)
            other.load_state_dict(weights)
            again.optimizers[AGENT][0].load_state_dict(adam)
            again.set_state(update.get_state())
            collector.networks, update = {AGENT: other}, again
        statistics.append([once(collector, update)[0] for _ in range(2)])
    assert statistics[0] == statistics[1]


def of_itself(log_std: float) -> Shown:
    """What the policy of ``parts`` does: episodes of one step, whose actions are what the environment got."""
    collector, *_ = parts(GAIL, log_std=log_std)
    steps, distribution = [], collector.distributions[AGENT]
    for _ in range(16):
        rollout, path = collector.collect()[AGENT], collector.paths()[AGENT]
        obs, following = path.with_next(rollout.obs.reshape(-1, 5), path.final_obs, path.last_obs)
        taken = distribution.bounded(rollout.actions)
        steps.append([column.reshape(-1, column.shape[-1]).copy() for column in (obs, taken, following)])
    obs, taken, following = map(np.concatenate, zip(*steps, strict=True))
    return Shown(obs, taken, np.zeros(len(obs), np.bool_), np.arange(1, len(obs) + 1), following)


@pytest.mark.slow
@pytest.mark.parametrize("config", [GAIL, AIRL], ids=["gail", "airl"])
def test_nothing_tells_clipped_policy_from_itself(config):
    """Half of the draws lie beyond a bound: the expert's are recorded at it."""
    collector, _, update = parts(config.model_copy(update={"minibatch_size": 256}), log_std=0.0, expert=of_itself(0.0))
    adversary, seen = update.adversaries[AGENT], []
    for _ in range(60):
        batch = estimate(collector.collect()[AGENT], HOW)
        seen.append(adversary.learn(batch, [collector.paths()[AGENT]])[1])
    loss, accuracy = np.mean([list(row.values())[:2] for row in seen[30:]], axis=0)
    assert loss == pytest.approx(np.log(2), abs=0.04)
    assert accuracy == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("config", [GAIL, AIRL], ids=["gail", "airl"])
def test_policy_learns_to_imitate(learning, config):
    """The environment pays the sum of an action; what was shown pays little, and nothing of it is told."""
    collector, net, update = parts(config.model_copy(update={"allow_variable_horizon": True}), seed=learning.seed)

    def distance() -> float:
        with torch.no_grad():
            means = net.logits(torch.from_numpy(shown().observations))[:, :2].numpy()
        return float(np.abs(Gaussian([-2, 0], [2, 1], "clip").bounded(means) - SHOWN).mean())

    before = distance()
    for _ in range(30):
        once(collector, update)
    learning.check("distance at first", before, above=0.5)
    learning.check("distance", distance(), below=0.35)


def test_rejects_early_ends_unless_allowed():
    message = r"^train\.adversarial: %s: expected episodes of one length, or " + (
        r"train\.adversarial\.allow_variable_horizon=true: .*, got \d+ that ended early$"
    )
    collector, _, update = parts(GAIL, ends=3)
    with pytest.raises(RunError, match=message % "the policy's episodes"):
        once(collector, update)
    collector, net, update = parts(GAIL.model_copy(update={"allow_variable_horizon": True}), ends=3)
    once(collector, update)
    early = shown()._replace(terminated=np.arange(400) % 4 == 3)
    space = {AGENT: GymnasiumFactory("EchoCut-v0", 1, {"actions": "vector"}).specs.agents[0].action_space}
    with pytest.raises(RunError, match=message % "demonstrations"):
        AdversarialUpdate(GAIL, early, {AGENT: net}, space, PPO, device=CPU)


SMALL = [
    "env_id=Pendulum-v1", "env_args={max_episode_steps: 20}", "train.num_envs=8", "train.num_steps=32",
    "train.minibatch_size=64", "train.until=1024", "train.checkpoint_every=512", "train.adversarial.steps=2",
    "scenario.report_episodes=8", "model.normalise=true", "model.scale_values=true",
]  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return pusher(tmp_path_factory.mktemp("demos"), 20)


@pytest.mark.parametrize("kind", ["gail", "airl"])
def test_learnt_reward_run_resumes_exactly(demo, tmp_path, kind):
    whole = tmp_path / "whole"
    verdict, rows = tiny_run(whole, *SMALL, f"train={kind}", f"data={demo}")
    assert unknown_metrics(rows) == []
    assert all(0 <= row["learner/agent_0/discriminator_accuracy"] <= 1 for row in rows)
    assert all(np.isfinite(row["learner/agent_0/learnt_reward"]) for row in rows)
    # Pendulum pays nothing above 0; 20 steps of a reward that is learnt would.
    assert all(row["return_mean/agent_0"] < 0 for row in rows if "return_mean/agent_0" in row)
    data = json.loads((whole / "provenance.json").read_text())["data"]
    assert (data["who"], data["rows"]) == ("pusher", 200)
    broken = killed(whole, tmp_path / "broken", "step_000001024")
    assert resume_training(broken, [])["weights"] == verdict["weights"]
    assert without_time(rows_of(broken)) == without_time(rows)


def test_reward_of_another_run_is_no_key_but_its_null_in_older_files_is_read(demo):
    asked = [*SMALL, "train=gail", f"data={demo}"]
    assert "train.adversarial.reward" in complaint(call("train", *asked, "train.adversarial.reward=x"))
    options = compose(asked).train.adversarial
    assert AdversarialOptions.model_validate({**options.model_dump(), "reward": None, "replay": 0}) == options


def test_rejects_demonstrations_of_another_environment(demo, tmp_path):
    other = ["env_id=CartPole-v1", "experiment=none", "train=gail", f"data={demo}", f"run_dir={tmp_path / 'run'}"]
    assert "env: expected CartPole-v1, got Pendulum-v1" in complaint(call("train", *other))


@pytest.mark.parametrize("head", ["mixture", "bins"])
def test_probabilistic_heads_train_by_ppo_and_evaluate(tmp_path, head):
    run = tmp_path / "run"
    _, rows = tiny_run(run, "env_id=Pendulum-v1", f"model.head={head}", "train.until=512", "train.checkpoint_every=512")
    assert np.isfinite([row["entropy/agent_0"] for row in rows]).all()
    assert rows[-1]["learner/agent_0/grad_norm"] > 0
    works("evaluate", run, "--episodes", 4, "-o", tmp_path / "judged")
