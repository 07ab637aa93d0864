"""Batches that are played in one compiled call: the same numbers as step by step, or step by step."""

import copy

import numpy as np
import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.models.registry import network_of

SMALL = ["experiment=none", "model.hidden=[64,64]", "train.num_envs=12", "train.minibatch_size=96"]
SHORT = "scenario.game.max_steps=7"
GAMES = {
    "rookie": ["scenario=1v1"],
    "time limits, no bonus": ["scenario=1v1", SHORT],
    "a bonus": ["scenario=1v1", "train.bonus={all: {key_pickup: 1.0, step: -0.01}}", SHORT],
    "a reward function of the user's": ["scenario=1v1", "train.shaping=tests.unit.test_compiled_match:halved", SHORT],
    "on the other side": ["scenario=1v1", "scenario.seats.red_0=blue-rookie", "scenario.seats.blue_0=learn"],
    "both learn": ["scenario=1v1", "scenario.seats.blue_0=learn"],
    "alone": ["scenario=single", SHORT],
    "a team as one": ["scenario=2v2-deathmatch", "scheme=ctce", "scenario.game.max_steps=15"],
    "critics that see mates": ["scenario=2v2-deathmatch", "scheme=ctde", "scenario.game.max_steps=15"],
    "a network for all": ["scenario=2v2", "scheme=dtde", "shared=true", "train.bonus={all: {mates: 0.5}}"],
}
ROOKIES = ["scenario.seats.blue_0=2v2-rookie", "scenario.seats.blue_1=2v2-rookie"]


def halved(events, reward):
    return reward / 2 + events[..., 0]


def collector(overrides, *, whole: bool) -> StepCollector:
    config = compose([*SMALL, *overrides])
    factory = env_factory(config)
    networks = {}
    for module in factory.specs.modules:
        networks[module] = net = network_of(factory.specs.agent_of(module), config.model.model_dump())
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if name.startswith("policy"):
                    weight.mul_(20)  # far from uniform, so that games differ by who plays them
    env = factory.build(12, 5)
    if not whole:
        env.play = lambda acting: None
    return collector_of(env, factory.specs, networks, seed=3, first=5, steps=16)


def equal(one, two) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = [*one.values()], [*two.values()]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            equal(a, b)
        return
    if isinstance(one, torch.Tensor):
        one, two = one.numpy(), two.numpy()
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", GAMES)
def test_a_batch_in_one_call_is_the_batch_step_by_step(name):
    overrides = GAMES[name] + (ROOKIES if "2v2" in GAMES[name][0] else [])
    one, other = collector(overrides, whole=True), collector(overrides, whole=False)
    calls = []
    play = one.env.play
    one.env.play = lambda acting: calls.append(play(acting)) or calls[-1]
    ended = 0
    for k in range(12):
        equal(one.collect(), other.collect())
        equal(one.paths(), other.paths())
        table = one.env.drain_episodes()
        equal(table, other.env.drain_episodes())
        ended += table.episodes
        if k == 5:  # what one goes on from, the other can go on from
            states = one.get_state(), other.get_state()
            equal(*states)
            one.set_state(copy.deepcopy(states[1]))
    assert ended > 3
    assert None not in calls


def test_a_reward_that_comes_later_is_paid():
    one, other = collector(["scenario=1v1"], whole=True), collector(["scenario=1v1"], whole=False)
    for shaping in (None, halved):
        for side in (one, other):
            side.env.env.env.shaping = shaping
        for _ in range(3):
            equal(one.collect(), other.collect())


@pytest.mark.parametrize(
    "overrides",
    [
        ["scenario=1v1", "scenario.seats.blue_0=hunter"],  # no network
        ["scenario=1v1", "scenario.seats.blue_0={blue-rookie: 1, blue-adept: 1}"],  # a pool
        ["scenario=1v1", "model.hidden=[64]"],  # another depth than the rookie's
        ["scenario=1v1", "model=gru", "model.hidden=[64]"],
    ],
    ids=["scripted", "pool", "depth", "memory"],
)
def test_who_cannot_be_compiled_together_plays_step_by_step(overrides):
    one, other = collector(overrides, whole=True), collector(overrides, whole=False)
    for _ in range(3):
        equal(one.collect(), other.collect())
    parts = {**one.clock.drain(), **one.env.drain_seconds()}
    assert "engine" in parts
    assert "play" not in parts
