"""``play``: what a person does ends in a score and in a record that films show."""

import pytest

from commands import call, complaint, works
from multigrid_rl.show import browser as play_page
from multigrid_rl.world import constants as c
from persons import plan_of, session


@pytest.fixture
def actions(monkeypatch):
    """What the person does as soon as the page is served: a list of actions for each game; then Ctrl-C."""
    games, tables = [], []
    app_of = play_page.app_of
    monkeypatch.setattr(play_page, "app_of", lambda table: (tables.append(table), app_of(table))[1])

    def served(app, listening):
        listening.close()
        (table,) = tables
        for number, game in enumerate(games):
            if number:
                table.restart()
            for step, action in enumerate(game):
                assert table.act(action, number, step)

    monkeypatch.setattr(play_page, "serve", served)
    return games


def test_play_keeps_games_that_video_shows(actions, tmp_path):
    plan = plan_of(session())  # the same seed, the same keys on the floor
    actions += [plan, [c.LEFT]]
    file = tmp_path / "mine.json"
    done = works("play", "scenario=1v1", "--opponent", "idle", "--seed", 4, "--record", file)
    assert "red_0 at http://127.0.0.1:" in done.output
    assert "game 0 of seed 4: red wins " in done.output
    assert "1 game: 1 won, 0 drawn, 0 lost; 1 left unfinished" in done.output
    assert f"{file}: 1 game" in done.output
    shown = works("video", file, "-o", tmp_path / "mine.gif").output
    assert "1: won as red_0, game 0 of seed 4: blue_0 idle, red_0 you\n" in shown
    assert f"\n{tmp_path}/mine.gif: {len(plan)} steps" in shown
    assert str(file) in complaint(call("play", "--record", file))
    assert "expected a file, got a folder" in complaint(call("play", "--record", tmp_path, "--force"))


def test_no_record_without_finished_game(actions, tmp_path):
    actions.append([c.LEFT])
    done = works("play", "--opponent", "idle", "--seat", "blue_0", "--record", tmp_path / "mine.json")
    assert "blue_0 you, red_0 idle" in done.output
    assert "0 games: 0 won, 0 drawn, 0 lost; 1 left unfinished" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scenario=nowhere"], ", got nowhere"),
        (["scenario=cartpole"], "scenario: expected a game with opponents"),
        (["--opponent", "nobody"], "nobody"),
        (["--seat", "red_3"], "--seat: expected blue_0, red_0, got red_3"),
    ],
)
def test_play_rejects_mistakes(args, message):
    assert message in complaint(call("play", *args))
