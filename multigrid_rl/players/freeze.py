"""Turn a run's seat into a frozen player of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from multigrid_rl.config import load_scenario
from multigrid_rl.players.cards import Card, PlayerError, check_fits, read_card, read_network, write_card, write_player
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.strength import STRENGTH_SEED, measure


def freeze(source: Path, name: str, catalogue: Catalogue, episodes: int) -> Card:
    """Copy a run's player into the catalogue, with its strength measured over ``episodes`` games per opponent.

    Opponents are random, the scripted players and every frozen player made for the same scenario.

    Raises:
        PlayerError: the name is taken or not a name, or the source is damaged. Nothing is written then.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise PlayerError(f"name={name}: allowed are small letters, digits and dashes")
    if name in catalogue.names() or (catalogue.root / name).exists():
        raise PlayerError(f"name={name}: {catalogue.root} has a player of that name already; nothing was written")
    found = read_card(source)
    if found.env is not None:
        values = found.model_dump(exclude={"bytes", "sha256", "name"})
        card = write_player(catalogue.root / name, read_network(source, found).state_dict(), {**values, "name": name})
        catalogue.add(name, {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256})
        return card
    spec = load_scenario(found.scenario).spec
    seat = found.seats[0] if found.seats else "(none)"
    if seat not in spec.seats:
        raise PlayerError(f"{source}: seats={found.seats}: allowed is {', '.join(spec.seats)}")
    check_fits(found, spec, seat)
    network = read_network(source, found)
    settings: dict[str, Any] = {"episodes": episodes, "seed": STRENGTH_SEED}
    path = f"{source}/"  # the slash says that this is a folder and no name
    strength = [
        measure(catalogue, path, opponent, spec, found.scenario, **settings)
        for opponent in opponents_for(catalogue, found.scenario)
    ]
    baseline = [measure(catalogue, "random", "random", spec, found.scenario, **settings)]
    values = found.model_dump(exclude={"bytes", "sha256", "name", "strength", "baseline"})
    card = write_player(
        catalogue.root / name,
        network.state_dict(),
        {**values, "name": name, "strength": strength, "baseline": baseline},
    )
    catalogue.add(name, {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256})
    return card


def opponents_for(catalogue: Catalogue, scenario: str) -> list[str]:
    """Names of random, the scripted players and the frozen players made for ``scenario``."""
    if not load_scenario(scenario).spec.blue:
        return ["random"]  # there is nobody to play against: one row says how the player does alone
    return [*BUILT_IN, *frozen_for(catalogue, scenario)]


def frozen_for(catalogue: Catalogue, scenario: str) -> list[str]:
    """Names of the frozen players made for ``scenario``."""
    return [name for name, entry in catalogue.entries.items() if entry.get("scenario") == scenario]


def rate(catalogue: Catalogue, scenario: str, episodes: int) -> list[Card]:
    """Measure every frozen player of ``scenario`` against all its opponents anew and rewrite their cards.

    Raises:
        PlayerError: a damaged player.
    """
    spec = load_scenario(scenario).spec
    opponents = opponents_for(catalogue, scenario)
    settings: dict[str, Any] = {"episodes": episodes, "seed": STRENGTH_SEED}
    cards = []
    for name in frozen_for(catalogue, scenario):
        folder = catalogue.folder(name)
        rows = [measure(catalogue, name, other, spec, scenario, **settings) for other in opponents if other != name]
        kept = [row for row in read_card(folder).strength if row.scenario != scenario]
        baseline = [measure(catalogue, "random", "random", spec, scenario, **settings)]
        card = read_card(folder).model_copy(update={"strength": [*rows, *kept], "baseline": baseline})
        write_card(folder, card)
        cards.append(card)
    return cards
