"""Verbs for the catalogue of players: ``players``, ``players rate``, ``players freeze``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from multigrid_rl.cli.app import fail, refused
from multigrid_rl.cli.output import console, one_thread, spread
from multigrid_rl.config.recipes import scenario_id
from multigrid_rl.runs.checkpoints import checkpoints_in
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import PlayerError, percent

if TYPE_CHECKING:
    from multigrid_rl.players.cards import Card

Checkpoints = Annotated[Path | None, typer.Option(help="Folder of frozen players; by default yours, and ours.")]
#: Episodes of an environment that measure a player; they may be long.
ENV_EPISODES = 100


def players(checkpoints: Checkpoints = None) -> None:
    """List the players with their measured strength."""
    from multigrid_rl.players import cards, catalogue

    known, problems, games = catalogue.Catalogue(checkpoints), [], set()
    table = Table(box=None, pad_edge=False)
    for title in ("player", "plays", "network, steps", "win / draw / loss", "beaten", "sha256"):
        table.add_column(title, no_wrap=title in ("player", "win / draw / loss", "sha256"))
    for name in known.names():
        try:
            cells = _SCRIPTED if name in catalogue.BUILT_IN else _cells(cards.read_card(known.folder(name)))
            rows = [row for row in known.strength(name) if row.opponent == "random"]
        except PlayerError as error:
            problems.append(error)
            continue
        games |= {f"{row.episodes:,} games of {row.scenario}" for row in rows}
        parts = [[percent(share, 1) for share in (row.win, row.draw, row.loss)] for row in rows]
        plays, network, returns, *rest = cells
        shares = [" / ".join(part).replace("% /", " /") for part in parts]
        table.add_row(name, plays, network, "\n".join(shares) or returns, *rest)
    screen = console(120)
    screen.print(table)
    screen.print()
    for name, what in {
        **catalogue.DESCRIPTIONS,
        "steps": "in millions, of the last training; +: it began with trained weights",
        "win / draw / loss": f"against random, {' or '.join(sorted(games)) or 'not measured'}",
        "beaten": "games won, or return earned, by the best response that `multigrid-rl exploit` found",
    }.items():
        screen.print(f"{name}: {what}")
    if problems:
        raise fail(problems[0])


_SCRIPTED = ("any seat", "scripted", "-", "-", "-")


def _cells(card: Card) -> tuple[str, str, str, str, str]:
    """Return a frozen player's table cells: seats, network, return, best response's result, and hash."""
    steps, returns = card.provenance.get("env_steps"), (card.returns or {}).get("stochastic")
    best, more = card.best_response, "+" if card.provenance.get("init") else ""
    return (
        f"{card.scenario} {' '.join(card.seats)}",
        card.architecture["name"] + (f", {float(f'{steps / 1e6:.2g}'):,g}M{more}" if steps else ""),
        "-" if returns is None else f"return {returns.mean:,.{3 * (abs(returns.mean) < 100)}f}",
        "-" if best is None else f"return {best.return_mean:.3f}" if best.win is None else percent(best.win, 1),
        card.sha256[:8],
    )


def rate(
    scenario: Annotated[str, typer.Argument(help="Scenario whose frozen players meet.")],
    episodes: Annotated[int, typer.Option(min=100, help="Games for each pair, half from each side.")] = 1000,
    checkpoints: Checkpoints = None,
) -> None:
    """Measure every frozen player of a scenario against random, scripted and frozen players; rewrites their cards."""
    from multigrid_rl.players import catalogue, freeze

    one_thread()
    players, stem = catalogue.Catalogue(checkpoints), scenario_id(scenario)
    known = sorted({str(entry["scenario"]) for entry in players.entries.values() if "scenario" in entry})
    if stem not in known:
        raise refused("scenario", f"one that a frozen player was made for ({', '.join(known)})", scenario)
    table = Table("player", "opponent", "win", "draw", "loss", "length", box=None, pad_edge=False)
    for card in freeze.rate(players, stem, episodes):
        for row in card.strength:
            if row.scenario == stem:
                shares = (percent(share, 1) for share in (row.win, row.draw, row.loss))
                table.add_row(card.name, row.opponent, *shares, f"{row.length_mean:.1f}")
    Console(highlight=False).print(table)


def freeze(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    seat: Annotated[str, typer.Option(help="Seat to freeze, for example blue_0; a team if one network plays it.")],
    name: Annotated[str, typer.Option(help="Name in the catalogue, for example blue-rookie.")],
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")] = None,
    average: Annotated[
        int, typer.Option(min=1, help="Take the mean of the weights of this many checkpoints, that one the last.")
    ] = 1,
    episodes: Annotated[int, typer.Option(min=100, help="Games that measure its strength.")] = 1000,
    checkpoints: Checkpoints = None,
) -> None:
    """Turn a trained seat into a frozen player: model, card and catalogue entry. Never overwrites."""
    from multigrid_rl.evaluation import evaluation, targets
    from multigrid_rl.players import cards, catalogue, freeze
    from multigrid_rl.runs.players import run_player

    one_thread()
    players = catalogue.Catalogue(checkpoints)
    source, kind = run_player(run, seat, checkpoint), run_config(run).scenario.kind
    with TemporaryDirectory() as folder:
        if average > 1:
            kept, last = [path.name for path in checkpoints_in(run / "checkpoints")], source.parent.parent.name
            kept = kept[: kept.index(last) + 1] if last in kept else [last]
            if average > len(kept):
                raise refused("--average", f"at most {len(kept)}, the checkpoints that {run} has kept", average)
            sources = [run_player(run, seat, one) for one in kept[-average:]]
            source = freeze.averaged(sources, Path(folder) / "player")
        card = freeze.freeze(source, name, players, episodes, kind.spec if kind.rivals else None)
    typer.echo(f"froze {players.root / name}: {card.bytes} bytes, sha256 {card.sha256}")
    if card.strength:
        won, base = card.strength[0], card.baseline[0]
        typer.echo(
            f"{won.episodes} games against {won.opponent}: win {won.win:.1%}, draw {won.draw:.1%}, "
            f"loss {won.loss:.1%} (random itself: win {base.win:.1%}, draw {base.draw:.1%}, loss {base.loss:.1%})"
        )
    elif kind.judged:  # of Unity no episodes are played
        target = targets.frozen_target(run, players.root / name, checkpoint)
        returns = evaluation.returns_of(target, min(episodes, ENV_EPISODES), freeze.STRENGTH_SEED)
        cards.write_card(players.root / name, card.model_copy(update={"returns": returns}))
        for mode, measured in returns.items():
            text = f"{measured.mean:,.3f} ({spread(measured.low, measured.high, ',.3f')})"
            what = card.env.env_id if card.env else card.scenario
            typer.echo(f"return over {measured.episodes} episodes of {what}, {mode}: {text}")
