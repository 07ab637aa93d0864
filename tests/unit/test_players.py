"""Players and matches: strengths, streams, the episode table and auto-reset."""

from dataclasses import replace

import numpy as np
import pytest

from games import Always
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.classes import checked_player
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.match import Match
from multigrid_rl.players.scripted import IdlePlayer, RandomPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.types import EpisodeTable, GameSpec, Policy, Rules, SeatView
from multigrid_rl.world.constants import ACTIONS, BLUE, DONE, EVENTS, RED

FAIR = load_scenario("1v1").spec
CLASSIC = replace(FAIR, rules=Rules.classic())
SHORT = replace(FAIR, max_steps=12)


def played(spec: GameSpec, episodes: int = 1000, seed: int = 1, **names: str) -> EpisodeTable:
    players = {seat: BUILT_IN[name](spec) for seat, name in names.items()}
    return play_games(spec, players, episodes, seed=seed).full_table()


def share(table: EpisodeTable, team: int) -> float:
    return float(np.mean(table.winner == team))


def scripted_actions(seed: int, steps: int, games: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, len(ACTIONS), (steps, games)).astype(np.int8)


def blank_view(games: int) -> SeatView:
    return SeatView(np.zeros((games, FAIR.num_tokens), np.uint8), None, 0)


# --- simple players


def test_random_plays_every_action_with_same_probability():
    games = 70_000
    actions, _ = RandomPlayer().act(blank_view(games), None, Streams(1, np.arange(games, dtype=np.int64)))
    counts = np.bincount(actions, minlength=7)
    assert len(counts) == len(ACTIONS)
    # 99.9 % quantile of chi-square with 6 degrees of freedom.
    assert ((counts - games / 7) ** 2 / (games / 7)).sum() < 22.46


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_players_have_names_and_no_memory(name):
    player = BUILT_IN[name](FAIR)
    assert player.name == name
    assert player.initial_state(4) is None
    assert player.reset_state(None, np.ones(4, bool)) is None


@pytest.mark.parametrize("name", ["key-runner", "hunter"])
def test_scripted_players_reject_view_without_board(name):
    with pytest.raises(ValueError, match=f"^player {name}: expected a view with the whole board"):
        BUILT_IN[name](FAIR).act(blank_view(3), None, Streams(1, np.arange(3, dtype=np.int64)))


# --- strengths (docs/game.md, section 9)


@pytest.mark.parametrize(
    ("name", "wins", "length", "returns"),
    [("key-runner", (0.90, 1.0), (0, 20), (1.25, 1.43)), ("hunter", (0.88, 0.96), (9.3, 10.1), (0.70, 0.90))],
)
def test_strength_against_uniform_matches_original(name, wins, length, returns):
    table = played(CLASSIC, red_0=name, blue_0="random")
    found = share(table, RED), table.length.mean(), table.returns[:, 1].mean()
    assert all(low <= value <= high for value, (low, high) in zip(found, (wins, length, returns), strict=True)), found


def test_first_handled_of_two_key_runners_wins_most():
    table = played(CLASSIC, red_0="key-runner", blue_0="key-runner")
    assert 0.72 <= share(table, BLUE) <= 0.88
    assert table.length.mean() == pytest.approx(13.2, abs=0.3)


def test_fair_rules_favour_neither_key_runner():
    table = played(FAIR, episodes=2000, red_0="key-runner", blue_0="key-runner")
    assert share(table, BLUE) == pytest.approx(0.5, abs=0.05)
    assert share(table, RED) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("scenario", "best"), [("single", 1.4883), ("single-v3", 1.49085937)])
def test_key_runner_plays_shortest_single_game(scenario, best):
    table = played(load_scenario(scenario).spec, episodes=5, red_0="key-runner")
    assert table.length.tolist() == [13] * 5
    assert table.returns[:, 0] == pytest.approx([best] * 5)


@pytest.mark.parametrize("scenario", ["single-obstacle", "single-obstacle-v3"])
def test_key_runner_solves_every_game_with_obstacle(scenario):
    table = played(load_scenario(scenario).spec, episodes=300, red_0="key-runner")
    assert share(table, RED) == 1.0
    assert table.length.min() >= 23  # nobody can do it in fewer
    assert table.length.max() <= 60


@pytest.mark.parametrize("runner", ["red_0", "red_1"])
def test_key_runner_solves_coop_with_idle_mate(runner):
    names = {"red_0": "idle", "red_1": "idle", runner: "key-runner"}
    assert share(played(load_scenario("coop").spec, episodes=300, **names), RED) == 1.0


def test_two_key_runners_rarely_block_each_other_in_coop():
    table = played(load_scenario("coop").spec, red_0="key-runner", red_1="key-runner")
    assert share(table, RED) >= 0.95


# --- whole games


@pytest.mark.parametrize(("given", "empty"), [({"red_0": "idle"}, "blue_0"), ({}, "blue_0, red_0")])
def test_rejects_empty_seats(given, empty):
    with pytest.raises(ValueError, match=f"^players: expected one for each of blue_0, red_0, got none for {empty}$"):
        played(FAIR, 3, **given)


# --- matches


class Recorder:
    """Plays as another player and remembers what it did."""

    def __init__(self, player: Policy) -> None:
        self.name, self.player = player.name, player
        self.actions: list[np.ndarray] = []

    def initial_state(self, games):
        return self.player.initial_state(games)

    def reset_state(self, state, done):
        return self.player.reset_state(state, done)

    def act(self, view, state, rng):
        actions, following = self.player.act(view, state, rng)
        self.actions.append(actions.copy())
        return actions, following


