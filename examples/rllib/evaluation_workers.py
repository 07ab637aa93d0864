"""Evaluation workers: while red trains against a rookie, env runners of their own measure it against a master."""

from ray.rllib.algorithms.ppo import PPOConfig

from multigrid_rl.rllib import register_envs


def main(iterations: int = 10, batch: int = 4000, episodes: int = 100, workers: int = 1) -> dict:
    """Train, evaluate every second iteration, and return the last result."""
    register_envs()
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1", env_config={"players": {"blue_0": "blue-rookie"}})
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
        .evaluation(
            evaluation_interval=2,
            evaluation_num_env_runners=workers,
            evaluation_duration=episodes,
            evaluation_duration_unit="episodes",
            evaluation_config={"explore": True, "env_config": {"players": {"blue_0": "blue-master"}}},
        )
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        line = f"rookie {result['env_runners'].get('episode_return_mean')}"
        if "evaluation" in result:
            line += f", master {result['evaluation']['env_runners']['episode_return_mean']:.2f}"
        print(line)
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
