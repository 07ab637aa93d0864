"""Rollouts of agents that do not decide in every step: rows without a decision are compacted."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.learn.rollout import StepCollector
from multigrid_rl.types import BatchedStep

Array = NDArray[Any]
#: Of an environment whose agents do not decide in every step: agent -> where it decides next, (N,).
Deciding = Callable[[], dict[str, NDArray[np.bool_]]]


class Gaps:
    """Compacts rollouts of ``T + 1`` rows; the first row holds the decisions that the last batch left open.

    A step's mask marks decisions; rewards and ends may come in any step. Each column is one agent's place. A decision's
    row gets all rewards until its agent decides again, and the end of its episode. Where this is not known when a batch
    is full, it waits for the next batch. Rows without a decision come first, masked. The discount applies per decision,
    not per step, as in ML-Agents
    (https://github.com/Unity-Technologies/ml-agents/blob/main/docs/Learning-Environment-Design-Agents.md).

    Args:
        rollout: arrays (T + 1, N, ...) by name, as :class:`~multigrid_rl.learn.batches.Rollout` has them.
        cut: (T + 1, N) where an episode was truncated.
        deciding: the environment's method.
    """

    #: Columns that describe a decision; the others hold its outcome.
    _WAITING_COLUMNS = ("obs", "actions", "mask", "logp", "entropy", "values", "rewards", "starts", "terminated")

    def __init__(self, rollout: dict[str, Array], cut: Array, name: str, deciding: Deciding) -> None:
        self._rollout, self._cut, self._name, self._deciding = rollout, cut, name, deciding
        # A waiting decision keeps its columns: its log-probability belongs to the weights that drew it, and its ratio
        # corrects for the update in between.
        #: The waiting decisions, at most one for each place: its mask is set.
        self.waiting = {name: np.zeros_like(rollout[name][0]) for name in self._WAITING_COLUMNS}

    def open(self) -> None:
        """Put the waiting decisions into the first row."""
        for name in ("terminated", "done", "next_values"):
            self._rollout[name][0] = 0
        for name, column in self.waiting.items():
            self._rollout[name][0] = column
        self._cut[0] = False

    def close(self, obs: Array, values: Array, finals: Array) -> tuple[Array, Array, Array]:
        """Compact the rollout; returns observation and value after the last row of each place, and the ``finals`` left.

        Args:
            obs: (N, D) the current observations of the places.
            values: (N,) of these.
            finals: (F, D) last observations of truncated episodes, in the order of steps.
        """
        rollout, cut = self._rollout, self._cut
        final_index = np.full(cut.shape, -1)
        final_index[cut] = np.arange(len(finals))
        open_rows = self._gather(final_index)
        cut[:] = final_index >= 0
        places = np.flatnonzero((open_rows >= 0) & ~self._deciding()[self._name])
        rows = open_rows[places]
        obs, values = obs.copy(), values.copy()
        obs[places], values[places] = rollout["obs"][rows, places], rollout["values"][rows, places]
        for name, column in self.waiting.items():
            column[...] = 0
            column[places] = rollout[name][rows, places]
        rollout["mask"][rows, places] = False
        active = rollout["mask"][..., 0]
        # Stable: decisions stay in the order of time, one right after the other, as the recursion of advantages needs
        # it.
        order = np.argsort(active, axis=0, kind="stable")
        for column in (*rollout.values(), cut, final_index):
            column[...] = np.take_along_axis(column, order.reshape(*order.shape, *(1,) * (column.ndim - 2)), axis=0)
        # A path that began earlier counts from its first row.
        first = len(active) - active.sum(axis=0)
        places_with_rows = np.flatnonzero(first < len(active))
        rollout["starts"][first[places_with_rows], places_with_rows] = True
        return obs, values, finals[final_index[cut]]

    def _gather(self, final_index: Array) -> Array:
        """Give each decision the outcome before the next one; returns the rows (N,) of decisions still open."""
        # One pass over time: what comes in a step without a decision belongs to the place's newest decision.
        rollout = self._rollout
        active, done = rollout["mask"][..., 0], rollout["done"].copy()
        newest = np.full(active.shape[1], -1)
        for t, decided in enumerate(active):
            newest[decided] = t
            places = np.flatnonzero(~decided & (newest >= 0))
            rows = newest[places]
            for name in ("rewards", "next_values"):
                rollout[name][rows, places] += rollout[name][t, places]
            for name in ("terminated", "done"):
                rollout[name][rows, places] |= rollout[name][t, places]
            final_index[rows, places] = np.maximum(final_index[rows, places], final_index[t, places])
            newest[done[t]] = -1
        for name in ("rewards", "next_values", "terminated", "done"):
            rollout[name][~active] = 0
        final_index[~active] = -1
        return newest


class TurnCollector(StepCollector):
    """Plays environments whose agents come and go: a batch's rows are decisions.

    Row 0 has the decisions that the last batch left open. Arguments as :class:`StepCollector`.
    """

    _first_row = 1

    def __init__(self, env: Any, *args: Any, **options: Any) -> None:
        super().__init__(env, *args, **options)
        self._gaps = {}
        for name, rollout in self.rollouts.items():
            if self._net(name).state_size:
                raise ValueError("model: expected a network without memory where agents come and go")
            # Each agent's rows move separately, and its episodes' ends with them.
            self.rollouts[name] = separate = rollout._replace(done=self._done.copy())
            self._cut[name] = np.empty_like(self._done)
            columns = {column: array for column, array in separate._asdict().items() if column != "memory"}
            self._gaps[name] = Gaps(columns, self._cut[name], name, env.deciding)

    def _begin(self) -> None:
        super()._begin()
        for gaps in self._gaps.values():
            gaps.open()

    def _store(self, t: int, step: BatchedStep) -> None:
        fresh = self._fresh
        super()._store(t, step)
        # An episode begins with its first decision.
        self._fresh = {name: step.done | (fresh[name] & ~step.mask[name][:, 0]) for name in self.agents}

    def _end(self, name: str) -> Array:
        last = self._last[name]
        finals = np.concatenate([last[:0], *self._finals[name]])
        self._last[name], values, finals = self._gaps[name].close(last, super()._end(name), finals)
        self._finals[name] = [finals]
        return values

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments, players and random streams, and the waiting decisions."""
        waiting = {name: {key: rows.copy() for key, rows in gaps.waiting.items()} for name, gaps in self._gaps.items()}
        return {**super().get_state(), "waiting": waiting}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for other agents or environments."""
        super().set_state(state)
        if state["env"]:  # else nothing waits in its fresh episodes
            for name, gaps in self._gaps.items():
                gaps.waiting |= {column: rows.copy() for column, rows in state["waiting"][name].items()}
