"""A league's arithmetic: snapshots, results against them, and the draw of active players."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.league.rules import Array, draw, shares
from multigrid_rl.league.settings import LeagueConfig

#: Decay of the weight of earlier games against an opponent with each further game.
DECAY = 0.99
#: A learner's win rate against an opponent without games.
UNPLAYED = 0.5
#: Games of the win rate that adds a snapshot with ``win_over: episodes``; minimum per opponent with ``pool``.
RECENT, FEWEST = 100, 20


def add_scores(games: float, points: float, scores: Array) -> tuple[float, float]:
    """Update games and points against one opponent with ``scores`` (M,): 1, .5 for a draw, or 0."""
    decayed = DECAY ** np.arange(len(scores))[::-1]
    factor = DECAY ** len(scores)
    return games * factor + float(decayed.sum()), points * factor + float((decayed * scores).sum())


class Snapshot(NamedTuple):
    """A past state of the learner: a folder of frozen players."""

    name: str  # of the folder
    env_steps: int
    sha256: dict[str, str]  # of each network's weights, by module
    wins: tuple[float, ...] = ()  # its win rates against earlier snapshots when it joined, oldest first


class League:
    """The state of a league, without files: snapshots, results and active players.

    Players have numbers: anchors from 0, then snapshots in the order of joining. ``seed``: of the run; with the number
    of steps it determines the draws.

    Attributes:
        snapshots: all so far.
        lost: numbers of snapshots with missing files; they are not drawn, and their running games continue.
        weights: share of the games of each active player, by number.
    """

    def __init__(self, config: LeagueConfig, seed: int) -> None:
        self.config = config
        self._seed = seed
        self._anchors = np.array(list(config.anchors.values())) / sum(config.anchors.values())
        self.snapshots: list[Snapshot] = []
        self.lost: list[int] = []
        self._games = np.zeros(len(self._anchors))  # (players,) decayed
        self._points = np.zeros(len(self._anchors))  # (players,) decayed
        self._recent: list[float] = []  # scores since the last snapshot began to play
        self._joined_at = self._drawn_at = 0
        self.weights = dict(enumerate(self._anchors.tolist()))

    def snapshot(self, number: int) -> Snapshot | None:
        """Return the snapshot of a player's number; ``None`` for an anchor."""
        index = number - len(self._anchors)
        return self.snapshots[index] if index >= 0 else None

    def win_rates(self) -> Array:
        """Return the learner's win rate against each player (P,), a draw as half a win."""
        rates = np.full(len(self._games), UNPLAYED)
        played = self._games > 0
        rates[played] = self._points[played] / self._games[played]
        return rates

    def standings(self) -> list[dict[str, Any]]:
        """Return every player that is not lost: name, steps at joining, win rate against it, share of games."""
        names = [*((name, None) for name in self.config.anchors), *((s.name, s.env_steps) for s in self.snapshots)]
        rates, played = self.win_rates(), self._games > 0
        return [
            {"player": name, "since": since, "win": float(rates[n]) if played[n] else None,
             "share": float(self.weights.get(n, 0.0))}
            for n, (name, since) in enumerate(names)
            if n not in self.lost
        ]  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """Return the league's metrics."""
        rates = np.delete(self.win_rates(), self.lost)
        return {"league/size": float(len(rates)), "league/min_win": float(rates.min())}

    def record(self, players: NDArray[np.int16], scores: Array) -> None:
        """Record finished games (M,): the number of the opponent, and the learner's score."""
        for number in np.unique(players).tolist():
            totals = self._games[number], self._points[number]
            self._games[number], self._points[number] = add_scores(*totals, scores[players == number])
        self._recent = [*self._recent, *scores.tolist()][-RECENT:]

    def due(self, env_steps: int) -> bool:
        """Return whether a snapshot of the learner is due."""
        config = self.config
        if config.every is not None and env_steps - self._joined_at >= config.every:
            return True
        if config.win is None or self._drawn_at < self._joined_at:  # the last snapshot has not played yet
            return False
        if config.win_over == "episodes":
            return len(self._recent) == RECENT and sum(self._recent) / RECENT >= config.win
        playing = [number for number, weight in self.weights.items() if weight > 0]
        all_played = all(self._games[number] >= FEWEST for number in playing)
        return all_played and len(self._recent) == RECENT and bool(self.win_rates()[playing].min() >= config.win)

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot; it plays from the next :meth:`redraw` on."""
        wins = self.win_rates()[len(self._anchors) :]
        self.snapshots.append(snapshot._replace(wins=tuple(wins.tolist())))
        self._games, self._points = np.append(self._games, 0.0), np.append(self._points, 0.0)
        self._joined_at = snapshot.env_steps

    def stale(self, env_steps: int) -> bool:
        """Return whether the active players are due for a redraw.

        Not at every snapshot: players not drawn again finish their games, and each costs a separate pass. But the first
        snapshot plays at once.
        """
        only_anchors = max(self.weights, default=0) < len(self._anchors) and len(self.snapshots) > len(self.lost)
        return only_anchors or env_steps - self._drawn_at >= self.config.redraw

    def redraw(self, env_steps: int) -> None:
        """Draw the active players and their shares."""
        if self._drawn_at < self._joined_at:
            self._recent = []  # games without the newest snapshot
        self._drawn_at = env_steps
        first = len(self._anchors)
        available = np.array([n for n in range(first, len(self._games)) if n not in self.lost], np.intp)
        anchors = self.config.anchor_share if len(available) else 1.0
        self.weights = dict(enumerate((anchors * self._anchors).tolist()))
        if len(available):
            newest = min(1.0, self.config.latest_share / (1 - anchors))
            payoffs = self._payoffs()[np.ix_(available - first, available - first)]
            share = shares(self.win_rates()[available], self.config.weighting, newest, payoffs)
            point = float(np.random.default_rng((self._seed, env_steps)).random())
            playing = (1 - anchors) * draw(share, self.config.most, point)
            self.weights |= {int(n): float(weight) for n, weight in zip(available, playing, strict=True) if weight > 0}

    def _payoffs(self) -> Array:
        """Return the snapshots' win rates against one another (K, K), measured by the newer one; without games 0.5."""
        rates = np.full((len(self.snapshots), len(self.snapshots)), UNPLAYED)
        for k, snapshot in enumerate(self.snapshots):
            rates[k, : len(snapshot.wins)] = snapshot.wins
            rates[: len(snapshot.wins), k] = 1 - np.array(snapshot.wins)
        return rates

    def get_state(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return {
            "snapshots": [snapshot._asdict() for snapshot in self.snapshots],
            "lost": list(self.lost),
            "games": self._games.copy(),
            "points": self._points.copy(),
            "recent": list(self._recent),
            "joined_at": self._joined_at,
            "drawn_at": self._drawn_at,
            "weights": dict(self.weights),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`."""
        self.snapshots = [Snapshot(**row) for row in state["snapshots"]]
        self.lost = list(state["lost"])
        self._games, self._points = state["games"].copy(), state["points"].copy()
        self._recent = list(state["recent"])
        self._joined_at, self._drawn_at = state["joined_at"], state["drawn_at"]
        self.weights = dict(state["weights"])
