"""Checkpoint and restore: an algorithm that is built from its checkpoint goes on as if nothing had happened."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ray.rllib.algorithms.algorithm import Algorithm

from multigrid_rl.rllib import config


def main(iterations: int = 10, *overrides: str) -> tuple[list[float], list[float]]:
    """Return the entropies of the policy after a checkpoint, without a break and restored."""
    algorithm = config("1v1", *overrides, seed=3).build_algo()
    for _ in range(iterations):
        algorithm.train()
    with TemporaryDirectory() as folder:
        path = algorithm.save_to_path(str(Path(folder) / "checkpoint"))
        restored = Algorithm.from_checkpoint(path)
    unbroken, again = (
        [one.train()["learners"]["red_0"]["entropy"] for _ in range(iterations)] for one in (algorithm, restored)
    )
    for one in (algorithm, restored):
        one.stop()
    print(f"without a break {unbroken[-1]:.6f}, restored {again[-1]:.6f}")
    return unbroken, again


if __name__ == "__main__":
    main()
