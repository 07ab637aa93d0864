"""What a cup keeps for itself: seeds that nobody can guess, agents as they were handed in, results that it played."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agents import agent_of
from commands import call, complaint, works
from composing import refusal
from multigrid_rl.competition import cup as cups
from multigrid_rl.competition import cup_folder
from multigrid_rl.competition.cup import play_cup
from multigrid_rl.competition.entries import CupConfig, Entry, find_entries
from multigrid_rl.competition.folders import exclusive_lock
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue

SPEC = load_scenario("1v1").spec
TABLE = CupConfig("1v1", SPEC, 2, 5, Limits())
LOGGER = "open('log.txt', 'a').write('started')\n"


class CutOffError(Exception):
    """The cup is killed here."""


def entries_in(folder: Path, *names: str) -> list[Entry]:
    return find_entries(folder, list(names), Catalogue(folder), TABLE)


def played(
    folder: Path, output: Path, *names: str, table: CupConfig = TABLE, until: int = 99
) -> dict[tuple[str, str], str]:
    """Outcomes of a cup that is killed after ``until`` pairings."""

    def show(number, *_):
        if number == until:
            raise CutOffError

    found = play_cup(entries_in(folder, *names), table, output, show)
    return {(pairing.red, pairing.blue): pairing.outcomes for pairing in found}


def test_agent_seeds_are_independent_of_games(monkeypatch):
    one, two = (CupConfig("1v1", SPEC, 2, 5, Limits()) for _ in range(2))
    assert one.agents_seed("red") != two.agents_seed("red")
    assert one.agents_seed("red") != one.agents_seed("blue")
    same = CupConfig("1v1", SPEC, 9, 6, Limits(), one.agents_key)
    assert same.agents_seed("red") == one.agents_seed("red")
    guess = int(hashlib.sha256(b"5 red").hexdigest()[:8], 16)
    assert guess not in (one.agents_seed("red"), two.agents_seed("red"))


@pytest.fixture
def command(tmp_path) -> list:
    """A cup of two players that are always there."""
    (tmp_path / "in").mkdir()
    return ["cup", tmp_path / "in", "--with", "random", "--with", "idle", "--games", "1"]


@pytest.mark.slow
def test_cup_draws_seeds_once(command, tmp_path):
    kept = []
    for output in ("a", "b", "a"):
        works(*command, "-o", tmp_path / output)
        manifest = json.loads((tmp_path / output / "cup.json").read_text())
        kept.append((manifest["seed"], manifest["agents_key"]))
    assert kept[0] == kept[2]
    assert not set(kept[0]) & set(kept[1])
    assert all(seed > 2**40 and len(key) == 32 for seed, key in kept)
    assert json.loads((tmp_path / "a" / "results.json").read_text())["seed"] == kept[0][0]
    assert "seed: expected" in complaint(call(*command, "-o", tmp_path / "a", "--seed", "1"))


def test_agent_writing_into_its_folder_does_not_end_cup(tmp_path):
    agent = agent_of(tmp_path / "in" / "logger", LOGGER)
    before = agent.sha256
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    assert not (agent.folder / "log.txt").exists()
    assert not (tmp_path / "cup" / "entries" / "logger" / "log.txt").exists()
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())
    assert json.loads((tmp_path / "cup" / "cup.json").read_text())["entries"][0]["sha256"] == before


def test_self_modifying_agent_restarts_from_original(tmp_path):
    agent_of(tmp_path / "in" / "turncoat", "open('agent.py', 'w').write('raise SystemExit(1)')")
    assert all("r" not in o and "b" not in o for o in played(tmp_path / "in", tmp_path / "cup", "random").values())


def test_changed_agent_folder_is_refused(tmp_path):
    agent = agent_of(tmp_path / "in" / "turncoat")
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    (agent.folder / "agent.py").write_text("raise SystemExit(1)")
    assert "entry turncoat, which has changed" in refusal(played, tmp_path / "in", tmp_path / "cup", "random")


def test_bundle_changed_in_play_plays_as_submitted(tmp_path, monkeypatch):
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "mine")
    honest = played(tmp_path / "in", tmp_path / "honest", "random")
    entries = entries_in(tmp_path / "in", "random")
    shutil.rmtree(tmp_path / "in" / "mine")
    found = play_cup(entries, TABLE, tmp_path / "cup", lambda *_: None)
    assert {(pairing.red, pairing.blue): pairing.outcomes for pairing in found} == honest
    kept = tmp_path / "cup" / "entries" / "mine"
    model = data_root() / "checkpoints" / "blue-rookie" / "model.safetensors"
    assert (kept / "model.safetensors").read_bytes() == model.read_bytes()


def test_copy_keeps_modes_and_links_but_shares_nothing(tmp_path):
    agent = agent_of(tmp_path / "in" / "a")
    (agent.folder / "sub").mkdir()
    (agent.folder / "sub" / "run").write_text("#!/bin/sh\n")
    (agent.folder / "sub" / "run").chmod(0o500)
    (agent.folder / "link").symlink_to("sub/run")
    cup_folder.begin(TABLE, entries_in(tmp_path / "in", "random"), tmp_path / "cup")
    kept = tmp_path / "cup" / "entries" / "a"
    assert (kept / "sub" / "run").stat().st_mode & 0o111 == 0o100
    assert (kept / "link").readlink() == Path("sub/run")


def killed_in(folder: Path, output: Path, monkeypatch, *pair: str) -> None:
    """End a cup as SIGKILL does, in the first pairing of both."""

    def kill(red, blue, *rest):
        if {red.name, blue.name} == set(pair):
            patch.setattr(Path, "unlink", lambda *_, **__: None)
            raise CutOffError
        return play(red, blue, *rest)

    play = cups.play_pairing
    with monkeypatch.context() as patch:
        patch.setattr(cups, "play_pairing", kill)
        with pytest.raises(CutOffError):
            played(folder, output)


def test_agent_killing_cup_loses_pairing_and_is_named(tmp_path, monkeypatch):
    agent_of(tmp_path / "in" / "killer")
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "sound")
    killed_in(tmp_path / "in", tmp_path / "cup", monkeypatch, "killer", "sound")
    found = play_cup(entries_in(tmp_path / "in"), TABLE, tmp_path / "cup", lambda *_: None)
    assert (found[0].red, found[0].outcomes, found[0].reason) == ("killer", "rr", cups.KILLED)
    assert "r" not in found[1].outcomes


@pytest.mark.slow
def test_repeated_kills_blame_the_common_agent(tmp_path, monkeypatch):
    for name in ("angel", "fiend", "saint"):
        agent_of(tmp_path / "in" / name)
    killed_in(tmp_path / "in", tmp_path / "cup", monkeypatch, "angel", "fiend")
    killed_in(tmp_path / "in", tmp_path / "cup", monkeypatch, "fiend", "saint")
    found = played(tmp_path / "in", tmp_path / "cup")
    assert found["angel", "fiend"] == "--"  # nobody could tell then
    assert found["fiend", "saint"] == "rr"
    assert not set("rb-") & set(found["angel", "saint"] + found["saint", "angel"])


def test_machine_restart_blames_no_agent(tmp_path, monkeypatch):
    agent_of(tmp_path / "in" / "killer")
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "sound")
    killed_in(tmp_path / "in", tmp_path / "cup", monkeypatch, "killer", "sound")
    for mark in (tmp_path / "cup" / "pairings").glob("*.began"):
        mark.write_bytes(b"yesterday")
    assert not set("rb-") & set("".join(played(tmp_path / "in", tmp_path / "cup").values()))


def test_ordinary_end_leaves_no_mark(tmp_path):
    agent_of(tmp_path / "in" / "a")
    with pytest.raises(CutOffError):
        played(tmp_path / "in", tmp_path / "cup", "random", until=1)
    assert not list((tmp_path / "cup" / "pairings").glob("*.began"))


def test_rejects_concurrent_cup_in_same_folder(command, tmp_path):
    with exclusive_lock(tmp_path / "cup"):
        assert "another is at work" in complaint(call(*command, "-o", tmp_path / "cup"))
    works(*command, "-o", tmp_path / "cup")


@pytest.mark.parametrize("what", ["a pairing", "the tables"])
def test_full_disk_is_one_line_and_cup_resumes(what, command, tmp_path, monkeypatch):
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == (3 if what == "a pairing" else 5):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = call(*command, "-o", tmp_path / "cup")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[0].endswith("No space left on device")
    assert "resumes" in result.stderr.splitlines()[1]
    assert not list((tmp_path / "cup").rglob(".unfinished*"))
    again = works(*command, "-o", tmp_path / "cup")
    assert again.output.count("played before") == (1 if what == "a pairing" else 2)


def test_rejects_outputs_that_are_files(command, tmp_path):
    (tmp_path / "cup").touch()
    assert str(tmp_path / "cup") in complaint(call(*command, "-o", tmp_path / "cup"))
    with pytest.raises(PlayerError, match="expected a folder"), exclusive_lock(tmp_path / "cup"):
        pass


def test_agent_over_time_budget_is_out_and_cup_finishes(tmp_path):
    slow = 'def hello(message): time.sleep(0.2); say(\'{"type":"ready"}\')\n'
    agent_of(tmp_path / "in" / "slow", slow)
    table = replace(TABLE, cup_s=0.3)
    entries = entries_in(tmp_path / "in", "random", "idle")
    pairings = play_cup(entries, table, tmp_path / "cup", lambda *_: None)
    spent = [pairing for pairing in pairings if "slow" in (pairing.red, pairing.blue)]
    assert sum(not pairing.out for pairing in spent) in (1, 2)
    assert spent[-1].out
    assert spent[-1].reason == "out after more than 0.3 s for its starts and answers in this cup"
    assert [pairing.out for pairing in pairings if pairing not in spent] == [False, False]
    (row,) = [row for row in tabulate(entries, pairings, table, {}).entries if row.name == "slow"]
    assert row.seconds == pytest.approx(sum(pairing.seconds.get("slow", 0) for pairing in pairings))
    assert row.seconds > 0.2
    assert play_cup(entries, table, tmp_path / "cup", lambda *_: None) == pairings
    with pytest.raises(PlayerError, match=r"cup_s: expected 0\.3, or another --output, got 600"):
        play_cup(entries, TABLE, tmp_path / "cup", lambda *_: None)


def test_entry_that_could_not_play_may_be_replaced(tmp_path):
    (tmp_path / "in" / "late").mkdir(parents=True)
    assert list(played(tmp_path / "in", tmp_path / "cup", "random", "idle")) == [("idle", "random"), ("random", "idle")]
    (tmp_path / "in" / "late").rmdir()
    assert "entry late, which is gone" in refusal(played, tmp_path / "in", tmp_path / "cup", "random", "idle")
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", tmp_path / "in" / "late")
    assert len(played(tmp_path / "in", tmp_path / "cup", "random", "idle")) == 6
    shutil.rmtree(tmp_path / "in" / "late")
    shutil.copytree(data_root() / "checkpoints" / "blue-adept", tmp_path / "in" / "late")
    assert "entry late, which has changed" in refusal(played, tmp_path / "in", tmp_path / "cup", "random", "idle")
