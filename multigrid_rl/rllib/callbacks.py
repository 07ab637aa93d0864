"""Watching a run: reports for the gates out of what the algorithm measured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.clock import Clock
from multigrid_rl.gates import MIN_EPISODES, GateKeeper, Moment
from multigrid_rl.metrics import BEHAVIOUR, STAGES, WORK, outcome_shares
from multigrid_rl.types import Cast, EpisodeTable

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


class GateCallback(RLlibCallback):
    """Adds our row to every result and reports to the gate keeper whenever enough episodes have finished."""

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Start counting."""
        algorithm.keeper = GateKeeper(algorithm.config.env_config["gates"])
        algorithm.began = time.perf_counter()
        algorithm.clock = Clock()
        self._pending: list[EpisodeTable] = []
        self._episodes = 0
        self._before = algorithm.began
        self._steps_before = 0

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:  # noqa: ARG002
        """Complete the row of this iteration."""
        algorithm.clock.begin()
        now = time.perf_counter()
        row: dict[str, float] = {
            "iteration": algorithm.policy_updates,
            "env_steps": algorithm.env_steps,
            "policy_updates": algorithm.policy_updates,
            "gradient_steps": algorithm.gradient_steps,
            "seconds": now - algorithm.began,
            **algorithm.latest,
        }
        self._pending.append(algorithm.finished)
        self._episodes += algorithm.finished.episodes
        row["episodes"] = self._episodes
        table = EpisodeTable.concatenate(self._pending)
        if table.episodes >= MIN_EPISODES:
            self._pending = []
            row |= episode_metrics(table, algorithm.config.env_config["factory"].cast)
            moment = Moment(algorithm.env_steps, algorithm.policy_updates, row["seconds"])
            algorithm.keeper.report(moment, table.episodes, row)
        row |= _gate_columns(algorithm.keeper)
        algorithm.clock.lap("metrics")
        row |= self._timing(algorithm)
        result[ROW] = {name: None if np.isnan(value) else value for name, value in row.items()}

    def _timing(self, algorithm: Any) -> dict[str, float]:
        now, steps = time.perf_counter(), algorithm.env_steps
        whole = now - self._before
        seconds = {"metrics": 0.0, "checkpoint": 0.0, **algorithm.clock.drain()}
        row = {f"timing/{part}_s": value for part, value in seconds.items()}
        parts = algorithm.latest | row
        row["timing/other_s"] = whole - sum(parts[f"timing/{stage}_s"] for stage in STAGES)
        if f"timing/{WORK[0]}_s" in parts:  # RLlib's own env runners do not tell what they spend time on
            row["timing/overhead_share"] = 1 - sum(parts.get(f"timing/{part}_s", 0.0) for part in WORK) / whole
        row["env_steps_per_s"] = (steps - self._steps_before) / whole
        self._before, self._steps_before = now, steps
        return row


def _gate_columns(keeper: GateKeeper) -> dict[str, float]:
    if keeper.last is None:
        return {}
    row: dict[str, float] = {"gates/held": float(keeper.held)}
    for state in keeper.states:
        row[f"gates/{state.gate.metric}/met"] = float(state.gate.met(state.value))
        row[f"gates/{state.gate.metric}/held_steps"] = float(state.held_steps(keeper.last.env_steps))
    return row
