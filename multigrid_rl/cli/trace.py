"""The ``verify-trace`` verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify_trace(files: Annotated[list[Path], typer.Argument(help="Recorded episodes, .npz")]) -> None:
    """Replay recorded episodes and compare every array that the rules determine."""
    from multigrid_rl.world import traces

    bad = False
    for file in files:
        try:
            report = traces.verify_trace(file)
            told = f"{report.divergence or 'identical'}"
            if report.divergence is None:
                told += f" ({report.config}, {report.episodes} episodes, {report.steps} steps)"
            bad |= report.divergence is not None
        except traces.TraceError as error:
            told, bad = str(error), True
        typer.echo(f"{file}: {told}")
    if bad:
        raise typer.Exit(1)
