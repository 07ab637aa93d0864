"""docs/first-hour.md: its commands, one after the other, with short runs and few games; and once as they stand."""

import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from commands import call, has_verb
from multigrid_rl.competition.cup_commands import rubric_file
from tiny_runs import TINY

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

ROOT = Path(__file__).parents[2]
#: What is typed once, before anything of ours can be called.
SETTING_UP = ("git", "make", "source")
#: What goes on until a person ends it.
SERVING = ("watch", "play")
FEW = {"--episodes": "20", "--until": "16384"}
#: Seconds of machine time for the whole way.
WHOLE_WAY = 15 * 60


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
    if "--rubric" in words:
        rubric = Path("rubric.yaml")
        text = rubric_file(Path(words[-1])).read_text(encoding="utf-8")
        rubric.write_text(re.sub(r"episodes: \d+", "episodes: 200", text), encoding="utf-8")
        words = [*words[:-1], str(rubric)]
    return [*words, *less.get(words[0], [])]


def test_a_stranger_walks_from_the_clone_to_a_cup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, *words in typed():
        if program == "mkdir":
            Path(words[0]).mkdir()
        elif program == "cp":
            shutil.copytree(words[1], words[2])
        elif program not in SETTING_UP and has_verb(words[0]) and words[0] not in SERVING:
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


def looked_at(command: list[str], folder: Path) -> str:
    """Open what a command serves, play a game if it is one, end it by Ctrl-C; returns what it printed."""
    serving = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        first = serving.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", first)[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "<h1>" in answer.read().decode()
        step = {"step": 0, "game": 0, "over": command[1] != "play"}
        while not step["over"]:
            wish = json.dumps({"action": step["step"] % 3, "game": 0, "step": step["step"]}).encode()
            asked = urllib.request.Request(f"{address}sent", wish)
            with urllib.request.urlopen(asked, timeout=60) as answer:
                step = json.loads(answer.read())
            if step["out"]:
                break
    finally:
        serving.send_signal(signal.SIGINT)
        rest = serving.communicate(timeout=60)[0]
    assert serving.returncode == 0, first + rest
    return first + rest


@pytest.mark.long
def test_the_whole_way_as_it_stands(tmp_path, monkeypatch, record_property):
    """Train, watch, play, understand the reward, change it, compare, hand in, grade: no dead end, few minutes."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    seen, times = [], []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for words in typed():
        if words[0] in SETTING_UP:
            continue
        began = time.monotonic()
        if words[1] in SERVING:
            told = looked_at(words, tmp_path)
        else:
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (words, done.stderr)
            told = done.stdout
        seen.append(told)
        times.append(f"{time.monotonic() - began:6.1f} s  {shlex.join(words)}\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record_property("processor_seconds", spent)
    record_property("commands", "".join(times))
    sys.stderr.write(f"{''.join(times)}{spent:6.1f} processor seconds in all\n")
    text = "\n".join(seen)
    sights = ("HELD all 4 gates", "wrote runs/first/report.html", "best return", "NOT HELD", "ok: plays 1v1", "PASSED")
    assert [sight for sight in sights if sight not in text] == []
    assert spent <= WHOLE_WAY
