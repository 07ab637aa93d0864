"""What a cup keeps for itself: seeds that nobody can guess, agents as they were handed in, results that it played."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from agents import agent_of
from commands import call, complaint
from multigrid_rl.config import data_root, load_scenario
from multigrid_rl.judge.cup import cup as cups
from multigrid_rl.judge.cup import entries as cup_entries
from multigrid_rl.judge.cup import folder as cup_folder
from multigrid_rl.judge.cup.cup import play_cup, play_pairing
from multigrid_rl.judge.cup.entries import CupConfig, Entry, find_entries
from multigrid_rl.players import inspection
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.external import ExternalPlayer
from multigrid_rl.players.leftovers import alone_in
from multigrid_rl.players.sandbox import Limits

SPEC = load_scenario("1v1").spec
TABLE = CupConfig("1v1", SPEC, 2, 5, Limits(start_s=5))
LOGGER = "open('log.txt', 'a').write('started')\n"


class CutOffError(Exception):
    """The cup is killed here."""


def entries_in(folder: Path, *names: str) -> list[Entry]:
    return find_entries(folder, list(names), Catalogue(folder), TABLE)


def played(
    folder: Path, output: Path, *names: str, table: CupConfig = TABLE, until: int = 99
) -> dict[tuple[str, str], str]:
    """Outcomes of a cup that is killed after ``until`` pairings."""

    def show(progress):
        if progress.number == until:
            raise CutOffError

    found = play_cup(entries_in(folder, *names), table, output, show)
    return {(pairing.red, pairing.blue): pairing.outcomes for pairing in found}


# --- seeds


def test_what_agents_are_given_does_not_follow_from_the_games(monkeypatch):
    one, two = (CupConfig("1v1", SPEC, 2, 5, Limits()) for _ in range(2))
    assert one.agents_seed("red") != two.agents_seed("red")
    assert one.agents_seed("red") != one.agents_seed("blue")
    same = CupConfig("1v1", SPEC, 9, 6, Limits(), one.agents_key)
    assert same.agents_seed("red") == one.agents_seed("red")
    guess = int(hashlib.sha256(b"5 red").hexdigest()[:8], 16)
    assert guess not in (one.agents_seed("red"), two.agents_seed("red"))


def test_a_cup_draws_its_seeds_once_and_keeps_them(tmp_path):
    (tmp_path / "in").mkdir()
    command = ["cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "2"]
    kept = []
    for output in ("a", "b", "a"):
        result = call(*command, "-o", tmp_path / output)
        assert result.exit_code == 0, result.output
        manifest = json.loads((tmp_path / output / "cup.json").read_text())
        kept.append((manifest["seed"], manifest["agents_key"]))
    assert kept[0] == kept[2]
    assert not set(kept[0]) & set(kept[1])
    assert all(seed > 2**40 and len(key) == 32 for seed, key in kept)
    assert json.loads((tmp_path / "a" / "results.json").read_text())["seed"] == kept[0][0]
    assert "seed: expected" in complaint(call(*command, "-o", tmp_path / "a", "--seed", "1"))


def test_inspect_hands_an_agent_a_seed_of_its_own(tmp_path, monkeypatch):
    seeds = []
    before = ExternalPlayer.__init__

    def noted(self, *args):
        seeds.append(args[4])
        before(self, *args)

    monkeypatch.setattr(ExternalPlayer, "__init__", noted)
    folder = agent_of(tmp_path / "a").folder
    for _ in range(2):
        list(inspection.inspect_folder(folder, None))
    assert len(set(seeds)) == 4


# --- agents that write


def test_an_agent_that_writes_into_its_folder_does_not_end_its_cup(tmp_path):
    agent = agent_of(tmp_path / "in" / "logger", LOGGER)
    before = agent.sha256
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    assert not (agent.folder / "log.txt").exists()
    assert not (tmp_path / "cup" / "entries" / "logger" / "log.txt").exists()
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())
    assert json.loads((tmp_path / "cup" / "cup.json").read_text())["entries"][0]["sha256"] == before


def test_an_agent_that_rewrites_its_own_code_starts_afresh_each_time(tmp_path):
    agent_of(tmp_path / "in" / "turncoat", "open('agent.py', 'w').write('raise SystemExit(1)')")
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())


@pytest.mark.parametrize("change", ["file", "closed", "other"])
def test_an_agent_whose_folder_changes_plays_on_as_it_was_handed_in(change, tmp_path, caplog):
    agent = agent_of(tmp_path / "in" / "turncoat")
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    if change == "file":
        (agent.folder / "agent.py").write_text("raise SystemExit(1)")
    elif change == "closed":
        (agent.folder / "agent.yaml").write_text("?")
    else:
        shutil.rmtree(agent.folder)
        agent.folder.mkdir()
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())
    assert "entry turncoat: its folder has changed since the cup began" in caplog.text
    # Without what was kept nobody could say what was handed in.
    shutil.rmtree(tmp_path / "cup" / "entries")
    with pytest.raises(PlayerError, match="entry turncoat, which has changed"):
        played(tmp_path / "in", tmp_path / "cup", "random")


def test_a_copy_that_is_damaged_is_made_anew_and_one_that_changes_in_play_forfeits(tmp_path, monkeypatch):
    agent_of(tmp_path / "in" / "victim")
    copy = tmp_path / "cup" / "entries" / "victim"
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    (copy / "agent.py").write_text("raise SystemExit(1)")
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())
    keep = cup_folder.keep_agents

    def spoiled(entries, folder):
        found = keep(entries, folder)
        (folder / "entries" / "victim" / "agent.py").write_text("raise SystemExit(1)")
        return found

    monkeypatch.setattr(cups, "keep_agents", spoiled)
    outcomes = played(tmp_path / "in", tmp_path / "other", "random")
    assert outcomes == {("random", "victim"): "bb", ("victim", "random"): "rr"}
    assert "its files have changed since the cup began" in next((tmp_path / "other" / "pairings").iterdir()).read_text()


def test_a_bundle_that_changes_in_play_forfeits(tmp_path):
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "mine")
    mine = next(entry for entry in entries_in(tmp_path / "in", "random") if entry.name == "mine")
    shutil.rmtree(mine.folder)
    shutil.copytree(data_root() / "checkpoints" / "blue-master", mine.folder)
    pairing = play_pairing(mine, Entry("random", "scripted", ""), TABLE)
    assert (pairing.outcomes, pairing.reason) == ("rr", "mine: its files have changed since the cup began")


def test_a_bundle_is_loaded_once_for_each_side_and_anew_when_a_file_has_changed(tmp_path, monkeypatch):
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "mine")
    loads = []
    load_team = cup_entries.load_team
    monkeypatch.setattr(cup_entries, "load_team", lambda *args: loads.append(args[2]) or load_team(*args))
    played(tmp_path / "in", tmp_path / "cup", "random", "idle", "hunter")
    assert sorted(loads) == ["blue", "red"]
    mine = next(entry for entry in entries_in(tmp_path / "in", "random") if entry.name == "mine")
    (mine.folder / "model.safetensors").touch()
    loads.clear()
    assert play_pairing(mine, Entry("random", "scripted", ""), TABLE).at_fault is None
    assert loads == ["red"]
    # The same size, the same time of its last change: a hash tells.
    model = mine.folder / "model.safetensors"
    data, before = bytearray(model.read_bytes()), model.stat()
    data[-1] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "sha256" in str(play_pairing(mine, Entry("random", "scripted", ""), TABLE).reason)


def test_a_copy_keeps_programs_and_links_and_shares_nothing(tmp_path):
    agent = agent_of(tmp_path / "in" / "a")
    (agent.folder / "sub").mkdir()
    (agent.folder / "sub" / "run").write_text("#!/bin/sh\n")
    (agent.folder / "sub" / "run").chmod(0o500)
    (agent.folder / "link").symlink_to("sub/run")
    entry = next(entry for entry in entries_in(tmp_path / "in", "random") if entry.name == "a")
    kept = cup_folder.keep_agents([entry], tmp_path / "cup")[0].folder
    assert kept == tmp_path / "cup" / "entries" / "a"
    assert (kept / "sub" / "run").stat().st_mode & 0o111 == 0o100
    assert (kept / "link").readlink() == Path("sub/run")


# --- results that the cup did not play


def forging(monkeypatch, forge) -> None:
    """Let ``forge`` do its work while the first pairing is played."""
    play = cups.play_pairing
    calls = []

    def meanwhile(*args):
        calls.append(args)
        if len(calls) == 1:
            forge()
        return play(*args)

    monkeypatch.setattr(cups, "play_pairing", meanwhile)


def test_a_result_that_appears_while_the_cup_runs_counts_for_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "in").mkdir()
    honest = played(tmp_path / "in", tmp_path / "honest", "random", "idle", "hunter")
    forged = {path.name: path.read_text().replace('"B', '"R') for path in (tmp_path / "honest" / "pairings").iterdir()}

    def forge():
        (tmp_path / "cup" / "pairings").mkdir()
        for name, text in forged.items():
            (tmp_path / "cup" / "pairings" / name).write_text(text.replace("D", "R"))
        (tmp_path / "cup" / "pairings" / "extra.json").write_text("{}")

    forging(monkeypatch, forge)
    assert played(tmp_path / "in", tmp_path / "cup", "random", "idle", "hunter") == honest
    assert caplog.text.count("written while the cup ran, not by the cup") == 7
    for path in (tmp_path / "cup" / "pairings").glob("*.json"):
        assert path.read_bytes() == (tmp_path / "honest" / "pairings" / path.name).read_bytes()
    assert (tmp_path / "cup" / "pairings" / "extra.refused").exists()


def test_results_that_are_changed_or_added_before_an_interruption_do_not_count_later(tmp_path, monkeypatch, caplog):
    (tmp_path / "in").mkdir()
    names = ("random", "idle", "hunter")
    honest = played(tmp_path / "in", tmp_path / "cup", *names)
    files = sorted((tmp_path / "cup" / "pairings").iterdir())
    last = next(path for path in files if path.name.startswith("random--idle"))
    texts = {path: path.read_text() for path in files}
    last.unlink()
    assert max(honest, key=list(honest).index) == ("random", "idle")
    first = next(path for path in files if path != last)

    def forge():
        first.write_text(texts[first].replace('"outcomes":"', '"outcomes":"B').replace("B", "R"))

    forging(monkeypatch, forge)
    assert played(tmp_path / "in", tmp_path / "cup", *names) == honest
    assert first.read_text() == texts[first]
    assert "changed while the cup ran, not by the cup" in caplog.text


# --- one folder, one cup; no room


def test_rejects_a_second_cup_at_work_in_the_same_folder(tmp_path):
    (tmp_path / "in").mkdir()
    command = ["cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "1", "-o", tmp_path / "cup"]
    with alone_in(tmp_path / "cup"):
        said = complaint(call(*command))
    assert "another is at work" in said
    assert call(*command).exit_code == 0


@pytest.mark.parametrize("what", ["a pairing", "the tables"])
def test_a_full_disk_is_one_line_and_the_cup_goes_on_later(what, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    command = ["cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "1", "-o", tmp_path / "cup"]
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == (3 if what == "a pairing" else 5):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = call(*command)
    assert result.exit_code == 3
    assert result.stderr.splitlines()[0].endswith("No space left on device")
    assert "goes on" in result.stderr.splitlines()[1]
    assert not list((tmp_path / "cup").rglob(".unfinished*"))
    again = call(*command)
    assert (again.exit_code, again.output.count("played before")) == (0, 1 if what == "a pairing" else 2)


def test_rejects_outputs_that_are_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "cup").touch()
    said = complaint(call("cup", tmp_path / "in", "--with", "random", "--with", "idle", "-o", tmp_path / "cup"))
    assert str(tmp_path / "cup") in said
    with ExitStack() as stack, pytest.raises(PlayerError, match="expected a folder"):
        stack.enter_context(alone_in(tmp_path / "cup"))
