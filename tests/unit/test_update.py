"""The update has the gradient of RLlib's PPO, for one action and several at once; inactive rows give no gradient."""

from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.evaluation.postprocessing import Postprocessing

from multigrid_rl.config.compose import compose
from multigrid_rl.fast import compile_network
from multigrid_rl.jit import most_threads, use_threads
from multigrid_rl.learn.batches import Batch
from multigrid_rl.learn.flat import FlatWeights
from multigrid_rl.learn.losses import Losses, Rows, Weighting, loss_of, reference
from multigrid_rl.learn.update import SECONDS, Update
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.models.registry import network_of
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.learner import ActorCriticModule
from multigrid_rl.types import AgentSpec, Schedule
from updates import PPO, steady

ARCHITECTURE = {"name": "mlp", "hidden": [8], "activation": "tanh"}
TOKENS = gym.spaces.MultiDiscrete([4] * 6)
#: Nothing is clipped and nothing moves: what a step leaves behind is its gradient.
CONFIG = replace(
    PPO, epochs=1, minibatch_size=None, lr=steady(0.0), entropy_coef=steady(0.05), grad_clip=1e9, standardise=False
)


def agent_of(seats: int) -> AgentSpec:
    return AgentSpec(
        "red", "red", tuple(f"red_{k}" for k in range(seats)), TOKENS, gym.spaces.MultiDiscrete([7] * seats)
    )


def batch_of(seats: int, shape: tuple[int, ...] = (64,), memory: int = 0) -> Batch:
    """Experience of an agent of ``seats`` that were all in the game; with repetitions among what it saw."""
    rng = np.random.default_rng(3)
    behaviour = torch.from_numpy(rng.normal(size=(*shape, seats, 7)))
    actions = rng.integers(0, 7, (*shape, seats))
    logp = torch.log_softmax(behaviour, -1).gather(-1, torch.from_numpy(actions)[..., None]).sum((-1, -2))
    floats = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    return Batch(
        obs=rng.integers(0, 4, (9, 6)).astype(np.uint8)[rng.integers(0, 9, shape)],
        actions=actions,
        mask=np.ones((*shape, seats), np.bool_),
        logp=logp.float().numpy(),
        values=floats[0],
        advantages=floats[1],
        targets=floats[2],
        entropy=floats[3],
        memory=np.zeros((shape[0], memory), np.float32),
        starts=np.zeros((shape[0], shape[1] if memory else 0), np.bool_),
    )


def module_of(seats: int) -> ActorCriticModule:
    agent = agent_of(seats)
    module = ActorCriticModule(
        observation_space=agent.observation_space,
        action_space=agent.action_space,
        model_config={"architecture": ARCHITECTURE, "agent": agent, "seed": 1},
    )
    module.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(input_lens=[7] * seats)  # for RLlib's own loss
    with torch.no_grad():
        module.net.policy[-1].weight.mul_(100)  # a policy far from uniform, so that clipping bites
    return module


def rllibs(batch: Batch, entropy_coef: float):
    """RLlib's own loss and its gradient."""
    seats = batch.actions.shape[1]
    module = module_of(seats)
    given = {Columns.OBS: batch.obs, Columns.ACTIONS: batch.actions, Columns.ACTION_LOGP: batch.logp}
    given |= {Postprocessing.ADVANTAGES: batch.advantages, Postprocessing.VALUE_TARGETS: batch.targets}
    behaviour = np.random.default_rng(3).normal(size=(64, seats, 7)).astype(np.float32)  # for a KL that has no weight
    columns = {name: torch.from_numpy(column) for name, column in given.items()}
    columns[Columns.ACTION_DIST_INPUTS] = torch.from_numpy(behaviour).flatten(1)
    schedules = {"red": SimpleNamespace(get_current_value=lambda: entropy_coef)}
    metrics = SimpleNamespace(log_dict=lambda *_, **__: None)
    learner = SimpleNamespace(module={"red": module}, metrics=metrics, entropy_coeff_schedulers_per_module=schedules)
    config = SimpleNamespace(
        clip_param=0.2, vf_loss_coeff=0.5, vf_clip_param=float("inf"), use_kl_loss=False, use_critic=True
    )
    out = module.forward_train(columns)
    loss = PPOTorchLearner.compute_loss_for_module(learner, module_id="red", config=config, batch=columns, fwd_out=out)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in module.parameters()])


def update_of(net, agent: AgentSpec, part: tuple[int, int] = (0, 1), **changes) -> Update:
    config = replace(CONFIG, **changes)
    return Update({"red": net}, {"red": agent.action_space}, config, device=torch.device("cpu"), part=part)


