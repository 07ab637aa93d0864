"""Recorded play on disk and the order in which it is learned from."""

import json
from hashlib import sha256

import numpy as np
import pytest

from commands import call, complaint, works
from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.imitation.cloning import ShuffledReader
from multigrid_rl.imitation.demonstrations import CARD_FILE, DATA_FILE, Episode, read_demonstrations, write
from multigrid_rl.imitation.recording import record
from multigrid_rl.runs.players import player_in_place_of
from multigrid_rl.text import ConfigError

FACTS = {"who": "me", "scenario": "pole", "observation": {"size": 3}, "actions": {"low": [-1, -2], "high": [1, 2]}}


def episode(length: int, first: int = 0, **others) -> Episode:
    """An episode whose rows say their number in the first column."""
    rows = np.arange(first, first + length, dtype=np.float32)
    obs = np.stack([rows, rows**2, -rows], axis=1)
    values = {"terminated": True, "truncated": False, "final_observation": obs[-1] + 1, "seed": (7, 0, first)}
    return Episode(obs, np.stack([rows / 1e4, -rows / 1e4], axis=1), np.ones(length), **{**values, **others})


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "data", [episode(4), episode(3, 4, terminated=False, truncated=True)], FACTS)
    return tmp_path / "data"


def error_of(folder, **arguments) -> str:
    return refusal(read_demonstrations, folder, **arguments)


def test_written_data_reads_back(folder):
    data = read_demonstrations(folder)
    assert sorted(path.name for path in folder.iterdir()) == [CARD_FILE, DATA_FILE]
    assert (data.card.rows, data.card.episodes, data.card.who) == (7, 2, "me")
    assert data.observations[:, 0].tolist() == list(range(7))
    np.testing.assert_allclose(data.actions[:, 1], -np.arange(7) / 1e4)
    assert data.episode_ends.tolist() == [4, 7]
    assert data.terminated.tolist() == [False] * 3 + [True] + [False] * 3
    assert data.truncated.tolist() == [False] * 6 + [True]
    assert data.final_observations[:, 0].tolist() == [4, 7]
    assert data.seeds.tolist() == [[7, 0, 0], [7, 0, 4]]
    returns = data.card.returns
    assert (returns.episodes, returns.mean, returns.std, returns.least) == (2, 3.5, 0.5, 3)
    assert data.card.summary() == "7 steps of me in pole, 2 whole episodes of return 3.50 +- 0.50"


def test_returns_count_whole_episodes_only(tmp_path):
    card = write(tmp_path / "x", [episode(4), episode(9, terminated=False)], FACTS)
    assert card.returns.episodes == 1
    assert write(tmp_path / "y", [episode(9, terminated=False)], FACTS).returns is None


def _changed(folder, change) -> None:
    """Change the columns, and what the card says of their bytes."""
    data = bytearray((folder / DATA_FILE).read_bytes())
    change(data)
    (folder / DATA_FILE).write_bytes(data)
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps({**card, "bytes": len(data), "sha256": sha256(data).hexdigest()}))


def _poke(name: str, index: int, dtype: str, value: float):
    def change(data: bytearray) -> None:
        length = int.from_bytes(data[:8], "little")
        first = json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
        np.frombuffer(data, dtype, index + 1, 8 + length + first)[index:] = value

    return change


def test_rejects_more_choices_than_a_byte_holds(tmp_path):
    with pytest.raises(ValueError, match="actions: expected at most 256 choices in recorded play, got 4672"):
        write(tmp_path / "data", [episode(4)], {**FACTS, "actions": 4672})


