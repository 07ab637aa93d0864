"""Gates for any RLlib algorithm and Tune experiment.

The same :class:`~multigrid_rl.gates.GateKeeper` judges them as in our runs.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils import metrics as keys
from ray.tune import Stopper
from ray.tune.result import TRAINING_ITERATION

from multigrid_rl.gates import MIN_EPISODES, Gate, GateKeeper, Moment
from multigrid_rl.rllib.results import gate_results, report_columns
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.training.screen import PLAIN_EVERY, live_console, plain_gates

#: Sections that only some results have: where nothing was evaluated, or learned from yet (DQN begins after 1000 steps).
_EVALUATION, _LEARNERS = f"{keys.EVALUATION_RESULTS}/", f"{keys.LEARNER_RESULTS}/"
#: Prefixes of metrics over episodes, and keys of the number of episodes.
_EPISODES = {
    f"{keys.ENV_RUNNER_RESULTS}/": f"{keys.ENV_RUNNER_RESULTS}/{keys.NUM_EPISODES}",
    _EVALUATION: f"{_EVALUATION}{keys.ENV_RUNNER_RESULTS}/{keys.NUM_EPISODES}",
}
#: Keys of the count of steps: an algorithm that learns from files samples none.
_STEPS = (
    keys.NUM_ENV_STEPS_SAMPLED_LIFETIME,
    f"{_LEARNERS}{ALL_MODULES}/{keys.NUM_ENV_STEPS_TRAINED_LIFETIME}",
    TRAINING_ITERATION,
)


class GateCallback(RLlibCallback):
    """Judges gates at every result of an algorithm: ``PPOConfig().callbacks(GateCallback([Gate(...)]))``.

    A gate's metric is a path in RLlib's result, such as ``env_runners/episode_return_mean``. A result counts as a
    report once enough episodes have finished since the last one: of training, and of evaluation where a gate names
    a metric of it. Where nothing is sampled, steps are those that were trained on, else iterations. The gates
    are in the result under ``gates/``, where loggers, Tune and :class:`GateStopper` find them. Histories are not
    part of RLlib's checkpoints, except those of our own runs.

    Args:
        gates: what is prefixes; ``None``: the gates of one of our runs, ``config("1v1")``.
        report_episodes: episodes behind a report, at least.
        on_held: called once, with ``algorithm`` and ``result``, when all gates are held.
        stop_when_held: set ``done`` in that result, which ends a trial of Tune.
        every_s: seconds between two printed lines; ``None``: print nothing.
    """

    def __init__(
        self,
        gates: Sequence[Gate] | None = None,
        *,
        report_episodes: int = MIN_EPISODES,
        on_held: Callable[..., Any] | None = None,
        stop_when_held: bool = False,
        every_s: float | None = PLAIN_EVERY,
    ) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {"gates": gates, "report_episodes": report_episodes, "on_held": on_held}
        self._settings |= {"stop_when_held": stop_when_held, "every_s": every_s}
        self.keeper = None if gates is None else GateKeeper(list(gates), report_episodes)
        self._episodes = dict.fromkeys(_EPISODES, 0)
        self._printed, self._announced = -math.inf, False

    def __call__(self) -> "GateCallback":
        """Return a callback with the same settings and no history: RLlib calls it for each algorithm."""
        return GateCallback(**self._settings)

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """Check that there are gates. Raises ``ConfigError``."""
        if self.keeper is None and not hasattr(algorithm, "run"):
            raise ConfigError(expected("GateCallback", f"gates, as {algorithm} has none of its own", "none"))

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        """Judge, write ``gates/...`` into the result, print a line, and call ``on_held`` once.

        Raises ``ConfigError``: a gate names a metric that results do not have.
        """
        keeper: GateKeeper = self.keeper or algorithm.run.keeper
        if self.keeper is not None:
            self._report(result, keeper, getattr(algorithm, "run", None))
        result.setdefault("gates", {}).update(gate_results(keeper))
        newly_held = keeper.held and not self._announced
        interval, now = self._settings["every_s"], time.monotonic()
        if interval is not None and (newly_held or now - self._printed >= interval):
            self._printed = now
            live_console().print(f"{_steps(dict(_numbers(result))):>9,} steps | {plain_gates(keeper)}", markup=False)
        self._announced |= newly_held
        if newly_held and self._settings["on_held"] is not None:
            self._settings["on_held"](algorithm=algorithm, result=result)
        if keeper.held and self._settings["stop_when_held"]:
            result["done"] = True

    def _report(self, result: Mapping[str, Any], keeper: GateKeeper, run: Any) -> None:
        metrics = dict(_numbers(result))
        steps, episodes = _steps(metrics), self._finished_episodes(metrics, keeper)
        if episodes < keeper.min_episodes or (keeper.last is not None and steps <= keeper.last.env_steps):
            return
        missing = next((state.gate.metric for state in keeper.states if state.gate.metric not in metrics), None)
        if missing is not None:
            of_reports = () if run is None else report_columns(run)
            known = keeper.last is not None or missing.removeprefix("multigrid_rl/") in of_reports
            if known or _may_follow(missing, metrics):
                return  # not evaluated, learned from or reported in this iteration
            raise ConfigError(expected("gate", "a metric of RLlib's results", missing + suggestion(missing, metrics)))
        moment = Moment(steps, int(result["training_iteration"]), float(result["time_total_s"]))
        keeper.report(moment, episodes, metrics)
        self._episodes = dict.fromkeys(_EPISODES, 0)

    def _finished_episodes(self, metrics: Mapping[str, float], keeper: GateKeeper) -> int:
        """Return the number of episodes since the last report, of training or evaluation as the gates need."""
        for prefix, count in _EPISODES.items():
            # A user's evaluation function that reports no count decides on the number of episodes.
            has_count = count in metrics or not any(name.startswith(prefix) for name in metrics)
            self._episodes[prefix] += _count_of(metrics.get(count)) if has_count else keeper.min_episodes
        used = [prefix for prefix in _EPISODES if any(state.gate.metric.startswith(prefix) for state in keeper.states)]
        return min(self._episodes[prefix] for prefix in used) if used else max(self._episodes.values())


def _count_of(value: float | None) -> int:
    """Return a count of RLlib's as an integer; NaN, where nothing was counted, is 0."""
    return int(value) if value is not None and math.isfinite(value) else 0


