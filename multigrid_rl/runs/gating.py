"""From a run's configuration to its gates: which metrics they mean, and whether the run reports them."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from multigrid_rl.config.network import WITHOUT_PROBABILITY
from multigrid_rl.config.scenario import CODE, ConfigError, GateConfig
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.gates import Gate
from multigrid_rl.metrics import MetricGroup, groups
from multigrid_rl.text import expected, suggestion
from multigrid_rl.types import MultiAgentSpec


def gates_of(config: RunConfig, specs: MultiAgentSpec) -> list[Gate]:
    """Return the run's gates: cloning has no values, so gates on values are left out.

    Raises ``ConfigError`` for a metric that this run never reports.
    """
    gates = [gate for gate in config.scenario.gates if config.train.cloning is None or not gate.of_values]
    found = [
        Gate(name, gate.comparison, gate.bound, hold=gate.hold, share=gate.share, window=gate.window)
        for gate in gates
        for name in metrics_of(gate, specs)
    ]
    absent = _absent(config, specs) if found else {}
    for gate in found:
        why = next((why for pattern, why in absent.items() if fnmatchcase(gate.metric, pattern)), None)
        if why is not None:
            raise ConfigError(expected("scenario.gates: metric", f"one that this run reports ({why})", gate.metric))
    return found


def _absent(config: RunConfig, specs: MultiAgentSpec) -> dict[str, str]:
    """Return what rows of this run do not have when gates are judged: patterns of metrics with the reason."""
    head = config.model.head
    found = {"entropy/*": f"model.head={head} has no probabilities"} if head in WITHOUT_PROBABILITY else {}
    if config.train.runner == "stock":
        names = ("approx_kl/*", "clip_fraction/*", "learner/*/dropped_updates")
        found |= dict.fromkeys(names, "train.runner=stock does not report it")
    for group in groups("metrics", "measured"):
        found |= group.absent(config, specs)
    return found


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