def test_rejects_data_differing_from_card(folder):
    good = (folder / DATA_FILE).read_bytes()
    (folder / DATA_FILE).write_bytes(good[:-1])
    assert error_of(folder).endswith(f"expected the {len(good)} bytes of its card, got {len(good) - 1} (truncated?)")
    (folder / DATA_FILE).write_bytes(good[:-1] + b"\0")
    assert "changed since it was written" in error_of(folder)
    _changed(folder, lambda data: data.__setitem__(slice(8, 20), b"?" * 12))
    assert "expected a safetensors file" in error_of(folder)
    (folder / DATA_FILE).unlink()
    assert "data: expected a folder that `multigrid-rl data record` wrote" in error_of(folder)
    (folder / CARD_FILE).write_text('{"who": 3}')
    assert error_of(folder).startswith(f"data: {folder / CARD_FILE}: ")
    wanted = "data: expected a folder that `multigrid-rl data record` or `data import` has written, got "
    assert error_of(folder.parent) == f"{wanted}{folder.parent} without {CARD_FILE}"
    assert error_of(folder / "nope") == f"{wanted}{folder / 'nope'}: no such folder"


@pytest.mark.parametrize(
    ("name", "dtype", "value", "message"),
    [
        ("observations", "<f4", np.nan, "column observations: expected finite numbers, got nan in row 2"),
        ("final_observations", "<f4", np.inf, "column final_observations: expected finite numbers"),
        ("rewards", "<f4", np.nan, "column rewards: expected finite numbers"),
        ("episode_ends", "<i8", 9, "column episode_ends: expected rows that grow up to the last"),
    ],
)
def test_rejects_impossible_numbers(folder, name, dtype, value, message):
    _changed(folder, _poke(name, 8 if name == "observations" else 1, dtype, value))
    assert message in error_of(folder)


def test_rejects_unknown_choices_and_tokens(tmp_path):
    facts = {**FACTS, "observation": {"view_size": 3, "categories": [4, 4, 9]}, "actions": 5}
    tokens = np.ones((2, 3), np.uint8)
    one = Episode(tokens, np.array([[4], [0]], np.uint8), np.ones(2), True, False, tokens[0], (0, 0, 0))
    write(tmp_path / "good", [one], facts)
    assert read_demonstrations(tmp_path / "good").actions.tolist() == [[4], [0]]
    write(tmp_path / "acts", [one._replace(actions=one.actions + 1)], facts)
    assert "column actions: expected numbers below [5], got 5 in row 0" in error_of(tmp_path / "acts")
    write(tmp_path / "seen", [one._replace(observations=tokens * 4)], facts)
    assert "column observations: expected numbers below [4, 4, 9]" in error_of(tmp_path / "seen")


def test_rejects_data_of_another_environment(folder):
    config = compose(["env_id=Pendulum-v1"])
    agent = env_factory(config).specs.agents[0]
    message = error_of(folder, agent=agent, env=env_signature(config.scenario))
    assert message == f"data: {folder}: env: expected Pendulum-v1, got the red/blue-door game"
    assert f"data: {folder}: actions: expected" in error_of(folder, agent=agent)


@pytest.fixture
def many(tmp_path):
    lengths = np.random.default_rng(0).integers(5, 90, 60)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    write(tmp_path / "many", [episode(int(n), int(k)) for n, k in zip(lengths, starts, strict=True)], FACTS)
    return read_demonstrations(tmp_path / "many")


def rows_of(taken) -> list[int]:
    obs, actions = taken
    np.testing.assert_allclose(actions[:, 0], obs[:, 0] / 1e4, rtol=1e-6)  # still pairs
    return obs[:, 0].astype(int).tolist()


@pytest.mark.parametrize("together", [1 << 18, 200])
def test_each_pass_visits_rows_once_in_new_order(many, together, monkeypatch):
    monkeypatch.setattr(ShuffledReader, "SHUFFLE_BUFFER_ROWS", together)
    monkeypatch.setattr(ShuffledReader, "CHUNK_ROWS", 16)
    passes = ShuffledReader(many, 0.2, seed=3)
    out = set(rows_of(passes.held_out(10_000)))
    episodes = np.split(np.arange(many.card.rows), many.episode_ends[:-1])
    assert sum(set(rows.tolist()) <= out for rows in episodes) == 12  # whole episodes
    assert len(out) + passes.rows == many.card.rows
    first, second = (rows_of(passes.take(k * passes.rows, passes.rows)) for k in (0, 1))
    assert sorted(first) == sorted(second) == sorted(set(range(many.card.rows)) - out)
    assert first != second
    assert np.mean(np.abs(np.diff(first)) == 1) < 0.2
    # Whatever is asked for, and in whatever order: what comes follows from the position.
    again = ShuffledReader(many, 0.2, seed=3)
    pieces = [rows_of(again.take(k, 77)) for k in range(0, 2 * passes.rows - 77, 77)]
    assert [row for piece in pieces for row in piece][: passes.rows] == first
    assert rows_of(again.take(passes.rows - 5, 10)) == first[-5:] + second[:5]
    assert rows_of(ShuffledReader(many, 0.2, seed=4).take(0, 50)) != first[:50]


