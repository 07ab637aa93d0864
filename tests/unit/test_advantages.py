"""Advantages against hand computation and a plain reference, and a user's own ones."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multigrid_rl.config.compose import compose
from multigrid_rl.learn.advantages import Estimator, gae, standardise, weigh
from multigrid_rl.learn.batches import Paths, Rollout, estimate
from multigrid_rl.learn.losses import Rows, value_loss_of
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import stages_of
from tiny_runs import tiny_run

GAMMA, LAM = 0.5, 0.5


def path(rewards, values, next_values, **flags) -> dict[str, np.ndarray]:
    """One environment: a column of ``T`` rows. Flags are lists of step numbers."""
    steps = len(rewards)

    def column(numbers):
        return np.array(numbers, np.float32).reshape(steps, 1)

    def flag(name: str) -> np.ndarray:
        return np.isin(np.arange(steps), flags.get(name, ())).reshape(steps, 1)

    return {
        "rewards": column(rewards),
        "values": column(values),
        "next_values": column(next_values),
        "terminated": flag("terminated"),
        "done": flag("done"),
        "active": ~flag("absent"),
    }


def gae_of(given, gamma: float, lam: float) -> np.ndarray:
    return gae(SimpleNamespace(**given), given["values"], given["next_values"], gamma=gamma, lam=lam)


def weigh_of(given, starts, psi: str):
    steps = SimpleNamespace(**given, starts=starts)
    return weigh(steps, given["values"], given["next_values"], Estimator(GAMMA, LAM, psi))


def test_rows_out_of_game_are_cut_without_termination_flag():
    given = path([1, 2, 50], [4, 2, 70], [2, 6, 95], absent=[2])
    assert gae_of(given, GAMMA, LAM)[:, 0].tolist() == [-2 + 0.25 * 3, 3.0, 0.0]


def random_trajectories(steps: int = 60, games: int = 40) -> dict[str, np.ndarray]:
    """Games with episodes of random length, seats that leave early, and both kinds of ending."""
    rng = np.random.default_rng(11)
    shape = (steps, games)
    done = rng.random(shape) < 0.15
    active = np.ones(shape, bool)
    terminated = done & (rng.random(shape) < 0.6)
    for n in range(games):
        absent = False
        for t in range(steps):
            active[t, n] = not absent
            if not absent and not done[t, n] and rng.random() < 0.05:
                terminated[t, n], absent = True, True
            if done[t, n]:
                absent = False
    rewards, values, next_values = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    names = ("rewards", "values", "next_values", "terminated", "done", "active")
    return dict(zip(names, (rewards, values, next_values, terminated, done, active), strict=True))


def by_episode(given, gamma: float, lam: float) -> np.ndarray:
    """Each episode by itself, as the sum of its discounted one-step errors, in double precision."""
    steps, games = given["values"].shape
    result = np.zeros((steps, games))
    for n in range(games):
        start = 0
        while start < steps:
            end = start
            while end < steps - 1 and not given["done"][end, n]:
                end += 1
            lived = [t for t in range(start, end + 1) if given["active"][t, n]]
            errors = {}
            for t in lived:
                bootstrap = 0.0 if given["terminated"][t, n] else gamma * float(given["next_values"][t, n])
                errors[t] = float(given["rewards"][t, n]) + bootstrap - float(given["values"][t, n])
            for t in lived:
                result[t, n] = sum((gamma * lam) ** (k - t) * errors[k] for k in lived if k >= t)
            start = end + 1
    return result


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_matches_plain_reference_per_episode(gamma, lam):
    given = random_trajectories()
    assert (~given["active"]).any()
    assert (given["done"] & ~given["terminated"]).any()
    np.testing.assert_allclose(gae_of(given, gamma, lam), by_episode(given, gamma, lam), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_standardise_turns_constant_into_zeros(value):
    assert standardise(np.full(1000, value, np.float32)).tolist() == [0.0] * 1000


# --- the six psi


@pytest.mark.parametrize(
    ("psi", "weights", "targets"),
    [
        # One path of three steps that is cut off, V = 4, 2, 6, then 8. Returns: 4 + 4 = 8, 2 + 4 = 6, 1 + 3 = 4.
        ("total_reward", [4, 4, 4], [4, 6, 8]),
        ("future_return", [4, 6, 8], [4, 6, 8]),
        ("baselined_return", [0, 4, 2], [4, 6, 8]),
        # Residuals: 1 + .5*2 - 4 = -2; 2 + .5*6 - 2 = 3; 4 + .5*8 - 6 = 2. With lambda 1/2 advantages are
        # A_2 = 2; A_1 = 3 + .25*2 = 3.5; A_0 = -2 + .25*3.5 = -1.125.
        ("q", [2.875, 5.5, 8], [2.875, 5.5, 8]),
        ("gae", [-1.125, 3.5, 2], [2.875, 5.5, 8]),
        ("td", [-2, 3, 2], [2.875, 5.5, 8]),
    ],
)
def test_psi_by_hand(psi, weights, targets):
    given = path([1, 2, 4], [4, 2, 6], [2, 6, 8])
    starts = np.array([[True], [False], [False]])
    found = weigh_of(given, starts, psi)
    assert [column[:, 0].tolist() for column in found] == [weights, targets]


def test_time_limit_counts_as_death_if_configured():
    # Two steps of reward 1, then the time is over: worth 10 from there on, or nothing.
    discrete = distribution_of(spaces.MultiDiscrete([2]))
    rollout = Rollout.empty(np.array([[False], [True]]), np.zeros((1, 3), np.float32), discrete, 0)
    for column in rollout:
        column[:] = 0
    rollout.done[1], rollout.mask[:], rollout.rewards[:] = True, True, 1.0
    rollout.next_values[1] = 10.0
    for timeout_terminates, targets in ((False, [1 + 0.5 * (1 + 0.5 * 10), 1 + 0.5 * 10]), (True, [1 + 0.5 * 1, 1])):
        how = Estimator(gamma=0.5, lam=1.0, timeout_terminates=timeout_terminates)
        assert estimate(rollout, how).targets.tolist() == targets
        paths = Paths(
            *(np.array(c) for c in (rollout.rewards, rollout.terminated, rollout.done, rollout.mask[..., 0])),
            rollout.starts, rollout.done, np.zeros((1, 3)), np.zeros((1, 3)),
        )  # fmt: skip
        assert paths.weigh(np.zeros(2), np.array([10.0]), np.zeros(1), how)[1].tolist() == targets


# --- advantages and value losses of a user's own


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
