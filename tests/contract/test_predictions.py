"""``predict``, and ONNX files: observations as an environment shows them, actions as it takes them."""

import json
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import multigrid_rl
from bundles import edit, game_bundle
from commands import call, complaint
from multigrid_rl.envs.base import AGENT, flat_actions
from multigrid_rl.envs.zoo import seat_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import CARD_FILE, PlayerError, read_card, read_network, signature, write_player
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.types import AgentSpec, SeatView
from tiny_runs import tiny_run

BOX = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "way": spaces.Discrete(3)})
MASKED = spaces.Dict({"observation": BOX, "action_mask": spaces.MultiBinary(4)})
ACTS = [
    spaces.Discrete(4),
    spaces.Discrete(2, start=10),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(0, 90, (2, 2), np.int64),
    spaces.Box(300, 500, (1,), np.float32),
]


def player_of(folder, seen=BOX, acts=ACTS[0], *, told=False, **model):
    own = seat_of("env_id=Some-v0", seen, acts, masked=told)
    agent = AgentSpec(AGENT, AGENT, (AGENT,), own.space, flat_actions(acts), legal=own.legal, own=own)
    architecture = {"name": "mlp", "hidden": [8], "activation": "tanh", **model}
    net = network_of(agent, architecture, 1)
    env = {"package": "gymnasium", "env_id": "Some-v0"}
    about = {"name": "some", "architecture": architecture, "scenario": "gymnasium", "env": env, "provenance": {}}
    card = write_player(
        folder, net.state_dict(), {**about, "seats": [AGENT], **signature(agent, None), **agent.own.card_fields}
    )
    player = FrozenPlayer.of(card, read_network(folder, read_card(folder)))
    player.env_seat = own
    return player


@pytest.mark.parametrize("acts", ACTS, ids=str)
def test_predicted_actions_are_those_that_an_environment_takes_and_drawn_by_a_numpy_generator(tmp_path, acts):
    player = player_of(tmp_path / "one", acts=acts)
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    taken = player.predict(rows)[0]
    assert (taken.dtype, taken.shape) == (acts.dtype, (50, *acts.shape))
    assert all(acts.contains(row) for row in taken)
    assert acts.contains(player.predict(rows[0])[0])
    drawn = [player.predict(rows, rng=np.random.default_rng(seed))[0] for seed in (1, 1, 2)]
    assert all(acts.contains(row) for row in drawn[0])
    assert np.array_equal(drawn[0], drawn[1])
    saturated = isinstance(acts, spaces.Box) and acts.low.min() >= 300
    assert saturated or not np.array_equal(drawn[0], drawn[2])
    with pytest.raises(ConfigError, match=r"^rng: expected a numpy.random.Generator, such as default_rng\(0\), got 3$"):
        player.predict(rows[0], rng=3)


@pytest.mark.parametrize("acts", ACTS, ids=str)
def test_actions_of_onnx_files_are_those_that_an_environment_takes(tmp_path, acts):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from multigrid_rl.competition.onnx_file import write_onnx  # noqa: PLC0415 - needs an extra

    player = player_of(tmp_path / "one", acts=acts)
    write_onnx(tmp_path / "one", tmp_path / "one.onnx")
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    action = runtime.InferenceSession(tmp_path / "one.onnx").run(["action"], {"observation": rows})[0]
    assert action.dtype == acts.dtype
    np.testing.assert_allclose(action, player.predict(rows)[0], rtol=1e-4, atol=1e-4)


def test_card_without_what_its_environment_takes_still_plays(tmp_path):
    player_of(tmp_path / "one", acts=spaces.Discrete(2, start=10))
    card = json.loads((tmp_path / "one" / CARD_FILE).read_text())
    del card["taken"]
    (tmp_path / "one" / CARD_FILE).write_text(json.dumps(card))
    found = read_card(tmp_path / "one")
    assert FrozenPlayer.of(found, read_network(tmp_path / "one", found)).predict(np.zeros(3))[0] in (0, 1)


@pytest.mark.parametrize(
    "taken",
    [
        {"shape": [3], "dtype": "int64", "start": []},
        {"shape": [], "dtype": "int64", "start": [1, 2]},
        {"shape": [], "dtype": "object", "start": []},
    ],
    ids=str,
)
def test_card_with_other_actions_than_its_environment_takes_is_refused(tmp_path, taken):
    player_of(tmp_path / "one")
    edit(tmp_path / "one", taken=taken)
    with pytest.raises(PlayerError, match="taken"):
        read_card(tmp_path / "one")


@pytest.mark.parametrize(
    "seen",
    [BOX, DICT, MASKED, spaces.Discrete(3), spaces.Box(0, 255, (3,), np.uint8), spaces.Box(0, 255, (4, 5, 3), np.uint8),
     spaces.MultiDiscrete([2, 3]), spaces.Tuple([BOX, spaces.Discrete(2)])],
    ids=str,
)  # fmt: skip
def test_predict_reads_what_an_environment_shows(tmp_path, seen):
    player = player_of(tmp_path / "one", seen)
    seen.seed(3)
    for _ in range(20):
        shown, row = seen.sample(), np.zeros(player.env_seat.size, np.float32)
        if isinstance(shown, dict) and "action_mask" in shown:
            shown["action_mask"][0] = 1
        player.env_seat.read(shown, {}, row)
        assert player.predict(shown)[0] == player.predict(row)[0]


