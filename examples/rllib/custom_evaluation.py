"""Evaluation by a function of your own: against several opponents, each under a name of its own."""

from multigrid_rl import evaluate
from multigrid_rl.rllib import config

OPPONENTS = ("random", "hunter", "blue-rookie")


def against_all(algorithm, env_runners) -> tuple[dict, int, int]:
    """Return wins by opponent, and the steps that were played."""
    found = {who: evaluate(algorithm, opponent=who, episodes=against_all.episodes) for who in OPPONENTS}
    steps = sum(round(row["length_mean"] * row["episodes"]) for row in found.values())
    wins = {f"win_{who}": row["win"] for who, row in found.items()}
    algorithm.metrics.log_dict(wins, key="evaluation", reduce="item")
    return wins, steps, steps


against_all.episodes = 200


def main(*overrides: str, iterations: int = 60, interval: int = 20) -> dict:
    """Train, evaluate every ``interval`` iterations, and return the last evaluation."""
    made = config("1v1", *overrides)
    made.evaluation(evaluation_interval=interval, custom_evaluation_function=against_all)
    algorithm, found = made.build_algo(), {}
    for number in range(iterations):
        found = algorithm.train().get("evaluation", found)
        if (number + 1) % interval == 0:
            print(number + 1, found)
    algorithm.stop()
    return found


if __name__ == "__main__":
    main()
