"""What learning from recorded play may be told, and which gates it has."""

import pytest

from composing import assert_keeps_sizes, refused_gate, unsaid, with_gate
from multigrid_rl.config.compose import compose
from multigrid_rl.training.screen import recipe_of

BODY = "env_id=Pendulum-v1 experiment=none"
#: Overrides, then words of the message, or patterns of it.
REFUSED = [
    ("scenario=1v1 train=bc", "data: expected a folder that `multigrid-rl data record` wrote"),
    ("scenario=1v1 train=dagger", "expert: expected a player, its folder or a run"),
    (
        "scenario=1v1 train=bc data=x train.cloning.held_out=0 train.cloning.patience=3",
        "train.cloning.patience: expected null with train.cloning.held_out=0",
    ),
    ("scenario=1v1 train=dagger expert=hunter train.cloning.held_out=0.2", "train.cloning.held_out: expected 0 with"),
    ("scenario=1v1 train=bc data=x model=gru", "model: expected "),
    ("scenario=1v1 train=bc data=x cluster.num_env_runners=1", "cluster.num_env_runners: expected "),
    (f"{BODY} train=gail", "data: expected a folder that `multigrid-rl data record` wrote, with train=gail"),
    ("scenario=1v1 train=airl data=x experiment=none", "scenario: expected one of Gymnasium with train=airl"),
    (f"{BODY} train=gail data=x model=gru", "a network without memory with train=gail"),
    (f"{BODY} train=gail data=x model.bound=tanh", "model.bound: expected clip with train=gail"),
    (f"{BODY} train=gail data=x model.head=diffusion", "model.head: expected"),
    (f"{BODY} train=gail data=x train.adversarial.hidden=[0]", "train.adversarial.hidden"),
    (f"{BODY} train=gail data=x train.adversarial.depth=1", "train.adversarial.depth"),
    (f"{BODY} train=gail data=x train.adversarial.payoff=d", "train.adversarial.payoff"),
    (f"{BODY} train=gail data=x train.adversarial.payoff=f", "train.adversarial.payoff"),
    (f"{BODY} train=airl data=x train.adversarial.payoff=softplus", "train.adversarial.payoff"),
    ("scenario=1v1 train=bc data=x train.gamma=0.9", "train.gamma: expected nothing with train=bc, which does not"),
    ("scenario=1v1 train=dagger expert=hunter train.bonus.all.step=-1", "train.bonus.all.step: expected nothing with"),
    (f"{BODY} train=gail data=x train.shaping=x:y", "train.shaping: expected nothing with train=gail"),
    (
        "env_id=Pendulum-v1 train=sac train.clip=0.3",
        "train.clip: expected nothing with train=sac, which does not read it",
    ),
    ("env_id=Pendulum-v1 train=sac train.epochs=7", "train.epochs: expected nothing with train=sac, which does not"),
    ("env_id=CartPole-v1 train=vpg train.epochs=9", "train.epochs: expected nothing with train.pi_iters=4, which"),
    (
        "env_id=CartPole-v1 train.psi=future_return train.lam=.9",
        "train.lam: expected nothing with train.psi=future_ret",
    ),
    ("scenario=1v1 train.kl_target=.1", "train.kl_target: expected nothing with train.kl_coef=null, which"),
    (
        "scenario=1v1 train.lr=1e-3 train.lr_schedule=[[0,1e-3],[9,0]]",
        "train.lr: expected nothing with train.lr_schedule",
    ),
    (f"{BODY} train=gail data=x train.adversarial.gradient_penalty=-1", "train.adversarial.gradient_penalty"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_rejects_override_in_one_line(row):
    assert unsaid(*row) == []


@pytest.mark.parametrize(
    ("overrides", "metric", "why"),
    [
        ("scenario=1v1", "dagger/beta", "reported by train=dagger, not by train=ppo"),
        ("scenario=1v1", "learner/*/discriminator_loss", "reported by train=gail, airl, dac, not by train=ppo"),
        ("scenario=1v1 train=bc data=x", "approx_kl/*", "not by train=bc"),
        ("scenario=1v1 train=dagger expert=hunter", "learner/*/held_out_loss", "no episodes are held out"),
        ("env_id=Pendulum-v1 train=bc data=x model.head=deterministic", "entropy/*", "has no probabilities"),
    ],
)
def test_gate_on_what_a_run_never_reports_is_refused(overrides, metric, why):
    refused_gate(overrides, metric, why)


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [
        ("scenario=1v1 train=dagger expert=hunter", "dagger/beta"),
        ("scenario=1v1 train=bc data=x", "learner/*/held_out_loss"),
        ("env_id=Pendulum-v1 train=bc data=x", "entropy/*"),
        ("env_id=Pendulum-v1 train=gail data=x", "learner/*/discriminator_accuracy"),
    ],
)
def test_gate_on_what_a_run_reports_is_taken(overrides, metric):
    assert with_gate(overrides, metric)


@pytest.mark.parametrize(
    ("train", "own", "needs"),
    [
        ("gail", {}, "data=x"),
        ("airl", {}, "data=x"),
        ("bc", {"num_envs": 32, "num_steps": 2048}, "data=x"),
        ("dagger", {"num_envs": 32, "num_steps": 128}, "expert=random"),
    ],
)
@pytest.mark.parametrize("scenario", ["walker2d", "humanoid", "lunarlander"])
def test_environment_keeps_sizes_network_and_discount_under_every_objective(scenario, train, own, needs):
    assert_keeps_sizes(scenario, train, own, needs)


def test_objective_takes_recipe_of_what_it_builds_on():
    config = compose(["scenario=halfcheetah", "train=airl", "data=x"])
    assert config == compose(["experiment=halfcheetah-gail", "train=airl", "data=x"])
    assert (config.train.adversarial.kind, config.train.adversarial.steps) == ("airl", 48)
    named = compose(["experiment=halfcheetah", "train=dagger", "expert=random"])
    assert named == compose(["scenario=halfcheetah", "train=dagger", "expert=random"])


def test_bonus_is_dropped_where_nothing_is_learned_from_rewards():
    config = compose(["scenario=1v1", "train=dagger", "expert=key-runner"])
    assert (config.train.bonus, config.experiment) == ({}, None)
    assert recipe_of(config) == "none, the defaults of train/dagger"
    assert compose(["scenario=coop", "train=bc", "data=x"]).scheme == "dtde"  # no critic is trained
