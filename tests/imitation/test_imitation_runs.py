"""Runs that learn from recorded play: folder, gates, players and resume; what they may be asked for."""

import json
from functools import partial
from shutil import copytree

import numpy as np
import pytest
import torch

from commands import call, complaint, works
from composing import assert_keeps_sizes, refusal, refused_gate, unsaid, with_gate
from demonstrated import pusher
from multigrid_rl.cli.train import resume_training, run_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.evaluation.sets import check_ended
from multigrid_rl.imitation.imitation_trainers import DaggerTrainer
from multigrid_rl.runs.players import initial_weights
from multigrid_rl.runs.reader import read_run
from multigrid_rl.training.screen import recipe_of
from tiny_runs import rows_of, unknown_metrics, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

TINY = [
    "train.num_envs=8", "train.num_steps=128", "train.minibatch_size=128", "train.checkpoint_every=4096",
    "train.cloning.play_every=8192", "train.lr_final=null", "model.hidden=[32,32]",
]  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demos") / "runner"
    works("data", "record", "key-runner", "scenario=1v1", "--steps", 12_000, "-o", out)
    return out


def cloned(demo, path, *overrides):
    run_training(["scenario=1v1", "train=bc", f"data={demo}", f"run_dir={path}", *TINY, *overrides])
    return rows_of(path)


