"""All figures, by matplotlib: curves of pages as SVG, and PNG of a run over its recipe, of sets of runs, and others.

No display, no global state.
"""

import base64
import math
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from multigrid_rl.cli.output import write_file
from multigrid_rl.evaluation.seed_statistics import bootstrap_band, iqm
from multigrid_rl.evaluation.sets import HELD, RunSet, directions
from multigrid_rl.gates import Gate
from multigrid_rl.runs.reader import Array, RunRecord, Series
from multigrid_rl.show.reference import Reference
from multigrid_rl.show.words import plural, short, thousands
from multigrid_rl.text import percent

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/): distinguishable with any colour vision; lines differ in
# style as well.
BLUE, VERMILLION, BLACK = "#0072B2", "#D55E00", "#000000"
SMALL, NORMAL, LARGE = 11, 13, 16  # points
DPI = 120
_STEPS = FuncFormatter(lambda steps, _: thousands(steps))
_NUMBERS = FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "\u2212"))
_GATE: dict[str, Any] = {"color": BLACK, "linewidth": 1.4, "linestyle": (0, (7, 2, 1.5, 2)), "label": "gate"}
#: Lines of the two sides of a comparison.
_SIDES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": VERMILLION, "linestyle": (0, (5, 1.5))},
)
_Sides: TypeAlias = list[tuple[RunSet, list[RunRecord]]]  # each with its runs of one scenario
#: Points of a comparison's curves, and panels; of several scenarios each gets its share of them.
_POINTS, _MOST_PANELS = 151, 6


# --- shared by all figures


def limits(values: Array, always: Array) -> tuple[float, float]:
    """Return limits that show ``always`` and ``values`` without far outliers, which would flatten the rest."""
    percentiles = np.percentile(values, (2, 98))
    reach = 0.5 * (percentiles[1] - percentiles[0])
    low = values.min() if values.min() >= percentiles[0] - reach else percentiles[0]
    high = values.max() if values.max() <= percentiles[1] + reach else percentiles[1]
    low, high = float(min(low, *always)), float(max(high, *always))
    margin = 0.08 * (high - low) or 0.5
    # Values that are never negative get no axis below zero.
    return (-_EDGE * high if 0 <= low < margin else low - margin), high + margin


