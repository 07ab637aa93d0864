"""The ``players`` verb."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from multigrid_rl.config import data_root, load_scenario
from multigrid_rl.players.cards import PlayerError, Strength, read_card
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.freeze import STRENGTH_SEED
from multigrid_rl.players.strength import measure

WHAT = {
    "random": "every action with the same probability",
    "idle": "does nothing",
    "key-runner": "knows the board; fetches its key, opens its door, toggles whoever stands in front",
    "hunter": "knows the board; chases and eliminates opponents",
}


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
        rows = _measured(catalogue, name, episodes, scenario) if episodes else catalogue.strength(name)
        table.add_row(name, seats, what, "\n".join(map(_shares, rows)) or "not measured", sha)
    console.print(table)


def _measured(catalogue: Catalogue, name: str, episodes: int, scenario: str) -> list[Strength]:
    spec = load_scenario(scenario).game.spec()
    rows = []
    for seat in spec.seats:
        try:
            player = catalogue.seat(name, spec, seat).player
        except PlayerError:
            continue  # this player does not sit here
        rows.append(measure(player, seat, spec, scenario, episodes=episodes, seed=STRENGTH_SEED))
    return rows


def _shares(row: Strength) -> str:
    return f"{row.win:.1%} / {row.draw:.1%} / {row.loss:.1%} ({row.scenario}, {row.episodes} games)"
