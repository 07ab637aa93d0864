"""What a configuration may train is exported and read back as it was, or refused before a run starts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import call, complaint
from multigrid_rl.config.compose import compose
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import packed, read_card, read_network
from multigrid_rl.tables import HEADS, NETWORKS
from multigrid_rl.text import ConfigError
from multigrid_rl.training.loop import write_players
from multigrid_rl.training.stages import stages_of

BOARDS = [
    ("scenario=2v2", f"scheme={scheme}", f"shared={shared}", f"model.name={name}")
    for scheme, shared in (("dtde", "false"), ("dtde", "true"), ("ctde", "true"), ("ctde", "false"), ("ctce", "false"))
    for name in NETWORKS
]
VECTORS = [(task, f"model.name={name}") for task in ("env_id=CartPole-v1", "scenario=tictactoe") for name in NETWORKS]
NUMBERS = [
    ("env_id=Pendulum-v1", f"model.name={name}", f"model.head={head}", *trained)
    for name in NETWORKS
    for head in ("null", *HEADS)
    for trained in ((), ("train=bc", "data=none"), ("train=sac",))
]
SIZE = "model.hidden=[12]"
WIDE = """
import gymnasium as gym
import numpy as np


class Wide(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))

    def __init__(self, numbers):
        self.action_space = gym.spaces.Box(-1, 1, (numbers,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


gym.register("Wide-v0", lambda: Wide(1001))
gym.register("Long" * 30 + "-v0", lambda: Wide(1))
"""
CARD = {
    "name": "toy", "architecture": {"name": "mlp"}, "observation": {"size": 2}, "actions": 2, "scenario": "toy",
    "seats": ["agent_0"], "provenance": {},
}  # fmt: skip


def exported(config, folder):
    """Export fresh networks as a run does; yields each with what is read from its files."""
    stages = stages_of(config)
    specs = stages[0].factory.specs
    networks = {m: network_of(specs.agent_of(m), config.model.model_dump(), seed=3) for m in specs.modules}
    weights = {m: {f"net.{k}": v.numpy() for k, v in net.state_dict().items()} for m, net in networks.items()}
    run = SimpleNamespace(
        learner=SimpleNamespace(get_weights=lambda: weights), stages=stages, stage=0, env_steps=9, league=None
    )
    write_players(folder, run, config, folder, {})
    for module, network in networks.items():
        card = read_card(folder / module)
        yield specs.agent_of(module), network, read_network(folder / module, card)


def outputs_of(network, agent, critic_space=None):
    """Outputs of what an agent sees; a network that trains also sees what its critic alone reads."""
    rng, space = np.random.default_rng(0), agent.observation_space
    if hasattr(space, "nvec"):
        shown = [space.nvec, *([] if critic_space is None else [critic_space.nvec])]
        obs = torch.cat([torch.from_numpy(rng.integers(0, sizes, (5, len(sizes)))) for sizes in shown], 1)
    else:
        obs = torch.from_numpy(rng.normal(size=(5, int(np.prod(space.shape)))).astype(np.float32))
        if agent.legal:
            obs[:, -agent.legal :] = 1
    with torch.no_grad():
        if not network.state_size:
            return network.logits(obs[:, : int(np.prod(space.shape))])
        starts = torch.ones(5, 1, dtype=torch.bool)
        return network.sequence(obs[:, None], torch.zeros(5, network.state_size), starts)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "least"), [(BOARDS, 25), (VECTORS, 5), (NUMBERS, 12)], ids=["boards", "vectors", "numbers"]
)
def test_every_network_that_a_configuration_may_name_is_read_back_with_equal_outputs(pairs, least, tmp_path):
    good = 0
    for k, pair in enumerate(pairs):
        try:
            config = compose([*pair, SIZE])
            played = list(exported(config, tmp_path / str(k)))
        except ConfigError:
            continue
        good += 1
        for agent, network, found in played:
            assert torch.allclose(outputs_of(network, agent, agent.critic_space), outputs_of(found, agent)), pair
    assert good >= least


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_id=CartPole-v1", "model.hidden=[1024,1024]"], "model: expected weights of at most 5,500,000 bytes"),
        (
            ["env_id=wide_spaces:Wide-v0"],
            "card of the player: actions.BoxSignature.low: expected a list of at most 1000",
        ),
        ([f"env_id=wide_spaces:{'Long' * 30}-v0"], "card of the player: env.env_id: expected at most 100 characters"),
    ],
    ids=["bytes of weights", "numbers of an action", "letters of an id"],
)
def test_limits_of_cards_are_asked_before_a_run_starts(overrides, message, tmp_path, monkeypatch):
    (tmp_path / "wide_spaces.py").write_text(WIDE)
    monkeypatch.syspath_prepend(tmp_path)
    result = call("train", *overrides, f"run_dir={tmp_path / 'run'}", "--until", 1024)
    assert message in complaint(result)
    assert not (tmp_path / "run").exists()


def test_weights_that_two_layers_share_are_written():
    shared = torch.ones(2, 2)
    data = packed({"a": shared, "b": shared}, CARD)[0]
    assert len(data) > 2 * shared.nbytes
