"""A trainer: its options and checks, its sampler and its updater. This one is PPO's, A2C's and VPG's.

An iteration is :meth:`Sampler.sample`, the learner's ``learn``, :meth:`Sampler.set_weights`; see ``training.run``.

``tables.TRAINERS`` names them. Adding one is an entry there and an object of a class derived from :class:`Trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from multigrid_rl.config.schema import RunConfig, TrainConfig
from multigrid_rl.tables import HEADS, TRAINERS, loaded
from multigrid_rl.types import EnvFactory, EpisodeTable, MultiAgentSpec

if TYPE_CHECKING:
    from multigrid_rl.learn.batches import Experience

#: Arrays by name, by module.
Weights = dict[str, dict[str, Any]]
#: Numbers by name.
Metrics = dict[str, float]
#: Called with each row of a run; a true answer ends it after this iteration, with a checkpoint.
RowCallback = Callable[[dict[str, Any]], object]


class Sampler(Protocol):
    """Plays with the learner's weights. A subclass needs only the first two methods.

    Attributes:
        env_runners: processes that played in the last iteration.
        remote: processes that play for the driver; 0: it plays itself.
        restarts: processes that were lost so far, and replaced.
    """

    env_runners: int = 1
    remote: int = 0
    restarts: int = 0

    def sample(self) -> list[Experience]:
        """Return experience with the current weights, an entry for each process. Raises ``RunError``."""

    def set_weights(self, weights: Weights) -> None:
        """Play with these weights from now on."""

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Return the episodes by which gates judge an iteration, and metrics of them; called once in each.

        Weights are those after the update: a sampler that judges them by separate episodes plays these here.
        """
        return EpisodeTable.concatenate([part.episodes for part in experience if part.episodes is not None]), {}

    def last_episodes(self) -> EpisodeTable | None:
        """Return episodes for a verdict where the last iteration had none; ``None``: those of the newest report."""
        return None

    def begin(self, factory: EnvFactory, stage: int) -> None:  # noqa: ARG002
        """Play the games of another stage of a curriculum from now on, from fresh ones on."""
        return

    def set_opponents(self, factory: EnvFactory, roster: Any) -> None:  # noqa: ARG002
        """Set a league's players: ``roster`` where games are under way, ``factory`` for processes that start later."""
        return

    def get_state(self) -> dict[str, Any]:
        """Return the state for a resumed run: ``games`` under way, by number of their process."""
        return {"games": {}}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:  # noqa: ARG002 - for subclasses
        """Continue from a run's state with the games of ``factory``; false where fresh ones are played."""
        return True


class Updater(Protocol):
    """Changes the networks of a learner process; ``Trainer.updater`` returns it."""

    optimizers: Any  # lists of ``torch.optim.Optimizer`` by module, whose states checkpoints keep

    def learn(self, batches: Any, env_steps: int, paths: Any) -> dict[str, Metrics]:
        """Learn from a ``Batch`` for each module; ``paths``: theirs where advantages are recomputed, else empty."""

    def begin_with(self, weights: Mapping[str, Mapping[str, Any]], rows: int) -> None:
        """Begin with a player's weights; their normalisers count as measured from ``rows`` observations."""

    def schedule(self, env_steps: int) -> None:
        """Set values that change with the environment steps, such as step sizes."""

    def get_state(self) -> dict[str, Any]:
        """Return the state of the next update, without weights and optimisers."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_state`."""


