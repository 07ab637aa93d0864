"""A cup: round robin of all entries, from all sides, on the same games. Resumes after a crash."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.competition.agents import AgentPlayer
from multigrid_rl.competition.cup_folder import Meeting, Pairing, begin, begin_mark, load_pairing, meetings, suspects
from multigrid_rl.competition.entries import UNREADABLE, CupConfig, Entry
from multigrid_rl.competition.hand_ins import reason_of
from multigrid_rl.competition.process import BusyError
from multigrid_rl.competition.sandbox import kill_descendants, uses_sandbox
from multigrid_rl.evaluation.replays import GameRecord, ZooRecord, record
from multigrid_rl.files import write_atomic
from multigrid_rl.metrics import ahead
from multigrid_rl.players.episodes import EpisodeBatch, play_games
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.types import Policy, RunError

#: Forfeited pairings after which an entry is out of the cup: an agent that hangs would cost hours.
STRIKES = 3
#: Maximum tries of a pairing on a machine that is too busy; the cup can be resumed.
BUSY_TRIES = 3
#: Reason for agents that may have killed the cup; a pairing without mark and file is played again.
KILLED = "the cup was killed while it played this"


def entries_out(pairings: list[Pairing], config: CupConfig) -> dict[str, str]:
    """Return the entries that are out of the cup after ``pairings``, by name, with the reason."""
    strikes, seconds = Counter[str | None](), Counter[str]()
    for pairing in (each for each in pairings if not each.out):
        strikes[pairing.at_fault] += 1
        seconds.update(pairing.seconds)
    late = f"out after more than {config.cup_s:g} s for its starts and answers in this cup"
    reasons = {name: late for name, spent_s in seconds.items() if spent_s > config.cup_s}
    struck = f"out after {STRIKES} forfeited pairings"
    return reasons | {name: struck for name, number in strikes.items() if name and number >= STRIKES}


def play_cup(entries: list[Entry], config: CupConfig, folder: Path, show: Callable[..., None]) -> list[Pairing]:
    """Play all pairings missing in ``folder`` and return all: each pair once from each side.

    ``show`` gets for each pairing its number from 1, their count, the pairing, and whether it was played now.

    Every finished pairing is a separate file, written atomically: a killed cup resumes with the first missing one.
    Raises ``PlayerError``: ``folder`` contains another cup, or other files; an agent plays, and there is no sandbox;
    ``ScratchError``, ``OSError``: this machine has no room for results or agents.
    """
    check_agents(entries)
    begin(config, entries, folder)
    pairs = {meeting.file(folder): meeting for meeting in meetings(entries, config)}
    stored = {path: load_pairing(folder, meeting, config.games) for path, meeting in pairs.items() if path.exists()}
    to_blame, pairings = suspects(pairs), list[Pairing]()
    reasons = entries_out(played := [*stored.values()], config)  # a late entry's pairings are between them
    for number, (path, meeting) in enumerate(pairs.items(), 1):
        red, blue, side = meeting
        players = [entry for entry in (red, blue) if entry is not None]
        if path in stored:
            pairing = stored[path]
        else:
            if path in to_blame:
                pairing = forfeit(red, blue, config, dict.fromkeys(to_blame[path], KILLED), side)
            elif out := {entry.name: reasons[entry.name] for entry in players if entry.name in reasons}:
                pairing = forfeit(red, blue, config, out, side, out=True)
            else:
                # An agent in a sandbox may also kill the cup, by memory outside its limits.
                with begin_mark(path) if "external" in {entry.kind for entry in players} else nullcontext():
                    pairing = _play_with_retries(meeting, config)
            if pairing.seconds or pairing.at_fault:  # networks alone put no entry out
                played.append(pairing)
                reasons = entries_out(played, config)
            write_atomic(path, pairing.model_dump_json().encode())
        pairings.append(pairing)
        show(number, len(pairs), pairing, path not in stored)
    return pairings


def _play_with_retries(meeting: Meeting, config: CupConfig) -> Pairing:
    """Play a pairing, repeatedly while the machine is too busy. Raises ``BusyError``: it stays too busy."""
    for _ in range(BUSY_TRIES - 1):
        with suppress(BusyError):
            return play_pairing(*meeting[:2], config, meeting.side)
    return play_pairing(*meeting[:2], config, meeting.side)


def check_agents(entries: list[Entry]) -> None:
    """Check that this machine can run the entries' agents. Raises ``PlayerError``: no sandbox, and no trust."""
    if any(entry.kind == "external" for entry in entries):
        uses_sandbox()