def test_observation_of_one_row_is_one_observation(tmp_path):
    player = player_of(tmp_path / "one", seen=spaces.Box(-1, 1, (1, 9), np.float32))
    shown = np.linspace(-1, 1, 9, dtype=np.float32)[None]
    assert ACTS[0].contains(player.predict(shown)[0])
    assert player.predict(shown.repeat(4, 0))[0].tolist() == [player.predict(shown)[0]] * 4


def test_predict_reads_flags_of_info(tmp_path):
    player = player_of(tmp_path / "one", told=True)
    for k in range(4):
        shown = {"observation": np.ones(3), "action_mask": np.eye(4)[k]}
        assert player.predict(shown)[0] == k


@pytest.mark.parametrize("shown", [{"picture": 1}, np.zeros(9), "text", None, np.zeros((2, 9))], ids=repr)
def test_predict_refuses_other_observations_in_one_line(tmp_path, shown):
    player = player_of(tmp_path / "one", DICT)
    with pytest.raises(ConfigError, match=r"^observation: expected 7 numbers, or what the environment shows: Dict.*"):
        player.predict(shown)
    player.env_seat = None
    with pytest.raises(ConfigError, match=r"^observation: expected 7 numbers, got shape"):
        player.predict(shown)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("name", ["gru", "lstm", "mlp"])
def test_networks_over_vectors_read_whole_numbers_as_numbers(tmp_path, name, normalise):
    player = player_of(tmp_path / "one", name=name, normalise=normalise)
    rows = np.random.default_rng(0).integers(-500, 500, (200, 3))
    wanted = player.predict(rows.astype(np.float32))[0]
    assert len(np.unique(wanted)) > 1
    np.testing.assert_array_equal(player.predict(rows)[0], wanted)
    np.testing.assert_array_equal(player.predict(rows.tolist())[0], wanted)


@pytest.mark.parametrize("wrong", [-1, 256, 300, 0.5, np.nan])
def test_tokens_that_are_no_bytes_are_refused(wrong):
    player = multigrid_rl.load_policy("blue-rookie", "blue_0")
    with pytest.raises(ConfigError, match=r"^observation: expected tokens, whole numbers from 0 to 255, got"):
        player.predict(np.where(np.arange(27) == 4, wrong, 0))


class Repeat(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2, start=10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {}

    def step(self, action):
        assert action in (10, 11)
        return 0, 0.0, True, False, {}


KEEPS = """
import torch
SCALE = torch.full((1,), 2.0)
class Keeps(torch.nn.Module):
    state_size = 0
    def __init__(self, space, outputs, hidden, generator):
        super().__init__()
        self.log_std, self.policy = torch.nn.Parameter(torch.zeros(2)), torch.nn.Linear(space.shape[0], outputs)
    def logits(self, observations):
        return self.policy(observations) * SCALE
    def forward(self, observations):
        return self.logits(observations), observations[:, 0]
"""


@pytest.mark.parametrize(
    ("module", "model"),
    [
        *(("multigrid_rl.models.squashed", {"head": head}) for head in ("tanh-gaussian", "tanh-gaussian-clamped")),
        ("keeps", {"name": "keeps:Keeps", "hidden": [600]}),
    ],
)
def test_first_player_of_a_process_has_the_tensors_that_its_module_keeps(module, model, tmp_path, monkeypatch):
    (tmp_path / "keeps.py").write_text(KEEPS)
    monkeypatch.syspath_prepend(tmp_path)
    agent = AgentSpec(AGENT, AGENT, (AGENT,), BOX, spaces.Box(-1, 1, (2,)))
    architecture = {"name": "mlp", "hidden": [8], **model}
    net = network_of(agent, {**architecture, "log_std": 0.0})
    card = {"name": "mine", "architecture": architecture, "scenario": "1v1", "seats": [AGENT], "provenance": {}}
    write_player(tmp_path / "mine", net.state_dict(), {**card, **signature(agent, None)})
    monkeypatch.delitem(sys.modules, module)
    card = read_card(tmp_path / "mine")
    player = FrozenPlayer.of(card, read_network(tmp_path / "mine", card))
    seen = SeatView(np.zeros((4, 3), np.float32), None, 0)
    assert np.isfinite(player.act(seen, player.initial_state(4), Streams(0, np.arange(4)))[0]).all()


@pytest.mark.parametrize("named", ["scenario=tictactoe", "env_id=pettingzoo:classic/tictactoe-v3"])
def test_bundle_of_any_game_is_asked_in_its_own_game(named, tmp_path):
    home = game_bundle(tmp_path / "mine", "player_2", 1, named)
    flags = np.eye(9, dtype=np.int8)[4]
    seen = {"observation": np.zeros((3, 3, 2), np.int8), "action_mask": flags}
    for seat in (None, "player_2"):
        assert multigrid_rl.load_policy(home, seat).predict(seen)[0] == 4
    with pytest.raises(ValueError, match="seat"):
        multigrid_rl.load_policy(home, "red_0")


def test_policy_of_a_run_reads_and_answers_as_its_environment_does(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Repeat-v0", gymnasium.envs.registration.EnvSpec("Repeat-v0", Repeat))
    tiny_run(tmp_path / "run", "train.until=512", "env_id=Repeat-v0")
    policy = multigrid_rl.load_policy(tmp_path / "run")
    assert policy.predict(1)[0] == policy.predict(np.eye(2, dtype=np.float32)[1])[0]
    assert policy.predict(1)[0] in (10, 11)
    nobody = complaint(call("export", tmp_path / "run", "-o", tmp_path / "mine"))
    assert f"seat: expected agent_0, trained in {tmp_path / 'run'}, got nothing" in nobody
