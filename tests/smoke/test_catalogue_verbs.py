"""The verbs ``players``, ``rate`` and ``verify-trace``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bundles import edit
from catalogues import make_player
from commands import call, complaint
from multigrid_rl.players.cards import CARD_FILE, read_card

TRACES = Path(__file__).parent.parent / "golden" / "traces"
TRACE, OTHER_TRACE = TRACES / "v3-CTCE-1v1.npz", TRACES / "v3-DTDE-Red-Single.npz"


# --- players


def test_players_lists_seats_strength_and_hash(root):
    result = call("players", "--checkpoints", root)
    assert result.exit_code == 0
    listed, _, notes = result.stdout.partition("\n\n")
    rows = {line.split()[0]: line for line in listed.splitlines()}
    assert list(rows) == ["player", "random", "idle", "key-runner", "hunter", "rookie"]
    sha = read_card(root / "rookie").sha256[:8]
    for part in ("1v1 blue_0", "mlp, 0.12M", "75.0 / 0.0 / 25.0%", sha):
        assert part in rows["rookie"]
    assert "any seat" in rows["hunter"]
    assert "hunter: knows the board" in notes
    assert "1,000 games of 1v1" in notes


def test_players_measures_now(root):
    result = call("players", "--checkpoints", root, "--measure", 50, "--scenario", "1v1")
    assert result.exit_code == 0
    assert "against random, 50 games of 1v1\n" in result.stdout
    assert "not measured" not in result.stdout


@pytest.mark.parametrize("scenario", ["nowhere", "multigrid"])
def test_players_rejects_scenario_it_cannot_play(scenario, root):
    text = complaint(call("players", "--checkpoints", root, "--measure", 5, "--scenario", scenario))
    assert re.search(f"scenario.*{scenario}", text)


@pytest.mark.parametrize("changes", [{"provenance": {"env_steps": "many"}}, {"colour": "red"}])
def test_players_names_damaged_card(changes, root):
    edit(root / "rookie", **changes)
    result = call("players", "--checkpoints", root)
    assert str(root / "rookie" / CARD_FILE) in complaint(result)
    assert "hunter" in result.stdout  # all others are listed


# --- rate


def test_rate_plays_both_sides_and_writes_cards(root):
    make_player(root, "second")
    weights = read_card(root / "rookie").sha256
    result = call("rate", "1v1", "--episodes", 100, "--checkpoints", root)
    assert result.exit_code == 0
    for name, other in (("rookie", "second"), ("second", "rookie")):
        card = read_card(root / name)
        assert [row.opponent for row in card.strength] == ["random", "idle", "key-runner", "hunter", other]
        assert {row.episodes for row in card.strength} == {100}
    assert read_card(root / "rookie").sha256 == weights


@pytest.mark.parametrize("scenario", ["coop", "multigrid", "nowhere"])
def test_rate_rejects_scenario_without_frozen_players(scenario, root):
    assert re.search(f"scenario.*{scenario}", complaint(call("rate", scenario, "--checkpoints", root)))


# --- verify-trace


@pytest.fixture
def changed(tmp_path) -> Path:
    """A recording whose step 7 of episode 3 has another reward."""
    with np.load(TRACE, allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    data["agent_reward"] = data["agent_reward"].copy()
    data["agent_reward"][data["ep_step_start"][3] + 6, 1] += 0.25
    np.savez(tmp_path / "changed.npz", **data)
    return tmp_path / "changed.npz"


def test_verify_trace_of_good_files():
    result = call("verify-trace", TRACE, OTHER_TRACE)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(TRACE), str(OTHER_TRACE)]
    assert all(": identical (" in line and " episodes, " in line for line in lines)


def test_verify_trace_names_first_difference_and_goes_on(changed, tmp_path):
    files = [changed, tmp_path / "none.npz", OTHER_TRACE]
    done = call("verify-trace", *files)
    assert done.exit_code == 1
    first, good = done.stdout.splitlines()
    assert first.startswith(f"{changed}: episode 3 step 7 array agent_reward[1] expected ")
    expected, got = (float(text) for text in first.split(" expected ")[1].split(" got "))
    assert expected - got == pytest.approx(0.25)
    assert done.stderr.startswith(f"multigrid-rl: {tmp_path / 'none.npz'}: ")
    assert good.startswith(f"{OTHER_TRACE}: identical")
