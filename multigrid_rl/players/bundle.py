"""Bundles: a trained player as a folder that somebody can be handed. No Ray is needed to play it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

from multigrid_rl.players.agents import AGENT_FILE
from multigrid_rl.players.cards import CARD_FILE, Card, PlayerError, check_fits, read_card, read_network
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.types import GameSpec, Policy
from multigrid_rl.world.symmetry import other_seat

#: ``bundle``: a frozen player; ``team``: a folder with one for each seat; ``agent``: an external agent.
Kind = Literal["bundle", "team", "agent"]
_SEAT = re.compile(r"(red|blue)_\d")


def folder_kind(folder: Path) -> Kind:
    """What a folder is, by the files in it. Raises :class:`PlayerError` if it is nothing, or two things at once."""
    found: list[Kind] = []
    if os.path.lexists(folder / CARD_FILE):
        found.append("bundle")
    if os.path.lexists(folder / AGENT_FILE):
        found.append("agent")
    if not found and seat_folders(folder):
        found.append("team")
    if len(found) != 1:
        what = f"both {CARD_FILE} and {AGENT_FILE}" if found else f"neither {CARD_FILE} nor {AGENT_FILE}"
        raise PlayerError(
            f"{folder}: holds {what}; allowed is a bundle, a folder with a bundle for each seat, or an agent"
        )
    return found[0]


def seat_folders(folder: Path) -> dict[str, Path]:
    """Folders of single seats by seat, in order."""
    try:
        return {path.name: path for path in sorted(folder.iterdir()) if _SEAT.fullmatch(path.name) and path.is_dir()}
    except OSError as error:
        raise PlayerError(f"{folder}: cannot be read: {error.strerror}") from error


def read_cards(folder: Path) -> dict[str, Card]:
    """Cards of a bundle, by seat where there is one for each seat, else under the key ``""``.

    Raises:
        PlayerError: no bundle, or a card that cannot be used.
    """
    kind = folder_kind(folder)
    if kind == "agent":
        raise PlayerError(f"{folder}: holds an agent; allowed is a bundle")
    if kind == "bundle":
        return {"": read_card(folder)}
    return {seat: read_card(path) for seat, path in seat_folders(folder).items()}


def bundle_sha256(folder: Path) -> str:
    """Hash that identifies a bundle's weights: the model's own, of several seats one over all of them.

    Raises:
        PlayerError: no bundle, or a card that cannot be used.
    """
    cards = read_cards(folder)
    if "" in cards:
        return cards[""].sha256
    return hashlib.sha256("".join(f"{seat} {card.sha256}\n" for seat, card in cards.items()).encode()).hexdigest()


def load_team(folder: Path, spec: GameSpec, team: str, *, greedy: bool = False) -> dict[str, Policy]:
    """Players of all seats of ``team``, by seat, or by team where one acts for all of them.

    Who learned one side plays the other as if it were its own (``world.symmetry``).

    Args:
        folder: a bundle, or a folder with one for each seat.
        spec: the game.
        team: ``red`` or ``blue``.
        greedy: take the likeliest action instead of drawing one.

    Raises:
        PlayerError: damaged, or made for another game or other seats.
    """
    seats = [seat for seat in spec.seats if spec.team_of(seat) == team]
    if not seats:
        raise PlayerError(f"{folder}: team={team}: allowed is a team of this game, whose seats are {_listed(spec)}")
    if folder_kind(folder) == "bundle":
        card = read_card(folder)
        mirrored = [check_fits(card, spec, seat) for seat in seats]
        network = read_network(folder, card)
        player = FrozenPlayer(
            card.name, network, card.sha256, members=card.members, mirrored=mirrored[0], greedy=greedy
        )
        return {team: player} if card.members > 1 else dict.fromkeys(seats, player)
    read_cards(folder)  # refuses an agent
    return {seat: _of_seat(folder, spec, seat, greedy=greedy) for seat in seats}


def _of_seat(folder: Path, spec: GameSpec, seat: str, *, greedy: bool) -> Policy:
    there = seat_folders(folder)
    own = seat if seat in there else other_seat(seat)
    if own not in there:
        raise PlayerError(f"{folder}: holds nobody for seat {seat}; allowed is what has a folder: {', '.join(there)}")
    card = read_card(there[own])
    if own not in card.seats or card.members != 1:
        raise PlayerError(
            f"{there[own]}: plays {', '.join(card.seats)}; allowed in a folder of this name is a player of {own} alone"
        )
    mirrored = check_fits(card, spec, seat)
    network = read_network(there[own], card)
    return FrozenPlayer(card.name, network, card.sha256, mirrored=mirrored, greedy=greedy)


def _listed(spec: GameSpec) -> str:
    return ", ".join(spec.seats)
