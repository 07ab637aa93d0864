"""Whole teams as one player: team mates on their own together, and the snapshots of a league on the other side."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card
from multigrid_rl.players.catalogue import LoadedPlayer, load_frozen
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.text import expected
from multigrid_rl.types import GameSpec, Policy, SeatView, UniformSource
from multigrid_rl.world.symmetry import other_seat


class Roster(NamedTuple):
    """Who plays for a league from now on."""

    weights: dict[int, float]  # by number: share of the games
    files: dict[int, dict[str, PlayerFiles]]  # of snapshots, by number and network


class TeamPlayer:
    """Players that each act for one seat, as one player of the whole team; implements ``types.Policy``.

    Args:
        name: what it is called.
        members: one for each seat, in index order; each decides by itself.
    """

    def __init__(self, name: str, members: Sequence[Policy]) -> None:
        self.name = name
        self.members = list(members)
        memories = [member.initial_state(0) for member in self.members]
        self._widths = [0 if memory is None else int(memory.shape[1]) for memory in memories]

    def initial_state(self, games: int) -> torch.Tensor:
        """Return the members' empty memories (N, S) side by side; a member without memory adds nothing."""
        return torch.zeros(games, sum(self._widths))

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Return the memories with the games in ``done`` (N,) forgotten."""
        return state * torch.from_numpy(~done).unsqueeze(1) if state.shape[1] else state

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Return actions (N, C), drawn member by member from the same stream."""
        seen = view.tokens.reshape(len(view.tokens), len(self.members), -1)
        memories, actions = list(torch.split(state, self._widths, dim=1)), []
        for c, member in enumerate(self.members):
            its: Any = memories[c] if self._widths[c] else member.initial_state(len(seen))
            taken, its = member.act(SeatView(seen[:, c], view.board, view.seat + c), its, rng)
            actions.append(taken)
            memories[c] = its if self._widths[c] else memories[c]
        return np.stack(actions, axis=1), torch.cat(memories, dim=1)


def _together(name: str, members: Sequence[Policy]) -> Policy:
    return members[0] if len(members) == 1 else TeamPlayer(name, members)


def league_pool(seated: Mapping[str, tuple[LoadedPlayer, ...]], seats: Sequence[str]) -> OpponentPool:
    """Return the pool of a league's anchors, numbered from 0 on, that plays all ``seats`` of a team."""
    anchors = []
    for rows in zip(*(seated[seat] for seat in seats), strict=True):
        joint = rows[0].members > 1
        anchors.append(rows[0].player if joint else _together(rows[0].name, [row.player for row in rows]))
    return OpponentPool(anchors, [row.weight for row in seated[seats[0]]])


def snapshot_player(name: str, files: Mapping[str, PlayerFiles], spec: GameSpec, seats: Sequence[str]) -> Policy:
    """Return one player of all ``seats`` of a team, out of the networks of those who learn on the other side.

    Raises:
        PlayerError: damaged files, or none for a seat.
    """
    cards = {module: read_card(source) for module, source in files.items()}
    members: list[Policy] = []
    for seat in seats:
        module = next((m for m, card in cards.items() if other_seat(seat) in card.seats), None)
        if module is None:
            raise PlayerError(expected(f"league/{name}", f"a network of {other_seat(seat)}", ", ".join(cards)))
        found = load_frozen(name, files[module], cards[module], spec, seat)
        if found.members > 1:
            return found.player
        members.append(found.player)
    return _together(name, members)