class Trainer:
    """Learns from the rewards of play; other trainers override its methods.

    Attributes:
        settings: schema of ``train``, with the trainer's sections.
        learns_values: a value network is trained by rewards; else gates on values are left out.
        reads_data: learns from recorded play, the run's ``data``.
        replays: minibatches are random steps of all that it keeps, not parts of a batch.
        unread: keys of ``train`` that it does not read: no override may set them.
        brings: patterns of the metrics that it reports and that other trainers may lack.
        counts: what a step of the budget is, as (participle, adjective).
    """

    settings: type[TrainConfig] = TrainConfig
    learns_values = True
    reads_data = replays = False
    unread: tuple[str, ...] = ()
    brings: tuple[str, ...] = (
        "approx_kl/*", "approx_kl_k1/*", "clip_fraction/*",
        "learner/*/policy_loss", "learner/*/vf_loss", "learner/*/entropy_coef",
    )  # fmt: skip
    counts = ("played", "environment")

    def check(self, config: RunConfig) -> None:
        """Raise ``ConfigError`` for settings that this trainer does not support."""
        heads = [head for head, entry in HEADS.items() if entry.probability]
        condition = f"with train.objective={config.train.objective}, as actions need a probability"
        config.require(config.model.head in (None, *heads), "model.head", f"{', '.join(heads)} or null {condition}")

    def load(self, config: RunConfig, specs: MultiAgentSpec, before: Path | None) -> None:
        """Check files that the run needs; ``before``: folder of the run to resume. Raises ``ValueError``."""

    def describe(self, config: RunConfig, threads: str, games: str) -> list[str]:
        """Return lines of the preflight: sampling and learning; ``threads`` and ``games`` describe their means."""
        train, runners = config.train, config.cluster.runners
        who = f"{runners} remote env runner(s), 1 torch thread each" if runners else "the driver process, 0 env runners"
        batch = f"{train.num_envs} {games} x {train.num_steps} steps = {train.batch_size} steps a batch"
        return [f"sampling: {who}; {batch}", f"{threads}, {train.epochs} epochs, minibatches of {train.minibatch}"]

    def gradient_steps(self, train: TrainConfig, rows: int) -> int:
        """Return the gradient steps of an update of a network with ``rows`` steps in a batch."""
        part = rows / train.minibatch  # where the last minibatch of a pass is not full, the next pass fills it
        steps = train.passes * math.ceil(part) if train.recompute else math.ceil(train.passes * part)
        return steps + math.ceil((train.v_iters or 0) * part)

    def learns_from(self, train: TrainConfig) -> int:  # noqa: ARG002 - for subclasses
        """Return the environment steps that are played before the first gradient step."""
        return 0

    def facts(self, train: TrainConfig) -> list[tuple[str, str]]:  # noqa: ARG002 - for subclasses
        """Return names and descriptions of training rewards that it adds."""
        return []

    def absent(self, config: RunConfig) -> dict[str, str]:
        """Return patterns of metrics that its rows do not have, with the reason: only other trainers report these."""
        # From the table, so that a trainer from outside is compared with ours, too.
        reporters: dict[str, list[str]] = {}
        for name, trainer in loaded(TRAINERS):
            for pattern in trainer.brings:
                reporters.setdefault(pattern, []).append(name)
        return {
            pattern: f"reported by train={', '.join(names)}, not by train={config.train.trainer}"
            for pattern, names in reporters.items()
            if pattern not in self.brings
        } | ({} if config.train.kl_coef is not None else {"learner/*/kl_*": "reported with train.kl_coef"})

    def recomputes(self, config: RunConfig) -> bool:
        """Return whether it needs the paths of a batch, to recompute advantages."""
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
        """Return the updater of a learner process's ``networks``, such as :class:`~multigrid_rl.learn.update.Update`.

        Args:
            networks: by module, on ``device``.
            action_spaces: by module.
            part: this process's index and how many share every minibatch.
        """
        from multigrid_rl.learn.update import Update
        from multigrid_rl.training.stages import update_config

        options: dict[str, Any] = {"device": device, "part": part, "scale_values": config.model.scale_values}
        return Update(networks, action_spaces, update_config(config), **options)

    def sampler(self, config: RunConfig, stages: Any, networks: Mapping[str, Any]) -> Sampler | None:  # noqa: ARG002
        """Return the driver's sampler that plays with ``networks``, by module; ``None``: RLlib's env runners."""
        return None

    def patience(self, config: RunConfig) -> tuple[str, int | None] | None:  # noqa: ARG002
        """Return a metric of the update, and the number of values without a new low that ends the run."""
        return None

    def beyond_plateau(self, train: TrainConfig) -> TrainConfig:
        """Return the settings of a run that continues after it had stalled."""
        return train


TRAINER = Trainer()
