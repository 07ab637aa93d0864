"""A curriculum by callback: the next opponent as soon as red earns enough against this one."""

from functools import partial

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import register_envs

OPPONENTS = ("idle", "random", "blue-rookie", "blue-master")


def seat(env_runner, opponent: str) -> None:
    """Give an env runner environments with another opponent."""
    config = env_runner.config.copy(copy_frozen=False)
    env_runner.config = config.environment(env_config={"players": {"blue_0": opponent}})
    env_runner.make_env()


class Curriculum(RLlibCallback):
    """Goes one opponent further where the mean return is at least ``ENOUGH``."""

    ENOUGH = 1.0

    def on_algorithm_init(self, *, algorithm, **kwargs):
        algorithm.level = 0

    def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):
        result["level"] = algorithm.level
        earned = result["env_runners"].get("episode_return_mean", float("-inf"))
        if earned >= self.ENOUGH and algorithm.level < len(OPPONENTS) - 1:
            algorithm.level += 1
            algorithm.env_runner_group.foreach_env_runner(partial(seat, opponent=OPPONENTS[algorithm.level]))


def main(iterations: int = 10, batch: int = 4000) -> dict:
    """Train red against one opponent after the other and return the last result."""
    register_envs()
    config = (
        PPOConfig()
        .environment("multigrid_rl/1v1", env_config={"players": {"blue_0": OPPONENTS[0]}})
        .multi_agent(policies={"red"}, policy_mapping_fn=lambda agent, episode, **kwargs: "red")
        .env_runners(num_env_runners=0)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4, lr=3e-4)
        .callbacks(Curriculum)
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        print(f"{OPPONENTS[result['level']]}: {result['env_runners'].get('episode_return_mean', 'no game ended yet')}")
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
