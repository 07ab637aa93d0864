"""A custom environment: the game with a reward of your own, under a name of your own."""

from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

from multigrid_rl.rllib import RedBlueDoors


class InAHurry(RedBlueDoors):
    """Every step costs a little, and a step towards an own key is worth something: ``env_config={"cost": 0.01}``."""

    def __init__(self, config):
        settings = dict(config)
        self.cost = settings.pop("cost", 0.01)
        super().__init__(settings)

    def step(self, action_dict):
        observations, rewards, terminated, truncated, infos = super().step(action_dict)
        for seat in rewards:
            rewards[seat] += 0.1 * infos[seat]["key_pickup"] - self.cost
        return observations, rewards, terminated, truncated, infos


def main(iterations: int = 10, batch: int = 4000) -> dict:
    """Train both seats of 1v1, which share one policy, and return the last result."""
    register_env("in-a-hurry", InAHurry)
    config = (
        PPOConfig()
        .environment("in-a-hurry", env_config={"scenario": "1v1", "cost": 0.02})
        .multi_agent(policies={"both"}, policy_mapping_fn=lambda agent, episode, **kwargs: "both")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        print(result["env_runners"]["agent_episode_returns_mean"])
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