@pytest.fixture(scope="module")
def run(demo, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "clone"
    return path, cloned(demo, path, "train.until=16384")


def test_clone_learns_and_writes_run_folder(run, demo):
    path, rows = run
    assert unknown_metrics(rows) == []
    assert [row["env_steps"] for row in rows] == [1024 * k for k in range(1, 17)]
    losses = [row["learner/red_0/cloning_loss"] for row in rows]
    assert losses[0] > 1.6 > losses[-1] + 0.3
    played = [row for row in rows if "win/red_0" in row]
    assert [row["env_steps"] for row in played] == [8192, 16384]
    assert all(row["report_episodes"] == 100 and "learner/red_0/held_out_loss" in row for row in played)
    assert played[-1]["entropy/red_0"] < np.log(7)
    verdict = json.loads((path / "verdict.json").read_text())
    assert [gate["metric"].split("/")[0] for gate in verdict["gates"]] == ["episode_len_mean", "return_mean", "entropy"]
    data = json.loads((path / "provenance.json").read_text())["data"]
    assert (data["who"], data["folder"], data["rows"]) == ("key-runner", str(demo), 12_000)
    works("evaluate", path, "--episodes", 20, "-o", path.parent / "judged")


def test_resumed_clone_equals_unbroken_clone(run, demo, tmp_path):
    path = tmp_path / "short"
    cloned(demo, path, "train.until=5120")
    resume_training(path, ["train.until=16384"])
    assert without_time(rows_of(path)) == without_time(run[1])


def test_short_clone_is_played_once_at_its_end(demo, tmp_path, capsys):
    path = tmp_path / "brief"
    rows = cloned(demo, path, "train.until=2048")
    assert not any("episode_len_mean" in row for row in rows)
    verdict = json.loads((path / "verdict.json").read_text())
    assert verdict["last_report"]["report_episodes"] == 100
    output = capsys.readouterr().out
    assert f"result:   mean return red_0 {verdict['last_report']['return_mean/red_0']:,.2f}; " in output
    assert "learned:  2,048 recorded steps, " in output
    assert "played:   " not in output
    (path / "verdict.json").unlink()
    assert resume_training(path, [])["last_report"] == verdict["last_report"]


def test_run_ends_when_held_out_loss_stalls(demo, tmp_path):
    path = tmp_path / "still"
    verdict = run_training(
        ["scenario=1v1", "train=bc", f"data={demo}", f"run_dir={path}", *TINY, "train.lr=1e-30",
         "train.until=65536", "train.cloning.patience=2", "train.cloning.play_every=1024"]
    )  # fmt: skip
    assert (verdict["ended"], verdict["env_steps"]) == ("plateau", 3072)
    check_ended(read_run(path))  # by itself: `compare` takes it
    (path / "verdict.json").unlink()  # killed after its last checkpoint
    again = resume_training(path, [])
    assert (again["ended"], again["env_steps"]) == ("plateau", 3072)
    more = resume_training(path, ["train.until=5120"])  # who has seen the verdict wants more
    assert (more["ended"], more["env_steps"]) == ("until", 5120)


def test_rejects_resuming_with_other_data(run, demo, tmp_path):
    path, _ = run
    card = demo / "card.json"
    text = card.read_text()
    try:
        card.write_text(text.replace('"sha256": "', '"sha256": "0', 1))
        assert "data: " in refusal(resume_training, path, ["train.until=32768"])
    finally:
        card.write_text(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scenario=1v1", "scenario.seats.blue_0=nobody"], "scenario.seats.blue_0"),
        (["scenario=1v1", "train=bc", "data=nowhere"], "data: "),
        (["scenario=1v1", "train=bc", "data=short"], "train.cloning.held_out: expected a share that leaves some of 1"),
        (["env_id=Pendulum-v1", "train=gail", "data=pusher"], "train.adversarial: demonstrations: expected episodes"),
        (["scenario=1v1", "cluster.gpus_per_learner=1"], "cluster.gpus_per_learner: expected 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_the_head_of_a_run(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    pusher(tmp_path, 16, early=True)
    if "data=short" in words:
        works("data", "record", "key-runner", "scenario=1v1", "--steps", 10, "-o", "short")
    result = call("train", *words, "run_dir=mine")
    assert complaint(result).startswith(f"multigrid-rl: {said}")
    assert not result.stdout
    assert not (tmp_path / "mine").exists()


DAGGER = ["train=dagger", "expert=key-runner", "train.cloning.play_every=2048", "train.checkpoint_every=1024",
          "train.num_envs=16", "train.num_steps=32", "train.dagger.rounds=3", "model=gru", "model.hidden=[16]",
          "train.lr_final=null"]  # fmt: skip


@pytest.mark.slow
def test_expert_teaches_recurrent_network_and_run_resumes(tmp_path):
    run_training(["scenario=1v1", *DAGGER, f"run_dir={tmp_path / 'whole'}", "train.until=3072"])
    run_training(["scenario=1v1", *DAGGER, f"run_dir={tmp_path / 'short'}", "train.until=1536"])
    resume_training(tmp_path / "short", ["train.until=3072"])
    rows = rows_of(tmp_path / "whole")
    assert without_time(rows_of(tmp_path / "short")) == without_time(rows)
    assert [round(row["dagger/beta"], 3) for row in rows] == [1.0, 0.667, 0.333, 0.0, 0.0, 0.0]
    for name in ("dagger/labels", "env_steps"):
        assert [row[name] for row in rows] == [512 * k for k in range(1, 7)]
    assert unknown_metrics(rows) == []
    assert [row["env_steps"] for row in rows if "win/red_0" in row] == [2048]


def test_another_expert_is_refused_before_the_folder_changes(run, tmp_path):
    first, *_, last = sorted((run[0] / "checkpoints").glob("step_*/players/red_0"))
    expert, path = tmp_path / "expert", tmp_path / "run"
    copytree(last, expert)
    run_training(["scenario=1v1", *DAGGER, "model=mlp", f"expert={expert}", f"run_dir={path}", "train.until=1024"])
    copytree(first, expert, dirs_exist_ok=True)
    before = {file.name: file.read_bytes() for file in path.glob("*.json*")}
    assert refusal(resume_training, path, ["train.until=2048"]).startswith("expert: expected the player of sha256 ")
    assert {file.name: file.read_bytes() for file in path.glob("*.json*")} == before


def test_training_begins_with_clone(run, tmp_path):
    path, _ = run
    verdict = run_training(
        ["scenario=1v1", f"init={path}", f"run_dir={tmp_path / 'ppo'}", "train.num_envs=32", "train.num_steps=16",
         "train.minibatch_size=256", "train.until=1024", "train.warm_up=512", "model.hidden=[32,32]"]
    )  # fmt: skip
    first, second = rows_of(tmp_path / "ppo")
    assert first["entropy/red_0"] < 1.5 < np.log(7) - 0.3  # as the clone, not as a fresh network
    assert second["entropy/red_0"] == pytest.approx(first["entropy/red_0"], abs=0.3)
    assert verdict["ended"] == "until"
    result = call("train", "scenario=1v1", f"init={path}", "model.hidden=[8]", f"run_dir={tmp_path / 'x'}")
    assert "model.hidden: expected [8] of this run, got [32, 32]" in result.output + result.stderr
    result = call("train", "scenario=1v1", "init=hunter", f"run_dir={tmp_path / 'x'}")
    assert "init: hunter: expected a network that plays red_0, got hunter" in result.output + result.stderr
    result = call("train", "scenario=1v1", "init=runs/nowhere", f"run_dir={tmp_path / 'x'}")
    assert "init: player: expected a name, a folder that is there, or module:Class" in result.output + result.stderr
    result = call("train", "scenario=1v1", "init=nowhere:Player", f"run_dir={tmp_path / 'x'}")
    assert "init: player nowhere:Player: expected module:Class that can be imported" in result.output + result.stderr


def test_clone_with_the_usual_head_by_name_begins_a_run(tmp_path):
    tiny = ["env_id=Pendulum-v1", "train.num_envs=2", "train.num_steps=8", "train.minibatch_size=16", "train.until=16"]
    run_training([*tiny, "model.head=gaussian", f"run_dir={tmp_path / 'named'}"])
    for head, said in (("null", None), ("mixture", "model.head: expected mixture of this run, got gaussian")):
        overrides = [*tiny, f"model.head={head}", f"init={tmp_path / 'named'}"]
        initial = partial(initial_weights, compose(overrides), env_factory(compose(overrides)).specs)
        assert initial()[0] if said is None else said in refusal(initial)


BODY = "env_id=Pendulum-v1 experiment=none"
#: Overrides, then words of the message, or patterns of it.
REFUSED = [
    ("scenario=1v1 train=bc", "data: expected a folder that `multigrid-rl data record` wrote"),
    ("scenario=1v1 train=dagger", "expert: expected a player, its folder or a run"),
    ("scenario=1v1 train=bc data=x train.cloning.held_out=0 train.cloning.patience=3", "train.cloning.patience"),
    ("scenario=1v1 train=dagger expert=hunter train.cloning.held_out=0.2", "train.cloning.held_out: expected 0 with"),
    ("scenario=1v1 train=bc data=x model=gru", "model: expected "),
    ("scenario=1v1 train=bc data=x cluster.num_env_runners=1", "cluster.num_env_runners: expected "),
    (f"{BODY} train=gail", "data: expected a folder that `multigrid-rl data record` wrote, with train=gail"),
    ("scenario=1v1 train=airl data=x experiment=none", "scenario: expected one of Gymnasium with train=airl"),
    (f"{BODY} train=gail data=x model=gru", "a network without memory with train=gail"),
    (f"{BODY} train=gail data=x model.bound=tanh", "model.bound: expected clip with train=gail"),
    (f"{BODY} train=gail data=x model.head=diffusion", "model.head: expected"),
    (f"{BODY} train=gail data=x train.adversarial.hidden=[0]", "train.adversarial.hidden"),
    (f"{BODY} train=gail data=x train.adversarial.depth=1", "train.adversarial.depth"),
    (f"{BODY} train=gail data=x train.adversarial.payoff=d", "train.adversarial.payoff"),
    (f"{BODY} train=gail data=x train.adversarial.payoff=f", "train.adversarial.payoff"),
    (f"{BODY} train=airl data=x train.adversarial.payoff=softplus", "train.adversarial.payoff"),
    ("scenario=1v1 train=bc data=x train.gamma=0.9", "train.gamma: expected nothing with train=bc, which does not"),
    ("scenario=1v1 train=dagger expert=hunter train.bonus.all.step=-1", "train.bonus.all.step: expected nothing with"),
    (f"{BODY} train=gail data=x train.shaping=x:y", "train.shaping: expected nothing with train=gail"),
    ("env_id=Pendulum-v1 train=sac train.clip=0.3", "train.clip: expected nothing with train=sac, which does not"),
    ("env_id=Pendulum-v1 train=sac train.epochs=7", "train.epochs: expected nothing with train=sac, which does not"),
    ("env_id=CartPole-v1 train=vpg train.epochs=9", "train.epochs: expected nothing with train.pi_iters=4, which"),
    ("env_id=CartPole-v1 train.psi=future_return train.lam=.9", "train.lam: expected nothing with train.psi"),
    ("scenario=1v1 train.kl_target=.1", "train.kl_target: expected nothing with train.kl_coef=null, which"),
    ("scenario=1v1 train.lr=1e-3 train.lr_schedule=[[0,1e-3],[9,0]]", "train.lr: expected nothing with"),
    (f"{BODY} train=gail data=x train.adversarial.gradient_penalty=-1", "train.adversarial.gradient_penalty"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_rejects_override_in_one_line(row):
    assert unsaid(*row) == []


@pytest.mark.parametrize(
    ("overrides", "metric", "why"),
    [
        ("scenario=1v1", "dagger/beta", "reported by train=dagger, not by train=ppo"),
        ("scenario=1v1", "learner/*/discriminator_loss", "reported by train=gail, airl, dac, not by train=ppo"),
        ("scenario=1v1 train=bc data=x", "approx_kl/*", "not by train=bc"),
        ("scenario=1v1 train=dagger expert=hunter", "learner/*/held_out_loss", "no episodes are held out"),
        ("env_id=Pendulum-v1 train=bc data=x model.head=deterministic", "entropy/*", "has no probabilities"),
    ],
)
def test_gate_on_what_a_run_never_reports_is_refused(overrides, metric, why):
    refused_gate(overrides, metric, why)


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [
        ("scenario=1v1 train=dagger expert=hunter", "dagger/beta"),
        ("scenario=1v1 train=bc data=x", "learner/*/held_out_loss"),
        ("env_id=Pendulum-v1 train=bc data=x", "entropy/*"),
        ("env_id=Pendulum-v1 train=gail data=x", "learner/*/discriminator_accuracy"),
    ],
)
def test_gate_on_what_a_run_reports_is_taken(overrides, metric):
    assert with_gate(overrides, metric)


@pytest.mark.parametrize(
    ("train", "own", "needs"),
    [
        ("gail", {}, "data=x"),
        ("airl", {}, "data=x"),
        ("bc", {"num_envs": 32, "num_steps": 2048}, "data=x"),
        ("dagger", {"num_envs": 32, "num_steps": 128}, "expert=random"),
    ],
)
@pytest.mark.parametrize("scenario", ["walker2d", "humanoid", "lunarlander"])
def test_environment_keeps_sizes_network_and_discount_under_every_objective(scenario, train, own, needs):
    assert_keeps_sizes(scenario, train, own, needs)


def test_objective_takes_recipe_of_what_it_builds_on():
    config = compose(["scenario=halfcheetah", "train=airl", "data=x"])
    assert config == compose(["experiment=halfcheetah-gail", "train=airl", "data=x"])
    assert (config.train.adversarial.kind, config.train.adversarial.steps) == ("airl", 48)
    named = compose(["experiment=halfcheetah", "train=dagger", "expert=random"])
    assert named == compose(["scenario=halfcheetah", "train=dagger", "expert=random"])


def test_bonus_is_dropped_where_nothing_is_learned_from_rewards():
    config = compose(["scenario=1v1", "train=dagger", "expert=key-runner"])
    assert (config.train.bonus, config.experiment) == ({}, None)
    assert recipe_of(config) == "none, the defaults of train/dagger"
    said = "\n".join(DaggerTrainer().describe(config, "1 thread", "games"))
    assert "every 50,000 environment steps" in said
    assert "recorded" not in said
    assert compose(["scenario=coop", "train=bc", "data=x"]).scheme == "dtde"  # no critic is trained
