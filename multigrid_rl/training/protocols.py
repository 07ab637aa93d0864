"""The two halves of training, and the engine that holds them: who samples, who learns.

An iteration is :meth:`Sampler.sample`, :meth:`Learner.learn`, :meth:`Sampler.set_weights`; see ``training.run``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from multigrid_rl.learn.batches import Experience
from multigrid_rl.types import EnvFactory, EpisodeTable

#: Arrays by name, by module.
Weights = dict[str, dict[str, Any]]
#: Numbers by name.
Metrics = dict[str, float]
#: What is called with each row of a run; a true answer ends it after this iteration, with a checkpoint.
RowCallback = Callable[[dict[str, Any]], object]


class Sampler(Protocol):
    """Plays with the learner's weights. Who inherits from it needs the first two methods alone.

    Attributes:
        env_runners: processes that played in the last iteration.
        remote: processes that play beside the driver; 0: it plays itself.
        restarts: processes that were lost so far, and replaced.
    """

    env_runners: int = 1
    remote: int = 0
    restarts: int = 0

    def sample(self) -> list[Experience]:
        """Return what was played with the current weights, an entry for each process. Raises ``RunError``."""
        ...

    def set_weights(self, weights: Weights) -> None:
        """Play with these weights from now on."""
        ...

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Return the episodes that gates judge an iteration by, and what was measured in them; asked once in each.

        Weights are those after the update: who judges them by episodes of their own plays these here.
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
        """Return what a resumed run needs: ``games`` under way, by number of their process."""
        return {"games": {}}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:  # noqa: ARG002 - for those who need it
        """Continue from a run's whole state with the games of ``factory``; false where fresh ones are played."""
        return True


class Updater(Protocol):
    """Changes the networks of a learner process: what ``Trainer.updater`` returns."""

    optimizers: Any  # lists of ``torch.optim.Optimizer`` by module, whose states checkpoints keep

    def learn(self, batches: Any, env_steps: int, paths: Any) -> dict[str, Metrics]:
        """Learn from a ``Batch`` for each module; ``paths``: of them where advantages are counted anew, else empty."""
        ...

    def begin_with(self, weights: Mapping[str, Mapping[str, Any]], rows: int) -> None:
        """Begin with a player's weights; ``rows`` observations are behind their normalisers."""
        ...

    def schedule(self, env_steps: int) -> None:
        """Set what changes with the environment steps, such as step sizes."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what the next update depends on, beside weights and optimisers."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_state`."""
        ...


class Learner(Protocol):
    """Learns from what was sampled."""

    def learn(self, experience: list[Experience], env_steps: int) -> dict[str, Metrics]:
        """Learn once; ``env_steps``: played so far, these included. Returns metrics by module. Raises ``RunError``."""
        ...

    def get_weights(self) -> Weights:
        """Return the weights by module. Raises ``RunError``."""
        ...

    def begin_with(self, weights: Weights, rows: int) -> None:
        """Begin with a player's weights; ``rows`` observations are behind their normalisers."""
        ...

    def schedule(self, env_steps: int) -> None:
        """Set what changes with the environment steps, such as step sizes."""
        ...


class Engine(Protocol):
    """What holds sampler and learner, keeps their state, and takes the iterations of its ``run``."""

    run: Any  # a ``training.run.TrainingRun``, which knows this module
    row: dict[str, Any]  # metrics of the last iteration, by name

    def iterate(self) -> None:
        """Take one iteration of ``run``."""
        ...

    def write(self, folder: Path) -> None:
        """Write weights, optimisers and what updates remember into a new folder. Raises ``OSError``, ``RunError``."""
        ...

    def read(self, folder: Path) -> None:
        """Continue from what :meth:`write` wrote, with values of this run's own configuration."""
        ...
