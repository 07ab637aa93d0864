"""Seats and players of an evaluation: as in the scenario, or with the sides swapped."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import env_factory, seat_players
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import code_of_run, opponent_hashes, run_config
from multigrid_rl.text import expected
from multigrid_rl.trust import check_code
from multigrid_rl.types import EpisodeTable, GameSpec, Policy
from multigrid_rl.world.symmetry import other_seat

Sides = Literal["own", "other", "red", "blue", "both"]


@dataclass(frozen=True)
class Lineup:
    """The players on all seats."""

    team: str  # team of the judged player
    own: tuple[str, ...]  # seats that it fills
    seated: dict[str, tuple[LoadedPlayer, ...]]  # by seat; several take turns

    def players(self, spec: GameSpec) -> dict[str, Policy]:
        """Return the players as a match takes them. Raises ``PlayerError`` if a player of a whole team lacks a seat."""
        return seat_players(spec, self.seated, once=True)

    def games_against(self, table: EpisodeTable, spec: GameSpec) -> dict[str, NDArray[np.bool_]]:
        """Return which episodes (M,) each of several players that take turns on the other team took part in."""
        pools = [seat for seat in spec.seats if len(self.seated.get(seat, ())) > 1]
        opponents = {
            column: tuple(row.name for row in self.seated[seat])
            for column, seat in enumerate(pools)
            if spec.team_of(seat) != self.team
        }
        return table.with_players(opponents)

    def names(self) -> dict[str, str]:
        """Return the name of each seat's player; of several, names with weights."""
        return {
            seat: rows[0].name if len(rows) == 1 else "+".join(f"{row.name}:{row.weight:g}" for row in rows)
            for seat, rows in self.seated.items()
        }


@dataclass(frozen=True)
class EvalTarget:
    """A player or run to be judged in a scenario."""

    name: str  # for reports
    spec: GameSpec
    learning: tuple[str, ...]  # seats that it fills in the scenario; on the other side of the board their counterparts
    refs: dict[str, str]  # seat -> name or folder of the player for it
    opponents: dict[str, dict[str, float]]  # the other seats of the scenario: player name -> share of the games
    catalogue: Catalogue  # where players are looked up
    hashes: dict[str, str]  # sha256 that a frozen opponent must have, by name; others are taken as they are

    @property
    def team(self) -> str:
        """Team of the seats that it fills in the scenario."""
        return str(self.spec.team_of(self.learning[0]))

    def teams(self, sides: Sides) -> tuple[str, ...]:
        """Return the teams that it plays for with these ``sides``, its own first.

        Raises:
            ConfigError: the scenario has no such side.
        """
        own = self.team
        wanted = {"own": (own,), "other": (other_seat(own),), "both": (own, other_seat(own))}.get(sides, (sides,))
        if wanted != (own,) and self.spec.blue != self.spec.red:
            raise ConfigError(
                expected(
                    "--sides",
                    "own, or a scenario with two teams of the same size",
                    f"{sides} with {self.spec.blue} blue and {self.spec.red} red",
                )
            )
        return wanted

    def lineup(self, team: str, *, greedy: bool) -> Lineup:
        """Return all seats when it plays for ``team``, with sampled actions or its own argmax actions (``greedy``).

        Raises:
            PlayerError: a player is unknown, damaged, does not fit, or has another hash.
        """
        flipped = team != self.team
        own: list[str] = []
        seated: dict[str, tuple[LoadedPlayer, ...]] = {}
        for seat in self.spec.seats:
            counterpart = other_seat(seat) if flipped else seat  # its seat in the scenario
            if counterpart in self.learning:
                own.append(seat)
                seated[seat] = (self.catalogue.seat(self.refs[counterpart], self.spec, seat, greedy=greedy),)
            else:
                seated[seat] = self.catalogue.take_turns(self.opponents[counterpart], self.spec, seat, self.hashes)
        return Lineup(team, tuple(own), seated)


def player_target(name: str, config: RunConfig) -> EvalTarget:
    """Judge a player of the catalogue, or of a folder, in the scenario of ``config``; it fills the learning seats.

    Raises:
        ConfigError: seats of both teams learn, or none.
    """
    spec, learning = config.scenario.spec, tuple(config.scenario.learning)
    teams = {spec.team_of(seat) for seat in learning}
    if len(teams) != 1:
        seats = ", ".join(learning) or "no seat"
        raise ConfigError(
            expected(
                f"scenario={config.scenario.name}",
                "one team to judge (scenario.seats.SEAT=PLAYER or --opponent PLAYER)",
                f"{seats} that learn",
            )
        )
    catalogue = Catalogue(config.checkpoint_root())
    refs = dict.fromkeys(learning, name)
    return EvalTarget(catalogue.home_of(name)[0], spec, learning, refs, config.scenario.opponents, catalogue, {})


def run_target(run: Path, config: RunConfig | None = None, checkpoint: str | None = None) -> EvalTarget:
    """Judge the exported policies of a run, in its own scenario or in that of ``config``.

    In its own scenario its opponents must be those of its training. Of a run in which both teams learned, red is judged
    against its own blue players.

    Raises:
        ConfigError, PlayerError: no run, no such checkpoint, another game, a damaged player.
    """
    trained = run_config(run)
    if trained.scenario.game is None:
        raise ConfigError(expected(f"{run}: scenario", "one of the red/blue-door game", trained.scenario.name))
    folders = {}
    for agent in env_factory(trained).specs.agents:
        folder = run_player(run, agent.module, checkpoint)
        for seat in agent.seats:
            if seat not in read_card(folder).seats:
                raise PlayerError(expected(f"{folder}: seats", f"a player of {seat}", read_card(folder).seats))
            folders[seat] = f"{folder}/"  # the slash marks a folder, not a name
    team = "red" if any(seat.startswith("red") for seat in folders) else "blue"
    own = {seat: ref for seat, ref in folders.items() if seat.startswith(team)}
    if config is None:
        own_blue = {seat: {ref: 1.0} for seat, ref in folders.items() if seat not in own}
        opponents, hashes = {**trained.scenario.opponents, **own_blue}, opponent_hashes(run)
        check_code(f"{run}: opponents", code_of_run(trained), "a player of this project")
    else:
        opponents, hashes = config.scenario.opponents, {}
    scenario = (config or trained).scenario
    unfilled = [seat for seat in scenario.spec.seats if seat not in opponents and seat not in own]
    if unfilled:
        wanted = f"a scenario in which {', '.join(own)} learn, or scenario.seats.{unfilled[0]}=PLAYER"
        raise ConfigError(expected(f"scenario={scenario.name}", wanted, f"no player for {unfilled[0]} in {run}"))
    learning = tuple(seat for seat in scenario.spec.seats if seat not in opponents)
    catalogue = Catalogue((config or trained).checkpoint_root())
    return EvalTarget(run.name, scenario.spec, learning, own, opponents, catalogue, hashes)


def against(target: EvalTarget, opponent: str) -> EvalTarget:
    """Return the target with ``opponent`` on every seat of the other team.

    Raises:
        ConfigError: there is no other team.
    """
    seats = [seat for seat in target.spec.seats if target.spec.team_of(seat) != target.team]
    if not seats:
        raise ConfigError(expected("--opponent", "a scenario with two teams", f"{opponent} and one team"))
    opponents = {**target.opponents, **{seat: {opponent: 1.0} for seat in seats}}
    hashes = {name: sha for name, sha in target.hashes.items() if name != opponent}
    return replace(target, opponents=opponents, hashes=hashes)
