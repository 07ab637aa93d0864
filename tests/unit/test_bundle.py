"""Bundles from strangers: they load as teams, or are refused in one line, quickly and without doing harm."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from agents import agent_of
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from multigrid_rl.cli.main import app
from multigrid_rl.config import load_scenario
from multigrid_rl.models.registry import build
from multigrid_rl.players.bundle import bundle_sha256, folder_kind, load_seats, load_team
from multigrid_rl.players.cards import (
    CARD_FILE,
    MAX_CARD_BYTES,
    MAX_MODEL_BYTES,
    MODEL_FILE,
    PlayerError,
    read_card,
    read_network,
    sha256_of,
    token_categories,
    write_player,
)
from multigrid_rl.players.games import play_games
from multigrid_rl.types import SeatView
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.streams import Streams

ONE, TWO = (load_scenario(name).spec for name in ("1v1", "2v2"))
MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}
#: No check may take longer: whoever hands something in must not keep the others waiting.
SECONDS = 5.0


def bundle(path: Path, seats=("red_0",), members: int = 1, seed: int = 1, **changes) -> Path:
    """A sound bundle with a small network."""
    categories = token_categories(ONE) * members
    card = {
        "name": path.name,
        "architecture": MLP,
        "observation": {"view_size": 5, "categories": categories},
        "actions": len(ACTIONS),
        "members": members,
        "scenario": "1v1" if members == 1 and len(seats) == 1 else "2v2",
        "seats": list(seats),
        "provenance": {"seed": 1, "env_steps": 10},
    }
    write_player(path, build(MLP, categories, len(ACTIONS) * members, seed).state_dict(), {**card, **changes})
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound bundle."""
    return bundle(tmp_path / "mine")


def refusal(path: Path, spec=ONE, team: str = "red") -> str:
    """Why a team cannot be loaded: one line, soon."""
    begin = time.monotonic()
    with pytest.raises(PlayerError) as caught:
        load_team(path, spec, team)
    assert time.monotonic() - begin < SECONDS
    text = str(caught.value)
    assert text
    assert text.isprintable()
    assert len(text) < 600
    return text


def inspected(path: Path, *args: str):
    return CliRunner().invoke(app, ["inspect", str(path), *args])


def vouch(path: Path) -> None:
    """Make the card say what the model file is."""
    data = (path / MODEL_FILE).read_bytes()
    edit(path, bytes=len(data), sha256=sha256_of(data))


def edit(path: Path, **changes: object) -> None:
    content = json.loads((path / CARD_FILE).read_text())
    (path / CARD_FILE).write_text(json.dumps({**content, **changes}))


# --- teams


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("greedy", [False, True])
def test_one_network_plays_every_seat_of_either_side(team, greedy, tmp_path):
    path = bundle(tmp_path / "two", ("red_0", "red_1"))
    players = load_team(path, TWO, team, greedy=greedy)
    assert list(players) == [f"{team}_0", f"{team}_1"]
    assert {(player.mirrored, player.greedy) for player in players.values()} == {(team == "blue", greedy)}
    assert len({id(player.network) for player in players.values()}) == 1


def test_a_joint_player_is_keyed_by_its_team(tmp_path):
    path = bundle(tmp_path / "joint", ("red_0", "red_1"), members=2)
    red, blue = (load_team(path, TWO, team) for team in ("red", "blue"))
    assert (list(red), list(blue)) == (["red"], ["blue"])
    assert play_games(TWO, {**red, **blue}, 3, seed=1).finished.all()
    assert "it plays a team of 2, this one has 1" in refusal(path)


def test_a_folder_for_each_seat_plays_the_seats_of_either_side(tmp_path):
    for seat in ("red_0", "red_1"):
        bundle(tmp_path / seat, (seat,), seed=int(seat[-1]))
    hashes = {seat: player.sha256 for seat, player in load_team(tmp_path, TWO, "red").items()}
    assert hashes == {seat: read_card(tmp_path / seat).sha256 for seat in ("red_0", "red_1")}
    mirrored = load_team(tmp_path, TWO, "blue")
    assert [player.sha256 for player in mirrored.values()] == list(hashes.values())
    assert all(player.mirrored for player in mirrored.values())
    own = bundle(tmp_path / "blue_1", ("blue_1",), seed=5)
    assert load_team(tmp_path, TWO, "blue")["blue_1"].sha256 == read_card(own).sha256


