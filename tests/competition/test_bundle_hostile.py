"""Bundles from strangers: they load, or are refused in one line, quickly and without doing harm."""

import json
import os
import resource
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import bundles
from bundles import ONE, bundle, edit, vouch
from commands import call, complaint
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.players.cards import (
    CARD_FILE,
    MAX_CARD_BYTES,
    MAX_MODEL_BYTES,
    MODEL_FILE,
    PlayerError,
    read_card,
    read_network,
)
from multigrid_rl.streams import Streams
from multigrid_rl.types import SeatView
from multigrid_rl.world.constants import ACTIONS
from teams import refusal


def lying_header(path: Path) -> None:
    (path / MODEL_FILE).write_bytes(struct.pack("<Q", 10**10) + b'{"a": 1}')
    vouch(path)


def huge_sparse_file(path: Path) -> None:
    with (path / MODEL_FILE).open("wb") as file:
        file.write(struct.pack("<Q", 10**10))
        file.truncate(10**10)
    edit(path, bytes=10**10)


def oversize_file(path: Path) -> None:
    (path / MODEL_FILE).write_bytes(bytes(MAX_MODEL_BYTES + 1))
    vouch(path)


def renamed_zip(path: Path) -> None:
    with zipfile.ZipFile(path / MODEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(10**7))
    vouch(path)


def other_weights(path: Path, change) -> None:
    weights = load_file(path / MODEL_FILE)
    key = next(iter(weights))
    save_file({**weights, key: change(weights[key]).contiguous()}, path / MODEL_FILE)
    vouch(path)


def endless_number(path: Path) -> None:
    text = (path / CARD_FILE).read_text()
    (path / CARD_FILE).write_text(text.replace('"env_steps": 10', '"env_steps": ' + "9" * 100_000))


def endless_view(path: Path) -> None:
    content = json.loads((path / CARD_FILE).read_text())
    edit(path, observation={**content["observation"], "view_size": 100_001})


#: What is done to a folder, and why it is refused.
HOSTILE = {
    "passenger": (
        lambda path: (path / "\x1b[2Jrun.py").write_text("import os"),
        "expected card.json, model.safetensors and README.md alone, got ?[2Jrun.py",
    ),
    "endless view": (endless_view, "observation.view_size: expected less than or equal to 99"),
    "lying header": (lying_header, "expected a safetensors file"),
    "huge sparse file": (huge_sparse_file, f"expected at most {MAX_MODEL_BYTES} bytes, got 10000000000 bytes"),
    "oversize file": (oversize_file, f"expected at most {MAX_MODEL_BYTES} bytes"),
    "huge card": (lambda path: os.truncate(path / CARD_FILE, 10**10), f"expected at most {MAX_CARD_BYTES} bytes"),
    "renamed zip": (renamed_zip, "expected a safetensors file"),
    "wrong shape": (lambda path: other_weights(path, lambda weight: weight[:-1]), "shape"),
    "no numbers": (lambda path: other_weights(path, lambda weight: weight * torch.nan), "finite numbers"),
    "deep card": (
        lambda path: (path / CARD_FILE).write_text('{"provenance":' + "[" * 100_000),
        "card.json: Invalid JSON",
    ),
    "endless number": (endless_number, "card.json"),
    "screen codes": (lambda path: edit(path, name="\x1b[2J\nok: plays all"), "name: expected printable text"),
    "key with line ends": (lambda path: edit(path, **{"x\n" * 100_000: 1}), "Extra inputs are not permitted"),
}


@pytest.mark.parametrize(("harm", "why"), HOSTILE.values(), ids=HOSTILE)
def test_rejects_hostile_folders(harm, why, folder):
    harm(folder)
    assert why in refusal(folder)
    assert why in complaint(call("inspect", folder))


@pytest.mark.parametrize("name", [MODEL_FILE, CARD_FILE])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe", "device"])
def test_rejects_special_files(kind, name, folder):
    path = folder / name
    path.rename(folder / ".moved")
    message = "expected a plain file, got a symbolic link"
    if kind == "folder":
        path.mkdir()
        message = "cannot be read: Is a directory"
    elif kind == "pipe":
        os.mkfifo(path)
        message = "expected a plain file, got a pipe or a device"
    else:
        path.symlink_to({"link": ".moved", "dangling": "nowhere", "device": "/dev/zero"}[kind])
    assert refusal(folder) == f"{path}: {message}"


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
def test_rejects_huge_network_without_allocating(architecture, folder):
    before, known = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "torch._dynamo" in sys.modules
    edit(folder, architecture=architecture, observation={"view_size": 5, "categories": [256] * 1000}, actions=100)
    refusal(folder, ONE)  # the game shows something else
    bundles.refusal(lambda: read_network(folder, read_card(folder)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    assert ("torch._dynamo" in sys.modules) == known  # torch's compiler, whose import takes seconds


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
def test_rejects_absurd_sizes_by_key(changes, folder):
    edit(folder, **changes)
    assert f"{CARD_FILE}: {next(iter(changes))}" in refusal(folder)


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
    message = ""
    players = {}
    try:
        players = load_team(path, ONE, "red")
    except PlayerError as error:
        message = str(error)
    assert bool(message) != bool(players)
    assert message.isprintable(), repr(message)
    rng = Streams(1, np.arange(3), 0)
    tokens = np.zeros((3, ONE.num_tokens), np.uint8)
    for player in players.values():
        actions, _ = player.act(SeatView(tokens, None, 1), player.initial_state(3), rng)
        assert ((actions >= 0) & (actions < len(ACTIONS))).all()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0.9, 1) | st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_loads_or_rejects_model_with_changed_bytes(sound, changes, kept, header, vouched):
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


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), st.floats(0.9, 1))
def test_loads_or_rejects_card_with_changed_bytes(sound, changes, kept):
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


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(JUNK))
def test_loads_or_rejects_card_with_changed_value(sound, number, junk):
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


def test_ignores_hidden_desktop_files(folder):
    (folder / ".DS_Store").touch()
    assert load_team(folder, ONE, "red")
