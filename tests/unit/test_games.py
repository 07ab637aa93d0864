"""Games played once each, replays, fair shares; players: how strong they are, and what of theirs is refused."""

from dataclasses import replace

import numpy as np
import pettingzoo
import pytest
from pydantic import ValidationError

from examples.board_games import CELLS, OneMoveConnectFour, PerfectTicTacToe, value, wins
from hostile_agents import assert_shares
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.envs.gymnasium import GymnasiumFactory
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.replays import GameRecord, ReplayError, record, replay
from multigrid_rl.evaluation.targets import Target, find_target
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.classes import checked_player
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.match import Match, PlayerFaultError
from multigrid_rl.players.scripted import IdlePlayer, RandomPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.types import EpisodeTable, GameSpec, Rules, SeatView
from multigrid_rl.world.constants import ACTIONS, BLUE, DONE, EVENTS, RED

SPEC = GameSpec()
NAMES = {"blue_0": "random", "red_0": "key-runner"}


def players(**names):
    return {seat: BUILT_IN[name](SPEC) for seat, name in (NAMES | names).items()}


@pytest.mark.parametrize("red", ["key-runner", "hunter"])
def test_rows_are_ordered_and_independent_of_batch(red):
    whole = play_games(SPEC, players(red_0=red), 60, seed=3)
    later = play_games(SPEC, players(red_0=red), 25, seed=3, first_game=35)
    np.testing.assert_array_equal(whole.table.length[35:], later.table.length)
    np.testing.assert_array_equal(whole.table.returns[35:], later.table.returns)
    np.testing.assert_array_equal(whole.start[35:], later.start)
    assert len(set(whole.table.length.tolist())) > 5  # they did not finish together


@pytest.mark.parametrize("first", [0, 7])
def test_record_replays_game_exactly(first):
    played = play_games(SPEC, players(), 30, seed=5, first_game=first)
    for row in range(30):
        kept = record(SPEC, played, row, seed=5, players=NAMES, label="any")
        again = replay(GameRecord.model_validate_json(kept.model_dump_json()))
        assert (played.actions[row, played.table.length[row] :] == -1).all()
        assert again.winner == played.table.winner[row]
        np.testing.assert_array_equal(again.reward.sum(axis=0), played.table.returns[row])
        np.testing.assert_array_equal(again.cells[0], played.start[row])
        assert len(again.cells) == played.table.length[row] + 1
        assert again.out[-1].all()


def test_record_of_another_game_does_not_replay():
    played = play_games(SPEC, players(), 5, seed=5)
    kept = record(SPEC, played, 0, seed=5, players=NAMES, label="any")
    short = {seat: text[:-1] for seat, text in kept.actions.items()}
    with pytest.raises(ReplayError, match="got none"):
        replay(kept.model_copy(update={"actions": short}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": {"blue_0": "1"}}, "blue_0, red_0 in this order"),
        ({"actions": {"blue_0": "1", "red_0": "12"}}, "equally many"),
        ({"actions": {"blue_0": "1", "red_0": "9"}}, "digits 0 to 6"),
        ({"spec": {"blue": "many"}}, "blue"),
    ],
)
def test_rejects_damaged_records(change, message):
    played = play_games(SPEC, players(), 1, seed=5)
    kept = record(SPEC, played, 0, seed=5, players=NAMES, label="any").model_dump()
    with pytest.raises(ValidationError, match=message):
        GameRecord.model_validate(kept | change)


class Quitter:
    """Gives up in its fifth step."""

    name = "quitter"

    def initial_state(self, games):
        return 0

    def reset_state(self, state, done):
        return state

    def act(self, view, state, rng):
        if state == 4:
            raise PlayerFaultError(self.name, "had enough")
        return np.full(len(view.tokens), 6, np.int8), state + 1


def test_resigning_player_leaves_games_unfinished():
    spec = GameSpec(max_steps=300)
    played = play_games(spec, players() | {"blue_0": Quitter()}, 8, seed=1)
    assert played.fault.name == "quitter"
    assert played.fault.reason == "had enough"
    assert not played.finished.any()
    assert (played.table.winner == -1).all()
    assert played.table.length.tolist() == [4] * 8
    with pytest.raises(PlayerFaultError, match="had enough"):
        play_games(spec, players() | {"blue_0": Quitter()}, 8, seed=1).full_table()


# --- means over episodes are unbiased: how many each environment plays is settled before any of them has ended


