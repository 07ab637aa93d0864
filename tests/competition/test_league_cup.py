"""A cup about a league: which snapshots take part, and what its page says of the league's history."""

from __future__ import annotations

import json
import shutil

import pytest

from bundles import edit, make_player
from multigrid_rl.competition.cup.cup import play_cup
from multigrid_rl.competition.cup.entries import CupConfig, find_entries
from multigrid_rl.competition.cup.standings import results
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.cup_results import CupResults
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.show.cup_page import cup_page, history_sentence

TABLE = CupConfig("1v1", load_scenario("1v1").spec, 4, 9, Limits())


def league(run, *steps: int) -> None:
    """A run's folder with snapshots after so many environment steps, all alike."""
    player = make_player(run / "players", "one")
    for count in steps:
        home = run / "league" / f"step_{count:09d}" / "blue_0"
        shutil.copytree(player, home)
        edit(home, provenance={"env_steps": count})
    (run / "league" / "aside").mkdir()


@pytest.mark.parametrize(("number", "taken"), [(1, 1), (12, 12), (40, 12)])
def test_evenly_spaced_snapshots_include_first_and_last(tmp_path, number, taken):
    league(tmp_path, *range(100, 100 * number + 1, 100))
    entries = find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)
    steps = [entry.env_steps for entry in entries if entry.kind == "frozen"]
    assert (len(steps), steps[0], steps[-1]) == (taken, 100, 100 * number)
    assert [entry.env_steps for entry in entries if entry.kind != "frozen"] == [None]


@pytest.fixture(scope="module")
def cup(tmp_path_factory) -> CupResults:
    run = tmp_path_factory.mktemp("run")
    league(run, 100, 200, 1000)
    entries = find_entries(run, ["random"], Catalogue(run / "none"), TABLE)
    played = play_cup(entries, TABLE, run / "cup", lambda *_: None)
    return results(entries, played, TABLE, {"multigrid-rl": "0"})


def with_shares(cup: CupResults, **shares: tuple[float, float]) -> CupResults:
    """The cup with other shares, and upper ends of their intervals, of the newest snapshot against others."""
    rows = [
        pair.model_copy(update={"share": 1 - shares[pair.one][0], "low": 1 - shares[pair.one][1]})
        if pair.two == "step_000001000" and pair.one in shares
        else pair
        for pair in cup.pairs
    ]
    return cup.model_copy(update={"pairs": rows})


def test_history_pairs_newest_with_each_earlier_snapshot(cup):
    assert [(pair.one, pair.two) for pair in cup.history] == [
        ("step_000001000", "step_000000100"),
        ("step_000001000", "step_000000200"),
    ]
    found = with_shares(cup, step_000000100=(0.75, 0.9), step_000000200=(0.625, 0.8))
    message = (
        "step_000001000 holds its own against every earlier snapshot: the smallest share is 62%, against step_000000200"
    )
    assert history_sentence(found.history) == message
    for high, doubt in ((0.45, "a significant loss"), (0.55, "not a significant loss")):
        found = with_shares(cup, step_000000100=(0.25, high), step_000000200=(0.625, 0.8))
        message = history_sentence(found.history)
        assert message.startswith(
            "step_000001000 takes less than half against step_000000100: the smallest share is 25%"
        )
        assert message.endswith(f", {doubt}")


def test_page_shows_ratings_over_training_if_recorded(cup):
    page = cup_page(cup)
    assert '<section id="history"' in page
    assert "Rating over training" in page
    assert "Against earlier selves" in page
    data = json.loads(cup.model_dump_json())
    for entry in data["entries"]:
        del entry["env_steps"]
    assert '<section id="history"' not in cup_page(CupResults.model_validate(data))
