"""Metrics of your own from each finished game, and a gate that ends training by one of them."""

from ray.rllib.callbacks.callbacks import RLlibCallback

from multigrid_rl.gates import Gate
from multigrid_rl.rllib import GateCallback, config


class Keys(RLlibCallback):
    """Logs whether red has taken its key, and how long games are that it wins."""

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        taken = episode.events["red_0"]["key_pickup"] > 0
        metrics_logger.log_value("red_takes_key", float(taken), reduce="mean", window=100)
        if episode.winner == "red":
            metrics_logger.log_value("steps_to_win", episode.length, reduce="mean", window=100)


def main(*overrides: str, iterations: int = 300, share: float = 0.9) -> dict:
    """Train until red takes its key in ``share`` of games, and return the last result."""
    gate = Gate("env_runners/red_takes_key", ">=", share, window=4096)
    algorithm = config("1v1", *overrides).callbacks([Keys, GateCallback([gate], stop_when_held=True)]).build_algo()
    for _ in range(iterations):
        result = algorithm.train()
        if result["done"]:
            break
    algorithm.stop()
    return result


if __name__ == "__main__":
    main()
