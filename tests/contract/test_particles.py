"""The batched particle worlds against ``mpe2``, step by step."""

import numpy as np
import pytest

from multigrid_rl.envs.particles import SPREAD, TAG, ParticleEnvs, plays
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.envs.zoo import describe_game

pytest.importorskip("mpe2")
GAMES = 5
WORLDS = [
    (SPREAD, {}),
    (SPREAD, {"N": 4, "local_ratio": 0.2, "max_cycles": 13}),
    (SPREAD, {"max_episode_steps": 9}),
    (TAG, {}),
    (TAG, {"num_good": 2, "num_obstacles": 3}),
]


def both(env_id, env_args):
    """Return the same games, played by the package and in one call."""
    teams = dict.fromkeys(describe_game(env_id, env_args).seats, "one")
    game = ZooSpec(env_id, env_args, teams, wins=False, gaps=False)
    return [kind(game, GAMES, seed=3, first=7) for kind in (PettingZooEnvs, ParticleEnvs)]


def drawn(env, generator):
    return {seat: generator.integers(0, 5, (GAMES, 1)) for seat in env.seats}


@pytest.mark.parametrize(("env_id", "env_args"), WORLDS)
def test_games_in_one_call_show_and_pay_what_the_package_does(env_id, env_args):
    theirs, ours = both(env_id, env_args)
    generator = np.random.default_rng(0)
    for _ in range(150):
        np.testing.assert_equal(ours.observations(), theirs.observations())
        actions = drawn(theirs, generator)
        wanted, got = theirs.step(actions), ours.step(actions)
        for seat in theirs.seats:
            np.testing.assert_allclose(got.rewards[seat], wanted.rewards[seat], rtol=0, atol=1e-14)
        for part in ("final_observations", "terminated", "done", "truncated"):
            np.testing.assert_equal(getattr(got, part), getattr(wanted, part))


@pytest.mark.parametrize("stepped_by", [0, 1], ids=["the package", "one call"])
def test_games_go_on_where_their_state_was_asked(stepped_by):
    env, (_, again) = both(TAG, {})[stepped_by], both(TAG, {})
    generator = np.random.default_rng(1)
    for _ in range(30):
        env.step(drawn(env, generator))
    state, actions = env.get_state(), [drawn(env, generator) for _ in range(40)]
    wanted = [env.step(one).rewards["agent_0"].copy() for one in actions]
    again.set_state(state)
    np.testing.assert_allclose([again.step(one).rewards["agent_0"] for one in actions], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("env_id", "env_args"),
    [(SPREAD, {"continuous_actions": True}), (TAG, {"curriculum": True}), ("pettingzoo:mpe2.simple_push_v3", {})],
)
def test_a_world_of_other_rules_is_the_packages(env_id, env_args):
    assert not plays(env_id, env_args)


def test_a_version_that_is_not_known_is_the_packages(monkeypatch):
    assert plays(SPREAD, {})
    monkeypatch.setattr("multigrid_rl.envs.particles.version", lambda _: "2.0.0")
    assert not plays(SPREAD, {})
