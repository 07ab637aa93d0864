"""What learning from recorded play, from an expert or from learnt rewards measures."""

from multigrid_rl.metrics import MetricGroup

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
    }
)
