"""A run whose opponents grow: alone, with env runners, interrupted, damaged; what its settings may be."""

import json
import shutil
from pathlib import Path

import pytest

from bundles import unchanged
from commands import call
from composing import refusal, refused_gate, unsaid, with_gate
from multigrid_rl.cli.train import resume_training
from multigrid_rl.players.cards import read_card
from multigrid_rl.runs.checkpoints import read_state
from run_folders import killed
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.usefixtures("cores")

QUICK = ["scenario.league.every=1024", "scenario.league.redraw=512", "scenario.league.most=2"]
SHORT = ["scenario.game.max_steps=40", "train.checkpoint_every=2048"]
DUEL = ["scenario=1v1-league", *QUICK, *SHORT]
KINDS = {
    "driver": DUEL,
    "env runners": [*DUEL, "cluster.num_env_runners=2"],
    "memory": [*DUEL, "model=gru", "model.hidden=[16]"],
    "joint team": ["scenario=2v2-league", *QUICK, *SHORT],
    "mates": ["scenario=2v2-league", "experiment=none", "scheme=ctde", *QUICK, *SHORT],
}
#: Snapshots of 4096 steps.
NAMES = [f"step_{steps:09d}" for steps in (1024, 2048, 3072, 4096)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, *tiny_run(path, *DUEL)


def broken(path: Path, target: Path) -> Path:
    """Copy a run as if it had been killed after its checkpoint at 2048 steps, and after the snapshot that followed."""
    copy = killed(path, target, "step_000004096")
    shutil.rmtree(copy / "league" / "step_000004096")
    return copy


def snapshots(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "league").glob("step_*"))


def test_learner_joins_opponents_as_ordinary_player(whole):
    path, verdict, rows = whole
    assert snapshots(path) == NAMES
    assert [row["league/size"] for row in rows] == [3, 3, 4, 4, 5, 5, 6, 6]
    assert all(0 <= row["league/min_win"] <= 1 for row in rows)
    names = {name for row in rows for name in row if name.startswith("win_against/")}
    assert names == {f"win_against/red_0/{name}" for name in ("random", "blue-rookie", "key-runner", "snapshots")}
    assert any(row.get("win_against/red_0/snapshots") is not None for row in rows)
    players = json.loads((path / "standings.json").read_text())["players"]
    assert [row["since"] for row in players if row["since"]] == [int(name[5:]) for name in NAMES[: len(players) - 3]]
    assert sum(row["share"] for row in players) == pytest.approx(1)
    assert all(row["win"] is None or 0 <= row["win"] <= 1 for row in players)
    card = read_card(path / "league" / NAMES[-1] / "red_0")
    last = read_card(path / "checkpoints" / "step_000004096" / "players" / "red_0")
    assert (card.sha256, card.provenance["env_steps"], card.seats) == (last.sha256, 4096, ["red_0"])
    state = read_state(path / verdict["checkpoint"])["league"]
    assert [row["name"] for row in state["snapshots"]] == NAMES
    assert state["snapshots"][-1]["sha256"] == {"red_0": card.sha256}


def test_checkpoints_hold_no_snapshots(whole):
    path = whole[0]
    sizes = [
        sum(file.stat().st_size for file in (path / "checkpoints" / name / "rllib").rglob("*") if file.is_file())
        for name in ("step_000002048", "step_000004096")
    ]
    assert abs(sizes[1] - sizes[0]) < 1000


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if kind in ("mates", "env runners") else []) for kind in KINDS]
)
def test_resumed_run_equals_unbroken_run(tmp_path, whole, kind):
    if kind == "driver":
        path, whole_verdict, rows = whole
    else:
        path = tmp_path / "whole"
        whole_verdict, rows = tiny_run(path, *KINDS[kind])
    copy = broken(path, tmp_path / "broken")
    files = {file.relative_to(path): file.read_bytes() for file in (path / "league").rglob("*.safetensors")}
    verdict = resume_training(copy, [])
    assert without_time(rows_of(copy)) == without_time(rows)
    assert verdict["weights"] == whole_verdict["weights"]
    assert snapshots(copy) == NAMES
    assert {name: (copy / name).read_bytes() for name in files} == files
    # The one that the checkpoint did not know was written once more.
    assert [path.name for path in (copy / "league" / "aside").iterdir()] == ["step_000003072"]


