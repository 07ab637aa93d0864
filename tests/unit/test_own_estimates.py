"""Advantages and value losses of a user's own: as ours where they are the same, and refused with one line."""

import sys

import numpy as np
import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.learn.advantages import Estimator, weigh
from multigrid_rl.learn.losses import Losses, Rows, Weighting, reference, value_loss_of
from multigrid_rl.models.distributions import Categorical
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import stages_of
from tiny_runs import tiny_run

SOURCE = """
import numpy as np


def gae(rewards, values, ends, gamma, lam):
    weights, later = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * ~ends[t] - values[t]
        weights[t] = later = delta + gamma * lam * ~ends[t] * later
    return weights, weights + values[:-1]


def alone(rewards, values, ends, gamma, lam):
    return rewards


def longer(rewards, values, ends, gamma, lam):
    return values, values


def infinite(rewards, values, ends, gamma, lam):
    return rewards * np.nan, rewards


def fewer(rewards, values):
    return rewards, rewards


def squared(values, rows, clip):
    return (values - rows.targets) ** 2


def near(values, rows, clip):
    return (values - rows.values) ** 2


def fixed(values, rows, clip):
    return (values.detach() - rows.targets) ** 2


def typo(values, rows, clip):
    return values - rows.target
"""


@pytest.fixture(autouse=True)
def own_estimates(tmp_path, monkeypatch):
    (tmp_path / "own_estimates.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_estimates", None)


class Played:
    """Steps of four environments: an end for good, a time limit, an agent out while its team mates play on."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.rewards = rng.normal(size=(12, 4)).astype(np.float32)
        self.terminated, self.done = np.zeros((2, 12, 4), np.bool_)
        self.terminated[3, 0] = self.done[3, 0] = self.done[6, 1] = self.terminated[4, 2] = self.done[8, 2] = True
        self.active = np.ones((12, 4), np.bool_)
        self.active[5:9, 2] = False
        self.starts = np.zeros((12, 4), np.bool_)
        self.values, self.next_values = rng.normal(size=(2, 12, 4)).astype(np.float32)
        self.next_values[:-1][~self.done[:-1]] = self.values[1:][~self.done[:-1]]


@pytest.mark.parametrize("timeout_terminates", [False, True])
def test_textbook_gae_gives_ours(timeout_terminates):
    played = Played()
    ours, theirs = (
        weigh(played, played.values, played.next_values, Estimator(0.9, 0.7, psi, True, timeout_terminates))
        for psi in ("gae", "own_estimates:gae")
    )
    for mine, textbook in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(textbook[played.active], mine[played.active], atol=1e-5)


def test_clipped_value_loss_by_hand():
    rows = Rows(*torch.zeros(5, 3), values=torch.tensor([0.0, 1.0, -1.0]))
    rows = rows._replace(targets=torch.tensor([1.0, 1.0, 1.0]))
    values = torch.tensor([0.5, 1.1, 2.0])
    # moved by at most 0.2: 0.2, 1.1, -0.8; the larger of both squared errors
    wanted = torch.tensor([0.8**2, 0.1**2, 1.8**2])
    assert torch.allclose(value_loss_of("clipped")(values, rows, 0.2), wanted)


def test_value_loss_enters_the_loss():
    rows = Rows(
        torch.zeros((2, 1), dtype=torch.int64), torch.ones((2, 1), dtype=torch.bool), *torch.zeros(3, 2),
        values=torch.tensor([3.0, 4.0]),
    )  # fmt: skip
    losses = Losses(value_loss=value_loss_of("own_estimates:near"))
    loss, parts = reference(torch.zeros(2, 2), torch.zeros(2), rows, Categorical((2,)), losses, Weighting(0.2, 0.5, 0))
    assert float(parts.vf_loss) == (9 + 16) / 2
    assert float(loss) == pytest.approx(0.5 * 12.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.psi=own_estimates:alone", "train.psi=own_estimates:alone: expected weights and targets, both of the"),
        ("train.psi=own_estimates:longer", r"shape \(3, 2\), got \[\(4, 2\), \(4, 2\)\]"),
        ("train.psi=own_estimates:infinite", "weights: expected finite numbers"),
        ("train.psi=own_estimates:fewer", r"arguments: expected \(rewards, values, ends, gamma, lam\), got"),
        ("train.psi=own_estimates:nothing", "train.psi: expected module:function, got own_estimates:nothing"),
        ("train.value_loss=own_estimates:fixed", "expected a gradient by the values, got none"),
        ("train.value_loss=own_estimates:typo", "'Rows' object has no attribute 'target'"),
        ("train.value_loss=huber", "train.value_loss: expected squared, clipped or module:function, got huber"),
        ("train.psi=gea", "train.psi: expected total_reward, .* td or module:function, got gea$"),
        ("train.clip_vloss=true", "did you mean train.value_loss"),
    ],
)
def test_refused_in_one_line(override, message):
    with pytest.raises(ConfigError, match=message) as refused:
        stages_of(compose(["env_id=CartPole-v1", override]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("separate", [(), ("train.pi_iters=2", "train.v_iters=3")], ids=["together", "apart"])
def test_own_functions_train_as_ours(tmp_path, separate):
    size = ("env_id=CartPole-v1", "train.until=512", *separate)
    _, ours = tiny_run(tmp_path / "ours", *size)
    own = ("train.psi=own_estimates:gae", "train.value_loss=own_estimates:squared")
    _, theirs = tiny_run(tmp_path / "theirs", *size, *own)
    for name in ("learner/agent_0/vf_loss", "learner/agent_0/policy_loss", "learner/agent_0/grad_norm"):
        assert [row[name] for row in theirs] == pytest.approx([row[name] for row in ours], rel=1e-3, abs=1e-4)
    _, clipped = tiny_run(tmp_path / "clipped", *size, "train.value_loss=clipped", "train.clip=0.01")
    assert [row["learner/agent_0/vf_loss"] for row in clipped] != [row["learner/agent_0/vf_loss"] for row in ours]
