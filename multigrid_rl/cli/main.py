"""The ``multigrid-rl`` command: all verbs in the order of the help. Each imports what it needs when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from multigrid_rl.cli.app import Verbs
from multigrid_rl.cli.checks import doctor, verify_trace
from multigrid_rl.cli.compare import ManyAgainst, compare
from multigrid_rl.cli.cup import cup
from multigrid_rl.cli.data import data, record
from multigrid_rl.cli.evaluate import evaluate, grade
from multigrid_rl.cli.explain import config, explain
from multigrid_rl.cli.exploit import exploit
from multigrid_rl.cli.mlagents import import_mlagents
from multigrid_rl.cli.overlay import overlay, reference
from multigrid_rl.cli.players import export, freeze, inspect, players, rate
from multigrid_rl.cli.search import search
from multigrid_rl.cli.train import train
from multigrid_rl.cli.watch import play, report, video

#: What one does first comes first.
VERBS: tuple[Callable[..., None], ...] = (
    *(train, search, explain, config, overlay, evaluate, report, video, play, compare),
    *(export, inspect, grade, cup, players, freeze, rate, exploit, record, data, reference),
    *(import_mlagents, verify_trace, doctor),
)
app = Verbs(no_args_is_help=True, pretty_exceptions_enable=False)


def _told(version: bool) -> None:
    if version:
        from multigrid_rl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_told, is_eager=True, help="Print it and leave.")
    ] = False,
) -> None:
    """Train, judge and watch agents: teams in red/blue-door games, bodies in MuJoCo, anything of Gymnasium.

    Begin with: multigrid-rl train scenario=1v1. What may be set: multigrid-rl config. Guides are in docs/.
    """


for verb in VERBS:
    app.command(cls=ManyAgainst if verb is compare else None)(verb)

if __name__ == "__main__":
    app()
