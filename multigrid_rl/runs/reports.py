"""A run's gates, resolved from its configuration; rows of its metrics, and reports for the gates."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from multigrid_rl.config.scenario import GateConfig
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.gates import MIN_EPISODES, Gate, GateKeeper, Moment
from multigrid_rl.metrics import STAGES, WORK, MetricGroup, episode_metrics, groups, matches
from multigrid_rl.tables import HEADS
from multigrid_rl.text import ConfigError, OneLineError, expected, shown, suggestion
from multigrid_rl.trust import CODE, import_object, user_code
from multigrid_rl.types import Clock, EpisodeTable, MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: Metrics that every trainer reports.
_USUAL = ("entropy/", "explained_variance/", "own/")


def gates_of(config: RunConfig, specs: MultiAgentSpec) -> list[Gate]:
    """Return the run's gates: without a value network gates on values are left out.

    Raises ``ConfigError`` for a metric that this run never reports.
    """
    trainer = trainer_of(config.train.trainer)
    gates = [gate for gate in config.scenario.gates if trainer.learns_values or not gate.of_values]
    resolved = [
        Gate(name, gate.comparison, gate.bound, hold=gate.hold, share=gate.share, window=gate.window)
        for gate in gates
        for name in metrics_of(gate, specs)
    ]
    # Every trainer reports episodes, entropy and explained variance: no other trainer is loaded for those.
    extra = [gate for gate in resolved if _group_of(gate.metric).samples is None and not gate.metric.startswith(_USUAL)]
    absent: dict[str, str] = trainer.absent(config) if extra else {}
    head = config.model.head
    if head in HEADS and not HEADS[head].probability:
        absent["entropy/*"] = f"model.head={head} has no probabilities"
    for gate in resolved:
        reasons = {**absent, **_group_of(gate.metric).absent(config, specs)}
        reason = next((reason for pattern, reason in reasons.items() if fnmatchcase(gate.metric, pattern)), None)
        if reason is not None:
            raise ConfigError(expected("scenario.gates: metric", f"one that this run reports ({reason})", gate.metric))
    return resolved


def _group_of(metric: str) -> MetricGroup:
    # Lazily: the group of an add-on is loaded only where none before it has the metric.
    return next(g for g in groups("metrics", "measured") if any(matches(metric, pattern) for pattern in g.names))


def metrics_of(gate: GateConfig, specs: MultiAgentSpec) -> list[str]:
    """Return the metrics of a gate; ``*`` stands for every learning seat, team or network.

    Raises ``ConfigError`` for a metric that this run never reports.
    """
    if CODE.fullmatch(gate.metric):
        return [f"own/{gate.metric}"]
    known: list[str] = []
    for group in groups("metrics", "measured"):
        reported = dict(_names(group, specs))
        if gate.metric in reported:  # an add-on's group is loaded only where none before it has the metric
            return reported[gate.metric]
        known += reported
    teams = ", ".join(dict.fromkeys(specs.teams))
    names = f"seats {', '.join(specs.learning)}, teams {teams}, networks {', '.join(specs.modules)}"
    wanted = f"a name of docs/running.md with {names}, or * for all learners, or module:function"
    raise ConfigError(expected("scenario.gates: metric", wanted, gate.metric + suggestion(gate.metric, known)))


def _names(group: MetricGroup, specs: MultiAgentSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield names by which a gate may call metrics of a group, with the metrics that each means."""
    learning = tuple(dict.fromkeys(specs.teams[specs.seats.index(seat)] for seat in specs.learning))
    # Placeholder in a metric's name, its valid values in a gate, and the values of a star.
    places = (
        ("<seat>", specs.learning, specs.learning),
        ("<team>", tuple(dict.fromkeys(specs.teams)), learning),
        ("<module>", specs.modules, specs.modules),
    )
    for pattern in group.names:
        if re.search("<(player|function|gate)>", pattern):
            continue  # a gate cannot name these
        place, names, star = next((row for row in places if row[0] in pattern), ("", (), ()))
        yield from ((name, [name]) for name in (pattern.replace(place, name) for name in names or ("",)))
        if place:
            yield pattern.replace(place, "*"), [pattern.replace(place, name) for name in star]


def custom_metrics(gates: list[Gate]) -> dict[str, Callable[[EpisodeTable], Any]]:
    """Return the user's functions that gates name, by metric. Raises ``ConfigError``: no such function."""
    names = [gate.metric for gate in gates if gate.metric.startswith("own/")]
    return {name: import_object("scenario.gates: metric", name.removeprefix("own/")) for name in names}


@np.errstate(all="ignore")  # nothing happens in these episodes: 0 / 0
def try_custom_metrics(gates: list[Gate], specs: MultiAgentSpec) -> None:
    """Call the user's functions that gates name, on made-up episodes. Raises ``ConfigError``: none, or it fails."""
    table = EpisodeTable.empty(len(specs.seats), len(specs.events), len(specs.pools), rows=MIN_EPISODES)
    winners = np.arange(-1, len(specs.team_names) if specs.has_winner else 0)  # -1: no winner
    table.length[:], table.winner[:] = np.arange(1, MIN_EPISODES + 1), np.resize(winners, MIN_EPISODES)
    for name, function in custom_metrics(gates).items():
        _custom_value(name, function, table, ConfigError)


