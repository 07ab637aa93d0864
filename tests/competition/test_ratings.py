"""Ratings and standings of a cup, against values computed by hand; and a metric of episodes from outside."""

import json
import math

import numpy as np
import pytest
import yaml
from scipy.stats import binom

from commands import works
from multigrid_rl import tables
from multigrid_rl.competition.cup import forfeit
from multigrid_rl.competition.cup_folder import Pairing, scenario_and_game, write_results
from multigrid_rl.competition.entries import CupConfig, Entry
from multigrid_rl.competition.rubric import measure
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.competition.standings import ratings, tabulate
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.metrics import episode_metrics, glossary
from multigrid_rl.players.catalogue import BUILT_IN, Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.runs.reports import gates_of
from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.types import GameSpec

TABLE = CupConfig("1v1", GameSpec(), 4, 7, Limits())


def games_of(win: int, draw: int, loss: int) -> np.ndarray:
    """One row a game."""
    return np.repeat(np.eye(3, dtype=np.int64), [win, draw, loss], axis=0)


@pytest.mark.parametrize(
    ("games", "odds"),
    [
        ((60, 20, 19), 70.5 / 29.5),  # draws are halves, and one drawn game is the prior
        ((100, 0, 0), 100.5 / 0.5),  # who never lost has a finite rating
    ],
)
def test_two_entries_are_rated_by_odds(games, odds):
    found = ratings(["a", "b"], {("a", "b"): games_of(*games)}, np.random.default_rng(0), resamples=50)
    assert found["a"].value - found["b"].value == pytest.approx(400 * math.log10(odds), abs=0.01)
    assert found["a"].value + found["b"].value == pytest.approx(2000)
    assert found["a"].low < found["a"].value < found["a"].high


@pytest.mark.parametrize("difference", [300, 1000])
def test_intervals_hold_the_truth_as_often_as_they_say(difference):
    chance = 1 / (1 + 10 ** (-difference / 400))
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        wins = rng.binomial(2, chance, size=50)
        games = {("a", "b"): np.stack([wins, 0 * wins, 2 - wins], axis=1)}
        rated = ratings(["a", "b"], games, rng, resamples=200)["a"]
        held += rated.low <= 1000 + difference / 2 <= rated.high
    assert held >= 34  # of entries that won every game, none had the truth in its interval


def test_ratings_of_three_recover_true_strengths():
    strength = {"a": 1100.0, "b": 1000.0, "c": 900.0}
    rng = np.random.default_rng(1)
    games = {}
    for one, two in (("a", "b"), ("a", "c"), ("b", "c")):
        chance = 1 / (1 + 10 ** ((strength[two] - strength[one]) / 400))
        wins = rng.binomial(2, chance, size=4000)
        games[one, two] = np.stack([wins, 0 * wins, 2 - wins], axis=1)
    found = ratings(list(strength), games, rng, resamples=200)
    for name, value in strength.items():
        assert found[name].value == pytest.approx(value, abs=10)
        assert found[name].low < value < found[name].high


def test_interval_counts_all_games_of_one_number_as_one_observation():
    alike = games_of(60, 0, 40)
    drawn = {("a", "b"): alike, ("a", "c"): alike, ("b", "c"): games_of(0, 100, 0)}
    found = ratings(list("abc"), drawn, np.random.default_rng(0))["a"]
    for bound, wins in zip((found.low, found.high), binom.interval(0.95, 100, 0.6), strict=True):
        assert bound == pytest.approx(1000 + 2 / 3 * 400 * math.log10((wins + 0.5) / (100.5 - wins)), abs=6)


def test_without_games_all_ratings_are_equal():
    found = ratings(["a", "b"], {("a", "b"): np.zeros((4, 3), np.int64)}, np.random.default_rng(0))
    assert {rating.value for rating in found.values()} == {1000.0}


def test_groups_that_have_not_met_have_the_same_mean():
    won = {("a", "b"): games_of(9, 0, 1), ("c", "d"): games_of(1, 0, 9)}
    found = ratings(list("abcde"), won, np.random.default_rng(0), resamples=20)
    assert found["a"].value == pytest.approx(found["d"].value)
    for one, other in ("ab", "cd", "ee"):
        assert found[one].value + found[other].value == pytest.approx(2000)


def entry(name: str, problem: str | None = None) -> Entry:
    return Entry(name, "broken" if problem else "scripted", "test", problem=problem)


