"""The ``doctor`` verb."""

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
    """Check installation, GPUs, shared memory, disk and Ray; suggest fixes. Status 1 for a problem."""
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
