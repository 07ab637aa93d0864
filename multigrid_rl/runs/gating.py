"""From a run's configuration to its gates: which metrics they mean, and whether the run reports them."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from multigrid_rl.config.scenario import GateConfig
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.gates import Gate
from multigrid_rl.metrics import MetricGroup, groups, matches
from multigrid_rl.tables import HEADS
from multigrid_rl.text import ConfigError, expected, suggestion
from multigrid_rl.trust import CODE
from multigrid_rl.types import MultiAgentSpec

#: Metrics that every trainer reports.
_USUAL = ("entropy/", "explained_variance/", "own/")


def gates_of(config: RunConfig, specs: MultiAgentSpec) -> list[Gate]:
    """Return the run's gates: without a value network gates on values are left out.

    Raises ``ConfigError`` for a metric that this run never reports.
    """
    trainer = trainer_of(config.train.trainer)
    gates = [gate for gate in config.scenario.gates if trainer.learns_values or not gate.of_values]
    found = [
        Gate(name, gate.comparison, gate.bound, hold=gate.hold, share=gate.share, window=gate.window)
        for gate in gates
        for name in metrics_of(gate, specs)
    ]
    # Whoever trains, rows have what episodes say, entropy and explained variance: no other trainer is loaded for those.
    own = [gate for gate in found if _group_of(gate.metric).samples is None and not gate.metric.startswith(_USUAL)]
    absent: dict[str, str] = trainer.absent(config) if own else {}
    head = config.model.head
    if head in HEADS and not HEADS[head].probability:
        absent["entropy/*"] = f"model.head={head} has no probabilities"
    for gate in found:
        reasons = {**absent, **_group_of(gate.metric).absent(config, specs)}
        why = next((why for pattern, why in reasons.items() if fnmatchcase(gate.metric, pattern)), None)
        if why is not None:
            raise ConfigError(expected("scenario.gates: metric", f"one that this run reports ({why})", gate.metric))
    return found


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
    wanted = f"a name of docs/metrics.md with {names}, or * for all learners, or module:function"
    raise ConfigError(expected("scenario.gates: metric", wanted, gate.metric + suggestion(gate.metric, known)))


def _names(group: MetricGroup, specs: MultiAgentSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield what a gate may call the metrics of a group, and which metrics it means by that."""
    learning = tuple(dict.fromkeys(specs.teams[specs.seats.index(seat)] for seat in specs.learning))
    # Placeholder in a metric's name, its valid values in a gate, and the values of a star.
    places = (
        ("<seat>", specs.learning, specs.learning),
        ("<team>", tuple(dict.fromkeys(specs.teams)), learning),
        ("<module>", specs.modules, specs.modules),
    )
    for pattern in group.names:
        if re.search("<(player|function|gate)>", pattern):
            continue  # named by what a gate does not know
        place, names, star = next((row for row in places if row[0] in pattern), ("", (), ()))
        yield from ((name, [name]) for name in (pattern.replace(place, name) for name in names or ("",)))
        if place:
            yield pattern.replace(place, "*"), [pattern.replace(place, name) for name in star]
