"""A hand-in: what it is, and whether it plays."""

import secrets
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from multigrid_rl.competition.agents import AgentPlayer, read_agent
from multigrid_rl.competition.bundle import bundle_folders, folder_kind, load_team, read_cards
from multigrid_rl.competition.sandbox import Limits, kill_descendants, sandboxed
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.metrics import outcome_shares
from multigrid_rl.players.cards import BoxSignature, Card, PlayerError, read_network
from multigrid_rl.players.classes import check_not_class
from multigrid_rl.players.episodes import Played, play_games
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.players.places import place_of
from multigrid_rl.runs.players import scenario_of
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError, shown
from multigrid_rl.types import Policy, Seats, SeatView

GAMES = 20
SEED = 1
#: Of a player, to find out how long one takes.
CALLS = 40
#: Of what a card says about its strength: a stranger may say it of thousands of opponents.
ROWS = 30
AGENTS_SCENARIO = "1v1"


def inspect_folder(folder: Path, scenario: str | None, limits: Limits = Limits()) -> Iterator[str]:  # noqa: B008
    """Yield lines about a bundle or an agent, as its checks pass; the last one says that all did.

    Args:
        folder: what was handed in.
        scenario: game that it is to play; by default the one that a bundle was trained in, 1v1 for an agent.
        limits: of an agent.

    Raises:
        PlayerError, ConfigError: what is wrong with it, in one line.
    """
    if not folder.exists():
        check_not_class("folder", str(folder))
    kind = folder_kind(folder)
    yield f"{shown(folder.resolve().name)}: {_WHAT[kind]}"
    if kind == "agent":
        yield from _agent(folder, scenario or AGENTS_SCENARIO, limits)
        return
    cards = read_cards(folder)
    for part, path in bundle_folders(folder).items():
        network = read_network(path, cards[part])
        yield from _about(cards[part], sum(weight.numel() for weight in network.state_dict().values()))
        yield _line("latency", f"{1e3 * seconds_per_action(cards[part], network):.2f} ms an action, one at a time")
    card = next(iter(cards.values()))
    named = scenario or (scenario_of(card) if card.kind.rivals else None)
    if card.env is not None and named is None:
        there = f"multigrid-rl evaluate {shlex.quote(shown(str(folder)))} plays it there"
        judged = card.kind.judged
        yield f"ok: for {card.env.env_id}; {there if judged else f'of {card.env.package}, where none is played'}"
        return
    try:
        spec = load_scenario(named or card.scenario).kind.spec
    except ConfigError as error:
        raise error if scenario else PlayerError(f"{error}; say which game with --scenario") from error
    yield from _plays(folder, spec, named or card.scenario)


_WHAT = {
    "bundle": "a frozen player",
    "team": "a team of frozen players, one for each seat",
    "agent": "an agent in a process of its own",
}


def _line(key: str, value: object) -> str:
    return f"  {key:<12} {value}"


def _about(card: Card, weights: int) -> Iterator[str]:
    provenance: dict[str, Any] = card.provenance
    bounded = isinstance(card.actions, BoxSignature)
    silent = {"name"} if bounded else {"name", "bound", "log_std"}
    silent |= {key for key, value in card.architecture.items() if value in (None, False, "none")}
    kind = ", ".join(f"{key} {value}" for key, value in card.architecture.items() if key not in silent)
    acts = "numbers" if bounded else f"among {card.actions} actions"
    members = f"for {card.members} seats at once" if card.members > 1 else "for one seat"
    yield _line("name", card.name)
    yield _line("network", shown(f"{card.architecture['name']}, {kind}", 200))
    yield _line("weights", f"{weights:,} in {card.bytes:,} bytes, sha256 {card.sha256}")
    yield _line("reads", card.observation)
    yield _line("chooses", shown(f"{acts}, {members}"))
    yield _line("seats", f"{', '.join(card.seats)} of {card.scenario if card.env is None else card.env.env_id}")
    steps = provenance.get("env_steps")
    yield _line("trained for", "unknown" if steps is None else f"{steps:,} environment steps")
    for key in ("seed", "commit"):
        yield _line(key, shown(str(provenance.get(key, "unknown"))))
    versions = provenance.get("versions")
    pairs = versions.items() if isinstance(versions, dict) else ()
    yield _line("versions", shown(", ".join(f"{name} {version}" for name, version in pairs), 200) or "unknown")
    yield _line("opponents", _opponents(provenance.get("opponents")))
    rows = [
        f"{row.opponent}: win {row.win:.1%}, draw {row.draw:.1%}, loss {row.loss:.1%} of {row.episodes:,} games of "
        f"{row.scenario}"
        for row in card.strength
    ]
    if len(rows) > ROWS:
        rows[ROWS:] = [f"and {len(card.strength) - ROWS:,} rows more"]
    for k, row in enumerate(rows or ["not measured"]):
        yield _line("" if k else "strength", row)


