"""A curriculum of stages that end when their gates are held, and a callback that is told of each new one."""

from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import config

STAGES = "curriculum=[{seats: {blue_0: idle}, held: true, steps: %d}, {seats: {blue_0: random}, held: true, steps: %d}]"


class Told(RLlibCallback):
    """Notes at which step each stage began."""

    def on_algorithm_init(self, *, algorithm, **kwargs):
        algorithm.began = {}

    def on_train_result(self, *, algorithm, result, **kwargs):
        stage, steps = int(result["multigrid_rl"]["stage"]), result["num_env_steps_sampled_lifetime"]
        if stage not in algorithm.began:
            algorithm.began[stage] = steps
            print(f"stage {stage} from step {steps:,} on")


def main(*overrides: str, iterations: int = 400, longest: int = 300_000) -> dict[int, int]:
    """Train through all stages; returns the first reported step of each."""
    made = config("1v1", STAGES % (longest, longest), *overrides)
    algorithm = made.callbacks(Told).build_algo()
    for _ in range(iterations):
        if algorithm.train()["done"]:
            break
    algorithm.stop()
    return algorithm.began


if __name__ == "__main__":
    main()
