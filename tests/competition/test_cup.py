"""A cup played for real: the ladder's order, the same tables after a kill; verified; and one about a league."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agents import agent_of
from bundles import cheetah, edit, make_player
from commands import call, complaint, works
from multigrid_rl.competition.cup import KILLED
from multigrid_rl.competition.cup_on_screen import game
from multigrid_rl.competition.entries import CupConfig, find_entries
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue

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
def copied(played, tmp_path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "cup"))


@pytest.mark.slow
def test_cup_folder_suffices(copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    result = works("cup", "verify", copied, "--all")
    assert result.output.count("the same") == 12
    digest = json.loads((copied / "results.json").read_bytes())["sha256"]
    assert json.loads(result.output.splitlines()[-1]) == {
        "pairings": 12, "games": 24, "different": 0, "not_repeatable": 0, "files_different": 0, "sha256": digest,
    }  # fmt: skip
    assert digest in (copied / "report.html").read_text(encoding="utf-8")
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words", ["--games 3", "--with hunter", "--seed 1"])
def test_options_of_a_cup_to_play_are_refused(copied, words):
    option = words.split()[0]
    assert f"{option}: expected nothing with verify, got" in complaint(call("cup", "verify", copied, *words.split()))
    assert "--all: expected nothing with a cup to play" in complaint(call("cup", copied, "--all"))


def test_a_limit_that_json_cannot_hold_is_refused_before_a_game(tmp_path):
    words = ["--with", "random", "--with", "idle", "--step-s", "inf"]
    said = complaint(call("cup", tmp_path, *words, "-o", tmp_path / "out"))
    assert said == "multigrid-rl: --step-s: expected a finite number, got inf"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["results.json", "standings.csv", "games.csv", "report.html"])
def test_swapped_names_are_found(copied, name):
    text = (copied / name).read_text(encoding="utf-8")
    swapped = text.replace("Peggy Müller", "@").replace("key-runner", "Peggy Müller").replace("@", "key-runner")
    (copied / name).write_text(swapped, encoding="utf-8")
    last, output = verified(copied)
    assert (last["different"], last["files_different"]) == (0, 1)
    assert f"{name}: differs from what cup.json and the pairings give" in output


def test_other_games_and_forfeits_of_bundles_are_found(copied):
    (forged,) = (copied / "pairings").glob("Peggy*--random--*")
    edited(forged, length=[1, 1])
    (forfeit,) = (copied / "pairings").glob("key-runner--Peggy*")
    edited(forfeit, outcomes="rr", reason="no answer within 5 s")
    last, output = verified(copied, "--all")
    assert (last["different"], last["not_repeatable"]) == (2, 0)
    assert "Peggy M\u00fcller (red) - random (blue): 2 of 2 games differ, game 0 first" in output
    assert "results.json: differs" in output


def test_forfeits_of_agents_are_listed(copied):
    (forfeit,) = (copied / "pairings").glob("agent--random--*")
    edited(forfeit, outcomes="rr", reason=KILLED)
    last, output = verified(copied)
    assert last["not_repeatable"] == 1
    assert f"agent (red) - random (blue): cannot be replayed, an agent forfeited: {KILLED}" in output
    edited(forfeit, out=True, reason="out after 3 forfeited pairings")
    assert "out after 3 forfeited pairings, which the other pairings do not show" in verified(copied)[1]
    published = json.loads((copied / "results.json").read_bytes())["sha256"]
    assert last["sha256"] != published


def test_pairings_of_others_are_found(copied):
    (one,) = (copied / "pairings").glob("random--key-runner--*")
    (other,) = (copied / "pairings").glob("key-runner--random--*")
    shutil.copy(one, copied / "pairings" / "extra.json")
    assert "pairings/extra.json: not a pairing of this cup" in verified(copied)[1]
    shutil.copy(one, other)
    assert "expected 2 games of key-runner and random" in complaint(call("cup", "verify", copied))


def test_forged_replay_is_one_line(copied):
    (forged,) = (copied / "pairings").glob("random--key-runner--*")
    kept = json.loads(forged.read_bytes())["kept"]
    edited(forged, kept=[{**kept[0], "actions": {seat: text[:1] for seat, text in kept[0]["actions"].items()}}])
    assert "results.json: games: game" in complaint(call("cup", "verify", copied))


def test_changed_entries_and_unfinished_cups_are_refused(copied, tmp_path):
    shutil.rmtree(copied / "entries")
    assert "entry Peggy Müller as submitted, got one that has changed" in complaint(call("cup", "verify", copied))
    (copied / "results.json").unlink()
    assert "expected the folder of a cup, got nothing there" in complaint(call("cup", "verify", tmp_path / "none"))
    assert "expected one folder of entries" in complaint(call("cup", tmp_path, tmp_path))


def test_a_cup_of_an_earlier_format_has_a_page_and_is_verified_by_its_own_version(copied):
    found = json.loads((copied / "results.json").read_bytes())
    assert found["format"] == 3
    assert "cycles" not in found
    edited(copied / "results.json", format=1, cycles=[["agent", "random"]])
    assert call("report", copied).exit_code == 0
    assert "results.json: expected format 3, or multigrid-rl as of then" in complaint(call("cup", "verify", copied))


TABLE = CupConfig("1v1", load_scenario("1v1").spec, 4, 9, Limits())


def league(run, *steps: int) -> None:
    """A run's folder with snapshots after so many environment steps, all alike."""
    player = make_player(run / "players", "one")
    for count in steps:
        home = run / "league" / f"step_{count:09d}" / "blue_0"
        shutil.copytree(player, home)
        edit(home, provenance={"env_steps": count})
    (run / "league" / "aside").mkdir()


@pytest.mark.parametrize(("number", "taken"), [(1, 1), (12, 12), (40, 12)])
def test_evenly_spaced_snapshots_include_first_and_last(tmp_path, number, taken):
    league(tmp_path, *range(100, 100 * number + 1, 100))
    entries = find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)
    steps = [entry.env_steps for entry in entries if entry.kind == "frozen"]
    assert (len(steps), steps[0], steps[-1]) == (taken, 100, 100 * number)
    assert [entry.env_steps for entry in entries if entry.kind != "frozen"] == [None]


def test_a_league_plays_the_game_of_its_run(tmp_path):
    config = compose(["scenario=1v1-league", "scenario.game.max_steps=40", "scenario.league.every=8192"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    scenario, spec, overrides = game(tmp_path, None, [])
    assert (scenario.name, spec.max_steps) == ("1v1-league", 40)
    assert overrides == ["scenario=1v1-league", "scenario.game.max_steps=40"]


def test_a_run_without_a_league_is_no_folder_of_entries(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(PlayerError, match=r"expected a folder of entries, or .*, got a run without$"):
        find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)


@pytest.mark.parametrize("file", ["card.json", "agent.yaml"])
def test_an_entry_is_no_folder_of_entries(tmp_path, file):
    (tmp_path / file).touch()  # each of its files would be an entry that cannot play
    with pytest.raises(PlayerError, match=r"--with .* enters this one., got an entry$"):
        find_entries(tmp_path, ["random"], Catalogue(tmp_path / "none"), TABLE)