def test_what_is_missing_or_in_the_wrong_place_is_told(tmp_path):
    bundle(tmp_path / "red_0", ("red_0",))
    assert refusal(tmp_path, TWO) == (f"{tmp_path}: holds nobody for seat red_1; allowed is what has a folder: red_0")
    assert list(load_seats(tmp_path, TWO, "red")) == ["red_0"]
    assert list(load_team(tmp_path, ONE, "blue")) == ["blue_0"]
    bundle(tmp_path / "red_1", ("red_0",))
    assert "plays red_0; allowed in a folder of this name is a player of red_1 alone" in refusal(tmp_path, TWO)


def test_a_team_that_is_not_in_the_game_is_told(folder):
    single = load_scenario("single-v3").spec
    assert list(load_team(folder, single, "red")) == ["red_0"]
    assert "team=blue: allowed is a team of a game with seats red_0" in refusal(folder, single, "blue")


def test_the_hash_is_the_models_or_one_over_all_seats(folder, tmp_path):
    assert bundle_sha256(folder) == read_card(folder).sha256
    team = tmp_path / "team"
    for seat in ("red_0", "red_1"):
        bundle(team / seat, (seat,))
    before = bundle_sha256(team)
    assert len(before) == 64
    edit(team / "red_1", sha256="0" * 64)
    assert bundle_sha256(team) != before


def test_a_folder_is_one_thing(folder, tmp_path):
    assert folder_kind(folder) == "bundle"
    assert folder_kind(agent_of(tmp_path / "agent").folder) == "agent"
    assert "holds an agent; allowed is a bundle" in refusal(tmp_path / "agent")
    (tmp_path / "agent" / CARD_FILE).touch()
    assert "holds both card.json and agent.yaml" in refusal(tmp_path / "agent")
    assert "holds neither card.json nor agent.yaml" in refusal(tmp_path)
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: cannot be read: No such file or directory"
    assert "cannot be read: Not a directory" in refusal(folder / CARD_FILE)


# --- what strangers may hand in


def lying_header(path: Path) -> None:
    (path / MODEL_FILE).write_bytes(struct.pack("<Q", 10**10) + b'{"a": 1}')
    vouch(path)


def huge_sparse_file(path: Path) -> None:
    with (path / MODEL_FILE).open("wb") as file:
        file.write(struct.pack("<Q", 10**10))
        file.truncate(10**10)


def huge_sparse_file_with_a_card_that_says_so(path: Path) -> None:
    huge_sparse_file(path)
    edit(path, bytes=10**10)


def oversize_file(path: Path) -> None:
    (path / MODEL_FILE).write_bytes(bytes(MAX_MODEL_BYTES + 1))
    vouch(path)


def huge_card(path: Path) -> None:
    with (path / CARD_FILE).open("wb") as file:
        file.truncate(10**10)


def renamed_pickle(path: Path) -> None:
    (path / MODEL_FILE).write_bytes(pickle.dumps({"bias": torch.zeros(16)}))
    vouch(path)


def renamed_zip(path: Path) -> None:
    with zipfile.ZipFile(path / MODEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(10**7))
    vouch(path)


def deep_card(path: Path) -> None:
    (path / CARD_FILE).write_text('{"provenance":' + "[" * 100_000)


def endless_number(path: Path) -> None:
    text = (path / CARD_FILE).read_text()
    (path / CARD_FILE).write_text(text.replace('"env_steps": 10', '"env_steps": ' + "9" * 100_000))


def screen_codes(path: Path) -> None:
    edit(path, name="\x1b[2J\nok: plays everything")


def key_with_line_ends(path: Path) -> None:
    edit(path, **{"x\n" * 100_000: 1})


