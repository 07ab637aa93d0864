"""Trainer of ``train=sac``: its settings, checks and metrics. Torch is imported only when it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from multigrid_rl.config.scenario import Part, Steps
from multigrid_rl.config.schema import RunConfig, TrainConfig
from multigrid_rl.metrics import MetricGroup
from multigrid_rl.training.trainers import Trainer

if TYPE_CHECKING:
    from multigrid_rl.training.trainers import Updater

#: Head of SAC's policy: its samples are differentiable with respect to its outputs.
HEAD = "tanh-gaussian"


class SacOptions(Part):
    """Replay buffer and frequency of updates of an off-policy learner."""

    buffer: Steps
    """steps that are kept to learn from; the newest take the place of the oldest. More: steadier, more memory"""
    learning_starts: Steps
    """environment steps that are played before policy and critics learn. More: a wider first look, a later start"""
    updates_per_step: float = Field(gt=0, le=64)
    """gradient steps of critics and policy for each environment step. More: learns more from each step, slower"""
    q_lr: float = Field(gt=0)
    """Adam step size of the critics and of the entropy's weight; falls as lr does"""
    tau: float = Field(gt=0, le=1)
    """share by which the target critics follow the critics in each gradient step. More: faster, less steady"""
    alpha: float | None = Field(gt=0)
    """weight of the entropy. null: learnt, so that the entropy comes near target_entropy"""
    target_entropy: float = -1.0
    """entropy that a learnt alpha aims at, in nats for each component of an action. Lower: less noise, explores less"""


class SacTrain(TrainConfig):
    """Settings of ``train=sac``."""

    sac: SacOptions
    """what is kept and how often it is learned from, with train=sac or dac"""


class SacTrainer(Trainer):
    """Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290): learns from a replay buffer."""

    settings: type[TrainConfig] = SacTrain
    learns_values = False
    replays = True
    unread: tuple[str, ...] = (  # what only an update by advantages reads
        "objective", "value_loss", "psi", "standardise", "pi_iters", "v_iters", "v_lr", "recompute", "target_kl", "lam",
        "clip", "clip_final", "vf_coef", "entropy_coef", "entropy_final", "entropy_decay",
    )  # fmt: skip
    brings: tuple[str, ...] = ("learner/*/policy_loss", "learner/*/q_*", "learner/*/alpha")

    def check(self, config: RunConfig) -> None:
        """Check that actions are differentiable, and that this learner supports all settings."""
        train: Any = config.train
        batch, buffer = train.batch_size, train.sac.buffer
        for key, valid, wanted, value in (
            ("scenario", not config.scenario.kind.board, "actions that are numbers (Box)", config.scenario.name),
            ("model.head", config.model.head == HEAD, HEAD, config.model.head),
            ("model.name", config.model.name == "mlp", "mlp", config.model.name),
            ("model.normalise", not config.model.normalise, "false", config.model.normalise),
            ("model.scale_values", not config.model.scale_values, "false", config.model.scale_values),
            ("model.norm", config.model.norm == "none", "none", config.model.norm),
            ("train.warm_up", not train.warm_up, "0", train.warm_up),
            ("train.time_limits", train.time_limits == "bootstrap", "bootstrap", train.time_limits),
            ("train.sac.buffer", buffer >= batch, f"at least a batch of {batch} steps", buffer),
            ("train.minibatch_size", train.minibatch <= buffer, f"at most sac.buffer={buffer}", train.minibatch),
            ("cluster.num_learners", config.cluster.num_learners == 0, "0", config.cluster.num_learners),
        ):
            config.require(valid, key, f"{wanted} with train={train.trainer}", value)
        learns = self.gradient_steps(train, batch) > 0
        config.require(learns, "train.sac.updates_per_step", f"a gradient step for a batch of {batch} steps")

    def gradient_steps(self, train: Any, rows: int) -> int:  # noqa: ARG002 - it draws from all kept steps
        """Return the gradient steps of an update."""
        steps: float = train.batch_size * train.sac.updates_per_step
        return round(steps)

    def learns_from(self, train: Any) -> int:
        """Return the environment steps that are played before policy and critics learn."""
        return int(train.sac.learning_starts)

    def describe(self, config: RunConfig, threads: str, games: str) -> list[str]:
        """Return lines of the preflight."""
        train: Any = config.train
        sampling, _ = super().describe(config, threads, games)
        steps = f"{self.gradient_steps(train, train.batch_size):,} gradient steps a batch"
        return [sampling, f"{threads}, {steps} on {train.minibatch} of {train.sac.buffer:,} kept steps"]

    def recomputes(self, config: RunConfig) -> bool:  # noqa: ARG002
        """Return true: paths hold the next observation of each step."""
        return True

    def updater(self, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, **options: Any) -> Updater:  # noqa: ARG002
        """Return the learner from replayed steps."""
        from multigrid_rl.offpolicy.sac import Sac

        assert isinstance(config.train, SacTrain)
        return Sac(networks, config.train, config.seed, options["device"])


METRICS = MetricGroup(
    {
        "learner/<module>/q_loss": ("squared error of both critics, sum, mean over the iteration", "loss"),
        "learner/<module>/q_mean": ("the lower critic's value of the policy's own actions, mean", "return"),
        "learner/<module>/alpha": ("weight of the entropy, added to the reward", "weight"),
    }
)
SAC = SacTrainer()
