"""The evaluate verb: the same seeds, the same table; both sides; honest shares; a closing line of JSON."""

import csv
import errno
import json

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import evaluate, interval_over_sides
from multigrid_rl.evaluation.replays import GameRecord, replay
from multigrid_rl.evaluation.seed_statistics import interval_of, wilson_interval
from multigrid_rl.evaluation.targets import find_target, player_target, run_target
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.reader import check_of_games, run_config
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments):
    return call("evaluate", *arguments)


def rows_of(folder):
    with (folder / "episodes.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluations") / "master"
    words = ("blue-master", "scenario=1v1", "--episodes", 200, "--opponent", "blue-rookie")
    return folder, works("evaluate", *words, "-o", folder).output


def test_last_line_is_json_of_table(master):
    folder, printed = master
    line = json.loads(printed.splitlines()[-1])
    rows = [row for row in rows_of(folder) if row["mode"] == "stochastic"]
    assert line["episodes"] == len(rows) == 200
    for result in ("win", "draw", "loss"):
        assert line[result] == pytest.approx(sum(row["result"] == result for row in rows) / 200)
    assert line["length_mean"] == pytest.approx(np.mean([int(row["length"]) for row in rows]))
    own = [float(row[f"return/{row['side']}_0"]) for row in rows]
    assert line["return_mean"] == pytest.approx(np.mean(own), abs=1e-6)
    assert line["seconds"] > 0
    assert line["argmax"]["episodes"] == 200


def test_games_without_winners_are_not_drawn(tmp_path):
    words = ("evaluate", "random", "scenario=simple-tag", "--opponent", "random", "--episodes", 3)
    works(*words, "-o", tmp_path / "tag")
    rows = rows_of(tmp_path / "tag")
    assert [row["length"] for row in rows] == ["25"] * 6
    assert not {"result", "winner"} & rows[0].keys()


def test_results_follow_win_flag_and_seats(master):
    for row in rows_of(master[0]):
        assert row["result"] == {row["side"]: "win", "nobody": "draw"}.get(row["winner"], "loss")
        assert row[f"player/{row['side']}_0"] == "blue-master"
        other = "red" if row["side"] == "blue" else "blue"
        assert row[f"player/{other}_0"] == "blue-rookie"


def test_both_sides_play_same_layouts():
    target = find_target("blue-master", ["scenario=1v1"])
    red, blue = evaluate(target, episodes=8, seed=3, modes=("argmax",)).parts
    assert np.array_equal(red.played[0].start, blue.played[0].start)


def test_summary_has_wilson_intervals(master):
    summary = json.loads((master[0] / "summary.json").read_text())
    side, whole = summary["parts"][0], summary["modes"]["stochastic"]
    assert side["win_interval"] == pytest.approx(list(wilson_interval(round(side["win"] * 100), 100)))
    assert whole["return_interval"][0] < whole["return_mean"] < whole["return_interval"][1]


@pytest.mark.parametrize("kind", [np.bool_, np.float64])
def test_games_of_one_number_are_one_observation(kind):
    rng = np.random.default_rng(0)
    board = rng.random(900) < 0.5  # which side it favours, in nine games of ten
    red, blue = board ^ (rng.random(900) < 0.1), ~board ^ (rng.random(900) < 0.1)
    mean, low, high = interval_over_sides([red.astype(kind), blue.astype(kind)])
    error = np.std((red * 1.0 + blue) / 2) / 30
    assert (mean, high - low) == (np.mean([red, blue]), pytest.approx(2 * 1.96 * error, rel=0.01))
    assert (high - low) * 1.5 < np.diff(interval_of(np.concatenate([red, blue]))[1:])  # before
    for values in ([red], [red, blue[:9]], [red | True, blue | True]):  # one side, other games, one result
        assert interval_over_sides(values) == interval_of(np.concatenate(values))


@pytest.mark.parametrize("count", [20, 1000])
def test_sides_that_always_add_up_leave_some_doubt(count):
    mean, low, high = interval_over_sides([np.ones(count, np.bool_), np.zeros(count, np.bool_)])
    assert (mean, low) == (0.5, pytest.approx(1 - high))
    assert 0.5 / count < high - mean < 1.5 / count


def test_kept_games_replay(master):
    records = [GameRecord.model_validate(row) for row in json.loads((master[0] / "games.json").read_text())]
    assert len(records) == 12  # best, median and worst of two modes on two sides
    best, _, worst = (replay(game) for game in records[:3])
    assert best.reward[:, 1].sum() >= worst.reward[:, 1].sum()


def test_table_follows_from_seed(master, tmp_path):
    for seed, same in ((10_000, True), (10_001, False)):
        folder, words = tmp_path / str(seed), ("--episodes", 200, "--opponent", "blue-rookie", "--seed", seed)
        works("evaluate", "blue-master", *words, "-o", folder)
        tables = [[row | {"seed": ""} for row in rows_of(each)] for each in (folder, master[0])]
        assert (tables[0] == tables[1]) is same


