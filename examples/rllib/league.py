"""A league in rounds: red learns against a mixture of opponents, which its own snapshots join."""

from pathlib import Path
from tempfile import mkdtemp

from multigrid_rl import evaluate
from multigrid_rl.rllib import config


def main(*overrides: str, rounds: int = 3, iterations: int = 40, episodes: int = 200) -> list[float]:
    """Train in rounds; returns how often the newest snapshot beats the first one and a rookie."""
    league, folder = {"blue-rookie": 1.0}, Path(mkdtemp())
    snapshots: list[str] = []
    for number in range(rounds):
        goes_on = {"init": snapshots[-1]} if snapshots else {}
        algorithm = config("1v1", *overrides, opponent=league, seed=number, **goes_on).build_algo()
        for _ in range(iterations):
            result = algorithm.train()
        snapshots.append(algorithm.save_to_path(folder / f"main-{number}"))
        league[snapshots[-1]] = 1.0  # a red player sits on blue's seat, too: it sees the board from there
        print(f"round {number}: {len(league)} opponents, return {result['env_runners']['episode_return_mean']:.2f}")
        algorithm.stop()
    judged = [evaluate(snapshots[-1], opponent=who, episodes=episodes)["win"] for who in (snapshots[0], "blue-rookie")]
    print(f"the newest beats the first in {judged[0]:.0%} of games, blue-rookie in {judged[1]:.0%}")
    return judged


if __name__ == "__main__":
    main()
