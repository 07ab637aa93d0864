"""The verbs ``players`` and ``rate``."""

import re

import pytest

from bundles import edit, make_player
from commands import call, complaint, works
from multigrid_rl.players.cards import CARD_FILE, read_card


def test_players_lists_seats_strength_and_hash(root):
    result = works("players", "--checkpoints", root)
    listed, _, notes = result.stdout.partition("\n\n")
    rows = {line.split()[0]: line for line in listed.splitlines()}
    assert list(rows) == ["player", "random", "idle", "key-runner", "hunter", "rookie"]
    sha = read_card(root / "rookie").sha256[:8]
    for part in ("1v1 blue_0", "mlp, 0.12M", "75.0 / 0.0 / 25.0%", sha):
        assert part in rows["rookie"]
    assert "any seat" in rows["hunter"]
    assert "hunter: knows the board" in notes
    assert "1,000 games of 1v1" in notes


@pytest.mark.parametrize("changes", [{"provenance": {"env_steps": "many"}}, {"colour": "red"}])
def test_players_names_damaged_card(changes, root):
    edit(root / "rookie", **changes)
    result = call("players", "--checkpoints", root)
    assert str(root / "rookie" / CARD_FILE) in complaint(result)
    assert "hunter" in result.stdout  # all others are listed


def test_rate_plays_both_sides_and_writes_cards(root):
    make_player(root, "second")
    weights = read_card(root / "rookie").sha256
    works("players", "rate", "1v1", "--episodes", 100, "--checkpoints", root)
    for name, other in (("rookie", "second"), ("second", "rookie")):
        card = read_card(root / name)
        assert [row.opponent for row in card.strength] == ["random", "idle", "key-runner", "hunter", other]
        assert {row.episodes for row in card.strength} == {100}
    assert read_card(root / "rookie").sha256 == weights


@pytest.mark.parametrize("scenario", ["coop", "cartpole", "nowhere"])
def test_rate_rejects_scenario_without_frozen_players(scenario, root):
    assert re.search(f"scenario.*{scenario}", complaint(call("players", "rate", scenario, "--checkpoints", root)))
