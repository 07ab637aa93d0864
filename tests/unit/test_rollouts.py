"""What an env runner hands to the learner: only what was lived, and exactly what the weights say about it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from multigrid_rl.config import compose
from multigrid_rl.players.factories import env_factory
from multigrid_rl.rllib.algorithm import BatchPPO, _columns
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.env_runner import BatchedEnvRunner, Rollout
from multigrid_rl.rllib.modules import ALIVE, MEMORY, STARTS
from multigrid_rl.rllib.stages import stages_of
from multigrid_rl.world.constants import EV_VICTIM

pytestmark = pytest.mark.filterwarnings("ignore")

GAMES, STEPS = 12, 24
DEADLY = [
    "scenario=2v2-deathmatch",
    "experiment=none",
    "scenario.seats.blue_0=hunter",
    "scenario.seats.blue_1=random",
    "scenario.game.max_steps=40",
    f"train.num_envs={GAMES}",
    f"train.num_steps={STEPS}",
    f"train.minibatch_size={STEPS}",
    "model.hidden=[8]",
    "seed=3",
]
SCHEMES = ["scheme=dtde", "scheme=ctde", "scheme=ctce", "shared=true"]
NETWORKS = ["mlp", "gru", "lstm"]


class Spied:
    """An env runner, and a record of what its environment said."""

    def __init__(self, *overrides: str) -> None:
        self.config = compose([*DEADLY, *overrides])
        factory = env_factory(self.config)
        self.runner = BatchedEnvRunner(config=algorithm_config(self.config), worker_index=0)
        for module in self.runner.module.values():
            with torch.no_grad():
                for name, weight in module.net.named_parameters():
                    if name.startswith("policy"):
                        weight.mul_(50)  # far from uniform, so that a wrong log-probability shows
        self.cast = factory.cast
        self.match = self.runner.env.env
        self.shown, self.steps = [], []
        self.alive = []  # (N, seats), from the engine's own events
        self._living = np.ones((GAMES, len(self.cast.seats)), bool)
        step = self.runner.env.step

        def spy(actions):
            self.shown.append({name: np.array(tokens) for name, tokens in self.runner.env.observations().items()})
            self.alive.append(self._living.copy())
            outcome = step(actions)
            self._living &= self.match.world.outputs.events[..., EV_VICTIM] == 0
            self._living[outcome.done] = True
            self.steps.append(
                SimpleNamespace(
                    rewards={name: row.copy() for name, row in outcome.rewards.items()},
                    terminated={name: row.copy() for name, row in outcome.terminated.items()},
                    final={name: np.array(row) for name, row in outcome.final_observations.items()},
                    truncated=outcome.truncated.copy(),
                    done=outcome.done.copy(),
                )
            )
            return outcome

        self.runner.env.step = spy

    def sample(self) -> Rollout:
        self.shown, self.steps, self.alive = [], [], []
        return self.runner.sample()

    def net(self, unit):
        return self.runner.module[unit.module].net

    def living(self, unit) -> np.ndarray:
        """(T, N, C): the unit's seats that were in the game when each step began."""
        return np.stack(self.alive)[..., [self.cast.seats.index(seat) for seat in unit.seats]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_row_comes_from_a_seat_after_its_elimination(scheme):
    spied = Spied(scheme)
    for _ in range(3):
        rollout = spied.sample()
        missing = half = 0
        for unit in spied.cast.units:
            batch, living = rollout.units[unit.name], spied.living(unit)
            lived = living.any(axis=2)
            shown = np.stack([row[unit.name] for row in spied.shown])
            np.testing.assert_array_equal(batch.obs, shown[lived])
            np.testing.assert_array_equal(batch.alive, living[lived])
            missing += int((~lived).sum())
            half += int((~batch.alive).any(axis=1).sum())
        assert (half if scheme == "scheme=ctce" else missing) > 20
        if scheme != "scheme=ctce":
            assert half == 0


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_sequences_are_whole_and_tell_which_steps_were_lived(network):
    spied = Spied("scheme=dtde", f"model={network}", "model.hidden=[8]")
    starts, missing = np.ones(GAMES, bool), 0
    for _ in range(3):
        rollout = spied.sample()
        for unit in spied.cast.units:
            batch, living = rollout.units[unit.name], spied.living(unit)
            shown = np.stack([row[unit.name] for row in spied.shown], axis=1)
            np.testing.assert_array_equal(batch.obs, shown)
            np.testing.assert_array_equal(batch.alive, living.swapaxes(0, 1))
            missing += int((~batch.alive).sum())
            assert not batch.advantages[~batch.alive.any(axis=2)].any()
            done = np.stack([step.done for step in spied.steps])
            np.testing.assert_array_equal(batch.starts, np.concatenate([starts[None], done[:-1]]).T)
        starts = done[-1]
    assert missing > 20
    assert batch.starts[:, 1:].any()


def joint(logits, batch):
    """Log-probability and entropy (rows,) of what was done, summed over living members, in double precision."""
    rows = batch.actions.reshape(-1, batch.actions.shape[-1])
    alive = batch.alive.reshape(rows.shape)
    log_all = torch.log_softmax(torch.as_tensor(logits).double().view(*rows.shape, 7), dim=2).numpy()
    chosen = np.take_along_axis(log_all, rows[..., None], axis=2)[..., 0]
    return (chosen * alive).sum(1), (-(np.exp(log_all) * log_all).sum(2) * alive).sum(1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_learner_finds_the_log_probabilities_and_values_that_were_sampled(network, scheme):
    spied = Spied(scheme, f"model={network}", "model.hidden=[8]")
    for round_ in range(3):
        rollout = spied.sample()
        for unit in spied.cast.units:
            batch = rollout.units[unit.name]
            columns = {name: torch.from_numpy(column) for name, column in _columns(batch).items()}
            assert (MEMORY in columns) == (STARTS in columns) == (network != "mlp")
            with torch.no_grad():
                out = spied.runner.module[unit.module].forward_train(columns)
            logp, entropy = joint(out[Columns.ACTION_DIST_INPUTS], batch)
            np.testing.assert_allclose(batch.logp.flatten(), logp, atol=2e-5)
            np.testing.assert_allclose(batch.entropy.flatten(), entropy, atol=2e-5)
            np.testing.assert_allclose(batch.values.flatten(), out[Columns.EMBEDDINGS].numpy(), atol=2e-5)
            assert batch.logp.std() > 0.05
            if network != "mlp":
                carried = np.abs(batch.memory).sum(axis=1) > 0
                assert not carried[batch.starts[:, 0]].any()
                assert carried[~batch.starts[:, 0]].all()
                assert carried.any() == (round_ > 0)


@pytest.mark.parametrize("scheme", ["scheme=dtde", "scheme=ctde", "scheme=ctce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_targets_bootstrap_from_the_right_value(network, scheme):
    # With lambda 0 the target of a step is r + gamma V(what follows): the next observation's value, the final
    # observation's where the game was cut, nothing where the unit's episode was over.
    spied = Spied(scheme, f"model={network}", "model.hidden=[8]", "train.lam=0", "train.gamma=0.5")
    state = {unit.name: torch.zeros(GAMES, spied.net(unit).state_size) for unit in spied.cast.units}
    cut_alive = 0

    def value(unit, tokens, memory):
        net = spied.net(unit)
        rows = torch.from_numpy(np.ascontiguousarray(tokens))
        with torch.no_grad():
            if not net.state_size:
                return net(rows)[1].numpy(), memory
            _, values, following = net(rows, memory)
            return values.numpy(), following

    for _ in range(3):
        rollout = spied.sample()
        after = spied.runner.env.observations()
        for unit in spied.cast.units:
            name, wanted = unit.name, []
            for t, step in enumerate(spied.steps):
                _, following = value(unit, spied.shown[t][name], state[name])
                state[name] = following * torch.from_numpy(~step.done)[:, None]
                upcoming = spied.shown[t + 1][name] if t + 1 < STEPS else after[name]
                ahead, _ = value(unit, upcoming, state[name])
                if step.done.any():
                    final, _ = value(unit, step.final[name], following)
                    ahead = np.where(step.done, np.where(step.truncated, final, 0), ahead)
                cut_alive += int((step.done & step.truncated & ~step.terminated[name]).sum())
                wanted.append(step.rewards[name] + 0.5 * np.where(step.terminated[name], 0, ahead))
            batch, lived = rollout.units[name], spied.living(unit).any(axis=2)
            if network == "mlp":
                np.testing.assert_allclose(batch.targets, np.stack(wanted)[lived], atol=2e-5)
            else:
                np.testing.assert_allclose(batch.targets[lived.T], np.stack(wanted).T[lived.T], atol=2e-5)
    assert cut_alive > 0


def test_units_that_share_a_network_learn_together():
    spied = Spied("shared=true")
    rollouts = [spied.sample(), spied.sample()]
    holder = SimpleNamespace(stages=stages_of(spied.config), stage=0)
    (batch,) = BatchPPO._by_module(holder, rollouts).values()
    rows = [rollout.units[name] for name in ("red_0", "red_1") for rollout in rollouts]
    np.testing.assert_array_equal(batch.obs, np.concatenate([part.obs for part in rows]))
    np.testing.assert_array_equal(batch.advantages, np.concatenate([part.advantages for part in rows]))
    assert _columns(batch)[ALIVE].shape == (len(batch.obs), 1)


@pytest.mark.parametrize("scheme", ["scheme=dtde", "scheme=ctce"])
def test_the_same_games_are_played_whatever_runs_beside_them(scheme):
    # What seats do is drawn from their game's own stream.
    all_of_them = Spied(scheme).sample().units
    few = compose([*DEADLY, scheme, "train.num_envs=4"])
    runner = BatchedEnvRunner(config=algorithm_config(few), worker_index=0)
    for module in runner.module.values():
        with torch.no_grad():
            for name, weight in module.net.named_parameters():
                if name.startswith("policy"):
                    weight.mul_(50)
    for name, batch in runner.sample().units.items():
        first = {row.tobytes() for row in all_of_them[name].obs}
        assert {row.tobytes() for row in batch.obs} <= first
