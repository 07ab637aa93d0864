"""Builds the environments of a run's configuration. Pools are imported only if there are some."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid_rl.envs.grouping import GroupedEnv, Scheme
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer, Seating
from multigrid_rl.players.match import Match
from multigrid_rl.players.places import place_of
from multigrid_rl.text import expected
from multigrid_rl.types import MultiAgentSpec, Policy, Seats

if TYPE_CHECKING:
    from multigrid_rl.players.pool import Roster

#: All snapshots of a league in the names of metrics.
SNAPSHOTS = "snapshots"


def match_of(
    spec: Seats, players: dict[str, Policy], games: int, *, seed: int = 0, first: int = 0, auto_reset: bool = True
) -> Match[Any]:
    """Return games with background players. Raises as :class:`Match` does."""
    env = place_of(spec).environment(spec, games, seed=seed, first=first, auto_reset=auto_reset)
    return Match(env, {seat: spec.team_of(seat) for seat in spec.seats}, players, seed=seed, first=first)


@dataclass(frozen=True)
class MatchFactory:
    """Builds matches of one game with the same players, whose files are loaded and checked once in each process.

    Args:
        spec: the game: a :class:`GameSpec`, or another class with an entry of ``tables.PLACES``.
        opponents: for each background seat, player name -> share of the games.
        checkpoints: folder of frozen players; ``None``: the user's and the project's.
        hashes: sha256 that each frozen player must have, by name; an empty mapping accepts any.
        scheme: how the learning seats become agents.
        shared: all learning seats of a team share one network.
        shaping: ``module:function`` of a training reward, or ``None``.
        bonus: weights on events that are added to the training reward; see ``world.events.EventBonus``.
        league: seats of the team that a league plays; its anchors are their ``opponents``.
        roster: active snapshots of the league; ``None``: only anchors.
        catalogue: players in memory, see :meth:`packed`; ``None`` reads ``checkpoints``.
    """

    spec: Any
    opponents: dict[str, dict[str, float]]
    checkpoints: Path | None
    hashes: dict[str, str]
    seed: int
    scheme: Scheme = "dtde"
    shared: bool = False
    shaping: str | None = None
    bonus: dict[str, dict[str, float]] = field(default_factory=dict)
    league: tuple[str, ...] = ()
    roster: Roster | None = None
    catalogue: Catalogue | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop loaded players: each process loads and checks them."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_seated", "specs")}

    def __deepcopy__(self, memo: dict[int, Any]) -> MatchFactory:
        """Return itself, as it is immutable: RLlib copies its configurations, and copies need not reload players."""
        return self

    @cached_property
    def specs(self) -> MultiAgentSpec:
        """The agents in the matches."""  # cached: every iteration reads them several times
        spec, place = self.spec, place_of(self.spec)
        learning = {seat: str(spec.team_of(seat)) for seat in spec.seats if seat not in self.opponents}
        return replace(
            place.who(spec),
            agents=place.agents(spec, learning, self.scheme, shared=self.shared),
            pools=tuple(
                (seat, (*self.opponents[seat], *((SNAPSHOTS,) if seat in self.league else ())))
                for seat in spec.seats
                if len(self.opponents.get(seat, ())) > 1 or seat in self.league
            ),
        )

    def load(self) -> Seating:
        """Return every background player, by seat; files are read at the first call. Raises :class:`PlayerError`."""
        return dict(self._seated)

    @cached_property
    def _seated(self) -> Seating:
        catalogue = self.catalogue or Catalogue(self.checkpoints)
        return {
            seat: catalogue.load_mixture(names, self.spec, seat, self.hashes) for seat, names in self.opponents.items()
        }

    def packed(self) -> MatchFactory:
        """Return the same factory with every frozen player's files, for a process without access to their folder.

        Building from it checks the files as if they had been read there, and their sha256 against the packed ones. It
        is as large as the files and, like opponents, does not belong into checkpoints. Raises
        ``PlayerError``: as :meth:`load`.
        """
        catalogue = self.catalogue or Catalogue(self.checkpoints)
        names = [name for row in self.opponents.values() for name in row]
        known = {row.name: row.sha256 for rows in self.load().values() for row in rows if row.sha256}
        result = replace(self, catalogue=catalogue.packed(names), hashes={**self.hashes, **known})
        result.load()  # only this load finds a file that changed meanwhile
        return result

    def against(self, opponent: str) -> MatchFactory:
        """Return the same factory with another player on every background seat."""
        others = {seat: {opponent: 1.0} for seat in self.opponents}
        return replace(self, opponents=others, hashes={}, league=(), roster=None, catalogue=None)

    def build(self, num_envs: int, first: int) -> GroupedEnv:
        """Build the matches of games ``first`` to ``first + num_envs - 1``, by agent."""
        seated = self.load()
        players = seat_players(self.spec, {seat: rows for seat, rows in seated.items() if seat not in self.league})
        if self.league:
            from multigrid_rl.players.pool import anchor_pool  # noqa: PLC0415

            pool = anchor_pool(_seat_agents(self.spec, seated, once=False), self.league)
            if self.roster is not None:
                pool.update(self._snapshots(self.roster), self.roster.weights, pool.initial_state(0))
            players[str(self.spec.team_of(self.league[0]))] = pool
        spec = place_of(self.spec).of_league(self.spec) if self.league else self.spec
        match = match_of(spec, players, num_envs, seed=self.seed, first=first)
        match.env.shaping = self.training_reward()
        return GroupedEnv(match, self.specs)

    def with_roster(self, roster: Roster) -> MatchFactory:
        """Return the same factory with ``roster`` in its league."""
        result = replace(self, roster=roster)
        result.__dict__["_seated"] = self._seated  # loaded only once
        return result

    def playing(self, env: GroupedEnv) -> list[int]:
        """Return the numbers of the league's players with running games in an environment of this factory."""
        assert isinstance(env.env, Match)
        return sorted(env.env.pooled())

    def join(self, env: GroupedEnv, roster: Roster) -> None:
        """Set the ``roster`` of an environment of this factory, from the next games on."""
        assert isinstance(env.env, Match)
        env.env.join(str(self.spec.team_of(self.league[0])), self._snapshots(roster), roster.weights)

    def _snapshots(self, roster: Roster) -> dict[int, Policy]:
        from multigrid_rl.players.pool import snapshot_player  # noqa: PLC0415

        files, spec = roster.files, self.spec
        return {n: snapshot_player(f"{SNAPSHOTS}-{n}", files[n], spec, self.league) for n in files}

    def check_reward(self) -> None:
        """Try a user's training reward. Raises ``ConfigError``: it cannot be used."""
        if self.shaping:
            place_of(self.spec).try_reward(self.spec, self.shaping)

    def training_reward(self) -> Any:
        """Return the shaped training reward, if any. Raises ``ValueError`` for wrong weights."""
        return place_of(self.spec).training_reward(self.spec, self.shaping, self.bonus)


