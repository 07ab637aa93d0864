"""Behaviour cloning in place of PPO: learns from recorded steps and is measured by play-outs."""

import math
import time
from typing import Any

from multigrid_rl.imitation.cloning import play_out
from multigrid_rl.imitation.dagger import Beta, LabellingCollector
from multigrid_rl.rllib.algorithm import BatchPPO, learner_metrics
from multigrid_rl.runs.players import player_in_place_of
from multigrid_rl.runs.tracker import episode_metrics
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import EpisodeTable


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
        before, start = self.env_steps, time.perf_counter()
        facts = self._label()
        began = time.perf_counter()
        self.env_steps += self.config.train_batch_size
        results = self.ask("learn", position=before, after=self.env_steps)[0]
        learned = time.perf_counter()
        self.policy_updates += 1
        self.gradient_steps += int(max(results[name]["gradient_steps"] for name in self.sent_weights))
        self.send_weights()
        sent = time.perf_counter()
        self.latest = {**learner_metrics(results), **facts}
        self.finished = None
        options = self.config.env_config["cloning"]
        if self.env_steps // options.play_every > before // options.play_every:
            self._play()
        spent = {"learn": learned - began, "sync": sent - learned, "sample": time.perf_counter() - sent + began - start}
        self.latest |= {f"timing/{part}_s": seconds for part, seconds in spent.items()}

    def _label(self) -> dict[str, float]:
        """Collect more labelled steps and return metrics; cloning has only what was recorded."""
        return {}

    def last_report(self) -> dict[str, float]:
        """Return lengths and returns of what was learned last: of a play-out of its own, which changes no state."""
        if self.finished is None and (episodes := self._play_out()[0]).episodes:
            return episode_metrics(episodes, self.stages[0].factory.specs)
        return super().last_report()

    def _play_out(self) -> tuple[EpisodeTable, dict[str, float]]:
        """Play fresh episodes with what was learned; returns them and the entropy by module."""
        stage, settings = self.stages[0], self.config.env_config
        return play_out(
            stage.factory,
            {name: self.env_runner.module[name].net for name in stage.factory.specs.modules},
            stage.scenario.report_episodes,
            num_envs=settings["num_envs"],
            first=self.policy_updates * settings["num_envs"],
            seed=settings["seed"],
            bound=settings["bound"],
        )

    def _play(self) -> None:
        """Play fresh episodes, and measure the loss on held-out data."""
        self.finished, entropies = self._play_out()
        self.latest |= {f"entropy/{module}": value for module, value in entropies.items()}
        losses = self.ask("held_out_losses")[0]
        self.latest |= {f"learner/{module}/held_out_loss": loss for module, loss in losses.items()}
        if losses:
            mean = sum(losses.values()) / len(losses)
            self.since_lowest = 0 if mean < self.lowest else self.since_lowest + 1
            self.lowest = min(mean, self.lowest)
            self._look_for_plateau()

    def _look_for_plateau(self) -> None:
        patience = self.config.env_config["cloning"].patience
        self.plateau = patience is not None and self.since_lowest >= patience

    def run_state(self) -> dict[str, Any]:
        """Return what a run remembers beside RLlib's own state, the lowest loss included."""
        return {**super().run_state(), "lowest": (self.lowest, self.since_lowest)}

    def restore_run(self, path: Any, state: dict[str, Any]) -> bool:
        """Go on from a checkpoint; see ``TrackedPPO.restore_run``."""
        self.lowest, self.since_lowest = state["lowest"]
        self._look_for_plateau()
        return super().restore_run(path, state)


class DaggerPPO(CloningPPO):
    """Plays ``train.batch_size`` steps in each iteration, has an expert label them, and learns from all labels."""

    def setup(self, config: Any) -> None:
        """Build runner and learner, and what the learner and the expert play."""
        super().setup(config)
        settings, run = self.config.env_config, self.config.env_config["run"]
        factory, options = self.stages[0].factory, run.train.dagger
        self._beta = Beta(options.schedule, options.rounds, options.base)
        experts = {agent.name: player_in_place_of(agent, options.expert, run) for agent in factory.specs.agents}
        self._experts = {name: row.sha256 for name, row in experts.items()}
        self._collector = LabellingCollector(
            factory.build(settings["num_envs"], 0),
            factory.specs,
            {name: self.env_runner.module[name].net for name in factory.specs.modules},
            seed=run.seed,
            first=0,
            steps=settings["num_steps"],
            bound=settings["bound"],
            experts={name: row.player for name, row in experts.items()},
        )

    def _label(self) -> dict[str, float]:
        self._collector.beta = self._beta.at(self.policy_updates)
        self._collector.collect()
        self._collector.env.drain_episodes()  # partly the expert's, so no measure of the learner
        labels = self.ask("add", labelled=self._collector.labelled())[0]
        return {"dagger/beta": self._collector.beta, "dagger/labels": float(labels)}

    def run_state(self) -> dict[str, Any]:
        """Return what a run remembers beside RLlib's own state, and the experts' sha256."""
        return {**super().run_state(), "experts": self._experts}

    def restore_run(self, path: Any, state: dict[str, Any]) -> bool:
        """Go on from a checkpoint; see ``TrackedPPO.restore_run``. Raises ``ConfigError`` for another expert."""
        if state["experts"] != self._experts:
            wanted = f"the player of sha256 {', '.join(map(str, state['experts'].values()))}, as before"
            raise ConfigError(expected("expert", wanted, ", ".join(map(str, self._experts.values()))))
        return super().restore_run(path, state)

    def games_state(self) -> dict[int, Any]:
        """State of the games that the expert labels."""
        return {0: self._collector.get_state()}

    def go_on(self, games: dict[int, Any], env_runners: int) -> bool:  # noqa: ARG002
        """Take up the games where they stood."""
        self.ask("schedule", env_steps=self.env_steps)
        self.send_weights()
        self._collector.set_state(games[0])
        return True