HOSTILE = {
    lying_header: "not a safetensors file",
    huge_sparse_file: "10000000000 bytes; the card says",
    huge_sparse_file_with_a_card_that_says_so: f"allowed is at most {MAX_MODEL_BYTES}",
    oversize_file: f"allowed is at most {MAX_MODEL_BYTES}",
    huge_card: f"allowed is at most {MAX_CARD_BYTES}",
    renamed_pickle: "not a safetensors file",
    renamed_zip: "not a safetensors file",
    deep_card: "card.json: : Invalid JSON",
    endless_number: "card.json",
    screen_codes: "name: Value error, allowed is printable text",
    key_with_line_ends: "Extra inputs are not permitted",
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line_and_soon(harm, folder):
    harm(folder)
    assert HOSTILE[harm] in refusal(folder)
    result = inspected(folder)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert HOSTILE[harm] in line


@pytest.mark.parametrize("name", [MODEL_FILE, CARD_FILE])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe", "device"])
def test_what_is_no_plain_file_is_refused_and_does_not_hang(kind, name, folder):
    path = folder / name
    path.rename(folder / "moved")
    if kind in {"link", "dangling", "device"}:
        path.symlink_to({"link": "moved", "dangling": "nowhere", "device": "/dev/zero"}[kind])
        assert refusal(folder) == f"{path}: a symbolic link; allowed is a plain file"
        return
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert refusal(folder) == f"{path}: " + (
        "cannot be read: Is a directory" if kind == "folder" else "not a plain file; allowed is one"
    )


ABSURD = [
    {"name": "mlp", "hidden": [10**9], "activation": "tanh"},
    {"name": "mlp", "hidden": [4096] * 8, "activation": "tanh"},
    {"name": "mlp", "hidden": [4096] * 10**4, "activation": "tanh"},
    {"name": "gru", "hidden": [4096]},
    {"name": "lstm", "hidden": [-1]},
    {"name": "cnn", "hidden": [4096] * 8},
    {"name": "embedding", "hidden": [4096, 1.5]},
    {"name": "mlp", "hidden": {"a": 1}, "activation": "tanh"},
    {"name": "x" * 10**5, "hidden": [8]},
    {"name": "mlp", "hidden": [8], "activation": "y" * 10**5},
]


@pytest.mark.parametrize("architecture", ABSURD, ids=[str(row)[:40] for row in ABSURD])
def test_an_absurd_network_is_refused_without_taking_memory(architecture, folder):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    edit(folder, architecture=architecture, observation={"view_size": 5, "categories": [256] * 1000}, actions=100)
    refusal(folder, ONE)  # the game shows something else
    with pytest.raises(PlayerError) as caught:
        read_network(folder, read_card(folder))
    assert len(str(caught.value)) < 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": 10**9},
        {"actions": 0},
        {"observation": {"view_size": 5, "categories": [10**9]}},
        {"observation": {"view_size": 5, "categories": [-1] * 27}},
        {"observation": {"view_size": 5, "categories": [0]}},
        {"members": 10**9},
        {"seats": ["red_0"] * 10**4},
        {"provenance": {"env_steps": "many"}},
    ],
    ids=str,
)
def test_an_absurd_size_is_refused_by_its_key(changes, folder):
    edit(folder, **changes)
    assert f"{CARD_FILE}: {next(iter(changes))}" in refusal(folder)


# --- the same by chance

JUNK = [None, True, -1, 0, 10**9, 10**30, 1.5, 1e308, "", "x", "x" * 5000, "\n", [], [[]], {}, {"name": None}, "red_0"]


class Spoilt:  # no dataclass: hypothesis would print the whole model
    """A folder to spoil, and what was in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = (path / MODEL_FILE).read_bytes()
        self.card = (path / CARD_FILE).read_text()


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Spoilt:
    """A folder to spoil."""
    return Spoilt(bundle(tmp_path_factory.mktemp("fuzz") / "mine"))


def load_or_refuse(path: Path) -> None:
    """Load it and let it act, or be told why not."""
    said = ""
    players = {}
    try:
        players = load_team(path, ONE, "red")
    except PlayerError as error:
        said = str(error)
    assert bool(said) != bool(players)
    assert said.isprintable(), repr(said)
    rng = Streams(1, np.arange(3), 0)
    tokens = np.zeros((3, ONE.num_tokens), np.uint8)
    for player in players.values():
        actions, _ = player.act(SeatView(tokens, None, 1), player.initial_state(3), rng)
        assert ((actions >= 0) & (actions < len(ACTIONS))).all()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0.9, 1) | st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_a_model_with_changed_bytes_loads_or_is_refused(sound, changes, kept, header, vouched):
    path, model, card = sound.path, sound.model, sound.card
    data = bytearray(model)
    # Most bytes are weights: half of the time it is the header that suffers.
    span = 8 + int.from_bytes(model[:8], "little") if header else len(data)
    for place, value in changes:
        data[int(place * (span - 1))] = value
    (path / MODEL_FILE).write_bytes(data[: int(kept * len(data))] if not header else data)
    (path / CARD_FILE).write_text(card)
    if vouched:
        vouch(path)
    load_or_refuse(path)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), st.floats(0.9, 1))
def test_a_card_with_changed_bytes_loads_or_is_refused(sound, changes, kept):
    path, model, card = sound.path, sound.model, sound.card
    data = bytearray(card.encode())
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    (path / MODEL_FILE).write_bytes(model)
    (path / CARD_FILE).write_bytes(data[: int(kept * len(data))])
    load_or_refuse(path)


def places(node) -> list[tuple]:
    """Where a value may be changed: the way to every value in a card, containers included."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [way for key in keys for way in ((key,), *((key, *rest) for rest in places(node[key])))]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(JUNK))
