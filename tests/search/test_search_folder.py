"""A search's folder: nothing recorded is lost, nothing is overwritten, and the winner is a recipe."""

import csv
import io
import json
from dataclasses import replace

import pytest
import yaml

from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.search.plans import Outcome, Score, TrialSpec
from multigrid_rl.search.search_folder import STUDY, SearchFolder, SearchRequest, load_settings, sort_overrides
from multigrid_rl.search.search_results import (
    closing_lines,
    recipe_of,
    result_of,
    winning_command,
    write_result,
)
from multigrid_rl.search.space import Space
from multigrid_rl.search.tuning import run_trial
from multigrid_rl.text import ConfigError

BASE = ["scenario=single-obstacle", "train.num_envs=64", "experiment=none"]


@pytest.fixture(scope="module")
def request_():
    rate = {"loguniform": [1e-4, 1e-2], "also": ["train.lr_final"]}
    content = {"train.lr": rate, "model": {"choice": ["mlp", "gru"]}}
    return SearchRequest("three-stage", 7, load_settings("three-stage", {}), Space.build("small", content, BASE))


@pytest.fixture
def folder(tmp_path, request_):
    return SearchFolder.create(tmp_path / "search", request_)


def ended(name: str, lr: float, got: Score | None, stage: str = "broad", **more) -> Outcome:
    params = {"train.lr": 1e-4 * 100**lr, "model": "gru"}
    spec = TrialSpec(name, stage, params, 7, 1000, **more)
    return Outcome(spec, "finished" if got else "failed", got, 900, 12.5, None if got else "no more memory")


ROWS = [
    ended("s1-000", 0.1, Score(None, -float("inf"))),
    ended("s1-001", 0.2, None),
    ended("s1-002", 0.3, Score(None, -0.25)),
    *(ended(f"s3-s1-002-seed{n}", 0.3, Score(500 * n, 0.2), "confirm", origin="s1-002") for n in (1, 2, 3)),
]


def record(folder, rows):
    for row in rows:
        folder.begin(row.spec)
        folder.end(row)


def test_reads_outcomes_back_as_recorded(folder):
    record(folder, ROWS)
    assert folder.outcomes() == ROWS
    lines = (folder.path / STUDY).read_text().splitlines()
    assert all(json.loads(line, parse_constant=pytest.fail) for line in lines)  # JSON for everybody: no Infinity
    again = SearchFolder.reopen(folder.path)
    assert again.outcomes() == ROWS
    assert again.request == folder.request
    assert again.provenance == folder.provenance


def test_cuts_off_torn_lines_and_rejects_damaged_lines(folder):
    record(folder, ROWS[:2])
    file = folder.path / STUDY
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[0][:40])
    (folder.path / f"{STUDY}.lock").symlink_to(file)  # of what was killed while it wrote
    assert SearchFolder.reopen(folder.path).outcomes() == ROWS[:2]
    assert file.read_bytes() != whole  # who only reads leaves it as it is: somebody may be writing that line
    with folder.lock():
        assert file.read_bytes() == whole
        record(folder, ROWS[2:3])
    assert folder.outcomes() == ROWS[:3]
    file.write_bytes(b'{"spec": 3}\n' + whole)
    with pytest.raises(ConfigError, match=r"study.log: damaged, expected the record that search wrote"):
        _ = SearchFolder.reopen(folder.path).study


def test_kill_between_draw_and_name_costs_nothing(folder):
    spec = replace(ROWS[0].spec, params=None)
    known = folder.begin(spec)
    lines = (folder.path / STUDY).read_bytes().splitlines(keepends=True)
    (folder.path / STUDY).write_bytes(b"".join(lines[:-1]))  # its name is written last
    again = SearchFolder.reopen(folder.path)
    assert again.begin(spec) == known
    assert again.begin(spec) == known
    assert again.outcomes() == []


def test_searches_on_drives_without_locks(folder, monkeypatch, caplog):
    def no_locks(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with folder.lock():
        assert "no locks on this drive" in caplog.text


@pytest.mark.parametrize(("ended", "recorded"), [("until", 1), ("plateau", 1), ("interrupted", 0)])
def test_trial_is_recorded_once_its_run_has_ended_by_itself(ended, recorded, folder, monkeypatch):
    verdict = {"ended": ended, "env_steps": 900, "seconds": 77.0, "env_steps_to_held": None, "gates": []}
    monkeypatch.setattr("multigrid_rl.search.tuning._play", lambda *_: (verdict, False))
    run_trial(folder, folder.begin(ROWS[0].spec))
    # Its seconds are the run's, of all sessions, as its steps are.
    assert [(outcome.env_steps, outcome.seconds) for outcome in folder.outcomes()] == [(900, 77.0)] * recorded


def test_trial_ends_when_its_gates_are_held_whatever_its_recipe_says(tmp_path, monkeypatch):
    recipe, seen = tmp_path / "whole-budget.yaml", []
    recipe.write_text("defaults: []\ntrain: {stop_when_held: false}\n")
    folder = SearchFolder.from_overrides([*BASE[:2], f"experiment={recipe}"], tmp_path / "search")
    monkeypatch.setattr("multigrid_rl.search.tuning.stages_of", lambda config, _: seen.append(config) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_trial(folder, folder.begin(TrialSpec("s1-000", "broad", None, 7, 6000)))
    assert not folder.request.space.config.train.stop_when_held
    assert [config.train.stop_when_held for config in seen] == [True]


def test_locks_folder_and_never_overwrites_it(folder, request_):
    assert "exists already, expected a folder that does not" in refusal(SearchFolder.create, folder.path, request_)
    with folder.lock(), pytest.raises(ConfigError, match="another process is writing to it"), folder.lock():
        pass
    with folder.lock():
        assert (folder.path / "lock").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("search.yaml", None, "expected the folder of a search, got one without search.yaml"),
        ("search.yaml", "seed: 3\n", "expected the file that search wrote, got keys seed"),
        ("outcomes.jsonl", "", "expected a search of this version, got one of an earlier: start anew"),
        ("provenance.json", "{", "provenance.json: expected a yaml mapping"),
    ],
)
def test_rejects_other_folders(folder, name, content, message):
    (folder.path / name).unlink() if content is None else (folder.path / name).write_text(content)
    assert message in refusal(SearchFolder.reopen, folder.path)