def _mixtures(spec: Seats, seated: Seating, seat: str) -> list[list[tuple[str, float]]]:
    """Return names and weights of the players on each seat of the team of ``seat``."""
    return [[(row.name, row.weight) for row in seated.get(mate, ())] for mate in spec.seats_of(spec.team_of(seat))]


def _seat_agents(spec: Seats, seated: Seating, *, once: bool) -> Seating:
    """Seat each player that has a method ``seated``: one per team if it plays the whole team, else one per seat."""
    result = {}
    for seat, rows in seated.items():
        joint = all(hasattr(row.player, "seated") or row.members > 1 for row in rows)
        first, *others = _mixtures(spec, seated, seat)
        same_mixture = joint and all(other == first for other in others)
        seats = spec.seats_of(spec.team_of(seat)) if same_mixture else (seat,)
        makers = [(row, getattr(row.player, "seated", None)) for row in rows]
        result[seat] = tuple(
            row if make is None else row._replace(player=make(spec, seats, once=once)) for row, make in makers
        )
    return result


def seat_players(spec: Seats, seated: Seating, *, once: bool = False) -> dict[str, Policy]:
    """Return players by seat, or by team where one player acts for all its seats.

    Args:
        seated: by seat; several form a mixture.
        once: every game is played once, as in ``play_games``.

    Raises ``PlayerError``: a player of a whole team does not have all the team's seats.
    """
    seated = _seat_agents(spec, seated, once=once)
    players: dict[str, Policy] = {}
    for seat, rows in seated.items():
        if (joint := {row.members > 1 for row in rows}) == {False}:
            players[seat] = _mixture_of(rows)
            continue
        team, mixtures = spec.team_of(seat), _mixtures(spec, seated, seat)
        if joint == {True, False} or any(other != mixtures[0] for other in mixtures):
            texts = ["+".join(f"{name} {weight:.0%}" for name, weight in row) or "learn" for row in mixtures]
            listed = ", ".join(f"{mate}: {row}" for mate, row in zip(spec.seats_of(team), texts, strict=True))
            key = f"scenario.seats.{seat}={'+'.join(row.name for row in rows)}"
            wanted = "the same player of a whole team, or mixture of such, on every seat of the team"
            raise PlayerError(expected(key, wanted, listed))
        players.setdefault(team, _mixture_of(rows))
    return players


def _mixture_of(rows: tuple[LoadedPlayer, ...]) -> Policy:
    if len(rows) == 1:
        return rows[0].player
    from multigrid_rl.players.pool import OpponentPool  # noqa: PLC0415

    return OpponentPool([row.player for row in rows], [row.weight for row in rows])
