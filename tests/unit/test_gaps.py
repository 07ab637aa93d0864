"""Agents that decide now and then, come and go: every decision is learned from once, with all that it was paid."""

import pickle

import numpy as np
import pytest
import torch

from dynamic_agents import AGENTS, DynamicAgents
from multigrid_rl.envs.base import AGENT
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.learn.turns import Gaps
from multigrid_rl.models.registry import network_of

GAMMA, LAM, STEPS = 0.9, 0.8, 7


def collector(env, *, name="mlp") -> StepCollector:
    torch.set_num_threads(1)
    net = network_of(AGENTS.agents[0], {"name": name, "hidden": [4]}, seed=1)
    return collector_of(env, AGENTS, {AGENT: net}, seed=3, first=0, steps=STEPS)


def collected(env, batches: int):
    """Batches with the paths that they can be computed anew from."""
    playing = collector(env)
    found = []
    for _ in range(batches):
        rollout = playing.collect()[AGENT]
        found.append((estimate(rollout, Estimator(GAMMA, LAM)), playing.paths()[AGENT], rollout.mask[..., 0].copy()))
    return playing, found


def value(playing, obs) -> float:
    with torch.inference_mode():
        return float(playing.networks[AGENT](torch.from_numpy(obs[None]))[1][0])


def advantages_by_hand(playing, decisions):
    """Advantages of one place's decisions of one batch: GAE as it is written down, one decision after the other."""
    result, following = [], 0.0
    for seen, paid, end, then in reversed(decisions):
        ahead = 0.0 if end == "terminated" else value(playing, then)
        following = (0.0 if end != "next" else following) * GAMMA * LAM + paid + GAMMA * ahead - value(playing, seen)
        result.append(following)
    return result[::-1]


def test_every_decision_is_batched_once_with_full_reward():
    env = DynamicAgents()
    playing, batches = collected(env, 6)
    by_place = [list(story) for story in env.story]
    kinds = set()
    for batch, paths, mask in batches:
        row = 0
        expected = np.zeros(len(batch.obs))
        numbers = np.cumsum(mask.ravel()).reshape(mask.shape) - 1  # of the row of each place and step
        for k in range(env.num_envs):
            rows = numbers[mask[:, k], k]
            mine, by_place[k] = by_place[k][: len(rows)], by_place[k][len(rows) :]
            kinds |= {end for _, _, end, _ in mine}
            assert all(end for _, _, end, _ in mine)  # whoever waits for what comes of it is not in a batch yet
            assert np.array_equal(batch.obs[rows], np.array([seen for seen, *_ in mine]).reshape(-1, 3))
            expected[rows] = advantages_by_hand(playing, mine)
            row += len(rows)
        assert row == len(batch.obs)
        assert batch.advantages == pytest.approx(expected, abs=1e-5)
        assert batch.targets == pytest.approx(expected + batch.values, abs=1e-5)
        # Advantages that are computed anew before another pass are the same where nothing has changed.
        final, last = (
            np.array([value(playing, obs) for obs in seen], np.float32) for seen in (paths.final_obs, paths.last_obs)
        )
        again, _ = paths.weigh(batch.values, final, last, Estimator(GAMMA, LAM))
        assert again == pytest.approx(batch.advantages, abs=1e-5)
    assert kinds == {"next", "terminated", "truncated"}
    waiting = playing._gaps[AGENT].waiting["mask"][:, 0]
    for k, left in enumerate(by_place):
        assert len(left) == waiting[k]  # nothing else is missing
        assert all(end == "" for _, _, end, _ in left)


def test_total_reward_is_conserved():
    env = DynamicAgents(seed=4)
    _, batches = collected(env, 8)
    open_ = sum(paid for story in env.story for _, paid, end, _ in story if end == "")
    paid = sum(paid for story in env.story for _, paid, *_ in story)
    assert sum(float(paths.rewards[paths.active].sum()) for _, paths, _ in batches) == pytest.approx(
        paid - open_, abs=1e-4
    )


@pytest.mark.parametrize("psi", ["total_reward", "future_return", "td"])
def test_ongoing_path_counts_from_its_first_row(psi):
    playing, _ = collected(DynamicAgents(seed=2), 2)
    rollout = playing.collect()[AGENT]
    batch = estimate(rollout, Estimator(1.0, 1.0, psi, critic=False))
    active = rollout.mask[..., 0]
    weights = np.zeros(active.shape, np.float32)
    weights[active] = batch.advantages
    for k in range(active.shape[1]):
        rows = np.flatnonzero(active[:, k])
        for t in rows:
            begin = max(s for s in rows if s <= t and rollout.starts[s, k]) if psi == "total_reward" else t
            end = next((s for s in rows if s >= begin and rollout.done[s, k]), rows[-1])
            span = [s for s in rows if begin <= s <= (t if psi == "td" else end)]
            assert weights[t, k] == pytest.approx(rollout.rewards[span, k].sum(), abs=1e-5)


def test_agents_without_gaps_make_unchanged_batch():
    class Steady(DynamicAgents):
        deciding = None

    with_gaps, without = (collector(kind(always=True, seed=6)) for kind in (DynamicAgents, Steady))
    for _ in range(3):
        one, two = (estimate(playing.collect()[AGENT], Estimator(GAMMA, LAM)) for playing in (with_gaps, without))
        assert len(one.obs) == 5 * STEPS
        np.testing.assert_equal(one, two)


def test_state_resumes_exactly():
    playing, _ = collected(DynamicAgents(seed=8), 3)
    state = pickle.loads(pickle.dumps(playing.get_state()))
    ahead = [estimate(playing.collect()[AGENT], Estimator(GAMMA, LAM)) for _ in range(3)]
    twin = collector(DynamicAgents(seed=1))
    twin.set_state(state)
    for batch in ahead:
        np.testing.assert_equal(estimate(twin.collect()[AGENT], Estimator(GAMMA, LAM)), batch)


def test_rejects_recurrent_network():
    with pytest.raises(ValueError, match=r"^model: expected a network without memory"):
        collector(DynamicAgents(), name="gru")


def test_who_died_is_dead_though_the_others_play_on_into_the_next_batch():
    shape = (4, 1)
    columns = {name: np.zeros((*shape, 1), np.float32) for name in ("obs", "actions", "logp", "entropy")}
    columns |= {name: np.zeros(shape, np.float32) for name in ("values", "next_values", "rewards")}
    columns |= {name: np.zeros(shape, bool) for name in ("terminated", "done", "starts")}
    columns["mask"], cut = np.zeros((*shape, 1), bool), np.zeros(shape, bool)
    gaps = Gaps(columns, cut, "one", lambda: {"one": np.zeros(1, bool)})
    gaps.open()
    columns["mask"][1:, 0, 0], columns["terminated"][1:, 0] = [True, True, False], [False, True, False]
    columns["rewards"][1:, 0] = [0, -1, 0]
    gaps.close(np.zeros((1, 1)), np.zeros(1), np.zeros((0, 1)))
    kept = pickle.loads(pickle.dumps(gaps.waiting))
    gaps.open()
    for name in ("mask", "terminated", "done", "rewards", "starts", "next_values"):
        columns[name][1:] = 0
    columns["done"][2] = cut[2] = True  # a time limit ends the others' episode
    gaps.close(np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)))
    active = columns["mask"][..., 0]
    assert columns["rewards"][active].tolist() == [-1]
    assert columns["terminated"][active].tolist() == [True]
    assert kept["terminated"].tolist() == [True]
