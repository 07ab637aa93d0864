"""One agent's network out of a checkpoint of several: its team mate begins anew."""

from tempfile import mkdtemp

import numpy as np

from multigrid_rl.rllib import config

MODULE = "learner_group/learner/rl_module/red_0"


def main(*overrides: str, iterations: int = 50) -> dict[str, bool]:
    """Train a team of two, then go on with red_0 alone; returns whose weights are those of the checkpoint."""
    first = config("coop", *overrides, seed=1).build_algo()
    for _ in range(iterations):
        first.train()
    folder = first.save_to_path(mkdtemp())
    second = config("coop", *overrides, seed=2).build_algo()
    second.restore_from_path(f"{folder}/{MODULE}", component=MODULE)
    same = {}
    for name, weights in second.get_weights().items():
        before = first.get_weights([name])[name]
        same[name] = all(np.array_equal(weights[key], before[key]) for key in before)
    print(same, second.train()["env_runners"]["num_episodes"])
    for algorithm in (first, second):
        algorithm.stop()
    return same


if __name__ == "__main__":
    main()
