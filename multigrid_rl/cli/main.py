"""The ``multigrid-rl`` command: all verbs in the order of the help. Each imports what it needs when called."""

import atexit
import gc
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from multigrid_rl.cli.app import Commands, Verbs, fail
from multigrid_rl.cli.compare import ManyAgainst, compare
from multigrid_rl.cli.evaluate import evaluate, grade
from multigrid_rl.cli.explain import config, explain
from multigrid_rl.cli.players import export, freeze, inspect, players, rate
from multigrid_rl.cli.train import train
from multigrid_rl.competition.verbs import cup
from multigrid_rl.imitation.verbs import data, record
from multigrid_rl.league.verbs import exploit
from multigrid_rl.search.verbs import search
from multigrid_rl.show.overlay import overlay, reference
from multigrid_rl.show.verbs import play, report, video
from multigrid_rl.walkers.verbs import import_mlagents

# A verb loads millions of objects that stay: scanning them for garbage again and again, and at exit, takes two seconds.
gc.set_threshold(300_000)
atexit.register(gc.freeze)

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_LEVEL, _CHECK = 9, 11  # columns


def doctor(
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to look at, too: auto, host:port or ray://host:port.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON at the end.")] = False,
    patience: Annotated[float, typer.Option(min=1, help="Seconds that Ray has for a task.")] = 90.0,
) -> None:
    """Check installation, threads, memory, disk, opponents and Ray; say what to change. Status 1 for a problem."""
    from multigrid_rl.ops.doctor import examine

    console, findings = Console(highlight=False), []
    for finding in examine(Path.cwd(), address, patience):
        findings.append(finding)
        line = Text(f"{finding.level:<{_LEVEL}}", style=STYLES[finding.level])
        console.print(line.append(f"{finding.check:<{_CHECK}}{finding.found}", style="default"), soft_wrap=True)
        if finding.change:
            console.print(Text(f"{'':{_LEVEL + _CHECK}}-> {finding.change}"), soft_wrap=True)
    counts = Counter(finding.level for finding in findings)
    console.print(f"{counts['ok']} ok, {counts['warning']} warning(s), {counts['problem']} problem(s)")
    if as_json:
        rows = [finding._asdict() for finding in findings]
        typer.echo(json.dumps({"problems": counts["problem"], "warnings": counts["warning"], "findings": rows}))
    if counts["problem"]:
        raise typer.Exit(1)


def verify_trace(files: Annotated[list[Path], typer.Argument(help="Recorded episodes, .npz")]) -> None:
    """Replay recorded episodes and compare every array that the rules determine; status 1 for a difference."""
    from multigrid_rl.world import traces

    differ, unread = False, None
    for file in files:
        try:
            report = traces.verify_trace(file)
        except traces.TraceError as error:
            unread = fail(f"{file}: {error}")
            continue
        differ |= report.divergence is not None
        same = f"identical ({report.config}, {report.episodes} episodes, {report.steps} steps)"
        typer.echo(f"{file}: {report.divergence or same}")
    if differ:
        raise typer.Exit(1)
    if unread is not None:
        raise unread


#: In the order of typical use.
VERBS: tuple[Callable[..., None], ...] = (
    *(train, search, explain, config, overlay, evaluate, report, video, play, compare),
    *(export, inspect, grade, cup, players, freeze, rate, exploit, record, data, reference),
    *(import_mlagents, verify_trace, doctor),
)
app = Verbs(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(version: bool) -> None:
    if version:
        from multigrid_rl import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and leave.")
    ] = False,
) -> None:
    """Train, judge and watch agents: teams in red/blue-door games, bodies in MuJoCo, anything of Gymnasium.

    Begin with: multigrid-rl train scenario=1v1. What may be set: multigrid-rl config. Guides are in docs/.
    """


for verb in VERBS:
    app.command(cls=ManyAgainst if verb is compare else None)(verb)

if __name__ == "__main__":
    app()
