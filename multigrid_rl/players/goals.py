"""From a scenario's gates to the gates of one run, whose seats, teams and networks are known."""

from __future__ import annotations

from multigrid_rl.config import ConfigError
from multigrid_rl.gates import Gate
from multigrid_rl.metrics import METRICS
from multigrid_rl.schema import GateConfig, RunConfig
from multigrid_rl.types import MultiAgentSpec


def gates_of(config: RunConfig, specs: MultiAgentSpec) -> list[Gate]:
    """The run's gates.

    Raises:
        ConfigError: a gate on something that this run never reports.
    """
    return [_gate(gate, name) for gate in config.scenario.gates for name in metrics_of(gate, specs)]


def metrics_of(gate: GateConfig, specs: MultiAgentSpec) -> list[str]:
    """Names of the metrics that a gate is about; ``*`` stands for every learning seat, team or network.

    Raises:
        ConfigError: this run never reports such a metric.
    """
    learning = {specs.teams[specs.seats.index(seat)]: None for seat in specs.learning}
    stands_for = {"<seat>": specs.learning, "<team>": tuple(learning), "<module>": specs.modules}
    known = []
    for pattern in METRICS:
        place = next((p for p in stands_for if p in pattern), None)
        if place is None:
            known += [pattern] if pattern == gate.metric else []
            continue
        if gate.metric == pattern.replace(place, "*"):
            return [pattern.replace(place, name) for name in stands_for[place]]
        names = dict.fromkeys(specs.teams) if place == "<team>" else stands_for[place]
        known += [gate.metric for name in names if gate.metric == pattern.replace(place, name)]
    if not known:
        seats, teams, networks = map(", ".join, (specs.learning, dict.fromkeys(specs.teams), specs.modules))
        raise ConfigError(
            f"scenario.gates: metric={gate.metric}: not reported in this run; allowed is a name of docs/metrics.md "
            f"with seats {seats}, teams {teams}, networks {networks}, or * for all that learn"
        )
    return known


def _gate(gate: GateConfig, metric: str) -> Gate:
    below = gate.at_most is not None
    return Gate(
        metric=metric,
        comparison="<=" if below else ">=",
        bound=float((gate.at_most if below else gate.at_least) or 0.0),
        hold=gate.hold,
        share=gate.share,
        window=gate.window,
    )
