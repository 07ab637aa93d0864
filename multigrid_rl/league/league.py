"""A league: a pool of opponents with snapshots of the learner, matchmaking, and snapshots on the other side's seats.

The matchmaking is AlphaStar's (Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z): *prioritised fictitious
self-play* plays an opponent in proportion to a function of the learner's win rate ``x`` against it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.config.scenario import LeagueConfig, Weighting
from multigrid_rl.players.cards import PlayerError, PlayerFiles, read_card
from multigrid_rl.players.catalogue import LoadedPlayer, load_frozen
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.runs.checkpoints import Snapshot
from multigrid_rl.text import expected
from multigrid_rl.types import GameSpec, Policy, SeatView, UniformSource
from multigrid_rl.world.symmetry import other_seat

Array = NDArray[np.float64]
#: Decay of the weight of earlier games against an opponent with each further game.
DECAY = 0.99
#: A learner's win rate against an opponent that it has not met.
UNPLAYED = 0.5
#: Uniform part of the weighting: win rates that are not measured again become outdated.
CHECKS = 0.1
#: Weight of a Nash mixture's smallest part beside its value: it only decides between mixtures of the same value.
_EVENLY = 1e-6
#: Games of a win rate by which a snapshot joins with ``win_over: episodes``; minimum per opponent with ``pool``.
RECENT, FEWEST = 100, 20

#: Win rates (K,) of the learner against snapshots, oldest first -> weights (K,), not normalised.
WEIGHTINGS: dict[Weighting, Callable[[Array], Array]] = {
    "squared": lambda x: (1 - x) ** 2,
    "variance": lambda x: x * (1 - x),
    "linear": lambda x: 1 - x,
    "linear_capped": lambda x: np.minimum(0.5, 1 - x),
    "uniform": np.ones_like,
    "latest": lambda x: np.where(np.arange(len(x)) == len(x) - 1, 1.0, 0.0),
}


def nash(payoffs: Array) -> Array:
    """Return a Nash mixture (K,) of players from their win rates against one another (K, K).

    Of several equilibria it is one with the largest smallest part: uniform where all players are equal.
    """
    # Imported here: it takes a second, and few leagues need it.
    from scipy.optimize import linprog  # noqa: PLC0415

    count = len(payoffs)
    # Variables: the mixture, its value against the worst opponent, its smallest part.
    worst = np.column_stack([-payoffs.T, np.ones(count), np.zeros(count)])
    smallest = np.column_stack([-np.eye(count), np.zeros(count), np.ones(count)])
    solution = linprog(
        np.array([*np.zeros(count), -1.0, -_EVENLY]),
        A_ub=np.vstack([worst, smallest]),
        b_ub=np.zeros(2 * count),
        A_eq=np.array([[*np.ones(count), 0.0, 0.0]]),
        b_eq=[1.0],
    )
    mixture: Array = np.maximum(solution.x[:count], 0.0)
    return mixture


def shares(win: Array, weighting: Weighting, latest_share: float, payoffs: Array) -> Array:
    """Return the share of games of each snapshot (K,), ``K >= 1``, together 1.

    Args:
        win: learner's win rates (K,), oldest snapshot first.
        weighting: the function of win rates; uniform if all its weights are 0.
        latest_share: minimum share of the newest snapshot.
        payoffs: win rates of snapshots against one another (K, K), for ``nash``.
    """
    weights = nash(payoffs) if weighting == "nash" else WEIGHTINGS[weighting](win)
    even = np.full(len(win), 1 / len(win))
    drawn = weights / weights.sum() if weights.sum() > 0 else even
    if weighting not in ("uniform", "latest"):
        drawn = (1 - CHECKS) * drawn + CHECKS * even
    drawn = (1 - latest_share) * drawn
    drawn[-1] += latest_share
    return drawn


def draw(share: Array, most: int, number: float) -> Array:
    """Draw shares (K,) with at most ``most`` non-zero snapshots; their mean is ``share`` (K,).

    Systematic resampling: each of ``most`` evenly spaced points in [0, 1), shifted by ``number`` in [0, 1), gives an
    equal part of the games to the snapshot whose interval of ``share`` contains it.
    """
    if len(share) <= most:
        return share
    points = (np.arange(most) + number) / most
    chosen = np.searchsorted(np.cumsum(share), points, side="right")
    return np.bincount(np.minimum(chosen, len(share) - 1), minlength=len(share)) / most


def counted(games: float, points: float, scores: Array) -> tuple[float, float]:
    """Update games and points against one opponent with ``scores`` (M,): 1, .5 for a draw, or 0."""
    decayed = DECAY ** np.arange(len(scores))[::-1]
    factor = DECAY ** len(scores)
    return games * factor + float(decayed.sum()), points * factor + float((decayed * scores).sum())


class Roster(NamedTuple):
    """Active players of a league."""

    weights: dict[int, float]  # by number: share of the games
    files: dict[int, dict[str, PlayerFiles]]  # of snapshots, by number and network


class League:
    """The state of a league, without files: snapshots, results and active players.

    Players have numbers: anchors from 0 on, then snapshots in the order in which they joined.

    Args:
        config: its rules.
        seed: of the run; with the number of steps, it determines the draws.

    Attributes:
        snapshots: all so far.
        lost: numbers of snapshots with missing files; they are not drawn.
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
        place = number - len(self._anchors)
        return self.snapshots[place] if place >= 0 else None

    def available(self) -> list[Snapshot]:
        """Return all snapshots with files."""
        return [s for n, s in enumerate(self.snapshots, len(self._anchors)) if n not in self.lost]

    def win_rates(self) -> Array:
        """Return the learner's win rate against each player (P,), a draw as half a win."""
        rates = np.full(len(self._games), UNPLAYED)
        met = self._games > 0
        rates[met] = self._points[met] / self._games[met]
        return rates

    def metrics(self) -> dict[str, float]:
        """Return the league's metrics."""
        rates = np.delete(self.win_rates(), self.lost)
        return {"league/size": float(len(rates)), "league/min_win": float(rates.min())}

    def record(self, players: NDArray[np.int16], scores: Array) -> None:
        """Record finished games (M,): the number of the opponent, and the learner's score."""
        for number in np.unique(players).tolist():
            totals = self._games[number], self._points[number]
            self._games[number], self._points[number] = counted(*totals, scores[players == number])
        self._recent = [*self._recent, *scores.tolist()][-RECENT:]

    def due(self, env_steps: int) -> bool:
        """Whether a snapshot of the learner is due."""
        config = self.config
        if config.every is not None and env_steps - self._joined_at >= config.every:
            return True
        if config.win is None or self._drawn_at < self._joined_at:  # the last snapshot has not played yet
            return False
        if config.win_over == "episodes":
            return len(self._recent) == RECENT and sum(self._recent) / RECENT >= config.win
        playing = [number for number, weight in self.weights.items() if weight > 0]
        met = all(self._games[number] >= FEWEST for number in playing)
        return met and len(self._recent) == RECENT and bool(self.win_rates()[playing].min() >= config.win)

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot; it plays from the next :meth:`redraw` on."""
        wins = self.win_rates()[len(self._anchors) :]
        self.snapshots.append(snapshot._replace(wins=tuple(wins.tolist())))
        self._games, self._points = np.append(self._games, 0.0), np.append(self._points, 0.0)
        self._joined_at = snapshot.env_steps

    def lose(self, number: int) -> None:
        """Stop drawing a snapshot; its running games continue."""
        self.lost.append(number)

    def stale(self, env_steps: int) -> bool:
        """Whether the active players are due for a redraw.

        Not at every snapshot: players not drawn again still finish their games, and each costs a separate pass. But the
        first snapshot plays at once.
        """
        alone = max(self.weights, default=0) < len(self._anchors) and bool(self.available())
        return alone or env_steps - self._drawn_at >= self.config.redraw

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
            known = self._payoffs()[np.ix_(available - first, available - first)]
            share = shares(self.win_rates()[available], self.config.weighting, newest, known)
            number = float(np.random.default_rng((self._seed, env_steps)).random())
            playing = (1 - anchors) * draw(share, self.config.most, number)
            self.weights |= {int(n): float(weight) for n, weight in zip(available, playing, strict=True) if weight > 0}

    def _payoffs(self) -> Array:
        """Return the snapshots' win rates against one another (K, K), as measured for the newer one; unmet: even."""
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


def league_pool(seated: Mapping[str, tuple[LoadedPlayer, ...]], seats: Sequence[str]) -> OpponentPool:
    """Return the pool of a league's anchors, numbered from 0 on, that plays all ``seats`` of a team."""
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
