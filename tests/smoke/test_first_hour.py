"""docs/first-hour.md: its commands, one after the other, with short runs and few games."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from commands import call, has_verb
from tiny_runs import TINY

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

ROOT = Path(__file__).parents[2]
#: What is typed once, before anything of ours can be called.
SETTING_UP = ("git", "make", "source")
FEW = {"--episodes": "20", "--until": "16384"}


def typed() -> list[list[str]]:
    """The words of each command of the page, in its order."""
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for language, block in blocks if not language for line in block.splitlines()]


def shortened(words: list[str]) -> list[str]:
    """The same command with less to play."""
    for option, value in FEW.items():
        if option in words:
            words = [*words[: words.index(option) + 1], value, *words[words.index(option) + 2 :]]
    sizes = [word for word in TINY if not word.startswith(("train.until", "train.checkpoint"))]
    less = {"train": [*sizes, "--until", FEW["--until"]], "cup": ["--games", "2"]}
    return [str(ROOT / word) if word.startswith("configs/") else word for word in words] + less.get(words[0], [])


def test_a_stranger_walks_from_the_clone_to_a_cup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, *words in typed():
        if program == "mkdir":
            Path(words[0]).mkdir()
        elif program == "cp":
            shutil.copytree(words[1], words[2])
        elif program not in SETTING_UP and has_verb(words[0]):
            assert program == "multigrid-rl"
            done = call(*shortened(words))
            assert done.exit_code in ((0, 1) if words[0] == "grade" else (0,)), (words, done.output, done.exception)
    assert {path.name for path in Path("runs").iterdir()} >= {"first", "no-bonus", "adept"}
    assert Path("runs/first/report.html").stat().st_size > 50_000


def test_a_second_time_costs_one_line_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    again = call("train", "scenario=1v1", "run_dir=runs/first")
    assert (again.exit_code, "run_dir: expected a new folder" in again.stderr) == (2, True)
