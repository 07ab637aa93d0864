"""A person's games: steps, score, records, what is seen, who sits where; and the verb ``play``."""

import json

import numpy as np
import pytest

from commands import call, complaint, works
from composing import refusal
from games import where
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.replays import read_games, replay
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.scripted import Hunter, RandomPlayer
from multigrid_rl.show import browser as play_page
from multigrid_rl.show.play import GameScore, Session, find_other_players, find_seat, save_games
from multigrid_rl.text import ConfigError
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from persons import SPEC, plan_of, session


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(data_root() / "checkpoints")


def win(game: Session) -> None:
    for action in plan_of(game):
        game.step(action)


def test_win_counts():
    game = session()
    plan = plan_of(game)
    for k, action in enumerate(plan, 1):
        assert not game.over
        caption = game.step(action)
        assert (caption.step, game.steps) == (k, k)
    assert game.over
    assert caption.result.startswith("red wins ")
    assert game.score == GameScore(won=1)
    assert str(game.score) == "1 game: 1 won, 0 drawn, 0 lost"


def test_loss_and_draw_count():
    game = session(Hunter(SPEC))
    while not game.over:
        game.step(c.DONE)
    assert game.score == GameScore(lost=1)
    assert game.out
    short = session(spec=GameSpec(max_steps=3))
    for _ in range(3):
        short.step(c.LEFT)
    assert short.over
    assert short.score == GameScore(drawn=1)


def test_restart_begins_next_game():
    game = session()
    game.restart()
    assert (game.game, game.score) == (1, GameScore())  # nothing had been played
    game.step(c.LEFT)
    game.restart()
    assert (game.game, game.steps, game.over) == (2, 0, False)
    assert game.score == GameScore(unfinished=1)
    win(game)
    game.restart()
    game.leave()
    assert str(game.score) == "1 game: 1 won, 0 drawn, 0 lost; 1 left unfinished"
    assert [its.game for its in game.records] == [2]


def test_games_follow_from_seed_and_number():
    def boards(seed: int) -> list[bytes]:
        game = session(seed=seed)
        shots = [game.world.state.cells.tobytes()]
        for _ in range(3):
            game.restart()
            shots.append(game.world.state.cells.tobytes())
        return shots

    assert boards(4) == boards(4)
    assert boards(4) != boards(5)
    assert len(set(boards(4))) == 4


def test_rejects_bad_actions():
    game = session()
    with pytest.raises(ValueError, match="action: expected 0 to 6, got 7"):
        game.step(7)
    win(game)
    with pytest.raises(ValueError, match="a game that is over"):
        game.step(c.DONE)


def test_record_replays_game(tmp_path):
    game = session(RandomPlayer())
    rng = np.random.default_rng(1)
    rewards = np.zeros(2)
    while not game.over:
        game.step(int(rng.integers(7)))
        rewards += game.world.outputs.reward[0]
    (kept,) = game.records
    again = replay(kept)
    assert kept.players == {"blue_0": "random", "red_0": "you"}
    assert len(again.actions) == game.steps
    assert again.winner == int(game.world.outputs.winner[0])
    np.testing.assert_array_equal(again.reward.sum(axis=0), rewards)
    np.testing.assert_array_equal(again.cells[-1], game.world.state.cells[0])
    result = {1: "lost", 0: "won", -1: "drawn"}[again.winner]
    assert kept.label == f"1: {result} as red_0"


def test_saved_games_read_back(tmp_path):
    game, path = session(), tmp_path / "new" / "games.json"
    win(game)
    save_games(game.records, path)
    game.restart()
    win(game)
    save_games(game.records, path)
    assert [its.label for its in read_games(path)] == ["1: won as red_0", "2: won as red_0"]
    assert [its["game"] for its in json.loads(path.read_text())] == [0, 1]
    assert [file.name for file in path.parent.iterdir()] == ["games.json"]
    assert "below" in refusal(save_games, game.records, path / "below")


def test_sight_equals_agent_view():
    game = session()
    seen = game.seen_cells()
    view = c.decode(game.world.outputs.tokens[0, game.agent, :25])
    assert seen.sum() == (view[:, 0] > 0).sum()
    assert seen[where(game.world, "red_0")]
    assert not seen[where(game.world, "blue_0")]
    win(game)
    assert game.seen_cells().all()


def test_finds_seat():
    spec = load_scenario("2v2").spec
    assert find_seat(spec, None) == "red_0"
    assert find_seat(spec, "blue_1") == "blue_1"


@pytest.mark.parametrize(
    ("scenario", "seat", "opponent", "mate", "names"),
    [
        ("1v1", "red_0", None, None, ["blue-rookie", "you"]),
        ("1v1", "blue_0", None, None, ["you", "blue-rookie"]),
        ("1v1", "red_0", "hunter", None, ["hunter", "you"]),
        ("2v2", "red_1", None, None, ["2v2-rookie", "2v2-rookie", "2v2-rookie", "you"]),
        ("2v2", "blue_0", "key-runner", "idle", ["you", "idle", "key-runner", "key-runner"]),
        ("coop", "red_0", None, "key-runner", ["you", "key-runner"]),
        ("coop", "red_1", None, None, ["random", "you"]),
        ("single", "red_0", None, None, ["you"]),
    ],
)
def test_seats_other_players(scenario, seat, opponent, mate, names, catalogue):
    config = load_scenario(scenario)
    others = find_other_players(config, catalogue, seat, opponent, mate)
    assert others.names == dict(zip(config.spec.seats, names, strict=True))
    game = Session(config.spec, others, seed=0)
    game.step(c.DONE)
    assert game.steps == 1


@pytest.mark.parametrize(
    ("scenario", "opponent", "mate", "error", "message"),
    [
        ("coop", "random", None, ConfigError, "--opponent: expected nothing for coop, .* got random"),
        ("1v1", None, "random", ConfigError, "--mate: expected nothing for 1v1, .* got random"),
        ("1v1", "nobody", None, PlayerError, "player.* nobody"),
        ("2v2", None, "nobody", PlayerError, "player.* nobody"),
        ("single-obstacle", "hunter", None, ConfigError, "has no seat"),
        (*("2v2", "random", "./nowhere", PlayerError), "player: expected a name, a folder that is there, .*, got"),
    ],
)
def test_rejects_unknown_players(scenario, opponent, mate, error, message, catalogue):
    with pytest.raises(error, match=message):
        find_other_players(load_scenario(scenario), catalogue, "red_0", opponent, mate)


def test_bundle_folder_as_opponent(catalogue):
    folder = f"{catalogue.root / 'blue-adept'}/"
    others = find_other_players(load_scenario("1v1"), catalogue, "blue_0", folder, None)
    assert others.names == {"blue_0": "you", "red_0": "blue-adept"}
    assert others.players["red_0"].mirrored


def test_unfit_mate_becomes_random_unless_requested(catalogue):
    config = load_scenario("2v2")
    assert find_other_players(config, catalogue, "red_0", "2v2-rookie", None).names["red_1"] == "2v2-rookie"
    assert "does not fit seat red_1" in refusal(find_other_players, config, catalogue, "red_0", "random", "blue-adept")


def test_eliminated_person_watches_mate():
    spec = load_scenario("2v2").spec
    hunters = session(Hunter(spec), spec=spec, seat="red_0", seed=1)
    while not hunters.out and not hunters.over:
        hunters.step(c.DONE)
    assert hunters.out
    if not hunters.over:
        assert hunters.seen_cells().all()
        hunters.step(c.TOGGLE)
        assert hunters._taken[-1][hunters.agent] == c.DONE


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