def gradient_of(net, agent: AgentSpec, batch: Batch, **changes) -> tuple[torch.Tensor, dict[str, float]]:
    """Gradient of one step on the whole batch, and what the update told."""
    update = update_of(net, agent, **changes)
    statistics = update.learn({"red": batch}, 0)
    return update._flat["red"][0].gradient.clone(), statistics["red"]


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.05])
def test_loss_and_gradient_of_rows_and_of_a_step_equal_rllib(seats, entropy_coef):
    batch, module = batch_of(seats), module_of(seats)
    theirs, their_gradient = rllibs(batch, entropy_coef)
    outputs, values = module.net(torch.from_numpy(batch.obs))
    columns = (batch.actions, batch.mask, batch.logp, batch.advantages, batch.targets)
    rows = Rows(*map(torch.from_numpy, columns))
    ours, _ = loss_of(outputs, values, rows, Categorical((7,) * seats), Losses(), Weighting(0.2, 0.5, entropy_coef))
    ours.backward()
    torch.testing.assert_close(ours.detach(), theirs)
    our_gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-4, atol=1e-6)
    assert our_gradient.abs().max() > 0
    coef = steady(entropy_coef)
    of_a_step, statistics = gradient_of(module_of(seats).net, agent_of(seats), batch, entropy_coef=coef)
    torch.testing.assert_close(of_a_step, their_gradient, rtol=1e-4, atol=1e-6)
    assert statistics["grad_norm"] == pytest.approx(float(their_gradient.norm()), rel=1e-4)


