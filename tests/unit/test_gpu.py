"""What a learner on a GPU runs: network, loss, clipping and optimiser give there what they give on the CPU."""

import pytest
import torch

from multigrid_rl.learn.flat import FlatWeights
from multigrid_rl.learn.losses import Losses, Rows, Weighting, loss_of
from multigrid_rl.models.distributions import Categorical
from multigrid_rl.models.registry import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
CATEGORIES = (23,) * 25 + (4, 4)
ROWS, STEPS = 256, 20


def trained(device: str, architecture: dict) -> tuple[torch.Tensor, float]:
    """Weights after some gradient steps on one batch, and the last loss."""
    generator = torch.Generator().manual_seed(1)
    net = build(architecture, CATEGORIES, 7, seed=3).to(device)
    flat = FlatWeights(list(net.parameters()))
    optimizer = torch.optim.Adam([flat.weights], lr=1e-3, fused=True)
    tokens = torch.stack([torch.randint(0, n, (ROWS,), generator=generator) for n in CATEGORIES], dim=1).to(device)
    actions = torch.randint(0, 7, (ROWS, 1), generator=generator)
    advantages, targets = torch.randn(2, ROWS, generator=generator)
    rows = Rows(actions, torch.ones(ROWS, 1).bool(), torch.full((ROWS,), -1.9459), advantages, targets)
    rows = rows.map(lambda column: column.to(device))
    for _ in range(STEPS):
        flat.gradient.zero_()
        logits, values = net(tokens)
        loss, _ = loss_of(logits, values, rows, Categorical((7,)), Losses(), Weighting(0.2, 0.5, 0.01))
        loss.backward()
        flat.clip(0.5)
        optimizer.step()
    return flat.weights.detach().cpu(), float(loss)


@pytest.mark.parametrize(
    "architecture", [{"name": "mlp", "hidden": [64, 64], "activation": "tanh"}, {"name": "embedding", "hidden": [32]}]
)
def test_gpu_learns_same_as_cpu(architecture):
    here, there = trained("cpu", architecture), trained("cuda", architecture)
    torch.testing.assert_close(there[0], here[0], rtol=1e-3, atol=2e-4)
    assert there[1] == pytest.approx(here[1], rel=1e-3)