def pairing(red: str, blue: str, outcomes: str, **more) -> Pairing:
    games = len(outcomes)
    rows = {"length": [10] * games, "return_red": [1.0] * games, "return_blue": [0.5] * games}
    return Pairing(red=red, blue=blue, outcomes=outcomes, **rows, **more)


def table_of(entries, pairings):
    return tabulate(entries, pairings, TABLE, {})


def test_both_sides_count_for_entry_not_colour():
    found = table_of([entry("a"), entry("b")], [pairing("a", "b", "RRRD"), pairing("b", "a", "BBRD")])
    first, second = found.standings
    assert (first.name, first.win, first.draw, first.loss, first.points) == ("a", 5, 2, 1, 6.0)
    assert (second.name, second.win, second.draw, second.loss, second.points) == ("b", 1, 2, 5, 2.0)
    pair = found.pairs[0]
    assert (pair.one, pair.games, pair.share) == ("a", 8, 0.75)
    assert pair.low < 0.75 < pair.high
    assert pair.margin == 0.0  # +0.5 as red, -0.5 as blue
    assert [(s.red, s.red_win, s.draw, s.blue_win) for s in found.sides] == [("a", 3, 1, 0), ("b", 1, 1, 2)]


def test_equal_entries_share_rank():
    names = ["a", "b", "c"]
    level = "RRBB"
    pairings = [pairing("a", "b", level), pairing("b", "a", level)]
    for name in "ab":
        pairings += [pairing(name, "c", "RRRR"), pairing("c", name, "BBBB")]
    found = table_of([entry(name) for name in names], pairings)
    assert [(row.rank, row.name, row.decided_by) for row in found.standings] == [
        (1, "a", "nothing"),
        (1, "b", "rating"),
        (3, "c", "last"),
    ]


def test_more_wins_break_tie_between_equal_ratings():
    # a draws everything, b wins and loses: the same points against everybody, so the same rating.
    pairings = [pairing("a", "b", "DDDD"), pairing("b", "a", "DDDD")]
    pairings += [pairing("a", "c", "DDDD"), pairing("c", "a", "DDDD")]
    pairings += [pairing("b", "c", "RRBB"), pairing("c", "b", "RRBB")]
    found = table_of([entry(name) for name in "abc"], pairings)
    assert [row.rating for row in found.standings] == [1000.0] * 3
    assert [row.name for row in found.standings] == ["b", "c", "a"]
    assert found.standings[1].decided_by == "more wins"


def test_forfeits_are_losses_with_reason():
    pairings = [pairing("a", "b", "RRbb", reason="no answer within 5 s"), pairing("b", "a", "RBDD")]
    found = table_of([entry("a"), entry("b")], pairings)
    rows = {row.name: row for row in found.standings}
    assert (rows["b"].loss, rows["b"].forfeited) == (5, 2)
    assert (rows["a"].win, rows["a"].forfeited) == (5, 0)
    assert found.entries[1].faults[0].reason == "no answer within 5 s"
    assert found.entries[1].faults[0].games == 2
    assert found.entries[0].faults == []
    assert found.sides[0].length_mean == 10.0


def test_entry_without_finished_games_is_unranked_and_ignored():
    sound = [pairing("a", "b", "RRDB"), pairing("b", "a", "RBDD")]
    alone = table_of([entry("a"), entry("b")], sound)
    broken = [forfeit(entry(red), entry(blue), TABLE, {"x": "no card"}) for red, blue in ("ax", "xa", "bx")]
    # It hangs in every game against b, and would win by forfeit against a.
    hung = [pairing("x", "b", "rrrr", reason="no answer"), pairing("y", "x", "rrrr", reason="no card")]
    found = table_of([entry("a"), entry("b"), entry("x"), entry("y")], [*sound, *broken, *hung])
    ranks = [[(row.name, row.rating, row.points, row.games) for row in its.standings] for its in (alone, found)]
    assert ranks[0] == ranks[1]
    assert (alone.unranked, found.unranked) == ([], ["x", "y"])
    assert not [side for side in found.sides if "x" in (side.red, side.blue)]
    assert not [pair for pair in found.pairs if "x" in (pair.one, pair.two)]
    assert [(fault.reason, fault.games, fault.pairings) for fault in found.entries[2].faults] == [
        ("no card", 12, 3),
        ("no answer", 4, 1),
    ]


