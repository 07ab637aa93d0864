"""Results of ``Algorithm.train()``: an iteration under RLlib's keys, and under ours; its episodes for callbacks."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils import force_list
from ray.rllib.utils import metrics as keys
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from multigrid_rl.gates import GateKeeper
from multigrid_rl.metrics import episode_metrics
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

#: RLlib's names of a learner's statistics, by ours.
_LEARNER = {
    "lr": "default_optimizer_learning_rate",
    "entropy_coef": "curr_entropy_coeff",
    "grad_norm": "gradients_default_optimizer_global_norm",
    "kl_loss": "mean_kl_loss",
    "kl_coef": "curr_kl_coeff",
}
#: Our metrics of a module, ``<metric>/<module>``, and RLlib's names of them.
_MODULE = {
    "entropy": "entropy",
    "explained_variance": "vf_explained_var",
    "approx_kl": "mean_kl_loss",
    "clip_fraction": "clip_fraction",
}
_TIMERS = {
    "sample": keys.ENV_RUNNER_SAMPLING_TIMER,
    "learn": keys.LEARNER_UPDATE_TIMER,
    "sync": keys.SYNCH_WORKER_WEIGHTS_TIMER,
}
_LENGTHS = {"mean": keys.EPISODE_LEN_MEAN, "min": keys.EPISODE_LEN_MIN, "max": keys.EPISODE_LEN_MAX}
_RETURNS = {"mean": keys.EPISODE_RETURN_MEAN, "min": keys.EPISODE_RETURN_MIN, "max": keys.EPISODE_RETURN_MAX}


def episode_values(
    rows: NDArray[np.float64], specs: MultiAgentSpec
) -> Iterator[tuple[tuple[str, ...], str, NDArray[np.float64]]]:
    """Yield RLlib's metrics of episodes: key, reduction (mean, min, max), and values (n,).

    Args:
        rows: (n, 1 + A) lengths, and the canonical return of each seat.
        specs: their agents. A return is the sum over all learning agents.
    """
    lengths, columns = rows[:, 0], rows[:, 1:]
    agent_returns = {
        agent.name: columns[:, [specs.seats.index(seat) for seat in agent.seats]].sum(axis=1) for agent in specs.agents
    }
    returns = np.sum(list(agent_returns.values()), axis=0)
    for names, values in ((_LENGTHS, lengths), (_RETURNS, returns)):
        yield from (((key,), reduction, values) for reduction, key in names.items())
    for name, values in agent_returns.items():
        yield (keys.EPISODE_AGENT_RETURN_MEAN, name), "mean", values
    for module in specs.modules:
        parts = [agent_returns[agent.name] for agent in specs.agents if agent.module == module]
        yield (keys.EPISODE_MODULE_RETURN_MEAN, module), "mean", np.sum(parts, axis=0)


def log_episodes(metrics: MetricsLogger, table: EpisodeTable, specs: MultiAgentSpec) -> None:
    """Log episodes (M >= 1) one by one, as RLlib's env runners do, so that several runners' can be merged."""
    metrics.log_value(keys.NUM_EPISODES, table.episodes, reduce="sum")
    metrics.log_value(keys.NUM_ENV_STEPS_SAMPLED, int(table.length.sum()), reduce="sum")
    for key, reduction, values in episode_values(np.column_stack([table.length, table.returns]), specs):
        for value in values.tolist():
            metrics.log_value(key, value, reduce=reduction, window=table.episodes)
    for name, value in episode_metrics(table, specs).items():
        metrics.log_value(("multigrid_rl", name), value, reduce="mean", window=1)


def log_iteration(
    metrics: MetricsLogger, run: Any, newest: NDArray[np.float64], env_steps: int, window: int, minibatch: int
) -> NDArray[np.float64]:
    """Log an iteration under RLlib's keys; returns ``newest`` with the episodes that have finished in it.

    Args:
        metrics: the algorithm's.
        run: :class:`~multigrid_rl.training.run.TrainingRun`, after its iteration.
        newest: (n, 1 + A) lengths and returns of the newest episodes before it.
        env_steps: of it.
        window: episodes that means are over, at most: RLlib's ``metrics_num_episodes_for_smoothing``.
        minibatch: rows of a gradient step.
    """
    count = 0
    if run.finished is not None:
        count, rows = run.finished.episodes, np.column_stack([run.finished.length, run.finished.returns])
        earlier = newest if newest.shape[1] == rows.shape[1] else rows[:0]  # another stage may have other seats
        newest = np.concatenate([earlier, rows])[-window:]
    _count(metrics, (keys.ENV_RUNNER_RESULTS, keys.NUM_ENV_STEPS_SAMPLED), env_steps, fast=True)
    _count(metrics, (keys.ENV_RUNNER_RESULTS, keys.NUM_EPISODES), count)
    module_steps = dict.fromkeys(run.specs.modules, 0)
    for agent in run.specs.agents:
        steps = run.agent_steps[agent.name]
        module_steps[agent.module] += steps
        _count(metrics, (keys.ENV_RUNNER_RESULTS, keys.NUM_AGENT_STEPS_SAMPLED), steps, agent.name)
    for module, steps in module_steps.items():
        _count(metrics, (keys.ENV_RUNNER_RESULTS, keys.NUM_MODULE_STEPS_SAMPLED), steps, module)
    # Before an episode has ended, RLlib's own results have NaN, too.
    shown = newest if len(newest) else np.full((1, 1 + len(run.specs.seats)), np.nan)
    for key, reduction, values in episode_values(shown, run.specs):
        metrics.log_value((keys.ENV_RUNNER_RESULTS, *key), float(getattr(values, reduction)()), reduce="item")
    for module, name, statistic in _learner_statistics(run.measured):
        metrics.log_value((keys.LEARNER_RESULTS, module, name), statistic, reduce="item")
    trained = {module: int(statistics["gradient_steps"]) * minibatch for module, statistics in run.learned.items()}
    for module, steps in trained.items():
        _count(metrics, (keys.LEARNER_RESULTS, module, keys.NUM_MODULE_STEPS_TRAINED), steps)
        if (loss := run.learned[module].get("total_loss")) is not None:
            metrics.log_value((keys.LEARNER_RESULTS, module, "total_loss"), loss, reduce="item")
    _count(metrics, (keys.LEARNER_RESULTS, ALL_MODULES, keys.NUM_MODULE_STEPS_TRAINED), sum(trained.values()))
    _count(metrics, (keys.LEARNER_RESULTS, ALL_MODULES, keys.NUM_ENV_STEPS_TRAINED), env_steps, fast=True)
    for ours, theirs in _TIMERS.items():
        metrics.log_value((keys.TIMERS, theirs), run.measured[f"timing/{ours}_s"], reduce="ema")
    return newest


def _count(metrics: MetricsLogger, place: tuple[str, ...], count: int, *key: str, fast: bool = False) -> None:
    """Log a count of this iteration, and under ``<name>_lifetime`` the sum of all; ``fast``: with its throughput."""
    *parents, name = place
    metrics.log_value((*place, *key), count, reduce="sum")
    metrics.log_value((*parents, f"{name}_lifetime", *key), count, reduce="lifetime_sum", with_throughput=fast)


def _learner_statistics(measured: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Yield module, RLlib's name and value of updates' statistics."""
    for name, value in measured.items():
        prefix, _, suffix = name.partition("/")
        if prefix == "learner":
            module, _, statistic = suffix.partition("/")
            yield module, _LEARNER.get(statistic, statistic), value
        elif prefix in _MODULE:
            yield suffix, _MODULE[prefix], value


