"""Environments of the multigrid package behind our face: every registered id, and what the package itself shows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from multigrid_rl.envs.multigrid import (
    MultigridEnvs,
    MultigridFactory,
    make_env,
    mission_numbers,
    registered_ids,
    token_categories,
)

IDS = registered_ids()
EMPTY, RANDOM = "MultiGrid-Empty-5x5-v0", "MultiGrid-Empty-Random-5x5-v0"
HALLWAY, DOORS = "MultiGrid-LockedHallway-2Rooms-v0", "MultiGrid-RedBlueDoors-6x6-v0"
BLOCKED = "MultiGrid-BlockedUnlockPickup-v0"
LEFT, RIGHT, FORWARD, TOGGLE, DONE = 0, 1, 2, 5, 6
#: From the start of Empty-5x5, (1, 1) heading right, to the goal at (3, 3).
TO_GOAL = (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)


def drawn(envs, steps, seed=0):
    """Uniform actions for each step, by seat."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 7, (steps, len(envs.seats), envs.num_envs))
    return [dict(zip(envs.seats, row, strict=True)) for row in table]


def same(envs, action):
    """One action for everybody."""
    return {seat: np.full(envs.num_envs, action) for seat in envs.seats}


def copied(step):
    return pickle.loads(pickle.dumps(step))


def cut_short(envs, max_steps):
    for env in envs.envs:
        env.max_steps = max_steps
    return envs


def story(envs, actions):
    """Everything a learner gets to see."""
    rows = [{seat: tokens.copy() for seat, tokens in envs.observations().items()}]
    for row in actions:
        step = envs.step(row)
        rows.append(copied((step.observations, step.rewards, step.terminated, step.mask, step.truncated, step.done)))
    return rows


def assert_equal(one, two):
    assert pickle.dumps(one) == pickle.dumps(two)


def from_package(env, shown, agent):
    """Tokens as the docstring of the module says, computed the long way from the package's own observation."""
    image = shown[agent]["image"]
    view = image.shape[0]
    cells = [image[i, j, channel] for channel in range(3) for i in range(view) for j in range(view)]
    return [*cells, shown[agent]["direction"], mission_numbers(env)[str(shown[agent]["mission"])]]


# --- every id


def test_all_package_environments_are_known():
    assert len(IDS) >= 13
    assert {EMPTY, RANDOM, HALLWAY, DOORS, BLOCKED, "MultiGrid-Playground-v0"} <= set(IDS)


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("env_id", IDS)
def test_every_environment_plays_within_its_categories(env_id, agents):
    envs = MultigridEnvs(env_id, 2, agents=agents, seed=3)
    bound = np.array(envs.categories)
    for actions in drawn(envs, 40):
        step = envs.step(actions)
        for seat in envs.seats:
            tokens = step.observations[seat]
            assert tokens.dtype == np.uint8
            assert tokens.shape == (2, len(bound))
            assert (tokens < bound).all()
            assert step.rewards[seat].shape == step.terminated[seat].shape == step.mask[seat].shape == (2,)
        assert step.done.shape == step.truncated.shape == (2,)


@pytest.mark.parametrize(("env_id", "agents"), [(EMPTY, 1), (HALLWAY, 1), (DOORS, 2), (BLOCKED, 2)])
def test_tokens_equal_package_observations(env_id, agents):
    envs = MultigridEnvs(env_id, 2, agents=agents, seed=1)
    for actions in drawn(envs, 30):
        tokens = envs.step(actions).observations
        for n, env in enumerate(envs.envs):
            shown = env.gen_obs()
            for a, seat in enumerate(envs.seats):
                assert tokens[seat][n].tolist() == from_package(env, shown, a)


def test_categories_equal_the_package():
    categories = token_categories(make_env(BLOCKED, 1))
    assert categories == (11,) * 49 + (6,) * 49 + (4,) * 49 + (4, 12)  # 6 colours times box or key
    assert token_categories(make_env(EMPTY, 3))[-1] == 1


# --- randomness