def test_moments_and_few_episodes(many, tmp_path):
    passes = ShuffledReader(many, 0.0, seed=0)
    assert passes.held_out(10) is None
    found = passes.moments()
    np.testing.assert_allclose(found.mean, many.observations.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(found.std, many.observations.std(axis=0, dtype=np.float64))
    write(tmp_path / "long", [episode(5000)], FACTS)
    long = ShuffledReader(read_demonstrations(tmp_path / "long"), 0.3, seed=0)
    assert long.rows + len(long.held_out(5000)[0]) == 5000
    assert 1000 < len(long.held_out(5000)[0]) < 2100  # 2 of 5 stretches
    assert len(long.held_out(100)[0]) <= 100
    with pytest.raises(ConfigError, match=r"train\.cloning\.held_out: expected a share that leaves some"):
        ShuffledReader(read_demonstrations(tmp_path / "long"), 0.99, seed=0)


def test_game_is_recorded_from_seat_view():
    config = compose(["scenario=1v1", "experiment=none", "scenario.seats.blue_0=random"])
    factory = env_factory(config)
    players = {agent.name: player_in_place_of(agent, "key-runner", config).player for agent in factory.specs.agents}
    episodes = list(record(factory, players, 400, 4, 5))
    assert sum(len(one.rewards) for one in episodes) == 400
    whole = [one for one in episodes if one.terminated or one.truncated]
    assert len(whole) >= len(episodes) - 4
    assert np.mean([one.rewards.sum() > 1 for one in whole]) > 0.7  # a key-runner wins against random
    assert {one.seed[1] for one in episodes} == {0, 1, 2, 3}
    # Played once more, step by step, the same actions show and pay the same.
    env = factory.build(4, 0)
    tokens = env.reset(5)["red_0"].copy()
    first = {one.seed[1]: one for one in episodes if one.seed[2] == 0}
    for t in range(min(len(one.rewards) for one in first.values())):
        acts = np.stack([first[k].actions[t] for k in range(4)])
        assert all((first[k].observations[t] == tokens[k]).all() for k in range(4))
        step = env.step({"red_0": acts})
        assert all(first[k].rewards[t] == pytest.approx(step.rewards["red_0"][k]) for k in range(4))
        tokens = step.observations["red_0"].copy()


def test_record_writes_atomically_and_data_shows_it(tmp_path):
    out = tmp_path / "demo"
    result = works("data", "record", "hunter", "scenario=1v1", "--steps", 300, "-o", out, "--seed", 3)
    assert f"recorded {out}: 300 steps of hunter in 1v1" in result.output
    shown = call("data", "show", out)
    assert "300 steps of hunter in 1v1" in shown.output
    assert "seed: 3" in shown.output
    other = [
        "scenario=1v1",
        "train=bc",
        "scenario.gates=[]",
        "scenario.seats.red_0=idle",
        "scenario.seats.blue_0=learn",
    ]
    refused = complaint(call("train", *other, f"data={out}", f"run_dir={tmp_path / 'run'}"))
    assert f"data: {out}: seats: expected blue_0, got red_0" in refused  # which sees other colours
    assert f"--output: expected a new folder, got {out}" in complaint(call("data", "record", "hunter", "-o", out))
    assert "--output: expected a value, got none" in complaint(call("data", "record", "hunter"))
    message = complaint(call("data", "record", "nobody", "scenario=1v1", "-o", tmp_path / "other"))
    assert "player: expected" in message
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    (out / DATA_FILE).write_bytes(b"")
    assert "bytes of its card, got 0 (truncated?)" in complaint(call("data", "show", out))