def test_a_card_with_a_changed_value_loads_or_is_refused(sound, number, junk):
    path, model, card = sound.path, sound.model, sound.card
    content = json.loads(card)
    # Each of the many categories is as good as any other: three of them will do.
    ways = [
        way for way in places(content) if not (way[0] == "observation" and isinstance(way[-1], int) and way[-1] > 2)
    ]
    *parents, last = ways[number % len(ways)]
    node = content
    for key in parents:
        node = node[key]
    node[last] = junk
    (path / MODEL_FILE).write_bytes(model)
    (path / CARD_FILE).write_text(json.dumps(content))
    load_or_refuse(path)


# --- inspect


def test_inspect_tells_from_which_sides_a_bundle_fits(folder, tmp_path):
    result = inspected(folder, "--scenario", "1v1")
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert result.exit_code == 0
    assert lines[0] == "mine: a frozen player"
    assert "as red as it learned" in lines
    assert "as blue from the other side of the board" in lines
    assert lines[-1] == "ok: plays 1v1 as red and as blue"
    partly = inspected(folder, "--scenario", "2v2")
    assert partly.output.splitlines()[-1] == "ok: plays 2v2 as red_0 and as blue_0"
    alone = inspected(folder, "--scenario", "single-v3")
    assert alone.output.splitlines()[-1] == "ok: plays single-v3 as red"


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("single", "it reads views of size 5 (27 tokens), this game shows size 7 (51 tokens)"),
        ("nowhere", "scenario=nowhere: unknown"),
        ("multigrid", "scenario=multigrid: allowed is a scenario of the red/blue-door game"),
    ],
)
def test_inspect_refuses_what_does_not_fit(scenario, said, folder):
    result = inspected(folder, "--scenario", scenario)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert said in line
    assert "ok:" not in result.stdout


def test_inspect_of_a_bundle_for_an_unknown_game_asks_for_one(folder):
    edit(folder, scenario="3v3")
    result = inspected(folder)
    assert (result.exit_code, "say which game with --scenario" in result.stderr) == (2, True)
    assert inspected(folder, "--scenario", "1v1").exit_code == 0


def test_inspect_shows_nothing_that_a_stranger_could_use(folder):
    edit(folder, provenance={"commit": "\x1b[2J", "versions": {"a\n": ["b"] * 10**4}, "opponents": [{"seat": "\n"}, 3]})
    result = inspected(folder)
    assert result.exit_code == 0, result.output
    assert all(line.isprintable() and len(line) < 400 for line in result.output.splitlines())


def test_inspect_starts_an_agent_and_tells_its_pace(tmp_path):
    result = inspected(agent_of(tmp_path / "mine").folder)
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert result.exit_code == 0, result.output
    assert lines[0] == "mine: an agent in a process of its own"
    assert sum("games against random" in line and "ms a step" in line for line in lines) == 2
    assert lines[-1] == "ok: plays 1v1 as red and as blue"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def act(m): sys.exit('help')", "agent mine, as red: step 0: exited with status 1: help"),
        ("def hello(m): say('hi')", "agent mine, as red: start: answered hi, which is not JSON"),
    ],
)
def test_inspect_tells_the_fault_of_an_agent(code, said, tmp_path):
    result = inspected(agent_of(tmp_path / "mine", code).folder)
    assert result.exit_code == 2
    assert result.stderr == f"multigrid-rl: {said}\n"