@pytest.mark.parametrize("env_id", [RANDOM, HALLWAY, BLOCKED])
def test_seed_determines_the_run(env_id):
    one, two, other = (cut_short(MultigridEnvs(env_id, 3, agents=2, seed=seed), 15) for seed in (7, 7, 8))
    actions = drawn(one, 50)
    assert_equal(story(one, actions), story(two, actions))
    assert pickle.dumps(story(one, actions)) != pickle.dumps(story(other, actions))


@pytest.mark.parametrize("env_id", [RANDOM, HALLWAY, BLOCKED])
def test_game_is_independent_of_its_neighbours(env_id):
    crowd = cut_short(MultigridEnvs(env_id, 4, seed=5), 12)
    alone = cut_short(MultigridEnvs(env_id, 1, seed=5, first=2), 12)
    for actions in drawn(crowd, 40):
        together = crowd.step(actions)
        single = alone.step({"agent_0": actions["agent_0"][2:3]})
        assert (together.observations["agent_0"][2] == single.observations["agent_0"][0]).all()
        assert together.done[2] == single.done[0]


def test_episode_is_independent_of_previous_actions():
    long, short = MultigridEnvs(RANDOM, 1, seed=5), MultigridEnvs(RANDOM, 1, seed=5)
    cut_short(long, 9)
    cut_short(short, 4)
    for envs in (long, short):
        while not envs.step(same(envs, LEFT)).done[0]:
            pass
    assert (long.observations()["agent_0"] == short.observations()["agent_0"]).all()


def test_reset_restarts_first_episode():
    envs = cut_short(MultigridEnvs(RANDOM, 3, seed=2), 10)
    first = story(envs, drawn(envs, 25))
    envs.reset(2)
    assert envs.drain_episodes().episodes == 0
    assert_equal(story(envs, drawn(envs, 25)), first)
    other = envs.reset(3)["agent_0"]
    assert (other != first[0]["agent_0"]).any()


def test_layouts_differ_between_games_and_episodes():
    envs = cut_short(MultigridEnvs(BLOCKED, 8, seed=0), 1)
    before = envs.observations()["agent_0"].copy()
    after = envs.step(same(envs, DONE)).observations["agent_0"]
    assert len({row.tobytes() for row in before}) == 8
    assert (before != after).any(axis=1).all()


# --- ends


def test_goal_terminates_and_pays_package_reward():
    envs = MultigridEnvs(EMPTY, 2)
    for action in TO_GOAL[:-1]:
        step = envs.step(same(envs, action))
        assert not step.done.any()
    before = envs.observations()["agent_0"].copy()
    step = envs.step(same(envs, TO_GOAL[-1]))
    assert step.done.all()
    assert step.terminated["agent_0"].all()
    assert not step.truncated.any()
    reward = 1 - 0.9 * 5 / 100
    assert step.rewards["agent_0"] == pytest.approx([reward, reward])
    # What it saw last is kept; what is shown is the next episode's first view, where the goal is still ahead.
    assert (step.final_observations["agent_0"] != step.observations["agent_0"]).any(axis=1).all()
    assert (step.final_observations["agent_0"] != before).any(axis=1).all()
    assert (step.observations["agent_0"] == MultigridEnvs(EMPTY, 2).observations()["agent_0"]).all()
    table = envs.drain_episodes()
    assert table.length.tolist() == [5, 5]
    assert table.returns[:, 0] == pytest.approx([reward, reward])
    assert table.winner.tolist() == [0, 0]
    assert table.events.shape == (2, 1, 0)
    assert envs.drain_episodes().episodes == 0


def test_last_step_truncates_without_termination():
    envs = cut_short(MultigridEnvs(RANDOM, 2, seed=1), 3)
    for k in range(3):
        final = envs.observations()["agent_0"].copy()
        step = envs.step(same(envs, DONE))
        assert step.done.tolist() == step.truncated.tolist() == [k == 2] * 2
        assert not step.terminated["agent_0"].any()
    assert (step.final_observations["agent_0"] == final).all()
    table = envs.drain_episodes()
    assert (table.length.tolist(), table.winner.tolist()) == ([3, 3], [-1, -1])


def test_success_in_last_step_terminates():
    envs = cut_short(MultigridEnvs(EMPTY, 1), len(TO_GOAL))
    for action in TO_GOAL:
        step = envs.step(same(envs, action))
    assert (step.done[0], step.truncated[0], step.terminated["agent_0"][0]) == (True, False, True)


