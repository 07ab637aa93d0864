"""The ``multigrid-rl`` command: the verbs of the table, in its order, each imported when it is called."""

import atexit
import gc
import os
from typing import Annotated

from multigrid_rl import __version__

try:  # these imports take a quarter of a second; Ctrl-C during them needs no cleanup
    import typer

    from multigrid_rl.cli.app import Commands, Verbs
    from multigrid_rl.trust import SAFE
except KeyboardInterrupt:
    raise SystemExit(130) from None

# A verb loads millions of long-lived objects; collecting garbage among them, during the verb and at exit, takes 2 s.
gc.set_threshold(300_000)
atexit.register(gc.freeze)

app = Verbs(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(version: bool) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[  # noqa: ARG001 - its callback has done it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    safe: Annotated[bool, typer.Option("--safe", help="Refuse files that name code, instead of running it.")] = False,
) -> None:
    """Train, judge and watch agents: teams in red/blue-door games, bodies in MuJoCo, anything of Gymnasium.

    Begin with: multigrid-rl train scenario=1v1. What may be set: multigrid-rl config. Guides are in docs/.
    """
    if safe:
        os.environ[SAFE] = "1"


if __name__ == "__main__":
    app()
