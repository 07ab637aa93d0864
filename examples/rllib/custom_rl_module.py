"""A custom RLModule over tokens: each cell of the view is embedded, then two towers for policy and values."""

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn

from multigrid_rl.rllib import register_envs


class EmbeddedCells(TorchRLModule, ValueFunctionAPI):
    """``model_config``: ``width`` of an embedding, ``hidden`` units."""

    def setup(self):
        values = self.observation_space.nvec  # how many values each token has
        width, hidden = self.model_config["width"], self.model_config["hidden"]
        self.register_buffer("first", torch.tensor([0, *values.cumsum()[:-1]]))
        self.embed = nn.Embedding(int(values.sum()), width)
        self.policy, self.critic = (
            nn.Sequential(nn.Linear(len(values) * width, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
            for outputs in (int(self.action_space.n), 1)
        )

    def _features(self, batch):
        return self.embed(batch[Columns.OBS].long() + self.first).flatten(1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(self._features(batch))}

    def compute_values(self, batch, embeddings=None):
        return self.critic(self._features(batch)).squeeze(-1)


def main(iterations: int = 10, batch: int = 4000) -> dict:
    """Train red and return the last result."""
    register_envs()
    env_config = {"players": {"blue_0": "blue-rookie"}, "observation": "tokens"}
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1", env_config=env_config)
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .rl_module(rl_module_spec=RLModuleSpec(EmbeddedCells, model_config={"width": 8, "hidden": 64}))
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        print(result["env_runners"].get("episode_return_mean"))
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
