"""Metrics: groups of names with their meaning, the groups of every run, and their pure arithmetic.

``<seat>`` is a seat such as ``red_0``, ``<team>`` a team such as ``red``; ``<module>`` is a trained network, named
after the seat it plays, or after its team if it plays several seats (``shared=true``, ``scheme=ctce``).

``tables.METRICS`` lists the groups that are computed from finished episodes: the same functions serve a run's rows, the
table of ``evaluate`` and the checks of a grade. ``tables.MEASURED`` lists groups that parts of training measure.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl import tables
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import user_code
from multigrid_rl.types import EpisodeTable, MultiAgentSpec, RunError


class Sample(NamedTuple):
    """Values of a metric over some episodes."""

    values: NDArray[Any]  # (m,) of the episodes that count; booleans if the metric is a share
    mean: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Sample":
        """Return values (m,) with their mean, NaN without values."""
        return cls(values, float(values.mean()) if len(values) else float("nan"))


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that belong together: an entry of ``tables.METRICS`` or ``tables.MEASURED``.

    Attributes:
        names: name pattern -> (meaning, unit).
        samples: computes metrics of episodes: (episodes, agents and seats, requested seats and teams) -> name ->
            sample. ``None``: they are measured elsewhere.
        absent: (configuration of a run, agents and seats) -> pattern of names that its rows lack when gates are
            judged -> reason.
        column: whether ``evaluate`` adds columns for the metrics.
    """

    names: Mapping[str, tuple[str, str]]
    samples: Callable[[EpisodeTable, MultiAgentSpec, Sequence[str]], dict[str, Sample]] | None = None
    absent: Callable[[Any, MultiAgentSpec], dict[str, str]] = lambda config, specs: {}  # noqa: ARG005
    column: bool = True

    def measure(self, table: EpisodeTable, specs: MultiAgentSpec, names: Sequence[str]) -> dict[str, Sample]:
        """Return the metrics of some episodes by name. Raises ``RunError``: the group of another package fails."""
        assert self.samples is not None  # `groups("metrics")` has checked it
        ours = self.samples.__module__.startswith("multigrid_rl.")
        with nullcontext() if ours else user_code(f"metrics {', '.join(self.names)}", RunError):
            return {name: Sample(*sample) for name, sample in self.samples(table, specs, names).items()}


def groups(*names: str) -> Iterator[MetricGroup]:
    """Yield groups of the tables ``metrics`` and ``measured`` whose add-ons exist. Raises ``ConfigError``: no group."""
    for name in names:
        table = tables.entries(name)
        for key, group in tables.loaded(table):
            if not isinstance(group, MetricGroup) or (name == "metrics" and group.samples is None):
                raise ConfigError(expected(table[key], "a MetricGroup (metrics: with samples)", type(group)))
            yield group


def glossary() -> dict[str, tuple[str, str]]:
    """Return meaning and unit of every metric, by name pattern."""
    return {pattern: entry for group in groups("metrics", "measured") for pattern, entry in group.names.items()}


def matches(name: str, pattern: str) -> bool:
    """Return whether a metric name fits a pattern; ``<gate>`` may itself contain slashes."""
    return re.fullmatch(re.sub("<[a-z]+>", "[^/]+", pattern.replace("<gate>", ".+")), name) is not None


def samples_of(table: EpisodeTable, specs: MultiAgentSpec, names: Sequence[str]) -> dict[str, Sample]:
    """Return all metrics of some episodes by name, for the seats and teams in ``names``."""
    found: dict[str, Sample] = {}
    for group in groups("metrics"):
        found |= group.measure(table, specs, names)
    return found


def episode_metrics(table: EpisodeTable, specs: MultiAgentSpec) -> dict[str, float]:
    """Return means over finished episodes (at least one) for the learning seats and for every team."""
    samples = samples_of(table, specs, (*specs.learning, *dict.fromkeys(specs.teams)))
    return {"report_episodes": float(table.episodes), **{name: sample.mean for name, sample in samples.items()}}


# --- groups that every run has


def _returns(table: EpisodeTable, specs: MultiAgentSpec, names: Sequence[str]) -> dict[str, Sample]:
    # Means of all columns at once: numpy sums a table row by row, but a single column pairwise, with other rounding.
    means = dict(zip(specs.seats, table.returns.mean(axis=0).tolist(), strict=True))
    found = {"episode_len_mean": Sample.of(table.length)}
    for name in names:
        if name in means:
            found[f"return_mean/{name}"] = Sample(table.returns[:, specs.seats.index(name)], means[name])
        else:
            mates = specs.members(name)
            values = table.returns[:, [specs.seats.index(seat) for seat in mates]].sum(axis=1)
            found[f"team_return_mean/{name}"] = Sample(values, sum(means[seat] for seat in mates))
    return found


