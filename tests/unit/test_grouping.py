"""Who learns what from which observation, under each scheme."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete

from multigrid_rl.envs.grouping import agents_of
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
def test_dtde_gives_each_seat_own_network_and_view(size):
    seats = [f"red_{k}" for k in range(size)]
    wanted = [AgentSpec(seat, seat, (seat,), MultiDiscrete(OWN), MultiDiscrete([7])) for seat in seats]
    assert agents("dtde", False, red=size) == tuple(wanted)


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


@pytest.mark.parametrize("size", SIZES)
def test_ctce_team_is_one_agent_with_all_views(size):
    seats = tuple(f"red_{k}" for k in range(size))
    assert agents("ctce", False, red=size) == (
        AgentSpec("red", "red", seats, MultiDiscrete(OWN * size), MultiDiscrete([7] * size)),
    )


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


def test_tokens_stay_below_their_categories():
    for scheme in ("dtde", "ctde", "ctce"):
        env = factory(scheme).build(GAMES, 0)
        for actions in list(random_actions(4))[:60]:
            taken = {"red": actions} if scheme == "ctce" else {"red_0": actions[:, :1], "red_1": actions[:, 1:]}
            shown = env.step(taken).observations
            for agent in env.specs.agents:
                spaces = [agent.observation_space] + [agent.critic_space] * (scheme == "ctde")
                assert shown[agent.name].shape == (GAMES, agent.observation_size)
                assert (shown[agent.name] < np.concatenate([space.nvec for space in spaces])).all()


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
