"""Our runs under Ray Tune, as any algorithm of RLlib's: schedulers, Optuna, a killed experiment, a stop by gates."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from multigrid_rl.rllib import GateStopper, config

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.filterwarnings("ignore")]
#: A metric that is what was drawn: so what a scheduler decides is known, and that the value acts is seen.
LR = "learners/agent_0/default_optimizer_learning_rate"


def space(*overrides: str, **training):
    """The smallest run, some of whose values Tune draws."""
    small = "experiment=none train.num_envs=32 train.num_steps=64 train.minibatch_size=1024 train.epochs=1"
    own = ["train.threads=1", "train.until=1000000", "model.hidden=[8]", *overrides]
    return config("cartpole", *small.split(), *own).training(**training)


def tuner(path: Path, param_space, stop, **options) -> tune.Tuner:
    run = tune.RunConfig(
        name="experiment",
        storage_path=str(path),
        stop=stop,
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=options.pop("checkpoint_frequency", 0)),
    )
    settings = tune.TuneConfig(metric=LR, mode="max", **options)
    return tune.Tuner(param_space.algo_class, param_space=param_space, tune_config=settings, run_config=run)


def facts(results: tune.ResultGrid) -> list[tuple[float, int]]:
    """Step size and iterations of each trial; the size is the one that its learner used."""
    assert not results.errors
    rows = [result.metrics for result in results]
    used = [row["learners"]["agent_0"]["default_optimizer_learning_rate"] for row in rows]
    assert used == [pytest.approx(row["config"]["lr"]) for row in rows]
    return list(zip(used, [row["training_iteration"] for row in rows], strict=True))


@pytest.mark.long
def test_population_takes_over_values_and_weights_of_best(tmp_path):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"lr": tune.loguniform(1e-6, 1e-1)},
        quantile_fraction=0.5,
        resample_probability=0,
        synch=True,
    )
    drawn = space(lr=tune.grid_search([1e-2, 1e-4]))
    results = tuner(tmp_path, drawn, {"training_iteration": 2}, scheduler=scheduler).fit()
    (best, _), (copied, iterations) = facts(results)
    assert best == pytest.approx(1e-2)
    assert min(abs(copied - 1.2e-2), abs(copied - 0.8e-2)) < 1e-6
    assert iterations == 2


@pytest.mark.slow
def test_trial_ends_when_its_gates_are_held(tmp_path):
    gates = "scenario.gates=[{metric: return_mean/*, at_least: 5, window: 1}]"
    (result,) = tuner(tmp_path, space(gates, lr=1e-3), GateStopper()).fit()
    assert result.metrics["gates"]["held"]
    assert result.metrics["gates"]["return_mean/agent_0"]["value"] >= 5
    assert result.metrics["training_iteration"] < 10


UNTIL = 25
#: An experiment in a process of its own, which is killed.
KILLED = """
import sys
from pathlib import Path
import ray
sys.path.insert(0, sys.argv[1])
from test_tune_entrance import UNTIL, space, tuner
ray.init(sys.argv[2], log_to_driver=False, logging_level="error")
tuner(Path(sys.argv[3]), space(lr=1e-3), {"training_iteration": UNTIL}, checkpoint_frequency=1).fit()
"""


@pytest.mark.long
def test_killed_experiment_goes_on(tmp_path):
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), address, str(tmp_path)]
    killed = subprocess.Popen(command, env={**os.environ, "TUNE_GLOBAL_CHECKPOINT_S": "0"})
    folder, deadline = tmp_path / "experiment", time.monotonic() + 120
    while not list(folder.glob("*/checkpoint_000002")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    param_space = space(lr=1e-3)
    (result,) = tune.Tuner.restore(str(folder), param_space.algo_class, param_space=param_space).fit()
    assert not result.error
    assert result.metrics["training_iteration"] == UNTIL
    assert result.metrics["iterations_since_restore"] < UNTIL
    # What was played before counts: 32 environments of 64 steps in each iteration.
    assert result.metrics["num_env_steps_sampled_lifetime"] == UNTIL * 2048
