"""Games packed for a page's replay: words, moments and size; ``test_pages`` has the script decode their frames."""

import json

import numpy as np

from multigrid_rl.evaluation.replays import GameRecord, record
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import Hunter, KeyRunner, RandomPlayer
from multigrid_rl.show.replay import Pack
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import BLUE, RED

PAIR = GameSpec(max_steps=60)


def played(spec: GameSpec, *, games: int = 4, skilled: bool = False) -> list[GameRecord]:
    """Games of players who do all kinds of things."""
    kinds = (KeyRunner(spec), Hunter(spec)) if skilled else (RandomPlayer(), RandomPlayer())
    seats = {seat: kinds[k % 2] for k, seat in enumerate(spec.seats)}
    found = play_games(spec, seats, games, seed=5)
    names = {seat: f"player of {seat}" for seat in spec.seats}
    return [record(spec, found, row, seed=5, players=names, label=f"game {row}") for row in range(games)]


def test_packs_words_names_and_moments():
    pack = Pack()
    game = played(PAIR, skilled=True)[0]
    packed = pack.pack(game)
    data = pack.data()
    assert [data["players"][k] for k in packed["players"]] == ["player of blue_0", "player of red_0"]
    numbers = np.reshape(packed["words"], (-1, 2))
    assert len(numbers) == packed["steps"] == game.steps
    moments = packed["moments"]
    captions = {(t, a): data["words"][numbers[t, a]] for t, a in moments}
    assert any("picks up its key" in words for words in captions.values())
    assert "wins" in " ".join(captions[t, a] for t, a in moments if t == game.steps - 1)
    assert packed["title"] == f"game 0: {packed['result']}"
    assert data["specs"][0]["teams"] == [BLUE, RED]


def test_games_share_specification_and_words():
    pack = Pack()
    packed = [pack.pack(game) for game in played(PAIR)]
    assert {game["spec"] for game in packed} == {0}
    assert len(pack.specs) == 1
    assert len(pack.words) < 60
    assert list(pack.words.values()) == list(range(len(pack.words)))


def test_packed_size_per_step():
    # A dozen entries meet 132 times; a page keeps some hundred games below a megabyte.
    pack = Pack()
    for game in played(PAIR, games=8):
        size = len(json.dumps(pack.pack(game), separators=(",", ":")))
        assert size < 900 + 30 * game.steps
