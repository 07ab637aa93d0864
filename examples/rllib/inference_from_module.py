"""Inference from a module: games of a trained policy without its algorithm, from the checkpoint's module alone."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from multigrid_rl.rllib import RedBlueDoors

ENV_CONFIG = {"scenario": "1v1", "players": {"blue_0": "blue-rookie"}}


def play(module: RLModule, games: int, seed: int) -> list[float]:
    """Return red's return in each game; its actions are drawn from the module's distribution."""
    env, draw = RedBlueDoors(ENV_CONFIG), torch.Generator().manual_seed(seed)
    returns = []
    for game in range(games):
        observations, _ = env.reset(seed=seed + game)
        returns.append(0.0)
        while env.agents:
            batch = {"obs": torch.from_numpy(observations["red_0"])[None]}
            logits = module.forward_inference(batch)["action_dist_inputs"]
            action = torch.multinomial(logits.softmax(-1), 1, generator=draw).item()
            observations, rewards, *_ = env.step({"red_0": action})
            returns[-1] += rewards["red_0"]
    return returns


def main(iterations: int = 10, batch: int = 4000, games: int = 100) -> list[float]:
    """Train, write a checkpoint, and play with the module in it."""
    config = (
        PPOConfig()
        .environment(RedBlueDoors, env_config=ENV_CONFIG)
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        algorithm.train()
    with TemporaryDirectory() as folder:
        path = Path(algorithm.save_to_path(folder))
        algorithm.stop()
        returns = play(RLModule.from_checkpoint(str(path / "learner_group/learner/rl_module/red")), games, seed=0)
    print(f"{sum(returns) / games:.3f} over {games} games")
    return returns


if __name__ == "__main__":
    main()
