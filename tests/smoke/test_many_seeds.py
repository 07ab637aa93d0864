"""`train seeds=0..3`: runs side by side, one table, one page, resumed as a whole; what is refused; how it ends."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.cli.seeds import Processes, held_summary, seeds_of
from multigrid_rl.evaluation.seed_statistics import median_text
from multigrid_rl.runs.reader import read_run
from multigrid_rl.text import ConfigError
from slow_calls import Unreadable
from tiny_runs import TINY, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")


def carried_out(numbers, tmp_path, at_once=2, interrupted=lambda: False):
    processes = Processes("slow_calls:slow_square", {str(n): n for n in numbers}, at_once, tmp_path / "log")
    told = filter(None, processes.results(interrupted))
    return {name: (kind, value) for name, kind, value in told if kind != "note"}


@pytest.fixture
def found(monkeypatch):
    """Children find what they call."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0..3", [0, 1, 2, 3]), ("3,5,7", [3, 5, 7]), ("0..1,100..101", [0, 1, 100, 101]), ("[4,2]", [4, 2])],
)
def test_seeds_are_written_as_a_range_or_a_list(text, seeds):
    assert seeds_of(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "3..1", "1,1", "0..5,3", "-1", "0..100000000", "1.5", "0..", ",".join(map(str, range(1001)))]
)
def test_other_seeds_are_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^seeds: expected different seeds, .* got"):
        seeds_of(text)


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_call(found, tmp_path):
    came = carried_out([2, -1, 0, 3], tmp_path, at_once=1)
    assert came == {
        "2": ("returned", 4),
        "-1": ("failed", f"its process ended with status 7; see {tmp_path / 'log'}"),
        "0": ("failed", "number: expected another one, got 0"),
        "3": ("returned", 9),
    }


@pytest.mark.slow
def test_a_call_that_cannot_be_read_fails_instead_of_waiting_for_ever(found, tmp_path):
    came = carried_out([Unreadable(), 2], tmp_path, at_once=1)
    assert came["2"] == ("returned", 4)
    assert came["unreadable"][0] == "failed"
    assert "invalid literal for int()" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_an_interruption_ends_what_goes_on_and_begins_nothing(found, tmp_path):
    began = time.monotonic()
    assert carried_out([10, 10.5, 2], tmp_path, at_once=1, interrupted=lambda: time.monotonic() - began > 3) == {}
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_call_does_not_begin_whose_starter_left_while_it_was_loaded(tmp_path):
    (tmp_path / "slow_to_load.py").write_text(
        "import pathlib, time\ntime.sleep(2)\ndef call(path, tell):\n    pathlib.Path(path).touch()\n"
    )
    code = "from multigrid_rl.cli.seeds import serve; serve('slow_to_load:call')"
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    call = pickle.dumps(str(tmp_path / "called"))
    subprocess.run([sys.executable, "-c", code], check=True, input=call, env={**os.environ, **path}, timeout=60)
    assert not (tmp_path / "called").exists()


def test_medians_of_few_seeds_have_no_interval():
    assert median_text(np.array([3.0, 1.0, 2.0, 9.0]), ".0f") == "median 2, 1 to 9"
    assert median_text(np.array([3.0, 1.0, 2.0, 9.0, 5.0]), ".0f") == "median 3 (95 % interval 1 to 9), 1 to 9"
    assert held_summary([10, None, None]) == "Held on 1 of 3 seeds."
    assert held_summary([10, 30, None]) == "Held on 2 of 3 seeds. Environment steps to held: median 30, 10 to never."


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds") / "mine"
    return folder, works("train", *TINY, "seeds=5,8", f"run_dir={folder}")


