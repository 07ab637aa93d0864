"""Pools of opponents that grow while a run trains: what training asks of one; snapshots on the other side's seats."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card
from multigrid_rl.players.catalogue import LoadedPlayer, load_frozen
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, GameSpec, Policy, SeatView, UniformSource
from multigrid_rl.world.constants import other_seat


class Roster(NamedTuple):
    """Active players of a growing pool."""

    weights: dict[int, float]  # by number: share of the games
    files: dict[int, dict[str, PlayerFiles]]  # of snapshots, by number and network


class GrowingPool(Protocol):
    """Who plays on the seats of a growing pool: fixed players, and snapshots of the learner."""

    def take(self, table: EpisodeTable) -> dict[str, float]:
        """Count the games of an iteration; returns metrics of the pool by name."""

    def advance(self, env_steps: int, export: Callable[[Path], dict[str, str]]) -> Roster | None:
        """Let the learner join if it is time, and draw who plays if it is time for that.

        Args:
            env_steps: of the run.
            export: writes the learner's networks into a folder; returns their sha256 by module.

        Returns:
            The new share of games of each opponent, with the files of new opponents; ``None``: no change.

        Raises:
            OSError: a snapshot cannot be written.
        """

    def roster(self, playing: Iterable[int] = ()) -> Roster:
        """Return the opponents with all files, also of those ``playing`` in games that are not over.

        Raises:
            PlayerError: a file is missing, damaged, or another player's.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the state, without files and settings."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of :meth:`get_state`."""

    @staticmethod
    def resume(run: Path, state: dict[str, Any] | None) -> None:
        """Check the files that a checkpoint's ``state`` knows, and move later ones aside; ``None``: from step 0.

        Raises:
            PlayerError: one is missing, or not what it was.
        """


class TeamPlayer:
    """Single-seat players combined into one player of the whole team; implements ``types.Policy``.

    Args:
        name: of the player.
        members: one for each seat, in index order; they act independently.
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
        """Return the memories with the games in ``done`` (N,) cleared."""
        return state * torch.from_numpy(~done).unsqueeze(1) if state.shape[1] else state

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Return actions (N, C), drawn member by member from the same stream."""
        tokens = view.tokens.reshape(len(view.tokens), len(self.members), -1)
        memories, actions = list(torch.split(state, self._widths, dim=1)), []
        for c, member in enumerate(self.members):
            memory: Any = memories[c] if self._widths[c] else member.initial_state(len(tokens))
            chosen, memory = member.act(SeatView(tokens[:, c], view.board, view.seat + c), memory, rng)
            actions.append(chosen)
            memories[c] = memory if self._widths[c] else memories[c]
        return np.stack(actions, axis=1), torch.cat(memories, dim=1)


def anchor_pool(seated: Mapping[str, tuple[LoadedPlayer, ...]], seats: Sequence[str]) -> OpponentPool:
    """Return the pool of fixed players, numbered from 0 on, that plays all ``seats`` of a team."""
    anchors = []
    for rows in zip(*(seated[seat] for seat in seats), strict=True):
        alone = len(rows) == 1 or rows[0].members > 1
        anchors.append(rows[0].player if alone else TeamPlayer(rows[0].name, [row.player for row in rows]))
    return OpponentPool(anchors, [row.weight for row in seated[seats[0]]])


def snapshot_player(name: str, files: Mapping[str, PlayerFiles], spec: GameSpec, seats: Sequence[str]) -> Policy:
    """Return one player of all ``seats`` of a team, from the networks of the learners on the other side.

    Raises:
        PlayerError: damaged files, or none for a seat.
    """
    cards = {module: read_card(source) for module, source in files.items()}
    members: list[Policy] = []
    for seat in seats:
        module = next((m for m, card in cards.items() if other_seat(seat) in card.seats), None)
        if module is None:
            raise PlayerError(expected(f"league/{name}", f"a network of {other_seat(seat)}", ", ".join(cards)))
        loaded = load_frozen(name, files[module], cards[module], spec, seat)
        if loaded.members > 1:
            return loaded.player
        members.append(loaded.player)
    return members[0] if len(members) == 1 else TeamPlayer(name, members)
