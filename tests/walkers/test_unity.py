"""A Unity environment as training sees it, played by a peer that speaks its protocol: no Unity is needed."""

import os
import struct
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from bundles import cheetah
from commands import call, complaint, works
from composing import refusal
from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.base import AGENT
from multigrid_rl.evaluation.targets import env_target
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.show.run_data import read_report
from multigrid_rl.types import RunError
from multigrid_rl.walkers.unity import UnityFactory
from multigrid_rl.walkers.unity_peer import MESSAGES, UnityPeer, side_channels
from tiny_runs import rows_of, tiny_run
from unity_walker import FakeWalker, free_port

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = {"timeout_s": 60}


@pytest.fixture
def scene():
    """Builds a factory whose port a fake walker calls, and ends both."""
    built = []

    def start(behavior="any", args=QUICK, **script):
        port = free_port()
        walker = FakeWalker(port, **script)
        walker.start()
        factory = UnityFactory(behavior, 7, port, env_args=args)
        built.append((factory, walker))
        return factory, walker

    yield start
    for factory, walker in built:
        factory.close()
        walker.join(10)
        assert not walker.is_alive()


def test_messages_equal_ml_agents():
    """The bytes were written once by the descriptors of mlagents-envs 0.28.0."""
    one = MESSAGES["UnityMessage"](header={"status": 200})
    info = {"id": 3, "reward": 1.5, "observations": [{"shape": [2], "float_data": {"data": [1, 2]}}]}
    one.unity_output.rl_output.agentInfos["W"].value.add(**info)
    one.unity_input.rl_input.agent_actions["W"].value.add(continuous_actions=[1, 2, 3])
    one.unity_input.rl_input.command = 1
    wanted = (
        b'\n\x03\x08\xc8\x01\x12#\n!\x12\x1f\n\x01W\x12\x1a\n\x18=\x00\x00\xc0?P\x03j\x0f\n\x01\x02"\n\n\x08\x00\x00\x80?'
        b"\x00\x00\x00@\x1a\x1b\n\x19\n\x15\n\x01W\x12\x10\n\x0e2\x0c\x00\x00\x80?\x00\x00\x00@\x00\x00@@ \x01"
    )
    assert one.SerializeToString() == wanted


def test_settings_are_sent_as_side_channels():
    sent, found = side_channels({"width": 84, "height": 60, "time_scale": 20, "timeout_s": 3}, {"mass": 2}), []
    while sent:
        length = struct.unpack_from("<i", sent, 16)[0]
        found.append((str(uuid.UUID(bytes_le=sent[:16])), sent[20 : 20 + length]))
        sent = sent[20 + length :]
    engine, parameters = "e951342c-4f7e-11ea-b238-784f4387d1f7", "534c891e-810f-11ea-a9d0-822485860400"
    assert found == [
        (engine, struct.pack("<iii", 0, 84, 60)),
        (engine, struct.pack("<if", 2, 20.0)),
        (parameters, struct.pack("<i4sif", 4, b"mass", 0, 2.0)),
    ]


def test_specs_come_from_unity_and_close_quits_it(scene):
    factory, walker = scene(args={**QUICK, "areas": 4, "time_scale": 9, "parameters": {"mass": 2}})
    (agent,) = factory.specs.agents
    assert agent.observation_space.shape == (5,)
    assert agent.action_space == spaces.Box(-1, 1, (3,), np.float32)
    mine = walker.initial
    assert (mine.seed, mine.communication_version, mine.num_areas) == (7, "1.5.0", 4)
    assert mine.capabilities.hybridActions
    env = factory.build(10, 0)
    assert (walker.resets, len(walker.side)) == (2, 2)
    assert env.deciding()[AGENT].all()
    factory.close()
    walker.join(10)
    assert (walker.quit, walker.error) == (True, None)


def collector(factory, places: int, steps: int) -> StepCollector:
    torch.set_num_threads(1)
    net = network_of(factory.specs.agents[0], {"name": "mlp", "hidden": [4]}, seed=1)
    return collector_of(
        factory.build(places, 0), factory.specs, {AGENT: net}, seed=3, first=0, steps=steps, bound="clip3"
    )


@pytest.mark.parametrize("discrete", [(), (2, 3)])
def test_ten_intermittent_walkers_lose_no_data(scene, discrete):
    factory, walker = scene(discrete=discrete)
    playing = collector(factory, 12, 40)
    found, finished = {}, []
    for _ in range(4):
        rollout = playing.collect()[AGENT]
        batch, paths = estimate(rollout, Estimator(0.9, 0.9)), playing.paths()[AGENT]
        rewards, ended = paths.rewards[paths.active], paths.done[paths.active]
        cut = paths.cut[paths.active]
        for k, seen in enumerate(batch.obs):
            assert seen.tobytes() not in found  # every decision once
            end = "truncated" if cut[k] else "terminated" if ended[k] else "next"
            found[seen.tobytes()] = (batch.actions[k], rewards[k], end)
        finished.append(playing.env.drain_episodes())
    story, open_ = walker.stories
    bounded = playing.distributions[AGENT].bounded
    assert set(found) == {seen.tobytes() for seen, *_ in story}
    assert {end for *_, end in story} == {"next", "terminated", "truncated"}
    for seen, action, paid, end in story:
        drawn, reward, mine = found[seen.tobytes()]
        assert action == pytest.approx(bounded(drawn[None])[0].tolist())
        assert reward == pytest.approx(paid, abs=1e-5)
        assert mine == end
    # What is not known yet waits: of decisions that were acted on, and of those that are to come.
    waiting = playing._gaps[AGENT].waiting["mask"][:, 0].sum()
    assert len(open_) == waiting + playing.env.deciding()[AGENT].sum()
    lengths = np.concatenate([table.length for table in finished])
    assert sorted(lengths) == sorted(len(agent.story) for agent in walker.ended)


