"""Environments of strangers side by side: what they are told and say, how they begin, end and go on."""

import pickle
import re
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import hostile_agents  # noqa: F401 - registers environments
from multigrid_rl.envs.base import flat_actions
from multigrid_rl.envs.gymnasium import AGENT, GymnasiumEnvs, GymnasiumFactory, describe_env
from multigrid_rl.files import install_command
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.models.distributions import Gaussian, distribution_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.types import RunError

MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}
CARTPOLE = "CartPole-v1"
KINDS = ["started", "parts", "grid", "offset", "binary", "vector", "double", "unbounded"]
#: Of spaces whose choices do not begin with 0.
FIRST = {"started": 5, "offset": np.array([10, -2])}


def echo(actions: str = "started", num_envs: int = 3, *, seed: int = 0, first: int = 0, **args) -> GymnasiumEnvs:
    env_id = "Echo-v0" if args.get("ends") else "EchoCut-v0"
    return GymnasiumEnvs(env_id, num_envs, env_args={"actions": actions, **args}, seed=seed, first=first)


def native(envs: GymnasiumEnvs, k: int = 0):
    return envs.envs[k].unwrapped


def drawn(envs, steps: int, seed: int = 0):
    """Random actions within the bounds, as networks fill them."""
    rng, flat = np.random.default_rng(seed), flat_actions(envs.action_space)
    if isinstance(flat, spaces.Box):
        low, high = (np.clip(bound, -50, 50) for bound in (flat.low, flat.high))
        return [rng.uniform(low, high, (envs.num_envs, len(low))) for _ in range(steps)]
    return [rng.integers(flat.nvec, size=(envs.num_envs, len(flat.nvec))) for _ in range(steps)]


def story(envs, actions):
    """Everything a learner gets to see."""
    return [
        envs.observations()[AGENT].copy(),
        *(pickle.loads(pickle.dumps(envs.step({AGENT: row}))) for row in actions),
    ]


def assert_equal(one, two):
    assert pickle.dumps(one) == pickle.dumps(two)


# --- actions and observations


@pytest.mark.parametrize("kind", KINDS)
def test_environment_gets_actions_of_its_own_space(kind):
    envs = echo(kind)
    for row in drawn(envs, 3):
        step = envs.step({AGENT: row})  # the environment itself asserts that its space contains them
        for k in range(3):
            wanted = row[k] + FIRST.get(kind, 0)
            np.testing.assert_allclose(np.ravel(native(envs, k).taken[-1]), wanted, rtol=1e-6)
            assert step.rewards[AGENT][k] == pytest.approx(wanted.sum(), rel=1e-5)


def test_integer_numbers_are_rounded():
    envs = echo("whole", 1)
    envs.step({AGENT: np.array([[-1.7, 2.6]], np.float32)})
    assert native(envs).taken[-1].tolist() == [-2, 3]


def test_observations_are_vectors_of_float32():
    envs = GymnasiumEnvs(CARTPOLE, 2, seed=1)
    shown = envs.step({AGENT: np.array([[0], [1]])}).observations[AGENT]
    assert (shown.dtype, shown.shape) == (np.float32, (2, 4))
    wanted, _ = gymnasium.make(CARTPOLE).reset(seed=_seed_of(1, 0, 0))
    assert (GymnasiumEnvs(CARTPOLE, 2, seed=1).observations()[AGENT][0] == wanted).all()


def _seed_of(seed: int, number: int, episode: int) -> int:
    return int(np.random.SeedSequence((seed, number, episode)).generate_state(1)[0])


def test_dict_is_flattened_with_choices_as_one_hot():
    envs = echo(seen="dict")
    (agent,) = GymnasiumFactory("Echo-v0", 0, {"seen": "dict"}).specs.agents
    assert agent.observation_size == 5
    shown = envs.step({AGENT: np.zeros((3, 1), np.int64)}).observations[AGENT]
    assert shown[:, :3].tolist() == [[0, 1, 0]] * 3  # one step was played
    assert len(np.unique(shown[:, 3:])) == 6


# --- randomness


def test_environment_is_independent_of_its_neighbours():
    crowd, alone = echo(num_envs=4, seed=5), echo(num_envs=1, seed=5, first=2)
    for row in drawn(crowd, 12):
        together, single = crowd.step({AGENT: row}), alone.step({AGENT: row[2:3]})
        assert (together.observations[AGENT][2] == single.observations[AGENT][0]).all()
        assert together.done[2] == single.done[0]


def test_episode_is_independent_of_previous_actions():
    one, two = echo(seed=5), echo(seed=5)
    for a, b in zip(drawn(one, 4, seed=1), drawn(two, 4, seed=2), strict=True):
        one.step({AGENT: a})
        two.step({AGENT: b})
    assert (one.observations()[AGENT] == two.observations()[AGENT]).all()


