"""Runs in environments of Gymnasium: train, evaluate, resume number for number, freeze; what makes no sense there."""

import json
import re

import numpy as np
import pytest

from commands import call, complaint, has_verb, works
from multigrid_rl import tables
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.players.cards import read_card
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.runs.players import initial_weights
from run_folders import killed
from tiny_runs import rows_of, tiny_run, unknown_metrics, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

#: Sizes of CartPole's observations and actions, and another environment.
OTHER = "hostile_agents:OtherPole-v0"
POLE = ["env_id=CartPole-v1", "train.until=4096", "train.checkpoint_every=2048", "seed=3"]
SHORT = ["train.until=512", "train.checkpoint_every=512"]


@pytest.fixture(scope="module")
def pole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pole"
    return path, *tiny_run(path, *POLE)


@pytest.fixture(scope="module")
def frozen(pole, tmp_path_factory):
    """A catalogue with the trained player."""
    root = tmp_path_factory.mktemp("frozen")
    result = works("players", "freeze", pole[0], "--seat", "agent_0", "--name", "pole", "--checkpoints", root)
    assert "return over 100 episodes of CartPole-v1, stochastic: " in result.output
    return root


def test_mean_of_checkpoints_is_a_player_of_its_own(pole, frozen, tmp_path):
    words = ["players", "freeze", pole[0], "--seat", "agent_0", "--checkpoints", tmp_path]
    works(*words, "--name", "mean", "--average", 2)
    last, mean = (read_card(folder) for folder in (frozen / "pole", tmp_path / "mean"))
    assert mean.sha256 != last.sha256
    assert mean.returns["argmax"].episodes == 100
    refused = complaint(call(*words, "--name", "other", "--average", 3))
    assert "--average: expected at most 2, the checkpoints that" in refused
    assert not (tmp_path / "other").exists()


def judged(output, *args: object) -> dict:
    """Summary of an evaluation, without its time; the last line says the same."""
    result = works("evaluate", *args, "-o", output)
    data = json.loads((output / "summary.json").read_text())
    last = json.loads(result.output.splitlines()[-1])
    for mode, row in data["modes"].items():
        assert last[mode if mode in last else "mode"] in (mode, {k: round(v, 6) for k, v in row.items() if k in last})
    return {key: value for key, value in data.items() if key not in ("seconds", "player", "parts")}


def test_environment_id_trains_and_writes_run_folder(pole):
    path, verdict, rows = pole
    assert (verdict["scenario"], verdict["experiment"], verdict["ended"]) == ("gymnasium", "gymnasium", "until")
    assert (verdict["opponents"], verdict["gates"]) == ([], [])
    assert set(verdict["weights"]) == {"agent_0"}
    assert unknown_metrics(rows) == []
    reported = [row for row in rows if "return_mean/agent_0" in row]
    assert reported
    assert not any(name.startswith(("win/", "draw/", "defeat/")) for row in rows for name in row)  # nobody can win
    assert all(row["return_mean/agent_0"] == pytest.approx(row["episode_len_mean"]) for row in reported)  # 1 a step
    assert json.loads((path / "provenance.json").read_text())["versions"]["gymnasium"]


def test_single_episode_has_no_interval_and_a_summary_that_is_strict_json(pole, tmp_path):
    works("evaluate", pole[0], "--episodes", 1, "-o", tmp_path / "one")
    summary = json.loads((tmp_path / "one" / "summary.json").read_text(), parse_constant=str)
    assert [row["return_interval"] for row in summary["modes"].values()] == [[None, None]] * 2


@pytest.mark.skipif(not has_verb("report"), reason="the page is left out")
def test_page_of_a_single_episode_shows_its_return_without_an_interval(pole, tmp_path):
    works("report", pole[0], "--episodes", 1, "--no-films", "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"as in training\s+[\d,.]+\s+-\s", re.sub(r"<[^>]+>", " ", page))
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL).lower()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_files_of_a_run_are_strict_json_whatever_is_put_into_them(wrong, tmp_path):
    folder = RunFolder(tmp_path / "run", compose(POLE), {})
    folder.record({"env_steps": 1, "own/metric": wrong})
    folder.verdict({"ended": "until", "gates": [{"value": wrong}]})
    folder.add_fact("own", [wrong])
    folder.close()
    assert folder.last_row() == {"env_steps": 1, "own/metric": None}
    for file, value in (("verdict.json", [{"value": None}]), ("provenance.json", [None])):
        found = json.loads((folder.path / file).read_text(), parse_constant=str)
        assert found["gates" if file == "verdict.json" else "own"] == value


def test_run_and_frozen_player_evaluate_alike_by_seed(pole, frozen, tmp_path):
    run = judged(tmp_path / "run", pole[0], "--episodes", 40, "--seed", 5)
    player = judged(tmp_path / "player", frozen / "pole", "--episodes", 40, "--seed", 5)
    other = judged(tmp_path / "other", frozen / "pole", "--episodes", 40, "--seed", 6, "--mode", "argmax")
    assert run == player
    assert set(run["modes"]) == {"stochastic", "argmax"}
    assert other["modes"]["argmax"] != run["modes"]["argmax"]
    for row in run["modes"].values():
        assert row["episodes"] == 40
        assert row["return_mean"] == row["length_mean"]
        low, high = row["return_interval"]
        assert 8 < low < row["return_mean"] < high <= 500


def test_evaluates_chosen_checkpoint_and_env_arguments(pole, tmp_path):
    cut = ("env_id=CartPole-v1", "env_args={max_episode_steps: 9}")
    short = judged(tmp_path / "short", pole[0], *cut, "--episodes", 9)
    assert short["modes"]["stochastic"]["length_mean"] <= 9
    early = judged(tmp_path / "early", pole[0], "--checkpoint", "step_000002048", "--episodes", 20)
    late = judged(tmp_path / "late", pole[0], "--episodes", 20)
    assert early["modes"] != late["modes"]