def unplayable_sides(meeting: Meeting, config: CupConfig) -> dict[str, str]:
    """Return the entries that cannot play their side and forfeit, with the reason."""
    return {entry.name: entry.unplayable[side] for entry, side in meeting.teams(config) if side in entry.unplayable}


def meeting_of(pairing: Pairing, entries: list[Entry]) -> Meeting:
    """Return the meeting of a pairing's entries."""
    by_name = {entry.name: entry for entry in entries}
    return Meeting(by_name[pairing.red], by_name.get(pairing.blue), pairing.side)


def unfounded_forfeits(pairings: list[Pairing], entries: list[Entry], config: CupConfig) -> list[Pairing]:
    """Return pairings of entries marked as out of the cup that the other pairings do not put out."""
    out = entries_out(pairings, config).keys()
    doubtful = [p for p in pairings if p.out and not {p.at_fault or p.red, p.at_fault or p.blue} <= out]
    return [p for p in doubtful if not unplayable_sides(meeting_of(p, entries), config)]


def replay(pairing: Pairing, entries: list[Entry], config: CupConfig) -> str:
    """Play a pairing of a cup again; returns the differences in words, or nothing."""
    red, blue, side = meeting_of(pairing, entries)
    return describe_difference(pairing, play_pairing(red, blue, config, side, mixed=pairing.mixed))


def describe_difference(before: Pairing, now: Pairing) -> str:
    """Return the difference of a pairing from its replay in words; empty: none."""
    rows = [zip(p.outcomes, p.length, p.return_red, p.return_blue, strict=True) for p in (before, now)]
    if wrong := [game for game, (one, other) in enumerate(zip(*rows, strict=True)) if one != other]:
        return f"{len(wrong)} of {len(before.outcomes)} games differ, game {wrong[0]} first"
    games = [[_add_notes(game, []) for game in pairing.kept] for pairing in (before, now)]
    return "" if games[0] == games[1] else "the games kept for replay differ"


def play_pairing(red: Entry, blue: Entry | None, config: CupConfig, side: str = "", *, mixed: bool = True) -> Pairing:
    """Play all games of a pairing. An entry that fails, or cannot play its side, forfeits the unfinished games.

    ``mixed``: agents get other game numbers than in other pairings, as they could recognise boards by them. Raises
    ``ScratchError``: no room for an agent's files, and no entry forfeits; ``RunError``: a game of two entries broke;
    ``BusyError``: the machine was too busy for an agent.
    """
    meeting = Meeting(red, blue, side)
    if unplayable := unplayable_sides(meeting, config):
        return forfeit(red, blue, config, unplayable, side, out=True)
    starts = defaultdict[str, float](float)
    with ExitStack() as stack:
        if "external" in {entry.kind for entry, _ in meeting.teams(config)}:
            stack.enter_context(kill_descendants())
        players, failed = _seat_players(meeting, config, stack, starts, mixed=mixed)
        if failed:
            return _add_times(forfeit(red, blue, config, failed, side), starts)
        try:
            played = play_games(config.spec, players, config.games, seed=config.seed)
        except RunError as error:
            if blue is not None or isinstance(error, BusyError):
                raise
            return forfeit(red, blue, config, {red.name: str(error)})
    pairing = _pairing(meeting, config, played)
    agents = [player for player in players.values() if isinstance(player, AgentPlayer)]
    games, mixed = [_add_notes(game, agents) for game in pairing.kept], mixed and bool(agents)
    return _add_times(pairing.model_copy(update={"mixed": mixed, "kept": games}), starts, agents)


def _add_notes(game: Any, agents: list[AgentPlayer]) -> Any:
    notes = {seat: agent.notes[game.game] for agent in agents if game.game in agent.notes for seat in agent.seats}
    return game.model_copy(update={"notes": notes})


def _seat_players(
    meeting: Meeting, config: CupConfig, stack: ExitStack, starts: dict[str, float], *, mixed: bool
) -> tuple[dict[str, Policy], dict[str, str]]:
    """Start the players of all sides and add agents' seconds to ``starts``; returns players and failures."""
    players: dict[str, Policy] = {}
    names = " ".join([config.agents_key, meeting.red.name, meeting.blue.name if meeting.blue else "", meeting.side])
    for entry, team in meeting.teams(config):
        begin_s = time.perf_counter()
        try:
            seated = stack.enter_context(entry.players_of(config, team, names if mixed else ""))
        except (PlayerFaultError, *UNREADABLE) as error:
            if entry.kind == "external":
                starts[entry.name] += time.perf_counter() - begin_s
            return players, {entry.name: reason_of(error, None, entry.name)}
        starts.update({p.name: starts[p.name] + p.started_s for p in seated.values() if isinstance(p, AgentPlayer)})
        players |= seated
    return players, {}


