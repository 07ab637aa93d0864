"""Watching a run: reports for the gates out of what the algorithm measured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.gates import MIN_EPISODES, GateKeeper, Moment
from multigrid_rl.metrics import BEHAVIOUR, outcome_shares
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
        self._pending: list[EpisodeTable] = []
        self._episodes = 0
        self._before = algorithm.began

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:  # noqa: ARG002
        """Complete the row of this iteration."""
        now = time.perf_counter()
        row: dict[str, float] = {
            "iteration": algorithm.policy_updates,
            "env_steps": algorithm.env_steps,
            "policy_updates": algorithm.policy_updates,
            "gradient_steps": algorithm.gradient_steps,
            "seconds": now - algorithm.began,
            "env_steps_per_s": algorithm.config.train_batch_size / (now - self._before),
            **algorithm.latest,
        }
        spent = sum(algorithm.latest[f"timing/{part}_s"] for part in ("sample", "learn", "sync"))
        row["timing/other_s"] = now - self._before - spent
        self._before = now
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
        result[ROW] = {name: None if np.isnan(value) else value for name, value in row.items()}


def _gate_columns(keeper: GateKeeper) -> dict[str, float]:
    if keeper.last is None:
        return {}
    row: dict[str, float] = {"gates/held": float(keeper.held)}
    for state in keeper.states:
        row[f"gates/{state.gate.metric}/met"] = float(state.gate.met(state.value))
        row[f"gates/{state.gate.metric}/held_steps"] = float(state.held_steps(keeper.last.env_steps))
    return row
