"""Our PPO loss is RLlib's PPO loss, for one action and for several at once; the dead and the absent teach nothing."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from multigrid_rl.rllib.flat import FlatWeights
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from multigrid_rl.clock import Clock
from multigrid_rl.config import compose
from multigrid_rl.players.factories import env_factory
from multigrid_rl.rllib.algorithm import _columns
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.env_runner import UnitBatch
from multigrid_rl.rllib.learner import SECONDS, CategoricalPPOLearner, minibatches
from multigrid_rl.rllib.modules import ALIVE, MEMORY, STARTS, ActorCriticModule
from multigrid_rl.types import Unit

ARCHITECTURE = {"name": "mlp", "hidden": [8], "activation": "tanh"}
CATEGORIES = (4,) * 6
CONFIG = SimpleNamespace(
    clip_param=0.2, vf_loss_coeff=0.5, vf_clip_param=float("inf"), use_kl_loss=False, use_critic=True
)


def random_batch(seats: int, rows: int = 64):
    """Experience of a unit of ``seats`` whose members are all alive."""
    generator = torch.Generator().manual_seed(3)
    behaviour = torch.randn(rows, seats, 7, generator=generator)
    actions = torch.randint(0, 7, (rows, seats), generator=generator)
    return {
        Columns.OBS: torch.randint(0, 4, (rows, 6), generator=generator),
        Columns.ACTIONS: actions,
        Columns.ACTION_DIST_INPUTS: behaviour.flatten(1),
        Columns.ACTION_LOGP: torch.log_softmax(behaviour, -1).gather(2, actions[..., None]).sum((1, 2)),
        Postprocessing.ADVANTAGES: torch.randn(rows, generator=generator),
        Postprocessing.VALUE_TARGETS: torch.randn(rows, generator=generator),
        ALIVE: torch.ones(rows, seats, dtype=torch.bool),
    }


def holder_of(module, entropy_weight):
    """What the loss asks of a learner."""
    return SimpleNamespace(
        module={"red": module},
        metrics=SimpleNamespace(log_dict=lambda *a, **k: None),
        _newest={},
        entropy_coeff_schedulers_per_module={"red": SimpleNamespace(get_current_value=lambda: entropy_weight)},
    )


def module_of(seats: int) -> ActorCriticModule:
    unit = Unit("red", "red", tuple(f"red_{k}" for k in range(seats)), CATEGORIES)
    module = ActorCriticModule(
        observation_space=gym.spaces.MultiDiscrete(CATEGORIES),
        action_space=gym.spaces.MultiDiscrete([7] * seats),
        model_config={"architecture": ARCHITECTURE, "unit": unit, "seed": 1},
    )
    module.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(input_lens=[7] * seats)  # for RLlib's own loss
    with torch.no_grad():
        module.net.policy[-1].weight.mul_(100)  # a policy far from uniform, so that clipping bites
    return module


def loss_and_gradient(learner_class, batch, entropy_weight):
    module = module_of(batch[Columns.ACTIONS].shape[1])
    out = module.forward_train(batch)
    loss = learner_class.compute_loss_for_module(
        holder_of(module, entropy_weight), module_id="red", config=CONFIG, batch=batch, fwd_out=out
    )
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in module.parameters()])


def our_loss(logits, values, rows, entropy_weight=0.0):
    """The loss of given logits (B, C * K) and values (B,)."""
    out = {Columns.ACTION_DIST_INPUTS: logits, Columns.EMBEDDINGS: values}
    return CategoricalPPOLearner.compute_loss_for_module(
        holder_of(None, entropy_weight), module_id="red", config=CONFIG, batch=rows, fwd_out=out
    )


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.05])
def test_loss_and_gradient_equal_rllibs(seats, entropy_weight):
    batch = random_batch(seats)
    ours, our_gradient = loss_and_gradient(CategoricalPPOLearner, batch, entropy_weight)
    theirs, their_gradient = loss_and_gradient(PPOTorchLearner, batch, entropy_weight)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-4, atol=1e-6)
    assert our_gradient.abs().max() > 0


@pytest.mark.parametrize("seats", [1, 2])
def test_the_step_that_an_mlp_takes_has_rllibs_gradient(seats):
    batch = random_batch(seats)
    batch[Columns.OBS] = batch[Columns.OBS][torch.arange(64) % 9]  # with repetitions
    _, theirs = loss_and_gradient(PPOTorchLearner, batch, 0.05)
    module = module_of(seats)
    learner = holder_of(module, 0.05)
    learner._module, learner._flat = learner.module, {"red": FlatWeights(list(module.parameters()))}
    learner.config = SimpleNamespace(**vars(CONFIG), grad_clip=1e9)
    learner.clock, learner._learners, learner._device = Clock(), 1, torch.device("cpu")
    learner.get_optimizer = lambda name: SimpleNamespace(step=lambda: None)
    CategoricalPPOLearner._step(learner, "red", {name: column.numpy() for name, column in batch.items()})
    torch.testing.assert_close(learner._flat["red"].gradient, theirs, rtol=1e-4, atol=1e-6)
    assert learner._newest["red"]["grad_norm"] == pytest.approx(float(theirs.norm()), rel=1e-4)


# --- joint actions


def test_the_loss_of_a_joint_action_by_hand():
    # Two members with two actions each. Row 0: both alive, uniform logits. Row 1: the second is dead.
    half = np.log(0.5)
    third = np.log([0.25, 0.75])
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [*third, 5.0, -3.0]], dtype=torch.float64)
    rows = {
        Columns.ACTIONS: torch.tensor([[0, 1], [1, 0]]),
        # Row 0 was played with probability 0.2, row 1 with 0.75: ratios 0.25 / 0.2 = 1.25 and 1.
        Columns.ACTION_LOGP: torch.tensor([np.log(0.2), np.log(0.75)]),
        Postprocessing.ADVANTAGES: torch.tensor([2.0, -1.0], dtype=torch.float64),
        Postprocessing.VALUE_TARGETS: torch.tensor([1.0, 0.0], dtype=torch.float64),
        ALIVE: torch.tensor([[True, True], [True, False]]),
    }
    values = torch.tensor([0.0, 3.0], dtype=torch.float64)
    policy = -(2 * 1.2 + -1 * 1.0) / 2  # 1.25 is clipped to 1.2
    critic = (1.0 + 9.0) / 2
    entropy = (-2 * half + -(0.25 * third[0] + 0.75 * third[1])) / 2
    assert float(our_loss(logits, values, rows, 0.1)) == pytest.approx(policy + 0.5 * critic - 0.1 * entropy)


def test_a_dead_members_logits_have_no_influence_and_no_gradient():
    rows = random_batch(2)
    dead = torch.arange(64) % 3 == 0
    rows[ALIVE][:, 1] = ~dead
    logits = torch.randn(64, 14, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = our_loss(logits, torch.zeros(64), rows, 0.05)
    loss.backward()
    parts = logits.grad.view(64, 2, 7)
    assert (parts[dead, 1] == 0).all()
    assert (parts[~dead, 1].abs().sum(1) > 0).any()
    assert (parts[dead, 0].abs().sum(1) > 0).any()
    with torch.no_grad():
        moved = logits.clone().view(64, 2, 7)
        moved[dead, 1] += torch.linspace(-9, 9, 7)
        rows[Columns.ACTIONS][dead, 1] = (rows[Columns.ACTIONS][dead, 1] + 1) % 7
        assert our_loss(moved.flatten(1), torch.zeros(64), rows, 0.05) == loss


# --- sequences


def sequences(games: int, steps: int, alive: torch.Tensor):
    """A batch of sequences (B, T, ...) whose steps are those of a flat batch."""
    rows = random_batch(1, games * steps)
    shaped = {name: column.view(games, steps, *column.shape[1:]) for name, column in rows.items()}
    shaped[ALIVE] = alive[..., None]
    return rows, shaped | {MEMORY: torch.zeros(games, 4), STARTS: torch.zeros(games, steps, dtype=torch.bool)}


def test_steps_of_a_sequence_in_which_the_unit_was_out_are_no_part_of_the_loss():
    alive = torch.arange(24).view(4, 6) % 5 != 0
    rows, shaped = sequences(4, 6, alive)
    logits, values = torch.randn(24, 7, requires_grad=True), torch.randn(24, requires_grad=True)
    loss = our_loss(logits, values, shaped, 0.05)
    loss.backward()
    keep = alive.flatten()
    kept = our_loss(logits[keep], values[keep], {name: column[keep] for name, column in rows.items()}, 0.05)
    torch.testing.assert_close(loss, kept)
    assert (logits.grad[~keep] == 0).all()
    assert (values.grad[~keep] == 0).all()
    assert (logits.grad[keep].abs().sum(1) > 0).any()
    assert (values.grad[keep] != 0).all()


def test_a_minibatch_in_which_nobody_was_in_the_game_teaches_nothing():
    _, shaped = sequences(2, 3, torch.zeros(2, 3, dtype=torch.bool))
    logits, values = torch.randn(6, 7, requires_grad=True), torch.randn(6, requires_grad=True)
    loss = our_loss(logits, values, shaped, 0.05)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()
    assert (values.grad == 0).all()


def batch_of(alive, advantages, memory: int):
    rows = np.asarray(alive)[..., None]
    gained = np.asarray(advantages, np.float32)
    plain = np.zeros(gained.shape, np.float32)
    obs = np.zeros((*gained.shape, 2), np.uint8)
    columns = (obs, rows.astype(np.int64), rows, plain, plain, gained, gained, plain)
    return UnitBatch(*columns, np.zeros((len(rows), memory), np.float32), np.zeros((*gained.shape,), np.bool_))


def test_advantages_are_standardised_over_living_steps_only():
    # Living: 1, 2, 3, 6 with mean 3 and variance 3.5; what stands at dead steps is nobody's business.
    alive = [[True, True, False], [True, True, False]]
    columns = _columns(batch_of(alive, [[1, 2, 0], [3, 6, 0]], memory=4))
    found = columns[Postprocessing.ADVANTAGES]
    assert found[[0, 0, 1, 1], [0, 1, 0, 1]].tolist() == pytest.approx([k / 3.5**0.5 for k in (-2, -1, 0, 3)])
    assert found[:, 2].tolist() == [0, 0]
    other = _columns(batch_of(alive, [[1, 2, 900], [3, 6, -70]], memory=4))
    np.testing.assert_array_equal(other[Postprocessing.ADVANTAGES], found)
    assert columns[MEMORY].shape == (2, 4)


def test_without_memory_there_are_no_columns_for_it():
    columns = _columns(batch_of([True, True], [1, 2], memory=0))
    assert MEMORY not in columns
    assert STARTS not in columns
    assert columns[Postprocessing.ADVANTAGES].tolist() == [-1, 1]


# --- gradients


def flat_of(*values):
    parameters = [torch.nn.Parameter(torch.ones(len(part))) for part in values]
    flat = FlatWeights(parameters)
    for parameter, part in zip(parameters, values, strict=True):
        parameter.grad += torch.tensor(part)
    return flat, parameters


def test_gradients_are_clipped_by_their_global_norm():
    flat, parameters = flat_of([3.0, 0.0], [4.0])
    assert flat.clip(0.5).item() == pytest.approx(5.0)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.3, 0.0, 0.4], rel=1e-5)


def test_gradients_within_the_norm_stay_as_they_are():
    flat, parameters = flat_of([0.3, 0.4])
    assert flat.clip(0.6).item() == pytest.approx(0.5)
    assert parameters[0].grad.tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_gradient_that_is_not_finite_makes_all_zero(bad):
    flat, parameters = flat_of([1.0], [bad])
    flat.clip(0.5)
    assert [p.grad.item() for p in parameters] == [0.0, 0.0]
    assert flat.dropped == 1
    flat.clip(0.5)
    assert flat.dropped == 1


def test_a_step_of_the_flat_row_moves_the_parameters_of_the_network():
    module = module_of(2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    flat = FlatWeights(list(module.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    flat.gradient.fill_(1.0)
    torch.optim.SGD([flat.weights], lr=0.5).step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name] - 0.5)
    module.load_state_dict(before)  # the weights that come from elsewhere land in the row too
    torch.testing.assert_close(flat.weights.detach(), torch.cat([p.flatten() for p in module.parameters()]).detach())


# --- minibatches


def drawn(rows, epochs, size, seed=0):
    return list(minibatches(rows, epochs, size, np.random.default_rng(seed)))


def test_every_epoch_passes_over_every_row_once_the_later_ones_in_an_order_of_their_own():
    (*batches,) = drawn({"red": 12}, 3, 4)
    epochs = np.concatenate([batch["red"] for batch in batches]).reshape(3, 12).tolist()
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
    assert epochs[0] == list(range(12))  # as they were played
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_minibatch_that_reaches_the_end_of_an_epoch_is_filled_from_the_next():
    batches = drawn({"red": 10}, 2, 4)
    assert [len(batch["red"]) for batch in batches] == [4] * 5
    rows = np.concatenate([batch["red"] for batch in batches])
    assert sorted(rows[:10]) == sorted(rows[10:20]) == list(range(10))


def test_the_largest_module_decides_and_smaller_ones_begin_again():
    batches = drawn({"red": 8, "blue": 3}, 1, 4)
    assert len(batches) == 2
    blue = np.concatenate([batch["blue"] for batch in batches])
    assert sorted(blue[:3]) == sorted(blue[3:6]) == [0, 1, 2]
    assert sorted(np.concatenate([batch["red"] for batch in batches])) == list(range(8))


def test_the_order_of_rows_is_a_matter_of_the_seed():
    first, again, other = (drawn({"red": 64}, 2, 16, seed) for seed in (1, 1, 2))
    assert all((a["red"] == b["red"]).all() for a, b in zip(first, again, strict=True))
    assert any((a["red"] != b["red"]).any() for a, b in zip(first, other, strict=True))


# --- schedules


@pytest.fixture(scope="module")
def falling():
    """The learner of two networks, whose schedules fall over 1000 steps, after a batch of one of them at step 500."""
    schedules = ["lr=1e-3", "lr_final=1e-4", "until=1000", "entropy_coef=0.1", "entropy_final=0", "entropy_decay=1000"]
    config = compose(["scenario=coop", "scheme=dtde", "experiment=none", *(f"train.{part}" for part in schedules)])
    factory = env_factory(config)
    learner = algorithm_config(config).build_learner(spaces={})
    rows, tokens = 8, len(factory.cast.unit_of("red_0").categories)
    batch = {name: column.numpy() for name, column in random_batch(1, rows).items()}
    batch[Columns.OBS] = np.zeros((rows, tokens), np.int64)
    some = MultiAgentBatch({"red_0": SampleBatch(batch)}, env_steps=rows)
    told = learner.update(some, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 500}, num_epochs=1, minibatch_size=rows)
    return learner, told


@pytest.mark.parametrize("module", ["red_0", "red_1"])
def test_schedules_go_on_for_a_network_that_was_in_no_batch_so_far(falling, module):
    learner, _ = falling
    (group,) = learner.get_optimizer(module).param_groups
    assert group["lr"] == pytest.approx(5.5e-4)
    assert learner.entropy_coeff_schedulers_per_module[module].get_current_value() == pytest.approx(0.05)


def test_statistics_are_told_of_the_networks_of_the_batch_only(falling):
    _, told = falling
    assert set(told) == {"red_0", SECONDS}
    statistics = {"policy_loss", "vf_loss", "entropy", "grad_norm", "lr", "entropy_coef", "dropped_updates"}
    assert statistics == set(told["red_0"])


def test_gradients_that_were_dropped_are_counted_for_each_update_alone(falling):
    learner, _ = falling
    for targets, dropped in ((np.float32("nan"), 2.0), (np.float32(1), 0.0)):
        batch = {name: column.numpy() for name, column in random_batch(1, 8).items()}
        batch[Columns.OBS] = np.zeros((8, len(learner.module["red_0"].observation_space.nvec)), np.int64)
        batch[Postprocessing.VALUE_TARGETS][:] = targets
        some = MultiAgentBatch({"red_0": SampleBatch(batch)}, env_steps=8)
        told = learner.update(some, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 500}, num_epochs=2, minibatch_size=8)
        assert told["red_0"]["dropped_updates"] == dropped
