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

#: Groups of metrics that runs report.
METRICS: dict[str, str] = {}

#: Rules by which a pool chooses opponents.
WEIGHTINGS: dict[str, str] = {}

#: Ways to name a player beside the catalogue: programs, hubs, folders of other formats.
PLAYERS: dict[str, str] = {}

#: Pages of what commands have written, by what they wrote: a function of its folder that writes the page. The page of
#: a game is text, of its record.
PAGES: dict[str, str] = {
    "run": "multigrid_rl.show.report:write_run_report",
    "cup": "multigrid_rl.show.report:write_cup_report",
    "game": "multigrid_rl.show.replay:game_page",
}

#: Figures that commands draw, as PNG: a function of what is drawn, then of the file.
FIGURES: dict[str, str] = {
    "comparison": "multigrid_rl.show.figures:save_comparison",
    "best responses": "multigrid_rl.show.figures:save_best_responses",
}

#: Films: of a recorded game; of episodes of an environment, for a page and, chosen by name, as a file.
FILMS: dict[str, str] = {
    "game": "multigrid_rl.show.video:write_video",
    "page": "multigrid_rl.walkers.films:play_own_episodes",
    "pick": "multigrid_rl.walkers.films:pick",
    "episode": "multigrid_rl.walkers.films:write_episode",
}

#: Folders whose players fill all seats of a team.
TEAMS: dict[str, str] = {"bundle": "multigrid_rl.competition.bundle:load_team"}

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
    "grade": "multigrid_rl.cli.evaluate:grade",
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


def find(table: Mapping[str, str], name: str) -> Any:
    """Import what an entry of a table names. Raises ``KeyError``: no such entry."""
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


@cache
def installed(group: str) -> dict[str, str]:
    """Return the entries that installed packages add to the table ``group``, such as ``environments``."""
    return {point.name: point.value for point in entry_points(group=f"multigrid_rl.{group}")}
