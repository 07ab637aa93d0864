"""Schemas of a network, for configurations and cards of frozen players, and of keys of an update.

Keys of an update here have other names in RLlib: schedules by points, bounds, values of one network.
"""

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from multigrid_rl.config.scenario import Part, validated
from multigrid_rl.tables import HEADS, NETWORKS, Network, entries, find, installed
from multigrid_rl.text import expected, unknown
from multigrid_rl.types import Schedule

#: Normalisations between a hidden layer and its activation.
NORMS = ("none", "layer")
MAX_HEAD_SIZE = 1000
#: Largest network, in a run and in a frozen player's card.
MAX_UNITS = 4096
MAX_LAYERS = 8
#: Weights of the log-probability of an action, in the order of equation 1 of Schulman et al. 2016
#: (https://arxiv.org/abs/1506.02438): formulas in ``learn.advantages``.
PSI = ("total_reward", "future_return", "baselined_return", "q", "gae", "td")
#: Weights that need no value network.
WITHOUT_VALUES = ("total_reward", "future_return")
#: Keys of ``train`` that ``train.modules`` may set for a single network.
MODULE_KEYS = (
    "lr", "lr_final", "lr_schedule", "gamma", "lam", "clip", "clip_final", "vf_coef", "grad_clip", "target_kl",
    "entropy_coef", "entropy_final", "entropy_decay", "entropy_schedule", "kl_coef", "kl_target",
)  # fmt: skip
Points = tuple[tuple[float, float], ...]
#: Entry of a user's network: what is known before it is built.
_USER_NETWORK = Network("", central=True, activations=None)


def network_entry(name: object) -> Network | None:
    """Return the entry of a network by name or ``module:Class``; ``None`` for an unknown name."""
    if not isinstance(name, str):
        return None
    if ":" in name or name in NETWORKS:
        return NETWORKS.get(name, _USER_NETWORK)
    plugins = installed("networks")
    return find(plugins, name) if name in plugins else None


def networks_with(feature: str) -> str:
    """Return the names of the networks with a feature of :class:`Network`, as ``mlp, gru or lstm``."""
    names = [name for name, entry in NETWORKS.items() if getattr(entry, feature)]
    return " or ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


class ModelConfig(Part):
    """The network."""

    name: str
    """mlp, embedding, cnn, attention, gru, lstm, or module:Class of your own. Same as model=..."""
    hidden: tuple[int, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    """units of each layer, in policy and values alike; of a network with memory, one size. More: can represent more,
    slower"""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """activation of hidden layers: tanh or relu; on vectors elu or silu, too"""
    norm: Literal["none", "layer"] = "none"
    """none, or layer: normalise each hidden layer before its activation (mlp on vectors)"""
    normalise: bool = False
    """true: shift and scale observations by their running mean and deviation, kept with the weights (on vectors)"""
    scale_values: bool = False
    """true: learn values in units of the standard deviation of their targets (mlp on vectors)"""
    bound: Literal["clip", "tanh", "clip3"] | None = None
    """how samples of a Gaussian become bounded actions: clip, tanh, or clip3 (clip to +-3, stretch that to the bounds).
    null: clip where bounds lie within +-3 and well to both sides of 0, clip3 elsewhere"""
    log_std: float = Field(default=0.0, ge=-5, le=2)
    """logarithm of a Gaussian's standard deviation at the start. Higher: explores further"""
    head: str | None = None
    """what outputs mean over bounded numbers: gaussian, tanh-gaussian (squashed, with deviations that depend on the
    state), deterministic, mixture, bins or diffusion. null: gaussian; categorical for choices"""
    head_size: int | None = Field(default=None, ge=2, le=MAX_HEAD_SIZE)
    """components of a mixture, values of each number (bins), steps of a diffusion. null: 5, 20, 10. More: finer,
    slower"""

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: Any) -> Any:
        # A card must record the size, since the default may change later.
        head = values.get("head") if isinstance(values, dict) else None
        if isinstance(head, str) and head in HEADS and values.get("head_size") is None:
            return {**values, "head_size": HEADS[head].size}
        return values

    @model_validator(mode="after")
    def _head_fits(self) -> "ModelConfig":
        if self.head_size is not None and (self.head is None or HEADS[self.head].size is None):
            raise ValueError(expected("head_size", f"null with head={self.head or 'null'}", self.head_size))
        if self.bound not in (None, "clip") and self.head not in (None, "gaussian"):
            raise ValueError(expected("bound", f"clip with head={self.head}", self.bound))
        return self

    @property
    def entry(self) -> Network:
        """The entry of the network in ``tables.NETWORKS``, or that of a user's network."""
        return network_entry(self.name) or _USER_NETWORK

    @property
    def recurrent(self) -> bool:
        """Whether the network has memory."""
        return self.entry.memory

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if network_entry(value) is None:
            wanted = "{}, or module:Class of a network of your own"
            raise ValueError(unknown("", value, entries("networks"), wanted).removeprefix(": "))
        return value

    @field_validator("head")
    @classmethod
    def _check_head(cls, value: str | None) -> str | None:
        if value is not None and value not in HEADS:
            raise ValueError(f"expected {', '.join(HEADS)}")
        return value

    @field_validator("hidden")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= units <= MAX_UNITS for units in value):
            raise ValueError(f"expected at least 1 unit and at most {MAX_UNITS} in each layer")
        return value


class UpdateKeys(Part):
    """Bounds and schedules of an update, and values of single networks."""

    lr_schedule: tuple[tuple[float, NonNegativeFloat], ...] | None = None
    """Adam step size by environment steps, with lines in between: [[0, 0.001], [50_000, 0.0003], [200_000, 0]]. null:
    by lr and lr_final"""
    entropy_schedule: Points | None = None
    """weight of the entropy bonus by environment steps, likewise. Below 0: less noise, for the end of a run. null: by
    entropy_coef, entropy_final and entropy_decay"""
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
        if points is not None and not rising:
            raise ValueError(f"expected points [[0, a], [n, b], ...] with rising steps, got {points}")
        return points

    @model_validator(mode="after")
    def _check_modules(self) -> "UpdateKeys":
        for module, values in self.modules.items():
            for key in values:
                if key not in MODULE_KEYS:
                    raise ValueError(unknown(f"modules.{module}", key, MODULE_KEYS))
            self.of(module)
        return self

    def of(self, module: str) -> Any:
        """Return the settings of one network. Raises ``ValueError``."""
        if module not in self.modules:
            return self
        return validated(type(self), {**self.model_dump(), **self.modules[module], "modules": {}}, f"modules.{module}")

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Values that change with environment steps: step size, weight of the entropy bonus, clip of the ratio."""
        keys: Any = self
        return {
            "lr": _schedule(keys.lr, keys.lr_final, keys.until, keys.lr_schedule),
            "entropy_coef": _schedule(keys.entropy_coef, keys.entropy_final, keys.entropy_decay, keys.entropy_schedule),
            "clip": _schedule(keys.clip, keys.clip_final, keys.until),
        }


def _schedule(start: float, end: float | None, steps: int, points: Points | None = None) -> Schedule:
    if not points:
        return Schedule(start, start if end is None else end, steps)
    (_, first), (last, final) = points[0], points[-1]
    return Schedule(first, final, int(last), tuple((int(step), value) for step, value in points[1:-1]))


def constant(schedule: Schedule) -> bool:
    """Return whether a schedule never changes."""
    return all(value == schedule.start for value in (schedule.end, *(value for _, value in schedule.between)))
