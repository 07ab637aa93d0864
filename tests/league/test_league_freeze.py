"""A league's player as a frozen one: rated among players of the same game."""

from bundles import bundle
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.freeze import freeze

GAMES = 20


def test_league_player_is_rated_among_players_of_same_game(tmp_path):
    root = tmp_path / "frozen"
    root.mkdir()
    (root / CATALOGUE_FILE).write_text("players:\n")
    league = bundle(tmp_path / "league", ["blue_0"], scenario="1v1-league")
    assert freeze(league, "alone", Catalogue(root), GAMES).scenario == "1v1-league"
    (root / "alone").rename(tmp_path / "alone")
    (root / CATALOGUE_FILE).write_text("players:\n")
    freeze(bundle(tmp_path / "own", ["red_0"]), "fellow", Catalogue(root), GAMES)
    card = freeze(league, "newcomer", Catalogue(root), GAMES)
    assert [row.opponent for row in card.strength] == [*BUILT_IN, "fellow"]
    assert {row.scenario for row in card.strength} == {"1v1"}
    assert (card.scenario, Catalogue(root).entries["newcomer"]["scenario"]) == ("1v1", "1v1")