def _may_follow(name: str, metrics: Mapping[str, float]) -> bool:
    """Return whether a metric is of a section that this result does not have."""
    if name.startswith(_EVALUATION):
        return not _count_of(metrics.get(_EPISODES[_EVALUATION]))
    return name.startswith(_LEARNERS) and not any(other.startswith(_LEARNERS) for other in metrics)


def _steps(metrics: Mapping[str, float]) -> int:
    return next((steps for name in _STEPS if (steps := _count_of(metrics.get(name)))), 0)


def _numbers(node: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Return paths and values of all numbers of a result; ours also by their plain names."""
    numbers: list[tuple[str, float]] = []
    for name, value in node.items():
        if isinstance(value, Mapping):
            numbers += _numbers(value, f"{prefix}{name}/")
            if not prefix and name == "multigrid_rl":
                numbers += _numbers(value)
        elif not isinstance(value, str):
            try:
                numbers.append((f"{prefix}{name}", math.nan if value is None else float(value)))
            except (TypeError, ValueError, RuntimeError, OverflowError):
                continue  # lists, tensors of several numbers, and values not known yet
    return numbers


class GateStopper(Stopper):
    """Ends a trial of Tune once its gates are held: ``tune.RunConfig(stop=GateStopper())``.

    The results need gates: those of our runs have them, other algorithms write them by :class:`GateCallback`.

    Args:
        first: end all trials with the first that holds its gates.
    """

    def __init__(self, *, first: bool = False) -> None:
        self._first, self._held = first, False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return whether the trial's gates are held."""
        held = bool(result.get("gates", {}).get("held", False))
        self._held |= held
        return held

    def stop_all(self) -> bool:
        """Return whether all trials should end."""
        return self._first and self._held