def _outcomes(table: EpisodeTable, specs: MultiAgentSpec, names: Sequence[str]) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for seat in names:
        if not specs.has_winner or seat not in specs.seats:
            continue
        team = specs.teams[specs.seats.index(seat)]
        code = specs.team_names.index(team)
        won, drawn = table.winner == code, table.winner < 0
        win, draw, defeat = outcome_shares(table.winner, code)
        found[f"win/{seat}"], found[f"draw/{seat}"] = Sample(won, win), Sample(drawn, draw)
        found[f"defeat/{seat}"] = Sample(~(won | drawn), defeat)
        for name, games in games_against(table, specs, team).items():
            found[f"win_against/{seat}/{name}"] = Sample.of(won[games])
    return found


def games_against(table: EpisodeTable, specs: MultiAgentSpec, team: str) -> dict[str, NDArray[np.bool_]]:
    """Return masks (M,) of the episodes of each player in pools on seats of other teams."""
    pools = enumerate(specs.pools)
    return table.with_players({k: names for k, (seat, names) in pools if specs.teams[specs.seats.index(seat)] != team})


def _no_winner(config: Any, specs: MultiAgentSpec) -> dict[str, str]:
    if specs.has_winner:
        return {}
    return dict.fromkeys(("win/*", "draw/*", "defeat/*"), f"{config.scenario.name} has no winner")


#: Counts of a run.
RUN = MetricGroup(
    {
        "iteration": ("training iterations so far: one rollout and its update", "count"),
        "env_steps": ("environment steps so far; one step moves every agent of one game", "steps"),
        "policy_updates": ("updates so far: one per iteration, `epochs` passes over its batch", "count"),
        "gradient_steps": ("minibatch gradient steps so far, per module", "count"),
        "seconds": ("wall time since training began, set-up not counted", "s"),
        "episodes": ("finished episodes so far", "count"),
        "report_episodes": ("finished episodes behind this row's episode metrics", "count"),
        "stage": ("stage of the curriculum that this row was played in, from 0", "number"),
        "env_runners": ("processes that played this row: remote env runners, or the driver alone", "count"),
        "env_runner_restarts": ("env runners lost so far; each is replaced", "count"),
    }
)

#: Lengths and returns.
RETURNS = MetricGroup(
    {
        "episode_len_mean": ("mean length of the episodes that finished", "steps"),
        "return_mean/<seat>": ("mean canonical return of the seat, never shaped", "reward"),
        "team_return_mean/<team>": ("mean canonical return of the team: the sum of its seats'", "reward"),
    },
    _returns,
    column=False,
)

#: Who won.
OUTCOMES = MetricGroup(
    {
        "win/<seat>": ("share of episodes that the seat's team won", "share"),
        "draw/<seat>": ("share of episodes without a winner", "share"),
        "defeat/<seat>": ("share of episodes that the other team won", "share"),
        "win_against/<seat>/<player>": (
            "share won of the episodes against this player of a pool; `snapshots`: against all of a league's together",
            "share",
        ),
    },
    _outcomes,
    _no_winner,
    column=False,
)

#: Metrics of updates.
LEARNER = MetricGroup(
    {
        "explained_variance/<module>": (
            "1 - Var(target - value) / Var(target) over the whole train batch (sac, dac: the last minibatch)",
            "ratio",
        ),
        "entropy/<module>": (
            "mean entropy of the sampling policy over the whole train batch; a joint action's is summed over seats",
            "nats",
        ),
        "approx_kl/<module>": (
            "KL divergence from the policy that played: mean of (r - 1) - log r over the minibatches of the update",
            "nats",
        ),
        "approx_kl_k1/<module>": ("the same by the mean of -log r, as Spinning Up prints it; may be negative", "nats"),
        "clip_fraction/<module>": (
            "share of steps with a ratio outside of 1 +- clip, mean over these minibatches",
            "share",
        ),
        "learner/<module>/policy_loss": ("clipped surrogate loss, last minibatch", "loss"),
        "learner/<module>/vf_loss": ("value loss, last minibatch", "loss"),
        "learner/<module>/grad_norm": ("global gradient norm before clipping, last minibatch", "norm"),
        "learner/<module>/dropped_updates": (
            "minibatch gradients of this update that were not finite and left out",
            "count",
        ),
        "learner/<module>/lr": ("Adam step size after this update", "1"),
        "learner/<module>/entropy_coef": ("entropy bonus weight after this update", "1"),
        "learner/<module>/kl_loss": ("with train.kl_coef: KL divergence, last minibatch", "nats"),
        "learner/<module>/kl_coef": ("with train.kl_coef: its weight after this update", "1"),
    }
)

