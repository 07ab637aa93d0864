"""``make bench-device``: what a machine lacks time or a GPU for is named, and numbers are compared."""

import json
import sys

import pytest
import torch

from benchmarks import device
from benchmarks.measure import BenchmarkError


def broken(limit):
    raise BenchmarkError(f"status 2 of {limit:.0f}")


def test_what_is_not_measured_is_named():
    budget = device.Budget(100)
    assert budget.measured("one", lambda limit: limit > 90)
    assert budget.measured("two", broken) is None
    budget.begin(share=0.05)
    assert budget.measured("three", lambda limit: limit) is None
    assert budget.failed[0].startswith("two: status 2 of")
    assert budget.left_out == ["three"]


def test_an_update_is_the_same_by_every_path_and_a_difference_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "ROWS", 256)
    monkeypatch.setattr(device, "WIDTHS", (16,))
    report, budget = device.Report("x", {}), device.Budget(100)
    device.learner(report, budget, "cpu")
    (row,) = next(iter(report.data.values()))
    assert row["equal"]
    assert list(row) == ["units", "default, ms", "torch, cpu, ms", "largest difference", "equal"]
    assert budget.failed == []
    numbers = iter((0.0, 0.1))
    monkeypatch.setattr(device, "updated", lambda *_: (torch.full((3,), next(numbers)), 1.0))
    device.learner(report, budget, "cpu")
    assert budget.failed == ["width 16: weights differ by 0.1"]


def test_a_report_is_written_though_nothing_was_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device, "describe", lambda: {"cores": 2})
    monkeypatch.setattr(device.Report, "markdown", lambda *_: "")
    monkeypatch.setattr(sys, "argv", ["device", "--device", "cpu", "--budget", "1", "--out", str(tmp_path / "found")])
    with pytest.raises(SystemExit, match="0"):
        device.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == json.loads((tmp_path / "found.json").read_text())["result"]
    assert {"kernels", "width 2048, default", "16384 games", "run of width 64, cpu"} <= set(told["left_out"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
def test_without_a_gpu_one_line_says_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["device"])
    with pytest.raises(SystemExit, match="--device: expected cpu, as torch sees no GPU here"):
        device.main()
