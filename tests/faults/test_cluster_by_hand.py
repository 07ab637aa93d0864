"""What the files below ``docker/`` run, run by hand on this machine: real Rays, one a container or node."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.search.search_folder import SearchFolder
from processes import marked, rows_of

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SMALL = [
    *("train.num_envs=32", "train.num_steps=16", "train.minibatch_size=256", "train.epochs=1", "model.hidden=[16,16]"),
]
SEARCH = [
    *("scenario=1v1", "search=three-stage", *SMALL, "search.report_every=1024", "search.max_concurrent=2"),
    *("search.broad.trials=2", "search.broad.until=1024", "search.refine.trials=1", "search.refine.until=1024"),
    *("search.confirm.candidates=1", "search.confirm.attempts=1", "search.confirm.seeds=2"),
    "search.confirm.until=1024",
]
# Of a node on a machine with others, tests of which need no more.
NODE = ["--object-store-memory=80000000"]


@pytest.fixture
def scratch():
    """A folder whose name is short, for Ray's sockets; every process whose environment names it is ours."""
    folder = Path(tempfile.mkdtemp(prefix="mg-", dir="/tmp"))
    yield folder
    left = ours(folder)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def environment(scratch) -> dict[str, str]:
    """Of all processes: the commands are found, and Ray notes its cluster where no other one does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    (scratch / "home").mkdir()
    return {
        **clean,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        # As a container's: Ray keeps its token there.
        "HOME": str(scratch / "home"),
        "RAY_TMPDIR": str(scratch),
        # As in the image: nothing waits for work that is played again elsewhere.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
    }


def ours(folder: Path) -> list[int]:
    """Processes that run with ``folder`` as Ray's."""
    return [pid for pid, _ in marked(f"RAY_TMPDIR={folder}\0")]


def commands(folder: Path) -> list[str]:
    """Command lines of our processes."""
    return [command[:200] for _, command in marked(f"RAY_TMPDIR={folder}\0")]


def wait_until(true, seconds: float, read_log) -> None:
    """Wait for ``true()``; ``read_log()`` says what happened instead."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, read_log()
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Containers:
    """The services of the compose file as processes of this machine: each runs its entrypoint in its environment."""

    def __init__(self, environment: dict[str, str], scratch: Path) -> None:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", "1", (ROOT / "docker" / "compose.yaml").read_text())
        self.file = yaml.safe_load(text)
        self.environment, self.scratch, self.port = environment, scratch, free_port()
        self.running: list[subprocess.Popen] = []

    def inside(self, service: str) -> dict[str, str]:
        """Variables of a service's container."""
        return {**self.environment, **self.file["services"][service]["environment"]}

    def up(self, service: str) -> None:
        """Start a service and wait until its Ray has come; one that ends is started again, as the file says."""
        definition = self.file["services"][service]
        command = [
            word.replace("6379", str(self.port)).replace("head:", "127.0.0.1:") for word in definition["entrypoint"]
        ]
        command = [*command[:-1], f"{command[-1]} {' '.join(NODE)}"] if command[0] == "sh" else [*command, *NODE]
        assert definition["restart"] == "unless-stopped"
        log = self.scratch / f"{service}-{len(self.running)}.log"

        def come() -> bool:
            if not self.running or self.running[-1].args is not command or self.running[-1].poll() is not None:
                with log.open("a") as output:
                    self.running.append(
                        subprocess.Popen(
                            command, env=self.inside(service), stdout=output, stderr=output, start_new_session=True
                        )
                    )
            return "Ray runtime started" in log.read_text()

        wait_until(come, 100, log.read_text)

    def down(self) -> None:
        """Tell all of them to go, and wait for it."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(timeout=60)


@pytest.mark.long
def test_compose_cluster_trains_on_all_nodes(scratch, environment, tmp_path):
    containers, run = Containers(environment, scratch), tmp_path / "run"
    try:
        containers.up("head")
        for _ in range(containers.file["services"]["worker"]["scale"]):
            containers.up("worker")
        command = [*containers.file["x-train"], f"run_dir={run}", *SMALL, "train.until=2048"]
        how = {"env": containers.inside("head"), "cwd": tmp_path, "capture_output": True, "text": True}
        done, searched = (
            subprocess.run(words, **how, timeout=240, check=False)
            for words in (
                [*command, "cluster.num_env_runners=2"],
                ["multigrid-rl", "search", "--address", "auto", *SEARCH, "--folder", str(tmp_path / "search")],
            )
        )
    finally:
        containers.down()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cluster:  3 node(s), 3 CPUs, 0 GPUs" in done.stdout, done.stdout
    assert "is shared by every node" in done.stdout
    assert re.search(r"arrived: +blue-rookie \(sha256 [0-9a-f]{16}\): checked on every node", done.stdout)
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["ended"], verdict["env_steps"]) == ("until", 2048)
    assert [row["env_steps"] for row in rows_of(run)] == [512, 1024, 1536, 2048]
    # A search has its trials on all of them, two at a time where each node has one CPU.
    assert searched.returncode == 0, searched.stdout + searched.stderr
    assert "cluster:  3 node(s), 3 CPUs, 0 GPUs" in searched.stdout
    outcomes = SearchFolder.reopen(tmp_path / "search").outcomes()
    assert [outcome.status for outcome in outcomes] == ["finished"] * 4
    # The candidate of the last stage has not held its gates with the first seed: it need not show the second.
    assert [outcome.spec.stage for outcome in outcomes] == ["broad", "broad", "refine", "confirm"]
    # What was told to go is gone, with all of its processes.
    wait_until(lambda: not ours(scratch), 20, lambda: f"left: {commands(scratch)}")


SRUN = """#!/usr/bin/env bash
# As Slurm's: options, then a command; here every node is this machine.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
[[ "$1 $2" == "show hostnames" ]] && printf '%s\\n' ${3//,/ }
"""


@pytest.mark.long
def test_slurm_script_runs_cluster_and_ends_on_warning(scratch, environment, tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = {
        "PATH": f"{tmp_path / 'bin'}:{environment['PATH']}",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "one,two",
        "SLURM_CPUS_PER_TASK": "1",
        "MULTIGRID_RL_BIN": str(BIN),
        "RAY_PORT": str(free_port()),
        "RAY_SCRATCH": str(scratch / "ray"),
    }
    run = tmp_path / "run"
    overrides = ["scenario=1v1", f"run_dir={run}", *SMALL, "train.until=100000000", "cluster.num_env_runners=1"]
    with (tmp_path / "job.log").open("w") as log:
        job = subprocess.Popen(
            ["bash", ROOT / "docker" / "slurm.sbatch", *overrides],
            env={**environment, **slurm},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def read_log() -> str:
        return (tmp_path / "job.log").read_text()

    def playing() -> bool:
        assert job.poll() is None, read_log()
        return len(rows_of(run)) >= 3

    wait_until(playing, 150, read_log)
    assert "cluster:  2 node(s), 2 CPUs, 0 GPUs" in read_log()
    job.send_signal(signal.SIGTERM)  # to the script alone, as Slurm does with B:TERM
    assert job.wait(timeout=90) == 130, read_log()
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["ended"] == "interrupted"
    assert verdict["env_steps"] == rows_of(run)[-1]["env_steps"]
    player = run / verdict["checkpoint"] / "players" / "red_0"
    assert read_network(player, read_card(player)) is not None
    wait_until(lambda: not ours(scratch), 20, lambda: f"left: {commands(scratch)}")
