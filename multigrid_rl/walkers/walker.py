"""``Walker-v0``: the body of Gymnasium's Humanoid with the task of ML-Agents' Walker."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from multigrid_rl.walkers.bodies import Follower


class WalkerEnv(HumanoidEnv):
    """A humanoid walks at one speed to a target, looking at it; when it is there, the target is elsewhere.

    Each step pays (1 - (|v - v*| / |v*|)^2)^2 times half of 1 plus the cosine between where the torso points and where
    the target is: between 0 and 1. ``v`` is the mean velocity of all parts in the step and ``v*`` is ``speed`` towards
    the target; a larger difference than ``speed`` counts as that. It ends where the torso is below 1 m or above 2 m.
    Physics are stepped by MuJoCo's Euler, one evaluation of forces for each 3 ms instead of Humanoid's four.

    Args:
        speed: wanted, in metres a second.
        render_mode: as of every environment of Gymnasium's.
    """

    def __init__(self, speed: float = 1.0, render_mode: str | None = None) -> None:
        if not 0 < speed <= 10:
            raise ValueError(f"speed: expected a number above 0 and at most 10, got {speed}")
        self.speed = float(speed)
        unseen = {f"include_{part}_in_observation": False for part in Follower.SEEN}
        camera = {"trackbodyid": 1, "distance": 7.0, "lookat": np.array((0.0, 0.0, 1.5)), "elevation": -20.0}
        super().__init__(contact_cost_weight=0.0, default_camera_config=camera, render_mode=render_mode, **unseen)
        EzPickle.__init__(self, speed, render_mode)
        self.model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER  # 4 times as fast; game engines do so, too
        self._body = Follower(self)
        self._goals: NDArray[np.float64] = np.zeros((1, Follower.task_state_size))
        self.observation_space = spaces.Box(-np.inf, np.inf, self._get_obs().shape, np.float64)
        self.observation_structure: dict[str, Any] = {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Play one step."""
        qpos, qvel, read = self._state()
        before = self._body.position(qpos, read)
        self.do_simulation(action, self.frame_skip)
        qpos, qvel, read = self._state()
        moved = self._body.position(qpos, read) - before
        rewards, fallen = self._body.reward_and_termination(moved, np.asarray(action)[None], (qpos, qvel), read)
        if self.render_mode == "human":
            self.render()
        return self._get_obs(), float(rewards[0]), bool(fallen[0]), False, {}

    def reset_model(self) -> NDArray[np.float64]:
        """Begin an episode."""
        self.set_state(*self._body.noise(self.np_random))
        self._goals[0] = self._body.begin(self.np_random)
        return self._get_obs()

    def _state(self) -> tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.float64]]]:
        return self.data.qpos[None], self.data.qvel[None], [self.data.xipos[None], self._goals]

    def _get_obs(self) -> NDArray[np.float64]:
        seen: NDArray[np.float64] = self._body.observe(*self._state())[0]
        return seen

    def render(self) -> Any:
        """Draw the body and, as a red ball, the target."""
        viewer = self.mujoco_renderer._get_viewer(self.render_mode)
        place = (*self._body.target(self._goals)[0], 0.2)
        viewer.add_marker(pos=place, size=(0.2, 0.2, 0.2), rgba=(0.9, 0.2, 0.1, 1.0), type=2, label="")
        return super().render()
