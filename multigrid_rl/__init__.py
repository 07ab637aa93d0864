"""multigrid_rl: train, watch and judge RLlib PPO policies in the red/blue-door MultiGrid game.

The names below are the Python API (docs/python.md). Each is imported at its first use, so ``import multigrid_rl``
takes no time and has no side effect.
"""

from importlib import import_module

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "evaluate", "load_player", "load_policy", "make", "play", "train"]


def __getattr__(name: str) -> object:
    """Import the API at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("multigrid_rl.api"), name)


def __dir__() -> list[str]:
    """List the API for tab completion."""
    return __all__
