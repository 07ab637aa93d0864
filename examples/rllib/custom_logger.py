"""A logger of your own in Tune: one line for each trial that holds its gates, with what was drawn for it."""

from pathlib import Path

from ray import tune
from ray.tune.logger import LoggerCallback

from multigrid_rl.rllib import GateStopper, config


class HeldLog(LoggerCallback):
    """Writes a line when a trial holds its gates, and one when it ends without."""

    def __init__(self, path: str) -> None:
        self.path, self.held = Path(path), set()

    def log_trial_result(self, iteration, trial, result):
        if result["gates"]["held"] and trial not in self.held:
            self.held.add(trial)
            self._write(trial, f"held after {result['num_env_steps_sampled_lifetime']:,} steps")

    def log_trial_end(self, trial, failed=False):
        if trial not in self.held:
            self._write(trial, "failed" if failed else "not held")

    def _write(self, trial, text):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{trial.trial_id} {trial.config['drawn']}: {text}\n")


def main(*overrides: str, path: str = "held.log", folder: str | None = None, until: int = 400_000) -> list[str]:
    """Train with two sizes of networks; returns the lines that were logged."""
    space = config("1v1", *overrides, hidden=tune.grid_search([[32], [64, 64]]), until=until)
    logger = HeldLog(path)
    run = tune.RunConfig(stop=GateStopper(), callbacks=[logger], storage_path=folder, verbose=0)
    tune.Tuner(space.algo_class, param_space=space, run_config=run).fit()
    return logger.path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    print(*main(), sep="\n")
