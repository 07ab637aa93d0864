"""Schema of a network, in configurations and in frozen players' cards: names, sizes, bounds."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from multigrid_rl.config.scenario import Part
from multigrid_rl.text import expected

#: Networks by name: those with memory, those that look at a view cell by cell, all; others are ``module:Class``.
RECURRENT = ("gru", "lstm")
CELL_WISE = ("embedding", "cnn")
NETWORKS = ("mlp", *CELL_WISE, *RECURRENT)
#: What may stand between a hidden layer and its activation.
NORMS = ("none", "layer")
#: What outputs mean over bounded numbers (``models.heads``), with the size that a head has unless another is said:
#: components of a mixture, values of each number, steps of a diffusion.
HEAD_SIZES = {"mixture": 5, "bins": 20, "diffusion": 10}
HEADS = ("gaussian", "deterministic", *HEAD_SIZES)
#: Heads whose actions have no probability: no policy gradient can train them.
WITHOUT_PROBABILITY = ("deterministic", "diffusion")
MAX_HEAD_SIZE = 1000
#: Largest network, in a run and in a frozen player's card.
MAX_UNITS = 4096
MAX_LAYERS = 8


class ModelConfig(Part):
    """The network."""

    name: str
    hidden: tuple[int, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    norm: Literal["none", "layer"] = "none"
    normalise: bool = False
    scale_values: bool = False
    bound: Literal["clip", "tanh", "clip3"] = "clip"
    log_std: float = Field(default=0.0, ge=-5, le=2)
    head: Literal["gaussian", "deterministic", "mixture", "bins", "diffusion"] | None = None
    head_size: int | None = Field(default=None, ge=2, le=MAX_HEAD_SIZE)

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: Any) -> Any:
        # A card must record it, in case the default changes later.
        if isinstance(values, dict) and values.get("head") in HEAD_SIZES and values.get("head_size") is None:
            return {**values, "head_size": HEAD_SIZES[values["head"]]}
        return values

    @model_validator(mode="after")
    def _head_fits(self) -> "ModelConfig":
        sized = self.head in HEAD_SIZES
        if self.head_size is not None and not sized:
            raise ValueError(expected("head_size", f"null with head={self.head or 'null'}", self.head_size))
        if self.bound != "clip" and self.head not in (None, "gaussian"):
            raise ValueError(expected("bound", f"clip with head={self.head}", self.bound))
        return self

    @property
    def recurrent(self) -> bool:
        """Whether the network has memory."""
        return self.name in RECURRENT

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if value not in NETWORKS and ":" not in value:
            raise ValueError(f"expected {', '.join(NETWORKS)}, or module:Class of a network of your own")
        return value

    @field_validator("hidden")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= units <= MAX_UNITS for units in value):
            raise ValueError(f"expected at least 1 unit and at most {MAX_UNITS} in each layer")
        return value
