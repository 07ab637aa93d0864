"""Games played once each: rows by number, actions that replay them, and what happens when a player gives up."""

import numpy as np
import pytest
from pydantic import ValidationError

from multigrid_rl.evaluation.replays import GameRecord, ReplayError, record, replay
from multigrid_rl.players.catalogue import BUILT_IN
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.types import GameSpec

SPEC = GameSpec()
NAMES = {"blue_0": "random", "red_0": "key-runner"}


def players(**names):
    return {seat: BUILT_IN[name](SPEC) for seat, name in (NAMES | names).items()}


def test_rows_are_ordered_and_independent_of_batch():
    whole = play_games(SPEC, players(), 60, seed=3)
    later = play_games(SPEC, players(), 25, seed=3, first_game=35)
    np.testing.assert_array_equal(whole.table.length[35:], later.table.length)
    np.testing.assert_array_equal(whole.table.returns[35:], later.table.returns)
    np.testing.assert_array_equal(whole.start[35:], later.start)
    assert len(set(whole.table.length.tolist())) > 5  # they did not finish together


def test_actions_end_with_game():
    played = play_games(SPEC, players(), 40, seed=3)
    assert played.finished.all()
    for row, length in enumerate(played.table.length):
        assert (played.actions[row, :length] >= 0).all()
        assert (played.actions[row, length:] == -1).all()


@pytest.mark.parametrize("first", [0, 7])
def test_record_replays_game_exactly(first):
    played = play_games(SPEC, players(), 30, seed=5, first_game=first)
    for row in range(30):
        kept = record(SPEC, played, row, seed=5, players=NAMES, label="any")
        again = replay(GameRecord.model_validate_json(kept.model_dump_json()))
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