def test_result_is_independent_of_batches(monkeypatch):
    target = player_target("blue-adept", compose(["scenario=1v1"]))
    whole = evaluate(target, episodes=90, seed=4, modes=("stochastic",), sides="own")
    monkeypatch.setattr("multigrid_rl.evaluation.evaluation.BATCH", 32)
    parts = evaluate(target, episodes=90, seed=4, modes=("stochastic",), sides="own")
    assert len(parts.parts[0].played) == 3
    np.testing.assert_array_equal(whole.parts[0].table.returns, parts.parts[0].table.returns)


def test_run_plays_its_side_against_its_opponents(trained, tmp_path):
    works("evaluate", trained, "--episodes", 100, "--mode", "stochastic", "-o", tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert {row["side"] for row in rows} == {"red"}
    assert {row["player/blue_0"] for row in rows} == {"blue-rookie"}
    both = ("--episodes", 100, "--opponent", "random", "--sides", "both")
    works("evaluate", trained, *both, "-o", tmp_path / "both")
    assert {row["side"] for row in rows_of(tmp_path / "both")} == {"red", "blue"}


def test_one_team_games(tmp_path):
    works("evaluate", "random", "scenario=single", "--episodes", 50, "-o", tmp_path / "single")
    assert {row["side"] for row in rows_of(tmp_path / "single")} == {"red"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "got nobody"),
        (["blue-master", "scenario=2v2"], "does not fit"),
        (["random", "scenario=coop", "--opponent", "idle"], "expected a scenario with two teams"),
        (["random", "scenario=coop", "--sides", "both"], "two teams of the same size"),
        (["random", "scenario.seats.blue_0=learn"], "expected one team to judge"),
        (["random", "train.lr=3"], "train.lr: expected an override of the game, as nothing is trained, got 3"),
        (["random", "--checkpoint", "step_1"], "--checkpoint: expected nothing for random"),
        (["random", "--episodes", "1"], "at least 2, one for each side"),
        (["random", "scenario=2v2", "model=gru"], "model: expected an override of the game"),
        (["random", "--seed", 2**64], "--seed: expected less than or equal to 9223372036854775807"),
    ],
)
def test_rejects_mistakes_and_writes_nothing(arguments, message, tmp_path):
    result = run(*arguments, "-o", tmp_path / "out")
    assert message in complaint(result)
    assert (result.stdout, (tmp_path / "out").exists()) == ("", False)


def test_says_what_a_folder_to_evaluate_holds(trained, tmp_path):
    wanted = f"player: expected one player or run, such as {trained}"
    assert complaint(run(trained.parent)) == f"multigrid-rl: {wanted}, got {trained.parent}, a folder of runs"
    wanted = "player: expected a folder with a player (card.json) or a run (config.yaml)"
    assert complaint(run(tmp_path)) == f"multigrid-rl: {wanted}, got {tmp_path}, an empty one"


def test_never_overwrites(master):
    before = (master[0] / "summary.json").read_bytes()
    assert "--output: expected a new folder" in complaint(run("random", "--episodes", 10, "-o", master[0]))
    assert (master[0] / "summary.json").read_bytes() == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    tiny_run(path, "scenario=1v1", "seed=3")
    return path


def test_rejects_unwritable_output_before_playing(tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.evaluation.evaluation.evaluate", lambda *_, **__: pytest.fail("it played"))
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "evaluation"
    wanted = f"multigrid-rl: --output: expected a folder that can be made, got {folder}: "
    assert complaint(run("idle", "-o", folder)).startswith(wanted)


def test_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.csv.write_csv", full)
    folder = tmp_path / "evaluation"
    result = run("idle", "--opponent", "idle", "--episodes", 2, "--mode", "argmax", "-o", folder)
    assert (result.exit_code, result.stderr) == (3, f"multigrid-rl: {folder}: No space left on device\n")
    assert "argmax" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("override", ["train.lr=1", "model=gru", "expert=hunter"])
@pytest.mark.parametrize(
    "words",
    [
        "evaluate hunter", "video hunter -o x.gif", "cup . env_id=CartPole-v1", "play", "data import x.pt -o x",
        "data import-policy x.pt -o x",
    ],
)  # fmt: skip
def test_overrides_of_training_are_refused_where_nobody_is_trained(words, override):
    key, _, value = override.partition("=")
    said = complaint(call(*words.split(), override))
    assert said == f"multigrid-rl: {key}: expected an override of the game, as nothing is trained, got {value}"
    check_of_games(["scenario=2v2", "scheme=ctce", "shared=true"])  # who acts together, which is recorded


def test_rejects_folders_without_runs_and_missing_checkpoints(trained, tmp_path):
    (tmp_path / "config.yaml").write_text("scenario: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml: scenario"):
        run_config(tmp_path)
    with pytest.raises(PlayerError, match=r"checkpoint: .*, got step_1"):
        run_target(trained, checkpoint="step_1")
    with pytest.raises(ConfigError, match=r"scenario: expected a game with opponents, got cartpole"):
        find_target(str(trained), ["scenario=cartpole"])
