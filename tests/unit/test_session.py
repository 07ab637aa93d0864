"""What happens around Ray's start and end, without Ray, and the pool of env runners on scripted actors."""

import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private import ray_constants, services
from ray.exceptions import RayActorError, RayTaskError
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from commands import call, complaint
from multigrid_rl.config.compose import compose
from multigrid_rl.config.schema import ClusterConfig
from multigrid_rl.rllib import env_runner_pool, ray_start
from multigrid_rl.rllib.env_runner import GENERATION, STAGE
from multigrid_rl.rllib.env_runner_pool import PAUSE_S, EnvRunnerPool
from multigrid_rl.rllib.session import ray_session
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from tools import house

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
            "got 0.5 for 2 learner(s): torch sees no GPU (",
        ),
    ],
)
def test_rejects_learners_on_missing_gpus_before_ray_starts(monkeypatch, tmp_path, cluster, message):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(ray, "init", lambda **settings: pytest.fail("Ray starts"))
    assert message in complaint(call("train", *cluster, f"run_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


def test_private_names_are_there_and_take_what_they_are_given():
    assert isinstance(ray_constants.ENABLE_RAY_CLUSTER, bool)
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    assert list(inspect.signature(services.get_ray_address_from_environment).parameters) == ["addr", "temp_dir"]
    assert callable(services.ConsolePopen)
    # Of a class that was made an actor Ray has methods take a keyword more.
    inspect.signature(PPO._setup_logdir).bind("self")
    inspect.signature(PPOTorchLearner._make_modules_ddp_if_necessary).bind("self")


def test_private_names_stand_in_one_file():
    modules = house.modules_of(Path(__file__).parents[2] / "multigrid_rl")
    users = {name for name, module in modules.items() if house.private_names_of_ray({name: module})}
    assert users == {"multigrid_rl.rllib.private"}


# --- the pool of remote env runners, on scripted actors


LATE = object()
LIMITS = ClusterConfig(sample_timeout_s=60.0)


class Ref:
    """What an actor answers, once it is read."""

    def __init__(self, answer: object) -> None:
        self.answer = answer


class Actor:
    """Plays rollouts that are numbered by its games; ``outcomes`` are what comes of the first ones instead.

    A pair says which Ray its node has; ``joined`` is what it answers to new opponents; ``others``: its games
    are not those of a state.
    """

    def __init__(self, *outcomes: object, joined: object = None) -> None:
        self.outcomes, self.calls, self.joined, self.others = list(outcomes), [], joined, False

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: self._call(name, *given))

    def _call(self, name, *given):
        self.calls.append((name, *given))
        if name == "begin":
            self.games, other = given[1], self.outcomes and isinstance(self.outcomes[0], tuple)
            return Ref({"ray": self.outcomes.pop(0)[1] if other else "2"})
        if name == "sample":
            return Ref(self.outcomes.pop(0) if self.outcomes else self.games)
        if name == "set_games":
            return Ref(not self.others)
        return Ref(self.joined if name == "set_opponents" else {"offset": self.games})

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


class World:
    """Ray and its clock, as far as the pool uses them."""

    def __init__(self) -> None:
        self.now, self.killed, self.spawned, self.outcomes = 0.0, [], [], []

    def put(self, value):
        return value

    def get(self, ref, timeout=None):
        if isinstance(ref.answer, Exception):
            raise ref.answer
        return ref.answer

    def wait(self, refs, num_returns, timeout):
        done = [ref for ref in refs if ref.answer is not LATE][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def kill(self, actor):
        self.killed.append(actor)

    def remote(self, **settings):
        return lambda cls: SimpleNamespace(remote=self._spawn)

    def _spawn(self, **given):
        self.spawned.append(Actor(*(self.outcomes.pop(0) if self.outcomes else ())))
        return self.spawned[-1]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(env_runner_pool, "ray", world)
    monkeypatch.setattr(env_runner_pool, "time", world)
    monkeypatch.setattr(env_runner_pool, "local_versions", lambda: {"ray": "2"})
    return world


def pool_of(*actors: Actor, stage: int = 0, most: int = 5) -> EnvRunnerPool:
    limits = LIMITS.model_copy(update={"max_consecutive_failures": most})
    pool = EnvRunnerPool(list(actors), SimpleNamespace(num_cpus_per_env_runner=1), limits, lambda *_: None)
    pool.begin("factory", stage)
    pool.set_weights("weights")
    return pool


@pytest.mark.parametrize("fate", [RayActorError(), LATE], ids=["dead", "silent"])
def test_lost_runner_is_replaced_with_its_games_and_weights(world, fate):
    lost, other = Actor(fate), Actor("b", "c")
    pool = pool_of(lost, other, stage=2)
    assert pool.sample() == ["b"]
    assert (pool.restarts, world.killed) == (1, [lost])
    assert pool.sample() == [2 * STAGE + GENERATION, "c"]
    (replacement,) = world.spawned
    assert replacement.called("set_state") == other.called("set_state")
    pool.stop()
    assert world.killed == [lost, replacement]  # RLlib ends its own


def test_ends_run_after_max_consecutive_failures(world):
    world.outcomes = [[RayActorError()], [RayActorError()]]
    pool = pool_of(Actor(RayActorError()), most=3)
    with pytest.raises(RunError, match=r"env runner 1 was lost 3 times in a row \(last: "):
        pool.sample()
    assert world.now == PAUSE_S  # before the second replacement, and not before the first


def test_replaces_runner_on_node_with_other_versions(world):
    pool = pool_of(Actor(("ray", "3")), Actor("a"))
    assert pool.restarts == 1
    assert pool.sample() == [GENERATION, "a"]
    with pytest.raises(RunError, match=r"lost \(its node: ray: expected 2, got 3\)"):
        pool_of(Actor(("ray", "3")), most=1)


def test_rollout_resets_failure_count(world):
    world.outcomes = [["well", RayActorError()]]
    pool = pool_of(Actor(RayActorError()), most=2)
    assert pool.sample() == ["well"]
    assert pool.sample() == [2 * GENERATION]


def test_error_inside_game_ends_run(world):
    broken = RayTaskError("sample", "Traceback\nValueError: no such door", ValueError("no such door"))
    with pytest.raises(RunError, match="env runner 2 failed while it played: ValueError: no such door"):
        pool_of(Actor("a"), Actor(broken)).sample()


def test_opponents_that_cannot_join_end_run(world):
    damaged = RayTaskError("join", "Traceback\nPlayerError: league/step_1: sha256", ValueError("no such player"))
    pool = pool_of(Actor("a"), Actor("b", joined=damaged))
    pool.set_opponents("factory", "newcomers")
    with pytest.raises(RunError, match="env runner 2 could not take its new opponents: ValueError: no such player"):
        pool.sample()


def test_runner_lost_while_opponents_join_is_replaced(world):
    pool = pool_of(Actor("a", joined=RayActorError()), Actor("b"))
    pool.set_opponents("factory", "newcomers")
    assert pool.sample() == ["b"]
    assert pool.restarts == 1


def test_resumed_runners_continue_games_and_new_ones_start_fresh(world):
    first, second = Actor(), Actor()
    state = {"offset": 3 * STAGE + 5 * GENERATION}
    pool = pool_of(first, second, stage=3)
    assert pool.set_state({"games": {1: state}, "env_runners": 2, "policy_updates": 7}, "factory")
    assert first.called("begin")[-1] == ("factory", state["offset"])
    assert first.called("set_games") == [(state, 3 * STAGE + 7 * GENERATION)]
    assert second.called("begin")[-1] == ("factory", 3 * STAGE + 7 * GENERATION)
    assert second.called("set_games") == []


def test_runners_whose_games_are_others_play_fresh_ones(world):
    actor = Actor()
    actor.others = True
    pool = pool_of(actor)
    assert not pool.set_state({"games": {1: {"offset": 0}}, "env_runners": 1, "policy_updates": 7}, "factory")
    assert pool._runners[0].generation == 7


def test_delayed_replacement_takes_up_games_later(world):
    world.outcomes = [[RayActorError()]]
    pool = pool_of(Actor(RayActorError()), Actor("a", "b"))
    assert [pool.sample(), pool.sample()] == [["a"], ["b"]]  # the first runner was lost twice by now
    pool.set_state({"games": {}, "env_runners": 2, "policy_updates": 3}, "factory")
    assert (world.now, len(world.spawned)) == (0.0, 1)  # no wait while another one can play
    world.now = PAUSE_S
    assert pool.sample() == [3 * GENERATION, 3 * GENERATION]
    assert world.spawned[1].called("begin") == [("factory", 3 * GENERATION)]


def test_late_runners_receive_whole_league(world):
    lost, other = Actor(RayActorError()), Actor("b", "c")
    pool = pool_of(lost, other)
    pool.set_opponents("factory with players", "newcomers")
    assert lost.called("set_opponents") == other.called("set_opponents") == [("newcomers",)]
    assert len(other.called("begin")) == 1
    assert pool.sample() == ["b"]
    assert pool.sample() == [GENERATION, "c"]
    (replacement,) = world.spawned
    assert replacement.called("begin") == [("factory with players", GENERATION)]
    assert replacement.called("set_opponents") == []
