"""Whatever is lost, killed, closed or interrupted: nothing reported is lost, and the run goes on or says why not."""

import itertools
import json
import os
import pty
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from bundles import unchanged
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.rllib.algorithm import built_algorithm
from multigrid_rl.runs.checkpoints import check, newest_good
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.training.loop import train
from multigrid_rl.training.stages import stages_of
from processes import PATIENCE_S, SMALL, clear_lines, rows_of
from tiny_runs import without_time

pytestmark = [pytest.mark.long, pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")]
RUNNER, LEARNER = "ray::BatchedEnvRunner", "ray::_WrappedExecutable"

#: A training reward that does something on a remote env runner only: the driver tries it, too, before it starts.
ON_A_RUNNER = (
    "import os\nfrom pathlib import Path\ndef reward(events, reward):\n"
    f"    if {RUNNER!r} in Path('/proc/self/cmdline').read_text():\n"
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_driver_killed_while_writing_resumes_without_gaps(start, tmp_path, seed):
    run, rng = tmp_path / "run", random.Random(seed)
    # A checkpoint after every iteration: most of the time it writes one.
    often = [f"run_dir={run}", "train.checkpoint_every=512", "train.keep_checkpoints=2"]
    first = start(*often, "--until", "1e9")
    wanted = rng.randint(3, 12)
    first.until(lambda: len(rows_of(run)) > wanted and (run / "checkpoints" / "unfinished").exists(), "a checkpoint")
    first.kill()
    reported = rows_of(run)
    kept = newest_good(run)
    assert kept.env_steps >= reported[-1]["env_steps"] - 2 * 512
    second = start("--resume", str(run), "--until", str(kept.env_steps + 4 * 512))
    assert second.process.wait(timeout=240) == 0, second.end()
    assert clear_lines(second.end()) == []
    rows = rows_of(run)
    assert [row["env_steps"] for row in rows] == list(range(512, kept.env_steps + 4 * 512 + 1, 512))
    episodes = {row["env_steps"]: row["episodes"] for row in rows}
    assert all(
        episodes[row["env_steps"]] == row["episodes"] for row in reported
    )  # nothing reported was lost or changed
    assert not (run / "checkpoints" / "unfinished").exists()
    assert len(list((run / "checkpoints").glob("step_*"))) <= 3
    assert first.gone()  # Ray takes its time to notice that its driver is dead


def test_killed_env_runner_is_replaced_and_signal_ends_run(start, tmp_path):
    run = tmp_path / "run"
    training = start(f"run_dir={run}", "cluster.num_env_runners=2", "--until", "1e9")
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    victims = training.ours(RUNNER)
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    training.until(lambda: rows_of(run)[-1]["env_runners"] == 1, "a row of one env runner")
    training.until(lambda: rows_of(run)[-1]["env_runners"] == 2, "a row of two env runners again")
    os.killpg(training.process.pid, signal.SIGTERM)  # as timeout does: to Ray's processes, too
    output = training.end()
    assert training.process.returncode == 130
    assert "interrupted: writing a checkpoint" in output
    assert any(line.startswith("saved:") for line in output.splitlines()[-4:])
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["ended"] == "interrupted"
    player = run / verdict["checkpoint"] / "players" / "red_0"
    assert read_network(player, read_card(player)) is not None
    lost, back = clear_lines(output)[:2]
    assert "was lost" in lost
    assert "a new one takes its place" in lost
    assert "is back, with new games" in back
    assert "is back" in (run / "run.log").read_text()
    rows = rows_of(run)
    assert rows[-1]["env_runner_restarts"] == 1
    steps = [row["env_steps"] for row in rows]
    assert [after - before for before, after in pairwise(steps)] == [256 * row["env_runners"] for row in rows[1:]]
    assert training.gone()


def test_repeatedly_lost_runner_ends_run_with_one_line(start, tmp_path):
    # A player that takes its process with it is what running out of memory looks like from outside.
    (tmp_path / "deadly.py").write_text(f"{ON_A_RUNNER}        os._exit(1)\n    return reward\n")
    before = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    sys.path.insert(0, str(tmp_path))
    try:
        training = start(
            f"run_dir={tmp_path / 'run'}", "train.shaping=deadly:reward", "cluster.num_env_runners=1",
            "cluster.max_consecutive_failures=2", before=before,
        )  # fmt: skip
        lines = clear_lines(training.end())
    finally:
        sys.path.remove(str(tmp_path))
    assert training.process.returncode == 3
    assert "env runner 1 was lost 2 times in a row" in lines[-1]
    assert "--resume" not in lines[-1]  # there is nothing to go on from
    assert training.gone()


def test_error_inside_game_ends_run_with_reason(start, tmp_path):
    (tmp_path / "broken.py").write_text(f"{ON_A_RUNNER}        raise KeyError('no such event')\n    return reward\n")
    sys.path.insert(0, str(tmp_path))
    try:
        training = start(
            f"run_dir={tmp_path / 'run'}", "train.shaping=broken:reward", "cluster.num_env_runners=1",
            before=f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        )  # fmt: skip
        lines = clear_lines(training.end())
    finally:
        sys.path.remove(str(tmp_path))
    assert training.process.returncode == 3
    assert "env runner 1 failed while it played: KeyError" in lines[0]
    assert "no such event" in lines[0]


def test_killed_learner_stops_run_resumably(start, tmp_path):
    run = tmp_path / "run"
    remote = ["cluster.num_learners=2", "train.checkpoint_every=512"]
    training = start(f"run_dir={run}", *remote, "--until", "1e9")
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    os.kill(training.ours(LEARNER)[0], signal.SIGKILL)
    lines = clear_lines(training.end())
    assert training.process.returncode == 3
    assert "a learner process was lost" in lines[0]
    assert "--resume" in lines[-1]
    assert training.gone()
    steps = newest_good(run).env_steps
    again = start("--resume", str(run), "cluster.num_learners=0", "--until", str(steps + 1024))
    assert again.process.wait(timeout=240) == 0, again.end()
    assert [row["env_steps"] for row in rows_of(run)] == list(range(512, steps + 1024 + 1, 512))


def test_full_disk_stops_run_and_keeps_last_checkpoint(start, tmp_path):
    run = tmp_path / "run"
    big = ["train.checkpoint_every=512", "model.hidden=[256,256]", "train.until=1e9"]
    training = start(f"run_dir={run}", *big)
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    # No file of the driver's may grow beyond this: the kernel refuses a write as on a full disk, but for its number.
    resource.prlimit(training.process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
    lines = clear_lines(training.end())
    assert training.process.returncode == 3
    assert "no checkpoint at step" in lines[0]
    assert "those before it are whole" in lines[0]
    assert "File too large" in lines[0]
    assert lines[-1].endswith(
        f"a checkpoint at step {newest_good(run).env_steps:,}; go on: multigrid-rl train --resume {run}"
    )
    good, reported = newest_good(run).env_steps, rows_of(run)
    assert good == reported[-1]["env_steps"] - 512
    again = start("--resume", str(run), "--until", str(good + 2048))
    assert again.process.wait(timeout=240) == 0, again.end()
    rows = rows_of(run)
    assert [row["env_steps"] for row in rows] == list(range(512, good + 2048 + 1, 512))
    assert [row["episodes"] for row in rows[: len(reported)]] == [row["episodes"] for row in reported]


def test_removed_opponent_only_prevents_resume(start, tmp_path):
    run, players = tmp_path / "run", tmp_path / "checkpoints"
    shutil.copytree(data_root() / "checkpoints", players)
    training = start(
        f"run_dir={run}", f"checkpoints={players}", "cluster.num_env_runners=1", "train.checkpoint_every=512",
        "--until", "1e9",
    )  # fmt: skip
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    shutil.rmtree(players / "blue-rookie")
    os.kill(training.ours(RUNNER)[0], signal.SIGKILL)
    training.until(lambda: rows_of(run)[-1]["env_runner_restarts"] == 1, "the loss")
    played = len(rows_of(run))
    training.until(lambda: len(rows_of(run)) > played + 2, "rows of the runner that took its place")
    training.interrupt()
    assert training.process.returncode == 130
    with unchanged(run):
        again = start("--resume", str(run), "--until", "1e9")
        (line,) = clear_lines(again.end())
        assert again.process.returncode == 2
        assert "scenario.seats.blue_0=blue-rookie" in line
    assert check(newest_good(run).path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_resumes_exactly_after_signal_to_group(start, tmp_path, number):
    run, whole = tmp_path / "run", tmp_path / "whole"
    training = start(f"run_dir={run}", "--until", "1e9")
    training.until(lambda: len(rows_of(run)) > 3, "the first rows")
    # timeout signals its child, and the group that the child is in; a second Ctrl-C would not wait for a checkpoint
    for _ in range(1 if number == signal.SIGINT else 2):
        os.killpg(training.process.pid, number)
    output = training.end()
    assert training.process.returncode == 130, output
    assert "Traceback" not in output
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["ended"] == "interrupted"
    assert any(line.startswith("saved:") for line in output.splitlines()[-4:])
    assert training.gone()
    until = str(verdict["env_steps"] + 2048)
    for command in (["--resume", str(run)], [f"run_dir={whole}"]):
        again = start(*command, "--until", until)
        assert "NOT HELD" in again.end()
        assert again.process.returncode == 0
    assert without_time(rows_of(run)) == without_time(rows_of(whole))
    ends = [json.loads((path / "verdict.json").read_text()) for path in (run, whole)]
    assert ends[0]["weights"] == ends[1]["weights"]
    assert ends[0]["gates"] == ends[1]["gates"]


def test_closed_terminal_leaves_checkpoint(tmp_path):
    run = tmp_path / "run"
    number, terminal = pty.fork()
    if number == 0:
        command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={run}", "--until", "1e9"]
        os.execv(sys.executable, command)
    deadline = time.monotonic() + 240
    while len(rows_of(run)) < 4:
        assert time.monotonic() < deadline, "no iteration finished in time"
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 10_000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 130
    assert json.loads((run / "verdict.json").read_text())["ended"] == "interrupted"


def test_broken_pipe_leaves_checkpoint_and_clean_stderr(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={run}", "--until", "1e9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()  # train ... | head -1
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 130
    assert json.loads((run / "verdict.json").read_text())["ended"] == "interrupted"


STORE = {"object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster():
    """A head without CPUs to play on; nodes are added by the test."""
    one = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE})
    yield one
    ray.shutdown()
    one.shutdown()


class Story:
    """What happens to the nodes while the run goes on, by its rows."""

    def __init__(self, cluster: Cluster, lost) -> None:
        self.cluster, self.lost = cluster, lost
        self.rows = []
        self.chapter = "both play"
        self.began = time.monotonic()

    def observe(self, row, keeper) -> None:
        assert time.monotonic() - self.began < PATIENCE_S, f"nothing came after {self.chapter}"
        self.rows.append(row)
        if self.chapter == "both play" and len(self.rows) == 4:
            self.cluster.remove_node(self.lost, allow_graceful=False)
            self.chapter = "one is lost"
        elif self.chapter == "one is lost" and row["env_runners"] == 1:
            self.cluster.add_node(num_cpus=1, **STORE)
            self.chapter = "another joins"
        elif self.chapter == "another joins" and row["env_runners"] == 2:
            self.chapter = "both play again"

    def over(self) -> bool:
        return self.chapter == "both play again"


def test_run_survives_lost_node_and_uses_new_one(cluster, tmp_path, caplog):
    nodes = [cluster.add_node(num_cpus=1, **STORE) for _ in range(2)]
    cluster.wait_for_nodes()
    config = compose([*SMALL, f"address={cluster.address}", "cluster.num_env_runners=2", "train.until=1e9"])
    folder = RunFolder(tmp_path / "run", config, env_factory(config).load())
    story = Story(cluster, nodes[1])
    try:
        with built_algorithm(config, stages_of(config)) as algorithm:
            verdict = train(algorithm, config, folder, story.observe, story.over)
    finally:
        folder.close()
    assert verdict["ended"] == "interrupted"
    assert verdict["env_runner_restarts"] >= 1  # a replacement may be sent to the lost node, too
    rows = rows_of(tmp_path / "run")
    assert rows == story.rows
    assert [count for count, _ in itertools.groupby(row["env_runners"] for row in rows)] == [2, 1, 2]
    for before, after in itertools.pairwise(rows):
        assert after["env_steps"] - before["env_steps"] == 256 * after["env_runners"]
    assert "was lost" in caplog.text
    assert "is back, with new games" in caplog.text
