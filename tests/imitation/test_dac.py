"""Adversarial imitation from kept steps: who pays, what the discriminator reads, exact resume, and what is refused."""

import numpy as np
import pytest
import torch

from composing import error_of
from demonstrated import Shown, pusher
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumFactory
from multigrid_rl.imitation.adversarial import AdversarialConfig, Steps
from multigrid_rl.imitation.dac import NOISE, Dac
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.types import RunError
from tiny_runs import rows_of, tiny_run, unknown_metrics, without_time

pytestmark = pytest.mark.filterwarnings("ignore")

CPU = torch.device("cpu")
#: The environment pays most for (.6, -.3).
TARGET, SHOWN = "hostile_agents:Target-v0", np.array([-0.5, 0.4], np.float32)
HOW = Estimator(0.99, 0.95)
ASKED = AdversarialConfig(
    kind="gail", hidden=(32,), lr=1e-3, steps=8, minibatch_size=32,
    payoff="logit", gradient_penalty=1.0, allow_variable_horizon=True, estimator=HOW, seed=3,
)  # fmt: skip
AIRL = ASKED.model_copy(update={"kind": "airl", "temperature": 0.5})
SMALL = [
    "train=dac", "train.num_envs=8", "train.num_steps=4", "train.minibatch_size=32", "train.sac.learning_starts=64",
    "train.adversarial.hidden=[16]", "train.adversarial.steps=4", "model.hidden=[16]",
]  # fmt: skip
BY_AIRL = ["train.adversarial.kind=airl"]
PENDULUM = ["env_id=Pendulum-v1", "env_args={max_episode_steps: 16}", *SMALL]


def shown(rows: int = 64) -> Shown:
    """Somebody who always does the same, in episodes of one step."""
    ones = np.ones((rows, 1), np.float32)
    return Shown(ones, np.tile(SHOWN, (rows, 1)), np.ones(rows, np.bool_), np.arange(1, rows + 1), ones)


def parts(seed: int = 0, asked: AdversarialConfig = ASKED):
    """A collector of eight environments, its network, and the learner that imitates ``shown``."""
    config = compose([f"env_id={TARGET}", *SMALL, "data=x", "train.sac.q_lr=3e-3", f"seed={seed}"])
    factory = GymnasiumFactory(TARGET, 1)
    (agent,) = factory.specs.agents
    net = network_of(agent, config.model.model_dump(), seed)
    dac = Dac(asked, shown(), {AGENT: net}, config.train, seed, CPU)
    collector = collector_of(factory.build(8, 0), factory.specs, {AGENT: net}, seed=seed, first=0, steps=4)
    return collector, net, dac


def once(collector, dac, env_steps: int):
    batch = estimate(collector.collect()[AGENT], HOW)
    return dac.learn({AGENT: batch}, env_steps, {AGENT: [collector.paths()[AGENT]]})[AGENT]


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "batches", "bound"), [(ASKED, 120, 0.15), (AIRL, 240, 0.4)], ids=["gail", "airl"])
def test_imitates_what_was_shown_not_what_is_paid(learning, asked, batches, bound):
    collector, net, dac = parts(learning.seed, asked)
    for k in range(batches):
        once(collector, dac, 32 * (k + 1))
    with torch.no_grad():
        does = net.head.bounded(net.head.mode(net.logits(torch.ones(1, 1)).numpy()))[0]
    learning.check("distance from what was shown", float(np.abs(does - SHOWN).max()), below=bound)


def test_critics_never_read_the_environments_rewards():
    collector, _, dac = parts()
    agent, keep = dac.agents[AGENT], dac.agents[AGENT].replay.add

    def unpaid(rows):
        rows[:, 3] = float("nan")
        keep(rows)

    agent.replay.add = unpaid
    found = [once(collector, dac, 32 * (k + 1)) for k in range(4)][-1]
    assert found["gradient_steps"] == 32
    assert all(np.isfinite(value) for value in found.values())


def test_each_gradient_step_is_paid_by_the_discriminator_of_now():
    collector, _, dac = parts()
    once(collector, dac, 32)
    obs, actions, *_ = dac.agents[AGENT].replay.columns(dac.agents[AGENT].replay.rows[:5])
    adversary = dac.adversaries[AGENT]
    with torch.no_grad():
        wanted = adversary.discriminator(Steps(obs, actions, obs, obs[:, 0], torch.zeros(5)))
        before = dac.agents[AGENT].reward_of(obs, actions)
    assert torch.equal(before, wanted)
    once(collector, dac, 64)
    with torch.no_grad():
        assert not torch.equal(dac.agents[AGENT].reward_of(obs, actions), before)