def test_reset_restarts_first_episode():
    envs = echo(seed=2)
    actions = drawn(envs, 10)
    first = story(envs, actions)
    envs.reset(2)
    assert envs.drain_episodes().episodes == 0
    assert_equal(story(envs, actions), first)
    assert (envs.reset(3)[AGENT] != first[0]).any()


# --- ends


def test_distinguishes_termination_from_truncation():
    ended, cut = echo(ends=3), echo()
    for k, row in enumerate(drawn(ended, 3)):
        step = ended.step({AGENT: row})
        assert step.done.tolist() == step.terminated[AGENT].tolist() == [k == 2] * 3
        assert not step.truncated.any()
    for k, row in enumerate(drawn(cut, 4)):
        step = cut.step({AGENT: row})
        assert step.done.tolist() == step.truncated.tolist() == [k == 3] * 3
        assert not step.terminated[AGENT].any()
    # What was seen last is kept; what is shown is the next episode's first view.
    assert (step.final_observations[AGENT][:, 2] == 4).all()
    assert (step.observations[AGENT][:, 2] == 0).all()


def test_termination_in_last_step_is_not_truncation():
    envs = GymnasiumEnvs("EchoCut-v0", 2, env_args={"ends": 4})
    for _ in range(4):
        step = envs.step({AGENT: np.zeros((2, 1), np.int64)})
    assert step.done.all()
    assert step.terminated[AGENT].all()
    assert not step.truncated.any()


def test_only_finished_environments_restart():
    envs = echo(num_envs=2, ends=2)
    envs.step({AGENT: np.zeros((2, 1), np.int64)})
    native(envs, 1).taken.pop()  # this one has one step more to go
    step = envs.step({AGENT: np.ones((2, 1), np.int64)})
    assert step.done.tolist() == [True, False]
    assert step.observations[AGENT][:, 2].tolist() == [0, 1]
    table = envs.drain_episodes()
    assert (table.length.tolist(), table.returns.tolist(), table.winner.tolist()) == ([2], [[11.0]], [-1])
    assert envs.drain_episodes().episodes == 0


def collector_for(kind: str, network: dict = MLP, env_id: str = "EchoCut-v0") -> StepCollector:
    factory = GymnasiumFactory(env_id, 4, {"actions": kind})
    (agent,) = factory.specs.agents
    return collector_of(
        factory.build(3, 0), factory.specs, {AGENT: network_of(agent, network)}, seed=1, first=0, steps=6, bound="tanh"
    )


def test_truncated_episode_bootstraps_from_final_observation():
    collector = collector_for("started")
    rollout = collector.collect()[AGENT]
    cut = rollout.done[3]
    assert cut.all()
    assert not rollout.terminated.any()
    envs, seen = echo(seed=4), []
    for row in rollout.actions[:4]:
        seen.append(envs.step({AGENT: row}).final_observations[AGENT])
    with torch.no_grad():
        values = collector.networks[AGENT](torch.from_numpy(seen[3]))[1].numpy()
    np.testing.assert_allclose(rollout.next_values[3], values, rtol=1e-5)
    assert (rollout.next_values[3] != rollout.values[4]).all()


# --- going on


@pytest.mark.parametrize("kind", KINDS)
def test_restored_state_survives_overwritten_arrays(kind):
    envs, twin = echo(kind, seed=3), echo(kind, seed=3)
    buffer = drawn(envs, 1)[0]
    for row in drawn(envs, 6, seed=9):
        buffer[:] = row
        envs.step({AGENT: buffer})
    buffer[:] = 0
    state = pickle.loads(pickle.dumps(envs.get_state()))
    envs.drain_episodes()
    twin.set_state(state)
    more = drawn(envs, 9, seed=4)
    assert_equal(story(twin, more), story(envs, more))
    assert_equal(list(twin.drain_episodes()), list(envs.drain_episodes()))


@pytest.mark.parametrize("kind", ["parts", "vector"])
@pytest.mark.parametrize("env_id", ["Echo-v0", "EchoCut-v0"])
@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_sampling_resumes_exactly_from_state(kind, name, env_id):
    network = {"name": name, "hidden": [8], "activation": "tanh"}
    one, two = (collector_for(kind, network, env_id) for _ in range(2))
    one.collect()
    one.collect()  # an episode of Echo-v0 goes on over batches
    state = pickle.loads(pickle.dumps(one.get_state()))
    ahead = pickle.loads(pickle.dumps(one.collect()))
    two.set_state(state)
    assert_equal(two.collect(), ahead)


@pytest.mark.parametrize("change", [{"seed": 1}, {"num_envs": 2}])
def test_rejects_state_of_other_environments(change):
    with pytest.raises(ValueError, match=r"^state: expected 3 environments with seed 0, got \d"):
        echo().set_state(echo(**change).get_state())


