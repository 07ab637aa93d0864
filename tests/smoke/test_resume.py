"""A run that was interrupted and goes on is the unbroken run, number for number."""

import fcntl
import json
import pickle
import shutil

import pytest
import torch

from bundles import unchanged
from composing import refusal
from multigrid_rl.cli.drive import resume_hint
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.runs.checkpoints import read_state, seal, write_state
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from run_folders import killed
from tiny_runs import TINY, rows_of, running, tiny_run, without_time

pytestmark = pytest.mark.usefixtures("cores")

HALF = 2048
MIXED = "scenario.seats.blue_0=blue-rookie:3,random:1,key-runner:1"
KINDS = {
    "1v1": ["scenario=1v1", "train.entropy_decay=3000", "train.lr_final=1e-4"],
    "mixed opponents": ["scenario=1v1", MIXED],
    "memory": ["scenario=single-obstacle", "model=gru", "model.hidden=[16]"],
    "central critics": ["scenario=coop", "scheme=ctde"],
    "an env runner": ["scenario=1v1", "cluster.num_env_runners=1"],
    "env runners": ["scenario=1v1", "cluster.num_env_runners=2"],
}


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that Ctrl-C ended after 2048 of 4096 steps."""
    path = tmp_path_factory.mktemp("half") / "run"
    tiny_run(path, "train.until=2048", "train.checkpoint_every=512")
    return path


@pytest.fixture
def copy(half, tmp_path):
    return shutil.copytree(half, tmp_path / "run")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if "runner" in kind else []) for kind in KINDS]
)
def test_resumed_run_equals_unbroken_run(tmp_path, kind):
    # Killed after its last checkpoint: the rows that followed it are played once more, and kept aside.
    whole_verdict, whole = tiny_run(tmp_path / "whole", *KINDS[kind], "train.checkpoint_every=1024")
    broken = killed(tmp_path / "whole", tmp_path / "broken", "step_000004096", "step_000003072")
    verdict = resume_training(broken, [])
    assert without_time(rows_of(broken)) == without_time(whole)
    assert verdict["weights"] == whole_verdict["weights"]
    aside = [json.loads(line) for line in (broken / "metrics.after-2048.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in aside] == [row["env_steps"] for row in whole if row["env_steps"] > HALF]
    for key in ("held", "gates", "env_steps_to_reached"):
        mine, theirs = (json.loads(json.dumps(v[key])) for v in (verdict, whole_verdict))
        assert _without_seconds(mine) == _without_seconds(theirs)


@pytest.mark.parametrize("kind", ["1v1", "memory"])
def test_checkpoints_by_the_clock_change_no_number(tmp_path, monkeypatch, kind):
    rare, plain = tiny_run(tmp_path / "rare", *KINDS[kind], "train.checkpoint_every=4096")
    monkeypatch.setattr("multigrid_rl.training.loop.CHECKPOINT_S", 0.0)
    often, rows = tiny_run(tmp_path / "often", *KINDS[kind], "train.checkpoint_every=4096")
    assert without_time(rows) == without_time(plain)
    assert often["weights"] == rare["weights"]
    assert [path.name for path in (tmp_path / "rare" / "checkpoints").glob("step_*")] == ["step_000004096"]
    assert len(list((tmp_path / "often" / "checkpoints").glob("step_*"))) >= 3


def test_run_killed_before_its_first_checkpoint_starts_again_in_its_folder(half, copy, capsys):
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints" / "unfinished").mkdir(parents=True)
    (copy / "verdict.json").unlink()
    verdict = resume_training(copy, [])
    assert without_time(rows_of(copy)) == without_time(rows_of(half))
    assert verdict["weights"] == json.loads((half / "verdict.json").read_text())["weights"]
    assert "resumed:  from step 0" in capsys.readouterr().out
    assert len((copy / "metrics.after-0.jsonl").read_text().splitlines()) == len(rows_of(half))
    (entry,) = json.loads((copy / "provenance.json").read_text())["resumed"]
    assert entry["from_env_steps"] == 0


@pytest.mark.parametrize(
    ("left", "wanted"),
    [
        (("checkpoints", "metrics.jsonl"), "and a checkpoint at step 2,048; go on: multigrid-rl train --resume {}"),
        (("metrics.jsonl",), "but there is no checkpoint yet; start again: multigrid-rl train --resume {}"),
        ((), None),
    ],
)
def test_broken_run_says_how_to_resume_it(copy, left, wanted):
    for name in {"checkpoints", "metrics.jsonl"} - set(left):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.write_text("")
    with pytest.raises(RunError) as caught, resume_hint(copy):
        raise RunError("Ray: its raylet was lost")
    assert caught.value.hint == (f"what was reported stays, {wanted.format(copy)}" if wanted else "")


def test_training_makes_no_folder_in_the_temporary_one(monkeypatch, tmp_path):
    """A killed process would leave it behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    algorithm = algorithm_config(compose(TINY)).build_algo()
    assert list(tmp_path.iterdir()) == []
    algorithm.stop()


