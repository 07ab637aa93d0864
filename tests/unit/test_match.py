"""Background players on seats of another game than red/blue doors: floats are seen, actions are wide, teams any."""

import copy

import numpy as np
import pytest
from gymnasium import spaces

from multigrid_rl.models.registry import network_of
from multigrid_rl.players.episodes import play_episodes
from multigrid_rl.players.match import Match
from multigrid_rl.players.pool import OpponentPool, TeamPlayer
from multigrid_rl.streams import LEARNER_PURPOSE, MIXTURE_PURPOSE, PLAYER_PURPOSE, Streams, purpose_of
from multigrid_rl.types import AgentSpec, BatchedStep, EpisodeTable, MultiAgentSpec

DUEL = {"ann": "ann", "bob": "bob"}
PAIRS = {"player_0": "odds", "player_1": "evens", "player_2": "odds", "player_3": "evens"}


class Throws:
    """Rock, paper, scissors: every seat throws against the one before it, some sleep, and episodes end by chance.

    An action is (N, 2): the throw, and how much of it is played for. Both sums of an episode are its event columns.
    """

    def __init__(self, seats, num_envs, first=0, dtype=np.int64):
        self.seats, self.num_envs, self.dtype = list(seats), num_envs, dtype
        self.numbers = np.arange(first, first + num_envs, dtype=np.int64)
        self.reset(0)

    def reset(self, seed):
        shape = (self.num_envs, len(self.seats))
        self.rng = Streams(seed, self.numbers)
        self.sums = [np.zeros(self.num_envs, np.int32), np.zeros(shape), np.zeros((*shape, 2))]
        self.last, self.asleep, self.rows = np.zeros(shape, np.float32), np.zeros(shape, bool), []
        return self.observations()

    def observations(self):
        seen = {seat: np.stack([self.last[:, k - 1], self.sums[0]], axis=1) for k, seat in enumerate(self.seats)}
        return {seat: array.astype(np.float32) / 2 for seat, array in seen.items()}

    def step(self, actions):
        for seat in self.seats:
            assert (actions[seat].shape, actions[seat].dtype) == ((self.num_envs, 2), self.dtype), seat
        taken = np.where(self.asleep[..., None], 0, np.stack([actions[seat] for seat in self.seats], axis=1))
        self.last = taken[..., 0].astype(np.float32)
        beaten = (self.last - np.roll(self.last, 1, axis=1)) % 3
        reward, mask = np.where(beaten == 2, -1.0, beaten) * (1 + taken[..., 1]), ~self.asleep
        for total, part in zip(self.sums, (1, reward, taken), strict=True):
            np.add(total, part, out=total, casting="unsafe")
        drawn = self.rng.uniform(1 + len(self.seats))
        done, self.asleep = drawn[:, 0] < 0.2, drawn[:, 1:] < 0.3
        final = self.observations()
        if done.any():
            winner = np.where(self.sums[1][:, 0] > 0, 0, -1).astype(np.int8)
            self.rows.append(self.unfinished(done)._replace(winner=winner[done]))
            self.restart(done)
        by_seat = [dict(zip(self.seats, array.T, strict=True)) for array in (reward, done[:, None] & mask, mask)]
        return BatchedStep(self.observations(), final, *by_seat, np.zeros_like(done), done)

    def restart(self, which):
        for total in self.sums:
            total[which] = 0
        self.last[which] = 0

    def unfinished(self, which):
        none = np.full(self.num_envs, -1, np.int8), np.zeros((self.num_envs, 0), np.int16)
        return EpisodeTable._make(column[which].copy() for column in (*self.sums, *none))

    def drain_episodes(self):
        rows, self.rows = [EpisodeTable.empty(len(self.seats), 2), *self.rows], []
        return EpisodeTable.concatenate(rows)

    def drain_seconds(self):
        return {"engine": 1.0}

    def get_state(self):
        return copy.deepcopy((self.sums, self.last, self.asleep, self.rows, self.rng.state))

    def set_state(self, state):
        self.sums, self.last, self.asleep, self.rows, self.rng.state = copy.deepcopy(state)


class Thrower:
    """Throws ``throw``, or by chance where it is ``None``, for as much as it has acted in this episode."""

    def __init__(self, throw=None, dtype=np.int64):
        self.name, self.throw, self.dtype, self.views = f"throws-{throw}", throw, dtype, []

    def initial_state(self, games):
        return np.zeros(games)

    def reset_state(self, state, done):
        return np.where(done, 0, state)

    def act(self, view, state, rng):
        self.views.append(view)
        drawn = rng.uniform(1)[:, 0] * 3 // 1
        throw = drawn if self.throw is None else np.full(len(state), self.throw)
        return np.stack([throw, state], axis=1).astype(self.dtype), state + 1


