"""`export --onnx`: the file plays as the player does, and what has no such form is refused in one line."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gymnasium import spaces

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from bundles import bundle  # noqa: E402
from commands import call, complaint, works  # noqa: E402
from multigrid_rl.competition.onnx_file import CLOSE, compare, write_onnx  # noqa: E402
from multigrid_rl.config.schema import ModelConfig  # noqa: E402
from multigrid_rl.evaluation.evaluation import evaluate  # noqa: E402
from multigrid_rl.evaluation.targets import find_target  # noqa: E402
from multigrid_rl.files import data_root, install_command  # noqa: E402
from multigrid_rl.models.registry import network_of  # noqa: E402
from multigrid_rl.players.cards import read_card, read_network, signature, write_player  # noqa: E402
from multigrid_rl.players.frozen import FrozenPlayer  # noqa: E402
from multigrid_rl.types import AgentSpec  # noqa: E402

BODY = spaces.Box(-1.0, 1.0, (17,)), spaces.Box(-2.0, 1.0, (6,))
VIEW = spaces.MultiDiscrete([23] * 25 + [4, 4])
TEAM = spaces.MultiDiscrete(([23] * 25 + [4, 4]) * 2)
BOARD = spaces.Box(0.0, 1.0, (2 * 9 + 9,))


@contextmanager
def recorded(sha256, most):
    """Record what the player of this hash is shown within the block: observations and memories, about ``most``."""
    rows, memories, own = [], [], FrozenPlayer.outputs

    def outputs(self, view, state):
        if self.sha256 == sha256 and not self.mirrored and sum(map(len, rows)) < most:
            rows.append(np.array(view.tokens))
            memories.append(state.clone())
        return own(self, view, state)

    FrozenPlayer.outputs = outputs
    try:
        yield rows, memories
    finally:
        FrozenPlayer.outputs = own


def played(target, sha256, states):
    """Play games until enough was seen; returns observations and, where there is one, memories."""
    with recorded(sha256, states) as (rows, memories):
        for seed in range(100):
            evaluate(target, episodes=50, seed=seed, modes=("stochastic",))
            if sum(map(len, rows)) >= states:
                break
    shown, memory = np.concatenate(rows)[:states], torch.cat(memories)[:states]
    return [torch.from_numpy(shown.astype(np.int32)), memory][: 1 + bool(memory.shape[1])]


def session_of(file):
    return onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])


def player_in(folder, space, actions, *, legal=0, image=(), seats=("red_0",), **model):
    """Write a player with random weights, large enough that its actions differ; returns its folder."""
    agent = AgentSpec("red_0", "red_0", seats, space, actions, None, legal=legal, image=image)
    architecture = ModelConfig(**{"hidden": [16], "name": "mlp", **model}).model_dump(mode="json", exclude_none=True)
    net = network_of(agent, architecture, seed=3)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "log_std" not in name:
                weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)))
    own = {"name": "mine", "architecture": architecture, "scenario": "1v1", "seats": list(seats)}
    write_player(folder, net.state_dict(), {**own, **signature(agent, 5), "provenance": {}})
    return folder


KINDS = {
    "embedding": (VIEW, spaces.MultiDiscrete([7]), {"name": "embedding"}),
    "cnn": (VIEW, spaces.MultiDiscrete([7]), {"name": "cnn"}),
    "attention": (VIEW, spaces.MultiDiscrete([7]), {"name": "attention"}),
    "attention-team": (TEAM, spaces.MultiDiscrete([7, 7]), {"name": "attention", "seats": ("red_0", "red_1")}),
    "gru": (VIEW, spaces.MultiDiscrete([7]), {"name": "gru"}),
    "lstm": (VIEW, spaces.MultiDiscrete([7]), {"name": "lstm"}),
    "gru-vector": (*BODY, {"name": "gru", "normalise": True}),
    "masked": (BOARD, spaces.MultiDiscrete([9]), {"legal": 9}),
    "image": (BOARD, spaces.MultiDiscrete([9]), {"name": "cnn", "legal": 9, "image": (3, 3, 2)}),
    **{bound: (*BODY, {"bound": bound}) for bound in ("clip", "tanh", "clip3")},
    **{
        head: (*BODY, {"head": head})
        for head in ("tanh-gaussian", "tanh-gaussian-clamped", "deterministic", "mixture", "bins", "diffusion")
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_player_is_written_and_plays_the_same(kind, tmp_path):
    space, actions, more = KINDS[kind]
    folder = player_in(tmp_path / "mine", space, actions, **more)
    assert "256 random observations" in write_onnx(folder, tmp_path / "mine.onnx")
    card, session = read_card(folder), session_of(tmp_path / "mine.onnx")
    memory = read_network(folder, card).state_size
    assert [one.name for one in session.get_inputs()] == ["observation", "memory"][: 1 + bool(memory)]
    assert json.loads(session.get_modelmeta().custom_metadata_map["card"])["sha256"] == card.sha256


def test_file_plays_recorded_games_like_the_player(tmp_path):
    home = data_root() / "checkpoints" / "blue-adept"
    works("export", home, "--onnx", "-o", tmp_path / "adept.onnx")
    card, target = read_card(home), find_target(f"{home}/", ["scenario=1v1"])
    rows = played(target, card.sha256, 10_000)
    assert len(rows[0]) == 10_000
    player = FrozenPlayer.of(card, read_network(home, card))
    share, apart = compare(session_of(tmp_path / "adept.onnx"), player, rows)
    assert (share, apart < CLOSE) == (1.0, True)


def test_a_file_that_computes_something_else_is_noticed(tmp_path):
    one = player_in(tmp_path / "one", VIEW, spaces.MultiDiscrete([7]))
    write_onnx(one, tmp_path / "one.onnx")
    other = bundle(tmp_path / "other", seed=5)
    rows = [torch.from_numpy(VIEW.sample()[None].astype("int32").repeat(64, 0))]
    card = read_card(other)
    assert compare(session_of(tmp_path / "one.onnx"), FrozenPlayer.of(card, read_network(other, card)), rows)[1] > CLOSE


def test_what_cannot_be_written_is_refused(tmp_path):
    home, file = bundle(tmp_path / "mine"), tmp_path / "mine.onnx"
    write_onnx(home, file)
    before = file.read_bytes()
    assert "--output: expected a new file that ends with .onnx" in complaint(call("export", home, "--onnx", "-o", file))
    assert file.read_bytes() == before
    assert "ends with .onnx, got" in complaint(call("export", home, "--onnx", "-o", tmp_path / "mine.pt"))
    for option in ("--checkpoint", "--scenario"):
        said = complaint(call("export", home, "--onnx", option, "x", "-o", tmp_path / "new.onnx"))
        assert f"{option}: expected nothing" in said
    other_seat = call("export", home, "--onnx", "--seat", "green_9", "-o", tmp_path / "new.onnx")
    assert "--seat: expected a seat of" in complaint(other_seat)
    words = call("export", home, "--onnx", "--name", "x", "-o", tmp_path / "new.onnx")
    assert "--onnx: expected nothing of --agent" in complaint(words)
    assert "--seat: expected a seat" in complaint(call("export", home, "-o", tmp_path / "copy"))
    for seat in ("red_0", "red_1"):
        bundle(tmp_path / "two" / seat, (seat,))
    two = call("export", tmp_path / "two", "--onnx", "-o", tmp_path / "new.onnx")
    assert "--seat: expected one of red_0, red_1: a file holds one player, got None" in complaint(two)
    assert call("export", tmp_path / "two", "--onnx", "--seat", "red_1", "-o", tmp_path / "new.onnx").exit_code == 0


def test_without_the_libraries_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.competition.onnx_file.find_spec", lambda name: None)
    said = complaint(call("export", bundle(tmp_path / "mine"), "--onnx", "-o", tmp_path / "mine.onnx"))
    assert f"expected onnx and onnxruntime: {install_command('onnx')}, got no onnx and no onnxruntime" in said
