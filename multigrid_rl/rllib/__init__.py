"""The only RLlib room: env runners, algorithms, learner, Ray sessions and clusters; what RLlib's users take along.

The names below are imported when they are first used (docs/rllib.md).
"""

from importlib import import_module

_HOMES = {
    "FrozenPlayer": "multigrid_rl.rllib.modules",
    "NetworkModule": "multigrid_rl.rllib.modules",
    "RedBlueDoors": "multigrid_rl.rllib.environment",
    "register_envs": "multigrid_rl.rllib.environment",
}
__all__ = ["FrozenPlayer", "NetworkModule", "RedBlueDoors", "register_envs"]


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