def test_warns_of_nondeterministic_environment(caplog):
    envs, twin = echo(seed=3), echo(seed=3)
    for row in drawn(envs, 2):
        envs.step({AGENT: row})
    state = envs.get_state()
    twin.set_state(state)
    assert caplog.text == ""
    state["played"][1][-1] += 1 if state["played"][1][-1] == 5 else -1
    twin.set_state(state)
    assert "env_id=EchoCut-v0: played again, it shows something else" in caplog.text


@pytest.mark.parametrize("args", [{}, {"continuous": True, "enable_wind": True}])
def test_lander_state_resumes_exactly(args):
    factory = GymnasiumFactory("LunarLander-v3", 0, args)
    envs, twin = factory.build(3, 2), factory.build(3, 2)
    actions = [{AGENT: row} for row in drawn(envs, 150)]
    for row in actions:
        envs.step(row)
    assert envs.drain_episodes().episodes  # what fell in the episodes before is gone
    twin.set_state(pickle.loads(pickle.dumps(envs.get_state())))
    for row in actions[:50]:
        assert_equal(twin.step(row), envs.step(row))


@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
def test_non_finite_value_ends_run(what, value):
    envs = GymnasiumEnvs("Broken-v0", 2, env_args={"what": what, "value": value}, first=4)
    action = {AGENT: np.zeros((2, 2))}
    envs.step(action)
    envs.step(action)
    message = rf"^env_id=Broken-v0: .*, got an? {what} of (nan|-?inf|1e\+39) in environment 4, step 3 of its episode 1$"
    with pytest.raises(RunError, match=message):
        envs.step(action)


# --- the recipe, and mistakes


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_factory_builds_what_it_announces(kind):
    factory = GymnasiumFactory("EchoCut-v0", 4, {"actions": kind})
    announced = factory.specs
    sent = pickle.loads(pickle.dumps(factory))
    built = sent.build(2, 5)
    assert sent.packed() == factory
    assert sent.load() == {}
    assert sent.specs == announced
    assert built.num_envs == 2
    alone = echo(kind, 1, seed=4, first=6)
    assert (built.observations()[AGENT][1] == alone.observations()[AGENT][0]).all()
    (agent,) = announced.agents
    assert isinstance(distribution_of(agent.action_space), Gaussian) == (kind in ("vector", "double", "unbounded"))


@pytest.mark.parametrize(
    ("env_id", "args", "message"),
    [
        ("CartPole-v7", {}, r"env_id: .*registered environment, got CartPole-v7 \(did you mean CartPole-v1\?\)"),
        ("LunarLander-v2", {}, r"env_id: .*registered environment, got LunarLander-v2 .*LunarLander-v3"),
        ("not an id", {}, r"env_id: expected the id of a registered environment, got not an id"),
        ("json:loads", {}, r"got json:loads \(register it, or of PettingZoo: env_id=pettingzoo:json:loads\)"),
        ("nowhere:Any-v0", {}, r"env_id: expected .* whose module can be imported, got nowhere:Any-v0: .*nowhere"),
        (CARTPOLE, {"gravity": 3}, r"env_args: expected arguments of CartPole-v1, got \{'gravity': 3\}"),
        ("LunarLander-v3", {"gravity": 3}, r"env_args: expected arguments of LunarLander-v3, got .*between -12 and 0"),
        ("Hopper-v5", {"xml_file": "/no.xml"}, r"env_args: .*of Hopper-v5, got .*/no.xml does not exist"),
        ("Echo-v0", {"seen": "graph"}, r"env_id=Echo-v0: expected observations that can be flattened .*, got Graph"),
        ("Echo-v0", {"actions": "text"}, r"env_id: .*with Discrete, .*MultiBinary or Box actions, got Echo-v0: Text"),
        ("Echo-v0", {"actions": "many"}, r"env_id: expected .*at most 8192 choices.*, got Echo-v0: Discrete\(8193\)"),
    ],
)
def test_rejects_unsupported_spaces(env_id, args, message):
    for build in (lambda: describe_env(env_id, args), lambda: GymnasiumFactory(env_id, 0, args).load()):
        with pytest.raises(ValueError, match=message) as caught:
            build()
        assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("scenario.env_")


@pytest.mark.parametrize(("env_id", "module"), [("HalfCheetah-v5", "mujoco"), ("LunarLander-v3", "Box2D")])
def test_names_command_for_missing_package(monkeypatch, env_id, module):
    for name in [name for name in sys.modules if name.startswith((f"gymnasium.envs.{module.lower()}", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    message = f"^env_id: .* installed, got {env_id} without {module}: {re.escape(install_command('control'))}$"
    with pytest.raises(ValueError, match=message):
        describe_env(env_id, {})