def test_result_that_contradicts_ratings_is_named():
    # a beats the others, d loses to them: between the two of them it must not be even.
    games = {"ab": "R" * 15 + "B" * 5, "ac": "R" * 15 + "B" * 5, "bc": "RB" * 10, "bd": "R" * 18 + "BB"}
    games |= {"cd": "R" * 18 + "BB", "ad": "R" * 19 + "B"}
    names, sides = "abcd", {"R": "B", "B": "R", "D": "D"}

    def surprises():
        pairings = [pairing(one, two, letters) for (one, two), letters in games.items()]
        pairings += [pairing(two, one, "".join(map(sides.get, letters))) for (one, two), letters in games.items()]
        return [(row.one, row.two, row.share) for row in table_of([entry(name) for name in names], pairings).surprises]

    assert surprises() == []
    games["ad"] = "B" * 3 + "D" * 17
    assert surprises() == [("a", "d", 0.425)]


def test_cup_without_finished_games_has_tables(tmp_path):
    found = table_of([entry("a"), entry("b")], [pairing("a", "b", "rrrr"), pairing("b", "a", "----")])
    assert (found.standings, found.unranked) == ([], ["a", "b"])
    write_results(found, [pairing("a", "b", "rrrr")], tmp_path)
    assert (tmp_path / "standings.csv").read_text().startswith("rank,name,rating")
    assert "No entry was ranked" in cup_page(found)


FILE = """
from multigrid_rl.metrics import MetricGroup, Sample


def samples(table, specs, who):
    won = {seat: table.winner == specs.team_names.index(specs.teams[specs.seats.index(seat)])
           for seat in who if seat in specs.seats}
    return {f"quick/{seat}": Sample.of((table.length < 13) & wins) for seat, wins in won.items()}


QUICK = MetricGroup({"quick/<seat>": ("share of episodes that the seat won in less than 13 steps", "share")}, samples)
"""


@pytest.fixture
def quick(tmp_path, monkeypatch):
    (tmp_path / "quick_metrics.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.METRICS, "quick", "quick_metrics:QUICK")
    return tmp_path


def test_gate_and_row(quick):
    config = compose(["scenario=1v1", "scenario.gates=[{metric: quick/*, at_least: 0.1}]"])
    specs = env_factory(config).specs
    assert [gate.metric for gate in gates_of(config, specs)] == ["quick/red_0"]
    assert glossary()["quick/<seat>"][1] == "share"
    spec = config.scenario.spec
    players = {"red_0": BUILT_IN["key-runner"](spec), "blue_0": BUILT_IN["idle"](spec)}
    table = play_games(spec, players, 200, seed=1).table
    wanted = float(np.mean((table.length < 13) & (table.winner == 0)))
    assert 0 < wanted < 1
    assert episode_metrics(table, specs)["quick/red_0"] == wanted


def test_evaluation_shows_it_in_a_column(quick):
    few = ("--episodes", 100, "--mode", "argmax")
    done = works("evaluate", "key-runner", "--opponent", "idle", *few, "-o", quick / "out")
    assert "quick/red_0" in done.output
    part = json.loads((quick / "out" / "summary.json").read_text())["parts"][0]
    assert 0 < part["metrics"]["quick/red_0"]["mean"] < part["win"]


def test_grade_checks_it(quick):
    check = {"metric": "quick/*", "at_least": 0.01, "points": 1}
    exam = {"name": "fast", "opponent": "idle", "sides": "both", "episodes": 100, "checks": [check]}
    rubric = quick / "rubric.yaml"
    rubric.write_text(yaml.safe_dump({"scenario": "1v1", "seed": 1, "pass_points": 1, "exams": [exam]}))
    done = works("grade", data_root() / "checkpoints" / "blue-master", "--rubric", rubric)
    (row,) = json.loads(done.output.splitlines()[-1])["exams"][0]["checks"]
    assert row["interval"][0] < row["value"] < row["interval"][1]


def test_sides_of_three_and_one_seats_are_measured_together():
    pytest.importorskip("mpe2", reason="the extra pettingzoo is not installed")
    spec, sides = scenario_and_game("simple-tag")[1], ("adversaries", "prey")
    players = {seat: Catalogue().seat("random", spec, seat).player for seat in spec.seats}
    played = [(side, play_games(spec, players, 5, seed=k).full_table()) for k, side in enumerate(sides)]
    hunters, prey = (table.returns.tolist() for _, table in played)
    wanted = [float(np.mean([row[k] for row in hunters] + [row[3] for row in prey])) for k in range(3)]
    found = measure("return_mean/*", spec, played, [])
    assert [row.value for row in found] == pytest.approx(wanted)
