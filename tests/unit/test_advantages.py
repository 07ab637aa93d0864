"""Generalised advantage estimation against hand computation and a plain reference."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from multigrid_rl.learn.advantages import Estimator, gae, standardise, weigh
from multigrid_rl.learn.batches import Paths, Rollout, estimate
from multigrid_rl.models.distributions import distribution_of

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


def reference(given, gamma: float, lam: float) -> np.ndarray:
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
    np.testing.assert_allclose(gae_of(given, gamma, lam), reference(given, gamma, lam), rtol=1e-4, atol=1e-4)


def test_inputs_are_unchanged_and_result_is_float32():
    given = random_trajectories(5, 3)
    before = {name: array.copy() for name, array in given.items()}
    assert gae_of(given, 0.99, 0.95).dtype == np.float32
    np.testing.assert_equal(given, before)


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


def test_total_reward_is_per_path():
    # The first path was under way, ends with step 1 for good, and counts from the batch's first step.
    given = path([1, 2, 4, 8], [0, 0, 0, 0], [0, 0, 0, 0], terminated=[1], done=[1])
    starts = np.array([[False], [False], [True], [False]])
    weights, targets = weigh_of(given, starts, "total_reward")
    assert weights[:, 0].tolist() == [2, 2, 8, 8]
    assert targets[:, 0].tolist() == [2, 2, 8, 8]


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
