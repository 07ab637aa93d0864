"""The only RLlib room: our runs as RLlib's configs, algorithms and callbacks; env runners, learner, Ray sessions.

The names below are for users of RLlib (docs/rllib.md). They are imported at their first use.
"""

import logging
import warnings
from importlib import import_module

# In a notebook Ray warns of missing widgets, twice, which nothing here shows.
warnings.filterwarnings("ignore", "IProgress not found")
logging.getLogger("ray.widgets").setLevel(logging.ERROR)

#: Public names, and where they are.
_PLACES = {
    "config": "build",
    "MultigridConfig": "build",
    "MultigridAlgorithm": "algorithm",
    "GateCallback": "callback",
    "GateStopper": "callback",
    "RedBlueDoors": "environment",
    "register_envs": "environment",
    "FrozenPlayerModule": "modules",
    "NetworkModule": "modules",
    "FrozenPlayer": "modules",  # its earlier name
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names before they are used, for a tab."""
    return __all__
