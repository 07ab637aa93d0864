"""What a trainer brings: its options, what it refuses, who samples and who learns. This one is PPO's, A2C's and VPG's.

``tables.TRAINERS`` names them. Adding one is an entry there and an object of a class derived from :class:`Trainer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid_rl.config.schema import RunConfig, TrainConfig, trainer_of
from multigrid_rl.tables import HEADS, TRAINERS, has

if TYPE_CHECKING:
    from multigrid_rl.training.protocols import Sampler, Updater
    from multigrid_rl.types import MultiAgentSpec


class Trainer:
    """Learns by the rewards of what is played; others replace what they do in another way.

    Attributes:
        settings: schema of ``train``, with sections of the trainer's own.
        learns_values: a value network is trained by rewards; else gates on values are left out.
        reads_data: learns from recorded play, the run's ``data``.
        brings: patterns of metrics that it reports, and others need not.
        counts: what a step of the budget is, as (participle, adjective).
    """

    settings: type[TrainConfig] = TrainConfig
    learns_values = True
    reads_data = False
    brings: tuple[str, ...] = (
        "approx_kl/*", "approx_kl_k1/*", "clip_fraction/*",
        "learner/*/policy_loss", "learner/*/vf_loss", "learner/*/entropy_coef",
    )  # fmt: skip
    counts = ("played", "environment")

    def check(self, config: RunConfig) -> None:
        """Raise ``ConfigError`` for what does not go together with this trainer."""
        objective = config.train.objective
        able = [head for head, entry in HEADS.items() if entry.probability]
        allowed = f"{', '.join(able)} or null with train.objective={objective}, as actions need a probability"
        config.require(config.model.head in (None, *able), "model.head", allowed)

    def load(self, config: RunConfig, specs: MultiAgentSpec, before: Path | None) -> None:
        """Check files that the run needs; ``before``: folder of the run that goes on. Raises ``ValueError``."""

    def describe(self, config: RunConfig, threads: str, games: str) -> list[str]:
        """Return lines of the preflight: who plays and who computes; ``threads`` and ``games`` say what with."""
        train, runners = config.train, config.cluster.runners
        who = f"{runners} remote env runner(s), 1 torch thread each" if runners else "the driver process, 0 env runners"
        batch = f"{train.num_envs} {games} x {train.num_steps} steps = {train.batch_size} steps a batch"
        return [f"sampling: {who}; {batch}", f"{threads}, {train.epochs} epochs, minibatches of {train.minibatch}"]

    def facts(self, train: TrainConfig) -> list[tuple[str, str]]:  # noqa: ARG002 - for those who need it
        """Return names and descriptions of training rewards that it brings."""
        return []

    def absent(self, config: RunConfig) -> dict[str, str]:
        """Return patterns of metrics that its rows do not have, with the reason: those that others alone bring."""
        # Asked of the table, so that a trainer from outside is compared with ours, too.
        brought: dict[str, list[str]] = {}
        for name in (name for name in TRAINERS if has(TRAINERS, name)):
            for pattern in trainer_of(name).brings:
                brought.setdefault(pattern, []).append(name)
        return {
            pattern: f"reported by train={', '.join(names)}, not by train={config.train.trainer}"
            for pattern, names in brought.items()
            if pattern not in self.brings
        } | ({} if config.train.kl_coef is not None else {"learner/*/kl_*": "reported with train.kl_coef"})

    def recomputes(self, config: RunConfig) -> bool:
        """Return whether it needs the paths of a batch, to count advantages anew."""
        return config.train.recompute

    def updater(
        self,
        config: RunConfig,
        networks: Mapping[str, Any],
        action_spaces: Mapping[str, Any],
        *,
        device: Any,
        part: tuple[int, int],
    ) -> Updater:
        """Return what a learner process updates ``networks`` with, such as :class:`~multigrid_rl.learn.update.Update`.

        Args:
            config: the run.
            networks: by module.
            action_spaces: by module.
            device: of the networks.
            part: this process's index and how many share every minibatch.
        """
        from multigrid_rl.learn.update import Update
        from multigrid_rl.training.stages import update_config

        options: dict[str, Any] = {"device": device, "part": part, "scale_values": config.model.scale_values}
        return Update(networks, action_spaces, update_config(config), **options)

    def sampler(self, config: RunConfig, stages: Any, networks: Mapping[str, Any]) -> Sampler | None:  # noqa: ARG002
        """Return who plays in the driver with ``networks``, by module; ``None``: the engine's env runners."""
        return None

    def patience(self, config: RunConfig) -> tuple[str, int | None] | None:  # noqa: ARG002
        """Return a metric of the update, and after how many values without a new low the run ends."""
        return None

    def beyond_plateau(self, train: TrainConfig) -> TrainConfig:
        """Return the settings of a run that goes on though it had stalled."""
        return train


TRAINER = Trainer()
