"""Verbs for recorded play: ``data record`` writes it, ``data`` shows it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from multigrid_rl.cli.app import refused
from multigrid_rl.cli.output import console, one_thread


def record(
    who: Annotated[str, typer.Argument(help="A player of `multigrid-rl players`, its folder, or a run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder to write.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides: scenario=halfcheetah. By default the player's own.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Environment steps to keep.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of environments and drawn actions.")] = 20_000,
    mode: Annotated[
        Literal["stochastic", "argmax"], typer.Option(help="Draw actions as in training, or take the likeliest.")
    ] = "stochastic",
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of a run; the latest by default.")] = None,
) -> None:
    """Let a player play where others learn, and keep every step to learn from (docs/imitation.md)."""
    from multigrid_rl.imitation.recording import record_play

    one_thread()
    typer.echo(record_play(who, overrides or [], output, steps, seed, greedy=mode == "argmax", checkpoint=checkpoint))


def data(
    action: Annotated[
        Literal["show", "import", "export"],
        typer.Argument(help="show: check everything and list what is in it; import: from others; export: for others."),
    ],
    source: Annotated[
        str, typer.Argument(help="Folder with recorded play; to import a .pt, .pth or .json file or minari:ID.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Where imported play was recorded: scenario=halfcheetah.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder to import to; minari:ID to export to.")
    ] = None,
    who: Annotated[
        str | None, typer.Option(help='Who plays in what is imported; of games whose steps are ("you" by default).')
    ] = None,
) -> None:
    """Check recorded play and show what is in it, or exchange it with others (docs/imitation.md)."""
    from multigrid_rl.imitation import demonstrations, formats

    if action != "import" and (overrides or who is not None):
        raise refused(f"data {action}", "neither overrides nor --who", " ".join(overrides or [f"--who {who}"]))
    if action == "show":
        if output is not None:
            raise refused("--output", "nothing to write with data show", output)
        recorded = demonstrations.read_demonstrations(Path(source))
        screen = console()
        screen.print(recorded.card.summary())
        for name, value in recorded.card.model_dump(exclude_none=True, exclude={"format", "versions"}).items():
            screen.print(f"{name}: {value}")
        return
    if output is None:
        raise refused("--output", "where to write", "none")
    if action == "import":
        for line in formats.import_play(source, Path(output), list(overrides or []), who):
            typer.echo(line)
        return
    if not output.startswith(formats.MINARI):
        raise refused("--output", "minari:ID", output)
    recorded = demonstrations.read_demonstrations(Path(source))
    formats.write_minari(recorded, output.removeprefix(formats.MINARI))
    typer.echo(f"exported {output}: {recorded.card.summary()}")


def import_policy(
    source: Annotated[Path, typer.Argument(help="A state_dict of CleanRL's (.pt, .cleanrl_model), a zip of SB3's.")],
    overrides: Annotated[list[str], typer.Argument(help="Where it plays: scenario=halfcheetah.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder of the player.")],
    activation: Annotated[
        Literal["tanh", "relu", "elu", "silu"] | None,
        typer.Option(help="Between its layers, if not its library's own."),
    ] = None,
) -> None:
    """Make another library's policy a frozen player and a DAgger expert (docs/imitation.md)."""
    from multigrid_rl.imitation.imported_policies import import_player

    for line in import_player(source, overrides, output, activation):
        typer.echo(line)
