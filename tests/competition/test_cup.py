"""A cup played for real: the ladder's order, the same tables after a kill, and what is refused."""

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
from commands import call, complaint, works
from multigrid_rl import tables
from multigrid_rl.evaluation.cup_results import RESULTS_FILE
from multigrid_rl.files import data_root

LADDER = ["random", "blue-rookie", "blue-adept", "blue-master"]
TABLES = ("results.json", "standings.csv", "pairs.csv", "sides.csv", "games.csv")


def cup(folder, output, *options, do=call):
    seed = [] if "--seed" in options else ["--seed", "30000"]
    return do("cup", folder, "--games", "40", "-o", output, "--allow-copies", *seed, *options)


BOTH = ("--with", "random", "--with", "hunter")


def tables_of(output):
    return {name: (output / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entries")
    for name in LADDER[1:]:
        shutil.copytree(data_root() / "checkpoints" / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def unbroken(entries, tmp_path_factory):
    output = tmp_path_factory.mktemp("cup") / "unbroken"
    return output, cup(entries, output, *BOTH, do=works).output


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
    before = tables_of(output)
    assert cup(entries, output, *BOTH, do=works).output.count("played before") == 20
    assert tables_of(output) == before


@pytest.mark.slow
def test_killed_cup_resumes_to_same_tables(unbroken, entries, tmp_path):
    output = tmp_path / "killed"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "cup", str(entries), "--games", "40", "-o", str(output)]
    process = subprocess.Popen(
        [*command, "--allow-copies", "--seed", "30000", *BOTH], stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list((output / "pairings").glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in (output / "pairings").glob("*.json")}
    assert len(done) >= 3
    assert cup(entries, output, *BOTH, do=works).output.count("played before") == len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert tables_of(output) == tables_of(unbroken[0])


@pytest.mark.slow
def test_late_entry_plays_only_missing_pairings(unbroken, entries, tmp_path):
    late = tmp_path / "late"
    shutil.copytree(unbroken[0], late)
    done = {path.name: path.read_bytes() for path in (late / "pairings").iterdir()}
    result = cup(entries, late, *BOTH, "--with", "idle", do=works)
    assert result.output.count("played before") == len(done) == 20
    now = {path.name: path.read_bytes() for path in (late / "pairings").iterdir()}
    assert len(now) == 30
    assert now.items() >= done.items()
    cup(entries, tmp_path / "whole", *BOTH, "--with", "idle", do=works)
    assert tables_of(late) == tables_of(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--with", "random"], "entry hunter, which is gone"),
        ([*BOTH, "--seed", "1"], "seed: expected 30000, or another --output, got 1"),
    ],
)
def test_rejects_other_cup_in_same_folder(unbroken, entries, options, message):
    assert message in complaint(cup(entries, unbroken[0], *options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "1v7"], "1v7"),
        (["--with", "nobody"], ", got nobody"),
        (["--with", "my_bots:Left"], "--with: expected a player with a folder (a Python class takes part as an agent"),
        (["--with", "random", "--with", "random"], "entry random: expected one entry of this name"),
        (["scenario=2v7"], "2v7"),
        (["no//override"], "no//override"),  # its slashes stay
    ],
)
def test_rejects_impossible_cups(entries, tmp_path, options, message):
    assert message in complaint(cup(entries, tmp_path / "cup", *options))
    assert not (tmp_path / "cup").exists()


def test_rejects_folders_without_entries_and_foreign_outputs(tmp_path, entries):
    (tmp_path / "empty").mkdir()
    assert "at least 2 entries (see --with), got 0" in complaint(cup(tmp_path / "empty", tmp_path / "cup"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    refused = complaint(cup(entries, tmp_path / "other", "--with", "random"))
    assert "expected a new folder, or a cup to resume" in refused
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_rejects_torn_results(unbroken, entries, tmp_path):
    copy = shutil.copytree(unbroken[0], tmp_path / "copy")
    torn = min((copy / "pairings").glob("*.json"))
    torn.write_text(torn.read_text()[:100])
    refused = complaint(cup(entries, copy, *BOTH))
    assert "delete it to play it again" in refused
    assert torn.name in refused


def test_player_of_another_environment_is_left_out_with_reason(tmp_path):
    cheetah(tmp_path / "cup" / "cheetah")
    result = works("cup", tmp_path / "cup", "--with", "random", "--games", 2, "-o", tmp_path / "out")
    reason = "cheetah: player cheetah-expert does not fit seat red_0: env: expected the red/blue-door game, got Half"
    assert reason in result.output
    assert json.loads(result.output.splitlines()[-1])["unranked"] == ["cheetah", "random"]


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
    works("cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "1", "-o", tmp_path / "cup")
    assert (tmp_path / "cup" / "ours.txt").is_file()
    assert call("cup", "verify", tmp_path / "cup").exit_code == 0