def found(folder, rows=ROWS):
    record(folder, rows)
    result = result_of(folder, complete=True, seconds=61.5)
    write_result(folder, result)
    return result


def test_results_hold_every_trial_and_winner(folder):
    result = found(folder)
    rows = list(csv.DictReader(io.StringIO((folder.path / "trials.csv").read_text())))
    assert [row["trial"] for row in rows] == [row.spec.id for row in ROWS]
    assert [row["held"] for row in rows] == ["False"] * 3 + ["True"] * 3
    assert (rows[0]["margin"], rows[1]["reason"]) == ("", "no more memory")
    values = folder.request.space.values(result.winner.params)
    assert values["model"] == "gru"
    assert float(rows[2]["train.lr"]) == values["train.lr"]
    assert rows[2]["train.lr_final"] == rows[2]["train.lr"]
    assert result.winner.confirmed
    assert result.winner.score.env_steps_to_held == 1500  # of its worst seed


def test_winner_recipe_composes_to_its_configuration(folder):
    result = found(folder)
    text = (folder.path / "winner.yaml").read_text()
    assert text.startswith("# @package _global_\n# Held all gates on 3 of 3 seeds")
    recipe = yaml.safe_load(text)
    assert recipe["defaults"] == [{"override /scenario": "single-obstacle"}, {"override /model": "gru"}]
    config = compose(folder.request.space.overrides(result.winner.params))
    again = compose([f"experiment={folder.path / 'winner.yaml'}"])
    assert again == config.model_copy(update={"experiment": str(folder.path / "winner.yaml")})
    assert recipe["train"] == {"num_envs": 64, "lr": config.train.lr, "lr_final": config.train.lr}
    assert winning_command(folder, result.winner) in text


def test_writes_no_recipe_without_winner(folder):
    result = found(folder, [ROWS[1]])
    assert result.winner is None
    page = (folder.path / "report.md").read_text()
    assert "Every trial failed." in page
    lines = closing_lines(folder, result)
    assert "failed:   s1-001: no more memory" in lines
    assert lines[-1] == f"written:  {folder.path}: report.md, trials.csv"


def test_report_holds_winner_and_every_trial(folder):
    result = found(folder)
    page = (folder.path / "report.md").read_text()
    assert "6 trials, 3 held all gates, 1 failed." in page
    assert winning_command(folder, result.winner) in page
    rows = [line.split(" | ") for line in page.partition("## All trials")[2].splitlines() if line.startswith("| s")]
    assert [row[0] for row in rows][-3:] == ["| s1-002", "| s1-000", "| s1-001"]
    assert (rows[0][4], rows[-1][3]) == ("500", "failed")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["scenario"], "scenario: expected key=value, for example train.lr=3e-4"),
        (["seed=-1"], "seed: expected a whole number from 0"),
        (["seed=2147483647"], "below 2**31 - 1000, got 2147483647"),
        (["train.until=9"], "train.until=9: a search sets train.until itself"),
        (["run_dir=x"], "run_dir=x: a search sets run_dir itself"),
        (["cluster.num_env_runners=2"], "a search sets cluster.num_env_runners itself"),
    ],
)
def test_rejects_mistakes_in_overrides_in_one_line(given, message):
    assert message in refusal(sort_overrides, given)


def test_sorts_overrides():
    given = ["scenario=1v1", "search=asha", "search.trials=9", "seed=4", "train.clip=0.3"]
    assert sort_overrides(given) == ("asha", {"trials": 9}, 4, ["scenario=1v1", "train.clip=0.3", "experiment=none"])
    assert sort_overrides(["experiment=1v1"]) == ("three-stage", {}, 0, ["experiment=1v1"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["scenario=single"], "scenario.gates: expected some to search for, such as"),
        (
            ["scenario=cartpole"],
            "search.space: expected one without train.bonus for scenario=cartpole, such as control",
        ),
        (["scenario=cartpole", "search.space=control"], "got none in cartpole"),
        (["scenario=1v1", "train.bonus.all.key_pikcup=1.0"], "got key_pikcup (did you mean key_pickup?)"),
        (["scenario=1v1", "scenario.seats.blue_0=nobody"], "nobody"),
    ],
)
def test_rejects_settings_that_would_fail_every_trial(given, message, tmp_path):
    assert message in refusal(SearchFolder.from_overrides, given, tmp_path / "search")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    "asked",
    [
        *([f"experiment={name}", "train.clip=0.3"] for name in ("1v1", "blue-adept", "2v2")),
        ["scenario=halfcheetah", "experiment=halfcheetah", "train=dagger", "expert=random"],
    ],
)
def test_recipe_of_winner_composes_what_was_asked(asked, tmp_path):
    (tmp_path / "winner.yaml").write_text(yaml.safe_dump(recipe_of(asked)))
    own, found = compose(asked), compose([f"experiment={tmp_path / 'winner.yaml'}"])
    assert found.model_copy(update={"experiment": own.experiment}) == own
