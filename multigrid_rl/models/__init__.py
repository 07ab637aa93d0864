"""Networks in plain torch: the reference of what ``fast`` compiles. No ray."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Generator


class Layout(NamedTuple):
    """Inputs of a network's constructor: the only argument of an entry of ``tables.NETWORKS``.

    A network without memory has a ``state_size`` of 0: observations (B, D) in, outputs (B, K) and values (B,) out; and
    ``logits`` for a player, only the outputs. One with memory: see ``models.recurrent``.
    """

    name: str
    observation: Sequence[int] | int  # number of values of each of D tokens that the actor reads; length D of a vector
    outputs: int  # K of the policy: logits, or means of a Gaussian
    hidden: tuple[int, ...]  # units of each hidden layer
    activation: str
    generator: Generator  # source of the initial weights: nothing else may draw from it
    central: Sequence[int] = ()  # number of values of each token that only the critic reads (CTDE), after the others
    log_std: float | None = None  # of a Gaussian at the start, appended to the means; None: outputs are logits
    normalise: bool = False  # put a normaliser of observations before the first layer
    layer_norm: bool = False  # normalise each hidden layer before its activation
    legal: int = 0  # so many numbers at the end of a vector say which choices are legal: others have no probability
    image: Sequence[int] = ()  # height, width and channels of the image that a vector begins with
