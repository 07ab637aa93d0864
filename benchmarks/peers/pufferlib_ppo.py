"""PufferLib's trainer on its Snake, two snakes a world, both learn: prints one line of JSON. In its own environment.

    .venv-puffer/bin/python -m benchmarks.peers.pufferlib_ppo --num-envs 256 --workers 0 --threads 2

Snake is PufferLib's gridworld of several agents, written in C. The trainer is its own, with its own settings of Snake,
but Adam for Muon, no memory, and batch, epochs, minibatch, layers and view as this project's 1v1 has them.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pufferlib.vector
import torch
from pufferlib import pufferl
from pufferlib.ocean.snake.snake import Snake

SNAKES, WIDTH, FOOD, VISION, KINDS = 2, 16, 16, 2, 8
HIDDEN = 64


class ActorCritic(torch.nn.Module):
    """Two towers of two tanh layers on one-hot cells, as PufferLib wants a policy."""

    def __init__(self, cells: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = (self.tower(cells * KINDS, outputs) for outputs in (actions, 1))

    @staticmethod
    def tower(inputs: int, outputs: int) -> torch.nn.Sequential:
        """Return the layers of one tower."""
        sizes = pairwise((inputs, HIDDEN, HIDDEN))
        layers = [part for before, after in sizes for part in (torch.nn.Linear(before, after), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, outputs))

    def forward(self, views: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        """Return logits and values."""
        seen = torch.nn.functional.one_hot(views.reshape(len(views), -1).long(), KINDS).flatten(1).float()
        return self.actor(seen), self.critic(seen)

    forward_eval = forward


class Trainer(pufferl.PuffeRL):
    """The trainer without its dashboard, which would be drawn over what is printed here."""

    def print_dashboard(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


def make_envs(options: argparse.Namespace) -> Any:
    """Return all worlds, in this process or split over others."""
    parts = max(options.workers, 1)
    sizes = {"num_envs": options.num_envs // parts, "width": WIDTH, "height": WIDTH, "num_snakes": SNAKES}
    sizes |= {"num_food": FOOD, "vision": VISION}
    if not options.workers:
        return pufferlib.vector.make(Snake, backend=pufferlib.vector.PufferEnv, env_kwargs=sizes)
    many = {"num_envs": parts, "num_workers": parts, "batch_size": parts}
    return pufferlib.vector.make(Snake, backend=pufferlib.vector.Multiprocessing, env_kwargs=sizes, **many)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train for some iterations and time those after the warm-up."""
    link = Path("resources")
    if link.is_symlink():
        link.unlink()  # which pufferlib leaves wherever it is imported
    torch.set_num_threads(options.threads)
    pufferl.ADVANTAGE_CUDA = False  # it takes a compiler of CUDA's on the path for a GPU
    sys.argv = sys.argv[:1]  # which load_config reads
    settings = pufferl.load_config("puffer_snake")["train"]
    rows = SNAKES * options.batch
    settings |= {"batch_size": rows, "bptt_horizon": options.batch // options.num_envs, "update_epochs": options.epochs}
    settings |= {"minibatch_size": options.minibatch, "optimizer": "adam", "learning_rate": 1e-3, "device": "cpu"}
    settings |= {"use_rnn": False, "total_timesteps": 10**9, "checkpoint_interval": 10**9}
    envs = make_envs(options)
    policy = ActorCritic(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
    trainer = Trainer(settings, envs, policy)
    ends, played, paid = [time.perf_counter()], [], []
    try:
        for _ in range(options.iterations):
            trainer.evaluate()
            played.append(time.perf_counter() - ends[-1])
            paid.append(float(trainer.rewards.mean()))
            trainer.train()
            ends.append(time.perf_counter())
    finally:
        trainer.utilization.stop()
        envs.close()
    spent, playing = ([*values][options.warmup :] for values in ((b - a for a, b in pairwise(ends)), played))
    speed = options.batch * len(spent) / sum(spent)
    return {
        "env_steps_per_s": speed,
        "agent_steps_per_s": SNAKES * speed,
        "sample_s": sum(playing) / len(playing),
        "learn_s": (sum(spent) - sum(playing)) / len(spent),
        "iterations": len(spent),
        "mean_reward_first_and_last": [paid[0], paid[-1]],
        "parameters": sum(weight.numel() for weight in policy.parameters()),
        "versions": {name: version(name) for name in ("pufferlib", "torch", "numpy", "gymnasium")},
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-envs", type=int, required=True, help="worlds of two snakes")
    parser.add_argument("--workers", type=int, required=True, help="processes that play; 0: the trainer's own")
    parser.add_argument("--threads", type=int, required=True, help="of torch in the trainer")
    parser.add_argument("--batch", type=int, default=4096, help="environment steps; each is a row of both snakes")
    parser.add_argument("--minibatch", type=int, default=1024, help="rows")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8, help="the warm-up among them")
    parser.add_argument("--warmup", type=int, default=2, help="iterations left out at the start")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
