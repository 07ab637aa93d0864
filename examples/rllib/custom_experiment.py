"""An experiment of your own in Tune: training, then a final judgement in the same trial, as one function."""

from ray import tune

from multigrid_rl import evaluate
from multigrid_rl.rllib import config


def experiment(values: dict) -> None:
    """Train with what Tune has drawn; the last report is how the result plays against others."""
    algorithm = config("1v1", *values["overrides"], lr=values["lr"]).build_algo()
    for _ in range(values["iterations"]):
        result = algorithm.train()
        tune.report({"phase": "training", "return": result["env_runners"]["episode_return_mean"]})
    wins = {who: evaluate(algorithm, opponent=who, episodes=values["episodes"])["win"] for who in ("hunter", "random")}
    tune.report({"phase": "judged", **wins})
    algorithm.stop()


def main(*overrides: str, iterations: int = 100, episodes: int = 200, folder: str | None = None) -> tune.ResultGrid:
    """Try two step sizes; returns Tune's results."""
    space = {"overrides": overrides, "iterations": iterations, "episodes": episodes}
    run = tune.RunConfig(storage_path=folder, verbose=0)
    found = tune.Tuner(experiment, param_space={**space, "lr": tune.grid_search([3e-4, 1e-3])}, run_config=run).fit()
    for result in found:
        print(result.config["lr"], result.metrics)
    return found


if __name__ == "__main__":
    main()
