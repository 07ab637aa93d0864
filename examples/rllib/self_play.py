"""Self-play with ``policies_to_train``: red learns against a frozen player and snapshots of itself that join it."""

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from multigrid_rl.rllib import FrozenPlayerModule, register_envs


def against(opponents):
    """Return a mapping of agents to modules in which each game has one of the opponents, all equally often."""

    def mapping(agent, episode, **kwargs):
        return "main" if agent == "red_0" else opponents[hash(episode.id_) % len(opponents)]

    return mapping


class SelfPlay(RLlibCallback):
    """Adds a copy of the learner to its opponents every few iterations."""

    EVERY = 10

    def on_train_result(self, *, algorithm, result, **kwargs):
        result["opponents"] = algorithm.config.policies.keys() - {"main"}
        if algorithm.iteration % self.EVERY:
            return
        main, name = algorithm.get_module("main"), f"main-{algorithm.iteration}"
        opponents = [*sorted(result["opponents"]), name]
        spec = RLModuleSpec.from_module(main)
        algorithm.add_module(name, module_spec=spec, new_agent_to_module_mapping_fn=against(opponents))
        weights = algorithm.learner_group.get_weights()["main"]
        algorithm.set_state({"learner_group": {"learner": {"rl_module": {name: weights}}}})


def main(iterations: int = 10, batch: int = 4000) -> dict:
    """Train one policy and return the last result."""
    register_envs()
    rookie = RLModuleSpec(FrozenPlayerModule, model_config={"player": "blue-rookie"})
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1")
        .multi_agent(policies={"main", "frozen"}, policy_mapping_fn=against(["frozen"]), policies_to_train=["main"])
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"main": RLModuleSpec(), "frozen": rookie}))
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
        .callbacks(SelfPlay)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        print(sorted(result["opponents"]), result["env_runners"].get("module_episode_returns_mean"))
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
