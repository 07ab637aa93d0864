"""Numbers and names as text."""

import math
from collections.abc import Iterable
from pathlib import Path

from multigrid_rl.metrics import glossary, matches

#: Titles of metrics; the part after the first slash is appended.
_TITLES = {
    "episode_len_mean": "Episode length",
    "return_mean": "Return",
    "team_return_mean": "Team return",
    "explained_variance": "Explained variance",
    "entropy": "Entropy",
    "approx_kl": "KL divergence of an update",
    "clip_fraction": "Share of steps beyond the clip",
    "win": "Games won",
    "draw": "Games drawn",
    "defeat": "Games lost",
}
_UNITS = {"ratio": "ratio, 1 is perfect", "reward": "reward per game"}
_OF_GAMES = ("win", "draw", "defeat", "league/")
#: Metrics of results, and their words.
OUTCOMES = {"win": "won", "draw": "drawn", "defeat": "lost"}


def plural(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 game`` or ``1,200 games``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def short(value: float, bound: float = math.nan) -> str:
    """Return three digits (``17.9``, ``1,280``), or as many as show on which side of a ``bound`` it lies; no "-0"."""
    if math.isnan(value):
        return "-"
    texts = [format(value, f",.{k}f" if abs(value) >= 999.5 else f".{k + 3}g") for k in range(9)]
    text = next((text for text in texts if value == bound or float(text.replace(",", "")) != bound), texts[-1])
    return "0" if text in ("-0", "0") else text.replace("-", "\u2212")


def rounded(value: float) -> str:
    """Return a rating: a whole number or, of a small one such as a return, two decimals; with a real minus."""
    return f"{value:,.{0 if abs(value) >= 100 else 2}f}".replace("-", "\u2212")


def signed(value: float) -> str:
    """Return ``+0.21`` or, with a real minus, ``−0.21``."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "\u2212")


def duration(seconds: float) -> str:
    """Return ``6.4 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def thousands(steps: float) -> str:
    """Return ``450k`` or ``1.2M``."""
    return f"{steps / 1e6:g}M" if abs(steps) >= 1e6 else f"{steps / 1e3:g}k" if abs(steps) >= 1e3 else f"{steps:g}"


def join_names(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    items = list(names)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def metric_title(metric: str) -> str:
    """Return ``Entropy of red_0`` for ``entropy/red_0``; metrics without a title keep their name."""
    first, _, rest = metric.partition("/")
    if first not in _TITLES:
        return metric
    return f"{_TITLES[first]} of {rest}" if rest else _TITLES[first]


def readable_name(name: str) -> str:
    """Return ``Policy loss`` for ``policy_loss``."""
    return name.replace("_", " ").capitalize()


def bound(comparison: str, value: float) -> str:
    """Return ``at most 20``."""
    return f"{'at most' if comparison == '<=' else 'at least'} {value:g}"


def unit_of(metric: str) -> str:
    """Return the axis label of a metric: its unit, spelled out where the glossary abbreviates it."""
    unit = next((unit for pattern, (_, unit) in glossary().items() if matches(metric, pattern)), "")
    if unit == "share":  # of steps, where not of games
        return f"share of the {'games' if metric.startswith(_OF_GAMES) else 'steps'}"
    return "steps per game" if metric == "episode_len_mean" else _UNITS.get(unit, unit)


def shortened(name: str, longest: int = 20) -> str:
    """Return a player's name of at most ``longest`` letters; of a path, the folder's, of a run's player, the run's."""
    parts = Path(name).parts if "/" in name else (name,)
    name = parts[parts.index("checkpoints") - 1] if "checkpoints" in parts[1:] else parts[-1]
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
