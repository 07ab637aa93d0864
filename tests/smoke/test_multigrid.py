"""`train` on environments of the multigrid package: tiny runs."""

from __future__ import annotations

import json

import pytest

from commands import call
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.players.cards import PlayerError, read_card
from multigrid_rl.players.frozen import check_fits
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

SCENARIO = ["scenario=multigrid", "env_id=MultiGrid-Empty-Random-5x5-v0", "train.until=2048"]


def test_package_environment_trains_and_writes_run_folder(tmp_path):
    verdict, rows = tiny_run(tmp_path / "run", *SCENARIO, "train.until=16384")
    assert (verdict["scenario"], verdict["experiment"], verdict["ended"]) == ("multigrid", "multigrid", "until")
    assert (verdict["opponents"], verdict["gates"]) == ([], [])
    folder = tmp_path / "run" / verdict["checkpoint"]
    assert (folder / "rllib").is_dir()
    card = read_card(folder / "players" / "agent_0")
    assert (card.scenario, card.env.package) == ("multigrid", "multigrid")
    result = call("evaluate", tmp_path / "run", "--episodes", 6, "--mode", "argmax", "-o", tmp_path / "judged")
    assert result.exit_code == 0, (result.output, result.exception)
    with pytest.raises(PlayerError, match=r"env: .*got MultiGrid-Empty-Random-5x5-v0"):
        check_fits(card, load_scenario("1v1").spec, "red_0")  # it cannot sit in the red/blue-door game
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["versions"]["multigrid"]
    named = {name for row in rows for name in row}
    assert [name for name in named if not any(matches(name, pattern) for pattern in glossary())] == []
    reported = [row for row in rows if "return_mean/agent_0" in row]
    assert reported
    assert all(row["win/agent_0"] + row["draw/agent_0"] == pytest.approx(1.0) for row in reported)


@pytest.mark.parametrize(
    ("scheme", "networks"), [("dtde", {"agent_0", "agent_1"}), ("ctde", {"agent_0", "agent_1"}), ("ctce", {"agents"})]
)
def test_two_agents_train_and_play_in_every_scheme(tmp_path, scheme, networks):
    verdict, rows = tiny_run(tmp_path / "run", *SCENARIO, "scenario.agents=2", f"scheme={scheme}", "train.until=1024")
    assert set(verdict["weights"]) == networks
    assert {f"entropy/{name}" for name in networks} <= set(rows[0])
    judged = call("evaluate", tmp_path / "run", "--episodes", 2, "--mode", "argmax", "-o", tmp_path / "judged")
    assert judged.exit_code == 0, judged.output
