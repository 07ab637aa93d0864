"""Curves of a page as inline SVG, and the axes of every figure: limits, ticks, units.

Letters keep their size at any width: positions across the page are per cent, and only what lies in the plot's area is
stretched (``templates/parts.html``).
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from multigrid_rl.gates import Gate
from multigrid_rl.metrics import glossary, matches
from multigrid_rl.runs.reader import Array, Series
from multigrid_rl.runs.reference import Reference
from multigrid_rl.show.words import bound, thousands

#: Height of a plot's area in pixels, and width of the stretched drawing in units.
HEIGHT, WIDTH = 190, 1000
#: Points of a line: more than a screen shows, few enough for a small page.
POINTS = 400
_PAD = 0.08
_EDGE = 0.012  # beyond an end of the axis, so that lines on it are not cut in half
_UNITS = {"ratio": "ratio, 1 is perfect", "share": "share of the games", "reward": "reward per game"}


class Line(NamedTuple):
    """One line; the first of a chart is solid, the next ones dashed and dotted."""

    label: str
    series: Series


class Chart(NamedTuple):
    """Content of one plot."""

    title: str  # the measured quantity
    caption: str  # the conclusion, one sentence
    unit: str  # label of the axis
    lines: tuple[Line, ...]  # at least one, each with at least one point; there are four styles of lines
    x_max: int  # environment steps at the right edge
    gate: Gate | None = None  # drawn as a line at its bound
    held: tuple[int, int] | None = None  # environment steps (from, to) over which the gate was held first
    under: tuple[Reference, str] | None = None  # reference curves and which of their metrics is drawn below the lines
    share: bool = False  # the axis goes from 0 to 1 and is labelled in per cent


# --- axes


def limits(values: Array, always: Array) -> tuple[float, float]:
    """Return limits that show ``always`` and ``values`` without far outliers, which would flatten the rest."""
    most = np.percentile(values, (2, 98))
    reach = 0.5 * (most[1] - most[0])
    low = values.min() if values.min() >= most[0] - reach else most[0]
    high = values.max() if values.max() <= most[1] + reach else most[1]
    low, high = float(min(low, *always)), float(max(high, *always))
    margin = _PAD * (high - low) or 0.5
    # Values that are never negative get no axis below zero.
    return (-_EDGE * high if 0 <= low < margin else low - margin), high + margin


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between ``low`` and ``high``, at most ``most``, at 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) < most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def unit_of(metric: str) -> str:
    """Return the axis label of a metric: its unit, spelled out where the glossary abbreviates it."""
    unit = next((unit for pattern, (_, unit) in glossary().items() if matches(metric, pattern)), "")
    return "steps per game" if metric == "episode_len_mean" else _UNITS.get(unit, unit)


def thin(series: Series, points: int = POINTS) -> Series:
    """Return at most ``points`` of a line: of each stretch the lowest and the highest, so that no spike is lost."""
    length = len(series.values)
    if length <= points:
        return series
    kept = {0, length - 1}
    for start, end in pairwise(np.linspace(0, length, points // 2, dtype=int).tolist()):
        part = series.values[start:end]
        kept |= {int(start + part.argmin()), int(start + part.argmax())}
    rows = np.array(sorted(kept))
    return Series(series.env_steps[rows], series.values[rows])


# --- drawing


def plot_data(chart: Chart) -> dict[str, Any]:
    """Return the values of the template ``plot``: positions of ticks, gate and shading, points of lines, readout."""
    low, high = _y_limits(chart)

    def y(value: float) -> float:
        return _number((high - value) / (high - low) * HEIGHT)

    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if chart.share else ticks(low, high, 5)
    lines = [("polyline", f"line line-{k}", thin(line.series)) for k, line in enumerate(chart.lines)]
    gate = None
    if chart.gate is not None:
        gate = {"y": y(chart.gate.bound), "label": bound(chart.gate.comparison, chart.gate.bound)}
    held = [100 * steps / chart.x_max for steps in chart.held] if chart.held else None
    return {
        "y_ticks": [(y(t), f"{t:.0%}" if chart.share else f"{t:.6g}".replace("-", "\u2212")) for t in y_ticks],
        "x_ticks": [_x_tick(t, chart.x_max) for t in ticks(0, chart.x_max, 5)],
        "gate": gate,
        "held": [_number(held[0]), _number(held[1] - held[0])] if held else None,
        "shapes": [
            (kind, name, _points(series, chart.x_max, low, high)) for kind, name, series in [*_under(chart), *lines]
        ],
        "data": _data(chart),
    }


def _y_limits(chart: Chart) -> tuple[float, float]:
    """Return limits that show the gate's bound and where each line ends."""
    if chart.share:
        return -_EDGE, 1 + _EDGE
    values = [line.series.values for line in chart.lines]
    always = [series[-1] for series in values] + ([chart.gate.bound] if chart.gate else [])
    if chart.under is not None:
        band = chart.under[0].metrics[chart.under[1]]
        values += [np.array(band.p10), np.array(band.p90)]
    return limits(np.concatenate(values), np.array(always))


def _x_tick(steps: float, x_max: int) -> tuple[float, str, str]:
    place = _number(100 * steps / x_max)
    return place, "start" if place < 4 else "end" if place > 94 else "middle", thousands(steps)


def _under(chart: Chart) -> list[tuple[str, str, Series]]:
    """Return the reference's band, its median while every seed was still running, and the median after that."""
    if chart.under is None:
        return []
    reference, band = chart.under[0], chart.under[0].metrics[chart.under[1]]
    steps = np.array(reference.env_steps, np.float64)
    there = int((steps <= chart.x_max).sum())
    if there < 2:
        return []
    steps, low, high, middle = (np.array(c)[:there] for c in (steps, band.p10, band.p90, band.median))
    whole = min(reference.whole, there)
    outline = Series(np.concatenate([steps, steps[::-1]]), np.concatenate([low, high[::-1]]))
    parts = ((slice(0, whole), "median"), (slice(max(whole - 1, 0), None), "median ended"))
    medians = [("polyline", name, Series(steps[p], middle[p])) for p, name in parts if len(steps[p]) > 1]
    return [("polygon", "band", outline), *medians]


def _points(series: Series, x_max: int, low: float, high: float) -> str:
    xs = series.env_steps / x_max * WIDTH
    # The plot's edge cuts off outliers; values far beyond it would only cost digits.
    ys = np.clip((high - series.values) / (high - low), -2, 3) * HEIGHT
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    return f"{points} {points}" if len(xs) == 1 else points  # a line without length is drawn as a dot


def _data(chart: Chart) -> dict[str, Any]:
    """Return what the readout shows at each point of the first line."""
    grid = thin(chart.lines[0].series).env_steps
    rows = [(line.label, *line.series) for line in chart.lines]
    if chart.under is not None:
        # The grid begins where all seeds have reported, and its last value is held forward behind its end.
        reference, metric = chart.under
        rows.append(("median of the recipe", np.array(reference.env_steps), np.array(reference.metrics[metric].median)))
    columns = {name: np.interp(grid, steps, values, left=math.nan) for name, steps, values in rows}
    return {
        "label": chart.title,
        "share": chart.share,
        "max": chart.x_max,
        "x": grid.astype(int).tolist(),
        "rows": [
            [name, [None if math.isnan(v) else float(f"{v:.5g}") for v in values.tolist()]]
            for name, values in columns.items()
        ],
        "gate": [chart.gate.comparison, chart.gate.bound] if chart.gate else None,
    }


def _number(value: float) -> float:
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
