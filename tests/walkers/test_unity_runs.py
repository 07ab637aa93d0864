"""A run with a Unity environment, played by a scripted peer: it trains, breaks off in one line, and goes on."""

import subprocess
import sys

import pytest

from commands import call, works
from multigrid_rl.cli.train import resume_training
from multigrid_rl.show.run_data import read_report
from multigrid_rl.types import RunError
from multigrid_rl.walkers.unity import UnityFactory
from tiny_runs import rows_of, tiny_run
from unity_walker import FakeWalker, free_port

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_broken_unity_run_keeps_checkpoint_and_resumes(tmp_path):
    port, run = free_port(), tmp_path / "run"
    FakeWalker(port, over=70).start()
    short = ["train.num_envs=10", "train.num_steps=20", "train.minibatch_size=100", "train.checkpoint_every=400"]
    with pytest.raises(RunError, match=rf"^Unity on port {port}: expected an answer, got its end: quit$"):
        tiny_run(run, "scenario=unity", f"port={port}", *short, "train.until=1000")
    rows = rows_of(run)
    assert [row["env_steps"] for row in rows] == [200, 400, 600]
    assert rows[-1]["learner/agent_0/grad_norm"] > 0
    assert rows[-1]["episodes"] > 0
    assert (run / "checkpoints" / "step_000000400").is_dir()
    FakeWalker(port, seed=1).start()
    verdict = resume_training(run, [])
    UnityFactory("any", 0, port).close()
    assert verdict["env_steps"] == 1000
    assert [row["env_steps"] for row in rows_of(run)] == [200, 400, 600, 800, 1000]
    report = read_report(run)
    assert (report.played, report.not_played.startswith("scenario.package: expected gymnasium")) == (None, True)
    assert call("report", run).exit_code == 0
    frozen = works("players", "freeze", run, "--seat", "agent_0", "--name", "mine", "--checkpoints", tmp_path / "own")
    assert "froze" in frozen.output.splitlines()[-1]


@pytest.mark.slow
def test_finished_process_ends_and_tells_unity_to_quit(tmp_path):
    walker = FakeWalker(port := free_port(), shape=(243,))
    walker.start()
    small = ["train.num_envs=10", "train.num_steps=20", "train.minibatch_size=100", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", "scenario=unity", f"port={port}", *small]
    process = subprocess.Popen([*command, "--until", "400"], stdout=subprocess.DEVNULL)
    try:
        walker.join(120)
        assert (walker.quit, walker.error) == (True, None)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
