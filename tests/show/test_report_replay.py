"""Games packed for a page's replay: what is packed is the whole replay, views included, and it is small."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

from multigrid_rl.evaluation.replays import GameRecord, Replay, record, replay
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import Hunter, KeyRunner, RandomPlayer
from multigrid_rl.show.replay import Pack
from multigrid_rl.types import GameSpec, Rules
from multigrid_rl.world.constants import BLUE, CELLS, RED

SPECS = {
    "1v1": GameSpec(max_steps=60),
    "classic": GameSpec(max_steps=60, rules=Rules.classic()),
    "2v2": GameSpec(blue=2, red=2, obstacle=True, random_keys=False, max_steps=80),
    "coop": GameSpec(blue=0, red=2, obstacle=True, max_steps=60),
    "alone": GameSpec(blue=0, red=1, view_size=7, max_steps=40),
    "crowd": GameSpec(blue=4, red=4, view_size=7, random_keys=False, max_steps=40),
    "narrow": GameSpec(view_size=3, max_steps=40),
}


def played(spec: GameSpec, *, games: int = 4, skilled: bool = False) -> list[GameRecord]:
    """Games of players who do all kinds of things."""
    kinds = (KeyRunner(spec), Hunter(spec)) if skilled else (RandomPlayer(), RandomPlayer())
    seats = {seat: kinds[k % 2] for k, seat in enumerate(spec.seats)}
    found = play_games(spec, seats, games, seed=5)
    names = {seat: f"player of {seat}" for seat in spec.seats}
    return [record(spec, found, row, seed=5, players=names, label=f"game {row}") for row in range(games)]


def unpacked(game: dict, data: dict) -> Replay:
    """What the page's script makes of a packed game, in Python: nothing here is taken from the packing."""
    spec, steps = data["specs"][game["spec"]], game["steps"]
    agents, tokens = len(spec["seats"]), spec["view"] ** 2 + 2
    raw = np.frombuffer(zlib.decompress(base64.b64decode(game["frames"])), np.uint8)
    rows = raw.reshape(steps + 1, CELLS + agents * (4 + tokens))
    cells, position, heading, hand, out, seen = np.split(rows, [CELLS + k * agents for k in range(5)], axis=1)
    reward = np.zeros((steps, agents))
    for t, a, value in game["rewards"]:
        reward[t, a] = value
    nothing = np.zeros((steps, agents))
    return Replay(
        cells, position, heading, hand, seen.reshape(steps + 1, agents, tokens), nothing.astype(np.int8), reward,
        nothing.astype(np.float32), out.astype(bool), game["winner"],
    )  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("skilled", [False, True])
def test_packed_frames_equal_replay(name, skilled):
    games = played(SPECS[name], skilled=skilled)
    data = json.loads(json.dumps(Pack.of(games).data(), allow_nan=False))
    for game, packed in zip(games, data["games"], strict=True):
        frames, truth = unpacked(packed, data), replay(game)
        for field in ("cells", "position", "heading", "hand", "out", "tokens", "reward"):
            np.testing.assert_array_equal(getattr(frames, field), getattr(truth, field), err_msg=field)
        assert frames.winner == truth.winner


def test_packs_words_names_and_moments():
    pack = Pack()
    game = played(SPECS["1v1"], skilled=True)[0]
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
    packed = [pack.pack(game) for game in played(SPECS["1v1"])]
    assert {game["spec"] for game in packed} == {0}
    assert len(pack.specs) == 1
    assert len(pack.words) < 60
    assert list(pack.words.values()) == list(range(len(pack.words)))


def test_packed_size_per_step():
    # A dozen entries meet 132 times; a page keeps some hundred games below a megabyte.
    pack = Pack()
    for game in played(SPECS["1v1"], games=8):
        size = len(json.dumps(pack.pack(game), separators=(",", ":")))
        assert size < 900 + 30 * game.steps
