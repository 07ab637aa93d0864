"""The ``search`` verb: checks options, opens the search folder, and runs the search."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import fail, refused
from multigrid_rl.files import install_command


def search(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="scenario=1v1 search=three-stage, search.KEY=VALUE, and overrides that all trials share"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder to write; runs/search/<scenario>-<search>-<time> by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the interrupted search in this folder.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster whose nodes run trials: auto, or HOST:6379. Else this machine.")
    ] = None,
    require_gates: Annotated[
        bool, typer.Option("--require-gates", help="Leave with status 1 unless the winner held all gates.")
    ] = False,
) -> None:
    """Search for values that hold a scenario's gates: three-stage, asha or pbt."""
    if resume is not None and (overrides or folder is not None):
        raise refused("--resume", "no overrides and no --folder beside it, for it goes on as it began", "some")
    if find_spec("optuna") is None:
        raise refused("search", f"the extra search ({install_command('search')})", "no optuna")
    from multigrid_rl.search.search_folder import SearchFolder

    place = SearchFolder.from_overrides(overrides or [], folder) if resume is None else SearchFolder.reopen(resume)
    # Imported after the checks above, since Ray takes two seconds.
    from multigrid_rl.search.tuning import run_search

    result, interrupted = run_search(place, address)
    if interrupted:
        raise typer.Exit(130)
    if result.winner is None:
        first = result.failed[0]
        fail(f"all {len(result.failed)} trials failed; {first.spec.id}: {first.reason}")
    if result.winner is None or (require_gates and not result.winner.confirmed):
        raise typer.Exit(1)
