"""Who hands in somebody else's player: the same weights, or a network that chooses alike wherever one looks.

Two players are compared by what they would do in the same views: half the sum of the differences of their
probabilities (the total variation distance), on average over views and seats. Where the bound comes from is said in
docs/instructors.md.
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

#: Closer than this is a near copy: networks of one game that were trained apart lie at 0.1 and more.
BOUND = 0.05
#: So far from uniform must both be: untrained networks are all alike, and nobody's copies.
DECIDED = 0.2
_TEAM = "red"
_VIEWS, _GAMES, _STEPS, _SEED = 1024, 64, 64, 20_261_122


class Likeness(NamedTuple):
    """What two players are compared by."""

    content: str  # hash of the weights, or of an agent's program
    answers: NDArray[np.float64] | None = None  # probabilities (views, seats, actions); none of a program


class Likely(NamedTuple):
    """A player that another one is like."""

    name: str
    apart: float  # 0 for the same content

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.name} ({f'{self.apart:.2%} apart' if self.apart else 'the same'})"


def likeness(players: Mapping[str, Policy], views: NDArray[np.uint8]) -> Likeness:
    """Return what the players of the red seats are compared by.

    Args:
        players: as ``load_team`` returns them.
        views: of :func:`views_of`.
    """
    digest, answers = hashlib.sha256(), []
    for seat, player in sorted(players.items()):
        assert isinstance(player, FrozenPlayer)
        for name, weight in sorted(player.network.state_dict().items()):
            digest.update(name.encode() + weight.numpy().tobytes())
        seen = views[:, : player.members] if seat == _TEAM else views[:, [int(seat.rpartition("_")[2])]]
        view = SeatView(np.ascontiguousarray(seen.reshape(len(seen), -1)), None, 0)
        outputs, _ = player.outputs(view, player.initial_state(len(seen)))
        logits = torch.from_numpy(np.asarray(outputs, np.float64)).reshape(len(seen), player.members, -1)
        answers.append(torch.softmax(logits, dim=-1).numpy())
    return Likeness(digest.hexdigest(), np.concatenate(answers, axis=1))


def likeness_of_program(files: Iterable[Part]) -> Likeness:
    """Return what an agent is compared by: all its files but the one with its name."""
    return Likeness(sha256_of_parts(part for part in files if part.path.name != AGENT_FILE))


def views_of(spec: GameSpec) -> NDArray[np.uint8]:
    """Return what the red seats see in games between scripted players (views, seats, tokens): always the same."""
    players = {seat: BUILT_IN["key-runner" if seat.startswith("red") else "hunter"](spec) for seat in spec.seats}
    match = Match(spec, players, _GAMES, seed=_SEED)
    seats = [spec.seats.index(seat) for seat in spec.seats_of(_TEAM)]
    seen = [match.world.outputs.tokens[:, seats].copy() for _ in range(_STEPS) if match.step({})]
    return np.random.default_rng(_SEED).permutation(np.concatenate(seen))[:_VIEWS]


def apart(one: Likeness, other: Likeness) -> float | None:
    """Return how far two players are apart, 0 to 1; nothing where that cannot be said."""
    if one.content == other.content:
        return 0.0
    if one.answers is None or other.answers is None or one.answers.shape != other.answers.shape:
        return None
    uniform = 1 / one.answers.shape[-1]
    if min(_variation(one.answers, uniform), _variation(other.answers, uniform)) < DECIDED:
        return None
    return _variation(one.answers, other.answers)


def _variation(one: NDArray[np.float64], other: NDArray[np.float64] | float) -> float:
    return float(0.5 * np.abs(one - other).sum(axis=-1).mean())


def same_as(mine: Likeness, others: Mapping[str, Likeness]) -> list[Likely]:
    """Return whom a player is a copy of, or all but one, the closest first."""
    found = [Likely(name, its) for name, other in others.items() if (its := apart(mine, other)) is not None]
    return sorted((likely for likely in found if likely.apart < BOUND), key=lambda likely: (likely.apart, likely.name))


class Originals:
    """Players that hand-ins are compared with: those of a catalogue, and earlier hand-ins.

    Args:
        spec: the game.
        catalogue: those of it that play the game.
        earlier: folders of hand-ins; those that cannot be played are left out.
    """

    def __init__(self, spec: GameSpec, catalogue: Catalogue, earlier: Iterable[Path] = ()) -> None:
        self.spec, self.views = spec, views_of(spec)
        self.players: dict[str, Likeness] = {}
        folders = [(name, catalogue.folder(name)) for name in catalogue.names() if name not in BUILT_IN]
        for name, folder in [*folders, *((f"{folder.parent.name}/{folder.name}", folder) for folder in earlier)]:
            with suppress(PlayerError):  # made for another game, or nothing that could be copied
                self.players[printable(name)] = self.likeness(folder)

    def likeness(self, folder: Path) -> Likeness:
        """Return what a bundle or an agent is compared by. Raises ``PlayerError``."""
        if is_agent(folder):
            return likeness_of_program(read_parts(folder))
        return likeness(load_team(folder, self.spec, _TEAM), self.views)
