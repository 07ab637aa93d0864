"""A cup: round robin of all entries, from both sides, on the same games. Resumes after a crash."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from multigrid_rl.files import write_whole
from multigrid_rl.judge.cup.entries import UNREADABLE, CupConfig, Entry, reason_of
from multigrid_rl.judge.cup.folder import begin, begun, blamed, guarded, load_pairing, pairing_file
from multigrid_rl.judge.cup.results import Pairing
from multigrid_rl.judge.replays import GameRecord, record
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.leftovers import kill_descendants
from multigrid_rl.players.match import Played, PlayerFaultError, play_games
from multigrid_rl.text import expected
from multigrid_rl.types import Policy

LOG = logging.getLogger(__name__)
#: Pairings that an entry may spoil before it is out of the cup: an agent that hangs would cost hours.
STRIKES = 3
#: Reason for agents that may have killed the cup; without mark and pairing file the pairing is played again.
KILLED = "the cup was killed while it played this"


def play_cup(entries: list[Entry], config: CupConfig, folder: Path, show: Callable[..., None]) -> list[Pairing]:
    """Play all pairings that ``folder`` lacks and return all: each pair twice, once from each side.

    ``show`` is called for each: its number from 1 on, of how many, the pairing, and whether it was played now.

    Every finished pairing is a file of its own, written atomically: a killed cup resumes with the first missing one.
    Only files from before the start count as played; the rest is kept in memory and compared with its file at the end.

    Raises:
        PlayerError: ``folder`` contains another cup, or other files.
        ScratchError, OSError: this machine has no room for results or agents.
    """
    entries = begin(config, entries, folder)
    pairs = [pair for one, two in combinations(entries, 2) for pair in ((one, two), (two, one))]
    paths = [pairing_file(folder, red, blue) for red, blue in pairs]
    before = {path: load_pairing(path) for path in paths if path.exists()}
    held = {path: data for path, (_, data) in before.items()}
    to_blame = blamed(dict(zip(paths, pairs, strict=True)))
    strikes: Counter[str] = Counter()
    pairings = []
    with guarded(folder, held, entries):
        for number, (path, (red, blue)) in enumerate(zip(paths, pairs, strict=True), 1):
            if path in before:
                pairing = before[path][0]
            elif path in to_blame:
                pairing = forfeited(red, blue, config, dict.fromkeys(to_blame[path], KILLED))
            else:
                # By memory that is not its own an agent may kill the cup from within a sandbox, too.
                with begun(path) if "external" in (red.kind, blue.kind) else nullcontext():
                    pairing = play_pairing(red, blue, config, strikes)
            if path not in before:
                if path.exists():
                    LOG.warning("%s: written while the cup ran, not by the cup; what was played takes its place", path)
                data = pairing.model_dump_json().encode()
                write_whole(path, data)
                held[path] = data
            if pairing.at_fault is not None:
                strikes[pairing.at_fault] += 1
            pairings.append(pairing)
            show(number, len(pairs), pairing, path not in before)
    return pairings


def play_again(entries: list[Entry], config: CupConfig, folder: Path, most: int) -> Iterator[tuple[Pairing, list[int]]]:
    """Replay some random pairings of the cup in ``folder``: yields each with the numbers of the games that differ.

    Pairings with forfeited games are left out: they depend on wall-clock time.

    Raises:
        PlayerError: there is no pairing to play, or a damaged one.
        ScratchError, OSError: this machine has no room for agents.
    """
    played = []
    for red, blue in permutations(entries, 2):
        path = pairing_file(folder, red, blue)
        if path.exists() and set((pairing := load_pairing(path)[0]).outcomes) <= set("RBD"):
            played.append((red, blue, pairing))
    if not played:
        raise PlayerError(expected(folder, "a cup with a pairing that was played to its end", "none"))
    for red, blue, before in random.SystemRandom().sample(played, min(most, len(played))):
        now = play_pairing(red, blue, config)
        rows = [zip(p.outcomes, p.length, p.return_red, p.return_blue, strict=True) for p in (before, now)]
        yield before, [game for game, (one, other) in enumerate(zip(*rows, strict=True)) if one != other]


def play_pairing(red: Entry, blue: Entry, config: CupConfig, strikes: Mapping[str, int] | None = None) -> Pairing:
    """Play all games of a pairing. An entry that is broken, out of the cup, or fails forfeits the unfinished games.

    Args:
        red: the entry on the red side.
        blue: the entry on the blue side.
        config: of the cup.
        strikes: how many pairings each entry has spoiled; from :data:`STRIKES` on it is out.

    Raises:
        ScratchError: this machine has no room for an agent's files; no entry forfeits for that.
    """
    struck = [name for name, count in (strikes or {}).items() if count >= STRIKES]
    out = {
        entry.name: str(entry.problem) if entry.kind == "broken" else f"out after {STRIKES} spoiled pairings"
        for entry in (red, blue)
        if entry.kind == "broken" or entry.name in struck
    }
    if out:
        return forfeited(red, blue, config, out)
    with ExitStack() as stack:
        if "external" in (red.kind, blue.kind):
            stack.enter_context(kill_descendants())
        players: dict[str, Policy] = {}
        for entry, team in ((red, "red"), (blue, "blue")):
            try:
                players |= stack.enter_context(entry.players_of(config, team))
            except PlayerFaultError as error:
                return forfeited(red, blue, config, {entry.name: str(error)})
            except UNREADABLE as error:
                return forfeited(red, blue, config, {entry.name: reason_of(error, None, entry.name)})
        played = play_games(config.spec, players, config.games, seed=config.seed)
    return _pairing(red, blue, config, played)


def forfeited(red: Entry, blue: Entry, config: CupConfig, reasons: dict[str, str]) -> Pairing:
    """Return a pairing without a game: the entries named in ``reasons`` forfeit all of them."""
    letter = "-" if len(reasons) == 2 else "r" if red.name in reasons else "b"
    zeros = [0.0] * config.games
    texts = [f"{name}: {reason}" if len(reasons) == 2 else reason for name, reason in reasons.items()]
    return Pairing(
        red=red.name,
        blue=blue.name,
        outcomes=letter * config.games,
        length=[0] * config.games,
        return_red=zeros,
        return_blue=zeros,
        reason="; ".join(texts),
    )


def _pairing(red: Entry, blue: Entry, config: CupConfig, played: Played) -> Pairing:
    outcomes = ["RBD"[winner] for winner in played.table.winner.tolist()]  # no winner is -1, the last
    if played.fault is not None:
        letter = "r" if played.fault.name == red.name else "b"
        outcomes = [o if done else letter for o, done in zip(outcomes, played.finished, strict=True)]
    spec = config.spec
    returns = {
        team: played.table.returns[:, [spec.seats.index(seat) for seat in spec.seats_of(team)]].sum(axis=1).round(6)
        for team in ("red", "blue")
    }
    return Pairing(
        red=red.name,
        blue=blue.name,
        outcomes="".join(outcomes),
        length=played.table.length.tolist(),
        return_red=returns["red"].tolist(),
        return_blue=returns["blue"].tolist(),
        reason=None if played.fault is None else played.fault.reason,
        kept=_kept(red, blue, config, played),
    )


def _kept(red: Entry, blue: Entry, config: CupConfig, played: Played) -> list[GameRecord]:
    # One game for each outcome that occurred, the one of median length.
    spec = config.spec
    seats = {seat: red.name if spec.team_of(seat) == "red" else blue.name for seat in spec.seats}
    kept = []
    for code, label in ((0, "red wins"), (1, "blue wins"), (-1, "drawn")):
        games = np.flatnonzero((played.table.winner == code) & played.finished)
        if len(games):
            order = games[np.argsort(played.table.length[games], kind="stable")]
            share = f"{len(games)} of {len(played.finished)}"
            title = f"{red.name} (red) - {blue.name} (blue): {label}, as in {share} games"
            kept.append(record(spec, played, int(order[len(order) // 2]), seed=config.seed, players=seats, label=title))
    return kept
