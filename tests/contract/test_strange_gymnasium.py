"""Gymnasium environments that are right, but other than most: each kind trains, or is refused in one line."""

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from multigrid_rl.envs.base import AGENT, reset_seed
from multigrid_rl.envs.gymnasium import GymnasiumEnvs, GymnasiumFactory, describe_env
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from strange_games import legal_actions

BOX = spaces.Box(-1, 1, (2,), np.float32)
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(4)})
WORDS = spaces.Dict(
    {"view": spaces.Box(0, 255, (2, 2, 3), np.uint8), "mission": spaces.Text(9), "way": spaces.Discrete(4)}
)


class Strange(gymnasium.Env):
    """Ten steps; what is strange is a keyword: a method of the same name changes what it answers."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 9}  # noqa: RUF012

    def __init__(self, *, seen=BOX, acts=None, reward=0.0, ended=False, start=(), told=(), needs=lambda action: None):
        self.observation_space, self.action_space = seen, spaces.Discrete(4) if acts is None else acts
        self.reward, self.ended, self.start, self.told, self.needs = reward, ended, start, told, needs

    def info(self):
        self.legal = np.eye(4, dtype=np.int8)[self.np_random.integers(4)]
        return {"action_mask": self.legal} if self.t in self.told else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        info = self.info()
        return self.shown(), info

    def shown(self):
        self.observation_space.seed(self.t)
        seen = self.observation_space.sample()
        return {**seen, "action_mask": self.legal} if "action_mask" in self.start else seen

    def step(self, action):
        self.needs(action)
        if self.told or self.start:
            assert self.legal[action], "not legal"
        self.t += 1
        info = self.info()
        return self.shown(), self.reward, self.ended if self.t < 10 else True, False, info


def register(monkeypatch, **options):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Strange-v0", lambda **args: Strange(**options, **args))
    return "Strange-v0"


@pytest.mark.parametrize(
    "options", [{"told": range(99)}, {"seen": MASKED, "start": ("action_mask",)}], ids=["info", "dict"]
)
def test_masks_of_info_and_of_dictionaries_are_respected(monkeypatch, options):
    factory = GymnasiumFactory(register(monkeypatch, **options), 3)
    (agent,) = factory.specs.agents
    assert (agent.legal, agent.observation_size) == (4, 6)
    envs = factory.build(3, 0)
    envs.specs, rngs = factory.specs, [np.random.default_rng(k) for k in range(3)]
    for _ in range(25):
        envs.step({AGENT: legal_actions(envs, AGENT, rngs)})
    assert envs.drain_episodes().length.tolist() == [10] * 6


def test_masks_from_the_first_step_on_are_read(monkeypatch):
    factory = GymnasiumFactory(register(monkeypatch, told=range(1, 99)), 3)
    seen = factory.build(2, 0).observations()[AGENT]
    assert factory.specs.agents[0].legal == 4
    assert (seen[:, -4:] == 1).all()  # nothing was told yet


def test_masks_that_come_later_than_at_the_start_are_told(monkeypatch):
    envs = GymnasiumEnvs(register(monkeypatch, told=range(5, 99)), 1)
    envs.envs[0].unwrapped.told, told = (), range(5, 99)
    for _ in range(4):
        envs.step({AGENT: np.zeros((1, 1), np.int64)})
    envs.envs[0].unwrapped.told = told
    with pytest.raises(RunError, match=r"step: .*action_mask: expected from the first step of an episode on"):
        envs.step({AGENT: envs.envs[0].unwrapped.legal.argmax()[None, None]})


def test_masks_without_a_legal_choice_are_told(monkeypatch):
    envs = GymnasiumEnvs(register(monkeypatch, told=range(99)), 1)
    monkeypatch.setattr(Strange, "info", lambda self: {"action_mask": np.zeros(4, np.int8)})
    with pytest.raises(RunError, match="action_mask without a legal choice in environment 0"):
        envs.step({AGENT: envs.envs[0].unwrapped.legal.argmax()[None, None]})


@pytest.mark.parametrize("shape", [(5, 7, 7), (7, 7, 3), (2, 5, 7, 7), (5, 7), (1,), ()])
def test_boxes_of_any_rank_are_flattened(monkeypatch, shape):
    factory = GymnasiumFactory(register(monkeypatch, seen=spaces.Box(0, 1, shape, np.float32)), 0)
    (agent,) = factory.specs.agents
    assert agent.observation_size == np.prod(shape)
    assert factory.build(2, 0).observations()[AGENT].shape == (2, agent.observation_size)


SEVERAL = r"of several agents: a ParallelEnv .*env_id=pettingzoo:MODULE:FUNCTION"
NO_VECTORS = spaces.Dict({"view": BOX, "graph": spaces.Graph(BOX, None), "list": spaces.Sequence(BOX)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seen": spaces.Box(0, 255, (210, 160, 3), np.uint8)}, r"of 1 to 100,000 .*ResizeObservation.*, got 100,800"),
        ({"seen": NO_VECTORS}, r"can be flattened \(an ObservationWrapper .*\), got graph, list"),
        ({"acts": spaces.Tuple([spaces.Discrete(2)] * 2)}, SEVERAL),
        ({"acts": spaces.Dict({"a": spaces.Discrete(2)})}, SEVERAL),
    ],
    ids=["large image", "no vectors", "tuple", "dict"],
)
def test_spaces_that_nothing_learns_in_are_refused_with_what_helps(monkeypatch, options, said):
    with pytest.raises(ValueError, match=said):
        describe_env(register(monkeypatch, **options), {})


def test_text_in_dictionaries_is_left_out_with_a_word(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    factory = GymnasiumFactory(register(monkeypatch, seen=WORDS), 0)
    assert factory.specs.agents[0].observation_size == 12 + 4
    assert "left out, as networks read numbers: ['mission']" in caplog.text
    assert factory.build(2, 0).observations()[AGENT].max() <= 1


def _like_sample(acts):
    def needs(action):
        sample = acts.sample()
        assert type(action) is type(sample)
        assert (action.dtype, action.shape) == (sample.dtype, sample.shape)
        assert acts.contains(action)
        if action.shape:
            action[...] = 0  # it is the environment's

    return needs


ACTS = [
    spaces.Discrete(4),
    spaces.Discrete(4, start=10),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(0, 9, (2,), np.int16),
]


@pytest.mark.parametrize("acts", ACTS, ids=str)
def test_actions_are_what_their_space_draws_and_are_kept_as_they_were(monkeypatch, acts):
    factory = GymnasiumFactory(register(monkeypatch, acts=acts, needs=_like_sample(acts)), 0)
    envs, space = factory.build(2, 0), factory.specs.agents[0].action_space
    space.seed(1)
    chosen = np.stack([space.sample(), space.sample()])
    envs.step({AGENT: chosen})
    np.testing.assert_array_equal(np.stack([rows[0] for rows in envs.get_state()["played"]]), envs.native(chosen))
    twin = factory.build(2, 0)
    twin.set_state(envs.get_state())
    np.testing.assert_array_equal(twin.observations()[AGENT], envs.observations()[AGENT])
    np.testing.assert_array_equal(twin.get_state()["played"][0][0], envs.native(chosen)[0])


@pytest.mark.parametrize(
    "paid", [1, np.array([1.0]), [1.0], np.float32(1), np.array(1.0), np.array([[1]]), True], ids=repr
)
@pytest.mark.parametrize("ended", [np.False_, np.array([False]), 0], ids=repr)
def test_numbers_in_arrays_are_taken(monkeypatch, paid, ended):
    envs = GymnasiumEnvs(register(monkeypatch, reward=paid, ended=ended), 2)
    step = envs.step({AGENT: np.zeros((2, 1), np.int64)})
    assert (step.rewards[AGENT].tolist(), step.done.tolist()) == ([1, 1], [False, False])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": np.ones(2)}, "reward: expected one number, got shape"),
        ({"reward": []}, "reward: expected one number, got shape"),
        ({"reward": None}, "reward: expected one number, got None"),
        ({"reward": "1"}, "reward: expected one number, got '1'"),
        ({"ended": None}, "terminated: expected one number, got None"),
    ],
    ids=str,
)
def test_other_than_one_number_is_told_by_its_name(monkeypatch, options, said):
    with pytest.raises(ConfigError, match=f"^scenario.env_id=Strange-v0: step: {said}"):
        GymnasiumFactory(register(monkeypatch, **options), 0).load()


@pytest.mark.parametrize("wrong", [np.zeros(1), np.zeros((1, 2)), 0.0, np.zeros((2, 1)), np.zeros(3)], ids=repr)
@pytest.mark.parametrize("call", ["reset", "step"])
def test_observations_of_shapes_that_would_be_stretched_are_told(monkeypatch, wrong, call):
    envs = GymnasiumEnvs(register(monkeypatch), 1)
    monkeypatch.setattr(Strange, "shown", lambda self: wrong)
    with pytest.raises(RunError, match=rf"{call}: .*observation: expected shape \(2,\) of its space"):
        envs.reset(0) if call == "reset" else envs.step({AGENT: np.zeros((1, 1), np.int64)})


@pytest.mark.parametrize("seen", [BOX, spaces.Box(-1, 1, (2, 1), np.float32), spaces.Dict({"a": BOX})], ids=str)
def test_observations_changed_in_place_are_kept_as_they_were(monkeypatch, seen):
    board = {"now": seen.sample()}

    def shown(self):
        for part in board["now"].values() if isinstance(board["now"], dict) else [board["now"]]:
            part[...] = (self.t + 1) / 4
        return board["now"]

    monkeypatch.setattr(Strange, "shown", shown)
    envs = GymnasiumEnvs(register(monkeypatch, seen=seen), 1)
    first = envs.observations()[AGENT]
    envs.step({AGENT: np.zeros((1, 1), np.int64)})
    assert (first.tolist(), envs.observations()[AGENT].tolist()) == ([[0.25] * 2], [[0.5] * 2])


def test_environments_that_take_seeds_of_31_bits_alone(monkeypatch):
    taken = []

    def reset(self, *, seed=None, options=None):
        taken.append(int(np.int32(seed)))
        gymnasium.Env.reset(self, seed=seed)
        self.t, self.legal = 0, np.ones(4)
        return np.zeros(2, np.float32), {}

    monkeypatch.setattr(Strange, "reset", reset)
    GymnasiumEnvs(register(monkeypatch), 20, seed=1)
    assert taken[1:] == [reset_seed(1, k, 0) % 2**31 for k in range(20)]


# --- arguments


class Asks(Strange):
    """Takes arguments that are called like ours or Gymnasium's."""

    def __init__(self, render_mode, id="", max_episode_steps=0, disable_env_checker=None, reward_threshold=0):
        super().__init__()
        self.render_mode = render_mode
        self.given = (id, max_episode_steps, disable_env_checker, reward_threshold)