def _without_seconds(value):
    if isinstance(value, dict):
        return {key: _without_seconds(inner) for key, inner in value.items() if key != "seconds"}
    return [_without_seconds(inner) for inner in value] if isinstance(value, list) else value


def test_run_that_can_only_be_read_is_not_resumed(copy, monkeypatch, capsys):
    monkeypatch.setattr("multigrid_rl.cli.train.os.access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"^--resume: expected a folder that can be written, got .* only be read$"):
        resume_training(copy, ["train.until=3072"])
    assert capsys.readouterr().out == ""


def test_run_continues_beyond_budget_and_logs_it(copy):
    verdict = resume_training(copy, ["train.until=3072"])
    rows = rows_of(copy)
    assert verdict["env_steps"] == rows[-1]["env_steps"] == 3072
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert not list(copy.glob("metrics.after-*"))  # nothing had to be played twice
    assert json.loads((copy / "verdict.2048.json").read_text())["env_steps"] == HALF
    (entry,) = json.loads((copy / "provenance.json").read_text())["resumed"]
    assert entry["from_env_steps"] == HALF
    assert "until: 3072" in (copy / "config.yaml").read_text()


def test_run_killed_before_verdict_gets_it_without_steps(copy):
    missing, rows = json.loads((copy / "verdict.json").read_text()), rows_of(copy)
    (copy / "verdict.json").unlink()
    resume_training(copy, [])
    assert json.loads((copy / "verdict.json").read_text()) == missing
    assert rows_of(copy) == rows
    assert "more than the 2048 steps" in refusal(resume_training, copy, [])


@pytest.mark.parametrize("kept", [True, False])
def test_run_killed_after_holding_gates_has_held_them(tmp_path, kept):
    run = tmp_path / "run"
    easy = "scenario.gates=[{metric:episode_len_mean,at_most:1000,window:512}]"
    tiny_run(run, easy, "scenario.game.max_steps=10", "train.num_envs=128", "train.until=16384")
    missing, rows = json.loads((run / "verdict.json").read_text()), rows_of(run)
    assert missing["ended"] == "held"
    (run / "verdict.json").unlink()
    resume_training(run, [] if kept else ["train.stop_when_held=false"])
    found = json.loads((run / "verdict.json").read_text())
    if kept:
        assert (found, rows_of(run)) == (missing, rows)
    else:
        assert (found["ended"], found["env_steps"]) == ("until", 16384)


def test_edited_configuration_is_refused(copy):
    file, provenance = copy / "config.yaml", copy / "provenance.json"
    wrote = file.read_text()
    file.write_text(wrote.replace("lr: 0.001", "lr: 0.003"))
    with pytest.raises(ConfigError, match=r"config.yaml: expected the file that the run wrote.*, got an edited one"):
        resume_training(copy, ["train.until=3072"])
    known = json.loads(provenance.read_text())
    del known["config_sha256"]  # a run of an earlier version
    provenance.write_text(json.dumps(known))
    assert resume_training(copy, ["train.until=2560"])["env_steps"] == 2560
    # What may be typed may be edited, too, and its own rewriting is not taken for an edit.
    file.write_text("# mine\n" + file.read_text().replace("until: 2560", "until: 3072"))
    assert resume_training(copy, [])["env_steps"] == 3072


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], ["--until: expected more than the 2048 steps", "got 2048"]),
        (["train.lr=1e-4"], ["train.lr=0.0001", "--resume: expected changes of train.until"]),
        (["seed=3"], ["seed=3", "--resume: expected"]),
        (["cluster.nodes=3"], ["cluster.nodes: expected", "num_env_runners", "got nodes"]),
        (["cluster=mars"], ["cluster: expected local, ray", "got mars"]),
        (["train.until=soon"], ["train.until: ", "got soon"]),
        (["until"], ["until", "key=value"]),
    ],
)
def test_rejects_changes_of_fixed_settings(copy, overrides, parts):
    with unchanged(copy):
        said = refusal(resume_training, copy, overrides)
    assert [part for part in parts if part not in said] == []


