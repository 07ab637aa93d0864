"""Verbs about players: of the catalogue (``players``, ``rate``, ``freeze``) and bundles (``export``, ``inspect``)."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.cli.app import ended_by_signals, fail, one_thread, refused

Checkpoints = Annotated[Path | None, typer.Option(help="Folder of frozen players; by default yours, and ours.")]
Checkpoint = Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")]
#: Episodes of an environment that measure a player; they may be long.
ENV_EPISODES = 100
RunPath = Annotated[Path, typer.Argument(help="Run folder.")]


def players(
    measure: Annotated[
        int, typer.Option(min=0, help="Play so many games against random now instead of quoting the catalogue.")
    ] = 0,
    scenario: Annotated[str, typer.Option(help="Scenario of the games played now.")] = "1v1",
    checkpoints: Checkpoints = None,
) -> None:
    """List the players with their measured strength."""
    from multigrid_rl.config import load_scenario
    from multigrid_rl.players import freeze as measuring
    from multigrid_rl.players.cards import PlayerError, read_card
    from multigrid_rl.players.catalogue import BUILT_IN, WHAT, Catalogue

    catalogue = Catalogue(checkpoints)
    measured = "against random: win / draw / loss; or return"
    table = Table("player", "seats", "what it is", measured, "best response", "sha256", box=None, pad_edge=False)
    for name in catalogue.names():
        if name in BUILT_IN:
            seats, what, sha, best, returns = "any", WHAT[name], "-", None, None
        else:
            card = read_card(catalogue.folder(name))
            trained, architecture = card.provenance.get("env_steps"), card.architecture["name"]
            seats, sha, best = ", ".join(card.seats), card.sha256[:16], card.best_response
            returns = (card.returns or {}).get("stochastic")
            what = f"frozen {architecture} of {card.scenario}" + (f", {trained:,} steps" if trained else "")
        rows = [row for row in catalogue.strength(name) if row.opponent == "random"]
        if measure:
            one_thread()
            spec = load_scenario(scenario).spec
            try:
                rows = [measuring.measure(catalogue, name, "random", spec, scenario, measure)]
            except PlayerError:
                rows = []  # this player does not play this game
        shares = [
            f"{row.win:.1%} / {row.draw:.1%} / {row.loss:.1%} ({row.scenario}, {row.episodes} games)" for row in rows
        ]
        if returns is not None:
            shares = [f"return {returns.mean:,.0f} ({returns.episodes} episodes)"]
        response = "-" if best is None else f"{best.win:.1%} after {best.env_steps:,} steps ({best.scenario})"
        table.add_row(name, seats, what, "\n".join(shares) or "not measured", response, sha)
    Console(highlight=False).print(table)


def rate(
    scenario: Annotated[str, typer.Argument(help="Scenario whose frozen players meet.")],
    episodes: Annotated[int, typer.Option(min=100, help="Games for each pair, half from each side.")] = 1000,
    checkpoints: Checkpoints = None,
) -> None:
    """Measure every frozen player of a scenario against random, scripted and frozen players; rewrites their cards."""
    from multigrid_rl.config import scenario_id
    from multigrid_rl.players import freeze
    from multigrid_rl.players.catalogue import Catalogue

    one_thread()
    catalogue, stem = Catalogue(checkpoints), scenario_id(scenario)
    known = sorted({str(entry["scenario"]) for entry in catalogue.entries.values() if "scenario" in entry})
    if stem not in known:
        raise refused("scenario", f"one that a frozen player was made for ({', '.join(known)})", scenario)
    table = Table("player", "opponent", "win", "draw", "loss", "length", box=None, pad_edge=False)
    for card in freeze.rate(catalogue, stem, episodes):
        for row in card.strength:
            if row.scenario == stem:
                shares = (f"{share:.1%}" for share in (row.win, row.draw, row.loss))
                table.add_row(card.name, row.opponent, *shares, f"{row.length_mean:.1f}")
    Console(highlight=False).print(table)


def freeze(
    run: RunPath,
    seat: Annotated[str, typer.Option(help="Seat to freeze, for example blue_0; a team if one network plays it.")],
    name: Annotated[str, typer.Option(help="Name in the catalogue, for example blue-rookie.")],
    checkpoint: Checkpoint = None,
    episodes: Annotated[int, typer.Option(min=100, help="Games that measure its strength.")] = 1000,
    checkpoints: Checkpoints = None,
) -> None:
    """Turn a trained seat into a frozen player: model, card and catalogue entry. Never overwrites."""
    from multigrid_rl.judge import environments
    from multigrid_rl.players import freeze
    from multigrid_rl.players.cards import write_card
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.runs.players import run_player

    one_thread()
    catalogue = Catalogue(checkpoints)
    card = freeze.freeze(run_player(run, seat, checkpoint), name, catalogue, episodes)
    typer.echo(f"froze {catalogue.root / name}: {card.bytes} bytes, sha256 {card.sha256}")
    if card.env is not None:
        target = environments.run_env_target(run, checkpoint=checkpoint)
        returns = environments.returns_of(target, min(episodes, ENV_EPISODES), freeze.STRENGTH_SEED)
        write_card(catalogue.root / name, card.model_copy(update={"returns": returns}))
        for mode, found in returns.items():
            shown = f"{found.mean:,.1f} ({found.low:,.1f} to {found.high:,.1f})"
            typer.echo(f"return over {found.episodes} episodes of {card.env.env_id}, {mode}: {shown}")
        return
    won, base = card.strength[0], card.baseline[0]
    typer.echo(
        f"{won.episodes} games against {won.opponent}: win {won.win:.1%}, draw {won.draw:.1%}, loss {won.loss:.1%} "
        f"(random itself: win {base.win:.1%}, draw {base.draw:.1%}, loss {base.loss:.1%})"
    )


def export(
    run: RunPath,
    seat: Annotated[str, typer.Option(help="Whose player: a seat, for example red_0, or a whole team, red.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; never an existing one.")],
    name: Annotated[str | None, typer.Option(help="What it is called; the folder's name by default.")] = None,
    checkpoint: Checkpoint = None,
    push: Annotated[str | None, typer.Option(help="Put it on Hugging Face's hub, too, as USER/NAME.")] = None,
) -> None:
    """Write a trained player as a small folder that plays anywhere, without Ray and without the run."""
    from multigrid_rl.players import bundle, hub
    from multigrid_rl.runs.players import players_for

    for part, card in bundle.export(players_for(run, seat, checkpoint), output, name=name).items():
        typer.echo(f"exported {output / part}: {card.bytes} bytes, sha256 {card.sha256}")
    if push is not None:
        typer.echo(f"pushed {hub.push(output, push)}; it plays as hf:{push}")


def inspect(
    folder: Annotated[Path, typer.Argument(help="A bundle, or an agent (docs/agents.md).")],
    scenario: Annotated[
        str | None, typer.Option(help="Game that it is to play; a bundle's own by default, 1v1 for an agent.")
    ] = None,
) -> None:
    """Show what a bundle or an agent is, check everything and play a few games; the last line says ok."""
    from multigrid_rl.players.inspection import inspect_folder
    from multigrid_rl.players.leftovers import ScratchError, remove_leftovers

    one_thread()
    remove_leftovers()
    with ended_by_signals():
        try:
            for line in inspect_folder(folder, scenario):
                typer.echo(line)
        except ScratchError as error:
            raise fail(error) from error
