"""Offline evaluation: what a policy would earn, from games that another one played.

Weighted importance sampling (Precup, Sutton, Singh 2000, Eligibility traces for off-policy policy evaluation).
"""

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig

from multigrid_rl.rllib import register_envs


def estimate(module, episodes, gamma: float) -> tuple[float, float]:
    """Return the discounted return of who played the episodes, and that of ``module`` estimated from them."""
    returns, weights = [], []
    for episode in episodes:
        red = episode.agent_episodes["red_0"]
        rewards, actions = red.get_rewards(), torch.as_tensor(np.asarray(red.get_actions()))
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.as_tensor(red.get_observations()[:-1])})
        ours = logits["action_dist_inputs"].log_softmax(-1).gather(1, actions[:, None]).sum()
        weights.append(float(ours) - red.get_extra_model_outputs("action_logp").sum())
        returns.append(float(rewards @ gamma ** np.arange(len(rewards))))
    shares = np.exp(np.array(weights) - max(weights))
    return float(np.mean(returns)), float(shares @ returns / shares.sum())


def main(iterations: int = 1, batch: int = 4000, episodes: int = 200) -> tuple[float, float]:
    """Record games, train on others, and return what was earned and what the trained policy would have earned."""
    register_envs()
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1", env_config={"players": {"blue_0": "blue-rookie"}})
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=1, lr=1e-4, gamma=0.99)
    )
    algorithm = config.build_algo()
    recorded = algorithm.env_runner.sample(num_episodes=episodes, explore=True)
    for _ in range(iterations):
        algorithm.train()
    earned, would_earn = estimate(algorithm.get_module("red"), recorded, algorithm.config.gamma)
    algorithm.stop()
    print(f"played {earned:.3f}, estimated after training {would_earn:.3f}")
    return earned, would_earn


if __name__ == "__main__":
    main()
