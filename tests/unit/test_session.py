"""What happens around Ray's start and end, without Ray."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import ray
from ray._private import services

from commands import call, complaint
from multigrid_rl.config.compose import compose
from multigrid_rl.rllib import ray_start
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError

#: Ray's own words when its node does not come up; it raises a bare Exception.
SAID = "The current node timed out during startup."


@pytest.fixture(scope="module", autouse=True)
def _no_session():
    """End the session that smoke tests of the same process may have left for one another."""
    ray.shutdown()


def refuse(**settings):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does: its own handler
    raise Exception(SAID)


def test_reports_ray_refusal_and_restores_signal_handler(monkeypatch):
    monkeypatch.setattr(ray, "init", refuse)
    before, popen = signal.getsignal(signal.SIGTERM), services.ConsolePopen
    with (
        pytest.raises(RunError, match=f"^Ray: expected a session on this machine, got {SAID}.*TMPDIR=/"),
        ray_session(),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) == before
    assert services.ConsolePopen is popen
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^cluster\.address: .*got {address}: The current node"):
            ray_session(compose([f"address={address}"])).__enter__()


@pytest.mark.parametrize(
    ("address", "known", "got"),
    [
        ("127.0.0.1:1", "", "127.0.0.1:1: nothing answers there: Connection refused"),
        ("ray://127.0.0.1:1", "", "ray://127.0.0.1:1: nothing answers there: Connection refused"),
        ("auto", "127.0.0.1:1", "auto: 127.0.0.1:1: nothing answers there: Connection refused"),
    ],
)
def test_dead_cluster_is_refused_before_ray_tries(monkeypatch, address, known, got):
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    monkeypatch.setattr(services, "get_ray_address_from_environment", lambda *_: known)
    wanted = "cluster.address: expected a cluster that runs (ray start --head), got "
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted + got)}"):
        ray_session(compose([f"address={address}"])).__enter__()


def test_refused_ray_start_leaves_no_run_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "init", refuse)
    result = call("train", "cluster.num_env_runners=1", f"run_dir={tmp_path / 'run'}")
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith(f"multigrid-rl: Ray: expected a session on this machine, got {SAID}")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def raylet():
    """A process in a session of its own that does nothing."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("fails", [False, True])
def test_scratch_files_are_removed_but_failed_session_logs_kept(monkeypatch, tmp_path, raylet, fails):
    ours, another = tmp_path / "session_1", tmp_path / "session_2"
    for folder in (ours, another):
        (folder / "logs").mkdir(parents=True)

    def init(**_):
        services.ConsolePopen(["/ray/raylet"], preexec_fn=lambda: None)
        return SimpleNamespace(address_info={"session_dir": str(ours)})

    monkeypatch.setattr(services, "ConsolePopen", lambda *_, **__: raylet)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(RunError) if fails else nullcontext(), ray_session():
        if fails:
            raise RunError("lost")
    assert ours.exists() == fails
    assert another.exists()
    assert raylet.wait(60) == -signal.SIGKILL  # and with it all that it has started


def test_keeps_cluster_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "init", lambda **_: SimpleNamespace(address_info={"session_dir": str(tmp_path)}))
    with (
        socket.create_server(("localhost", 0)) as server,
        ray_session(compose([f"address=localhost:{server.getsockname()[1]}"])),
    ):
        pass
    assert tmp_path.exists()


@pytest.fixture
def no_token(monkeypatch):
    """No token in the environment, and none after the test."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_token")
def test_gives_ray_token_if_home_is_unwritable(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    ray_start._ensure_token()
    assert "RAY_AUTH_TOKEN" not in os.environ  # Ray keeps one itself
    monkeypatch.setenv("HOME", "/dev/null/nowhere")
    ray_start._ensure_token()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    ray_start._ensure_token()
    assert os.environ["RAY_AUTH_TOKEN"] == token


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the kernel tells of a lost raylet")
@pytest.mark.parametrize("lost", [False, True])
def test_lost_raylet_ends_process_with_status_3(monkeypatch, caplog, raylet, lost):
    statuses, ended = [], threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: (statuses.append(status), ended.set()))
    with ray_start._watched(raylet.pid):
        if lost:
            raylet.kill()
            assert ended.wait(60)
    assert statuses == ([3] if lost else [])
    assert ("Ray: its raylet on this machine was lost" in caplog.text) == lost


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (["cluster.gpus_per_learner=1"], "expected 0, or a cluster.address, got 1 for 1 learner(s): torch sees no GPU"),
        (
            ["cluster.num_learners=2", "cluster.gpus_per_learner=0.5"],
            "got 0.5 for 2 learner(s): torch sees no GPU here",
        ),
    ],
)
def test_rejects_learners_on_missing_gpus_before_ray_starts(monkeypatch, tmp_path, cluster, message):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray starts"))
    assert message in complaint(call("train", *cluster, f"run_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()