def gate_results(keeper: GateKeeper) -> dict[str, Any]:
    """Return the gates of a result, ``gates/...``; before the first report values are not a number.

    ``held`` is whether all are held. A gate's ``value`` is that of the newest report, its ``bound`` the number that it
    is compared with; ``met`` says that this report meets it, ``held`` that it was met for the gate's window.
    """
    gates = {
        state.gate.metric: {
            "value": state.value,
            "bound": state.gate.bound,
            "met": state.gate.is_met(state.value),
            "held": state.held,
        }
        for state in sorted(keeper.states, key=lambda state: state.held, reverse=True)  # as in the columns of a row
    }
    return {"held": keeper.held, **gates}


def report_columns(run: Any) -> dict[str, None]:
    """Return names that only a report's row has: files of rows take their columns from the first one."""
    specs = run.specs
    table = EpisodeTable.empty(len(specs.seats), len(specs.events), len(specs.pools), rows=1)
    gates = [f"gates/{state.gate.metric}/{part}" for state in run.keeper.states for part in ("met", "held_steps")]
    return dict.fromkeys([*episode_metrics(table, specs), "gates/held", *gates])


# --- finished games as episodes for RLlib's callbacks


class FinishedEpisode:
    """A finished game, whose parts are computed on access: there are hundreds in an iteration.

    Attributes:
        custom_data: for callbacks.
    """

    is_done = True

    def __init__(self, table: EpisodeTable, specs: MultiAgentSpec, row: int) -> None:
        self._table, self._specs, self._row = table, specs, row
        self.custom_data: dict[str, Any] = {}

    def __len__(self) -> int:
        return int(self._table.length[self._row])

    def __getattr__(self, name: str) -> Any:
        """Refuse attributes of episodes that are stored step by step. Raises ``AttributeError``."""
        parts = ["custom_data", *(part for part in dir(type(self)) if not part.startswith("_"))]
        raise AttributeError(expected("episode", f"{', '.join(parts)}: games are played in batches", name))

    length, env_steps = property(__len__), __len__

    @property
    def returns(self) -> dict[str, float]:
        """Canonical return of each seat."""
        return dict(zip(self._specs.seats, self._table.returns[self._row].tolist(), strict=True))

    @property
    def agent_returns(self) -> dict[str, float]:
        """Returns of each agent that learns."""
        return {agent.name: sum(self.returns[seat] for seat in agent.seats) for agent in self._specs.agents}

    @property
    def events(self) -> dict[str, dict[str, float]]:
        """Sums of events by seat, such as ``episode.events["red_0"]["key_pickup"]``."""
        rows = zip(self._specs.seats, self._table.events[self._row].tolist(), strict=True)
        return {seat: dict(zip(self._specs.events, row, strict=True)) for seat, row in rows}

    @property
    def winner(self) -> str | None:
        """The team that has won; ``None``: nobody."""
        team = int(self._table.winner[self._row]) if self._specs.has_winner else -1
        return self._specs.team_names[team] if team >= 0 else None

    @property
    def players(self) -> dict[str, str]:
        """Names of the players on seats where several take turns."""
        numbers = zip(self._specs.pools, self._table.players[self._row].tolist(), strict=False)
        return {seat: names[min(number, len(names) - 1)] for (seat, names), number in numbers}

    @property
    def agent_ids(self) -> set[str]:
        """Names of the agents that learn."""
        return {agent.name for agent in self._specs.agents}

    @cached_property
    def id_(self) -> str:
        """A name that no other episode has."""
        return uuid4().hex

    def get_return(self) -> float:
        """Return the sum over all agents that learn."""
        return sum(self.agent_returns.values())


def call_hooks(config: Any, callbacks: Any, table: EpisodeTable, specs: MultiAgentSpec, logger: MetricsLogger) -> bool:
    """Call all callbacks of each episode, with a logger below ``env_runners``; returns whether there were any."""
    calls: list[Any] = []
    for name in ("on_episode_start", "on_episode_end"):
        default = getattr(RLlibCallback, name)
        calls += [getattr(each, name) for each in force_list(callbacks) if getattr(type(each), name) is not default]
        calls += force_list(getattr(config, f"callbacks_{name}"))
    arguments = {"metrics_logger": logger, "env_runner": None, "env": None, "env_index": 0, "rl_module": None}
    for row in range(table.episodes) if calls else ():
        episode = FinishedEpisode(table, specs, row)
        for call in calls:
            call(episode=episode, **arguments)
    return bool(calls and table.episodes)