def _add_times(pairing: Pairing, starts: dict[str, float], agents: Iterable[AgentPlayer] = ()) -> Pairing:
    seconds = dict(starts)
    for agent in agents:
        seconds[agent.name] += agent.thought_s
    both = {name: round(s, 3) for name, s in seconds.items()}
    return pairing.model_copy(update={"seconds": both, "starts": {name: round(s, 3) for name, s in starts.items()}})


def forfeit(
    red: Entry, blue: Entry | None, config: CupConfig, reasons: dict[str, str], side: str = "", *, out: bool = False
) -> Pairing:
    """Return a pairing without games: the entries in ``reasons`` forfeit all of them; ``out``: they were out before."""
    letter = "-" if len(reasons) == 2 else "r" if red.name in reasons else "b"
    zeros = [0.0] * config.games
    texts = [f"{name}: {reason}" if len(reasons) == 2 else reason for name, reason in reasons.items()]
    return Pairing(
        red=red.name,
        blue=blue.name if blue else "",
        side=side,
        outcomes=letter * config.games,
        length=[0] * config.games,
        return_red=zeros,
        return_blue=zeros,
        reason="; ".join(texts),
        out=out,
    )


def _pairing(meeting: Meeting, config: CupConfig, played: EpisodeBatch) -> Pairing:
    red, blue, side = meeting
    spec, side_returns = config.spec, side or config.sides[0]
    sums = {
        team: played.table.returns[:, [spec.seats.index(seat) for seat in spec.seats_of(team)]].sum(axis=1)
        for team in config.sides
    }
    others = [values for team, values in sums.items() if team != side_returns] or [np.zeros(config.games)]
    outcomes = _outcomes(config, played, sums[side_returns], others)
    if played.fault is not None:
        letter = "r" if played.fault.name == red.name else "b"
        outcomes = [o if done else letter for o, done in zip(outcomes, played.finished, strict=True)]
    return Pairing(
        red=red.name,
        blue=blue.name if blue else "",
        side=side,
        outcomes="".join(outcomes),
        length=played.table.length.tolist(),
        return_red=sums[side_returns].round(6).tolist(),
        return_blue=np.mean(others, axis=0).round(6).tolist(),
        reason=None if played.fault is None else played.fault.reason,
        kept=_games_for_replay(meeting, config, played),
    )


def _outcomes(
    config: CupConfig, played: EpisodeBatch, own_returns: NDArray[Any], others: list[NDArray[Any]]
) -> list[str]:
    """Return a letter for each game's winner; with more than two sides by the rank of the single side."""
    if not config.rated:
        return ["D"] * config.games
    if len(others) == 1:
        return ["RBD"[winner] for winner in played.table.winner.tolist()]  # no winner is -1, the last
    return ["DRB"[int(ahead)] for ahead in np.sign(ahead(own_returns, np.stack(others)).sum(axis=0))]


def _games_for_replay(meeting: Meeting, config: CupConfig, played: EpisodeBatch) -> list[GameRecord | ZooRecord]:
    # For each outcome the game of median length, where games can be replayed.
    if not (played.start.size or played.moves):
        return []
    spec, seated = config.spec, {team: entry.name for entry, team in meeting.teams(config)}
    names = config.who.team_names
    title_start = " - ".join(f"{seated[team]} ({team})" for team in config.sides)
    records = []
    labels = [f"{team} wins" for team in names] + ["drawn" if config.rated else "played"]
    for code, label in zip((*range(len(names)), -1), labels, strict=True):
        games = np.flatnonzero((played.table.winner == code) & played.finished)
        if len(games):
            order = games[np.argsort(played.table.length[games], kind="stable")]
            title = f"{title_start}: {label}, as in {len(games)} of {len(played.finished)} games"
            seats = {seat: seated[spec.team_of(seat)] for seat in spec.seats}
            row = int(order[len(order) // 2])
            records.append(record(spec, played, row, seed=config.seed, players=seats, label=title))
    return records
