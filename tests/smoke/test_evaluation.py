"""Exported policies play again without training: the same games by seed and mode."""

import numpy as np
import pytest

from multigrid_rl.evaluation.evaluation import MODES, evaluate
from multigrid_rl.evaluation.targets import find_target, run_target
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.reader import run_config
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def team_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("team") / "run"
    tiny_run(path, "scenario=2v2", "seed=3", "train.bonus={}")
    return path


def table_of(run, seed, mode):
    return evaluate(run_target(run), episodes=40, seed=seed, modes=(mode,)).parts[0].table


def test_team_policy_games_follow_seed_and_mode(team_run):
    ways = ((9, MODES[0]), (9, MODES[0]), (10, MODES[0]), (9, MODES[1]))
    drawn, again, other, likely = (table_of(team_run, seed, mode) for seed, mode in ways)
    assert drawn.returns.shape == (40, 4)
    np.testing.assert_array_equal(drawn.returns, again.returns)
    assert not np.array_equal(drawn.length, other.length)
    assert not np.array_equal(drawn.returns, likely.returns)


def test_rejects_folders_without_runs_and_missing_checkpoints(team_run, tmp_path):
    (tmp_path / "config.yaml").write_text("scenario: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml: scenario"):
        run_config(tmp_path)
    with pytest.raises(PlayerError, match=r"checkpoint: .*, got step_1"):
        run_target(team_run, checkpoint="step_1")
    with pytest.raises(ConfigError, match=r"scenario: expected a game with opponents, got cartpole"):
        find_target(str(team_run), ["scenario=cartpole"])
