"""Rollouts, which are columns of steps; batches of rows that a network learns from; minibatches of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.learn.advantages import Estimator, standardise, weigh
from multigrid_rl.models.distributions import Distribution
from multigrid_rl.types import EpisodeTable

Array = NDArray[Any]


class Rollout(NamedTuple):
    """``T`` steps of ``N`` environments for one agent with ``C`` action components.

    The collector overwrites it with every batch.
    """

    obs: Array  # (T, N, D)
    actions: Array  # (T, N, C) int64 or (T, N, A) float32, as drawn
    mask: Array  # (T, N, C) bool: the component's seat was in the game
    logp: Array  # (T, N, C) float32, of the behaviour policy
    entropy: Array  # (T, N, C) float32
    values: Array  # (T, N) float32 V(s_t)
    next_values: Array  # (T, N) V(s_{t+1}); of the final observation where the episode ended in this step
    rewards: Array  # (T, N) float32
    terminated: Array  # (T, N) bool
    done: Array  # (T, N) bool: the environment's episode ended in this step; one array for all agents
    starts: Array  # (T, N) bool: a new episode begins with this step
    memory: Array  # (N, S) float32, before the first step; S = 0 without memory

    @classmethod
    def empty(cls, done: Array, obs: Array, distribution: Distribution, memory: int) -> "Rollout":
        """Allocate one for the shape (T, N) of ``done``; ``obs`` (N, D) is an example."""
        shape, parts = done.shape, (*done.shape, distribution.components)
        return cls(
            obs=np.empty((shape[0], *obs.shape), obs.dtype),
            actions=np.empty((*shape, distribution.width), distribution.dtype),
            mask=np.empty(parts, np.bool_),
            logp=np.empty(parts, np.float32),
            entropy=np.empty(parts, np.float32),
            values=np.empty(shape, np.float32),
            next_values=np.empty(shape, np.float32),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, np.bool_),
            done=done,
            starts=np.empty(shape, np.bool_),
            memory=np.zeros((shape[1], memory), np.float32),
        )

    @property
    def active(self) -> Array:
        """Steps (T, N) in which the agent was in the game."""
        return np.asarray(self.mask.any(axis=2))

    def rows(self, columns: Sequence[Array]) -> list[Array]:
        """Return ``columns`` (T, N, ...) as rows of a :class:`Batch`, then its memory and starts, copied."""
        if self.memory.shape[1]:
            return [*(column.swapaxes(0, 1).copy() for column in columns), self.memory.copy(), self.starts.T.copy()]
        steps = np.flatnonzero(self.active)
        rows = [column.reshape(-1, *column.shape[2:]).take(steps, axis=0) for column in columns]
        return [*rows, np.empty((len(steps), 0), np.float32), np.empty((len(steps), 0), np.bool_)]


class Batch(NamedTuple):
    """Training data of one network.

    Networks without memory get one row for each step in which the agent was in the game (``B`` rows). Networks with
    memory get one row for each environment, ``T`` steps long: shapes then start with ``(B, T, ...)``, and steps in
    which the agent was out of the game have an empty mask.
    """

    obs: Array  # (B, D)
    actions: Array  # (B, C) int64 or (B, A) float32
    mask: Array  # (B, C) bool: the component's seat was in the game
    logp: Array  # (B,) float32, of the behaviour policy, summed over seats in the game
    values: Array  # (B,) float32
    advantages: Array  # (B,) float32: weight of the log-probability, ``Psi`` of the estimator
    targets: Array  # (B,) float32 of the values
    entropy: Array  # (B,) float32, summed over seats in the game
    memory: Array  # (B, S) float32, before the first step of each row; S = 0 without memory
    starts: Array  # (B, T) bool: a new episode begins with this step; T = 0 without memory
    outputs: Array = np.empty((0, 0), np.float32)  # (B, K) of the policy that played; empty: no loss reads them

    @classmethod
    def concatenate(cls, parts: "list[Batch]") -> "Batch":
        """Join rows of one network (at least one part), in order."""
        return parts[0] if len(parts) == 1 else cls._make(map(np.concatenate, zip(*parts, strict=True)))

    def rows(self, numbers: Any) -> "Batch":
        """Return the rows ``numbers``, an array or a slice."""
        if isinstance(numbers, slice):
            return Batch._make(column[numbers] for column in self)
        return Batch._make(column.take(numbers, axis=0) if len(column) else column for column in self)

    def for_learning(self, *, old_values: bool = False) -> "Batch":
        """Return the batch without the columns that no gradient step reads, so that they are not copied."""
        # Every minibatch copies its rows of every column.
        empty = self.values[..., :0].reshape(len(self.values), -1)
        return self._replace(values=self.values if old_values else empty, entropy=empty)

    @property
    def active(self) -> Array:
        """Steps (B,) or (B, T) in which the agent was in the game."""
        return np.asarray(self.mask.any(axis=-1))

    def standardised(self) -> "Batch":
        """Return the batch with advantages of zero mean and unit variance over the active steps."""
        # A trick of practice, not of the paper: step sizes then fit rewards of any scale (detail 7 of
        # https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/). Steps out of the game would shift
        # it.
        active = self.active
        advantages = np.zeros_like(self.advantages)
        advantages[active] = standardise(self.advantages[active])
        return self._replace(advantages=advantages)


class Paths(NamedTuple):
    """Inputs for recomputing advantages when values have changed: a batch in its ``(T, N)`` layout."""

    rewards: Array  # (T, N) float32
    terminated: Array  # (T, N) bool
    done: Array  # (T, N) bool
    active: Array  # (T, N) bool: rows of the batch, in this order
    starts: Array  # (T, N) bool
    cut: Array  # (T, N) bool: the episode was truncated in this step
    final_obs: Array  # (F, D) final observation of each of these steps, in the order of ``cut``
    last_obs: Array  # (N, D) observation after the last step

    def with_next(self, rows: Array, final: Array, last: Array) -> tuple[Array, Array]:
        """Return ``rows`` (B, ...) of a batch as (T, N, ...), and the rows one step later; zeros after an end.

        ``final`` belongs to ``final_obs``, and ``last`` to ``last_obs``.
        """
        current = np.zeros((*self.active.shape, *rows.shape[1:]), np.float32)
        current[self.active] = rows
        shifted = np.concatenate([current[1:], last[None]])
        # An end for good is worth nothing more; where an episode was cut, what it would have been worth is known.
        shifted[self.done] = 0.0
        shifted[self.cut] = final
        return current, shifted

    def weigh(self, values: Array, final: Array, last: Array, estimator: Estimator) -> tuple[Array, Array]:
        """Return weights and targets (B,) of a batch from values of its rows (B,), ``final_obs`` and ``last_obs``."""
        current, next_values = self.with_next(values, final, last)
        weights, targets = weigh(self, current, next_values, estimator)
        return weights[self.active], targets[self.active]


def split_by_path(rows: Array, paths: Sequence[Paths]) -> list[Array]:
    """Return ``rows`` (B, ...) of a batch path by path."""
    return np.split(rows, np.cumsum([path.active.sum() for path in paths])[:-1])


class Experience(NamedTuple):
    """Result of one sampling process in one iteration."""

    batches: dict[str, Batch]  # by agent; advantages not standardised yet
    paths: dict[str, Paths]  # by agent; empty unless advantages are recomputed
    episodes: EpisodeTable | None  # None: it is no measure of the weights
    env_steps: int
    weights_hash: dict[str, str]  # checksum of the weights that sampled, by module; empty: not compared
    seconds: dict[str, float]  # spent on engine, players, tokens, forward, draw and gae


def estimate(rollout: Rollout, estimator: Estimator) -> Batch:
    """Turn a rollout into rows with advantages, copied."""
    r = rollout
    # Without a critic its values are noise of fresh weights: they count as 0.
    values, next_values = (r.values, r.next_values) if estimator.critic else (np.zeros_like(r.values),) * 2
    weights, targets = weigh(r, values, next_values, estimator)
    logp, entropy = ((column * r.mask).sum(axis=2) for column in (r.logp, r.entropy))
    return Batch(*r.rows((r.obs, r.actions, r.mask, logp, values, weights, targets, entropy)))


def minibatches(
    rows: Mapping[str, int], epochs: int, size: int, rng: np.random.Generator, *, shuffled: bool = False
) -> Iterator[dict[str, NDArray[np.int64]]]:
    """Yield row numbers of each minibatch, by module.

    The first epoch takes all rows of a module in the order of play and every later one in a new random order. A
    minibatch that reaches the end of an epoch is filled from the next one. It ends after ``epochs`` passes over the
    module with the most rows; other modules begin further epochs meanwhile.

    Args:
        rows: module -> rows of its batch, at least 1.
        shuffled: shuffle the first epoch, too.
    """
    # As RLlib does; the recipes were tuned so. With the first one shuffled, too, one seed of ten missed the gates of
    # 2v2.
    queued = {module: rng.permutation(count) if shuffled else np.arange(count) for module, count in rows.items()}
    for _ in range(math.ceil(epochs * max(rows.values()) / size)):
        chosen = {}
        for module, count in rows.items():
            while len(queued[module]) < size:
                queued[module] = np.concatenate([queued[module], rng.permutation(count)])
            chosen[module], queued[module] = queued[module][:size], queued[module][size:]
        yield chosen
