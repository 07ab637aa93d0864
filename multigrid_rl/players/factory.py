"""A recipe for a match that can be sent to another process and built there."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue, Seated
from multigrid_rl.players.match import Match
from multigrid_rl.types import GameSpec, Shaping


@dataclass(frozen=True)
class MatchFactory:
    """Builds matches of one game with the same players, loading and checking every player's file anew.

    Args:
        spec: the game.
        opponents: player name for each background seat.
        checkpoints: folder of frozen players.
        hashes: sha256 that each frozen player must have, by seat; an empty mapping accepts what is there.
        seed: of all games.
        shaping: ``module:function`` of a training reward, or ``None``.
    """

    spec: GameSpec
    opponents: dict[str, str]
    checkpoints: Path
    hashes: dict[str, str]
    seed: int
    shaping: str | None = None

    def load(self) -> dict[str, Seated]:
        """Load every background player, by seat.

        Raises:
            PlayerError: a player is unknown, damaged, does not fit its seat, or is not the one that was announced.
        """
        catalogue = Catalogue(self.checkpoints)
        seated = {}
        for seat, name in self.opponents.items():
            try:
                seated[seat] = catalogue.seat(name, self.spec, seat)
            except PlayerError as error:
                raise PlayerError(f"scenario.seats.{seat}={name}: {error}") from error
            expected = self.hashes.get(seat)
            if expected is not None and seated[seat].sha256 != expected:
                raise PlayerError(f"scenario.seats.{seat}={name}: sha256 {seated[seat].sha256}; allowed is {expected}")
        return seated

    def build(self, num_games: int, first_game: int) -> Match:
        """Build the match of games ``first_game`` to ``first_game + num_games - 1``."""
        players = {seat: seated.player for seat, seated in self.load().items()}
        shaping = load_shaping(self.shaping) if self.shaping else None
        return Match(self.spec, players, num_games, seed=self.seed, first_game=first_game, shaping=shaping)


def load_shaping(path: str) -> Shaping:
    """Import a shaping function from ``module:function``. Raises ``ValueError`` naming what is wrong."""
    module, _, name = path.partition(":")
    try:
        function: Shaping = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"train.shaping={path}: {error}; allowed is module:function") from error
    if not callable(function):
        raise ValueError(f"train.shaping={path}: {function!r} is no function; allowed is module:function")
    return function
