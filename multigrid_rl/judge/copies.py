"""Detection of copied players: the same weights, or a network with nearly the same action probabilities everywhere.

The distance of two players is the total variation distance of their action probabilities for the same observations,
averaged over observations and seats. docs/instructors.md explains the bound.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.players.agents import AGENT_FILE, Part, is_agent, read_parts, sha256_of_parts
from multigrid_rl.players.bundle import load_team
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import Match
from multigrid_rl.text import printable
from multigrid_rl.types import GameSpec, Policy, SeatView

#: Closer than this is a near copy: independently trained networks of one game have distances of 0.1 and more.
BOUND = 0.05
#: Smallest distance of both from uniform: untrained networks are all alike without being copies.
DECIDED = 0.2
_TEAM = "red"
_VIEWS, _GAMES, _STEPS, _SEED = 1024, 64, 64, 20_261_122


class Fingerprint(NamedTuple):
    """What players are compared by."""

    content: str  # hash of the weights, or of an agent's program
    probs: NDArray[np.float64] | None = None  # probabilities (views, seats, actions); None for a program


class Similar(NamedTuple):
    """A player that another one is the same as, or similar to."""

    name: str
    apart: float  # 0 for the same content

    def __str__(self) -> str:
        """Return for example ``blue-master (1.20% apart)``."""
        return f"{self.name} ({f'{self.apart:.2%} apart' if self.apart else 'the same'})"


def fingerprint(players: Mapping[str, Policy], views: NDArray[np.uint8]) -> Fingerprint:
    """Return the fingerprint of the players of the red seats.

    Args:
        players: as ``load_team`` returns them.
        views: of :func:`sample_views`.
    """
    digest, probs = hashlib.sha256(), []
    for seat, player in sorted(players.items()):
        assert isinstance(player, FrozenPlayer)
        for name, weight in sorted(player.network.state_dict().items()):
            digest.update(name.encode() + weight.numpy().tobytes())
        tokens = views[:, : player.members] if seat == _TEAM else views[:, [int(seat.rpartition("_")[2])]]
        view = SeatView(np.ascontiguousarray(tokens.reshape(len(tokens), -1)), None, 0)
        outputs, _ = player.outputs(view, player.initial_state(len(tokens)))
        logits = torch.from_numpy(np.asarray(outputs, np.float64)).reshape(len(tokens), player.members, -1)
        probs.append(torch.softmax(logits, dim=-1).numpy())
    return Fingerprint(digest.hexdigest(), np.concatenate(probs, axis=1))


def program_fingerprint(files: Iterable[Part]) -> Fingerprint:
    """Return the fingerprint of an agent: all its files but the one with its name."""
    return Fingerprint(sha256_of_parts(part for part in files if part.path.name != AGENT_FILE))


def sample_views(spec: GameSpec) -> NDArray[np.uint8]:
    """Return observations of the red seats in games of scripted players (views, seats, tokens): always the same."""
    players = {seat: BUILT_IN["key-runner" if seat.startswith("red") else "hunter"](spec) for seat in spec.seats}
    match = Match(spec, players, _GAMES, seed=_SEED)
    seats = [spec.seats.index(seat) for seat in spec.seats_of(_TEAM)]
    tokens = [match.world.outputs.tokens[:, seats].copy() for _ in range(_STEPS) if match.step({})]
    return np.random.default_rng(_SEED).permutation(np.concatenate(tokens))[:_VIEWS]


def distance(one: Fingerprint, other: Fingerprint) -> float | None:
    """Return the distance of two players, 0 to 1; ``None`` where it is undefined."""
    if one.content == other.content:
        return 0.0
    if one.probs is None or other.probs is None or one.probs.shape != other.probs.shape:
        return None
    uniform = 1 / one.probs.shape[-1]
    if min(_variation(one.probs, uniform), _variation(other.probs, uniform)) < DECIDED:
        return None
    return _variation(one.probs, other.probs)


def _variation(one: NDArray[np.float64], other: NDArray[np.float64] | float) -> float:
    return float(0.5 * np.abs(one - other).sum(axis=-1).mean())


def find_similar(own: Fingerprint, others: Mapping[str, Fingerprint]) -> list[Similar]:
    """Return the players that this one is a copy of, or a near copy, the closest first."""
    distances = {name: distance(own, other) for name, other in others.items()}
    similar = [Similar(name, apart) for name, apart in distances.items() if apart is not None and apart < BOUND]
    return sorted(similar, key=lambda player: (player.apart, player.name))


class Originals:
    """Players that hand-ins are compared with: those of a catalogue, and earlier hand-ins.

    Args:
        spec: the game.
        catalogue: those of it that play the game.
        earlier: folders of hand-ins; those that cannot be played are left out.
    """

    def __init__(self, spec: GameSpec, catalogue: Catalogue, earlier: Iterable[Path] = ()) -> None:
        self.spec, self.views = spec, sample_views(spec)
        self.players: dict[str, Fingerprint] = {}
        folders = [(name, catalogue.folder(name)) for name in catalogue.names() if name not in BUILT_IN]
        for name, folder in [*folders, *((f"{folder.parent.name}/{folder.name}", folder) for folder in earlier)]:
            with suppress(PlayerError):  # made for another game, or without weights
                self.players[printable(name)] = self.fingerprint(folder)

    def fingerprint(self, folder: Path) -> Fingerprint:
        """Return the fingerprint of a bundle or an agent. Raises ``PlayerError``."""
        if is_agent(folder):
            return program_fingerprint(read_parts(folder))
        return fingerprint(load_team(folder, self.spec, _TEAM), self.views)