class Window(Strange):
    """Opens a window by itself."""

    def __init__(self, render_mode="human"):
        super().__init__()
        self.render_mode = render_mode


class Hidden(Strange):
    """Opens a window by itself, and only who reads it knows that it can be kept from that."""

    def __init__(self, **options):
        super().__init__()
        self.render_mode = options.get("render_mode", "human")


def test_own_arguments_reach_their_environment_whatever_they_are_called(monkeypatch):
    register(monkeypatch)
    gymnasium.register("Asks-v0", Asks)
    args = {"id": "mine", "max_episode_steps": 4, "disable_env_checker": 7, "reward_threshold": 5}
    envs = GymnasiumEnvs("Asks-v0", 1, env_args=args)
    assert envs.envs[0].unwrapped.given == ("mine", 4, 7, 5)
    for _ in range(4):
        step = envs.step({AGENT: np.zeros((1, 1), np.int64)})
    assert (step.truncated.all(), gymnasium.registry["Asks-v0"].kwargs) == (True, {})


@pytest.mark.parametrize("env_args", [{}, {"render_mode": None}], ids=str)
@pytest.mark.parametrize("kind", [Asks, Window, Strange, Hidden])
def test_render_mode_that_is_required_or_human_is_null(monkeypatch, kind, env_args):
    register(monkeypatch)
    gymnasium.register("Shown-v0", kind)
    if (kind, env_args) == (Hidden, {}):
        with pytest.raises(ValueError, match=r"env_args: expected render_mode: null, as .* opens a window by itself"):
            describe_env("Shown-v0", env_args)
    elif (kind, env_args) != (Strange, {"render_mode": None}):  # which takes no such argument
        assert GymnasiumEnvs("Shown-v0", 1, env_args=env_args).envs[0].render_mode is None