def test_rejects_folders_that_are_no_runs(tmp_path):
    assert "nowhere: expected a run folder, got none there" in refusal(resume_training, tmp_path / "nowhere", [])
    (tmp_path / "config.yaml").write_text("- 3\n")
    assert "config.yaml: expected a mapping" in refusal(resume_training, tmp_path, [])


def test_rejects_changed_opponents_and_changes_nothing(copy):
    path = copy / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["opponents"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(provenance))
    with unchanged(copy), pytest.raises(ConfigError, match=r"blue_0=blue-rookie: sha256: expected 0000"):
        resume_training(copy, ["train.until=3072"])


def test_rejects_second_writer(copy):
    with (copy / "run.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process is writing to it" in refusal(resume_training, copy, ["train.until=3072"])
    assert (copy / "verdict.json").exists()


def test_damaged_checkpoint_falls_back_to_previous(copy, capfd):
    newest = copy / "checkpoints" / "step_000002048"
    state = newest / "run.pkl"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    verdict = resume_training(copy, ["train.until=3072"])
    output = capfd.readouterr().err
    assert "step_000002048 is damaged and passed over" in output
    assert "run.pkl" in output
    assert "going on from step_000001536" in output
    assert [row["env_steps"] for row in rows_of(copy)] == list(range(512, 3073, 512))
    assert verdict["env_steps"] == 3072
    assert "step_000002048 is damaged" not in (copy / "verdict.json").read_text()


def test_no_row_is_appended_to_half_of_one(copy):
    file = copy / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-100])
    resume_training(copy, ["train.until=3072"])
    assert [row["env_steps"] for row in rows_of(copy)] == [512, 1024, 1536, 2560, 3072]


def test_nothing_changes_without_sound_checkpoint(copy):
    for path in (copy / "checkpoints").glob("step_*"):
        (path / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"--resume: expected a run with a whole checkpoint, got .*manifest.json"):
        resume_training(copy, ["train.until=3072"])
    assert len(rows_of(copy)) == 4
    assert (copy / "verdict.json").exists()


@pytest.mark.long
def test_other_env_runners_play_new_games_with_same_weights(copy, session, capfd):
    resume_training(copy, ["train.until=3072", "cluster.num_env_runners=2"])
    assert "games start afresh" in capfd.readouterr().err
    rows = rows_of(copy)
    assert [row["env_runners"] for row in rows] == [1, 1, 1, 1, 2, 2]
    # And back again: games are taken up where they stand once the number stays.
    resume_training(copy, ["train.until=3584", "cluster.num_env_runners=0"])
    capfd.readouterr()
    resume_training(copy, ["train.until=4096"])
    assert "afresh" not in capfd.readouterr().err
    assert [row["env_steps"] for row in rows_of(copy)] == list(range(512, 4097, 512))


@pytest.mark.long
def test_env_runner_losses_are_counted_across_resumes(copy, session):
    state = copy / "checkpoints" / "step_000002048" / "run.pkl"
    saved = pickle.loads(state.read_bytes())
    (copy / "checkpoints" / "step_000002048" / "manifest.json").unlink()
    write_state(state.parent, {**saved, "env_runner_restarts": 7})
    size = (copy / "metrics.jsonl").stat().st_size
    seal(state.parent, {"env_steps": 2048, "stage": 0, "gate_margin": None, "metrics_bytes": size})
    resume_training(copy, ["train.until=2560"])
    resume_training(copy, ["train.until=3072", "cluster.num_env_runners=1"])
    assert [row["env_runner_restarts"] for row in rows_of(copy)][-2:] == [7, 7]


def test_configuration_values_override_checkpoint(half, caplog):
    # A search goes on from another trial's checkpoint with values of its own (ray issue 62173: they were overwritten).
    config = compose([*TINY, "train.lr=7e-4", "train.lr_final=7e-4", "train.entropy_coef=0.5", "train.clip=0.33"])
    with running(algorithm_config(config)) as algorithm:
        start = half / "checkpoints" / "step_000002048"
        algorithm.read(start / "rllib")
        algorithm.run.set_state(read_state(start))
        assert "games start afresh" not in caplog.text
        learner = algorithm.learner_group._learner
        assert learner.get_optimizer("red_0").param_groups[0]["lr"] == pytest.approx(7e-4)
        update = learner.updater
        assert update._entropy_coef == {"red_0": pytest.approx(0.5 * (1 - HALF / config.train.entropy_decay))}
        assert update._clip == {"red_0": 0.33}
        moments = [state["exp_avg"].abs().sum() for state in learner.get_optimizer("red_0").state.values()]
        assert moments
        assert all(torch.isfinite(moment) and moment > 0 for moment in moments)
        assert algorithm.run.env_steps == HALF