@pytest.mark.long
def test_run_resumes_with_other_env_runners(whole, tmp_path):
    copy = broken(whole[0], tmp_path / "broken")
    verdict = resume_training(copy, ["cluster.num_env_runners=1"])
    assert verdict["env_steps"] == 4096
    assert snapshots(copy) == NAMES


def _missing(folder: Path) -> str:
    shutil.rmtree(folder)
    return "card.json: cannot be read"


def _changed(folder: Path) -> str:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    return "changed since it was written"


def _foreign(folder: Path) -> str:
    other = folder.parents[1] / NAMES[1] / folder.name
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    return "of the snapshot that joined the league"


@pytest.mark.parametrize("damage", [_missing, _changed, _foreign])
def test_rejects_resuming_without_snapshot_and_changes_nothing(whole, tmp_path, damage):
    copy = broken(whole[0], tmp_path / "broken")
    message = damage(copy / "league" / NAMES[0] / "red_0")
    with unchanged(copy):
        said = refusal(resume_training, copy, [])
        assert message in said
        assert NAMES[0] in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scenario=1v1-league", "scenario.league.anchors=random:1,nobody:2"], "scenario.seats.blue_0=nobody: "),
        (["scenario=1v1-robust", "scenario.held_out=[nobody]"], "scenario.held_out: "),
    ],
)
def test_rejects_unknown_players(words, message):
    result = call("train", *words)
    assert result.exit_code == 2, result.output
    assert f"{message}player: expected random" in result.stderr.splitlines()[-1]


def test_held_out_players_are_played_at_end(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("multigrid_rl.evaluation.evaluation.HELD_OUT_GAMES", 40)
    path, held_out = tmp_path / "run", "scenario.held_out={validate:[hunter,blue-adept],test:[idle]}"
    tiny_run(path, "scenario=1v1-league", "model=mlp", *QUICK, *SHORT, "train.until=1024", held_out)
    data = json.loads((path / "held_out.json").read_text())
    assert {name: row["episodes"] for name, row in data.items()} == {"hunter": 40, "blue-adept": 40}  # none of test
    low, high = data["hunter"]["win_interval"]
    assert low <= data["hunter"]["win"] <= high
    assert "held out: wins" in capfd.readouterr().out


# --- what its settings may be, and which gates it has


#: Overrides, then words of the message, or patterns of it.
REFUSED = [
    ("scenario=1v1 scenario.seats.blue_0=league", "league: expected settings, as a seat is set to league, got"),
    ("scenario=1v1-league scenario.seats.blue_0=random", "league: expected null without a seat set to league"),
    ("scenario=2v2-league scenario.seats.blue_1=random", "seats.blue_1: expected league on all seats of one team"),
    ("scenario=2v2-league experiment=none scenario.seats.red_1=random", "seats.red_1: expected league on all seats"),
    ("scenario=2v2-league scenario.seats.red_1=league", "expected league on all seats of one team"),
    ("scenario=1v1 scenario.seats.blue_0=league:1,random:2", "seats.blue_0: expected players with weights above 0"),
    ("scenario=1v1-league scenario.league.every=null scenario.league.win=null", "every: expected a number of"),
    ("scenario=1v1-league scenario.league.latest_share=0.9", "latest_share: expected at most 0.7, got 0.9"),
    ("scenario=1v1-league scenario.league.anchors=league", "anchors: expected at least one player"),
    ("scenario=1v1-league scenario.league.weighting=best", "league.weighting: expected one of squared, variance"),
    ("scenario=1v1-league scenario.league.most=0", "league.most: "),
    ("scenario=1v1-league scenario.league.size=3", "league.size: expected one of the keys anchors"),
    ("scenario=1v1-robust scenario.held_out=[idle,key-runner]", "held_out: expected players that it does not meet"),
    (
        "scenario=1v1-robust scenario.held_out={test:[hunter]}",
        "held_out: expected players of one list alone, named once, got hunter",
    ),
    ("scenario=1v1-robust scenario.held_out={others:[idle]}", "expected 'validate' or 'test'"),
    ("scenario=1v1-robust scenario.seats.blue_0=learn curriculum=[]", "held_out: expected {} without opponents"),
    ("scenario=1v1-league curriculum=[{scenario:1v1,steps:5}]", "curriculum: expected [] with a league"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_rejects_override_in_one_line(row):
    assert unsaid(*row) == []


def test_gate_on_league_needs_one():
    refused_gate("scenario=1v1", "league/min_win", "there is no league")
    assert with_gate("scenario=1v1-league", "league/min_win") == ["league/min_win"]
