"""Keys of an update that RLlib's users know by other names: schedules by points, bounds, values of one network."""

from itertools import pairwise
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from multigrid_rl.config.scenario import Part
from multigrid_rl.text import first_error, unknown
from multigrid_rl.types import Schedule

#: What the log-probability of an action is weighed by, as numbered in equation 1 of Schulman et al. 2016
#: (https://arxiv.org/abs/1506.02438): formulas in ``learn.advantages``.
PSI = ("total_reward", "future_return", "baselined_return", "q", "gae", "td")
#: Those that read no value network.
WITHOUT_VALUES = ("total_reward", "future_return")
#: Keys of ``train`` that a network may have values of its own of.
OF_MODULES = (
    "lr", "lr_final", "lr_schedule", "gamma", "lam", "clip", "clip_final", "vf_coef", "grad_clip", "target_kl",
    "entropy_coef", "entropy_final", "entropy_decay", "entropy_schedule", "kl_coef", "kl_target",
)  # fmt: skip
Points = tuple[tuple[float, float], ...]


class UpdateKeys(Part):
    """Bounds and schedules of an update, and what differs between networks."""

    lr_schedule: Points | None = None
    """Adam step size by environment steps, with lines in between: [[0, 0.001], [50_000, 0.0003], [200_000, 0]]. null:
    by lr and lr_final"""
    entropy_schedule: Points | None = None
    """weight of the entropy bonus by environment steps, likewise. null: by entropy_coef, entropy_final and
    entropy_decay"""
    vf_clip: float | None = Field(default=None, gt=0)
    """largest value loss of one step: what is larger has no gradient (RLlib's vf_clip_param). null: none"""
    kl_coef: float | None = Field(default=None, ge=0)
    """weight of a penalty on the KL divergence from the policy that played, at the start; it then follows kl_target.
    null: no penalty"""
    kl_target: float = Field(default=0.01, gt=0)
    """after an update that has moved the policy by more than twice this divergence kl_coef is multiplied by 1.5, by
    less than half of it with 0.5"""
    modules: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """values of single networks for keys of train: {red_0: {lr: 0.001, gamma: 0.99, entropy_coef: 0.01}}"""

    @field_validator("lr_schedule", "entropy_schedule")
    @classmethod
    def _check_points(cls, points: Points | None) -> Points | None:
        steps = [step for step, _ in points or ()]
        rising = steps[:1] == [0] and all(before <= after for before, after in pairwise(steps))
        if points is not None and (not rising or any(value < 0 for _, value in points)):
            raise ValueError(
                f"expected points [[0, a], [n, b], ...] with rising steps and no value below 0, got {points}"
            )
        return points

    @model_validator(mode="after")
    def _check_modules(self) -> "UpdateKeys":
        for module, values in self.modules.items():
            for key in values:
                if key not in OF_MODULES:
                    raise ValueError(unknown(f"modules.{module}", key, OF_MODULES))
            self.of(module)
        return self

    def of(self, module: str) -> Any:
        """Return the settings of one network. Raises ``ValueError``."""
        if module not in self.modules:
            return self
        try:
            return type(self).model_validate({**self.model_dump(), **self.modules[module], "modules": {}})
        except ValidationError as error:
            raise ValueError(first_error(error, f"modules.{module}")) from error

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What changes with the environment steps played: step size, weight of the entropy bonus, clip of the ratio."""
        own: Any = self
        return {
            "lr": _schedule(own.lr, own.lr_final, own.until, own.lr_schedule),
            "entropy_coef": _schedule(own.entropy_coef, own.entropy_final, own.entropy_decay, own.entropy_schedule),
            "clip": _schedule(own.clip, own.clip_final, own.until),
        }


def _schedule(start: float, end: float | None, steps: int, points: Points | None = None) -> Schedule:
    if not points:
        return Schedule(start, start if end is None else end, steps)
    (_, first), (last, final) = points[0], points[-1]
    return Schedule(first, final, int(last), tuple((int(step), value) for step, value in points[1:-1]))


def constant(schedule: Schedule) -> bool:
    """Return whether a schedule never changes."""
    return all(value == schedule.start for value in (schedule.end, *(value for _, value in schedule.between)))