def seconds_per_action(card: Card, network: nn.Module) -> float:
    """Return how long a player takes to act in one game: the median of some calls, the first ones left out."""
    player, streams = FrozenPlayer.of(card, network), Streams(SEED, np.zeros(1, np.int64))
    tokens = card.observation.categories
    seen: Any = np.ones((1, card.observation.size or 0), np.float32)  # every choice is legal
    view = SeatView(seen if tokens is None else np.zeros((1, len(tokens)), np.uint8), None, 0)
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        player.act(view, player.initial_state(1), streams)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[CALLS // 4 :]))


def _opponents(value: object) -> str:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    names = ", ".join(
        f"{row.get('seat')} {row.get('name')}" + (f" ({str(row['sha256'])[:16]}...)" if row.get("sha256") else "")
        for row in rows
    )
    return shown(names, 300) or "unknown"


def _plays(folder: Path, spec: Seats, scenario: str) -> Iterator[str]:
    sides: list[str] = []
    failures: list[PlayerError] = []
    for team in _teams(spec):
        try:
            players = load_team(folder, spec, team, partly=True)
        except PlayerError as error:
            failures.append(error)
            yield _line(f"as {team}", f"does not fit {scenario}: {error}")
            continue
        _games(spec, players, team, 1)  # kernels are compiled or loaded here
        begin = time.monotonic()
        played = _games(spec, players, team)
        seconds = time.monotonic() - begin
        mirrored = any(getattr(player, "mirrored", False) for player in players.values())
        how = "from the other side of the board" if mirrored else "as it learned"
        whole = team in players or len(players) == len(spec.seats_of(team))
        sides.append(team if whole else " and ".join(players))
        yield _line(f"as {team}", how if whole else f"{how}, on {', '.join(players)} only; random plays beside it")
        yield _line("", f"{_result(spec, played, team)}; {1e3 * seconds / played.table.length.max():.2f} ms a step")
    if not sides:
        raise failures[0]
    yield f"ok: plays {scenario} as {' and as '.join(sides)}"


def _agent(folder: Path, scenario: str, limits: Limits) -> Iterator[str]:
    agent = read_agent(folder)
    spec = load_scenario(scenario).kind.spec
    teams = _teams(spec)
    sandboxed()
    yield _line("name", shown(agent.title))
    yield _line("command", shown(" ".join(agent.file.command), 200))
    yield _line("about", agent.file.about or "unknown")
    yield _line("files", f"sha256 {agent.sha256}")
    for team in teams:
        # As in a cup: with a seed that does not tell the games', and nothing left of it.
        seed, seats = secrets.randbits(32), spec.seats_of(team)
        with kill_descendants(), AgentPlayer(agent, spec, seats, limits, scenario=scenario, seed=seed) as player:
            try:
                player.start(GAMES)
                started = player.started_s
                played = _games(spec, {team: player}, team)
                if played.fault is not None:
                    raise played.fault
            except PlayerFaultError as error:
                raise PlayerError(f"agent {error.name}, as {team}: {error.reason}") from error
        yield _line(f"as {team}", f"ready after {started:.2f} s")
        pace = f"{1e3 * player.thought_s / player.answers:.1f} ms a step, {player.thought_s:.1f} s in all"
        yield _line("", f"{_result(spec, played, team)}; {pace}")
    yield f"ok: plays {scenario} as {' and as '.join(teams)}"


def _games(spec: Seats, players: dict[str, Policy], team: str, games: int = GAMES) -> Played:
    """Play a handful of games, random players on all other seats."""
    filled = spec.seats_of(team) if team in players else list(players)
    others = {seat: place_of(spec).scripted(spec, "random", seat) for seat in spec.seats if seat not in filled}
    return play_games(spec, {**players, **others}, games, seed=SEED)


def _result(spec: Seats, played: Played, team: str) -> str:
    specs = place_of(spec).who(spec)
    if not specs.has_winner:
        own = [specs.seats.index(seat) for seat in specs.members(team)]
        return f"{GAMES} games beside random: return {played.table.returns[:, own].sum(axis=1).mean():.2f}"
    shares = outcome_shares(played.table.winner, specs.team_names.index(team))
    win, draw, loss = (round(share * GAMES) for share in shares)
    return f"{GAMES} games against random: win {win}, draw {draw}, loss {loss}"


def _teams(spec: Seats) -> list[str]:
    return [team for team in place_of(spec).who(spec).team_names if spec.seats_of(team)]
