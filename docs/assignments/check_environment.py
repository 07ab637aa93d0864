"""The suite that finds what is wrong with a game of PettingZoo's kind: ``python check_environment.py meet``.

What holds of any game (spaces, seeds) and what the page of ``meet`` says it pays are checked in whole games.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

GAMES, MOST_STEPS = 50, 1_000


def played(env: Any, seed: int) -> Iterator[tuple[dict[str, Any], dict[str, float], dict[str, bool]]]:
    """Play a game with drawn actions; yield what is seen, paid and ended, first what is seen before any step."""
    rng = np.random.default_rng(seed)
    seen, _ = env.reset(seed=seed)
    yield seen, {}, {}
    for _ in range(MOST_STEPS):
        if not env.agents:
            return
        seen, paid, ended, *_ = env.step({agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents})
        yield seen, paid, ended
    raise AssertionError(f"expected a game that ends, got one of {MOST_STEPS} steps")


def check_spaces(make: Callable[[], Any]) -> None:
    """Check that everything that is seen lies in its space."""
    env = make()
    for seed in range(GAMES):
        for seen, _, _ in played(env, seed):
            for agent, obs in seen.items():
                space = env.observation_space(agent)
                assert space.contains(obs), f"{agent}: expected an observation in {space}, got {obs}"


def check_seeds(make: Callable[[], Any]) -> None:
    """Check that the same seed and the same actions are the same game, in another instance, too; others are others."""
    begun = set()
    for seed in range(GAMES):
        one, other = ([{k: v.tolist() for k, v in seen.items()} for seen, *_ in played(make(), seed)] for _ in range(2))
        assert one == other, f"seed {seed}: expected the same game twice, got {one[0]} and {other[0]} at the start"
        begun.add(str(one[0]))
    assert len(begun) > 1, f"{GAMES} seeds: expected several games, got one, which starts with {begun.pop()}"


def check_rewards(make: Callable[[], Any]) -> None:
    """Check that who meets is paid 1, and that every other step costs 0.01."""
    env = make()
    for seed in range(GAMES):
        for _, paid, ended in played(env, seed):
            for agent, reward in paid.items():
                wanted = 1.0 if ended[agent] else -0.01
                assert np.isclose(reward, wanted), f"{agent}: expected a reward of {wanted}, got {reward}"


def main() -> int:
    """Check the game of a module and return the number of checks that fail."""
    if len(sys.argv) != 2 or sys.argv[1].endswith(".py"):
        sys.exit(f"expected a module, as in python check_environment.py meet, got {sys.argv[1:]}")
    sys.path.insert(0, ".")
    make, failed = importlib.import_module(sys.argv[1]).parallel_env, 0
    for check in (check_spaces, check_seeds, check_rewards):
        try:
            check(make)
        except Exception as error:  # noqa: BLE001 - a game may raise anything
            failed += 1
            print(f"{check.__name__}: {error if isinstance(error, AssertionError) else repr(error)}")
        else:
            print(f"{check.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
