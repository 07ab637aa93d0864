"""A cup about a league: which snapshots take part."""

import shutil

import pytest

from bundles import edit, make_player
from multigrid_rl.competition.cup_on_screen import game
from multigrid_rl.competition.entries import CupConfig, find_entries
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue

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


def test_a_league_plays_the_game_of_its_run(tmp_path):
    config = compose(["scenario=1v1-league", "scenario.game.max_steps=40", "scenario.league.every=8192"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    scenario, spec, overrides = game(tmp_path, None, [])
    assert (scenario.name, spec.max_steps) == ("1v1-league", 40)
    assert overrides == ["scenario=1v1-league", "scenario.game.max_steps=40"]


def test_a_run_without_a_league_is_no_folder_of_entries(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(PlayerError, match=r"expected a folder of entries, or .*, got a run without$"):
        find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)


@pytest.mark.parametrize("file", ["card.json", "agent.yaml"])
def test_an_entry_is_no_folder_of_entries(tmp_path, file):
    (tmp_path / file).touch()  # each of its files would be an entry that cannot play
    with pytest.raises(PlayerError, match=r"--with .* enters this one., got an entry$"):
        find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)
