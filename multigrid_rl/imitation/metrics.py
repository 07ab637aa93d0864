"""What learning from recorded play, from an expert or from learnt rewards measures."""

from typing import Any

from multigrid_rl.metrics import MetricGroup
from multigrid_rl.types import MultiAgentSpec


def _absent(config: Any, specs: MultiAgentSpec) -> dict[str, str]:  # noqa: ARG001
    train = config.train
    cloning, adversarial = train.cloning, train.adversarial
    held_out = cloning is not None and train.dagger is None and cloning.held_out > 0
    learns_rewards = adversarial is not None and adversarial.reward is None
    unlike_ppo = "approx_kl/* clip_fraction/* learner/*/policy_loss learner/*/vf_loss learner/*/entropy_coef"
    cases: tuple[tuple[bool, str, str], ...] = (
        (train.dagger is None, "dagger/*", "train=dagger alone asks an expert"),
        (cloning is None, "learner/*/cloning_loss", "train=bc and dagger alone clone"),
        (not held_out, "learner/*/held_out_loss", "no episodes are held out"),
        (cloning is not None, unlike_ppo, "cloning has no such loss"),
        (adversarial is None, "learner/*/learnt_reward", "train=gail and airl alone learn rewards"),
        (not learns_rewards, "learner/*/discriminator_*", "no discriminator is trained"),
    )
    return {pattern: why for absent, patterns, why in cases if absent for pattern in patterns.split()}


IMITATION = MetricGroup(
    {
        "dagger/beta": ("probability that the expert acted in a step of this round", "share"),
        "dagger/labels": (
            "steps that the expert labelled so far, over all modules, and recorded ones it began with",
            "count",
        ),
        "learner/<module>/cloning_loss": (
            "what cloning minimises, mean over the iteration: minus the log-probability of what was recorded",
            "loss",
        ),
        "learner/<module>/held_out_loss": (
            "the same at the end of the iteration, on episodes that are held out",
            "loss",
        ),
        "learner/<module>/discriminator_loss": (
            "cross entropy of the discriminator between recorded steps and the batch's, last of its gradient steps",
            "nats",
        ),
        "learner/<module>/discriminator_accuracy": ("share of these steps that it classified correctly", "share"),
        "learner/<module>/learnt_reward": ("mean reward over the batch that the discriminator paid", "reward"),
    },
    absent=_absent,
)
