"""Action distributions of a policy: sampling, log-probability, entropy and mode.

Sampling works on numpy arrays with one random stream per game, learning on torch tensors.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.jit import kernel
from multigrid_rl.types import UniformSource

Array = NDArray[Any]
#: How a Gaussian draw becomes an action within bounds.
Bound = Literal["clip", "tanh", "clip3"]
BOUNDS: tuple[Bound, ...] = ("clip", "tanh", "clip3")
#: Reach of the draws of an untrained policy, and the largest share of them that a bound may clip.
_REACH, _MAX_CLIPPED_SHARE = 3.0, 0.45
#: Logit of a missing choice: of a component with fewer choices than others, or an illegal one.
#: Finite, as 0 times infinity is NaN.
NO_CHOICE = -1e9
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Draw(NamedTuple):
    """Actions drawn for ``N`` rows, as a batch stores them."""

    actions: Array  # (N, C) choices, small integers, or (N, A) float32 before they are bounded
    logp: NDArray[np.float32]  # (N, C) log-probability, or density, of each component
    entropy: NDArray[np.float32]  # (N, C) in nats


class Distribution(Protocol):
    """A family of distributions over actions.

    Attributes:
        outputs: size of the policy's output.
        components: ``C``, parts of an action, each with its log-probability; eliminated seats are masked.
        width: columns of an action in a batch.
        dtype: of an action in a batch.
    """

    outputs: int
    components: int
    width: int
    dtype: Any

    def draw(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw one action for each row of ``outputs`` (N, outputs) from the row's stream."""

    def mode(self, outputs: NDArray[np.float32]) -> Array:
        """Return the likeliest action (N, width) of each row."""

    def bounded(self, actions: Array) -> Array:
        """Map ``actions`` (N, width) into the environment's bounds."""

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities (B, C) of ``actions`` (B, width)."""

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return entropies (B, C) in nats."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return divergences (B, C) of ``new`` from ``old``, outputs (B, K), in nats."""

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the imitation loss (B,) of each row: the negative log-probability of ``actions`` (B, width)."""
        return self.uncensored_loss(outputs, actions)

    def uncensored_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the same (B,) as if no action had been clipped (``train.cloning.censored=false``)."""
        return -self.log_prob(outputs, actions).sum(1)


@kernel
def draw_choices(
    logits: NDArray[np.float32],
    uniform: NDArray[np.float64],
    weights: NDArray[np.float64],
    actions: NDArray[Any],
    logp: NDArray[np.float32],
    entropy: NDArray[np.float32],
) -> None:
    """Fill ``actions``, ``logp`` and ``entropy`` (N,) as :func:`sample` returns them; ``weights`` (K,) is a buffer."""
    # p_k = e^(l_k - top) / Z; subtracting the largest logit changes no p and keeps exponentials from overflowing. The
    # entropy is then H = log Z - sum p_k (l_k - top), from two sums that the draw needs anyway.
    count = logits.shape[1]
    for n in range(logits.shape[0]):
        top = logits[n, 0]
        for k in range(1, count):
            top = max(top, logits[n, k])
        total = 0.0
        weighted = 0.0
        for k in range(count):
            weights[k] = weight = np.exp(float(logits[n, k] - top))
            total += weight
            weighted += weight * float(logits[n, k] - top)
        log_total = np.log(total)
        entropy[n] = log_total - weighted / total
        # Inverse of the cumulative distribution; the last action also takes the rounding error.
        remaining = uniform[n, 0] * total
        choice = count - 1
        for k in range(count - 1):
            remaining -= weights[k]
            if remaining < 0.0:
                choice = k
                break
        actions[n] = choice
        logp[n] = float(logits[n, choice] - top) - log_total


def choice_type(count: int) -> Any:
    """Return the type of a choice among ``count``: int8, which the board game takes, if it can hold all of them."""
    return np.int8 if count <= 128 else np.int16


def sample(logits: NDArray[np.float32], uniform: NDArray[np.float64]) -> Draw:
    """Draw one of ``K`` choices for each row.

    Args:
        logits: (N, K) float32.
        uniform: (N, 1) numbers in [0, 1).

    Returns:
        Actions (N,) of :func:`choice_type`, log-probabilities (N,), entropies (N,).
    """
    rows = len(logits)
    draw = Draw(np.empty(rows, choice_type(logits.shape[1])), np.empty(rows, np.float32), np.empty(rows, np.float32))
    draw_choices(np.ascontiguousarray(logits), uniform, np.empty(logits.shape[1]), *draw)
    return draw


