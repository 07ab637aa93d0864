"""Curves as inline SVG whose letters keep their size at any width: only what lies in the plot's area is stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from multigrid_rl.gates import Gate
from multigrid_rl.judge.curves import Band
from multigrid_rl.judge.runs import Array, Series
from multigrid_rl.show.html import Raw, join, tag
from multigrid_rl.show.page import json_block
from multigrid_rl.show.words import thousands

#: Height of a plot's area in pixels, and width of the stretched drawing in units.
HEIGHT, WIDTH = 190, 1000
#: Points of a line: more than a screen shows, few enough for a small page.
POINTS = 400
_Y_AXIS, _X_AXIS = 52, 24  # pixels
_PAD = 0.08
_EDGE = 0.012  # beyond an end that many lines lie on, so that they are not cut in half


@dataclass(frozen=True)
class Line:
    """One line; the first of a chart is solid, the next ones dashed and dotted."""

    label: str
    series: Series


@dataclass(frozen=True)
class Under:
    """What lies under a run's line: the recipe's seeds on one grid of environment steps."""

    grid: list[int]
    band: Band
    running: int  # points of the grid up to which every seed was still running


@dataclass(frozen=True)
class Chart:
    """Everything that one plot shows.

    Attributes:
        title: what is measured.
        told: the conclusion, one sentence.
        unit: what stands at the axis.
        lines: at least one, each with at least one point.
        x_max: environment steps at the right edge.
        gate: drawn as a line at its bound.
        held: environment steps (from, to) over which the gate was held first.
        under: reference curves.
        share: the axis goes from 0 to 1 and is labelled in per cent.
    """

    title: str
    told: str
    unit: str
    lines: tuple[Line, ...]
    x_max: int
    gate: Gate | None = None
    held: tuple[int, int] | None = None
    under: Under | None = None
    share: bool = False


def plot(chart: Chart) -> Raw:
    """A figure with caption, axes, curves and the data that its readout shows."""
    low, high = (-_EDGE, 1.0 + _EDGE) if chart.share else limits(chart)
    x_ticks, y_ticks = ticks(0, chart.x_max, 5), ticks(low, high, 5)
    if chart.share:
        y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    caption = tag("figcaption", tag("h3", chart.title), tag("p", chart.told))
    legend = _legend(chart.lines) if len(chart.lines) > 1 else None
    frame = tag(
        "div",
        tag("p", chart.unit, class_="unit"),
        _y_axis(y_ticks, low, high, share=chart.share),
        tag("div", _area(chart, (x_ticks, y_ticks), low, high), class_="area"),
        _x_axis(x_ticks, chart.x_max),
        class_="frame",
    )
    readout = tag("p", class_="readout", aria_hidden="true")
    return tag("figure", caption, legend, frame, readout, json_block(None, _data(chart), "plot-data"), class_="plot")


def limits(chart: Chart) -> tuple[float, float]:
    """The y axis: all but the wildest values, always the gate's bound and where each line ends."""
    values = np.concatenate([line.series.values for line in chart.lines])
    if chart.under is not None:
        values = np.concatenate([values, chart.under.band.p10, chart.under.band.p90])
    always = [float(line.series.values[-1]) for line in chart.lines]
    always += [chart.gate.bound] if chart.gate else []
    most = np.percentile(values, (2, 98))
    reach = 0.5 * (most[1] - most[0])  # one early outlier would flatten the rest
    low = values.min() if values.min() >= most[0] - reach else most[0]
    high = values.max() if values.max() <= most[1] + reach else most[1]
    low, high = min(float(low), *always), max(float(high), *always)
    margin = _PAD * (high - low) or 0.5
    # What is never negative has no axis below nought.
    return (-_EDGE * high if 0 <= low < margin else low - margin), high + margin


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between ``low`` and ``high``, at most ``most`` of them, at 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) < most)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def thin(series: Series, points: int = POINTS) -> Series:
    """At most ``points`` of a line: of each stretch the lowest and the highest, so that no spike is lost."""
    length = len(series.values)
    if length <= points:
        return series
    edges = np.linspace(0, length, points // 2, dtype=int)
    kept = {0, length - 1}
    for start, end in pairwise(edges.tolist()):
        part = series.values[start:end]
        kept |= {int(start + part.argmin()), int(start + part.argmax())}
    rows = np.array(sorted(kept))
    return Series(series.env_steps[rows], series.values[rows])


def _area(chart: Chart, grid: tuple[list[float], list[float]], low: float, high: float) -> Raw:
    """Everything inside the axes. Percent for what must not be stretched, a nested drawing for what must."""

    def y(value: float) -> float:
        return _number((high - value) / (high - low) * HEIGHT)

    across = [tag("line", x1=0, x2="100%", y1=y(t), y2=y(t), class_="grid") for t in grid[1]]
    shaded = None
    if chart.held is not None:
        left, right = (100 * steps / chart.x_max for steps in chart.held)
        shaded = tag(
            "rect", x=f"{_number(left)}%", width=f"{_number(right - left)}%", y=0, height=HEIGHT, class_="held"
        )
    drawn = [*_under(chart, low, high)] if chart.under else []
    for number, line in enumerate(chart.lines):
        drawn.append(_path(thin(line.series), chart.x_max, (low, high), f"line line-{number}"))
    stretched = tag(
        "svg", drawn, viewbox=f"0 0 {WIDTH} {HEIGHT}", preserveaspectratio="none", width="100%", height=HEIGHT,
    )  # fmt: skip
    gate = _gate(chart.gate, y(chart.gate.bound)) if chart.gate else None
    inside = join(across, shaded, stretched, gate)
    return tag("svg", inside, width="100%", height=HEIGHT, aria_hidden="true")


def _gate(gate: Gate, y: float) -> Raw:
    # The label stands where the line should not end: above a bound from above, below one from below.
    below = gate.comparison == ">="
    place = y + 14 if (below and y + 18 < HEIGHT) or y < 16 else y - 6
    sign = "\u2264" if gate.comparison == "<=" else "\u2265"
    return join(
        tag("line", x1=0, x2="100%", y1=y, y2=y, class_="gate"),
        tag("text", f"gate {sign} {gate.bound:g}", x="99%", y=_number(place), class_="gate-label"),
    )


def _under(chart: Chart, low: float, high: float) -> list[Raw]:
    under = chart.under
    if under is None:
        return []
    steps = np.array(under.grid, np.float64)
    there = steps <= chart.x_max
    steps = steps[there]
    if len(steps) < 2:
        return []
    columns = [np.array(values)[there] for values in (under.band.p10, under.band.p90, under.band.median)]
    outline = Series(np.concatenate([steps, steps[::-1]]), np.concatenate([columns[0], columns[1][::-1]]))
    running = min(under.running, len(steps))
    parts = [_path(outline, chart.x_max, (low, high), "band", closed=True)]
    for part, name in ((slice(0, running), "median"), (slice(max(running - 1, 0), None), "median ended")):
        if len(steps[part]) > 1:
            parts.append(_path(Series(steps[part], columns[2][part]), chart.x_max, (low, high), name))
    return parts


def _path(series: Series, x_max: int, limits: tuple[float, float], class_: str, *, closed: bool = False) -> Raw:
    low, high = limits
    xs = series.env_steps / x_max * WIDTH
    # A wild value is cut off by the area's edge; far beyond it would only cost digits.
    ys = np.clip((high - series.values) / (high - low), -2, 3) * HEIGHT
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    if len(xs) == 1:
        points = f"{points} {points}"  # a line without length is drawn as a dot
    shape = "polygon" if closed else "polyline"
    return tag(shape, points=points, class_=class_, vector_effect="non-scaling-stroke")


def _y_axis(values: list[float], low: float, high: float, *, share: bool) -> Raw:
    labels = [
        tag(
            "text", f"{value:.0%}" if share else _tick(value), x=_Y_AXIS - 8,
            y=_number((high - value) / (high - low) * HEIGHT + 4), class_="tick end",
        )
        for value in values
    ]  # fmt: skip
    return tag("svg", labels, width=_Y_AXIS, height=HEIGHT, class_="y-axis", aria_hidden="true")


def _x_axis(values: list[float], x_max: int) -> Raw:
    labels = []
    for value in values:
        place = 100 * value / x_max
        side = "start" if place < 4 else "end" if place > 94 else "middle"
        labels.append(tag("text", thousands(value), x=f"{_number(place)}%", y=16, class_=f"tick {side}"))
    return tag("svg", labels, width="100%", height=_X_AXIS, class_="x-axis", aria_hidden="true")


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "\u2212")


