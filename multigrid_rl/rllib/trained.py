"""What the training loop knows of an algorithm, whichever way its experience comes."""

from __future__ import annotations

import tempfile
from typing import Any

from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE

from multigrid_rl.clock import Clock
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.types import EpisodeTable


class Trained(PPO):
    """PPO that counts and tells what it did; ``train.runner`` says which of its kinds a run has.

    Attributes:
        env_steps: environment steps so far.
        policy_updates: iterations so far.
        gradient_steps: minibatch steps so far, per module.
        latest: what the last iteration measured, by metric name.
        finished: episodes that finished in the last iteration.
        keeper: watches the gates; made by the gate callback, like the clock.
        clock: seconds spent outside of iterations, by part.
    """

    keeper: GateKeeper
    clock: Clock

    def setup(self, config: Any) -> None:
        """Build runners and learner."""
        self.env_steps = 0
        self.policy_updates = 0
        self.gradient_steps = 0
        self.latest: dict[str, float] = {}
        self.finished: EpisodeTable | None = None
        super().setup(config)

    def learner_weights(self) -> dict[str, dict[str, Any]]:
        """The learner's weights, by module."""
        state = self.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        modules: dict[str, dict[str, Any]] = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]
        return modules

    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the learner's weights, by module."""
        return {module: fingerprint(weights) for module, weights in self.learner_weights().items()}

    def _setup_logdir(self) -> None:
        # Outside Tune, Ray would leave a folder in the user's home for every run.
        self._scratch = None if self._storage else tempfile.TemporaryDirectory(prefix="multigrid-rl-")
        if self._scratch is None:
            super()._setup_logdir()
        else:
            self._logdir = self._scratch.name

    def cleanup(self) -> None:
        """Stop runners and learner, remove what was temporary."""
        super().cleanup()
        if self._scratch is not None:
            self._scratch.cleanup()
