"""Watching a run: reports for the gates out of what the algorithm measured."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.clock import Clock
from multigrid_rl.gates import MIN_EPISODES, Gate, GateKeeper, Moment
from multigrid_rl.metrics import BEHAVIOUR, STAGES, WORK, outcome_shares
from multigrid_rl.types import Cast, EpisodeTable

if TYPE_CHECKING:
    from multigrid_rl.rllib.trained import Trained

#: Key of our row in RLlib's result dictionary.
ROW = "multigrid_rl"


def episode_metrics(table: EpisodeTable, cast: Cast) -> dict[str, float]:
    """Means over finished episodes (at least one) for the learning seats and for every team."""
    row = {"report_episodes": float(table.episodes), "episode_len_mean": float(table.length.mean())}
    returns = dict(zip(cast.seats, table.returns.mean(axis=0).tolist(), strict=True))
    for seat in cast.learning:
        a = cast.seats.index(seat)
        win, draw, loss = outcome_shares(table.winner, cast.team_names.index(cast.teams[a]))
        row[f"return_mean/{seat}"] = returns[seat]
        row |= {f"win/{seat}": win, f"draw/{seat}": draw, f"loss/{seat}": loss}
        for name, event in BEHAVIOUR.items():
            if event in cast.events:
                row[f"behaviour/{seat}/{name}"] = float(table.events[:, a, cast.events.index(event)].mean())
    for team in dict.fromkeys(cast.teams):
        row[f"team_return_mean/{team}"] = sum(returns[seat] for seat in cast.members(team))
    return row


class Watch:
    """Collects episodes into reports, hands them to the gates, and keeps the time.

    Attributes:
        keeper: the gates.
        clock: seconds spent outside of iterations, by part.
    """

    def __init__(self, gates: list[Gate]) -> None:
        self.judge(gates)
        self.clock = Clock()
        self._episodes = 0
        self._began = self._before = time.perf_counter()
        self._steps_before = 0

    def judge(self, gates: list[Gate]) -> None:
        """Be judged by ``gates`` from here on; episodes that wait for a report belong to what was before."""
        self.keeper = GateKeeper(gates)
        self._pending: list[EpisodeTable] = []

    def get_state(self) -> dict[str, Any]:
        """Everything that the next reports and verdicts depend on."""
        return {
            "keeper": self.keeper.get_state(),
            "pending": list(self._pending),
            "episodes": self._episodes,
            "steps": self._steps_before,
            "seconds": time.perf_counter() - self._began,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; time that passed in between does not count."""
        self.keeper.set_state(state["keeper"])
        self._pending = list(state["pending"])
        self._episodes, self._steps_before = state["episodes"], state["steps"]
        self._before = time.perf_counter()
        self._began = self._before - state["seconds"]

    def row(self, algorithm: Trained) -> dict[str, float | None]:
        """The row of the iteration that has just ended."""
        self.clock.begin()
        row: dict[str, float] = {
            "iteration": algorithm.policy_updates,
            "env_steps": algorithm.env_steps,
            "policy_updates": algorithm.policy_updates,
            "gradient_steps": algorithm.gradient_steps,
            "seconds": time.perf_counter() - self._began,
            "stage": algorithm.stage,
            "env_runners": algorithm.env_runners,
            "env_runner_losses": algorithm.env_runner_losses,
            **algorithm.latest,
        }
        finished = algorithm.finished
        if finished is not None:
            self._pending.append(finished)
            self._episodes += finished.episodes
        row["episodes"] = self._episodes
        if sum(table.episodes for table in self._pending) >= MIN_EPISODES:
            table = EpisodeTable.concatenate(self._pending)
            self._pending = []
            row |= episode_metrics(table, algorithm.stages[algorithm.stage].factory.cast)
            moment = Moment(algorithm.env_steps, algorithm.policy_updates, row["seconds"])
            self.keeper.report(moment, table.episodes, row)
        row |= _gate_columns(self.keeper)
        self.clock.lap("metrics")
        row |= self._timing(algorithm)
        return {name: value if math.isfinite(value) else None for name, value in row.items()}

    def _timing(self, algorithm: Trained) -> dict[str, float]:
        now, steps = time.perf_counter(), algorithm.env_steps
        whole = now - self._before
        seconds = {"metrics": 0.0, "checkpoint": 0.0, **self.clock.drain()}
        row = {f"timing/{part}_s": value for part, value in seconds.items()}
        parts = algorithm.latest | row
        row["timing/other_s"] = whole - sum(parts[f"timing/{stage}_s"] for stage in STAGES)
        if f"timing/{WORK[0]}_s" in parts:  # RLlib's own env runners do not tell what they spend time on
            row["timing/overhead_share"] = 1 - sum(parts.get(f"timing/{part}_s", 0.0) for part in WORK) / whole
        row["env_steps_per_s"] = (steps - self._steps_before) / whole
        self._before, self._steps_before = now, steps
        return row


class GateCallback(RLlibCallback):
    """Adds our row to every result."""

    def on_algorithm_init(self, *, algorithm: Trained, **kwargs: Any) -> None:  # noqa: ARG002
        """Start watching."""
        algorithm.watch = Watch(algorithm.stages[0].gates)

    def on_train_result(self, *, algorithm: Trained, result: dict[str, Any], **kwargs: Any) -> None:  # noqa: ARG002
        """Complete the row of this iteration."""
        result[ROW] = algorithm.watch.row(algorithm)


def _gate_columns(keeper: GateKeeper) -> dict[str, float]:
    if keeper.last is None:
        return {}
    row: dict[str, float] = {"gates/held": float(keeper.held)}
    for state in keeper.states:
        row[f"gates/{state.gate.metric}/met"] = float(state.gate.met(state.value))
        row[f"gates/{state.gate.metric}/held_steps"] = float(state.held_steps(keeper.last.env_steps))
    return row
