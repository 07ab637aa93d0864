"""Cups and recorded games for tests of reports: nothing is trained."""

from pathlib import Path

from multigrid_rl.competition.cup import play_cup
from multigrid_rl.competition.entries import CupConfig, Entry
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.cup_results import CupResults
from multigrid_rl.evaluation.replays import record
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import KeyRunner, RandomPlayer
from multigrid_rl.types import GameSpec

#: What somebody may call an entry, or write as a reason, to take over the page.
EVIL = "<script>alert(1)</script>"
EVILS = (EVIL, "</script><b onclick=alert(2)>", "<img src=x onerror=alert(3)>", '"><svg onload=alert(4)>', "a&amp;b")

#: A game of two against two, for pages to replay.
TEAMS = GameSpec(blue=2, red=2, obstacle=True, random_keys=False, max_steps=60)


def small_cup(folder: Path, *, games: int = 4, broken: tuple[str, ...] = (), scenario: str = "1v1") -> CupResults:
    """A real cup of three scripted players, and of entries that cannot play, called and excused as ``broken`` says."""
    table = CupConfig(scenario, load_scenario(scenario).spec, games, 9, Limits())
    entries = [Entry(name, "scripted", "built in") for name in ("hunter", "key-runner", "random")]
    entries += [Entry(f"{k} {name}", "broken", name, problem=f"it says {name}") for k, name in enumerate(broken)]
    entries.sort(key=lambda entry: entry.name)
    return tabulate(entries, play_cup(entries, table, folder, lambda *_: None), table, {"multigrid-rl": "0"})


def games_of(spec: GameSpec, count: int):
    """Recorded games of key runners against random players."""
    players = {seat: KeyRunner(spec) if seat.startswith("red") else RandomPlayer() for seat in spec.seats}
    played = play_games(spec, players, count, seed=11)
    names = {seat: f"<b>{seat}</b>" for seat in spec.seats}
    return [record(spec, played, row, seed=11, players=names, label=f"game {row}") for row in range(count)]