def panel_grid(panels: int, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels in one or two columns, with its title."""
    columns = min(2, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(14.0 if columns > 1 else 9.0, 3.6 * rows + 1.5), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.14, hspace=0.02, wspace=0.01)
    figure.suptitle(title, fontsize=LARGE)
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in all_axes[panels:]:
        axes.set_visible(False)
    return figure, list(all_axes[:panels])


def format_axes(axes: Axes, title: str, unit: str, end: float, gate: Gate | None = None) -> None:
    """Format title, axes and gate of curves over environment steps; y limits are unchanged."""
    if gate is not None:
        axes.axhline(gate.bound, **_GATE)
        title = f"{title}   (gate: {gate.comparison} {gate.bound:g})"
    axes.set_title(title, fontsize=NORMAL, fontweight="bold", loc="left")
    axes.set_ylabel(unit, fontsize=NORMAL)
    axes.set_xlabel("environment steps", fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.set_major_formatter(_STEPS)
    axes.grid(visible=True, alpha=0.25)
    axes.set_xlim(0, end * 1.02)
    axes.spines[["top", "right"]].set_visible(False)


def fill(axes: Axes, grid: Array, ends: tuple[Any, Any], alpha: float, **more: Any) -> None:
    """Shade the area between two curves."""
    axes.fill_between(grid, *ends, alpha=alpha, linewidth=0, **more)


def add_legend(figure: Figure, columns: int) -> None:
    """Put everything that has a label into one legend below the panels, each label once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False
    )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG file, in a new folder if necessary; replaces an existing file. Raises ``ConfigError``."""
    image = BytesIO()
    figure.savefig(image, format="png")
    write_file(path, image.getvalue())


# --- curves of pages

#: Width and height of a page's curve in units of its SVG, and the edges of its axes: left, right, top, bottom.
PAGE_SIZE, PAGE_AXES = (440, 280), (60, 432, 8, 220)
#: Points of a line in its readout: more than a screen shows, few enough for a small page.
POINTS = 300
_EDGE = 0.012  # beyond an end of the axis, so that lines on it are not cut in half
#: Colours of page.css, which turns the drawing for dark screens, and its lines: solid, dashed, dotted, both.
_INK, _SOFT, _GRID, _BAND, _HELD = "#1c2024", "#59626c", "#e2dfd8", "#9aa1a9", "#d8ebe8"
_LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0a6b64"},
    {"color": _INK, "linestyle": "--"},
    {"color": "#8a4b00", "linestyle": ":"},
    {"color": _SOFT, "linestyle": "-."},
)


class Line(NamedTuple):
    """One line; the first of a chart is solid, the next ones dashed and dotted."""

    label: str
    series: Series


class Chart(NamedTuple):
    """A curve of a page."""

    title: str  # the measured quantity
    unit: str  # label of the axis
    lines: tuple[Line, ...]  # at least one, each with at least one point; there are four styles of lines
    x_max: int  # environment steps at the right edge
    gate: Gate | None = None  # drawn as a line at its bound
    held: tuple[int, int] | None = None  # environment steps (from, to) over which the gate was held first
    under: tuple[Reference, str] | None = None  # reference curves, and the metric that is drawn below the lines
    share: bool = False  # the axis goes from 0 to 1 and is labelled in per cent
    steps: str = "environment"  # kind of steps

    @property
    def caption(self) -> str:
        """The last values of its lines, by their labels."""
        several, bound = len(self.lines) > 1, self.gate.bound if self.gate else math.nan
        as_text = percent if self.share else partial(short, bound=bound)
        ends = (f"{label * several} {as_text(float(values[-1]))}".strip() for label, (_, values) in self.lines)
        return f"At the end: {', '.join(ends)}"

    def image(self) -> str:
        """Return the drawing, an SVG of :data:`PAGE_SIZE` units in base64."""
        file = BytesIO()
        # A point less than a third of a unit off a straight line is left out.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "page", "path.simplify_threshold": 0.3}):
            _chart_figure(self).savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return base64.b64encode(file.getvalue()).decode("ascii")

    def data(self) -> dict[str, Any]:
        """Return the readout at each point of the first line, and the positions of the axes."""
        grid = thin(self.lines[0].series).env_steps
        rows = [(line.label, *line.series) for line in self.lines]
        if self.under is not None:
            # The grid begins where all seeds have reported, and its last value is held forward behind its end.
            reference, metric = self.under
            median = np.array(reference.metrics[metric].median)
            rows.append(("median over seeds", np.array(reference.env_steps), median))
        columns = {name: np.interp(grid, steps, values, left=math.nan) for name, steps, values in rows}
        return {
            "label": self.title,
            "share": self.share,
            "axes": [PAGE_SIZE[0], *PAGE_AXES],
            "max": self.x_max,
            "steps": self.steps,
            "x": grid.astype(int).tolist(),
            "rows": [
                [name, [None if math.isnan(v) else float(f"{v:.5g}") for v in values.tolist()]]
                for name, values in columns.items()
            ],
            "gate": [self.gate.comparison, self.gate.bound] if self.gate else None,
        }


def thin(series: Series) -> Series:
    """Return at most :data:`POINTS` of a line: the lowest and the highest of each stretch, so that no spike is lost."""
    if (length := len(series.values)) <= POINTS:
        return series
    selected = {0, length - 1}
    for start, end in pairwise(np.linspace(0, length, POINTS // 2, dtype=int).tolist()):
        part = series.values[start:end]
        selected |= {int(start + part.argmin()), int(start + part.argmax())}
    rows = np.array(sorted(selected))
    return Series(series.env_steps[rows], series.values[rows])


def _chart_figure(chart: Chart) -> Figure:
    (width, height), (left, right, top, bottom) = PAGE_SIZE, PAGE_AXES
    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height))
    axes.set(xlim=(0, chart.x_max), ylim=_y_limits(chart), axisbelow=True)
    axes.locator_params(nbins=5, steps=[1, 2, 5, 10], min_n_ticks=3)
    axes.xaxis.set_major_formatter(_STEPS)
    axes.yaxis.set_major_formatter(_NUMBERS)
    if chart.share:
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.tick_params(left=False, bottom=False, labelsize=14, pad=8, labelcolor=_SOFT)
    axes.grid(axis="y", color=_GRID)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"{chart.steps} steps", fontsize=14, labelpad=6, color=_SOFT)
    if chart.held:
        axes.axvspan(*chart.held, color=_HELD, linewidth=0)
    if chart.under is not None:
        # Band and median of the recipe's seeds, the median dotted after the end of the first seed.
        reference, metric = chart.under
        band, complete = reference.metrics[metric], reference.running.count(len(reference.runs))
        grid = np.array(reference.env_steps, np.float64)
        fill(axes, grid, (band.p10, band.p90), 0.26, color=_BAND)
        for part, line in ((slice(complete), "-"), (slice(max(complete - 1, 0), None), ":")):
            axes.plot(grid[part], np.array(band.median)[part], color=_BAND, linewidth=1.8, linestyle=line)
    for k, (_, series) in enumerate(chart.lines):
        # A line without length is drawn as a dot.
        steps = series.env_steps if len(series.values) > 1 else series.env_steps[0] + np.array([0, chart.x_max / 1000])
        axes.plot(steps, np.broadcast_to(series.values, steps.shape), linewidth=2, **_LINES[k])
    if chart.gate is not None:
        axes.axhline(chart.gate.bound, color=_INK, linewidth=1.4, linestyle="--")
    return figure


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


# --- two sets of runs, and best responses to a player


def draw_comparison(ours: RunSet, theirs: RunSet, rng: np.random.Generator) -> Figure:
    """Return IQM curves with bootstrap bands: runs that have held all gates, then each compared metric."""
    panels_wanted = comparison_panels(ours, theirs)
    title = f"{', '.join(ours.by_scenario)}: {ours.title} against {theirs.title}"
    figure, panels = panel_grid(len(panels_wanted), title)
    for axes, (scenario, metric) in zip(panels, panels_wanted, strict=True):
        sides = [(runs, runs.by_scenario[scenario]) for runs in (ours, theirs)]
        prefix = f"{scenario}: " if len(ours.by_scenario) > 1 else ""
        if metric == HELD:
            _held_panel(axes, sides, prefix, rng)
        else:
            _metric_panel(axes, sides, (prefix, metric), rng)
    first = panels[0]
    first.plot([], [], color=BLACK, linewidth=1.0, label="thin: some runs have ended, their last values count")
    fill(first, np.zeros(1), (0, 0), 0.18, color=BLACK, label="95 % bootstrap interval over runs")
    add_legend(figure, 3 if len(panels) > 1 else 1)
    return figure


def comparison_panels(ours: RunSet, theirs: RunSet) -> list[tuple[str, str]]:
    """Return (scenario, metric) of each panel, :data:`HELD` first; with several scenarios fewer metrics of each."""
    metrics_each = max(_MOST_PANELS // len(ours.by_scenario), 1)
    panels = []
    for name in ours.by_scenario:
        runs = (*ours.by_scenario[name], *theirs.by_scenario[name])
        metrics = ([HELD] if all(run.gates for run in runs) else []) + list(directions(runs))
        panels += [(name, metric) for metric in metrics[:metrics_each]]
    return panels


def save_comparison(ours: RunSet, theirs: RunSet, rng: np.random.Generator, path: Path) -> None:
    """Draw a comparison and write it as PNG. Raises ``ConfigError``."""
    save_figure(draw_comparison(ours, theirs, rng), path)


def _side_label(side: RunSet) -> str:
    return f"{side.title}, {plural(len(side.runs), 'run')}"


def _held_panel(axes: Axes, sides: _Sides, prefix: str, rng: np.random.Generator) -> None:
    grid = np.linspace(0, max(run.env_steps for _, runs in sides for run in runs), _POINTS)
    for (side, runs), style in zip(sides, _SIDES, strict=True):
        steps = [(run.verdict or {}).get(HELD) for run in runs]
        held = np.array([grid >= (np.inf if s is None else s) for s in steps], np.float64)  # (n, points)
        share, low, high = bootstrap_band(held, rng, lambda rows: rows.mean(axis=-1))
        fill(axes, grid, (low, high), 0.18, color=style["color"], step="post")
        axes.step(grid, share, linewidth=2.0, where="post", label=_side_label(side), **style)
    axes.set_ylim(-0.03, 1.03)
    format_axes(axes, f"{prefix}runs that have held all gates", "share of runs", grid[-1])


def _metric_panel(axes: Axes, sides: _Sides, title: tuple[str, str], rng: np.random.Generator) -> None:
    all_runs, metric = [run for _, runs in sides for run in runs], title[1]
    start = max(run.series[metric].env_steps[0] for run in all_runs)
    grid = np.linspace(start, max(run.env_steps for run in all_runs), _POINTS)
    drawn: list[Array] = []
    for (side, runs), style in zip(sides, _SIDES, strict=True):
        # After a run's end its last value is repeated.
        values = np.stack([np.interp(grid, *run.series[metric]) for run in runs])  # (n, points)
        middle, low, high = bootstrap_band(values, rng, iqm)
        fill(axes, grid, (low, high), 0.18, color=style["color"])
        all_running = grid <= min(run.env_steps for run in runs)
        last = max(int(all_running.sum()) - 1, 0)
        axes.plot(grid[all_running], middle[all_running], linewidth=2.0, label=_side_label(side), **style)
        axes.plot(grid[last:], middle[last:], linewidth=1.0, **style)
        drawn += [middle, low[len(low) // 20 :], high[len(high) // 20 :]]
    gate = next((gate for gate in all_runs[0].gates if gate.metric == metric), None)
    format_axes(axes, "".join(title), "IQM over runs", grid[-1], gate)
    axes.set_ylim(*limits(np.concatenate(drawn), np.array([gate.bound if gate else drawn[0][-1]])))
