"""Games that a person played, in a window or a browser, become demonstrations."""

import json

import numpy as np

from commands import call, complaint, works
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.replays import record, replay
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import KeyRunner, RandomPlayer

SPEC = load_scenario("1v1").spec


def written(path, count=5):
    """A file of games of a key runner as red, called you, against a random blue."""
    played = play_games(SPEC, {"red_0": KeyRunner(SPEC), "blue_0": RandomPlayer()}, count, seed=3)
    names = {"red_0": "you", "blue_0": "random"}
    games = [record(SPEC, played, row, seed=3, players=names, label=f"game {row}") for row in range(count)]
    path.write_text(json.dumps([game.model_dump() for game in games]))
    return games


def test_games_of_a_person_become_demonstrations(tmp_path):
    games = written(tmp_path / "games.json")
    works("data", "import", tmp_path / "games.json", "scenario=1v1", "-o", tmp_path / "demos")
    data, red = read_demonstrations(tmp_path / "demos"), SPEC.seats.index("red_0")
    assert data.card.who == "you"
    first = 0
    for game, behind in zip(games, data.episode_ends.tolist(), strict=True):
        played = replay(game)
        steps = behind - first
        assert (data.observations[first:behind] == played.tokens[:steps, red]).all()
        assert (data.actions[first:behind, 0] == played.actions[:steps, red]).all()
        np.testing.assert_allclose(data.rewards[first:behind].sum(), played.reward[:, red].sum(), atol=1e-5)
        assert data.terminated[behind - 1] == (game.steps < SPEC.max_steps)
        first = behind


def test_games_that_cannot_teach_are_refused_in_one_line(tmp_path):
    written(tmp_path / "games.json", 2)
    (tmp_path / "none.json").write_text("[]")
    for arguments, message in (
        (["games.json", "scenario=1v1", "--who", "me"], "--who: expected one of you on red_0 in"),
        (["games.json", "scenario=single"], "expected games of the scenario, got another: game 0"),
        (["none.json", "scenario=1v1"], "no games in it"),
        (
            ["games.json", "scenario=coop", "scheme=ctce"],
            "expected an agent of one seat (scheme=dtde), got red_0, red_1",
        ),
    ):
        file, *words = arguments
        assert message in complaint(call("data", "import", tmp_path / file, *words, "-o", tmp_path / "demos"))
        assert not (tmp_path / "demos").exists()
