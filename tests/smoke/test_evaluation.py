"""Exported policies play again without training: the same actions as in training, and honest tables over seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.results import STUDIES, held_sentence, page, summary
from multigrid_rl.config import ConfigError, compose
from multigrid_rl.judge.evaluation import MODES, replay_policy, run_config
from multigrid_rl.players.cards import PlayerError, read_card, read_network
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def team_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("team") / "run"
    tiny_run(path, "scenario=2v2", "seed=3", "train.bonus={}")
    return path


def test_a_runs_configuration_is_read_back_as_it_was(team_run):
    config = run_config(team_run)
    assert config.scenario.opponents == {"blue_0": {"2v2-rookie": 1.0}, "blue_1": {"2v2-rookie": 1.0}}
    assert (config.scheme, config.experiment) == ("ctce", "2v2")


@pytest.mark.parametrize("mode", MODES)
def test_a_team_policy_plays_whole_games_and_the_same_again(team_run, mode):
    one, two = (replay_policy(team_run, episodes=40, seed=9, mode=mode)[1] for _ in range(2))
    assert one.episodes == 40
    assert one.returns.shape == (40, 4)
    np.testing.assert_array_equal(one.returns, two.returns)
    other = replay_policy(team_run, episodes=40, seed=10, mode=mode)[1]
    assert not np.array_equal(one.length, other.length)


def test_the_mode_changes_the_teams_actions(team_run):
    drawn, likely = (replay_policy(team_run, episodes=40, seed=9, mode=mode)[1] for mode in MODES)
    assert not np.array_equal(drawn.returns, likely.returns)


def test_the_exported_network_computes_what_the_checkpoint_holds(team_run):
    folder = next((team_run / "checkpoints").glob("step_*/players/red"))
    network = read_network(folder, read_card(folder))
    tokens = torch.zeros(1, len(read_card(folder).observation.categories), dtype=torch.uint8)
    logits, _ = network(tokens)
    assert logits.shape == (1, 14)
    assert read_card(folder).members == 2


def test_a_folder_without_a_run_and_a_missing_checkpoint_are_one_line(team_run, tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.yaml in it; allowed is a run folder"):
        run_config(tmp_path)
    (tmp_path / "config.yaml").write_text("scenario: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.yaml: (no )?scenario"):
        run_config(tmp_path)
    with pytest.raises(PlayerError, match="checkpoint=step_1"):
        replay_policy(team_run, episodes=10, seed=0, mode="argmax", checkpoint="step_1")


# --- the pages of docs/results


def row(seed: int, held: int | None, *, gates: bool = True):
    policy = {"episodes": 10, "length": 5.0, "returns": {"red_0": 1.0}, "team_return": 1.0, "win": 1.0}
    gate = {"metric": "entropy/red_0", "comparison": "<=", "bound": 0.3, "window_mean": 0.25}
    return {
        "seed": seed, "held": held is not None, "env_steps_to_held": held, "policy_updates_to_held": 1,
        "seconds_to_held": 2.0, "seconds": 3.0, "env_steps": 900, "gates": [gate] if gates else [],
        "policy": {mode: {**policy, "draw": 0.0, "loss": 0.0} for mode in MODES},
        "provenance": {"commit": "abc", "versions": {"python": "3"}, "opponents": []},
    }  # fmt: skip


def told(*rows):
    return {"study": "x", "command": "c seed=SEED", "required": "much", "jobs": 1, "rows": list(rows)}


def test_a_run_that_did_not_hold_counts_as_later_than_all_others_in_the_median():
    assert held_sentence([row(0, 100), row(1, 300), row(2, None)]).startswith(
        "Held on 2 of 3 seeds. Environment steps to held: median 300, 100 to 300."
    )
    assert held_sentence([row(0, 100), row(1, None), row(2, None)]) == "Held on 1 of 3 seeds."
    assert held_sentence([row(0, None, gates=False)]) == "This scenario has no gates."


def test_page_and_summary_say_what_was_missed():
    text = page(told(row(0, 100), row(1, None)))
    assert "| 1 | no | - | - | 3 | 900 | 0.250 |" in text
    assert "Held on 1 of 2 seeds." in text
    line = summary([told(row(0, 100), row(1, None), row(2, None))]).splitlines()[-1]
    assert "| 1/3 | - |" in line


def test_every_study_is_a_command_that_composes():
    for study in STUDIES:
        config = compose([*study.overrides, "seed=0"])
        assert not study.recipe or config.experiment == study.recipe
