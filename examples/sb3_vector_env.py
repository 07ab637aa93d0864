"""Many games of a seat for Stable-Baselines3, which has a vector interface of its own."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from multigrid_rl.players.gymnasium_env import SeatVectorEnv


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


if __name__ == "__main__":
    face = VectorFace(SeatVectorEnv(64, "1v1", players={"blue_0": "random"}, flat=True))
    face.seed(0)
    PPO("MlpPolicy", face, n_steps=32, batch_size=1024, gamma=0.97, device="cpu", verbose=1).learn(200_000)