def test_only_finished_games_restart():
    envs = MultigridEnvs(EMPTY, 2)
    for action in TO_GOAL:
        step = envs.step({"agent_0": np.array([action, DONE])})
    assert step.done.tolist() == [True, False]
    assert envs.drain_episodes().episodes == 1
    assert envs.envs[1].step_count == 5


def test_success_of_one_agent_ends_episode_for_all():
    envs = MultigridEnvs(EMPTY, 1, agents=2)
    for action in TO_GOAL:
        step = envs.step({"agent_0": np.array([DONE]), "agent_1": np.array([action])})
    assert step.terminated["agent_0"][0]
    assert step.terminated["agent_1"][0]
    assert step.rewards["agent_0"][0] == 0.0
    assert step.rewards["agent_1"][0] > 0.9
    assert envs.drain_episodes().winner.tolist() == [0]


def test_finished_agent_stays_inactive_until_episode_ends():
    envs = MultigridEnvs(EMPTY, 1, agents=2)
    envs.envs[0].success_termination_mode = "all"
    for action in TO_GOAL:
        step = envs.step({"agent_0": np.array([action]), "agent_1": np.array([DONE])})
    assert step.mask["agent_0"][0]  # it acted in the step that finished it
    assert step.terminated["agent_0"][0]
    assert not step.terminated["agent_1"][0]
    assert not step.done[0]
    for action in TO_GOAL:
        step = envs.step({"agent_0": np.array([FORWARD]), "agent_1": np.array([action])})
        assert not step.mask["agent_0"][0]
        assert step.mask["agent_1"][0]
        assert step.rewards["agent_0"][0] == 0.0
    assert step.done[0]
    assert not step.truncated[0]
    assert envs.step(same(envs, DONE)).mask["agent_0"][0]  # a new episode


def test_failure_terminates_without_reward():
    envs = MultigridEnvs(DOORS, 1, seed=0)
    env = envs.envs[0]
    x, y = env.blue_door.cur_pos or next(
        (x, y) for x in range(env.width) for y in range(env.height) if env.grid.get(x, y) is env.blue_door
    )
    env.agents[0].state.pos, env.agents[0].state.dir = (x - 1, y), 0
    step = envs.step(same(envs, TOGGLE))
    assert step.done[0]
    assert step.terminated["agent_0"][0]
    assert envs.drain_episodes().winner.tolist() == [-1]


# --- the recipe, and mistakes


def test_factory_specs_match_built_environment():
    factory = MultigridFactory(HALLWAY, num_agents=2, seed=4)
    built = pickle.loads(pickle.dumps(factory)).build(3, 5)
    assert built.specs == factory.specs
    assert built.num_envs == 3
    assert factory.load() == {}
    assert factory.specs.learning == ("agent_0", "agent_1")
    assert factory.specs.team_names == ("agents",)
    assert set(built.observations()) == {"agent_0", "agent_1"}
    bare = MultigridEnvs(HALLWAY, 3, agents=2, seed=4, first=5)
    assert (built.observations()["agent_1"] == bare.observations()["agent_1"]).all()


def test_unknown_id_error_suggests_and_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"scenario.env_id: expected one of .* and \d+ more, got MultiGrid-Empty-8x9-v0 \(did you"
    ) as caught:
        MultigridFactory("MultiGrid-Empty-8x9-v0", num_agents=1, seed=0).load()
    text = str(caught.value)
    assert "did you mean MultiGrid-Empty-8x8-v0?" in text
    assert "\n" not in text


def test_rejects_environment_of_another_package():
    with pytest.raises(ValueError, match=r"env_id: expected one of MultiGrid-.*, got CartPole-v1"):
        MultigridEnvs("CartPole-v1", 1)


def test_rejects_more_missions_than_token_values():
    env = make_env(EMPTY, 1)
    space = type(make_env(BLOCKED, 1).mission_space)
    env.mission_space = space(lambda a, b: f"{a} {b}", [[str(k) for k in range(20)]] * 2)
    with pytest.raises(ValueError, match="EmptyEnv: expected at most 256 missions, got 400"):
        mission_numbers(env)
