"""``python -m multigrid_rl``: the command."""

from multigrid_rl.cli.main import app

app()
