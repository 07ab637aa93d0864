"""Checkpoint and restore: an algorithm that is built from its checkpoint goes on as if nothing had happened."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ray.rllib.algorithms.algorithm import Algorithm

from multigrid_rl.rllib import config


def main(iterations: int = 10, *overrides: str) -> tuple[list[float], list[float]]:
    """Return the mean returns after a checkpoint, without a break and restored."""
    algorithm = config("1v1", *overrides, seed=3).build_algo()
    for _ in range(iterations):
        algorithm.train()
    with TemporaryDirectory() as folder:
        path = algorithm.save_to_path(str(Path(folder) / "checkpoint"))
        restored = Algorithm.from_checkpoint(path)
    returns = [
        [one.train()["env_runners"]["episode_return_mean"] for _ in range(iterations)] for one in (algorithm, restored)
    ]
    for one in (algorithm, restored):
        one.stop()
    print(f"without a break {returns[0][-1]:.4f}, restored {returns[1][-1]:.4f}")
    return returns[0], returns[1]


if __name__ == "__main__":
    main()