def match_of(teams, players, num_envs=9, *, seed=4, first=0):
    match = Match(Throws(teams, num_envs, first), teams, players, seed=seed, first=first)
    match.reset(seed)
    return match


def played(match, steps):
    """What the learners' seats see and are paid, step by step, and the episodes."""
    shown = []
    for t in range(steps):
        seen = match.observations()
        wide = np.tile(np.array([t % 3, 1]), (match.num_envs, 1))
        step = match.step(dict.fromkeys(match.seats, wide))
        for part in step[:5]:
            assert tuple(part) == match.seats
        shown.append(copy.deepcopy((seen, step)))
    return shown, match.drain_episodes()


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_player_of_seat_reads_floats_and_acts_in_several_components(dtype):
    player = Thrower(2, dtype)
    match = Match(Throws(DUEL, 5, dtype=dtype), DUEL, {"bob": player}, seed=1)
    assert match.seats == ("ann",)
    for t in range(30):
        before = match.env.asleep.copy()
        step = match.step({"ann": np.ones((5, 2), dtype)})
        np.testing.assert_array_equal(step.mask["ann"], ~before[:, 0])
        np.testing.assert_array_equal(match.env.last[~step.done], np.where(before, 0, [1, 2])[~step.done])
        view = player.views[t]
        assert (view.tokens.shape, view.tokens.dtype, view.board, view.seat) == ((5, 2), np.float32, None, 1)
    assert {"engine", "players"} == set(match.drain_seconds())
    assert len({view.tokens[0, 1] for view in player.views}) > 3  # its memory begins anew with each episode
    assert match.drain_episodes().events[:, 1, 1].max() <= sum(range(30))


def test_pool_takes_turns_and_rows_say_who_played():
    match = match_of(DUEL, {"bob": OpponentPool([Thrower(1), Thrower(2)], [3, 1])}, 300)
    table = played(match, 40)[1]
    assert table.players.shape == (table.episodes, 1)
    assert table.episodes > 1000
    assert 0.7 < (table.players[:, 0] == 0).mean() < 0.8
    awake = table.events[:, 1, 0] > 0
    throws = np.where(table.players[:, 0] == 0, 1, 2)
    np.testing.assert_array_equal(table.events[awake, 1, 0] % throws[awake], 0)
    assert (table.events[:, 1, 0] <= throws * table.length).all()
    rest = match.unfinished(np.arange(300) < 7)
    assert (rest.episodes, rest.players.shape, rest.winner.tolist()) == (7, (7, 1), [-1] * 7)


def test_player_of_team_acts_for_all_its_seats_by_name():
    members = [Thrower(1), Thrower(2)]
    team = OpponentPool([TeamPlayer("both", [Wide(member) for member in members])], [1])
    match = match_of(PAIRS, {"evens": team, "player_0": Thrower()})
    assert match.seats == ("player_2",)
    table = played(match, 12)[1]
    assert table.players.shape == (table.episodes, 2)
    assert [member.views[0].seat for member in members] == [1, 2]  # `TeamPlayer` counts seats from its first
    assert [member.views[0].tokens.shape for member in members] == [(9, 2)] * 2
    assert set(match.env.last[:, 1]) <= {0, 1}
    assert set(match.env.last[:, 3]) <= {0, 2}


class Wide(Thrower):
    """One that ``TeamPlayer`` combines: it has no memory."""

    def __init__(self, member):
        super().__init__(member.throw)
        self.views = member.views

    def initial_state(self, games):
        return None

    def act(self, view, state, rng):
        return super().act(view, np.zeros(len(view.tokens)), rng)[0], None


def test_resumed_match_goes_on_as_unbroken_one():
    def fresh():
        mixture = OpponentPool([Thrower(0), Thrower(), Thrower(2)], [1, 1, 1])
        return match_of(PAIRS, {"evens": Pair(mixture), "player_0": OpponentPool([Thrower(1), Thrower()], [1, 2])})

    whole, broken = fresh(), fresh()
    for match in (whole, broken):
        played(match, 7)
        match.step({"player_2": np.ones((9, 2), np.int64)})
    state = broken.get_state()
    played(broken, 5)  # the state is a copy
    resumed = fresh()
    played(resumed, 3)
    resumed.set_state(state)
    np.testing.assert_equal(resumed.unfinished(np.ones(9, bool)), whole.unfinished(np.ones(9, bool)))
    np.testing.assert_equal(played(resumed, 40), played(whole, 40))
    with pytest.raises(ValueError, match=r"^state: expected 0 background players, got 2$"):
        match_of(PAIRS, {}).set_state(state)


