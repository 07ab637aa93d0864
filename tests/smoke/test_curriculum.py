"""Curricula, whose stages change at a step or with held gates; and training that diverges: said, ended, not kept."""

import json
import shutil

import pytest

from multigrid_rl.cli.drive import resume_hint
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.learn.flat import FlatAdam
from multigrid_rl.players import catalogue
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.text import ConfigError
from multigrid_rl.training import loop
from multigrid_rl.training.loop import DivergedError
from multigrid_rl.training.stages import seated_players, stages_of
from run_folders import write_checkpoint
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

STAGES = "curriculum=[{scenario:single-v3,steps:1024},{seats:{blue_0:random},steps:1024}]"
EASY = "scenario.gates=[{metric:episode_len_mean,at_most:100000,window:512}]"


def test_stages_change_at_their_steps(tmp_path):
    short = ["scenario.game.max_steps=10", "train.num_envs=128", "train.until=8192"]
    verdict, rows = tiny_run(tmp_path / "run", STAGES.replace("1024", "2048"), *short)
    assert [row["stage"] for row in rows] == [0, 1, 2, 2]
    assert (verdict["stage"], verdict["stages"]) == (2, 3)
    # Alone there is no other team.
    assert ["team_return_mean/blue" in row for row in rows] == [False, True, True, True]
    names = [(row["seat"], row["name"]) for row in verdict["opponents"]]
    assert names == [("blue_0", "random"), ("blue_0", "blue-rookie")]
    last = tmp_path / "run" / verdict["checkpoint"] / "players" / "red_0"
    assert read_card(last).scenario == "1v1"


def test_stage_ends_with_its_gates_and_gates_reset(tmp_path):
    easy = ["curriculum=[{steps:100000,held:true}]", EASY, "scenario.game.max_steps=10"]
    verdict, rows = tiny_run(tmp_path / "run", *easy, "train.num_envs=128", "train.until=16384")
    assert verdict["ended"] == "held"
    change = [row["stage"] for row in rows].index(1)
    assert rows[change - 1]["gates/held"] == 1.0
    assert all(row["gates/held"] == 0.0 for row in rows[: change - 1] if "gates/held" in row)
    assert "gates/held" not in rows[change] or rows[change]["gates/held"] == 0.0
    assert rows[-1]["gates/held"] == 1.0
    assert verdict["env_steps_to_held"] > rows[change - 1]["env_steps"]


def test_gates_of_an_earlier_stage_are_not_the_runs(tmp_path):
    easy = ["curriculum=[{seats:{blue_0:random},steps:100000}]", EASY, "scenario.game.max_steps=10"]
    verdict, rows = tiny_run(tmp_path / "run", *easy, "train.num_envs=128", "train.until=4096")
    assert rows[-1]["gates/episode_len_mean/met"] == 1  # of its stage
    assert (verdict["held"], verdict["stage"], verdict["ended"]) == (False, 0, "until")
    assert [gate["held"] for gate in verdict["gates"]] == [False]


@pytest.mark.parametrize("kept", ["step_000001024", "step_000001536"])
def test_resumed_curriculum_is_in_right_stage(tmp_path, kept):
    many = ["train.checkpoint_every=512", "train.keep_checkpoints=9", "scenario.game.max_steps=40"]
    verdict, whole = tiny_run(tmp_path / "whole", STAGES, *many)
    broken = shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    for path in (broken / "checkpoints").glob("step_*"):
        if path.name > kept:
            shutil.rmtree(path)
    again = resume_training(broken, [])
    assert without_time(rows_of(broken)) == without_time(whole)
    assert again["weights"] == verdict["weights"]
    assert json.loads((broken / "checkpoints" / "step_000002048" / "manifest.json").read_text())["stage"] == 1


