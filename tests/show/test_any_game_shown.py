"""Games of others: played in the terminal, filmed, on pages, recorded and cloned; and what cannot be, in one line."""

import json
import re

import numpy as np
import pygame
import pytest
from typer.testing import CliRunner

from multigrid_rl.cli.main import app
from multigrid_rl.envs import farama
from multigrid_rl.envs.pettingzoo import ZooSpec
from multigrid_rl.evaluation.evaluation import evaluate, labelled_games
from multigrid_rl.evaluation.replays import record, shots
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.zoo_seats import RandomLegal
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run

TICTACTOE = "scenario=tictactoe"
WORDS = re.compile(r"\b(red|blue)\b", re.IGNORECASE)


def run(*args: object, typed: str | None = None, fails: bool = False) -> str:
    """What a command that does its work printed, or one that does not; a mistake is its last line."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=typed)
    told = f"{result.output}{result.exception or ''}"
    assert (result.exit_code != 0) == fails, told
    return told


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    tiny_run(path, TICTACTOE, "shared=true", "scenario.report_episodes=5", "train.lr_final=null")
    return path


@pytest.mark.slow
def test_person_types_actions_and_wrong_ones_are_asked_again(tmp_path, trained):
    file = tmp_path / "mine.json"
    every = "".join(f"{k}\n" for k in range(9))
    typed = f"4\n4\nnine\n{every}{every}\nq\n"
    told = run("play", TICTACTOE, "--opponent", trained, "--seat", "player_2", "--record", file, typed=typed)
    assert "player_1 run, player_2 you; q quits" in told
    assert told.count("action: expected ") >= 2
    assert re.search(r"action: expected [0-8, ]+, got nine\n", told)
    (game,) = json.loads(file.read_text())[:1]
    assert game["players"] == {"player_1": "run", "player_2": "you"}
    assert game["actions"]["player_2"][1] == 4
    assert re.search(rf"game 0 of seed 0: {game['result']}\n", told)
    run("video", file, "-o", tmp_path / "mine.gif")


@pytest.mark.parametrize("typed", ["", "0\n", "q\n"])
def test_end_of_input_ends_without_a_fault(typed):
    told = run("play", TICTACTOE, "--seed", 3, typed=typed)
    assert told.rstrip().splitlines()[-1].startswith("0 games: 0 won")
    assert ("1 left unfinished" in told) == (typed == "0\n")


def test_actions_have_names_and_secrets_stay_secret():
    told = run("play", "env_id=openspiel:kuhn_poker", "--seat", "player_1", typed="bet\nPASS\n1\n\nq\n")
    assert "player_1 (0 Pass, 1 Bet): " in told
    cards = [line for line in told.splitlines() if re.fullmatch(r"\d \d [pb]*", line)]
    assert len(cards) == 1  # when it is over, everybody's are shown
    before = told.partition(cards[0])[0]
    assert re.search(r"^\d[pb]\n", before, re.MULTILINE)  # its own card and what was bet


def test_games_without_a_winner_are_counted():
    output = run("play", "scenario=kuhn", "--seat", "player_1", typed="1\nq\n")
    assert output.rstrip().splitlines()[-1] == "1 game"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scenario=simple-spread"], "expected a game that draws a text, got picture: it cannot be played in"),
        (["env_id=pettingzoo:strange_games:relay"], "expected a game that draws a text, got none"),
        ([TICTACTOE, "--port", "9000"], "--port: expected nothing for tictactoe, played in the terminal"),
        ([TICTACTOE, "--seat", "player_3"], "--seat: expected player_1, player_2, got player_3"),
        ([TICTACTOE, "--opponent", "blue-master"], "player blue-master does not fit seat player_2: env"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_line(args, message):
    assert message in run("play", *args, typed="0\n", fails=True)


def test_kept_games_play_again_and_others_are_refused(trained):
    found = evaluate(find_target(str(trained)), episodes=40, seed=3)
    games = labelled_games(found)
    assert [game.label.partition(" ")[0] for game in games] == ["best", "median", "worst"] * 2
    best = games[0]
    seen = list(shots(best, "text"))
    assert [shot.step for shot in seen] == list(range(best.steps + 1))
    assert seen[-1].totals == best.returns
    assert [shot.step for shot in shots(best, "picture", 4)] == [0, *range(4, best.steps, 4), best.steps]
    short = best.model_copy(update={"actions": {seat: row[:-1] for seat, row in best.actions.items()}})
    other = best.model_copy(update={"returns": dict.fromkeys(best.returns, 0.5)})
    cell = next(row[0] for row in best.actions.values() if row[0] is not None)
    twice = best.model_copy(update={"actions": {seat: [cell] * best.steps for seat in best.actions}})
    for damaged, message in ((short, "the same game"), (other, "the same game"), (twice, "game")):
        with pytest.raises(ConfigError, match=message):
            list(shots(damaged, "text"))


def test_game_that_a_time_limit_cut_plays_again_with_all_that_it_paid():
    spec = ZooSpec("openspiel:leduc_poker", {"max_episode_steps": 2}, {"player_0": "a", "player_1": "b"}, wins=True)
    players = {seat: RandomLegal(spec.specs([seat]).agents[0]) for seat in spec.seats}
    played = play_games(spec, players, 5, seed=3)
    for row in range(5):
        kept = record(spec, played, row, seed=3, players=dict.fromkeys(spec.seats, "random"), label="any")
        seen = list(shots(kept, "text"))
        assert [shot.step for shot in seen] == list(range(kept.steps + 1))
        assert seen[-1].totals == kept.returns


def test_games_become_films_without_a_window(tmp_path, trained, monkeypatch):
    for number, args in enumerate(((trained, "--episodes", 5), (trained, "--game", "1", "--mode", "argmax"))):
        file = tmp_path / f"{number}.gif"
        run("video", *args, "-o", file)
        assert file.stat().st_size > 1000
    assert pygame.display.get_surface() is None
    kuhn = ("random", "env_id=openspiel:kuhn_poker", "--opponent", "random", "--game", 2)
    told = run("video", *kuhn, "-o", tmp_path / "x.gif", fails=True)
    assert "kuhn_poker: expected one that draws itself" in told

    def broken(*_):
        raise RuntimeError("no board")

    monkeypatch.setattr(farama.Turns, "drawn", broken)
    told = run("video", trained, "--episodes", 2, "-o", tmp_path / "x.gif", fails=True)
    assert re.search(r"tictactoe-v3: game \d of seed 0: RuntimeError: no board", told)
    assert not (tmp_path / "x.gif").exists()


def visible(page: str) -> str:
    return re.sub(r"<(style|script)[^>]*>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)


def test_page_steps_through_texts(trained):
    run("report", trained, "--episodes", 20)
    file = trained / "report.html"
    page = file.read_text()
    assert file.stat().st_size < 300_000
    assert not WORDS.search(visible(page))
    data = json.loads(re.search(r'id="replay-data">(.*?)</script>', page)[1])
    assert len(data["games"]) == 6
    assert data["players"] == ["this run"]
    assert "makePanel" in page
    assert "doorShape" not in page  # nothing of the board's script


@pytest.mark.slow
def test_page_is_stepped_through_in_a_browser(browser, trained):
    file = trained / "report.html"
    if not file.exists():
        run("report", trained, "--episodes", 20)
    page, faults = browser.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(file.as_uri())
    board = page.locator(".text-board")
    assert " ".join(board.inner_text().split()) == "0 | 3 | 6 ---+---+--- 1 | 4 | 7 ---+---+--- 2 | 5 | 8"
    page.get_by_role("button", name="One step forward").click()
    assert board.inner_text().count("x") == 1
    page.get_by_role("button", name="Last step").click()
    assert board.inner_text().count("x") >= 3
    assert page.locator(".result").inner_text().lower() in ("player_1 wins", "player_2 wins", "drawn")
    assert not faults
    page.close()


@pytest.mark.slow
def test_page_with_films_of_what_draws_pictures_and_without_of_what_draws_nothing(tmp_path):
    few = ["scenario.report_episodes=5", "train.until=1000", "train.num_envs=8", "train.minibatch_size=128"]
    tiny_run(tmp_path / "spread", "scenario=simple-spread", *few, "train.lr_final=null")
    run("report", tmp_path / "spread", "--episodes", 4)
    page = (tmp_path / "spread" / "report.html").read_text()
    assert 1 <= page.count("<video") <= 3
    assert not WORDS.search(visible(page))
    assert "Best, median and worst game, with drawn actions" in page
    tiny_run(tmp_path / "relay", "env_id=pettingzoo:strange_games:relay", *few)
    run("report", tmp_path / "relay", "--episodes", 4)
    page = (tmp_path / "relay" / "report.html").read_text()
    assert "There is no film of them: env_id=pettingzoo:strange_games:relay: expected one that draws itself" in page


def test_page_has_wins_by_opponent(tmp_path, trained):
    player = f"{trained}/checkpoints/{(trained / 'checkpoints' / 'latest').read_text().strip()}/players/player/"
    tiny_run(tmp_path / "run", "env_id=pettingzoo:classic/tictactoe-v3", "scenario.report_episodes=5",
             f"scenario.seats.player_2={{random: 1, {player}: 1}}")  # fmt: skip
    run("report", tmp_path / "run", "--episodes", 30)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The same games by opponent" in page
    assert "Games won by player_1, by opponent" in page


def test_decisions_alone_are_recorded_with_all_they_are_paid(tmp_path, trained):
    folder = tmp_path / "demos"
    run("record", trained, "--steps", 1500, "-o", folder)
    data = read_demonstrations(folder)
    assert data.card.rows == 1500  # one seat decides in each step
    assert data.card.observation.legal == 9
    flags, chosen = data.observations[:, -9:], data.actions[:, 0].astype(int)
    assert (flags[np.arange(1500), chosen] == 1).all()
    assert abs(data.card.returns.mean) < 1e-9  # what one side wins the other loses
    assert (data.rewards[np.flatnonzero(data.terminated)] != 0).mean() > 0.5
    assert data.rewards.nonzero()[0].max() < 1500
    assert set(data.rewards.nonzero()[0]) <= set(np.flatnonzero(data.terminated))


@pytest.mark.slow
def test_clones_and_labels_of_a_game_with_turns(tmp_path, trained):
    folder, few = tmp_path / "demos", ["train.minibatch_size=128", "train.num_envs=8", "train.num_steps=64"]
    run("record", trained, "--steps", 2000, "--mode", "argmax", "-o", folder)
    more = [*few, "train.epochs=1", "train.lr_final=null", "shared=true", "scenario.report_episodes=10"]
    options = ["train.cloning.play_every=20000", "train.until=40000"]
    _, rows = tiny_run(tmp_path / "clone", TICTACTOE, "train=bc", f"data={folder}", *more, *options)
    losses = [row["learner/player/cloning_loss"] for row in rows if "learner/player/cloning_loss" in row]
    assert losses[-1] < 0.3 < losses[0]  # who always takes the likeliest action can be imitated
    expert = [*more, f"expert={trained}", "train.until=2000"]
    _, rows = tiny_run(tmp_path / "asked", TICTACTOE, "train=dagger", *expert)
    losses = [row["learner/player/cloning_loss"] for row in rows if "learner/player/cloning_loss" in row]
    assert max(losses) < 5  # a label of another's turn would be illegal, and cost without bound
    gail = ("train=gail", f"data={folder}", f"run_dir={tmp_path / 'gail'}")
    assert "discriminators read vectors" in run("train", TICTACTOE, *gail, fails=True)


def test_agents_that_see_otherwise_go_into_no_common_folder(tmp_path):
    args = ("random", "env_id=pettingzoo:mpe2.simple_speaker_listener_v4", "--steps", 50, "-o", tmp_path / "d")
    assert "scenario: expected one whose agents see and do the same" in run("record", *args, fails=True)
