"""Where rows go beside a run's own files: a CSV that grows, libraries that may fail or not be there."""

import csv
import errno
import json
import os
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from commands import works
from multigrid_rl import tables
from multigrid_rl.config.compose import compose, keyword_overrides
from multigrid_rl.files import install_command
from multigrid_rl.ops import trackers as tracking
from multigrid_rl.runs.folder import RunFolder, tracker_named
from multigrid_rl.text import ConfigError

ROWS = [{"env_steps": 4, "a": 1.0}, {"env_steps": 8, "a": None, "gates/x": 2.0}, {"env_steps": 12, "a": 3.0}]


def begun(kind, folder, values):
    """A tracker as a run has it."""
    tracker = tables.find(tables.TRACKERS, kind)()
    tracker.begin(folder, values)
    return tracker


def _table(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_run_also_writes_rows_as_csv(tmp_path):
    run = RunFolder(tmp_path / "run", compose(["scenario=1v1", "tracking=csv"]), {})
    for row in ROWS:
        run.record(row)
    run.close()
    assert _table(run.path) == [["env_steps", "a", "gates/x"], ["4", "1.0", ""], ["8", "", "2.0"], ["12", "3.0", ""]]


def test_csv_of_resumed_run_holds_only_valid_rows(tmp_path):
    (tmp_path / "metrics.csv").write_text("of a row that came after the checkpoint\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    sheet = begun("csv", tmp_path, {})
    sheet.row({"env_steps": 8, "a": 2.0})
    sheet.end(None)
    assert _table(tmp_path) == [["env_steps", "a"], ["4", "1.0"], ["8", "2.0"]]


class Diary:
    """A tracker of somebody else's."""

    heard: ClassVar[list] = []

    def begin(self, folder, values):
        self.heard.append((folder.name, values["seed"]))

    def row(self, row):
        self.heard.append(row["env_steps"])

    def end(self, verdict):
        self.heard.append(verdict)


def test_several_trackers_and_ones_own_take_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(Diary, "heard", [])
    for k, typed in enumerate([f"csv,{__name__}:Diary", f"[{__name__}:Diary, csv]"]):
        run = RunFolder(tmp_path / str(k), compose(["scenario=1v1", f"tracking={typed}"]), {})
        run.record(ROWS[0])
        run.close()
        assert Diary.heard == [(str(k), 0), 4, None]
        assert _table(run.path) == [["env_steps", "a"], ["4", "1.0"]]
        Diary.heard.clear()
    assert keyword_overrides({"seed": np.int64(3), "hidden": np.array([4])}) == ["seed=3", "model.hidden=[4]"]
    assert keyword_overrides({"tracking": ["csv", Diary]}) == [f'tracking=["csv", "{__name__}:Diary"]']
    with pytest.raises(ConfigError, match="tracking: expected a class with begin, row and end, got json:dumps without"):
        tracker_named("json:dumps")
    with pytest.raises(ConfigError, match=r"got letter$"):
        compose(["scenario=1v1", "tracking=csv,letter"])


class Unreachable(Diary):
    """A tracker whose server does not answer."""

    def begin(self, folder, values):
        raise ConnectionError("no server")


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_run_that_cannot_be_opened_leaves_no_folder_behind(tmp_path, monkeypatch):
    config = compose(["scenario=1v1", f"tracking=csv,{__name__}:Unreachable"])
    with pytest.raises(ConnectionError, match="no server"):
        RunFolder(tmp_path / "run", config, {})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("multigrid_rl.runs.folder.write_atomic", full_disk)
    with pytest.raises(OSError, match="No space left"):
        RunFolder(tmp_path / "run", compose(["scenario=1v1"]), {})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    RunFolder(tmp_path / "run", compose(["scenario=1v1"]), {}).close()


def test_entry_of_table_adds_a_tracker(tmp_path, monkeypatch):
    monkeypatch.setitem(tables.TRACKERS, "diary", f"{__name__}:Diary")
    monkeypatch.setattr(Diary, "heard", [])
    run = RunFolder(tmp_path / "run", compose(["scenario=1v1", "tracking=diary", "seed=4"]), {})
    run.record(ROWS[0])
    run.verdict({"ended": "until"})
    run.close()
    assert Diary.heard == [("run", 4), 4, {"ended": "until"}]
    with pytest.raises(ConfigError, match=r"^tracking: expected csv, .*, diary, module:Class .*, got letter$"):
        compose(["scenario=1v1", "tracking=letter"])


class FakeError(Exception):
    """What the library raises."""


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that keeps what it is told, and fails when told to."""
    calls = []

    def log(row):
        if "fail" in row:
            raise FakeError("no\nnetwork")
        calls.append(row)

    def init(**given):
        calls.append(given)
        return SimpleNamespace(
            id="abc", log=log, finish=lambda: calls.append("finish"), define_metric=lambda *a, **k: 0
        )

    fake = ModuleType("wandb")
    fake.Error, fake.init, fake.Settings, fake.__spec__ = FakeError, init, dict, SimpleNamespace()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return calls


def test_library_receives_config_and_metrics(tmp_path, wandb):
    tracker = begun("wandb", tmp_path, {"seed": 3})
    tracker.row(ROWS[1])
    tracker.end(None)
    assert (wandb[0]["config"], wandb[0]["name"]) == ({"seed": 3}, tmp_path.name)
    assert wandb[1:] == [{"env_steps": 8, "gates/x": 2.0}, "finish"]
    begun("wandb", tmp_path, {})
    assert (wandb[-1]["id"], wandb[-1]["resume"]) == ("abc", "allow")


def test_run_of_two_libraries_resumes_in_both(tmp_path, wandb, monkeypatch):
    fake = ModuleType("mlflow")
    fake.MlflowException, fake.log_params, fake.__spec__ = FakeError, lambda values: None, SimpleNamespace()
    opened = []
    fake.start_run = lambda **given: opened.append(given["run_id"]) or SimpleNamespace(info=SimpleNamespace(run_id="m"))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for _ in range(2):
        for name in ("wandb", "mlflow"):
            begun(name, tmp_path, {})
    assert (wandb[-1].get("id"), opened) == ("abc", [None, "m"])


def test_mlflow_server_that_is_dead_is_given_up_soon(tmp_path, monkeypatch, caplog):
    """Its client reads from the environment how often it asks; what the user says there stays."""
    found = []

    def start_run(**_):
        found.append((os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"), os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]))
        raise FakeError("no server")

    fake = ModuleType("mlflow")
    fake.MlflowException, fake.start_run, fake.__spec__ = FakeError, start_run, SimpleNamespace()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    begun("mlflow", tmp_path, {})
    assert found == [("1", "3")]
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
    assert caplog.messages == ["tracking=mlflow: FakeError: no server; the run goes on without"]


def test_run_survives_failing_library(tmp_path, wandb, caplog):
    tracker = begun("wandb", tmp_path, {})
    for row in ({"fail": 1, "env_steps": 4}, {"fail": 1, "env_steps": 8}, ROWS[0]):
        tracker.row(row)
    tracker.end(None)
    assert len(wandb) == 1
    assert caplog.messages == ["tracking=wandb: FakeError: no network; the run goes on without"]


def test_variable_that_a_library_does_not_take_is_one_warning(tmp_path, wandb, monkeypatch, caplog):
    def refuse(**settings):
        raise ValueError("1 validation error for Settings\nmode\n  Input should be 'online'")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    begun("wandb", tmp_path, {}).row({"env_steps": 8})
    said = "ValueError: 1 validation error for Settings mode Input should be 'online'"
    assert caplog.messages == [f"tracking=wandb: {said}; the run goes on without"]


def test_rejects_missing_library_before_start(monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(install_command("mlflow"))):
        tracking.Mlflow.check()


@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_wandb_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    _track_twice("wandb", tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 2


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_mlflow_itself_in_file(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    _track_twice("mlflow", tmp_path)
    known = json.loads((tmp_path / tracking.ID_FILE).read_text())["mlflow"]
    client = mlflow.MlflowClient()
    assert [(row.step, row.value) for row in client.get_metric_history(known, "a")] == [(4, 1.0), (12, 3.0)]
    assert client.get_run(known).data.params["train.lr"] == "0.001"


def _track_twice(kind, folder):
    for rows in (ROWS[:2], ROWS[2:]):
        tracker = begun(kind, folder, {"train": {"lr": 1e-3}})
        for row in rows:
            tracker.row(row)
        tracker.end(None)
    assert tracker._is_active


@pytest.mark.parametrize(("typed", "wanted"), [([], "web"), (["tracking=null"], "web"), (["tracking=csv"], "csv,web")])
def test_web_is_one_more_tracker(monkeypatch, typed, wanted):
    asked = []
    trained = {"ended": "", "held": True}
    monkeypatch.setattr("multigrid_rl.cli.train.run_training", lambda words: asked.extend(words) or trained)
    works("train", "--web", *typed)
    assert asked[-1] == f"tracking={wanted}"
