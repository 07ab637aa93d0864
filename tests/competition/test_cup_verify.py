"""Verifying a cup: its folder suffices, and every change of results, tables or page is found."""

import json
import shutil
from pathlib import Path

import pytest

from agents import agent_of
from commands import call, complaint, works
from multigrid_rl.competition.cup import KILLED
from multigrid_rl.files import data_root


def edited(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def verified(cup: Path, *options: str) -> tuple[dict, str]:
    """The last line of a verification that found a difference, and all of its output."""
    result = call("cup", "verify", cup, *options)
    assert result.exit_code == 1, result.output
    return json.loads(result.output.splitlines()[-1]), result.output


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    """A finished cup, the folder of whose entries is gone."""
    home = tmp_path_factory.mktemp("cup")
    shutil.copytree(data_root() / "checkpoints" / "blue-adept", home / "in" / "Peggy M\u00fcller")
    agent_of(home / "in" / "agent")
    (home / "in" / "empty").mkdir()
    command = ["cup", home / "in", "--with", "random", "--with", "key-runner", "--games", "2", "--allow-copies"]
    works(*command, "-o", home / "cup")
    shutil.rmtree(home / "in")
    return home / "cup"


@pytest.fixture
def cup(played, tmp_path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "cup"))


@pytest.mark.slow
def test_cup_folder_suffices(cup):
    before = {path: path.read_bytes() for path in cup.rglob("*") if path.is_file()}
    result = works("cup", "verify", cup, "--all")
    assert result.output.count("the same") == 12
    digest = json.loads((cup / "results.json").read_bytes())["sha256"]
    assert json.loads(result.output.splitlines()[-1]) == {
        "pairings": 12, "games": 24, "different": 0, "not_repeatable": 0, "files_different": 0, "sha256": digest,
    }  # fmt: skip
    assert digest in (cup / "report.html").read_text(encoding="utf-8")
    assert {path: path.read_bytes() for path in cup.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words", ["--games 3", "--with hunter", "--seed 1"])
def test_options_of_a_cup_to_play_are_refused(cup, words):
    option = words.split()[0]
    assert f"{option}: expected nothing with verify, got" in complaint(call("cup", "verify", cup, *words.split()))
    assert "--all: expected nothing with a cup to play" in complaint(call("cup", cup, "--all"))


def test_a_limit_that_json_cannot_hold_is_refused_before_a_game(tmp_path):
    words = ["--with", "random", "--with", "idle", "--step-s", "inf"]
    said = complaint(call("cup", tmp_path, *words, "-o", tmp_path / "out"))
    assert said == "multigrid-rl: --step-s: expected a finite number, got inf"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["results.json", "standings.csv", "games.csv", "report.html"])
def test_swapped_names_are_found(cup, name):
    text = (cup / name).read_text(encoding="utf-8")
    swapped = text.replace("Peggy Müller", "@").replace("key-runner", "Peggy Müller").replace("@", "key-runner")
    (cup / name).write_text(swapped, encoding="utf-8")
    last, output = verified(cup)
    assert (last["different"], last["files_different"]) == (0, 1)
    assert f"{name}: differs from what cup.json and the pairings give" in output


def test_other_games_and_forfeits_of_bundles_are_found(cup):
    (forged,) = (cup / "pairings").glob("Peggy*--random--*")
    edited(forged, length=[1, 1])
    (forfeit,) = (cup / "pairings").glob("key-runner--Peggy*")
    edited(forfeit, outcomes="rr", reason="no answer within 5 s")
    last, output = verified(cup, "--all")
    assert (last["different"], last["not_repeatable"]) == (2, 0)
    assert "Peggy M\u00fcller (red) - random (blue): 2 of 2 games differ, game 0 first" in output
    assert "results.json: differs" in output


def test_forfeits_of_agents_are_listed(cup):
    (forfeit,) = (cup / "pairings").glob("agent--random--*")
    edited(forfeit, outcomes="rr", reason=KILLED)
    last, output = verified(cup)
    assert last["not_repeatable"] == 1
    assert f"agent (red) - random (blue): cannot be replayed, an agent forfeited: {KILLED}" in output
    edited(forfeit, out=True, reason="out after 3 forfeited pairings")
    assert "out after 3 forfeited pairings, which the other pairings do not show" in verified(cup)[1]
    published = json.loads((cup / "results.json").read_bytes())["sha256"]
    assert last["sha256"] != published


def test_pairings_of_others_are_found(cup):
    (one,) = (cup / "pairings").glob("random--key-runner--*")
    (other,) = (cup / "pairings").glob("key-runner--random--*")
    shutil.copy(one, cup / "pairings" / "extra.json")
    assert "pairings/extra.json: not a pairing of this cup" in verified(cup)[1]
    shutil.copy(one, other)
    assert "expected 2 games of key-runner and random" in complaint(call("cup", "verify", cup))


def test_forged_replay_is_one_line(cup):
    (forged,) = (cup / "pairings").glob("random--key-runner--*")
    kept = json.loads(forged.read_bytes())["kept"]
    edited(forged, kept=[{**kept[0], "actions": {seat: text[:1] for seat, text in kept[0]["actions"].items()}}])
    assert "results.json: games: game" in complaint(call("cup", "verify", cup))


def test_changed_entries_and_unfinished_cups_are_refused(cup, tmp_path):
    shutil.rmtree(cup / "entries")
    assert "entry Peggy Müller as submitted, got one that has changed" in complaint(call("cup", "verify", cup))
    (cup / "results.json").unlink()
    assert "expected the folder of a cup, got nothing there" in complaint(call("cup", "verify", tmp_path / "none"))
    assert "expected one folder of entries" in complaint(call("cup", tmp_path, tmp_path))


def test_a_cup_of_an_earlier_format_has_a_page_and_is_verified_by_its_own_version(cup):
    found = json.loads((cup / "results.json").read_bytes())
    assert found["format"] == 3
    assert "cycles" not in found
    edited(cup / "results.json", format=1, cycles=[["agent", "random"]])
    assert call("report", cup).exit_code == 0
    assert "results.json: expected format 3, or multigrid-rl as of then" in complaint(call("cup", "verify", cup))
