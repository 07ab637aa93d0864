"""The doors of this house: what a configuration or a command may name, and where it is, as ``module:object``.

The core asks a table and never names an add-on: an entry's module is imported when somebody asks for it. Adding one is
an entry here and its file; an installed package adds some of its own by an entry point of the group
``multigrid_rl.<table>``, such as ``multigrid_rl.environments``.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

#: Kinds of environments: the ``package`` of a scenario.
ENVIRONMENTS: dict[str, str] = {}

#: What ``train.trainer`` may name: who samples, who learns, and their options.
TRAINERS: dict[str, str] = {}

#: What ``model.name`` may name.
NETWORKS: dict[str, str] = {}

#: Groups of metrics of episodes: ``metrics.MetricGroup`` with a function that computes them.
METRICS: dict[str, str] = {
    "returns": "multigrid_rl.metrics:RETURNS",
    "outcomes": "multigrid_rl.metrics:OUTCOMES",
    "doors": "multigrid_rl.world.metrics:DOORS",
}

#: Groups of metrics that a part of training measures itself, the core's before those of add-ons.
MEASURED: dict[str, str] = {
    "run": "multigrid_rl.metrics:RUN",
    "learner": "multigrid_rl.metrics:LEARNER",
    "later": "multigrid_rl.metrics:LATER",
    "own": "multigrid_rl.metrics:OWN",
    "league": "multigrid_rl.league.metrics:LEAGUE",
    "imitation": "multigrid_rl.imitation.metrics:IMITATION",
}

#: Rules by which a pool chooses opponents.
WEIGHTINGS: dict[str, str] = {}

#: Ways to name a player beside the catalogue: programs, hubs, folders of other formats.
PLAYERS: dict[str, str] = {}

#: Verbs of the command line, in the order of typical use.
VERBS: dict[str, str] = {
    "train": "multigrid_rl.cli.train:train",
    "search": "multigrid_rl.search.verbs:search",
    "explain": "multigrid_rl.cli.explain:explain",
    "config": "multigrid_rl.cli.explain:config",
    "overlay": "multigrid_rl.show.overlay:overlay",
    "evaluate": "multigrid_rl.cli.evaluate:evaluate",
    "report": "multigrid_rl.show.verbs:report",
    "video": "multigrid_rl.show.verbs:video",
    "play": "multigrid_rl.show.verbs:play",
    "compare": "multigrid_rl.cli.compare:compare",
    "export": "multigrid_rl.cli.players:export",
    "inspect": "multigrid_rl.cli.players:inspect",
    "grade": "multigrid_rl.competition.grade_verb:grade",
    "cup": "multigrid_rl.competition.verbs:cup",
    "players": "multigrid_rl.cli.players:players",
    "freeze": "multigrid_rl.cli.players:freeze",
    "rate": "multigrid_rl.cli.players:rate",
    "exploit": "multigrid_rl.league.verbs:exploit",
    "record": "multigrid_rl.imitation.verbs:record",
    "data": "multigrid_rl.imitation.verbs:data",
    "reference": "multigrid_rl.show.overlay:reference",
    "import-mlagents": "multigrid_rl.walkers.verbs:import_mlagents",
    "doctor": "multigrid_rl.ops.verbs:doctor",
}


def load(reference: str) -> Any:
    """Import what ``module:object`` names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def find(table: Mapping[str, str], name: str) -> Any:
    """Import what an entry of a table names. Raises ``KeyError``: no such entry."""
    return load(table[name])


@cache
def installed(group: str) -> dict[str, str]:
    """Return the entries that installed packages add to the table ``group``, such as ``environments``."""
    return {point.name: point.value for point in entry_points(group=f"multigrid_rl.{group}")}


def entries(group: str) -> dict[str, str]:
    """Return all entries of a table, such as ``environments``: ours, and those of installed packages."""
    return {**installed(group), **globals()[group.upper()]}
