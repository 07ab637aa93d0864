"""Players of board games that recipes are measured by: they must be as good as they say."""

import numpy as np
import pettingzoo
import pytest

from examples.board_games import CELLS, OneMoveConnectFour, PerfectTicTacToe, value, wins
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.types import SeatView

PERFECT, ONE_MOVE = "examples.board_games:PerfectTicTacToe", "examples.board_games:OneMoveConnectFour"


class Lots:
    """Draws the same numbers over and over."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, columns: int) -> np.ndarray:
        return np.random.default_rng(self.seed).random((1, columns))


def results(player: str, opponent: str, scenario: str, games: int) -> dict[str, np.ndarray]:
    target = find_target(player, [f"scenario={scenario}"], opponent=opponent)
    found = evaluate(target, episodes=games, seed=7, modes=("stochastic",), sides="both")
    return {part.lineup.team: part.results for part in found.parts}


def column(player: OneMoveConnectFour, own: list[int], other: list[int], legal: list[int]) -> list[int]:
    """The columns that a player may choose in a position, given by its occupied cells, over several draws."""
    board = np.zeros((42, 2), np.float32)
    board[own, 0], board[other, 1] = 1, 1
    seen = np.concatenate([board.reshape(-1), np.array(legal, np.float32)])[None]
    return sorted({int(player.act(SeatView(seen, None, 0), None, Lots(draw))[0][0]) for draw in range(60)})


@pytest.mark.parametrize("opponent", ["random", PERFECT])
def test_perfect_play_loses_to_nobody(opponent):
    found = results(PERFECT, opponent, "tictactoe", 200)
    assert sorted(found) == ["player_1", "player_2"]
    for shares in found.values():
        assert (shares >= 0).all()
        assert (shares > 0).any() == (opponent == "random")  # it draws against itself


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


def test_one_move_of_foresight_beats_random_from_both_seats():
    for shares in results(ONE_MOVE, "random", "connect-four", 60).values():
        assert (shares > 0).mean() > 0.8
