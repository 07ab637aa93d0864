"""Environments other than the red/blue-door game behind the same batched face, and agents grouped for training.

After an import of this package Gymnasium can build ``Walker-v0`` (or without one ``multigrid_rl.envs:Walker-v0``).
"""

import gymnasium

#: The class of ``Walker-v0``; it is imported when one is built, since it needs MuJoCo.
WALKER = "multigrid_rl.walkers.walker:WalkerEnv"

gymnasium.register("Walker-v0", WALKER, max_episode_steps=1000)
