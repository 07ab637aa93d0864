"""A cup played for real: the ladder's order, the same tables after a kill, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from bundles import cheetah
from commands import call, complaint
from multigrid_rl import tables
from multigrid_rl.evaluation.cup_results import RESULTS_FILE
from multigrid_rl.files import data_root

LADDER = ["random", "blue-rookie", "blue-adept", "blue-master"]
TABLES = ("results.json", "standings.csv", "pairs.csv", "sides.csv", "games.csv")


def cup(folder, output, *options):
    seed = [] if "--seed" in options else ["--seed", "30000"]
    return call("cup", folder, "--games", "40", "-o", output, "--allow-copies", *seed, *options)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entries")
    for name in LADDER[1:]:
        shutil.copytree(data_root() / "checkpoints" / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def unbroken(entries, tmp_path_factory):
    output = tmp_path_factory.mktemp("cup") / "unbroken"
    result = cup(entries, output, "--with", "random", "--with", "hunter")
    assert result.exit_code == 0, result.output
    return output, result.output


def test_ranking_equals_ladder(unbroken):
    output, printed = unbroken
    last = json.loads(printed.splitlines()[-1])
    assert [name for name in last["ranking"] if name in LADDER] == LADDER[::-1]
    assert (last["entries"], last["pairings"], last["games"], last["forfeited"]) == (5, 20, 800, 0)
    assert "winner: blue-master" in printed
    assert (output / "report.html").stat().st_size < 3_000_000


def test_all_entries_meet_same_layouts_on_both_sides(unbroken):
    rows = json.loads((unbroken[0] / "results.json").read_text())
    assert len(rows["sides"]) == 20
    assert {(side["red"], side["blue"]) for side in rows["sides"]} == {
        (a["name"], b["name"]) for a in rows["entries"] for b in rows["entries"] if a != b
    }
    assert {game["seed"] for game in rows["games"]} == {30_000}


def test_finished_cup_is_not_replayed(unbroken, entries):
    output, _ = unbroken
    before = {name: (output / name).read_bytes() for name in TABLES}
    again = cup(entries, output, "--with", "random", "--with", "hunter")
    assert again.exit_code == 0, again.output
    assert again.output.count("played before") == 20
    assert {name: (output / name).read_bytes() for name in TABLES} == before


@pytest.mark.slow
def test_killed_cup_resumes_to_same_tables(unbroken, entries, tmp_path):
    output = tmp_path / "killed"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "cup", str(entries), "--games", "40", "-o", str(output)]
    process = subprocess.Popen(
        [*command, "--allow-copies", "--seed", "30000", "--with", "random", "--with", "hunter"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list((output / "pairings").glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in (output / "pairings").glob("*.json")}
    assert len(done) >= 3
    again = cup(entries, output, "--with", "random", "--with", "hunter")
    assert again.exit_code == 0, again.output
    assert again.output.count("played before") == len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for name in TABLES:
        assert (output / name).read_bytes() == (unbroken[0] / name).read_bytes()


@pytest.mark.slow
def test_late_entry_plays_only_missing_pairings(unbroken, entries, tmp_path):
    late = tmp_path / "late"
    shutil.copytree(unbroken[0], late)
    done = {path.name: path.read_bytes() for path in (late / "pairings").iterdir()}
    result = cup(entries, late, "--with", "random", "--with", "hunter", "--with", "idle")
    assert result.exit_code == 0, result.output
    assert result.output.count("played before") == len(done) == 20
    now = {path.name: path.read_bytes() for path in (late / "pairings").iterdir()}
    assert len(now) == 30
    assert now.items() >= done.items()
    whole = cup(entries, tmp_path / "whole", "--with", "random", "--with", "hunter", "--with", "idle")
    assert whole.exit_code == 0, whole.output
    for name in TABLES:
        assert (late / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rejects_other_cup_in_same_folder(unbroken, entries):
    output, _ = unbroken
    for options, message in (
        (["--with", "random"], "entry hunter, which is gone"),
        (["--with", "random", "--with", "hunter", "--seed", "1"], "seed: expected 30000, or another --output, got 1"),
    ):
        result = cup(entries, output, *options)
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "1v7"], "1v7"),
        (["--with", "nobody"], ", got nobody"),
        (["--with", "my_bots:Left"], "--with: expected a player with a folder (a Python class takes part as an agent"),
        (["--with", "random", "--with", "random"], "entry random: expected one entry of this name"),
    ],
)
def test_rejects_impossible_cups(entries, tmp_path, options, message):
    result = cup(entries, tmp_path / "cup", *options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "cup").exists()


def test_rejects_folders_without_entries_and_foreign_outputs(tmp_path, entries):
    (tmp_path / "empty").mkdir()
    result = cup(tmp_path / "empty", tmp_path / "cup")
    assert "at least 2 entries (see --with), got 0" in result.output
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    result = cup(entries, tmp_path / "other", "--with", "random")
    assert result.exit_code == 2
    assert "expected a new folder, or a cup to resume" in result.output
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_rejects_torn_results(unbroken, entries, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(unbroken[0], copy)
    torn = next(iter(sorted((copy / "pairings").glob("*.json"))))
    torn.write_text(torn.read_text()[:100])
    result = cup(entries, copy, "--with", "random", "--with", "hunter")
    assert result.exit_code == 2
    assert "delete it to play it again" in result.output
    assert Path(torn).name in result.output


def test_player_of_another_environment_is_left_out_with_reason(tmp_path):
    cheetah(tmp_path / "cup" / "cheetah")
    result = call("cup", tmp_path / "cup", "--with", "random", "--games", 2, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    reason = "cheetah: player cheetah-expert does not fit seat red_0: env: expected the red/blue-door game, got Half"
    assert reason in result.output
    assert json.loads(result.output.splitlines()[-1])["unranked"] == ["cheetah", "random"]


def test_scenario_may_be_written_as_a_key():
    assert "2v7" in complaint(call("cup", "all", "scenario=2v7"))


def test_page_of_a_cup_is_an_entry(monkeypatch, tmp_path):
    def write(folder: Path) -> Path:
        size = (folder / RESULTS_FILE).stat().st_size
        (folder / "ours.txt").write_text(str(size))
        return folder / "ours.txt"

    module = ModuleType("not_ours")
    module.__spec__ = ModuleSpec("not_ours", None)
    module.write = write
    monkeypatch.setitem(sys.modules, "not_ours", module)
    monkeypatch.setitem(tables.PAGES, "cup", "not_ours:write")
    (tmp_path / "in").mkdir()
    result = call("cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "1", "-o", tmp_path / "cup")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "cup" / "ours.txt").is_file()
    assert call("cup", "verify", tmp_path / "cup").exit_code == 0


def test_overrides_of_a_cup_keep_their_slashes():
    assert complaint(call("cup", "entries", "no//override")).endswith("got entries no//override")
