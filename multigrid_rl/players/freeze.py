"""Turn a run's player into a frozen one of the catalogue, and measure its strength."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.metrics import outcome_shares
from multigrid_rl.players.cards import Card, PlayerError, Strength, read_card, read_network, write_card, write_player
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue, Seating
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import seat_players
from multigrid_rl.players.places import place_of, sides_of
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, Policy, Seats


def freeze(source: Path, name: str, catalogue: Catalogue, episodes: int, game: Seats | None = None) -> Card:
    """Copy a run's player into the catalogue, with its strength measured over ``episodes`` games per opponent.

    Opponents are random, the scripted players and every frozen player made for the same scenario. A player from other
    opponents or gates in the same game, such as a league's, counts as made for the scenario of players of that game.
    ``game`` is the game of its training; ``None``: that of the scenario on its card, for red/blue doors.
    Raises ``PlayerError``: the name is taken or not a name, or the source is damaged. Nothing is written then.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise PlayerError(expected("name", "small letters, digits and dashes", name))
    if name in catalogue.names() or (catalogue.root / name).exists():
        raise PlayerError(expected("name", f"a new one in {catalogue.root}", f"{name}, which is there already"))
    trained = read_card(source)
    values = trained.model_dump(exclude={"bytes", "sha256"}) | {"name": name}
    if trained.env is None:
        trained = trained.model_copy(update={"scenario": _scenario_of_same_game(catalogue, trained.scenario)})
        game = load_scenario(trained.scenario).kind.spec
    if game is not None and place_of(game).who(game).has_winner:
        seat = trained.seats[0] if trained.seats else "none"
        if seat not in game.seats:
            raise PlayerError(expected(f"{source}: seats", ", ".join(game.seats), seat))
        place_of(game).fits(game, trained, seat)
        # The slash marks a folder: this is not a name.
        values |= _measure_against_all(catalogue, f"{source}/", game, trained.scenario, episodes)
        values["scenario"] = trained.scenario
    card = write_player(catalogue.root / name, read_network(source, trained).state_dict(), values)
    catalogue.add(name, {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256})
    return card


def averaged(sources: Sequence[Path], folder: Path) -> Path:
    """Write the last of several players of one run into ``folder``, with the mean of all their weights; returns it.

    Where learners run in circles around an equilibrium, the mean of their weights lies nearer to it than any of them:
    stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407).
    Raises ``PlayerError``: a damaged player.
    """
    card = read_card(sources[-1])
    states = [read_network(source, read_card(source)).state_dict() for source in sources]
    means = {
        key: torch.stack([state[key].double() for state in states]).mean(dim=0).to(weights.dtype)
        for key, weights in states[-1].items()
    }
    values = card.model_dump(exclude={"bytes", "sha256"})
    write_player(folder, means, values | {"provenance": {**card.provenance, "averaged_checkpoints": len(sources)}})
    return folder


def _measure_against_all(
    catalogue: Catalogue, name: str, spec: Seats, scenario: str, episodes: int
) -> dict[str, list[Strength]]:
    """Return a player's strength, and the results of random in its place."""
    opponents = [*BUILT_IN, *_frozen_for(catalogue, scenario)]
    if len(sides_of(spec)) == 1 or not place_of(spec).built_in:
        opponents = ["random"]  # with one team there is no opponent: one row has the player's results
    own = playable_teams(catalogue, name, spec)
    others = {team: team_players(catalogue, "random", spec, team) for team in own}
    strength = [measure(catalogue, own, other, spec, scenario, episodes) for other in opponents if other != name]
    return {"strength": strength, "baseline": [measure(catalogue, others, "random", spec, scenario, episodes)]}


def _frozen_for(catalogue: Catalogue, scenario: str) -> list[str]:
    return [name for name, entry in catalogue.entries.items() if entry.get("scenario") == scenario]


def _scenario_of_same_game(catalogue: Catalogue, scenario: str) -> str:
    """Return the first scenario of a frozen player with the same game of doors as ``scenario``, else ``scenario``."""
    game = load_scenario(scenario).game
    known = dict.fromkeys(entry["scenario"] for entry in catalogue.entries.values() if "scenario" in entry)
    return next((other for other in known if load_scenario(other).game == game), scenario)


def rate(catalogue: Catalogue, scenario: str, episodes: int) -> list[Card]:
    """Measure every frozen player of ``scenario`` against all its opponents anew and rewrite their cards.

    Raises ``PlayerError``: a damaged player, or a game without a winner.
    """
    spec, cards = load_scenario(scenario).kind.spec, []
    if not place_of(spec).who(spec).has_winner:
        raise PlayerError(expected("scenario", "one whose games are won, as strength is a share of wins", scenario))
    for name in _frozen_for(catalogue, scenario):
        folder = catalogue.folder(name)
        card = read_card(folder)
        measured = _measure_against_all(catalogue, name, spec, scenario, episodes)
        measured["strength"] += [row for row in card.strength if row.scenario != scenario]
        cards.append(card.model_copy(update=measured))
        write_card(folder, cards[-1])
    return cards


STRENGTH_SEED = 20_000


def team_players(catalogue: Catalogue, name: str, spec: Seats, team: str) -> dict[str, Policy]:
    """Return the players of one team: ``name`` on each seat that it can play, random on the others.

    Raises ``PlayerError``: it cannot play any seat of the team.
    """
    seated: Seating = {}
    failure: PlayerError | None = None
    seats = spec.seats_of(team)
    for seat in seats:
        try:
            seated[seat] = (catalogue.seat(name, spec, seat),)
        except PlayerError as error:
            failure = error
    if failure is not None and not seated:
        raise failure
    players = seat_players(spec, seated)
    return players | {seat: place_of(spec).scripted(spec, "random", seat) for seat in seats if seat not in seated}


def playable_teams(catalogue: Catalogue, name: str, spec: Seats) -> dict[str, dict[str, Policy]]:
    """Return the players of each team that ``name`` can play. Raises ``PlayerError``: it can play none."""
    found, failures = {}, []
    for team in sides_of(spec):
        try:
            found[team] = team_players(catalogue, name, spec, team)
        except PlayerError as error:
            failures.append(error)
    if not found:
        raise failures[0]
    return found


def measure(
    catalogue: Catalogue, own: dict[str, dict[str, Policy]], opponent: str, spec: Seats, scenario: str, episodes: int
) -> Strength:
    """Play a player's teams (:func:`playable_teams`) against ``opponent`` over ``episodes`` games, divided among them.

    Each fills whole teams, ``opponent`` all others; in a game with one team it plays none. Raises ``PlayerError``:
    ``opponent`` cannot play this game.
    """
    tables: list[EpisodeTable] = []
    for k, (team, players) in enumerate(own.items()):
        games, all_players = (episodes + k) // len(own), dict(players)
        if games == 0:
            continue
        for other in sides_of(spec):
            all_players |= team_players(catalogue, opponent, spec, other) if other != team else {}
        table = play_games(spec, all_players, games, seed=STRENGTH_SEED + k).full_table()
        # Winner 1 is this player, 0 another, so that the parts add up.
        is_win = table.winner == place_of(spec).who(spec).team_names.index(team)
        tables.append(table._replace(winner=np.where(table.winner < 0, -1, is_win).astype(np.int8)))
    played = EpisodeTable.concatenate(tables)
    win, draw, loss = (round(share, 4) for share in outcome_shares(played.winner, 1))
    return Strength(
        scenario=scenario, opponent=opponent, episodes=episodes, seed=STRENGTH_SEED,
        win=win, draw=draw, loss=loss, length_mean=round(float(played.length.mean()), 2),
    )  # fmt: skip
