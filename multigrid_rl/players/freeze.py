"""Turn a run's seat into a frozen player of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from multigrid_rl.config import load_scenario
from multigrid_rl.players.cards import Card, PlayerError, check_fits, read_card, read_network, write_player
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.strength import measure

STRENGTH_SEED = 20_000


def run_player(run: Path, seat: str, checkpoint: str | None = None) -> Path:
    """Folder of a run's player, from its latest checkpoint or a named one. Raises :class:`PlayerError`."""
    checkpoints = run / "checkpoints"
    try:
        name = checkpoint or (checkpoints / "latest").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PlayerError(f"{run}: holds no checkpoint: {error.strerror}") from error
    players = checkpoints / name / "players"
    if not players.is_dir():
        known = sorted(path.name for path in checkpoints.glob("step_*"))
        raise PlayerError(f"checkpoint={name}: {run} has none of that name; allowed is {', '.join(known) or 'none'}")
    if not (players / seat).is_dir():
        raise PlayerError(
            f"seat={seat}: not trained in {run}; allowed is {', '.join(sorted(p.name for p in players.iterdir()))}"
        )
    return players / seat


def freeze(source: Path, name: str, catalogue: Catalogue, episodes: int) -> Card:
    """Copy a run's player into the catalogue, with its strength against random measured over ``episodes`` games.

    Raises:
        PlayerError: the name is taken or not a name, or the source is damaged. Nothing is written then.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise PlayerError(f"name={name}: allowed are small letters, digits and dashes")
    if name in catalogue.names() or (catalogue.root / name).exists():
        raise PlayerError(f"name={name}: {catalogue.root} has a player of that name already; nothing was written")
    found = read_card(source)
    spec = load_scenario(found.scenario).game.spec()
    seat = found.seats[0] if found.seats else "(none)"
    if seat not in spec.seats:
        raise PlayerError(f"{source}: seats={found.seats}: allowed is {', '.join(spec.seats)}")
    network = read_network(source, found)
    check_fits(found, spec, seat)
    strength, baseline = (
        measure(player, seat, spec, found.scenario, episodes=episodes, seed=STRENGTH_SEED)
        for player in (FrozenPlayer(name, network, found.sha256), BUILT_IN["random"](spec))
    )
    values = found.model_dump(exclude={"bytes", "sha256", "name", "strength", "baseline"})
    card = write_player(
        catalogue.root / name,
        network,
        {**values, "name": name, "strength": [strength], "baseline": [baseline]},
    )
    catalogue.add(name, {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256})
    return card
