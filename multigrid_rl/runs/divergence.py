"""Detects divergence: warns at once, and ends the run while a usable checkpoint is left."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from multigrid_rl.runs.checkpoints import newest_good
from multigrid_rl.tables import LOSSES
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError

LOG = logging.getLogger(__name__)
#: Iterations in a row with something that is not finite after which a run ends.
PATIENCE = 10
_QUANTITIES = (
    "entropy/{}",
    "learner/{}/policy_loss",
    *LOSSES,
    "learner/{}/vf_loss",
    "learner/{}/grad_norm",
)
_DROPPED = "learner/{}/dropped_updates"
#: Tensors by name, by module.
Weights = Mapping[str, Mapping[str, Any]]


class DivergedError(RunError):
    """Weights are not finite any more, or nothing was learned for many iterations in a row.

    Attributes:
        by_reward: the training reward was not finite; the step size is not the cause.
    """

    by_reward = False


class Divergence:
    """Watches the learner's metrics; checks weights only where these are not finite.

    Args:
        run: folder of the run, whose newest checkpoint is named.
        objective: what the policy maximises; named where the policy's loss is not finite, if it is one of the user's.
    """

    def __init__(self, run: Path, objective: str = "ppo") -> None:
        self._run = run
        self._objective = objective
        self._warned = False
        self._in_a_row = 0

    def check(self, row: Mapping[str, Any], lost_returns: list[str], weights_now: Callable[[], Weights]) -> None:
        """Take one iteration's row; warns of the first one in which something is not finite.

        Args:
            row: as the tracker made it.
            lost_returns: modules whose returns were not finite though their values were.
            weights_now: gives the learner's weights by module; called where something is not finite alone.

        Raises:
            DivergedError: weights are not finite, or this is the tenth such iteration in a row.
        """
        quantity = next(_not_finite_in(row, lost_returns), None)
        if quantity is None:
            self._in_a_row = 0
            return
        if quantity.endswith("/policy_loss") and ":" in self._objective:
            quantity = f"{quantity} (train.objective={self._objective})"
        self._in_a_row += 1
        steps, weights = row["env_steps"], not_finite(weights_now())
        if not self._warned:
            self._warned = True
            LOG.warning("step %s: %s is not finite", f"{steps:,}", weights or quantity)
        if weights is not None:
            raise diverged(steps, f"{weights} is not finite", self._run)
        if self._in_a_row >= PATIENCE:
            error = diverged(steps, f"{quantity} is not finite in {PATIENCE} iterations in a row", self._run)
            error.by_reward = bool(lost_returns)
            raise error


def _not_finite_in(row: Mapping[str, Any], lost_returns: list[str]) -> Iterator[str]:
    """Yield what is not finite in a row, in words, causes first."""
    # A network that took no part in this iteration has no step size in the row, and its other values have no meaning.
    modules = [name.split("/")[1] for name, value in row.items() if name.endswith("/lr") and value is not None]
    for module in modules:
        if module in lost_returns:
            yield f"the training reward of {module} (train.shaping, train.bonus)"
    for module in modules:
        names = [pattern.format(module) for pattern in _QUANTITIES]
        yield from (name for name in names if name in row and (row[name] is None or not math.isfinite(row[name])))
        if row.get(_DROPPED.format(module)):
            yield names[-1]


def not_finite(weights: Weights) -> str | None:
    """Return which of all modules' weights holds the first value that is not finite; ``None``: all are finite."""
    for module, tensors in weights.items():
        for name, values in tensors.items():
            if not bool(torch.isfinite(torch.as_tensor(values)).all()):
                return f"weight {name} of {module}"
    return None


def diverged(env_steps: int, what: str, run: Path) -> DivergedError:
    """Make the error of a run that diverged; it names the last checkpoint, which has finite weights."""
    try:
        last = f"the last checkpoint with finite weights is {newest_good(run, log=False).path.name}"
    except ConfigError:
        last = "no checkpoint was written before"
    return DivergedError(f"step {env_steps:,}: {what}: the run diverged; {last}")