#: Metrics that are known only after the gates of a report are judged.
LATER = MetricGroup(
    {
        "env_steps_per_s": ("environment steps a second over this row, everything included", "steps/s"),
        "timing/sample_s": ("playing, all of it", "s"),
        "timing/engine_s": ("of it: the game (with several env runners, the mean over them; likewise below)", "s"),
        "timing/play_s": ("of it: whole steps in one compiled call, where those who act are compiled alike", "s"),
        "timing/players_s": ("of it: the background players' decisions", "s"),
        "timing/tokens_s": ("of it: observations into the batch", "s"),
        "timing/forward_s": ("of it: logits and values of the learning networks", "s"),
        "timing/draw_s": ("of it: drawing actions, their log-probability and entropy", "s"),
        "timing/gae_s": ("of it: advantages", "s"),
        "timing/learn_s": ("the update, all of it", "s"),
        "timing/minibatch_s": ("of it: cutting minibatches", "s"),
        "timing/network_s": (
            "of it: passes forward and back; the loss with torch's own; in one compiled call, all steps",
            "s",
        ),
        "timing/loss_s": ("of it: the loss and its gradient by logits and values, where it is a call of its own", "s"),
        "timing/optimizer_s": ("of it: clipping and Adam, where they are calls of their own", "s"),
        "timing/normalise_s": ("of it: measuring observations and targets", "s"),
        "timing/sync_s": ("sending weights to the env runners", "s"),
        "timing/metrics_s": ("metrics and gates, and records and display of the iteration before", "s"),
        "timing/checkpoint_s": ("the checkpoint after the iteration before", "s"),
        "timing/other_s": ("everything else: the iteration without sample, learn, sync, metrics and checkpoint", "s"),
        "timing/overhead_share": (
            "share of the iteration that is neither engine, play, players, forward, network, loss nor optimizer",
            "share",
        ),
        "gates/<gate>/met": ("1 where this report meets the gate, else 0", "flag"),
        "gates/<gate>/held_steps": ("environment steps for which the gate has been met without a break", "steps"),
        "gates/held": ("1 once every gate is held", "flag"),
    },
    absent=lambda config, specs: dict.fromkeys(  # noqa: ARG005
        ("timing/*", "gates/*", "env_steps_per_s"), "it is measured after the gates are judged"
    ),
)

#: Metrics by functions of the user, which gates name.
OWN = MetricGroup(
    {"own/<function>": ("what a function of your own, which a gate names, says of the report's episodes", "its own")}
)

#: Consecutive parts of an iteration; the other ``timing/`` metrics are parts of these.
STAGES = ("sample", "learn", "sync", "metrics", "checkpoint")
#: Parts that play games and compute networks; all others are overhead.
WORK = ("engine", "play", "players", "forward", "network", "loss", "optimizer")


# --- arithmetic


def explained_variance(targets: NDArray[np.float32], values: NDArray[np.float32]) -> float:
    """Return ``1 - Var(targets - values) / Var(targets)`` over all rows; NaN where the targets do not vary.

    1 is a perfect critic, 0 one no better than a constant. Both arrays have shape ``(B,)``.
    """
    if (variance := float(np.var(targets, dtype=np.float64))) == 0.0:
        return float("nan")
    return 1.0 - float(np.var(targets - values, dtype=np.float64)) / variance


def outcome_shares(winner: NDArray[np.int8], team: int) -> tuple[float, float, float]:
    """Return shares of wins, draws and losses of ``team`` (0 red, 1 blue) from the win flags ``(M,)``, ``M >= 1``.

    A win is the win flag, never "more reward than the other".
    """
    win = float(np.mean(winner == team))
    draw = float(np.mean(winner < 0))
    return win, draw, max(0.0, 1.0 - win - draw)  # rounding must not make it -0.0


def ahead(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 where the return ``one`` is larger, -1 where it is smaller, 0 where they differ only by rounding."""
    equal = np.isclose(one, other, rtol=1e-12, atol=1e-6)  # sums of floats depend on their order
    return np.where(equal, 0.0, np.sign(one - other))
