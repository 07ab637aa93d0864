"""One game as an RLlib environment: it plays what the batched face plays, and says who is out and what is over."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.pre_checks.env import check_multiagent_environments

from benchmarks.stock import GAMES_PER_RUNNER, GameEnv
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory

pytestmark = pytest.mark.filterwarnings("ignore")

SINGLE, DUEL = ["scenario=single"], ["scenario=1v1", "scenario.game.max_steps=25"]
TEAM = ["scenario=2v2-deathmatch", "scenario.seats.blue_0=hunter", "scenario.seats.blue_1=random"]
TEAM = [*TEAM, "scenario.game.max_steps=60"]
GAMES = {
    "single": SINGLE,
    "1v1": DUEL,
    "2v2": TEAM,
    "2v2, shared": [*TEAM, "shared=true"],
    "2v2, joint": [*TEAM, "scheme=ctce"],
}
every_game = pytest.mark.parametrize("overrides", GAMES.values(), ids=GAMES)
ALL = "__all__"


def factory_of(overrides):
    return env_factory(compose([*overrides, "experiment=none"]))


def game(overrides, worker=0, index=0):
    return GameEnv(EnvContext({"factory": factory_of(overrides)}, worker_index=worker, vector_index=index))


def random_action(env, name, rng):
    space = env.get_action_space(name)
    return int(rng.integers(space.n)) if hasattr(space, "n") else rng.integers(space.nvec)


def transcript(env, steps, seed):
    """All that ``steps`` random steps answer; finished games start anew."""
    rng = np.random.default_rng(7)
    record = [env.reset(seed=seed)]
    for _ in range(steps):
        record.append(env.step({name: random_action(env, name, rng) for name in env.possible_agents}))
        if record[-1][2][ALL] or record[-1][3][ALL]:
            record.append(env.reset())
    return record


@every_game
def test_passes_rllib_checker_and_observations_fit_spaces(overrides):
    env = game(overrides)
    check_multiagent_environments(env)
    for step in transcript(env, 50, seed=1):
        assert all(env.get_observation_space(name).contains(tokens) for name, tokens in step[0].items())


@every_game
def test_same_actions_match_batched_environment(overrides):
    env, batched = game(overrides, worker=2, index=3), factory_of(overrides).build(1, 2 * GAMES_PER_RUNNER + 3)
    rng = np.random.default_rng(0)
    shown, _ = env.reset(seed=5)
    expected = batched.reset(5)
    ends = 0
    for _ in range(400):
        np.testing.assert_equal(shown, {name: rows[0] for name, rows in expected.items() if name in shown})
        actions = {name: random_action(env, name, rng) for name in shown}
        shown, rewards, terminated, truncated, _ = env.step(actions)
        joint = {agent.name: np.zeros((1, len(agent.seats)), np.int64) for agent in batched.specs.agents}
        joint |= {name: np.reshape(action, (1, -1)) for name, action in actions.items()}
        step = batched.step(joint)
        assert rewards == {name: step.rewards[name][0] for name in actions}
        assert {name: terminated[name] for name in actions} == {name: step.terminated[name][0] for name in actions}
        if not (terminated[ALL] or truncated[ALL]):
            assert not step.done[0]
            shown = {name: tokens for name, tokens in shown.items() if not terminated[name]}
            expected = step.observations
            continue
        ends += 1
        last = step.final_observations if step.done[0] else step.observations
        np.testing.assert_equal(shown, {name: last[name][0] for name in actions})
        while not step.done[0]:
            step = batched.step(joint)
        shown, _ = env.reset()
        expected = step.observations
        assert set(shown) == set(env.possible_agents)
    assert ends > 0 or overrides == SINGLE


def test_eliminated_agent_terminates_once():
    env, rng, seen = game(TEAM), np.random.default_rng(1), 0
    for _ in range(30):
        living = set(env.reset()[0])
        assert living == {"red_0", "red_1"}
        over = False
        while not over:
            step = env.step({name: random_action(env, name, rng) for name in living})
            for part in step[:3]:
                assert set(part) - {ALL} == living
            out = {name for name in living if step[2][name]}
            living -= out
            over = step[2][ALL] or step[3][ALL]
            assert step[2][ALL] is (not living)
            seen += bool(out) and not over
    assert seen > 5


def test_game_without_its_agents_is_played_out_and_counted_once():
    env = game([*TEAM, "scenario.seats.red_1=random"])
    rng, longer = np.random.default_rng(2), 0
    for _ in range(30):
        env.reset()
        steps, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = env.step({"red_0": int(rng.integers(7))})
            steps, over = steps + 1, terminated[ALL] or truncated[ALL]
        (length,) = env.env.drain_episodes().length
        assert length >= steps
        longer += length > steps
    assert longer > 0


@pytest.mark.parametrize("overrides", [DUEL, [*TEAM, "scenario.game.max_steps=3"]], ids=["1v1", "2v2"])
def test_rllib_sees_cutoff_as_truncated_and_win_as_terminated(overrides):
    env, rng, kinds = game(overrides), np.random.default_rng(3), set()
    for _ in range(40):
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda unit, *_: unit)
        shown, infos = env.reset()
        episode.add_env_reset(observations=shown, infos=infos)
        while not episode.is_done:
            living = episode.get_agents_to_act()
            actions = {name: random_action(env, name, rng) for name in living}
            shown, rewards, terminated, truncated, infos = env.step(actions)
            flags = {"terminateds": terminated, "truncateds": truncated}
            episode.add_env_step(shown, actions, rewards, infos, **flags)
            for name in living:
                one = episode.agent_episodes[name]
                assert one.is_terminated == terminated[name]
                assert one.is_truncated == truncated[ALL]
        assert terminated[ALL] != truncated[ALL]
        kinds.add((terminated[ALL], truncated[ALL]))
    assert (False, True) in kinds
    assert len(kinds) == 2 or "2v2" in overrides[0]


def test_seed_and_place_determine_games():
    expected = transcript(game(TEAM, index=1), 200, seed=4)
    np.testing.assert_equal(transcript(game(TEAM, index=1), 200, seed=4), expected)
    again = game(TEAM, index=1)
    transcript(again, 17, seed=9)  # left in the middle of a game
    np.testing.assert_equal(transcript(again, 200, seed=4), expected)
    for other in (game(TEAM, index=2), game(TEAM, worker=1, index=1)):
        with pytest.raises(AssertionError):
            np.testing.assert_equal(transcript(other, 200, seed=4), expected)


def test_vector_games_take_separate_places_of_shared_context():
    context = EnvContext({"factory": factory_of(DUEL)}, worker_index=1)
    first, second = GameEnv(context), GameEnv(context)
    numbers = [env.env.env.env.world.first_game for env in (first, second)]
    assert numbers == [GAMES_PER_RUNNER, GAMES_PER_RUNNER + 1]


def test_reset_of_unfinished_game_starts_new_one():
    env = game(SINGLE)
    env.reset(seed=1)
    world = env.env.env.env.world
    env.step({"red_0": 2})
    assert world.state.clock[0] == 1
    env.reset()
    assert world.state.clock[0] == 0


def test_units_receive_training_rewards():
    plain = transcript(game(SINGLE), 20, seed=2)
    paid = transcript(game([*SINGLE, "train.bonus.all.step=0.25"]), 20, seed=2)
    gained = [after[1]["red_0"] - before[1]["red_0"] for before, after in zip(plain[1:], paid[1:], strict=True)]
    assert gained == pytest.approx([0.25] * 20)


def test_rejects_central_critic():
    with pytest.raises(ValueError, match=r"^scheme: expected dtde or ctce.*, got ctde$"):
        game([*TEAM, "scheme=ctde"])
