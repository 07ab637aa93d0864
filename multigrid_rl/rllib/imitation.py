"""Cloning in the place of playing and learning: recorded steps are learned from, play-outs say how well it plays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from multigrid_rl.learn.cloning import play_out
from multigrid_rl.rllib.algorithm import BatchPPO, learner_metrics
from multigrid_rl.rllib.learner import BatchLearner


class CloningPPO(BatchPPO):
    """Learns ``train.batch_size`` recorded steps in each iteration, which count as its environment steps.

    Whenever ``play_every`` of them were learned from, it plays fresh episodes: these are its finished episodes.

    Attributes:
        lowest: smallest loss on held-out episodes so far, mean over modules.
        since_lowest: play-outs since then.
    """

    def setup(self, config: Any) -> None:
        """Build runner and learner, which reads what was recorded."""
        self.lowest, self.since_lowest = math.inf, 0
        super().setup(config)

    def training_step(self) -> None:
        """Learn from the next recorded steps; play, if it is time."""
        began, before = time.perf_counter(), self.env_steps
        told = self._ask(clone, position=before)
        learned = time.perf_counter()
        self.env_steps += self.config.train_batch_size
        self.policy_updates += 1
        self.gradient_steps += int(max(told[name]["gradient_steps"] for name in self.sent_weights))
        self.send_weights()
        sent = time.perf_counter()
        self.latest = learner_metrics(told)
        self.finished = None
        options = self.config.env_config["cloning"]
        if self.env_steps // options.play_every > before // options.play_every:
            self._play(options.patience)
        spent = {"learn": learned - began, "sync": sent - learned, "sample": time.perf_counter() - sent}
        self.latest |= {f"timing/{part}_s": seconds for part, seconds in spent.items()}

    def _play(self, patience: int | None) -> None:
        """Play fresh episodes with what was learned, and look at the loss on what was not learned from."""
        stage, settings = self.stages[0], self.config.env_config
        self.finished, entropies = play_out(
            stage.factory,
            {name: self.env_runner.module[name].net for name in stage.factory.specs.modules},
            stage.scenario.report_episodes,
            num_envs=settings["num_envs"],
            first=self.policy_updates * settings["num_envs"],
            seed=self.config.seed or 0,
            bound=settings["bound"],
        )
        self.latest |= {f"entropy/{module}": value for module, value in entropies.items()}
        losses = self._ask(held_out_losses)
        self.latest |= {f"learner/{module}/held_out_loss": loss for module, loss in losses.items()}
        if losses:
            mean = sum(losses.values()) / len(losses)
            self.since_lowest = 0 if mean < self.lowest else self.since_lowest + 1
            self.lowest = min(mean, self.lowest)
            self.plateau = patience is not None and self.since_lowest >= patience

    def _ask(self, what: Callable[..., Any], **arguments: Any) -> Any:
        """Let the one learner do something and return what it says."""
        with self.learning():
            (answer,) = self.learner_group.foreach_learner(what, **arguments)
            if not answer.ok:
                raise answer.get()  # an error, too, is got and not raised
        return answer.get()

    def run_state(self) -> dict[str, Any]:
        """Return what a run remembers beside RLlib's own state, the lowest loss included."""
        return {**super().run_state(), "lowest": (self.lowest, self.since_lowest)}

    def restore_run(self, path: Any, state: dict[str, Any]) -> bool:
        """Go on from a checkpoint; see ``TrackedPPO.restore_run``."""
        self.lowest, self.since_lowest = state["lowest"]
        return super().restore_run(path, state)


def clone(learner: BatchLearner, position: int) -> dict[str, dict[str, float]]:
    """Let a learner learn the recorded steps from ``position`` on; for ``LearnerGroup.foreach_learner``."""
    told: dict[str, dict[str, float]] = learner.our_update.learn(position)
    return told


def held_out_losses(learner: BatchLearner) -> dict[str, float]:
    """Return a learner's losses on held-out episodes, by module."""
    losses: dict[str, float] = learner.our_update.held_out_losses()
    return losses
