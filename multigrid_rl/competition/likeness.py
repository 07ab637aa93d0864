"""Copies of players in any game: by content, and by networks' likeliest actions in random games."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.competition.copies import Fingerprint, Originals, Similar, Teams, weights_of
from multigrid_rl.competition.entries import teams_of
from multigrid_rl.competition.folders import FolderPart
from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.files import data_root
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import place_of
from multigrid_rl.trust import strangers
from multigrid_rl.types import Seats, SeatView

#: Steps and number of random games for comparisons, their seed, and the minimum of different views of a seat.
_STEPS, _GAMES, _SEED, _MIN_ROWS = 64, 8, 20_261_123, 100
#: Minimum share of equal actions of a near copy; tolerance of equal actions, and minimum spread of a player's actions,
#: both as shares of the action range. Of 36 players of tic-tac-toe those from different seeds shared at most 0.903;
#: noise of a tenth of the weights' spread leaves 0.961.
_MIN_SHARE, _TOLERANCE, _MIN_SPREAD = 0.95, 0.01, 0.05
#: Share of choices by one fixed order of preference from which a player counts as untrained: of the same 36 the trained
#: ones had 0.27 to 0.7, those of at most 20,000 steps up to 0.99.
_UNTRAINED = 0.8


class Likeness(Originals):
    """Players for comparison in any game; see :class:`~multigrid_rl.competition.copies.Originals`."""

    probes_agents = False

    def __init__(self, spec: Seats, catalogue: Catalogue, earlier: Mapping[str, Path] = {}) -> None:
        self.spec, self.players = spec, {}
        self._add({name: catalogue.folder(name) for name in catalogue.names() if name not in BUILT_IN})
        self._add_examples()
        self._add(earlier)

    @cached_property
    def _views(self) -> dict[str, NDArray[Any]]:
        """Different views (rows, D) of each seat with a choice in fixed random games."""
        place, seats = place_of(self.spec), self.spec.seats
        players = {seat: place.scripted(self.spec, "random", seat) for seat in seats}
        match = match_of(self.spec, players, _GAMES, seed=_SEED)
        rows: dict[str, list[NDArray[Any]]] = {seat: [] for seat in seats}
        for _ in range(_STEPS):
            turn = match.env.deciding() if hasattr(match.env, "deciding") else {}
            for seat, observation in match.env.observations().items():
                rows[seat].append(observation[turn[seat]] if seat in turn else observation.copy())
            match.step({})
        views = {seat: np.unique(np.concatenate(rows[seat]), axis=0) for seat in seats}
        for seat in seats:
            if legal := self._agents[seat].legal:
                views[seat] = views[seat][views[seat][:, -legal:].sum(axis=1) > 1]
        return views

    @cached_property
    def _agents(self) -> dict[str, Any]:
        team_of = {seat: self.spec.team_of(seat) for seat in self.spec.seats}
        return {agent.name: agent for agent in place_of(self.spec).agents(self.spec, team_of, "dtde", shared=False)}

    @property
    def by_play(self) -> bool:
        """Whether the game has enough views to distinguish players; otherwise only content is compared."""
        return max(len(rows) for rows in self._views.values()) >= _MIN_ROWS

    @strangers()
    def _teams(self, folder: Path) -> Teams:
        return teams_of(folder, self.spec)[0]

    def of_networks(self, teams: Teams, parts: Iterable[FolderPart]) -> Fingerprint:
        """Return the fingerprint of a bundle from its players by team and its files."""
        players = {seat: player for team in teams.values() for seat, player in team.items() if seat in self._views}
        choices = tuple(
            self._likeliest(seat, players[seat]) if seat in players else np.zeros((0, 1)) for seat in self.spec.seats
        )
        return Fingerprint(weights_of(parts), choices=choices, teams=teams)

    def _likeliest(self, seat: str, player: Any) -> NDArray[Any]:
        """Return the likeliest actions (rows, A) as shares of their range; of an untrained player no rows."""
        seen, space = self._views[seat], self._agents[seat].action_space
        if not isinstance(player, FrozenPlayer) or len(seen) < _MIN_ROWS:
            return np.zeros((0, 1))
        outputs, _ = player.outputs(SeatView(seen, None, self.spec.seats.index(seat)), player.initial_state(len(seen)))
        taken = player.distribution.bounded(player.distribution.mode(outputs))
        rows = np.asarray(taken, np.float64).reshape(len(seen), -1)
        if rows.shape[1] == 1 and not isinstance(space, spaces.Box):
            legal = seen[:, -self._agents[seat].legal :] > 0 if self._agents[seat].legal else np.ones(outputs.shape)
            if (_choices_by_preference(outputs, legal > 0) == rows[:, 0]).mean() >= _UNTRAINED:
                return rows[:0]
        rows /= space.high - space.low if isinstance(space, spaces.Box) else space.nvec - 1
        return rows if rows.std(axis=0).max() >= _MIN_SPREAD else rows[:0]

    def _similar_choices(self, fingerprint: Fingerprint, pairs: Mapping[str, Fingerprint]) -> list[Similar]:
        shares = {name: self._equal_share(fingerprint, other) for name, other in pairs.items()}
        return [Similar(name, max(1 - share, 1e-6), share) for name, share in shares.items() if share >= _MIN_SHARE]

    @staticmethod
    def _equal_share(one: Fingerprint, other: Fingerprint) -> float:
        pairs = [(a, b) for a, b in zip(one.choices, other.choices, strict=False) if len(a) and a.shape == b.shape]
        return max((float((np.abs(a - b) <= _TOLERANCE).all(axis=1).mean()) for a, b in pairs), default=0.0)


def originals_of(scenario: ScenarioConfig, spec: Seats, earlier: Mapping[str, Path] = {}) -> Originals:
    """Return the project's players and ``earlier`` submissions for comparison in a game."""
    originals = Originals if scenario.kind.board else Likeness
    return originals(spec, Catalogue(data_root() / "checkpoints"), earlier)


def _choices_by_preference(outputs: NDArray[Any], legal: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the choices (rows,) by one fixed order of preference: the mean of ``outputs``."""
    scores = np.where(legal, outputs, -np.inf)
    scores = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    means = np.where(legal, scores, 0.0).sum(axis=0) / np.maximum(legal.sum(axis=0), 1)
    return np.asarray(np.where(legal, means, -np.inf).argmax(axis=1))
