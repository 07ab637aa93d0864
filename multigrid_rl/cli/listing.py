"""The ``players`` verb."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from multigrid_rl.config import data_root, load_scenario, scenario_id
from multigrid_rl.players.cards import PlayerError, Strength, read_card
from multigrid_rl.players.catalogue import BUILT_IN, WHAT, Catalogue
from multigrid_rl.players.freeze import measure, rate


def list_players(checkpoints: Path | None, episodes: int, scenario: str) -> None:
    """Print all players: what they are, where they sit, how they do against random.

    Raises:
        PlayerError, ConfigError: a damaged card, an unknown scenario.
    """
    catalogue = Catalogue(checkpoints or data_root() / "checkpoints")
    console = Console(highlight=False)
    table = Table(
        "player", "seats", "what it is", "against random: win / draw / loss", "sha256", box=None, pad_edge=False
    )
    for name in catalogue.names():
        if name in BUILT_IN:
            seats, what, sha = "any", WHAT[name], "-"
        else:
            card = read_card(catalogue.folder(name))
            trained, architecture = card.provenance.get("env_steps"), card.architecture["name"]
            seats, sha = ", ".join(card.seats), card.sha256[:16]
            what = f"frozen {architecture} of {card.scenario}" + (f", {trained:,} steps" if trained else "")
        known = [row for row in catalogue.strength(name) if row.opponent == "random"]
        rows = _measured(catalogue, name, episodes, scenario) if episodes else known
        table.add_row(name, seats, what, "\n".join(map(_shares, rows)) or "not measured", sha)
    console.print(table)


def _measured(catalogue: Catalogue, name: str, episodes: int, scenario: str) -> list[Strength]:
    spec = load_scenario(scenario).spec
    try:
        return [measure(catalogue, name, "random", spec, scenario, episodes)]
    except PlayerError:
        return []  # this player does not play this game


def rate_players(checkpoints: Path | None, episodes: int, scenario: str) -> None:
    """Measure every frozen player of a scenario against everybody, rewrite the cards, print the results.

    Raises:
        PlayerError, ConfigError: a damaged player, an unknown scenario.
    """
    catalogue = Catalogue(checkpoints or data_root() / "checkpoints")
    known = sorted({str(entry["scenario"]) for entry in catalogue.entries.values() if "scenario" in entry})
    if scenario_id(scenario) not in known:
        allowed = ", ".join(known) or "none"
        raise PlayerError(f"scenario={scenario}: no frozen player was made for it; allowed is {allowed}")
    table = Table("player", "opponent", "win", "draw", "loss", "length", box=None, pad_edge=False)
    for card in rate(catalogue, scenario_id(scenario), episodes):
        for row in card.strength:
            if row.scenario == scenario_id(scenario):
                shares = (f"{share:.1%}" for share in (row.win, row.draw, row.loss))
                table.add_row(card.name, row.opponent, *shares, f"{row.length_mean:.1f}")
    Console(highlight=False).print(table)


def _shares(row: Strength) -> str:
    return f"{row.win:.1%} / {row.draw:.1%} / {row.loss:.1%} ({row.scenario}, {row.episodes} games)"