FACTORY = GymnasiumFactory("hostile_agents:Geometric-v0", 0)


class Idle(Target):
    """A player without a file."""

    def players(self, *, greedy):
        player = IdlePlayer()
        player.sha256 = None
        return {"agent_0": player}


def judged(episodes, seed):
    (part,) = evaluate(Idle("idle", FACTORY, {}), episodes=episodes, seed=seed, modes=("stochastic",)).parts
    return part.table


@pytest.mark.parametrize("episodes", [5, 33, 50, 64, 100])
def test_every_environment_plays_its_share(episodes):
    assert_shares(judged, episodes)


# --- players of board games that recipes are measured by


PERFECT = "examples.board_games:PerfectTicTacToe"


class Lots:
    """Draws the same numbers over and over."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, columns: int) -> np.ndarray:
        return np.random.default_rng(self.seed).random((1, columns))


def column(player: OneMoveConnectFour, own: list[int], other: list[int], legal: list[int]) -> list[int]:
    """The columns that a player may choose in a position, given by its occupied cells, over several draws."""
    board = np.zeros((42, 2), np.float32)
    board[own, 0], board[other, 1] = 1, 1
    seen = np.concatenate([board.reshape(-1), np.array(legal, np.float32)])[None]
    return sorted({int(player.act(SeatView(seen, None, 0), None, Lots(draw))[0][0]) for draw in range(60)})


@pytest.mark.parametrize("opponent", ["random", PERFECT])
def test_perfect_play_loses_to_nobody(opponent):
    target = find_target(PERFECT, ["scenario=tictactoe"], opponent=opponent)
    parts = evaluate(target, episodes=200, seed=7, modes=("stochastic",), sides="both").parts
    assert sorted(part.lineup.team for part in parts) == ["player_1", "player_2"]
    for part in parts:
        assert (part.results >= 0).all()
        assert (part.results > 0).any() == (opponent == "random")  # it draws against itself


def test_perfect_play_knows_what_positions_are_worth():
    assert value(frozenset(), frozenset()) == 0
    assert value(frozenset({0, 1}), frozenset({3, 4})) == 1  # 2 wins
    assert value(frozenset({8}), frozenset({0, 2, 4})) == -1  # two threats at once
    seen = np.zeros((1, 27), np.float32)
    seen[0, [0, 2]], seen[0, [7, 9]], seen[0, [18 + cell for cell in (2, 5, 6, 7, 8)]] = 1, 1, 1
    for draw in range(3):
        assert PerfectTicTacToe(None, None).act(SeatView(seen, None, 0), None, Lots(draw))[0].tolist() == [2]


def test_one_move_of_foresight_wins_before_it_blocks_before_it_draws_lots():
    player, free = OneMoveConnectFour(None, None), [1] * 7
    upright, three = [38, 31, 24], [35, 36, 29]
    assert column(player, [35, 36, 37], [28, 29, 30], free) == [3]
    assert column(player, three, upright, free) == [3]
    assert column(player, [41, 34, 27], upright, free) == [6]  # a win of one's own comes first
    assert column(player, [], [38], free) == list(range(7))
    assert column(player, [], [38], [0, 1, 0, 0, 0, 0, 1]) == [1, 6]


def test_four_in_a_row_is_seen_wherever_a_disc_lands():
    """Against the game's own judgement: in games of random moves, it says of every move whether that wins."""
    rng, found = np.random.default_rng(1), 0
    env = pettingzoo.make("aec", "classic/connect_four-v3")
    for _ in range(30):
        env.reset()
        while not env.terminations[env.agent_selection]:
            seen = env.observe(env.agent_selection)
            free = np.flatnonzero(seen["action_mask"])
            discs = seen["observation"].reshape(42, 2).astype(bool)
            heights = discs.any(axis=1).reshape(6, 7).sum(axis=0)
            said = wins(discs[None, :, 0], CELLS[np.maximum(5 - heights, 0), np.arange(7)][None])[0]
            move, mover = int(rng.choice(free)), env.agent_selection
            env.step(move)
            assert said[move] == (env.rewards[mover] > 0)
            found += said[move]
    assert found > 10


# --- players: strengths, events and memories


FAIR = load_scenario("1v1").spec
CLASSIC = replace(FAIR, rules=Rules.classic())


