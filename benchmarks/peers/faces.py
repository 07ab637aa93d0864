"""Other people's libraries on our faces: checks, trains, measures; the last line is JSON.

Runs in the environment of the benchmarks::

    .venv-bench/bin/python -m benchmarks.peers.faces

* TorchRL's ``check_env_specs`` on its ``PettingZooWrapper`` around every scenario;
* SuperSuit's frame stack on the flat PettingZoo face;
* Stable-Baselines3's PPO on the vector face;
* steps a second of the vector face, on one core, and of Gymnasium's own ``SyncVectorEnv`` beside it.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import supersuit
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import check_env_specs

from benchmarks.tables import Report, add_common, describe, table
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.players.gymnasium_env import SeatVectorEnv
from multigrid_rl.world.pettingzoo_env import parallel_env

ID = "multigrid_rl.gym:multigrid_rl/1v1-red-v0"
#: Steps a second that the vector face must reach.
BAR = 300_000
#: Games of Gymnasium's own vector environment, one object each.
SYNC = 8


class VectorFace(VecEnv):
    """The vector face as Stable-Baselines3 takes it: flat observations, and infos where an episode ended."""

    def __init__(self, env: SeatVectorEnv) -> None:
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        """Start all games anew."""
        observations: NDArray[np.float32] = self.env.reset(seed=self._seeds[0])[0]
        self._reset_seeds()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Play the step."""
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        ended = terminated | truncated
        ended_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for k in np.flatnonzero(ended):
            cut = bool(truncated[k] and not terminated[k])
            ended_infos[k] = {"terminal_observation": infos["final_obs"][k], "TimeLimit.truncated": cut}
        return observations, rewards.astype(np.float32), ended, ended_infos

    def close(self) -> None:
        """Nothing to give back."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the attribute of the games' one environment, for each of them."""
        return [getattr(self.env, attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: games have no attributes of their own."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **options: Any) -> list[Any]:
        """Refuse: games have no methods of their own."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """No game is wrapped."""
        return [False] * len(list(self._get_indices(indices)))


def check_torchrl(names: Sequence[str]) -> str:
    """Check the PettingZoo face of each scenario; raises ``AssertionError`` where TorchRL refuses it."""
    for name in names:
        check_env_specs(PettingZooWrapper(parallel_env(name), use_mask=True))
    return f"all {len(names)} scenarios"


def check_supersuit() -> list[int]:
    """Stack frames of the flat face; returns the shape of an observation."""
    env = supersuit.frame_stack_v1(parallel_env("2v2", flat=True), 3)
    observations, _ = env.reset(seed=0)
    return list(observations["red_0"].shape)


def train_sb3(steps: int, num_envs: int) -> dict[str, float]:
    """Train against random; returns the mean reward of a step early and late."""
    face = VectorFace(SeatVectorEnv(num_envs, "1v1", players={"blue_0": "random"}, flat=True))
    face.seed(0)
    model = PPO("MlpPolicy", face, n_steps=32, batch_size=1024, n_epochs=4, gamma=0.97, seed=0, device="cpu")
    paid: list[float] = []

    def note(own: dict[str, Any], _: dict[str, Any]) -> bool:
        paid.append(float(own["rewards"].mean()))
        return True

    model.learn(steps, callback=note)
    tenth = max(len(paid) // 10, 1)
    early, late = np.mean(paid[:tenth]), np.mean(paid[-tenth:])
    return {"reward_early": float(early), "reward_late": float(late)}


def steps_per_s(env: Any, seconds: float) -> int:
    """Measure 1v1 against random; processor seconds, so that a busy machine says the same."""
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 7, (64, env.num_envs))
    env.step(actions[0])
    steps, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        env.step(actions[steps % 64])
        steps += 1
    games: int = env.num_envs
    return round(steps * games / (time.process_time() - began))


def measure(num_envs: int, seconds: float) -> dict[str, int]:
    """Return steps a second by kind of environment and observation."""
    speeds = {}
    for name, flat in (("dictionaries", False), ("flat vectors", True)):
        options: dict[str, Any] = {"players": {"blue_0": "random"}, "flat": flat}
        many = gymnasium.make_vec(ID, num_envs=num_envs, **options)
        few = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, ID, **options)] * SYNC)
        speeds[f"make_vec, {num_envs:,} games, {name}"] = steps_per_s(many, seconds)
        speeds[f"SyncVectorEnv, {SYNC} games, {name}"] = steps_per_s(few, seconds)
    return speeds


def main() -> None:
    """Parse, check, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_common(parser)
    parser.add_argument("--seconds", type=float, default=5.0, help="of processor time for each speed")
    parser.add_argument("--steps", type=int, default=200_000, help="that Stable-Baselines3 trains")
    parser.add_argument("--num-envs", type=int, default=1024)
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.steps = 0.1, 4096
    report = Report("Faces for other libraries", describe())
    speeds = measure(options.num_envs, options.seconds)
    rows = [(name, speed, speed / BAR) for name, speed in speeds.items()]
    lines = [*table(("1v1 against random", "steps a second", f"of {BAR:,}"), rows), ""]
    report.section("Speed", [*lines, "Seconds of one core's processor time."], speeds)
    names = scenario_names()
    sb3 = train_sb3(options.steps, 64)
    libraries = [
        f"* TorchRL {version('torchrl')}: `check_env_specs(PettingZooWrapper(...))` passes in {check_torchrl(names)}.",
        f"* SuperSuit {version('supersuit')}: three frames of 2v2 on one another are {check_supersuit()[0]} numbers.",
        f"* Stable-Baselines3 {version('stable_baselines3')}: PPO, {options.steps:,} steps on 64 games of the vector "
        f"face: the mean reward of a step goes from {sb3['reward_early']:.4f} in the first tenth to "
        f"{sb3['reward_late']:.4f} in the last.",
    ]
    report.section("Libraries", libraries, {"torchrl": names, "sb3": sb3})
    slowest = min(speed for name, speed in speeds.items() if name.startswith("make_vec"))
    report.result = {"bar": BAR, "slowest_make_vec": slowest, "reached": slowest >= BAR, "sb3": sb3}
    report.write(options.out)


if __name__ == "__main__":
    main()
