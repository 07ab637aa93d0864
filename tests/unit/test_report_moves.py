"""Games packed for a page's replay: what is packed is the whole replay, views included, and it is small."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from multigrid_rl.judge.replays import GameRecord, Replay, record, replay
from multigrid_rl.players.basic import RandomPlayer
from multigrid_rl.players.games import play_games
from multigrid_rl.players.scripted import Hunter, KeyRunner
from multigrid_rl.show.replay import Names, Pack, changes
from multigrid_rl.types import GameSpec, Rules
from multigrid_rl.world.constants import AGENT, BLUE, CELLS, RED
from multigrid_rl.world.views import view_tables

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
    spec = data["specs"][game["spec"]]
    agents, view, steps = len(spec["seats"]), spec["view"], game["steps"]
    area, row_bytes = view * view, -(-view * view // 8)
    length = CELLS + agents * (6 + row_bytes)
    raw = base64.b64decode(game["frames"])
    frames, at = [np.frombuffer(raw[:length], np.uint8).copy()], length
    for _ in range(steps):
        frame, pairs = frames[-1].copy(), raw[at]
        for k in range(pairs):
            frame[raw[at + 1 + 2 * k]] = raw[at + 2 + 2 * k]
        frames.append(frame)
        at += 1 + 2 * pairs
    assert at == len(raw)
    whole = np.stack(frames)
    parts = np.split(whole, [CELLS + k * agents for k in range(7)], axis=1)
    cells, position, heading, hand, out, own, mission, bits = parts
    seen = np.unpackbits(bits.reshape(-1, agents, row_bytes), axis=2, bitorder="little")[:, :, :area]
    tokens = np.zeros((steps + 1, agents, area + 2), np.uint8)
    for t in range(steps + 1):
        drawn = cells[t].copy()
        for a in range(agents) if agents > 1 else ():
            if not out[t, a]:
                drawn[position[t, a]] = AGENT + 4 * spec["teams"][a] + heading[t, a]
        for a in range(agents):
            where = view_tables(view).cells[int(position[t, a]) * 4 + int(heading[t, a])]
            tokens[t, a, :area] = np.where(seen[t, a], drawn[where], 0)
            tokens[t, a, view // 2 * view + view - 1] = own[t, a]
            tokens[t, a, area:] = heading[t, a], mission[t, a]
    for t, a, k, value in np.reshape(game["exceptions"], (-1, 4)).astype(int):
        tokens[t, a, k] = value
    reward = np.zeros((steps, agents))
    for t, a, value in np.reshape(game["rewards"], (-1, 3)):
        reward[int(t), int(a)] = value
    nothing = np.zeros((steps, agents))
    return Replay(
        cells, position, heading, hand, tokens, nothing.astype(np.int8), reward, nothing.astype(np.float32),
        out.astype(bool), game["winner"],
    )  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("skilled", [False, True])
def test_what_is_packed_is_the_whole_replay(name, skilled):
    pack = Pack()
    games = played(SPECS[name], skilled=skilled)
    pack.games = [pack.pack(game) for game in games]
    data = json.loads(json.dumps(pack.data(), allow_nan=False))
    for game, packed in zip(games, data["games"], strict=True):
        told, truth = unpacked(packed, data), replay(game)
        for field in ("cells", "position", "heading", "hand", "out", "tokens", "reward"):
            np.testing.assert_array_equal(getattr(told, field), getattr(truth, field), err_msg=field)
        assert told.winner == truth.winner


def test_words_names_and_moments_tell_the_game():
    pack = Pack()
    game = played(SPECS["1v1"], skilled=True)[0]
    packed = pack.pack(game)
    data = pack.data()
    assert [data["players"][k] for k in packed["players"]] == ["player of blue_0", "player of red_0"]
    numbers = np.frombuffer(base64.b64decode(packed["words"]), "<u2").reshape(-1, 2)
    assert len(numbers) == packed["steps"] == game.steps
    moments = np.reshape(packed["moments"], (-1, 2)).tolist()
    told = {(t, a): data["words"][numbers[t, a]] for t, a in moments}
    assert any("picks up its key" in words for words in told.values())
    assert "wins" in " ".join(told[t, a] for t, a in moments if t == game.steps - 1)
    assert packed["title"] == f"game 0: {packed['result']}"
    assert data["specs"][0]["teams"] == [BLUE, RED]


def test_games_of_one_kind_share_their_specification_and_words():
    pack = Pack()
    packed = [pack.pack(game) for game in played(SPECS["1v1"])]
    assert {game["spec"] for game in packed} == {0}
    assert len(pack.specs) == 1
    assert len(set(pack.words.rows)) == len(pack.words.rows) < 60


def test_a_step_costs_a_few_bytes():
    # A dozen entries meet 132 times; a page keeps some hundred games below a megabyte.
    pack = Pack()
    for game in played(SPECS["1v1"], games=8):
        size = len(json.dumps(pack.pack(game), separators=(",", ":")))
        assert size < 900 + 30 * game.steps


def test_recorded_rules_show_the_moment_before_a_steps_results():
    spec = GameSpec(max_steps=60, rules=Rules.classic(), random_keys=False)
    pack = Pack()
    games = played(spec, games=8, skilled=True)
    assert any(pack.pack(game)["exceptions"] for game in games)


def test_names_are_numbered_once():
    names = Names()
    assert [names.number(text) for text in ("a", "b", "a")] == [0, 1, 0]
    assert names.rows == ["a", "b"]


def test_changes_are_the_first_frame_and_then_pairs():
    frames = np.array([[1, 2, 3], [1, 5, 3], [1, 5, 3]], np.uint8)
    assert changes(frames).tolist() == [1, 2, 3, 1, 1, 5, 0]
    with pytest.raises(ValueError, match="256 bytes"):
        changes(np.zeros((1, 256), np.uint8))
