"""Assignment 2, task 2: a callback on our algorithm."""

from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.rllib import config


class Wins(RLlibCallback):
    """Keeps red's share of wins at each report, and prints it every ``EVERY`` iterations."""

    EVERY = 20

    def __init__(self):
        super().__init__()
        self.shares = {}

    def on_train_result(self, *, algorithm, result, **kwargs):
        """Read what the run reports; an iteration without a report has no share."""
        ours = result["multigrid_rl"]
        if "win/red_0" in ours:
            self.shares[ours["env_steps"]] = ours["win/red_0"]
            if len(self.shares) % self.EVERY == 0:
                print(f"{ours['env_steps']:,.0f} steps: red wins {ours['win/red_0']:.0%}")


def main(until=400_000, **values):
    """Train and return the callback."""
    algorithm = config("1v1", until=until, **values).callbacks(Wins).build_algo()
    result = {"done": False}
    while not result["done"]:
        result = algorithm.train()
    (wins,) = algorithm.callbacks
    algorithm.stop()
    return wins
