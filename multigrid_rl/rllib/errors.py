"""What can end a run that was well asked for; each message is one line."""

from __future__ import annotations

from ray.exceptions import RayError, RayTaskError

from multigrid_rl.types import RunError

__all__ = [
    "DivergedError",
    "LearnerError",
    "RayError",
    "RunError",
    "RunnerError",
    "StorageError",
    "WeightsError",
    "reason_of",
]


class RunnerError(RunError):
    """Env runners failed while they played, or none is left."""


class WeightsError(RunError):
    """An env runner played with other weights than the learner sent."""


class LearnerError(RunError):
    """A learner process failed or was lost."""


class DivergedError(RunError):
    """Weights are not finite any more, or nothing was learned for many iterations in a row."""


class StorageError(RunError):
    """The run's folder could not be written."""


def reason_of(error: BaseException) -> str:
    """The reason inside an error of Ray's, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not isinstance(error, RayTaskError):
        return lines[0] if lines else type(error).__name__
    # The error of the other process, if it could travel, stands inside; its text ends with what was raised.
    inner = error.cause
    return lines[-1] if inner is None else f"{type(inner).__name__}: {' '.join(str(inner).split())}"