def _custom_value(name: str, function: Any, table: EpisodeTable, failure: type[OneLineError] = RunError) -> float:
    key = f"scenario.gates: metric {name}"
    with user_code(key, failure):
        value = function(table)
        if np.size(value) != 1 or np.asarray(value).dtype.kind not in "biuf":
            raise ConfigError(expected(key, "one number", shown(repr(value))))
        return float(np.ravel(value)[0])


class Reports:
    """Collects episodes into reports, hands them to the gates, and keeps the time.

    Attributes:
        keeper: the gates.
        report: lengths and returns of the newest report; empty before the first.
        clock: seconds spent outside of iterations, by part.
    """

    def __init__(self, gates: list[Gate], report_episodes: int = MIN_EPISODES) -> None:
        self.set_gates(gates, report_episodes)
        self.clock = Clock()
        self._episodes = 0
        self._started_at = self._last_row_at = time.perf_counter()
        self._steps_before = 0

    def set_gates(self, gates: list[Gate], report_episodes: int = MIN_EPISODES) -> None:
        """Judge by ``gates`` from here on; episodes that wait for a report are dropped."""
        self.keeper = GateKeeper(gates, report_episodes)
        self.report: dict[str, float] = {}
        self._pending: list[EpisodeTable] = []
        self._custom = custom_metrics(gates)

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next reports and verdicts depend on."""
        return {
            "keeper": self.keeper.get_state(),
            "pending": list(self._pending),
            "report": self.report,
            "episodes": self._episodes,
            "steps": self._steps_before,
            "seconds": time.perf_counter() - self._started_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; time that passed in between does not count. Warns where other gates begin anew."""
        try:
            self.keeper.set_state(state["keeper"])
        except ValueError as error:
            LOG.warning("other gates than before are judged anew: %s", error)
        self._pending, self.report = list(state["pending"]), state.get("report", {})
        self._episodes, self._steps_before = state["episodes"], state["steps"]
        self._last_row_at = time.perf_counter()
        self._started_at = self._last_row_at - state["seconds"]

    def last_report(self, specs: MultiAgentSpec) -> dict[str, float]:
        """Return the newest report, of fewer episodes where there was none; empty if no episode has ended."""
        if not self.report and any(table.episodes > 0 for table in self._pending):
            return episode_metrics(EpisodeTable.concatenate(self._pending), specs)
        return self.report

    def row(
        self,
        counts: Mapping[str, int],
        measured: Mapping[str, float],
        finished: EpisodeTable | None,
        specs: MultiAgentSpec,
    ) -> dict[str, float | None]:
        """Return the row of the iteration that has just ended.

        Args:
            counts: environment steps, policy updates and other counts since the run began.
            measured: metrics of only this iteration.
            finished: episodes that finished in it.
        """
        self.clock.begin()
        env_steps, seconds = counts["env_steps"], time.perf_counter() - self._started_at
        row: dict[str, float] = {"iteration": counts["policy_updates"], "seconds": seconds, **counts, **measured}
        if finished is not None:
            self._pending.append(finished)
            self._episodes += finished.episodes
        row["episodes"] = self._episodes
        if sum(table.episodes for table in self._pending) >= self.keeper.min_episodes:
            table = EpisodeTable.concatenate(self._pending)
            self._pending = []
            self.report = episode_metrics(table, specs)
            row |= self.report
            row |= {name: _custom_value(name, function, table) for name, function in self._custom.items()}
            moment = Moment(env_steps, counts["policy_updates"], seconds)
            # A network whose seats were out all the time has learned nothing in this iteration.
            unknown = dict.fromkeys((state.gate.metric for state in self.keeper.states), math.nan)
            self.keeper.report(moment, table.episodes, {**unknown, **row})
        row |= _gate_columns(self.keeper)
        self.clock.lap("metrics")
        row |= self._timing(env_steps, measured)
        return {name: value if math.isfinite(value) else None for name, value in row.items()}

    def _timing(self, steps: int, measured: Mapping[str, float]) -> dict[str, float]:
        now = time.perf_counter()
        total = now - self._last_row_at
        seconds = {"metrics": 0.0, "checkpoint": 0.0, **self.clock.drain()}
        row = {f"timing/{part}_s": value for part, value in seconds.items()}
        parts = {**measured, **row}
        row["timing/other_s"] = total - sum(parts[f"timing/{stage}_s"] for stage in STAGES)
        if {"timing/engine_s", "timing/play_s"} & parts.keys():  # RLlib's own env runners do not report these times
            row["timing/overhead_share"] = 1 - sum(parts.get(f"timing/{part}_s", 0.0) for part in WORK) / total
        row["env_steps_per_s"] = (steps - self._steps_before) / total
        self._last_row_at, self._steps_before = now, steps
        return row


def _gate_columns(keeper: GateKeeper) -> dict[str, float]:
    if keeper.last is None:
        return {}
    row: dict[str, float] = {"gates/held": float(keeper.held)}
    # Of two bounds on one metric, the columns are of the one that is further from held: it comes last.
    for state in sorted(keeper.states, key=lambda state: (state.streak_from is None, state.streak_from or 0)):
        row[f"gates/{state.gate.metric}/met"] = float(state.gate.is_met(state.value))
        row[f"gates/{state.gate.metric}/held_steps"] = float(state.held_steps(keeper.last.env_steps))
    return row
