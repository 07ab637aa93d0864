"""The command line, called as a user does, for tests."""

from __future__ import annotations

from typer.testing import CliRunner

from multigrid_rl.cli.main import app


def call(*args: object, **env: str):
    """Call ``multigrid-rl`` with these arguments, on a wide terminal without colours."""
    return CliRunner().invoke(app, list(map(str, args)), env={"COLUMNS": "250", "NO_COLOR": "1", **env})


def complaint(result) -> str:
    """The one line that a refusal prints."""
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("multigrid-rl: ")
    return lines[0]