def test_discriminator_tells_recorded_from_kept():
    collector, _, dac = parts(asked=ASKED.model_copy(update={"gradient_penalty": 0.0, "steps": 100, "lr": 1e-2}))
    found = once(collector, dac, 32)
    assert found["discriminator_accuracy"] > 0.9
    recorded = torch.from_numpy(SHOWN)[None], torch.ones(1, 1)
    kept = dac.agents[AGENT].replay.columns(dac.agents[AGENT].replay.rows[:32])
    with torch.no_grad():
        pays = dac.agents[AGENT].reward_of
        assert float(pays(recorded[1], recorded[0])) > float(pays(kept[0], kept[1]).mean()) + 1.0


def test_airl_sees_noisy_actions_and_how_likely_they_are_of_the_policy_or_a_wide_one():
    _, net, dac = parts(asked=AIRL)
    obs, actions = torch.ones(4096, 1), torch.tensor([[0.9, -1.0]]).repeat(4096, 1)
    plain = Steps(obs, actions, obs, torch.ones(4096), torch.zeros(4096))
    seen = dac.adversaries[AGENT]._preprocess(plain)
    noise = seen.actions - actions
    assert torch.equal(seen.obs, obs)
    assert abs(float(noise.mean())) < 0.03
    assert abs(float(noise.std()) - NOISE) < 0.03
    narrow = net.head.noisy_log_prob(net.logits(obs), seen.actions, NOISE)
    wide = torch.distributions.Normal(0.0, 1.0).log_prob(seen.actions).sum(1)
    torch.testing.assert_close(seen.logp, torch.log(0.5 * narrow.exp() + 0.5 * wide.exp()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("payoff", ["logit", "f"])
def test_airl_pays_its_logit_of_noisy_actions_or_g_alone(payoff):
    _, _, dac = parts(asked=AIRL.model_copy(update={"payoff": payoff}))
    adversary, obs, zeros = dac.adversaries[AGENT], torch.ones(5, 1), torch.zeros(5)
    actions, rng = torch.rand((5, 2), generator=torch.Generator().manual_seed(2)), adversary._rng.bit_generator
    with torch.no_grad():
        begun = rng.state
        seen = adversary._preprocess(Steps(obs, actions, obs, zeros, zeros))
        rng.state = begun
        paid = adversary.reward_of(obs, actions)
        g = adversary.discriminator.reward_of(adversary.discriminator.normaliser(obs), seen.actions)
    torch.testing.assert_close(paid, g if payoff == "f" else g - 0.5 * seen.logp)
    assert adversary.discriminator.shaping is None


def test_rejects_early_ends_unless_allowed():
    with pytest.raises(RunError, match="demonstrations: expected episodes of one length"):
        parts(asked=ASKED.model_copy(update={"allow_variable_horizon": False}))
    collector, _, dac = parts()
    dac.adversaries[AGENT]._config = ASKED.model_copy(update={"allow_variable_horizon": False})
    with pytest.raises(RunError, match="the policy's episodes: expected episodes of one length"):
        once(collector, dac, 32)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return pusher(tmp_path_factory.mktemp("demos"), 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], BY_AIRL], ids=["gail", "airl"])
def test_run_resumes_number_for_number(demo, tmp_path, kind):
    run = [*PENDULUM, f"data={demo}", "seed=3", *kind]
    whole = tiny_run(tmp_path / "whole", *run, "train.until=1024")[1]
    tiny_run(tmp_path / "parts", *run, "train.until=512")
    resume_training(tmp_path / "parts", ["train.until=1024"])
    assert without_time(rows_of(tmp_path / "parts")) == without_time(whole)
    assert {"learner/agent_0/q_loss", "learner/agent_0/discriminator_accuracy"} <= whole[-1].keys()
    assert unknown_metrics(whole[-1:]) == []
    # Pendulum pays nothing above 0; 16 steps of a reward that is learnt would.
    assert all(row["return_mean/agent_0"] < 0 for row in whole if "return_mean/agent_0" in row)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "data: expected a folder that `multigrid-rl data record` wrote, with train=dac, got null"),
        (["data=x", "model.head=null"], "model.head: expected tanh-gaussian with train=dac"),
        (["data=x", *BY_AIRL, "train.adversarial.payoff=softplus"], "train.adversarial.payoff: expected logit or f"),
        (["data=x", "train.adversarial.payoff=f"], "train.adversarial.payoff: expected softplus or logit"),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, said):
    assert said in error_of(*PENDULUM, *overrides)
