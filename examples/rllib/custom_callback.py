"""A custom callback: how often red wins and picks up its key, from the infos of each episode, in RLlib's results."""

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import register_envs


class Outcomes(RLlibCallback):
    """Logs what red did in an episode; RLlib averages it over the latest ones."""

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        infos = episode.agent_episodes["red_0"].get_infos()[1:]  # of a reset there is nothing to tell
        metrics_logger.log_value("red_wins", float(infos[-1]["winner"] == 0), window=100)
        metrics_logger.log_value("red_keys", sum(info["key_pickup"] for info in infos), window=100)


def main(iterations: int = 10, batch: int = 4000) -> dict:
    """Train red against a frozen player and return the last result."""
    register_envs()
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1", env_config={"players": {"blue_0": "blue-rookie"}})
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
        .callbacks(Outcomes)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        runners = result["env_runners"]
        print(f"red wins {runners['red_wins']:.0%}, {runners['red_keys']:.2f} keys a game")
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
