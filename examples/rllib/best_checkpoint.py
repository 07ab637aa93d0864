"""Checkpoints by a criterion of your own: one whenever red wins more often than at the last one."""

from pathlib import Path
from tempfile import mkdtemp

from multigrid_rl import evaluate
from multigrid_rl.rllib import config


def main(*overrides: str, iterations: int = 100, episodes: int = 200, folder: str | None = None) -> tuple[str, float]:
    """Train, keep the best, and return its folder and how often it wins in fresh games."""
    home, best, kept = Path(folder or mkdtemp()), -1.0, ""
    algorithm = config("1v1", *overrides).build_algo()
    for number in range(1, iterations + 1):
        wins = algorithm.train()["multigrid_rl"].get("win/red_0", -1.0)
        if wins is not None and wins > best:
            best, kept = wins, algorithm.save_to_path(home / f"iteration-{number}")
            print(f"iteration {number}: {wins:.0%} of games won, kept")
    kept = kept or algorithm.save_to_path(home / "last")  # no game has ended yet
    algorithm.stop()
    return kept, evaluate(kept, episodes=episodes)["win"]


if __name__ == "__main__":
    print(main())
