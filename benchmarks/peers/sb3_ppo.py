"""Stable-Baselines3's PPO on the Gymnasium face of a scenario: prints one line of JSON. Runs in the peers' environment.

    .venv-bench/bin/python -m benchmarks.peers.sb3_ppo --num-envs 64 --workers dummy --encoding one-hot --threads 1
    .venv-bench/bin/python -m benchmarks.peers.sb3_ppo --env-id HalfCheetah-v5 --num-envs 8 --workers dummy --threads 1
    .venv-bench/bin/python -m benchmarks.peers.sb3_ppo --zoo mpe2.simple_v3 --num-envs 32 --workers dummy --threads 1

Network, batch, epochs and minibatch are those of ``multigrid-rl train``; what is left to tune is in the arguments.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import accumulate, pairwise
from typing import Any

import gymnasium
import numpy as np
import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from multigrid_rl.players.gymnasium_env import SeatEnv
from multigrid_rl.world.state import token_categories

ENCODINGS = ("multidiscrete", "one-hot")
WORKERS = ("dummy", "subproc")


class TokenEnv(SeatEnv):
    """A seat that sees its token vector, as the networks of this project do.

    ``multidiscrete`` leaves the one-hot encoding to Stable-Baselines3, which runs one operation a token; ``one-hot``
    hands over finished numbers (float32), so that nothing is left to encode. Decoding views for a dictionary that the
    network would only flatten again is spared in both: the peer is given the faster face.
    """

    def __init__(self, scenario: str, encoding: str) -> None:
        super().__init__(scenario)
        categories = token_categories(self.game)
        starts = list(accumulate(categories, initial=0))
        self._starts = np.array(starts[:-1])
        self._width = starts[-1]
        self._one_hot = encoding == "one-hot"
        self.observation_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Box(0.0, 1.0, (self._width,), np.float32)
            if self._one_hot
            else gymnasium.spaces.MultiDiscrete(categories)
        )

    def _observation(self) -> Any:
        tokens = self.match.env.world.outputs.tokens[0, self._agent]
        if not self._one_hot:
            return tokens.astype(np.int64)
        encoded = np.zeros(self._width, np.float32)
        encoded[self._starts + tokens] = 1.0
        return encoded


class Clock(BaseCallback):
    """Notes when each iteration began, when its games were played, and when the last ended."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []
        self.played: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.began.append(time.perf_counter())

    def _on_rollout_end(self) -> None:
        self.played.append(time.perf_counter())

    def _on_training_end(self) -> None:
        self.began.append(time.perf_counter())


def make_envs(scenario: str, options: argparse.Namespace) -> VecEnv:
    """Return the games, each in Stable-Baselines3's own monitor as its ``make_vec_env`` does it.

    Observations and rewards of another environment are normalised, as its recipes for MuJoCo do. Agents of PettingZoo's
    are environments side by side, as SuperSuit makes them.
    """
    if options.zoo:
        flat = supersuit.pettingzoo_env_to_vec_env_v1(importlib.import_module(options.zoo).parallel_env())
        processes = torch.multiprocessing.cpu_count() if options.workers == "subproc" else 0
        many: VecEnv = supersuit.concat_vec_envs_v1(flat, options.num_envs, processes, "stable_baselines3")
        return many
    if options.env_id:
        bodies = [partial(_body, options.env_id) for _ in range(options.num_envs)]
        kind = partial(SubprocVecEnv, start_method="forkserver") if options.workers == "subproc" else DummyVecEnv
        return VecNormalize(kind(bodies))
    makers: list[Callable[[], gymnasium.Env[Any, Any]]] = [
        partial(_monitored, scenario, options.encoding) for _ in range(options.num_envs)
    ]
    # Forked workers share what was loaded before: here, the kernels of the game.
    game = TokenEnv(scenario, options.encoding)
    game.reset(seed=0)
    game.step(0)
    return SubprocVecEnv(makers, "fork") if options.workers == "subproc" else DummyVecEnv(makers)


def _monitored(scenario: str, encoding: str) -> gymnasium.Env[Any, Any]:
    return Monitor(TokenEnv(scenario, encoding))


def _body(env_id: str) -> gymnasium.Env[Any, Any]:
    return Monitor(gymnasium.make(env_id))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train for some iterations and time those after the warm-up."""
    torch.set_num_threads(options.threads)
    envs = make_envs(options.scenario, options)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=options.batch // options.num_envs,
        batch_size=options.minibatch,
        n_epochs=options.epochs,
        learning_rate=1e-3,
        gamma=0.97,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.02,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=None if options.zoo else 0,  # SuperSuit's vector environment takes none
        device="cpu",
    )
    clock = Clock()
    try:
        model.learn(options.iterations * model.n_steps * envs.num_envs, callback=clock)
    finally:
        envs.close()
    spent = [after - before for before, after in pairwise(clock.began)][options.warmup :]
    playing = [played - began for began, played in zip(clock.began, clock.played, strict=False)][options.warmup :]
    return {
        "env_steps_per_s": options.batch * len(spent) / sum(spent),
        "sample_s": sum(playing) / len(playing),
        "learn_s": (sum(spent) - sum(playing)) / len(spent),
        "iterations": len(spent),
        "parameters": sum(weight.numel() for weight in model.policy.parameters()),
        "versions": {name: version(name) for name in ("stable-baselines3", "torch", "numpy", "gymnasium")},
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="single")
    parser.add_argument("--env-id", help="an environment of Gymnasium's in place of a scenario")
    parser.add_argument("--zoo", help="a module of PettingZoo's kind in place of a scenario")
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--workers", choices=WORKERS, required=True)
    parser.add_argument("--encoding", choices=ENCODINGS, help="of a scenario's views")
    parser.add_argument("--threads", type=int, required=True, help="of torch in the learner")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--minibatch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6, help="the warm-up among them")
    parser.add_argument("--warmup", type=int, default=2, help="iterations left out at the start")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
