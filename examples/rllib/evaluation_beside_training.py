"""Evaluation for as long as an iteration takes, in a process of its own, against an opponent of its own."""

from multigrid_rl.rllib import config


def main(*overrides: str, iterations: int = 20) -> list[dict]:
    """Train against blue-rookie, be measured against blue-master meanwhile, and return what was measured."""
    made = config("1v1", *overrides)
    made.evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=1,
        evaluation_parallel_to_training=True,
        evaluation_duration="auto",
        evaluation_config={"opponent": "blue-master", "explore": False},
    )
    algorithm, found = made.build_algo(), []
    for _ in range(iterations):
        found.append(algorithm.train()["evaluation"]["env_runners"])
        print(f"{found[-1]['num_episodes']} games, return {found[-1]['episode_return_mean']:.2f}")
    algorithm.stop()
    return found


if __name__ == "__main__":
    main()