@pytest.mark.slow
def test_each_seed_is_the_run_that_it_is_alone(trained, tmp_path):
    folder, done = trained
    *_, rows = tiny_run(tmp_path / "alone", "seed=5")
    lines = (folder / "seed5" / "metrics.jsonl").read_text().splitlines()
    assert without_time([json.loads(line) for line in lines]) == without_time(rows)
    assert "2 of 2 seeds are done" in done.stdout
    assert "Held on 0 of 2 seeds." in done.stdout
    page = (folder / "report.html").read_text()
    assert page.count("&cross;") + page.count("not held") >= 2
    command = json.loads((folder / "seed8" / "provenance.json").read_text())["command"]
    assert "seed=8" in command


@pytest.mark.slow
def test_page_of_seeds_shows_what_runs_ended_with_and_not_means_over_whole_runs(tmp_path):
    from multigrid_rl.show.words import short  # noqa: PLC0415 - an add-on may be left out

    folder, often = tmp_path / "seeds", "scenario.report_episodes=2"
    works("train", *TINY, "env_id=CartPole-v1", often, "seeds=5,8", f"run_dir={folder}")
    page, name = (folder / "report.html").read_text(), "return_mean/agent_0"
    for path in (folder / "seed5", folder / "seed8"):
        rows = [row for line in (path / "metrics.jsonl").open() if name in (row := json.loads(line))]
        until = read_run(path).config["train"]["until"]
        last = [row[name] for row in rows if row["env_steps"] > rows[-1]["env_steps"] - until // 10]
        shown, whole = (f">{short(np.mean(values))}</td>" for values in (last, [row[name] for row in rows]))
        assert shown != whole
        assert shown in page
        assert whole not in page
        assert f"These are means over the last {until // 10:,} steps of a run." in page


@pytest.mark.slow
def test_what_is_done_is_not_run_again_and_what_is_missing_is(trained):
    folder, _ = trained
    before = (folder / "seed5" / "verdict.json").stat().st_mtime_ns
    again = works("train", "--resume", folder, "seeds=5,8,9")
    assert "1 of 3 to train" in again.stdout
    assert (folder / "seed5" / "verdict.json").stat().st_mtime_ns == before
    assert json.loads((folder / "seeds.json").read_text())["seeds"] == [5, 8, 9]
    works("report", folder)
    assert "--episodes: expected nothing" in complaint(call("report", folder, "--episodes", "5"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("seeds=0..3", "seed=1"), "seed: expected nothing beside seeds=0..9, got seed=1"),
        (("seeds=0,1", "scenario.seats.blue_0=nobody"), "got nobody"),
        (("seeds=0,1", "--web"), "--web: expected one seed"),
        (("--jobs", "2"), "--jobs: expected seeds=0..9 beside it, got --jobs 2 alone"),
    ],
)
def test_bad_words_are_refused_before_anything_runs(words, said, tmp_path):
    assert said in complaint(call("train", *TINY, *words, f"run_dir={tmp_path / 'new'}"))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_folder_of_other_runs_is_left_alone(trained, tmp_path):
    (tmp_path / "full").mkdir()
    for folder, changed in ((trained[0], "train.lr=0.01"), (tmp_path / "full", "train.lr=0.1")):
        refused = call("train", *TINY, changed, "seeds=5,8", f"run_dir={folder}")
        assert (refused.exit_code, "run_dir: expected a new folder, or one of seeds" in refused.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_children_end_with_their_parent_and_go_on_later(number, tmp_path):
    folder = tmp_path / "ended"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *TINY, "train.until=4000000", "seeds=1,2"]
    parent = subprocess.Popen([*command, f"run_dir={folder}"], stdout=subprocess.DEVNULL, start_new_session=True)
    rows = folder / "seed1" / "metrics.jsonl"
    for _ in range(1800):
        if rows.exists() and rows.stat().st_size:
            break
        time.sleep(0.1)
    assert rows.exists()
    parent.send_signal(number)
    assert parent.wait(60) == (130 if number == signal.SIGINT else -number)
    for _ in range(1800):
        with suppress(FileNotFoundError, json.JSONDecodeError):
            if json.loads((folder / "seed1" / "verdict.json").read_text())["ended"] == "interrupted":
                return
        time.sleep(0.1)
    pytest.fail("no verdict of a run that was interrupted")
