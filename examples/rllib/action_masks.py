"""Action masks: in connect four a column may be full, and no network of ours ever asks for it."""

import numpy as np

from multigrid_rl.rllib import config


def main(*overrides: str, iterations: int = 20) -> tuple[float, float]:
    """Train against random play; returns the share of masked actions, and how many of these were taken."""
    algorithm = config(
        "connect-four", "scenario.league=null", "scenario.seats.player_1=random", *overrides
    ).build_algo()
    masked, taken = [], []
    sample = algorithm.run.sampler.sample

    def looked_at():
        experience = sample()
        for batch in (batch for part in experience for batch in part.batches.values()):
            forbidden = batch.obs[:, -7:] == 0  # the mask stands behind what is seen
            masked.append(forbidden.mean())
            taken.append(forbidden[np.arange(len(forbidden)), batch.actions[:, 0]].mean())
        return experience

    algorithm.run.sampler.sample = looked_at
    for _ in range(iterations):
        algorithm.train()
    algorithm.stop()
    return float(np.mean(masked)), float(np.mean(taken))


if __name__ == "__main__":
    print(main())
