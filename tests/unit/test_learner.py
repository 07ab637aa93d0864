"""Our PPO loss is RLlib's PPO loss."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing

from multigrid_rl.rllib.learner import CategoricalPPOLearner
from multigrid_rl.rllib.modules import ActorCriticModule

ARCHITECTURE = {"name": "mlp", "hidden": [8], "activation": "tanh"}


@pytest.fixture
def minibatch():
    generator = torch.Generator().manual_seed(3)
    rows = 64
    behaviour = torch.randn(rows, 7, generator=generator)
    actions = torch.randint(0, 7, (rows,), generator=generator)
    return {
        Columns.OBS: torch.randint(0, 4, (rows, 6), generator=generator),
        Columns.ACTIONS: actions,
        Columns.ACTION_DIST_INPUTS: behaviour,
        Columns.ACTION_LOGP: torch.log_softmax(behaviour, -1).gather(1, actions[:, None])[:, 0],
        Postprocessing.ADVANTAGES: torch.randn(rows, generator=generator),
        Postprocessing.VALUE_TARGETS: torch.randn(rows, generator=generator),
    }


def loss_and_gradient(learner_class, batch, entropy_weight):
    module = ActorCriticModule(
        observation_space=gym.spaces.MultiDiscrete([4] * 6),
        action_space=gym.spaces.Discrete(7),
        model_config={"architecture": ARCHITECTURE, "categories": [4] * 6, "seed": 1},
    )
    with torch.no_grad():
        module.net.policy[-1].weight.mul_(100)  # a policy far from uniform, so that clipping bites
    holder = SimpleNamespace(
        module={"red_0": module},
        metrics=SimpleNamespace(log_dict=lambda *a, **k: None),
        _newest={},
        entropy_coeff_schedulers_per_module={"red_0": SimpleNamespace(get_current_value=lambda: entropy_weight)},
    )
    config = SimpleNamespace(
        clip_param=0.2, vf_loss_coeff=0.5, vf_clip_param=float("inf"), use_kl_loss=False, use_critic=True
    )
    out = module.forward_train(batch)
    loss = learner_class.compute_loss_for_module(holder, module_id="red_0", config=config, batch=batch, fwd_out=out)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in module.parameters()])


@pytest.mark.parametrize("entropy_weight", [0.0, 0.05])
def test_loss_and_gradient_equal_rllibs(minibatch, entropy_weight):
    ours, our_gradient = loss_and_gradient(CategoricalPPOLearner, minibatch, entropy_weight)
    theirs, their_gradient = loss_and_gradient(PPOTorchLearner, minibatch, entropy_weight)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-4, atol=1e-6)
    assert our_gradient.abs().max() > 0


def clipped(gradients, limit):
    holder = SimpleNamespace(_newest={"red_0": {}})
    CategoricalPPOLearner.postprocess_gradients_for_module(
        holder, module_id="red_0", config=SimpleNamespace(grad_clip=limit), module_gradients_dict=gradients
    )
    return holder._newest["red_0"]["grad_norm"].item()


def test_gradients_are_clipped_by_their_global_norm():
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    assert clipped(gradients, 0.5) == pytest.approx(5.0)
    assert torch.cat([g.flatten() for g in gradients.values()]).tolist() == pytest.approx([0.3, 0.0, 0.4], rel=1e-5)


def test_gradients_within_the_norm_stay_as_they_are():
    gradients = {"a": torch.tensor([0.3, 0.4])}
    assert clipped(gradients, 0.6) == pytest.approx(0.5)
    assert gradients["a"].tolist() == pytest.approx([0.3, 0.4])


def test_one_gradient_that_is_not_finite_makes_all_zero():
    gradients = {"a": torch.tensor([1.0]), "b": torch.tensor([float("nan")])}
    clipped(gradients, 0.5)
    assert [g.item() for g in gradients.values()] == [0.0, 0.0]