def results(spec: GameSpec, episodes: int = 1000, seed: int = 1, **names: str) -> EpisodeTable:
    players = {seat: BUILT_IN[name](spec) for seat, name in names.items()}
    return play_games(spec, players, episodes, seed=seed).full_table()


def share(table: EpisodeTable, team: int) -> float:
    return float(np.mean(table.winner == team))


def scripted_actions(seed: int, steps: int, games: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, len(ACTIONS), (steps, games)).astype(np.int8)


def blank_view(games: int) -> SeatView:
    return SeatView(np.zeros((games, FAIR.num_tokens), np.uint8), None, 0)


def test_random_plays_every_action_with_same_probability():
    games = 70_000
    actions, _ = RandomPlayer().act(blank_view(games), None, Streams(1, np.arange(games, dtype=np.int64)))
    counts = np.bincount(actions, minlength=7)
    assert len(counts) == len(ACTIONS)
    # 99.9 % quantile of chi-square with 6 degrees of freedom.
    assert ((counts - games / 7) ** 2 / (games / 7)).sum() < 22.46


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
    table = results(CLASSIC, red_0=name, blue_0="random")
    found = share(table, RED), table.length.mean(), table.returns[:, 1].mean()
    assert all(low <= value <= high for value, (low, high) in zip(found, (wins, length, returns), strict=True)), found


def test_first_handled_of_two_key_runners_wins_most():
    table = results(CLASSIC, red_0="key-runner", blue_0="key-runner")
    assert 0.72 <= share(table, BLUE) <= 0.88
    assert table.length.mean() == pytest.approx(13.2, abs=0.3)


def test_fair_rules_favour_neither_key_runner():
    table = results(FAIR, episodes=2000, red_0="key-runner", blue_0="key-runner")
    assert share(table, BLUE) == pytest.approx(0.5, abs=0.05)
    assert share(table, RED) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("scenario", "best"), [("single", 1.4883), ("single-v3", 1.49085937)])
def test_key_runner_plays_shortest_single_game(scenario, best):
    table = results(load_scenario(scenario).spec, episodes=5, red_0="key-runner")
    assert table.length.tolist() == [13] * 5
    assert table.returns[:, 0] == pytest.approx([best] * 5)


@pytest.mark.parametrize("scenario", ["single-obstacle", "single-obstacle-v3"])
def test_key_runner_solves_every_game_with_obstacle(scenario):
    table = results(load_scenario(scenario).spec, episodes=300, red_0="key-runner")
    assert share(table, RED) == 1.0
    assert table.length.min() >= 23  # fewer are impossible
    assert table.length.max() <= 60


@pytest.mark.parametrize("runner", ["red_0", "red_1"])
def test_key_runner_solves_coop_with_idle_mate(runner):
    names = {"red_0": "idle", "red_1": "idle", runner: "key-runner"}
    assert share(results(load_scenario("coop").spec, episodes=300, **names), RED) == 1.0


def test_two_key_runners_rarely_block_each_other_in_coop():
    table = results(load_scenario("coop").spec, red_0="key-runner", red_1="key-runner")
    assert share(table, RED) >= 0.95


@pytest.mark.parametrize(("given", "empty"), [({"red_0": "idle"}, "blue_0"), ({}, "blue_0, red_0")])
def test_rejects_empty_seats(given, empty):
    with pytest.raises(ValueError, match=f"^players: expected one for each of blue_0, red_0, got none for {empty}$"):
        results(FAIR, 3, **given)


def test_episode_events_explain_return():
    table = results(FAIR, 300, red_0="key-runner", blue_0="random")
    events = dict(zip(EVENTS, np.moveaxis(table.events, 2, 0), strict=True))
    explained = (
        0.5 * events["key_pickup"] - 0.001 * events["invalid_pickup"] + events["success"] - events["got_eliminated"]
    )
    # Success is assigned, not added: it replaces the 0.5 that the winner's last elimination would have paid.
    np.testing.assert_allclose(table.returns, explained, atol=1e-6)
    assert ((events["door_win"] + events["elimination_win"]).sum(1) == (table.winner >= 0)).all()


# --- players of a user's own


class Waits:
    def act(self, view, state, rng):
        return np.full(len(view.tokens), DONE), state


class Forgetful(Waits):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), DONE), np.zeros(len(view.tokens))


class Begins(Waits):
    def initial_state(self, games):
        return np.zeros(games)


class Resets(Waits):
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


@pytest.mark.parametrize("own", [Waits(), Remembers()])
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
