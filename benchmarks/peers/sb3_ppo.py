"""Stable-Baselines3's PPO on the Gymnasium face of a scenario: prints one line of JSON. Runs in the peers' environment.

    .venv-bench/bin/python -m benchmarks.peers.sb3_ppo --num-envs 64 --workers dummy --threads 1
    .venv-bench/bin/python -m benchmarks.peers.sb3_ppo --env-id HalfCheetah-v5 --num-envs 8 --workers dummy --threads 1

Network, batch, epochs and minibatch are those of ``multigrid-rl train``; what is left to tune is in the arguments.
"""

import argparse
import json
import time
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from multigrid_rl.players.gymnasium_env import SeatEnv
from multigrid_rl.world.state import token_categories

WORKERS = ("dummy", "subproc")


class TokenEnv(SeatEnv):
    """A seat that sees its token vector as the networks of this project do, one-hot (float32).

    Decoding views for a dictionary that the network would only flatten again is spared: the peer is given the faster
    face.
    """

    def __init__(self, scenario: str) -> None:
        super().__init__(scenario)
        starts = list(accumulate(token_categories(self.game), initial=0))
        self._starts, self._width = np.array(starts[:-1]), starts[-1]
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0.0, 1.0, (self._width,), np.float32)

    def _observation(self) -> Any:
        encoded = np.zeros(self._width, np.float32)
        encoded[self._starts + self.match.env.world.outputs.tokens[0, self._agent]] = 1.0
        return encoded


class Clock(BaseCallback):
    """Notes when each iteration began, and when the last ended."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.began.append(time.perf_counter())

    def _on_training_end(self) -> None:
        self.began.append(time.perf_counter())


def make_envs(scenario: str, options: argparse.Namespace) -> VecEnv:
    """Return the games, each in Stable-Baselines3's own monitor as its ``make_vec_env`` does it.

    Observations and rewards of another environment are normalised, as its recipes for MuJoCo do.
    """
    if options.env_id:
        bodies = [partial(_body, options.env_id) for _ in range(options.num_envs)]
        kind = partial(SubprocVecEnv, start_method="forkserver") if options.workers == "subproc" else DummyVecEnv
        return VecNormalize(kind(bodies))
    makers = [partial(_monitored, scenario) for _ in range(options.num_envs)]
    # Forked workers share what was loaded before: here, the kernels of the game.
    game = TokenEnv(scenario)
    game.reset(seed=0)
    game.step(0)
    return SubprocVecEnv(makers, "fork") if options.workers == "subproc" else DummyVecEnv(makers)


def _monitored(scenario: str) -> gymnasium.Env[Any, Any]:
    return Monitor(TokenEnv(scenario))


def _body(env_id: str) -> gymnasium.Env[Any, Any]:
    return Monitor(gymnasium.make(env_id))


def measure(options: argparse.Namespace) -> dict[str, float]:
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
        seed=0,
        device="cpu",
    )
    clock = Clock()
    try:
        model.learn(options.iterations * model.n_steps * envs.num_envs, callback=clock)
    finally:
        envs.close()
    spent = [after - before for before, after in pairwise(clock.began)][options.warmup :]
    return {"env_steps_per_s": options.batch * len(spent) / sum(spent)}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="single")
    parser.add_argument("--env-id", help="an environment of Gymnasium's in place of a scenario")
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--workers", choices=WORKERS, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of torch in the learner")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--minibatch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6, help="the warm-up among them")
    parser.add_argument("--warmup", type=int, default=2, help="iterations left out at the start")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
