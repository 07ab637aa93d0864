"""A search that is killed or interrupted: nothing that has ended is lost, nothing runs on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multigrid_rl.search.plans import Outcome
from multigrid_rl.search.search_folder import STUDY, SearchFolder
from processes import marked

BASE = [
    *("scenario=1v1", "train.num_envs=32", "train.num_steps=16", "train.minibatch_size=256", "train.epochs=2"),
    *("search=three-stage", "search.report_every=1024", "search.broad.trials=5", "search.broad.until=20000"),
    *("search.refine.trials=1", "search.refine.until=6000", "search.confirm.until=6000"),
    *("search.confirm.candidates=1", "search.confirm.attempts=1", "search.confirm.seeds=1"),
]
pytestmark = [pytest.mark.long, pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")]


def outcomes(folder: Path) -> list[Outcome]:
    return SearchFolder.reopen(folder).outcomes()


def started(folder: Path, trials: int, *arguments: str) -> subprocess.Popen:
    """A search, when so many of its trials have ended."""
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "search"]
    process = subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "SEARCH_TEST": folder.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (folder / STUDY).exists() or len(outcomes(folder)) < trials:
        assert time.monotonic() < deadline, "no trial ended in time"
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    return process


def left_behind(marker: str, but: str = "nothing") -> list[str]:
    """Processes that carry the mark of a search in their environment."""
    return [command for _, command in marked(f"SEARCH_TEST={marker}") if command and but not in command]


def all_gone(marker: str, seconds: float, but: str = "nothing") -> bool:
    deadline = time.monotonic() + seconds
    while left_behind(marker, but) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left_behind(marker, but) == []


def test_search_completes_after_kill_and_interrupt(tmp_path):
    folder = tmp_path / f"search-{os.getpid()}"
    killed = started(folder, 1, *BASE, "--folder", str(folder))
    killed.kill()
    killed.communicate()
    # Nobody trains on for a search that is dead. Ray's own agents wait a minute for what died with it.
    assert all_gone(folder.name, 90, but="DashboardAgent"), left_behind(folder.name)
    known = outcomes(folder)
    assert 1 <= len(known) < 3
    for number in (signal.SIGINT, signal.SIGTERM):
        resumed = started(folder, len(outcomes(folder)) + 1, "--resume", str(folder))
        os.killpg(resumed.pid, number)  # as a terminal does, and timeout: to the whole group
        output, _ = resumed.communicate(timeout=120)
        assert resumed.returncode == 130, output
        assert f"interrupted: go on with multigrid-rl search --resume {folder}" in output
        assert "Traceback" not in output
        assert all_gone(folder.name, 30), left_behind(folder.name)
    assert "; interrupted." in (folder / "report.md").read_text()
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "search", "--resume", str(folder)]
    last = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert last.returncode == 0, last.stdout + last.stderr
    assert [row for row in outcomes(folder) if row in known] == known
    names = [row.spec.id for row in outcomes(folder)]
    assert len(names) == len(set(names)) == 7
    # What was under way when the search was interrupted went on, and no report is missing or there twice.
    for name in names:
        rows = (folder / "trials" / name / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(row)["env_steps"] for row in rows]
        assert steps == list(range(512, steps[-1] + 1, 512))