class Categorical(Distribution):
    """Independent choices given the outputs: one for each seat of a team, or for each part of a ``MultiDiscrete``.

    ``choices``: number of choices of each of the ``C`` components.
    """

    dtype = np.int64

    def __init__(self, choices: tuple[int, ...]) -> None:
        self.choices = choices
        self.components = self.width = len(choices)
        self.outputs = sum(choices)
        self.equal = len(set(choices)) == 1
        largest, first = max(choices), np.cumsum([0, *choices[:-1]])
        columns = [
            [begin + k if k < count else self.outputs for k in range(largest)]
            for begin, count in zip(first, choices, strict=True)
        ]
        self._columns = np.array(columns)

    def logits(self, outputs: Any) -> Any:
        """Return logits (B, C, K) out of ``outputs`` (B, outputs), a numpy array or a tensor."""
        if self.equal:
            return outputs.reshape(len(outputs), self.components, -1)
        if isinstance(outputs, Tensor):
            column = outputs.new_full((len(outputs), 1), NO_CHOICE)
            return torch.cat([outputs, column], dim=1)[:, torch.from_numpy(self._columns)]
        padding = np.full((len(outputs), 1), NO_CHOICE, outputs.dtype)
        return np.concatenate([outputs, padding], axis=1)[:, self._columns]

    def draw(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw one action for each row of ``outputs`` (N, outputs) from the row's stream."""
        logits = self.logits(outputs)
        # Seats of a team take turns with the stream of their game: a game draws the same by itself and among 4096.
        draw = sample(logits.reshape(-1, logits.shape[-1]), rng.uniform(self.components).reshape(-1, 1))
        return Draw(*(column.reshape(len(outputs), self.components) for column in draw))

    def mode(self, outputs: NDArray[np.float32]) -> Array:
        """Return the likeliest action (N, C) of each row."""
        best: Array = self.logits(outputs).argmax(axis=-1)
        return best

    def bounded(self, actions: Array) -> Array:
        """Return ``actions``: every choice is valid."""
        return actions

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities (B, C) of ``actions`` (B, C)."""
        return torch.log_softmax(self.logits(outputs), dim=-1).gather(2, actions.unsqueeze(2)).squeeze(2)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return entropies (B, C) in nats."""
        logp = torch.log_softmax(self.logits(outputs), dim=-1)
        return -(logp.exp() * logp).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return divergences (B, C) of ``new`` from ``old`` in nats."""
        before, after = (torch.log_softmax(self.logits(outputs), dim=-1) for outputs in (old, new))
        return (before.exp() * (before - after)).sum(-1)


class Gaussian(Distribution):
    """A diagonal Gaussian over ``A`` numbers; outputs are ``A`` means, then ``A`` logarithms of standard deviations.

    A batch stores the raw draw and the environment gets the bounded one.

    Args:
        low, high: bounds (A,) of the environment's actions.
        bound: ``clip`` clips the draw to the bounds; ``tanh`` squashes it into them (Haarnoja et al. 2018,
            https://arxiv.org/abs/1801.01290); ``clip3`` clips it to +-3 and rescales that, as ML-Agents does; ``None``:
            ``clip`` where draws of the usual size fill the bounds, ``clip3`` elsewhere.
    """

    components = 1
    dtype = np.float32

    def __init__(self, low: Array, high: Array, bound: Bound | None) -> None:
        self.low, self.high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        with np.errstate(over="ignore"):
            self.finite = bool(np.isfinite(self.high - self.low).all())  # all but ``clip`` scale by this distance
        self.bound = bound or ("clip3" if self.finite and not self.fills_bounds else "clip")
        self.width = len(self.low)
        self.outputs = 2 * self.width

    @property
    def fills_bounds(self) -> bool:
        """Whether draws of mean 0 and deviation 1 fill the bounds, and neither end gets nearly half of them."""
        ends = [*(-self.low).tolist(), *self.high.tolist()]  # draws are symmetric around 0
        within_reach = all(end <= _REACH or math.isinf(end) for end in map(abs, ends))
        return within_reach and all(NormalDist().cdf(-end) <= _MAX_CLIPPED_SHARE for end in ends)

    def draw(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw one action for each row of ``outputs`` (N, 2 A) from the row's stream."""
        mean, log_std = outputs[:, : self.width], outputs[:, self.width :]
        # x = mu + sigma z (the draw can be repeated from z alone): log N(x) = -z^2 / 2 - log sigma - log(2 pi) / 2, and
        # H = log sigma + (1 + log(2 pi)) / 2, each summed over the A independent numbers.
        normal = normal_numbers(rng, self.width)
        actions = mean + np.exp(log_std) * normal
        logp = (-0.5 * normal**2 - log_std - HALF_LOG_2PI).sum(axis=1, keepdims=True)
        entropy = (log_std + 0.5 + HALF_LOG_2PI).sum(axis=1, keepdims=True)
        return Draw(actions.astype(np.float32), logp.astype(np.float32), entropy.astype(np.float32))

    def mode(self, outputs: NDArray[np.float32]) -> Array:
        """Return the mean (N, A) of each row."""
        return outputs[:, : self.width]

    def bounded(self, actions: Array) -> Array:
        """Map ``actions`` (N, A) into the environment's bounds."""
        if self.bound == "clip":
            return np.clip(actions, self.low, self.high)
        # Clipped once more: in float32 low + share * (high - low) may exceed a bound by its last bit.
        share = np.tanh(actions) if self.bound == "tanh" else np.clip(actions, -_REACH, _REACH) / _REACH
        return np.clip(self.low + (share + 1) / 2 * (self.high - self.low), self.low, self.high)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-densities (B, 1) of raw draws ``actions`` (B, A)."""
        # Of the raw draw: the ratio of two policies equals the bounded one's, as the Jacobian of tanh cancels.
        mean, log_std = outputs[:, : self.width], outputs[:, self.width :]
        normal = (actions - mean) * torch.exp(-log_std)
        return (-0.5 * normal.pow(2) - log_std - HALF_LOG_2PI).sum(1, keepdim=True)

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-likelihood (B,) of ``actions`` (B, A), which bounds may have clipped."""
        low, high = (torch.from_numpy(bound).to(actions.device) for bound in (self.low, self.high))
        mean, log_std = outputs[:, : self.width], outputs[:, self.width :]
        if self.bound == "clip3":
            actions, low, high = self._raw(actions), torch.full_like(low, -_REACH), torch.full_like(high, _REACH)
        return -censored(mean, log_std, actions, low, high).sum(1)

    def uncensored_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the same (B,) as if no action had been clipped."""
        return -self.log_prob(outputs, self._raw(actions) if self.bound == "clip3" else actions).sum(1)

    def _raw(self, actions: Tensor) -> Tensor:
        """Return the draws (B, A) that ``clip3`` turns into ``actions``."""
        low, high = (torch.from_numpy(bound).to(actions.device) for bound in (self.low, self.high))
        return (2 * (actions - low) / (high - low) - 1) * _REACH

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return entropies (B, 1) of the raw draw in nats."""
        return (outputs[:, self.width :] + 0.5 + HALF_LOG_2PI).sum(1, keepdim=True)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return divergences (B, 1) between raw draws, of ``new`` from ``old``, in nats."""
        # Of the raw draw, as divergences do not change under a bijection such as tanh.
        (mean, log_std), (new_mean, new_log_std) = ((x[:, : self.width], x[:, self.width :]) for x in (old, new))
        scaled_distance = (torch.exp(2 * log_std) + (mean - new_mean).pow(2)) / (2 * torch.exp(2 * new_log_std))
        return (new_log_std - log_std + scaled_distance - 0.5).sum(1, keepdim=True)


def censored(mean: Tensor, log_std: Tensor, actions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return log-likelihoods of Gaussian draws that were clipped to bounds; shapes broadcast."""
    # Tobin 1958 (https://doi.org/10.2307/1907382): within the bounds the density, at a bound the probability beyond it.
    # A density would grow without limit where an expert is always at the bound, and dominate all other terms.
    normal = (actions - mean) * torch.exp(-log_std)
    log_density = -0.5 * normal.pow(2) - log_std - HALF_LOG_2PI
    log_tail: Tensor = torch.special.log_ndtr(torch.where(actions >= high, -normal, normal))
    return torch.where((actions > low) & (actions < high), log_density, log_tail)


def normal_numbers(rng: UniformSource, columns: int) -> NDArray[np.float32]:
    """Return (N, columns) standard normal numbers from each row's stream."""
    # Box and Muller (https://doi.org/10.1214/aoms/1177706645): a fixed number of uniform ones for each normal one,
    # where rejection would move streams on by different amounts. 1 - u is never 0.
    pairs = (columns + 1) // 2
    uniform = rng.uniform(2 * pairs)
    radius = np.sqrt(-2 * np.log1p(-uniform[:, :pairs]))
    angle = 2 * np.pi * uniform[:, pairs:]
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return numbers[:, :columns].astype(np.float32)


def distribution_of(space: spaces.Space[Any], bound: Bound | None = None, network: Any = None) -> Distribution:
    """Return the distribution over the actions of ``space``: ``Box`` (A,) or ``MultiDiscrete`` (C,).

    A ``network`` with a head (``models.heads``) brings its distribution. Raises ``TypeError``: another space.
    """
    head: Distribution | None = getattr(network, "head", None)
    if head is not None:
        return head
    if isinstance(space, spaces.Box):
        return Gaussian(space.low, space.high, bound)
    if isinstance(space, spaces.MultiDiscrete):
        return Categorical(tuple(int(count) for count in space.nvec))
    raise TypeError(f"action space: expected Box or MultiDiscrete, got {space}")