def test_two_learners_average_to_gradient_of_one(monkeypatch):
    batch, agent = batch_of(1), agent_of(1)
    batch.mask[:8] = False  # the first half has fewer rows that count
    whole, _ = gradient_of(module_of(1).net, agent, batch)
    parts, rows = [], []

    def reduced(flat, count, _):
        parts.append(flat.gradient.clone())
        rows.append(count)
        return 0.0

    monkeypatch.setattr(FlatWeights, "all_reduce_mean", reduced)
    for index in (0, 1):
        update_of(module_of(1).net, agent, part=(index, 2)).learn({"red": batch}, 0)
    assert rows == [24, 32]
    torch.testing.assert_close((24 * parts[0] + 32 * parts[1]) / 56, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_sequence_steps_outside_game_are_excluded(name):
    agent = agent_of(1)
    architecture = {"name": name, "hidden": [8]}
    net = network_of(agent, architecture, 1)
    batch = batch_of(1, (4, 6), net.state_size)
    batch.mask[..., 0] = np.arange(24).reshape(4, 6) % 5 != 0
    batch.starts[1, 3] = True
    found, _ = gradient_of(net, agent, batch)
    tensors = Batch(*map(torch.from_numpy, batch))
    outputs, values = net.sequence(tensors.obs, tensors.memory, tensors.starts)
    columns = (tensors.actions, tensors.mask, tensors.logp, tensors.advantages, tensors.targets)
    rows = Rows(*(column.flatten(0, 1) for column in columns))
    keep = rows.mask[:, 0]
    some = rows.map(lambda column: column[keep])
    loss, _ = reference(outputs[keep], values[keep], some, Categorical((7,)), Losses(), Weighting(0.2, 0.5, 0.05))
    wanted = torch.autograd.grad(loss, list(net.parameters()))
    torch.testing.assert_close(found, torch.cat([part.flatten() for part in wanted]), rtol=1e-4, atol=1e-6)
    out = ~batch.mask[..., 0]
    other = batch._replace(advantages=np.where(out, 900, batch.advantages).astype(np.float32))
    again, _ = gradient_of(network_of(agent, architecture, 1), agent, other)
    torch.testing.assert_close(again, found)


def vector_case() -> tuple[AgentSpec, Batch]:
    bounds = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    agent = AgentSpec("agent", "red", ("agent",), gym.spaces.Box(-1.0, 1.0, (3,), np.float32), bounds)
    rng = np.random.default_rng(1)
    obs, actions = (rng.normal(size=(64, width)).astype(np.float32) for width in (3, 2))
    return agent, batch_of(1)._replace(obs=obs, actions=actions, logp=np.full(64, -2, np.float32))


def test_gaussian_step_gradient_equals_torch_density():
    agent, batch = vector_case()
    net = network_of(agent, ARCHITECTURE, 1)
    outputs, values = net(torch.from_numpy(batch.obs))
    density = torch.distributions.Normal(outputs[:, :2], outputs[:, 2:].exp())
    logp = density.log_prob(torch.from_numpy(batch.actions)).sum(1)
    batch = batch._replace(
        logp=(logp.detach() + 0.3 * torch.randn(64, generator=torch.Generator().manual_seed(1))).numpy()
    )
    ratio, advantages = torch.exp(logp - torch.from_numpy(batch.logp)), torch.from_numpy(batch.advantages)
    policy = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
    vf = (values - torch.from_numpy(batch.targets)).pow(2).mean()
    loss = -policy + 0.5 * vf - 0.05 * density.entropy().sum(1).mean()
    wanted = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])
    found, statistics = gradient_of(net, agent, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert statistics["entropy"] == pytest.approx(
        2 * Gaussian([-1], [1], "clip").entropy(torch.zeros(1, 2)).item(), rel=1e-5
    )


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize(("share", "steps"), [(1.4, 1), (1.6, 0)])
def test_update_stops_where_mean_divergence_exceeds_one_and_a_half_targets(monkeypatch, learners, share, steps):
    def other_has_not_moved(weighed):
        weighed[:-2] *= 2
        weighed[-1] *= 2  # as many rows, and a divergence of 0

    monkeypatch.setattr(torch.distributed, "all_reduce", other_has_not_moved)
    agent, batch = agent_of(1), batch_of(1)

    def learned(**changes):
        return update_of(module_of(1).net, agent, (0, learners), **changes).learn({"red": batch}, 0)["red"]

    divergence = learned()["approx_kl"] / learners
    assert divergence > 0
    assert learned(target_kl=divergence / share)["gradient_steps"] == steps


# --- all minibatches in one call


def memory_case(seats: int, central: int) -> tuple[AgentSpec, Batch]:
    """Sequences with memories, fresh starts and, for the critic, tokens of mates."""
    rng, batch = np.random.default_rng(2), batch_of(seats, (16, 4), memory=8)
    memory, starts = rng.normal(size=(16, 8)).astype(np.float32), rng.random((16, 4)) < 0.2
    agent = replace(agent_of(seats), critic_space=gym.spaces.MultiDiscrete([4] * central) if central else None)
    obs = np.concatenate([batch.obs, rng.integers(0, 4, (16, 4, central)).astype(np.uint8)], axis=2)
    return agent, batch._replace(obs=obs, memory=memory, starts=starts)


CASES = {
    "tokens": lambda: (ARCHITECTURE, agent_of(1), batch_of(1)),
    "a team's tokens": lambda: (ARCHITECTURE, agent_of(2), batch_of(2)),
    "vectors": lambda: (ARCHITECTURE, *vector_case()),
    "memory": lambda: ({"name": "gru", "hidden": [8]}, *memory_case(1, 0)),
    "a team's memory": lambda: ({"name": "gru", "hidden": [8]}, *memory_case(2, 3)),
}


def shared_out(case: str):
    """One thread and two; compiling the form for two of a GRU takes longer than all else here."""
    yield pytest.param(case, 1)
    if most_threads() > 1:
        yield pytest.param(case, 2, marks=() if "tokens" in case else pytest.mark.long)


@pytest.mark.parametrize("case", CASES)
def test_steps_under_kl_penalty_equal_those_of_torch(case, monkeypatch):
    architecture, agent, batch = CASES[case]()
    batch.mask[5:9] = False
    config = {"lr": Schedule(0.01, 0.01, 1), "epochs": 3, "minibatch_size": 24, "kl_coef": 2.0, "kl_target": 0.001}
    found = []
    for torchs in (False, True):
        if torchs:
            monkeypatch.setattr(Update, "_compiled", lambda *_: None)
        update = update_of(network_of(agent, architecture, 1), agent, **config)
        told = [update.learn({"red": batch}, 0)["red"] for _ in range(2)]
        assert told[-1]["kl_coef"] == 4.5  # further away than the target, twice
        assert told[-1]["approx_kl"] > 1e-4
        found.append((*told, update._flat["red"][0].weights.detach().clone()))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"target_kl": 0.2}, {"grad_clip": 0.1}, {"kl_coef": 2.0, "kl_target": 0.001}])
