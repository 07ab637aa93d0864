"""A class of thirty, graded by one command that is killed once and goes on: its table is that of an unbroken run."""

import csv
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bundles import bundle_of
from multigrid_rl.files import data_root

#: Of each there are some hand-ins, with more and more noise on its weights.
MADE_OF = ("blue-rookie", "blue-adept", "blue-master", "blue-grandmaster")
STUDENTS, BROKEN = 30, 2
#: Seconds of one core that the class may take: five minutes on two cores, of which grading uses one.
MOST_S = 300.0


def class_of(folder: Path) -> Path:
    """Thirty hand-ins, the last two of which cannot be played."""
    for k in range(STUDENTS - BROKEN):
        bundle_of(folder / f"student-{k:02}", MADE_OF[k % len(MADE_OF)], noise=0.05 * (k // len(MADE_OF)))
    (folder / "student-28").mkdir()
    bundle_of(folder / "student-29", "blue-rookie")
    (folder / "student-29" / "model.safetensors").write_bytes(b"no tensors")
    return folder


def grading(folder: Path, table: Path) -> subprocess.Popen[bytes]:
    """Start grading a class."""
    text = (data_root() / "configs" / "grade" / "1v1.yaml").read_text()
    rubric = folder.parent / "rubric.yaml"
    rubric.write_text(text.replace("episodes: 20000", "episodes: 2000"))
    command = ["grade", folder, "--rubric", rubric, "--seed", "7", "-o", table]
    return subprocess.Popen([sys.executable, "-m", "multigrid_rl.cli.main", *map(str, command)])


def processor_s() -> float:
    """Seconds that processes which have ended took of all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_class_of_thirty_is_graded_and_resumes_after_kill(tmp_path):
    handed_in = class_of(tmp_path / "in")
    began, used = time.monotonic(), processor_s()
    first = grading(handed_in, tmp_path / "killed.csv")
    while len(list((tmp_path / "killed" / "results").glob("*.json"))) < STUDENTS // 2:
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "killed.csv").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "results").glob("*.json")}
    assert grading(handed_in, tmp_path / "killed.csv").wait() == 0
    took, cost = time.monotonic() - began, processor_s() - used
    assert {path: path.stat().st_mtime_ns for path in before} == before  # whoever was graded is not graded again
    used = processor_s()
    assert grading(handed_in, tmp_path / "whole.csv").wait() == 0
    alone = processor_s() - used
    sys.stdout.write(
        f"killed and gone on: {took:.0f} s, {cost:.0f} s of one core; unbroken: {alone:.0f} s of one core\n"
    )
    text = (tmp_path / "whole.csv").read_text()
    assert (tmp_path / "killed.csv").read_text() == text
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["student"] for row in rows] == [f"student-{k:02}" for k in range(STUDENTS)]
    assert [row["student"] for row in rows if row["problem"]] == ["student-28", "student-29"]
    assert len({row["points"] for row in rows}) > 2
    assert cost < MOST_S
