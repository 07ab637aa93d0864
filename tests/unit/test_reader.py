"""A run's folder is read as it was written, damaged lines are refused, and a file is written whole or not at all."""

import json
from pathlib import Path

import pytest

from multigrid_rl.cli.output import write_file
from multigrid_rl.gates import Gate
from multigrid_rl.runs.reader import read_run
from multigrid_rl.text import ConfigError
from run_folders import three_seeds


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    return three_seeds(tmp_path)


def test_series_holds_reports_and_skips_missing_values(runs):
    series = read_run(runs[0]).series
    assert series["episode_len_mean"].env_steps.tolist() == [100, 200, 300, 400]
    assert series["episode_len_mean"].values.tolist() == [40, 30, 20, 10]
    assert "entropy/red_0" not in series  # null at every report, 9 only between them


def test_skips_torn_last_line_and_rejects_damaged_lines(runs):
    file = runs[0] / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"env_steps": 500, "epis')
    assert read_run(runs[0]).env_steps == 400
    file.write_text("nonsense\n" + whole)
    with pytest.raises(ConfigError, match=r"metrics.jsonl: line 1: expected a JSON object, got"):
        read_run(runs[0])


def test_run_gates_come_from_its_verdict(runs):
    verdict = json.loads((runs[0] / "verdict.json").read_text())
    verdict["gates"][1] |= {"hold": "share", "share": 0.8}
    (runs[0] / "verdict.json").write_text(json.dumps(verdict))
    first, second = read_run(runs[0]).gates
    assert first == Gate("episode_len_mean", "<=", 20.0, hold="every", window=50)
    assert second == Gate("return_mean/red_0", ">=", 1.3, hold="share", share=0.8, window=50)


def test_failed_write_keeps_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "made" / "page.html"
    write_file(path, b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="expected a file that can be written, got No space left on device"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_folder_that_is_not_there_is_not_called_one_without_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: expected a run folder, got none there$"):
        read_run(tmp_path / "nowhere")