class Pair:
    """A pool's players as ones that act for two seats alike."""

    def __init__(self, pool):
        self.pool, self.name = pool, pool.name
        self.initial_state, self.reset_state, self.assign = pool.initial_state, pool.reset_state, pool.assign
        self.with_memories = pool.with_memories

    def act(self, view, state, rng):
        assert view.tokens.shape[1] == 4
        actions, state = self.pool.act(view, state, rng)
        return np.tile(actions, 2), state


def test_restarted_episodes_are_in_no_table():
    match = match_of(DUEL, {"bob": OpponentPool([Thrower(1), Thrower(2)], [1, 1])})
    played(match, 3)
    match.restart(np.arange(9) < 4)
    assert (match.unfinished(np.ones(9, bool)).length[:4] == 0).all()
    assert match.drain_episodes().players.shape == (0, 1)


def test_episodes_are_played_with_a_player_in_place_of_the_agent():
    agent = AgentSpec("ann", "ann", ("ann",), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 9]))
    match, player = match_of(DUEL, {"bob": OpponentPool([Thrower(1), Thrower(2)], [1, 1])}), Thrower(2)
    table = play_episodes(match, [agent], {"ann": player}, 9, seed=3).full_table()
    assert (table.episodes, table.players.shape, player.views[0].seat) == (9, (9, 1), 0)
    assert (table.winner == np.where(table.returns[:, 0] > 0, 0, -1)).all()


@pytest.mark.parametrize("name", ["carl", "red", ""])
def test_rejects_player_of_unknown_seat(name):
    with pytest.raises(ValueError, match=f"^seat: expected ann, bob, got '{name}'$"):
        Match(Throws(DUEL, 1), DUEL, {name: Thrower(1)})


def test_each_team_draws_by_its_own_stream():
    teams = {"ann": "red", "bob": "others"}  # red keeps its number where there is no blue, others come after both
    match = Match(Throws(teams, 50), teams, {seat: OpponentPool([Thrower(0), Thrower(1)], [1, 1]) for seat in teams})
    for seated, purpose in zip(match._pooled, (1, 2), strict=True):
        drawn = Streams(0, np.arange(50), MIXTURE_PURPOSE + purpose).uniform(1)[:, 0]
        assert seated.memory.chosen.tolist() == (drawn >= 0.5).tolist()


def test_players_pools_learners_and_experts_of_a_large_game_share_no_stream():
    from multigrid_rl.imitation.dagger import LabellingCollector  # noqa: PLC0415 - an add-on may be left out

    seats = [f"p_{k}" for k in range(200)]
    teams = {seat: seat if k < 60 else "others" for k, seat in enumerate(seats)}
    players = {seat: OpponentPool([Thrower(0), Thrower(1)], [1, 1]) for seat in seats[:60]}
    learning = seats[100:]
    players |= {seat: Thrower(1) for seat in seats[60:100]}
    match = match_of(teams, players, 2)
    space, acts = spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 9])
    agents = tuple(AgentSpec(seat, "one", (seat,), space, acts) for seat in learning)
    net = network_of(agents[0], {"name": "mlp", "hidden": [4], "activation": "tanh"})
    collector = LabellingCollector(
        match,
        MultiAgentSpec(agents, tuple(seats), tuple(teams.values()), (*seats[:60], "others"), ()),
        {"one": net},
        seed=4,
        first=0,
        steps=1,
        experts=dict.fromkeys(learning, Thrower(2)),
    )
    drawn = [seated.streams for _, seated in match.seated()] + [seated.mixture for seated in match._pooled]
    drawn += [*collector.streams.values(), *collector._mixture.values()]
    drawn += [expert.streams for expert in collector._experts.values()]
    assert len(drawn) == 100 + 60 + 3 * 100
    assert len(np.unique([stream.state for stream in drawn])) == 2 * len(drawn)


def test_streams_of_games_of_up_to_32_seats_keep_their_purposes():
    assert [purpose_of(PLAYER_PURPOSE, 31), purpose_of(LEARNER_PURPOSE, 31)] == [47, 95]
    assert purpose_of(MIXTURE_PURPOSE, 15, room=16) == 63