@pytest.mark.parametrize("name", ["random", "hunter", "key-runner"])
def test_game_k_alone_plays_as_game_k_among_16(name):
    games, k, steps = 16, 11, 80
    spec = replace(FAIR, max_steps=40)
    actions = scripted_actions(8, steps, games)
    together, alone = Recorder(BUILT_IN[name](spec)), Recorder(BUILT_IN[name](spec))
    many = match_of(spec, {"blue_0": together}, games, seed=6)
    one = match_of(spec, {"blue_0": alone}, 1, seed=6, first=k)
    for row in actions:
        wide, narrow = many.step({"red_0": row}), one.step({"red_0": row[k : k + 1]})
        np.testing.assert_array_equal(wide.observations["red_0"][k], narrow.observations["red_0"][0])
    assert np.array(together.actions)[:, k].tolist() == np.array(alone.actions)[:, 0].tolist()
    assert many.drain_episodes().episodes > one.drain_episodes().episodes > 0  # new games began on the way


def test_player_memory_resets_with_each_game():
    player = Always(DONE)
    match = match_of(SHORT, {"blue_0": player}, 2)
    for _ in range(26):
        match.step({"red_0": np.full(2, DONE)})
    assert player.seen == [[t % 12, t % 12] for t in range(26)]


def test_episode_table_adds_up():
    games, steps = 8, 200
    spec = replace(FAIR, max_steps=40)
    match = match_of(spec, {}, games, seed=3)
    rewards, rows = np.zeros((games, 2)), []
    length = np.zeros(games, int)
    for blue, red in zip(scripted_actions(1, steps, games), scripted_actions(2, steps, games), strict=True):
        step = match.step({"blue_0": blue, "red_0": red})
        rewards += np.stack([step.rewards["blue_0"], step.rewards["red_0"]], axis=1)
        length += 1
        for n in np.flatnonzero(step.done):
            rows.append((length[n], *rewards[n]))
            rewards[n], length[n] = 0, 0
    table = match.drain_episodes()
    assert table.episodes == len(rows) > 30
    np.testing.assert_array_equal(table.length, [row[0] for row in rows])
    np.testing.assert_allclose(table.returns, [row[1:] for row in rows], rtol=1e-12, atol=1e-15)
    assert match.drain_episodes().episodes == 0  # each row is told once


def test_episode_events_explain_return():
    table = played(FAIR, 300, red_0="key-runner", blue_0="random")
    events = dict(zip(EVENTS, np.moveaxis(table.events, 2, 0), strict=True))
    explained = (
        0.5 * events["key_pickup"] - 0.001 * events["invalid_pickup"] + events["success"] - events["got_eliminated"]
    )
    # Success is assigned, not added: it replaces the 0.5 that the winner's last elimination would have paid.
    np.testing.assert_allclose(table.returns, explained, atol=1e-6)
    assert ((events["door_win"] + events["elimination_win"]).sum(1) == (table.winner >= 0)).all()


# --- ends and starts


def test_mid_game_reset_discards_game():
    match = match_of(SHORT, {"blue_0": IdlePlayer()}, 2, seed=1)
    for _ in range(5):
        match.step({"red_0": np.full(2, 3)})  # red pays for picking up nothing
    match.reset(1)
    for _ in range(12):
        match.step({"red_0": np.full(2, DONE)})
    table = match.drain_episodes()
    assert table.length.tolist() == [12, 12]
    assert not table.returns.any()


# --- players of one's own


class Idle:
    def act(self, view, state, rng):
        return np.full(len(view.tokens), DONE), state


class Forgetful(Idle):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), DONE), np.zeros(len(view.tokens))


class Begins(Idle):
    def initial_state(self, games):
        return np.zeros(games)


class Resets(Idle):
    def reset_state(self, state, done):
        return state


class Remembers(Begins, Resets):
    pass


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (object(), "expected something with act(view, state, rng), got object"),
        (Forgetful(), "act: expected None as the next memory without initial_state and reset_state, got ndarray"),
        (Begins(), "expected both initial_state and reset_state, or neither, got initial_state"),
        (Resets(), "expected both initial_state and reset_state, or neither, got reset_state"),
    ],
)
def test_a_player_with_half_a_memory_is_refused_before_the_start(own, said):
    with pytest.raises(ConfigError) as error:
        checked_player("a:B", own, FAIR, "red_0")
    assert str(error.value) == f"player a:B: {said}"


@pytest.mark.parametrize("own", [Idle(), Remembers()])
def test_a_player_with_a_whole_memory_or_none_is_taken(own):
    assert checked_player("a:B", own, FAIR, "red_0").player is own


def test_seeded_reset_equals_new_match():
    def run(match: Match) -> tuple[list, EpisodeTable]:
        shown = [match.step({"red_0": row}).observations["red_0"].tolist() for row in scripted_actions(3, 60, 6)]
        return shown, match.drain_episodes()

    fresh = match_of(FAIR, {"blue_0": RandomPlayer()}, 6, seed=21, first=4)
    used = match_of(FAIR, {"blue_0": RandomPlayer()}, 6, seed=1, first=4)
    before = run(used)
    begun = used.reset(21)
    np.testing.assert_array_equal(begun["red_0"], fresh.observations()["red_0"])
    (shown, table), (wanted, wanted_table) = run(used), run(fresh)
    assert shown == wanted != before[0]
    np.testing.assert_equal(table, wanted_table)
