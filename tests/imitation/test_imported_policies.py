"""Policies of other libraries: each kind of file becomes a player that acts as the file's own network does."""

import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from bundles import torch_files_here
from commands import call, complaint, works
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.players.frozen import FrozenPlayer

pytestmark = pytest.mark.filterwarnings("ignore")

OBS, ACTIONS = 3, 1  # of Pendulum-v1, whose torque lies between -2 and 2
SEEN = np.random.default_rng(5).normal(size=(32, OBS)).astype(np.float32)


def linear(state: dict, name: str, inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    state |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
    return layer


def layers(state: dict, names: list[str], sizes: list[int], between) -> nn.Sequential:
    """A network of layers with these names in ``state``."""
    parts: list[nn.Module] = []
    for k, name in enumerate(names):
        parts += [linear(state, name, sizes[k], sizes[k + 1]), between()]
    return nn.Sequential(*parts[:-1])


def cleanrl_sac(scale: float = 2.0):
    state: dict = {"action_scale": torch.full((1, ACTIONS), scale), "action_bias": torch.zeros(1, ACTIONS)}
    body = layers(state, ["fc1", "fc2", "fc_mean"], [OBS, 16, 16, ACTIONS], nn.ReLU)
    linear(state, "fc_logstd", 16, ACTIONS)
    return state, lambda x: torch.tanh(body(x)) * scale


def cleanrl_td3():
    state: dict = {"action_scale": torch.full((ACTIONS,), 2.0), "action_bias": torch.zeros(ACTIONS)}
    body = layers(state, ["fc1", "fc2", "fc_mu"], [OBS, 16, 16, ACTIONS], nn.ReLU)
    return (state, {"fc1.weight": torch.zeros(2, 2)}, {}), lambda x: torch.tanh(body(x)) * 2


def cleanrl_ppo():
    state: dict = {"actor_logstd": torch.full((1, ACTIONS), -0.7)}
    body = layers(state, [f"actor_mean.{k}" for k in (0, 2, 4)], [OBS, 8, 8, ACTIONS], nn.Tanh)
    layers(state, [f"critic.{k}" for k in (0, 2, 4)], [OBS, 8, 8, 1], nn.Tanh)
    return state, lambda x: body(x).clamp(-2, 2)


def sb3_sac():
    state: dict = {}
    body = layers(state, ["actor.latent_pi.0", "actor.latent_pi.2", "actor.mu"], [OBS, 16, 16, ACTIONS], nn.ReLU)
    linear(state, "actor.log_std", 16, ACTIONS)
    linear(state, "critic.qf0.0", OBS + ACTIONS, 16)
    return state, lambda x: torch.tanh(body(x)) * 2


def sb3_td3():
    state: dict = {}
    body = layers(state, [f"actor.mu.{k}" for k in (0, 2, 4)], [OBS, 20, 12, ACTIONS], nn.ReLU)
    return state, lambda x: torch.tanh(body(x)) * 2


def sb3_ppo():
    state: dict = {"log_std": torch.full((ACTIONS,), -1.0)}
    names = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
    body = layers(state, names, [OBS, 8, 8, ACTIONS], nn.Tanh)
    names = ["mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"]
    layers(state, names, [OBS, 4, 4, 1], nn.Tanh)  # another size than the policy's: left out
    return state, lambda x: body(x).clamp(-2, 2)


@pytest.fixture
def here():
    with torch_files_here():
        yield


def written(path, state, policy_kwargs=None):
    """Write a file as its library would."""
    if not path.name.endswith(".zip"):
        torch.save(state, path)
        return path
    inner = io.BytesIO()
    torch.save(OrderedDict(state), inner)
    with zipfile.ZipFile(path, "w") as archive:
        unread = {":serialized:": "never read"}
        archive.writestr("data", json.dumps({"policy_class": unread, "policy_kwargs": unread | (policy_kwargs or {})}))
        archive.writestr("policy.pth", inner.getvalue())
    return path


def imported(tmp_path, state, name: str, *more: object):
    path = written(tmp_path / name, state)
    result = works("data", "import-policy", path, "env_id=Pendulum-v1", "-o", tmp_path / "mine", *more)
    card = read_card(tmp_path / "mine")
    return FrozenPlayer.of(card, read_network(tmp_path / "mine", card), greedy=True), card, result.output


@pytest.mark.parametrize(
    ("make", "file"),
    [
        (cleanrl_sac, "actor.pt"),
        (cleanrl_td3, "td3.cleanrl_model"),
        (cleanrl_ppo, "ppo.cleanrl_model"),
        (sb3_sac, "sac.zip"),
        (sb3_td3, "td3.zip"),
        (sb3_ppo, "ppo.zip"),
    ],
)
def test_player_acts_as_the_files_network(here, tmp_path, make, file):
    torch.manual_seed(3)
    state, act = make()
    player, card, said = imported(tmp_path, state, file)
    with torch.no_grad():
        due = act(torch.from_numpy(SEEN)).numpy()
    assert np.abs(due).max() > 0.1
    assert np.allclose(player.predict(SEEN)[0], due, atol=1e-5)
    assert card.env.env_id == "Pendulum-v1"
    assert ("normaliser" in said) == (make in (cleanrl_ppo, sb3_ppo))
    if make is sb3_sac:
        works("evaluate", tmp_path / "mine", "--episodes", 4)


def test_a_policy_may_have_another_activation_and_come_without_its_critic(here, tmp_path):
    torch.manual_seed(3)
    state: dict = {"actor_logstd": torch.full((1, ACTIONS), -0.7)}
    body = layers(state, [f"actor_mean.{k}" for k in (0, 2, 4)], [OBS, 8, 8, ACTIONS], nn.ELU)
    player, *_ = imported(tmp_path, state, "alone.pt", "--activation", "elu")
    with torch.no_grad():
        assert np.allclose(player.predict(SEEN)[0], body(torch.from_numpy(SEEN)).clamp(-2, 2).numpy(), atol=1e-5)


def test_activation_is_the_one_that_a_zip_names(here, tmp_path):
    torch.manual_seed(3)
    state = sb3_ppo()[0]
    names = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
    body = layers(state, names, [OBS, 8, 8, ACTIONS], nn.ReLU)
    named = "<class 'torch.nn.modules.activation.{}'>"
    path = written(tmp_path / "relu.zip", state, {"activation_fn": named.format("ReLU")})
    works("data", "import-policy", path, "env_id=Pendulum-v1", "-o", tmp_path / "mine")
    card = read_card(tmp_path / "mine")
    player = FrozenPlayer.of(card, read_network(tmp_path / "mine", card), greedy=True)
    with torch.no_grad():
        assert np.allclose(player.predict(SEEN)[0], body(torch.from_numpy(SEEN)).clamp(-2, 2).numpy(), atol=1e-5)
    other = written(tmp_path / "other.zip", state, {"activation_fn": named.format("LeakyReLU")})
    refused(
        other, "env_id=Pendulum-v1", "activation_fn: expected tanh, relu, elu, silu, or --activation, got LeakyReLU"
    )
    works("data", "import-policy", other, "env_id=Pendulum-v1", "-o", tmp_path / "out", "--activation", "relu")


def test_deviations_are_the_files(here, tmp_path):
    torch.manual_seed(4)
    state, _ = cleanrl_sac()
    player, *_ = imported(tmp_path, state, "actor.pt")
    x = torch.from_numpy(SEEN)
    with torch.no_grad():
        for name in ("fc1", "fc2"):
            x = torch.relu(x @ state[f"{name}.weight"].T + state[f"{name}.bias"])
        raw = x @ state["fc_logstd.weight"].T + state["fc_logstd.bias"]
        due = -5 + 0.5 * 7 * (torch.tanh(raw) + 1)  # CleanRL's sac_continuous_action.py
        outputs = player.network.logits(torch.from_numpy(SEEN))
        found = player.distribution._log_std(outputs[:, ACTIONS:])
    assert torch.allclose(found, due, atol=1e-5)


CLEANRL_PPO = [f"actor.{k}" for k in (0, 2, 4)], [f"critic.{k}" for k in (0, 2, 4)]
SB3_PPO = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"], []


@pytest.mark.parametrize(("policy", "values", "file"), [(*CLEANRL_PPO, "cart.pt"), (*SB3_PPO, "cart.zip")])
def test_choices_of_a_ppo_are_its_logits(here, tmp_path, policy, values, file):
    state: dict = {}
    body = layers(state, policy, [4, 8, 8, 2], nn.Tanh)
    layers(state, values, [4, 8, 8, 1], nn.Tanh)
    path = written(tmp_path / file, state)
    works("data", "import-policy", path, "scenario=cartpole", "-o", tmp_path / "cart")
    card = read_card(tmp_path / "cart")
    seen = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        due = body(torch.from_numpy(seen)).argmax(1).numpy()
    player = FrozenPlayer.of(card, read_network(tmp_path / "cart", card), greedy=True)
    assert (player.predict(seen)[0] == due).all()


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def refused(path, where: str, said: str) -> None:
    result = call("data", "import-policy", path, where, "-o", path.parent / "out")
    assert result.exit_code not in (0, 70), (path.name, result.output)
    assert said in complaint(result), (path.name, result.output)
    assert not (path.parent / "out").exists()


@pytest.mark.slow
def test_files_that_are_none_of_tensors_are_refused_in_a_line(tmp_path, capfd):
    """By the process that reads them."""
    for name, content in {"evil.pt": pickle.dumps(Evil()), "text.pt": b"no torch file"}.items():
        (tmp_path / name).write_bytes(content)
    torch.save({"fc1.weight": Evil()}, tmp_path / "hidden.pt")
    written(tmp_path / "number.pt", {"lr": 3.0})
    for name in ("evil.pt", "text.pt", "hidden.pt", "number.pt"):
        refused(tmp_path / name, "env_id=Pendulum-v1", "a torch file of tensors")
    assert "executed" not in capfd.readouterr().out


@pytest.mark.parametrize(("at", "byte"), [(30 + len("policy.pth") + 9, 255), (8, 99), (6, 1)])
def test_zip_that_cannot_be_unpacked_is_refused_in_a_line(tmp_path, at, byte):
    """Its data are damaged, its compression is an unknown one, or it has a password."""
    with zipfile.ZipFile(tmp_path / "sb3.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.pth", bytes(range(256)) * 64)
    data = bytearray((tmp_path / "sb3.zip").read_bytes())
    data[at] = byte
    if at < 10:  # the list of files says it, too
        data[data.index(b"PK\x01\x02") + at + 2] = byte
    (tmp_path / "sb3.zip").write_bytes(data)
    refused(tmp_path / "sb3.zip", "env_id=Pendulum-v1", "a whole zip")


def test_files_that_are_no_policy_are_refused_in_a_line(here, tmp_path):
    torch.manual_seed(0)
    good, _ = cleanrl_sac()
    written(tmp_path / "scaled.pt", cleanrl_sac(scale=1.0)[0])
    written(tmp_path / "unknown.pt", {"encoder.weight": torch.zeros(2, 2)})
    written(tmp_path / "good.pt", good)
    written(tmp_path / "deep.pt", good | {"fc3.weight": torch.eye(16), "fc3.bias": torch.zeros(16)})
    ppo, choices = cleanrl_ppo()[0], dict[str, torch.Tensor]()
    written(tmp_path / "nan.pt", ppo | {"actor_logstd": torch.full((1, ACTIONS), math.nan)})
    written(tmp_path / "drawn.pt", ppo)
    layers(choices, CLEANRL_PPO[0], [OBS, 8, 8, ACTIONS], nn.Tanh)
    written(tmp_path / "choices.pt", choices)
    written(tmp_path / "features.zip", sb3_ppo()[0] | {"pi_features_extractor.net.weight": torch.eye(OBS)})
    for name, where, said in (
        ("nan.pt", "env_id=Pendulum-v1", "finite weights, got others in actor_logstd"),
        ("drawn.pt", "scenario=cartpole", "CleanRL's PPO: expected an environment of continuous actions, got"),
        ("choices.pt", "env_id=Pendulum-v1", "over choices: expected an environment of choices, got Box("),
        ("features.zip", "env_id=Pendulum-v1", "no other layers than mlp_extractor.policy_net.0"),
        ("scaled.pt", "env_id=Pendulum-v1", "actions of [-2.0] to [2.0], got [-1.0] to [1.0]"),
        ("unknown.pt", "env_id=Pendulum-v1", "CleanRL's SAC, CleanRL's TD3"),
        ("deep.pt", "env_id=Pendulum-v1", "no other layers than fc1, fc2, fc_mean, got fc3"),
        ("good.pt", "scenario=halfcheetah", "policy.0.weight of shape (16, 17)"),
        ("good.pt", "scenario=1v1", "scenario: expected"),
        ("none.pt", "env_id=Pendulum-v1", "a file with a policy's weights"),
    ):
        refused(tmp_path / name, where, said)
