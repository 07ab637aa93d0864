"""Connect four in one call against PettingZoo's, step by step."""

import numpy as np
import pytest

from multigrid_rl.envs.connect_four import CONNECT_FOUR, ConnectFourEnvs, has_four
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.types import RunError

GAMES, SEATS = 6, ("player_0", "player_1")


def both(swapped, **others):
    """Return the same games, played by the package and in one call."""
    game = ZooSpec(CONNECT_FOUR, {}, {seat: seat for seat in SEATS}, wins=True, symmetric=(SEATS,), swaps=swapped)
    return [kind(game, GAMES, seed=3, first=7, **others) for kind in (PettingZooEnvs, ConnectFourEnvs)]


def drawn(env, generator):
    """Draw a legal column of each seat."""
    lots = {seat: generator.random((GAMES, 7)) * (obs[:, -7:] > 0) for seat, obs in env.observations().items()}
    return {seat: values.argmax(axis=1)[:, None] for seat, values in lots.items()}


@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("swapped", [False, True])
def test_boards_in_one_call_show_and_pay_what_the_package_does(swapped, auto_reset):
    theirs, ours = both(swapped, auto_reset=auto_reset)
    generator = np.random.default_rng(0)
    for _ in range(300 if auto_reset else 43):
        np.testing.assert_array_equal(ours.turn, theirs.turn)
        for seat, seen in theirs.observations().items():
            np.testing.assert_array_equal(ours.observations()[seat], seen)
        actions = drawn(theirs, generator)
        wanted, got = theirs.step(actions), ours.step(actions)
        for part in ("rewards", "terminated", "mask", "final_observations"):
            for seat in SEATS:
                np.testing.assert_array_equal(getattr(got, part)[seat], getattr(wanted, part)[seat])
        np.testing.assert_array_equal(got.done, wanted.done)
        np.testing.assert_array_equal(got.truncated, wanted.truncated)
    assert ours.played == theirs.played
    episodes, expected = ours.drain_episodes(), theirs.drain_episodes()
    assert len(expected.length) > (20 if auto_reset else GAMES - 1)
    for name in ("length", "returns", "winner"):
        np.testing.assert_array_equal(getattr(episodes, name), getattr(expected, name))


@pytest.mark.parametrize("stepped_by", [0, 1], ids=["the package", "one call"])
def test_boards_go_on_where_their_state_was_asked(stepped_by):
    env, (_, again) = both(swapped=True)[stepped_by], both(swapped=True)
    generator = np.random.default_rng(1)
    for _ in range(50):
        env.step(drawn(env, generator))
    again.set_state(env.get_state())
    for _ in range(60):
        actions = drawn(env, generator)
        np.testing.assert_array_equal(again.step(actions).rewards["player_0"], env.step(actions).rewards["player_0"])


def test_a_full_column_takes_no_disc():
    _, ours = both(swapped=False)
    column = {seat: np.full((GAMES, 1), 3) for seat in SEATS}
    for _ in range(6):
        ours.step(column)
    with pytest.raises(RunError, match=r"step: player_0: .*got a disc in column 3, full"):
        ours.step(column)


def test_all_sixty_nine_rows_of_four_and_no_three_count():
    fours = [
        [(row + k * down, column + k * right) for k in range(4)]
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        for row in range(6)
        for column in range(7)
        if 0 <= row + 3 * down < 6 and 0 <= column + 3 * right < 7
    ]
    boards = np.zeros((69, 6, 7), bool)
    for board, cells in zip(boards, fours, strict=True):
        board[tuple(np.transpose(cells))] = True
    assert has_four(boards).all()
    for missing in range(4):
        threes = boards.copy()
        for board, cells in zip(threes, fours, strict=True):
            board[cells[missing]] = False
        assert not has_four(threes).any()
