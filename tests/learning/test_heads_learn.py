"""Heads learn two ways to act at once, which a Gaussian and a mean cannot."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.streams import Streams
from multigrid_rl.types import AgentSpec

ACTS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
AGENT = AgentSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), ACTS)
SIZES = {"mixture": 3, "bins": 21, "diffusion": 10}


def fitted(head: str | None, steps: int, seed: int = 0):
    """A network cloned from somebody who goes left or right, further the larger the observation; its head."""
    shape = {"name": "mlp", "hidden": [32, 32], "activation": "tanh", "head": head, "head_size": SIZES.get(head)}
    net = network_of(AGENT, shape, seed=seed + 1)
    ours = distribution_of(ACTS, network=net)
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        obs = torch.rand((256, 1), generator=generator) * 2 - 1
        side = torch.where(torch.rand((256, 1), generator=generator) < 0.7, 1.0, -1.0)
        noise = torch.randn((256, 2), generator=generator) * torch.tensor([0.08, 0.02])
        actions = torch.cat([side * (1 + 0.4 * obs), 0.5 + 0.3 * side], 1) + noise
        adam.zero_grad()
        ours.cloning_loss(net.logits(obs), actions).mean().backward()
        adam.step()
        schedule.step()
    return net, ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "steps"), [("mixture", 300), ("bins", 300), ("diffusion", 1500), ("gaussian", 300), ("deterministic", 300)]
)
def test_multimodal_heads_learn_two_modes(learning, head, steps):
    net, ours = fitted(head, steps, learning.seed)
    drawn = 1000
    with torch.no_grad():
        outputs = net.logits(torch.full((drawn, 1), 0.5)).numpy()
    actions = ours.bounded(ours.draw(outputs, Streams(3, np.arange(drawn, dtype=np.int64))).actions)
    right, left = (
        (np.abs(actions - [side * 1.2, 0.5 + 0.3 * side]) < [0.4, 0.15]).all(axis=1).mean() for side in (1, -1)
    )
    if head in ("gaussian", "deterministic"):  # in between, or everywhere
        learning.check("near either", right + left, below=0.6)
    else:  # ten steps of diffusion leave some in between
        learning.check("near either", right + left, above=0.9 if head == "diffusion" else 0.95)
        learning.check("right", right, above=0.6, below=0.8)