def test_run_ended_with_stage_resumes_in_next(tmp_path):
    verdict, whole = tiny_run(tmp_path / "whole", STAGES, "scenario.game.max_steps=40")
    tiny_run(tmp_path / "broken", STAGES, "scenario.game.max_steps=40", "train.until=1024")
    again = resume_training(tmp_path / "broken", ["train.until=4096"])
    assert without_time(rows_of(tmp_path / "broken")) == without_time(whole)
    assert again["weights"] == verdict["weights"]


@pytest.mark.long
def test_remote_runners_change_stage_together(session, tmp_path, cores):
    _, remote = tiny_run(tmp_path / "remote", STAGES, "cluster.num_env_runners=2", "train.until=2560")
    assert [row["stage"] for row in remote] == [0, 0, 1, 1, 2]


def test_networks_must_fit_all_stages():
    with pytest.raises(ConfigError, match=r"curriculum\.0\.scenario: expected one with view_size.* got 1v1"):
        stages_of(compose(["scenario.game.view_size=3", "experiment=none", "curriculum=[{scenario:1v1,steps:9}]"]))


def test_loads_all_players_before_first_stage():
    stages = stages_of(compose(["curriculum=[{seats:{blue_0:{random:1,hunter:1}},steps:9}]"]))
    assert [player.name for player in seated_players(stages)["blue_0"]] == ["random", "hunter", "blue-rookie"]


def test_run_reads_each_player_once_before_its_first_step(tmp_path, monkeypatch):
    seen, read = [], catalogue.read_network
    monkeypatch.setattr(catalogue, "read_network", lambda source, card: seen.append(source.name) or read(source, card))
    tiny_run(tmp_path / "run", "curriculum=[{seats:{blue_0:blue-adept},steps:512}]", "train.until=1024")
    assert seen == ["blue-adept", "blue-rookie"]


def test_diverged_weights_end_run_without_checkpoint(tmp_path, capsys):
    with pytest.raises(DivergedError, match=r"^step [0-9,]+: weight net\.\S+ of red_0 is not finite: the run diverged"):
        tiny_run(tmp_path / "run", "train.lr=1e38", "train.checkpoint_every=1")
    assert "is not finite" in (tmp_path / "run" / "run.log").read_text()
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "is not finite" in line]
    assert warning.startswith("multigrid-rl: step ")
    for player in (tmp_path / "run").glob("checkpoints/step_*/players/red_0"):
        read_network(player, read_card(player))  # refuses what is not finite
    assert not (tmp_path / "run" / "verdict.json").exists()


def test_diverged_weights_hint_is_smaller_step_size(tmp_path):
    with pytest.raises(DivergedError) as caught, resume_hint(write_checkpoint(tmp_path, 2048)):
        raise DivergedError("step 4,096: weight net.table of red_0 is not finite")
    said = "what was reported stays, and a checkpoint at step 2,048; it would diverge again: lower the step size, "
    assert caught.value.hint == f"{said}train.lr, in a new run"


def test_broken_weights_are_never_saved_or_resumed(tmp_path, monkeypatch):
    count_steps, calls = FlatAdam.count_steps, []

    def break_at_the_end(self, count):
        calls.append(None)
        if len(calls) == 4:  # the fourth iteration, at which a checkpoint is due
            self.param_groups[0]["params"][0].data[5] = float("nan")
        count_steps(self, count)

    monkeypatch.setattr(FlatAdam, "count_steps", break_at_the_end)
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"step 2,048: weight net\.\S+ of red_0 is not finite.* is step_000001024$"):
        tiny_run(run, "train.checkpoint_every=1024")
    assert [path.name for path in (run / "checkpoints").glob("step_*")] == ["step_000001024"]
    # One that an earlier version wrote.
    calls.clear()
    monkeypatch.setattr(loop, "not_finite", lambda weights: None)
    other = tmp_path / "other"
    tiny_run(other, "train.until=2048")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"step_000002048: expected .*, got weight net\.\S+ of red_0 is not finite"):
        resume_training(other, ["train.until=4096"])
