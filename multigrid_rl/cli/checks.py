"""Verbs that check: the machine (``doctor``) and recorded episodes (``verify-trace``)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

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
    from multigrid_rl.rllib.doctor import examine

    console, found = Console(highlight=False), []
    for finding in examine(Path.cwd(), address, patience):
        found.append(finding)
        line = Text(f"{finding.level:<{_LEVEL}}", style=STYLES[finding.level])
        console.print(line.append(f"{finding.check:<{_CHECK}}{finding.found}", style="default"), soft_wrap=True)
        if finding.change:
            console.print(Text(f"{'':{_LEVEL + _CHECK}}-> {finding.change}"), soft_wrap=True)
    counts = Counter(finding.level for finding in found)
    console.print(f"{counts['ok']} ok, {counts['warning']} warning(s), {counts['problem']} problem(s)")
    if as_json:
        rows = [finding._asdict() for finding in found]
        typer.echo(json.dumps({"problems": counts["problem"], "warnings": counts["warning"], "findings": rows}))
    if counts["problem"]:
        raise typer.Exit(1)


def verify_trace(files: Annotated[list[Path], typer.Argument(help="Recorded episodes, .npz")]) -> None:
    """Replay recorded episodes and compare every array that the rules determine."""
    from multigrid_rl.world import traces

    bad = False
    for file in files:
        try:
            report = traces.verify_trace(file)
            told = f"identical ({report.config}, {report.episodes} episodes, {report.steps} steps)"
            if report.divergence is not None:
                told, bad = str(report.divergence), True
        except traces.TraceError as error:
            told, bad = str(error), True
        typer.echo(f"{file}: {told}")
    if bad:
        raise typer.Exit(1)