def _legend(lines: tuple[Line, ...]) -> Raw:
    rows = [
        tag("li", tag("svg", tag("line", x1=0, x2=26, y1=6, y2=6, class_=f"line line-{number}"),
                      width=26, height=12, aria_hidden="true"), line.label)
        for number, line in enumerate(lines)
    ]  # fmt: skip
    return tag("ul", rows, class_="legend")


def _data(chart: Chart) -> dict[str, Any]:
    """What the readout tells at each point of the first line."""
    at = thin(chart.lines[0].series).env_steps
    rows = [(line.label, line.series.env_steps, line.series.values) for line in chart.lines]
    if chart.under is not None:
        # The grid begins where all seeds have reported, and its last value is held forward behind its end.
        rows.append(("median of the recipe", np.array(chart.under.grid), np.array(chart.under.band.median)))
    return {
        "label": chart.title,
        "unit": chart.unit,
        "share": chart.share,
        "max": chart.x_max,
        "x": at.astype(int).tolist(),
        "rows": [[name, _figures(np.interp(at, xs, ys, left=math.nan))] for name, xs, ys in rows],
        "gate": [chart.gate.comparison, chart.gate.bound] if chart.gate else None,
    }


def _figures(values: Array) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values.tolist()]


def _number(value: float) -> float:
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