@pytest.mark.parametrize(("case", "threads"), [one for case in CASES for one in shared_out(case)])
def test_steps_in_one_call_equal_those_one_by_one(case, changes, threads):
    architecture, agent, batch = CASES[case]()
    batch.mask[5:9] = False
    # Minibatches across the ends of epochs: a row may be twice in one.
    config = {"lr": Schedule(0.01, 0.01, 1), "epochs": 3, "minibatch_size": 24, **changes}
    found = []
    for together in (False, True):
        net = network_of(agent, architecture, 1)
        update = update_of(net, agent, **config)
        way = compile_network(net).descent
        assert way
        compile_network(net).descent = way if together else ""
        use_threads(threads if together else 1)
        try:
            told = [update.learn({"red": batch}, 0)["red"] for _ in range(2)]
        finally:
            use_threads(1)
        assert ("target_kl" in changes) == (told[-1]["gradient_steps"] < 8)
        found.append((*told, update._flat["red"][0].weights.detach().clone()))
    for one, other in zip(*found, strict=True):
        # Equal to the last bit where it was written; torch chooses other kernels on other processors.
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


# --- batches


def with_advantages(mask, advantages, memory: int = 0) -> Batch:
    shape = np.shape(advantages)
    rows = batch_of(1, shape, memory)
    return rows._replace(mask=np.array(mask)[..., None], advantages=np.array(advantages, np.float32))


def test_advantages_are_standardised_over_steps_in_game():
    # In the game: 1, 2, 3, 6 with mean 3 and variance 3.5; what stands at other steps is nobody's business.
    mask = [[True, True, False], [True, True, False]]
    found = with_advantages(mask, [[1, 2, 0], [3, 6, 0]], memory=4).standardised().advantages
    assert found[[0, 0, 1, 1], [0, 1, 0, 1]].tolist() == pytest.approx([k / 3.5**0.5 for k in (-2, -1, 0, 3)])
    assert found[:, 2].tolist() == [0, 0]
    other = with_advantages(mask, [[1, 2, 900], [3, 6, -70]], memory=4).standardised()
    np.testing.assert_array_equal(other.advantages, found)


# --- schedules


@pytest.mark.parametrize("name", ["red", "blue"])
def test_schedules_advance_for_network_without_batches(name):
    agent, nets = agent_of(1), {"red": module_of(1).net, "blue": module_of(1).net}
    falling = replace(CONFIG, lr=Schedule(1e-3, 1e-4, 1000), entropy_coef=Schedule(0.1, 0.0, 1000))
    update = Update(nets, dict.fromkeys(nets, agent.action_space), falling, device=torch.device("cpu"))
    stats = update.learn({"red": batch_of(1)}, 500)
    (group,) = update.optimizers[name][0].param_groups
    assert group["lr"] == pytest.approx(5.5e-4)
    assert update._entropy_coef[name] == pytest.approx(0.05)
    assert set(stats) == {"red", SECONDS}  # statistics of the networks of the batch only


@pytest.mark.parametrize("weight", [0.05, -0.05])
def test_entropy_bonus_below_zero_takes_noise_away(weight):
    """A bonus alone: advantages are 0, so that only it moves the policy."""
    torch.manual_seed(0)
    net, batch = module_of(1).net, batch_of(1)
    rows = torch.from_numpy(batch.obs)
    noise = [Categorical((7,)).entropy(net.logits(rows)).mean().item()]
    config = replace(CONFIG, lr=steady(1e-2), entropy_coef=Schedule(weight, 2 * weight, 1000))
    update = Update({"red": net}, {"red": gym.spaces.MultiDiscrete([7])}, config, device=torch.device("cpu"))
    update.learn({"red": batch._replace(advantages=np.zeros(64, np.float32))}, 500)
    noise.append(Categorical((7,)).entropy(net.logits(rows)).mean().item())
    assert (noise[1] > noise[0]) == (weight > 0)


def test_learner_follows_run_configuration():
    schedules = ["lr=1e-3", "lr_final=1e-4", "until=1000", "entropy_coef=0.1", "entropy_final=0", "entropy_decay=1000"]
    config = compose(["scenario=coop", "scheme=dtde", "experiment=none", *(f"train.{part}" for part in schedules)])
    learner = algorithm_config(config).build_learner(spaces={})
    update = learner.updater
    assert set(update.optimizers) == {"red_0", "red_1"}
    assert (update.config.lr, update.config.entropy_coef) == (Schedule(1e-3, 1e-4, 1000), Schedule(0.1, 0.0, 1000))
    assert update.config.minibatch_size == config.train.minibatch_size
    update.rng.random(3)
    state, ahead = learner.get_state(), update.rng.random(4).tolist()
    learner.set_state(state)
    assert update.rng.random(4).tolist() == ahead  # minibatches are cut as they would have been
