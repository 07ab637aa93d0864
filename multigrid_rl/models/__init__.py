"""Networks in plain torch: the reference of what ``fast`` compiles. No ray."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Generator


class Layout(NamedTuple):
    """What a network is built from; an entry of ``tables.NETWORKS`` names the function that does so."""

    name: str
    observation: Sequence[int] | int  # number of values of each token that the actor reads, or length of a vector
    outputs: int  # of the policy: logits, or means of a Gaussian
    hidden: tuple[int, ...]
    activation: str
    generator: Generator  # source of the initial weights: nothing else may draw from it
    central: Sequence[int] = ()  # number of values of each token that only the critic reads
    log_std: float | None = None  # of a Gaussian at the start, appended to the means; None: outputs are logits
    normalise: bool = False
    layer_norm: bool = False
