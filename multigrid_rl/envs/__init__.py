"""Environments other than the red/blue-door game behind the same batched face, and agents grouped for training.

After an import of this package Gymnasium can build ``Walker-v0`` (or without one ``multigrid_rl.envs:Walker-v0``).
"""

import gymnasium

from multigrid_rl.tables import GYMNASIUM

for _env_id, _settings in GYMNASIUM.items():  # classes are imported when one is built
    gymnasium.register(_env_id, **_settings)