def test_state_is_empty_and_resuming_starts_fresh(scene):
    factory, _ = scene()
    playing = collector(factory, 10, 8)
    playing.collect()
    state = playing.get_state()
    assert state["env"] == {}
    twin = collector(factory, 10, 8)
    twin.set_state(state)
    assert not twin._gaps[AGENT].waiting["mask"].any()
    assert np.array_equal(twin.streams[AGENT].state, playing.streams[AGENT].state)
    assert len(estimate(twin.collect()[AGENT], Estimator(0.9, 0.9)).obs)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"version": "2.0.0"}, "expected communication 1.3 or later, below 2, got 2.0.0"),
        ({"version": "1.2.0"}, "got 1.2.0"),
        ({"version": "0.28"}, "got 0.28"),
        ({"version": ""}, "got none"),
        ({"shape": (8, 8, 3)}, "scenario.env_id=Walker?team=0: expected vectors to see, got"),
        ({"names": ("Walker?team=0", "Goalie?team=1")}, "scenario.env_id: expected one of Walker, Goalie, got any"),
        ({"behavior": "Walkr"}, "scenario.env_id: expected one of Walker, got Walkr (did you mean Walker?)"),
    ],
)
def test_rejects_incompatible_unity_version(scene, script, message):
    factory, _ = scene(**script)
    assert message in refusal(lambda: factory.specs)


def test_selects_one_of_several_behaviours(scene):
    factory, _ = scene(behavior="Walker", names=("Walker?team=0", "Goalie?team=1"))
    assert factory.build(10, 0).deciding()[AGENT].all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ({"steps": 3}, RunError, "expected an answer within 2 s, got none"),
        ({"over": 3}, RunError, "expected an answer, got its end: quit"),
        ({"agents": 13}, RunError, "train.num_envs: expected at least as many as Unity on port"),
        ({"bad": float("nan")}, RunError, "finite observations and rewards, got a reward of nan of agent"),
    ],
)  # fmt: skip
def test_silent_or_invalid_peer_ends_run_with_one_line(scene, script, kind, message):
    factory, _ = scene(**script)
    _ = factory.specs
    factory._peer()._timeout_s = 2.0 if "steps" in script else 60.0
    with pytest.raises(kind) as caught:
        collector(factory, 10, 30).collect()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rejects_missing_connection_and_missing_program():
    port = free_port()
    with pytest.raises(RunError, match=rf"^Unity on port {port}: expected an answer within 0.3 s, got none$"):
        UnityPeer(port, [], timeout_s=0.3)
    with pytest.raises(RunError, match=r"^env_path: expected a program, got /nowhere: No such file"):
        UnityPeer(free_port(), ["/nowhere"])


def program(tmp_path, body: str) -> str:
    path = tmp_path / "walker.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_program_starts_on_its_port_and_ends_with_environment(tmp_path, monkeypatch):
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), *sys.path]))
    path = program(tmp_path, f'echo "$@" > {tmp_path}/words; exec {sys.executable} {here}/unity_walker.py "$@"')
    port = free_port()
    factory = UnityFactory("any", 0, port, path, {"timeout_s": 60, "args": ["-level", 2]})
    assert factory.build(3, 0).deciding()[AGENT].all()
    process = factory._peer()._program
    factory.close()
    assert process.poll() == 0
    words = (tmp_path / "words").read_text().split()
    assert words == ["-level", "2", "-nographics", "-batchmode", "--mlagents-port", str(port)]


def test_exited_program_is_reported_at_once(tmp_path):
    with pytest.raises(RunError, match=r"expected an answer, got the program's end, status 3$"):
        UnityPeer(free_port(), [program(tmp_path, "exit 3")])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_args={time_scal: 3}"], "env_args: expected one of quality_level, time_scale"),
        (["env_args={time_scale: fast}"], "scenario.env_args.time_scale: expected a number, got fast"),
        (["env_args={parameters: {mass: heavy}}"], "scenario.env_args.parameters: expected numbers by name, got"),
        (["env_args={width: 84}"], "scenario.env_args: expected width and height together, got"),
        (["port=0"], "port: expected"),
        (["cluster.num_env_runners=1"], "cluster.num_env_runners: expected 0 with scenario=unity, got 1"),
        (["model=gru", "model.hidden=[8]"], "model: expected a network without memory with scenario=unity"),
        (["scenario=cartpole", "port=5004"], "scenario.port: expected none, as package=gymnasium takes none, got 5004"),
    ],
)  # fmt: skip
def test_rejects_mistakes_before_listening(overrides, message):
    asked = ["scenario=unity", "experiment=none", *overrides]
    assert message in refusal(lambda: env_factory(compose(asked)).load())


def test_rejects_playing_unity_episodes(tmp_path):
    said = refusal(env_target, str(tmp_path), ["scenario=unity", "env_path=/no/such program, 1"])
    assert said.startswith("scenario.package: expected gymnasium or pettingzoo, to play episodes, got")


def test_recipe_may_not_start_program_where_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTIGRID_RL_SAFE", "1")
    path = tmp_path / "recipe.yaml"
    path.write_text("defaults: [{override /scenario: unity}]\nscenario: {env_path: /bin/true}\n")
    assert "neither interpolates, nor imports code" in refusal(compose, [f"experiment={path}"])


def test_player_of_unity_is_not_evaluated_and_inspect_promises_none(tmp_path):
    player = cheetah(tmp_path / "player", package="unity")
    assert call("inspect", player).output.splitlines()[-1].endswith("of unity, where none is played")
    message = "scenario.package: expected gymnasium or pettingzoo, to play episodes, got unity"
    assert message in complaint(call("evaluate", player, "--episodes", 1, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


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
