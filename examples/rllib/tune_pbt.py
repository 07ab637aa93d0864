"""Tune with population based training: learning rates and entropy bonuses move to where gates are held first."""

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.stopper import CombinedStopper, MaximumIterationStopper

from multigrid_rl.rllib import GateStopper, config


def main(*overrides: str, trials=4, iterations=200, every=20, folder=None) -> tune.ResultGrid:
    """Search and return Tune's results.

    Args:
        overrides: of the run, such as ``train.num_envs=64``.
        trials: how many train side by side.
        iterations: of a trial, at most.
        every: iterations after which the worst trials take over what the best have learned.
        folder: of the results; Tune's own by default.
    """
    space = config("1v1", *overrides).training(lr=tune.loguniform(1e-4, 3e-3), entropy_coeff=tune.uniform(0.0, 0.02))
    scheduler = PopulationBasedTraining(
        metric="env_runners/episode_return_mean",
        mode="max",
        perturbation_interval=every,
        hyperparam_mutations={"lr": tune.loguniform(1e-4, 3e-3)},
    )
    stop = CombinedStopper(GateStopper(first=True), MaximumIterationStopper(iterations))
    tuner = tune.Tuner(
        space.algo_class,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=trials, scheduler=scheduler),
        run_config=tune.RunConfig(stop=stop, storage_path=folder, verbose=0),  # Tune prints whole configurations
    )
    results = tuner.fit()
    best = results.get_best_result("env_runners/episode_return_mean", "max")
    print(best.metrics["env_runners"]["episode_return_mean"], best.path)
    return results


if __name__ == "__main__":
    main()
