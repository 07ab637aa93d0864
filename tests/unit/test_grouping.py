"""Who learns what from which observation, under each scheme."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete

from dynamic_agents import AGENTS, DynamicAgents
from multigrid_rl.envs.base import AGENT
from multigrid_rl.envs.grouping import agents_of
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.learn.turns import Gaps
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.factories import MatchFactory, match_of
from multigrid_rl.players.match import Match
from multigrid_rl.types import AgentSpec, GameSpec
from multigrid_rl.world.constants import EVENTS
from multigrid_rl.world.state import token_categories

OWN = (23, 4)  # a seat's own view, made short
SIZES = [1, 2, 3]
GAMES, STEPS, NONE = 24, 120, 7
SPEC = GameSpec(blue=2, red=2, random_keys=False, death_match=True, max_steps=40)
BLUE = {"blue_0": {"hunter": 1.0}, "blue_1": {"random": 1.0}}


def agents(scheme: str, shared: bool, **teams: int) -> tuple[AgentSpec, ...]:
    seats = {f"{team}_{k}": team for team, size in teams.items() for k in range(size)}
    return agents_of(scheme, shared=shared, seats=seats, view=OWN, choices=7)


def critics(found: tuple[AgentSpec, ...]) -> list[tuple[int, ...] | None]:
    """What only the critic of each agent reads."""
    return [None if agent.critic_space is None else tuple(agent.critic_space.nvec) for agent in found]


# --- agents


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["dtde", "ctde"])
def test_shared_team_uses_one_network(scheme, size):
    apart, shared = agents(scheme, False, blue=size, red=2), agents(scheme, True, blue=size, red=2)
    assert [agent.module for agent in apart] == [agent.name for agent in apart]
    assert [agent.module for agent in shared] == ["blue"] * size + ["red"] * 2
    assert [replace(agent, module=agent.name) for agent in shared] == list(apart)


@pytest.mark.parametrize(
    ("size", "central"),
    [(1, (8,)), (2, (23, 4, 8, 8)), (3, (23, 4, 23, 4, 8, 8, 8))],  # mates' views, own last action, mates' last actions
)
def test_ctde_critic_sees_mates_views_and_all_last_actions(size, central):
    found = agents("ctde", False, red=size)
    assert [(agent.name, agent.seats) for agent in found] == [(f"red_{k}", (f"red_{k}",)) for k in range(size)]
    assert critics(found) == [central] * size
    assert all(agent.observation_space == MultiDiscrete(OWN) for agent in found)
    assert found[0].observation_size == 2 + len(central)


def test_teams_are_never_mixed():
    assert [(agent.name, agent.seats) for agent in agents("ctce", False, blue=2, red=1)] == [
        ("blue", ("blue_0", "blue_1")),
        ("red", ("red_0",)),
    ]
    assert critics(agents("ctde", False, blue=2, red=1)) == [(23, 4, 8, 8)] * 2 + [(8,)]


def factory(scheme: str, shared: bool = False, spec: GameSpec = SPEC, opponents=BLUE) -> MatchFactory:
    return MatchFactory(spec, opponents, Path("nowhere"), {}, seed=3, scheme=scheme, shared=shared)


def test_specs_describe_participants():
    specs = factory("ctce").specs
    assert specs.seats == ("blue_0", "blue_1", "red_0", "red_1")
    assert specs.teams == ("blue", "blue", "red", "red")
    assert (specs.modules, specs.learning) == (("red",), ("red_0", "red_1"))
    assert specs.members("blue") == ("blue_0", "blue_1")
    assert specs.events == EVENTS
    assert factory("dtde", shared=True).specs.modules == ("red",)
    assert factory("dtde").specs.modules == ("red_0", "red_1")
    assert factory("ctce").specs.agent_of("red").observation_space == MultiDiscrete(token_categories(SPEC) * 2)


# --- agents on a real match


def twin_match() -> Match:
    return match_of(SPEC, {seat: BUILT_IN[next(iter(names))](SPEC) for seat, names in BLUE.items()}, GAMES, seed=3)


def random_actions(seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        yield rng.integers(0, 7, (GAMES, 2))


def test_dtde_equals_plain_match():
    env, match = factory("dtde").build(GAMES, 0), twin_match()
    np.testing.assert_equal(env.observations(), match.observations())
    for actions in random_actions(1):
        step = env.step({"red_0": actions[:, :1], "red_1": actions[:, 1:]})
        wanted = match.step({"red_0": actions[:, 0], "red_1": actions[:, 1]})
        for part in ("observations", "rewards", "terminated"):
            np.testing.assert_equal(getattr(step, part), getattr(wanted, part))
        np.testing.assert_equal(step.mask, {seat: column[:, None] for seat, column in wanted.mask.items()})


def test_ctce_joins_views_sums_rewards_and_ends_with_all():
    env, match = factory("ctce").build(GAMES, 0), twin_match()
    half = one_out = 0
    for actions in random_actions(2):
        step = env.step({"red": actions})
        wanted = match.step({"red_0": actions[:, 0], "red_1": actions[:, 1]})
        parts = [(step.observations, wanted.observations, np.ones(GAMES, bool))]
        parts += [(step.final_observations, wanted.final_observations, step.done)] if step.done.any() else []
        for shown, tokens, rows in parts:
            both = np.concatenate([tokens["red_0"], tokens["red_1"]], axis=1)
            np.testing.assert_array_equal(shown["red"][rows], both[rows])
        np.testing.assert_allclose(step.rewards["red"], wanted.rewards["red_0"] + wanted.rewards["red_1"], rtol=1e-12)
        ended = np.stack([wanted.terminated["red_0"], wanted.terminated["red_1"]], axis=1)
        np.testing.assert_array_equal(step.terminated["red"], ended.all(axis=1))
        np.testing.assert_array_equal(step.mask["red"], np.stack([wanted.mask["red_0"], wanted.mask["red_1"]], axis=1))
        half += int((ended.any(axis=1) & ~ended.all(axis=1)).sum())
        one_out += int((step.mask["red"].sum(axis=1) == 1).sum())
    assert half > 10  # it happened that one member was out and the team was not
    assert one_out > 10


def test_ctde_shows_own_view_mates_view_and_last_actions():
    env, match = factory("ctde").build(GAMES, 0), twin_match()
    mates = {"red_0": "red_1", "red_1": "red_0"}
    last = {seat: np.full(GAMES, NONE) for seat in mates}

    def wanted_of(tokens, seat):
        mate = mates[seat]
        return np.concatenate([tokens[seat], tokens[mate], last[seat][:, None], last[mate][:, None]], axis=1)

    for seat in mates:
        np.testing.assert_array_equal(env.observations()[seat], wanted_of(match.observations(), seat))
    ends = absent = 0
    for actions in random_actions(3):
        taken = {"red_0": actions[:, 0], "red_1": actions[:, 1]}
        step = env.step({seat: row[:, None] for seat, row in taken.items()})
        plain = match.step(taken)
        last = {seat: np.where(plain.mask[seat], taken[seat], NONE) for seat in mates}
        for seat in mates if step.done.any() else ():
            final = wanted_of(plain.final_observations, seat)
            np.testing.assert_array_equal(step.final_observations[seat][step.done], final[step.done])
            ends += int((last[seat][step.done] != NONE).sum())
        last = {seat: np.where(plain.done, NONE, row) for seat, row in last.items()}
        for seat in mates:
            np.testing.assert_array_equal(step.observations[seat], wanted_of(plain.observations, seat))
            absent += int((~plain.mask[seat] & ~plain.done).sum())
    assert ends > 20
    assert absent > 10  # eliminated seats were there, and have no last action


def test_reset_clears_last_actions():
    env = factory("ctde").build(GAMES, 0)
    begun = {seat: shown.copy() for seat, shown in env.reset(5).items()}
    env.step({"red_0": np.full((GAMES, 1), 2), "red_1": np.full((GAMES, 1), 0)})
    assert (env.observations()["red_0"][:, -2:] == [2, 0]).all()
    assert (env.observations()["red_1"][:, -2:] == [0, 2]).all()
    np.testing.assert_equal(env.reset(5), begun)
    assert all((shown[:, -2:] == NONE).all() for shown in begun.values())


def test_episodes_are_reported_by_seat_in_every_scheme():
    tables = []
    for scheme in ("dtde", "ctde", "ctce"):
        env = factory(scheme).build(GAMES, 0)
        for actions in random_actions(6):
            env.step({"red": actions} if scheme == "ctce" else {"red_0": actions[:, :1], "red_1": actions[:, 1:]})
        tables.append(env.drain_episodes())
    assert tables[0].episodes > GAMES
    assert tables[0].returns.shape[1] == 4
    for other in tables[1:]:
        np.testing.assert_equal(tables[0], other)


# --- agents that decide now and then, come and go


GAMMA, LAM, EACH = 0.9, 0.8, 7


def collector(env, *, name="mlp") -> StepCollector:
    torch.set_num_threads(1)
    net = network_of(AGENTS.agents[0], {"name": name, "hidden": [4]}, seed=1)
    return collector_of(env, AGENTS, {AGENT: net}, seed=3, first=0, steps=EACH)


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
        assert len(one.obs) == 5 * EACH
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