@pytest.mark.parametrize("override", ["scenario=cartpole", "env_id=CartPole-v0", "env_id=gymnasium:CartPole-v1"])
def test_player_plays_its_environment_by_other_names(pole, frozen, tmp_path, override):
    for name, who in {"run": pole[0], "player": frozen / "pole"}.items():
        assert judged(tmp_path / name, who, override, "--episodes", 9)["modes"]["argmax"]["episodes"] == 9


def test_training_may_begin_with_weights_from_another_environment(pole):
    config = compose([f"env_id={OTHER}", "model.hidden=[16,16]", f"init={pole[0]}"])
    weights, _ = initial_weights(config, env_factory(config).specs)
    assert set(weights) == {"agent_0"}


def test_resumed_run_equals_unbroken_run(pole, tmp_path):
    whole, verdict, rows = pole
    broken = killed(whole, tmp_path / "broken", "step_000004096")
    assert resume_training(broken, [])["weights"] == verdict["weights"]
    assert without_time(rows_of(broken)) == without_time(rows)


@pytest.mark.parametrize("kind", ["vector", "numbers", "memory", "a2c"])
def test_other_spaces_networks_and_objectives_train(tmp_path, monkeypatch, kind):
    overrides = {
        "vector": ["env_id=hostile_agents:EchoCut-v0", "env_args={actions: parts, seen: dict}"],
        "numbers": ["env_id=hostile_agents:EchoCut-v0", "env_args={actions: vector}", "model.bound=tanh"],
        "memory": ["env_id=CartPole-v1", "model=gru", "model.hidden=[8]"],
        "a2c": ["env_id=CartPole-v1", "train=a2c", "train.minibatch_size=null", "train.v_iters=3"],
    }[kind]
    run = tmp_path / "run"
    verdict, rows = tiny_run(run, *overrides, *SHORT)
    assert rows[-1]["learner/agent_0/grad_norm"] > 0
    assert rows[0]["gradient_steps"] == 4
    judgement = judged(tmp_path / "judged", run, "--episodes", 8)
    assert np.isfinite(judgement["modes"]["argmax"]["return_mean"])
    card = read_card(run / verdict["checkpoint"] / "players" / "agent_0")
    assert (card.architecture["bound"], card.members) == ("tanh" if kind == "numbers" else None, 1)
    if kind == "numbers":
        assert judgement["modes"]["argmax"]["return_mean"] <= 4 * 3  # within its bounds


#: Arguments, and what the one line says of them.
NO_MEANING = [
    (["play", "--opponent", "RUN"], "does not fit seat blue_0: env: expected the red/blue-door game, got CartPole-v1"),
    (["play", "--opponent", "PLAYER"], "game, got CartPole-v1"),
    (["inspect", "PLAYER", "--scenario", "1v1"], "game, got CartPole-v1"),
    (["video", "RUN", "--opponent", "random"], "--opponent: expected nothing"),
    (["evaluate", "RUN", "env_id=Pendulum-v1"], "this environment: env: expected Pendulum-v1, got CartPole-v1"),
    (["evaluate", "RUN", f"env_id={OTHER}"], f"this environment: env: expected {OTHER}, got CartPole-v1"),
    (["evaluate", "PLAYER", f"env_id={OTHER}"], f"this environment: env: expected {OTHER}, got CartPole-v1"),
    (["record", "RUN", f"env_id={OTHER}"], f"this environment: env: expected {OTHER}, got CartPole-v1"),
    (["train", f"env_id={OTHER}", "train=dagger", "expert=RUN"], f"env: expected {OTHER}, got CartPole-v1"),
    (["train", f"env_id={OTHER}", "train=dagger", "expert=key-runner"], "got the red/blue-door game"),
    (["record", "key-runner", "env_id=CartPole-v1"], "env: expected CartPole-v1, got the red/blue-door game"),
    (["evaluate", "PLAYER", "scenario=1v1"], "env: expected 1v1, got CartPole-v1"),
    (["evaluate", "PLAYER", "env_id=CartPole-v9"], "scenario.env_id: expected the id of a registered environment"),
    (["rate", "gymnasium"], "got gymnasium"),
    (["evaluate", "PLAYER", "--opponent", "random"], "--opponent: expected nothing"),
    (["evaluate", "PLAYER", "--sides", "both"], "--sides: expected nothing"),
    (["evaluate", "PLAYER", "env_id=Pendulum-v1"], "does not fit"),
    (["train", "scenario=1v1", "scenario.seats.blue_0=PLAYER"], "game, got CartPole-v1"),
]
DAGGER = tables.has(tables.TRAINERS, "dagger")


@pytest.mark.parametrize(
    ("args", "message"),
    [row for row in NO_MEANING if has_verb(row[0][0]) and (DAGGER or "train=dagger" not in row[0])],
    ids=lambda part: " ".join(part[:3]) if isinstance(part, list) else None,
)
def test_rejects_options_without_meaning(pole, frozen, tmp_path, args, message):
    names = {"RUN": pole[0], "PLAYER": frozen / "pole"}
    words = [str(word) for word in args]
    for name, path in names.items():
        words = [word.replace(name, str(path)) for word in words]
    if words[0] in ("evaluate", "record"):
        words += ["-o", str(tmp_path / "out")]
    if words[0] == "train":
        words += [f"run_dir={tmp_path / 'out'}"]
    assert message in complaint(call(*words))
    assert not (tmp_path / "out").exists()
