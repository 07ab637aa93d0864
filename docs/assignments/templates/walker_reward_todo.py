"""A training reward of your own for Walker-v0, to fill in.

    python walker_reward_todo.py             # checks: what is filled in is right, or not
    multigrid-rl train scenario=walker train.shaping=walker_reward_todo:shaped

Run both in the folder of this file. Only training sees this reward: gates, ``evaluate`` and reports keep the
environment's own, so what you changed shows as walking, not as numbers that you paid yourself.
"""

from __future__ import annotations

import math
import sys

import numpy as np

# Of the 87 numbers that are seen, all directions seen from the target: (towards it, across, up).
HEIGHT, FRONT, TOP, VELOCITY = 0, slice(1, 4), slice(4, 7), slice(7, 10)
UPRIGHT, EFFORT = 0.1, 0.05  # weights: a step of the environment's own reward is between 0 and 1


def uprightness(seen: np.ndarray) -> float:
    """Return how upright the torso is, in what is ``seen`` (87,): 1 upright, 0 lying."""
    # TODO uprightness: the cosine between where the torso's top points and up, at least 0
    raise NotImplementedError("uprightness is to be filled in")


def effort(action: np.ndarray) -> float:
    """Return the mean square of an ``action`` (17,), bounded by 0.4: 0 at rest, 1 with all forces at their bounds."""
    # TODO effort: the mean over the joints of (a / 0.4)^2
    raise NotImplementedError("effort is to be filled in")


def shaped(obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray, reward: float, info: dict) -> float:
    """Return the training reward of one step: the environment's, more for an upright torso, less for effort."""
    # TODO shaped: reward + UPRIGHT * uprightness of what is seen after the step - EFFORT * effort
    raise NotImplementedError("shaped is to be filled in")


# ---- checks


def check_uprightness() -> None:
    """Upright, leaning by 60 degrees, and head down."""
    for up, expected in ((1.0, 1.0), (0.5, 0.5), (-1.0, 0.0)):
        seen = np.zeros(87)
        seen[4:7] = 0.0, math.sqrt(1 - up**2), up
        found = uprightness(seen)
        assert math.isclose(found, expected), f"top {seen[4:7]}: expected {expected}, got {found}"


def check_effort() -> None:
    """At rest, and half of all forces at half of their bounds."""
    half = np.where(np.arange(16) % 2, 0.2, 0.0)
    assert effort(np.zeros(17)) == 0, "at rest: expected 0"
    assert math.isclose(effort(half), 0.125), f"half of the joints at 0.2: expected 0.125, got {effort(half)}"


def check_shaped() -> None:
    """A number more and a number less than the environment's own."""
    before, after, action = np.zeros(87), np.zeros(87), np.full(17, 0.4)
    before[4] = after[6] = 1.0  # lying, upright
    found = shaped(before, action, after, 0.5, {})
    assert isinstance(found, float | np.floating), f"expected a float, got {type(found).__name__}"
    wanted = 0.5 + UPRIGHT - EFFORT
    assert math.isclose(found, wanted, rel_tol=1e-6), f"expected {wanted:.4g}, got {found:.4g}"
    assert (action == 0.4).all(), "expected the action as it was, got a changed one"
    assert math.isclose(shaped(after, 0 * action, before, 0.5, {}), 0.5), "what is seen after the step counts"


def check_in_the_environment() -> None:
    """A body that has just been put on its feet stands, and every step has a finite reward."""
    import gymnasium

    env = gymnasium.make("multigrid_rl.envs:Walker-v0")
    obs, _ = env.reset(seed=0)
    assert uprightness(obs) > 0.9, f"on its feet: expected nearly 1, got {uprightness(obs)}"
    env.action_space.seed(0)
    for _ in range(20):
        action = env.action_space.sample()
        after, reward, *_, info = env.step(action)
        assert math.isfinite(shaped(obs, action, after, float(reward), info)), "expected a finite number"
        obs = after


CHECKS = (check_uprightness, check_effort, check_shaped, check_in_the_environment)


def main() -> int:
    """Run all checks and return the number of those that fail."""
    failed = 0
    for check in CHECKS:
        try:
            check()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is filled in may raise anything
            failed += 1
            plain = isinstance(error, AssertionError | NotImplementedError)
            print(f"{check.__name__}: {error if plain else repr(error)}")
        else:
            print(f"{check.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
