"""Figures as PNG: a run over its recipe's reference curves, and two sets of runs. No display, no global state.

Helpers of all figures come first; a search draws its own figures with them.
"""

from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.evaluation.seeds import bootstrap_band, iqm
from multigrid_rl.evaluation.sets import HELD, RunSet, directions
from multigrid_rl.gates import Gate
from multigrid_rl.runs.reader import Array, Run
from multigrid_rl.runs.reference import Reference, write_file
from multigrid_rl.show.charts import limits, unit_of
from multigrid_rl.show.words import plural, thousands
from multigrid_rl.text import expected

# Okabe and Ito's palette: distinguishable with any colour vision; lines differ in style as well.
BLUE, VERMILLION, BLACK, GREY = "#0072B2", "#D55E00", "#000000", "#9a9a9a"
SMALL, NORMAL, LARGE = 11, 13, 16  # points
DPI = 120
_STEPS = FuncFormatter(lambda steps, _: thousands(steps))
_GATE: dict[str, Any] = {"color": BLACK, "linewidth": 1.4, "linestyle": (0, (7, 2, 1.5, 2)), "label": "gate"}
#: Lines of the two sides of a comparison.
_SIDES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": VERMILLION, "linestyle": (0, (5, 1.5))},
)
_Sides: TypeAlias = list[tuple[RunSet, list[Run]]]  # each with its runs of one scenario
#: Points of a comparison's curves, and panels; of several scenarios each gets its share of them.
_POINTS, _MOST_PANELS = 151, 6


# --- what all figures share


def titled_figure(size: tuple[float, float], title: str) -> Figure:
    """Return a figure of ``size`` inches with its title."""
    figure = Figure(figsize=size, dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.14, hspace=0.02, wspace=0.01)
    figure.suptitle(title, fontsize=LARGE)
    return figure


def panel_grid(panels: int, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels in one or two columns."""
    columns = min(2, panels)
    rows = -(-panels // columns)
    figure = titled_figure((14.0 if columns > 1 else 9.0, 3.6 * rows + 1.5), title)
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in every[panels:]:
        axes.set_visible(False)
    return figure, list(every[:panels])


def format_axes(axes: Axes, title: str, unit: str, end: float, gate: Gate | None = None) -> None:
    """Format title, axes and gate of curves over environment steps; the y limits are unchanged."""
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


def add_legend(figure: Figure, columns: int, title: str = "") -> None:
    """Put everything that has a label into one legend below the panels, each label once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False,
        title=title or None, title_fontsize=SMALL,
    )  # fmt: skip


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG file, in a new folder if necessary; replaces an existing file. Raises ``ConfigError``."""
    image = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(image, format="png")
    write_file(path, image.getvalue())


def draw_best_responses(player: str, curves: dict[str, list[tuple[int, float]]]) -> Figure:
    """Return win rates (steps, share) of best responses to a player while they train, by their names."""
    figure, (axes,) = panel_grid(1, f"Best responses to {player}")
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), label=name, **_SIDES[number % 2], alpha=0.85)
    axes.axhline(0.5, color=GREY, linewidth=1)
    format_axes(axes, "games won", "share", max(steps for points in curves.values() for steps, _ in points))
    axes.set_ylim(0, 1)
    add_legend(figure, 3)
    return figure


# --- a run over reference curves


def draw_overlay(run: Run, reference: Reference, *, alike: bool) -> Figure:
    """Return a panel for each metric that a gate names, else of the reference. Raises ``ConfigError`` without any.

    ``alike``: the run has the recipe's values.
    """
    wanted = [gate.metric for gate in reference.gates] or list(reference.metrics)
    metrics = [metric for metric in dict.fromkeys(wanted) if metric in run.series]
    if not metrics:
        raise ConfigError(expected(run.path, f"a run that reports {' or '.join(wanted)}", "none of them"))
    seeds = len(reference.runs)
    scenario, seed = run.config["scenario"]["name"], run.config.get("seed")
    who = f"{scenario}, seed {seed}" + ("" if alike else ", with other values")
    title = f"{who}, over the recipe {reference.name} ({seeds} seeds)"
    figure, panels = panel_grid(len(metrics), title)
    for axes, metric in zip(panels, metrics, strict=True):
        _overlay_panel(axes, run, reference, metric)
    add_legend(figure, 3 if len(metrics) > 1 else 2, running_words(reference))
    return figure


def running_words(reference: Reference) -> str:
    """Return how long the seeds ran, since after a seed's end its curve repeats its last value."""
    grid, seeds = reference.env_steps, len(reference.runs)
    if reference.whole == len(grid):
        return f"all {seeds} seeds ran for {grid[-1]:,} environment steps"
    whole = grid[reference.whole - 1] if reference.whole else 0
    return f"all {seeds} seeds ran up to {whole:,} environment steps, the last up to {grid[-1]:,}"


def _overlay_panel(axes: Axes, run: Run, reference: Reference, metric: str) -> None:
    band, series, gate = reference.metrics[metric], run.series[metric], reference.gate_of(metric)
    grid, median = np.array(reference.env_steps, np.float64), np.array(band.median)
    last = reference.whole
    held = slice(max(last - 1, 0), None)
    axes.plot(
        *series, color=VERMILLION, linewidth=1.6, marker="o", markevery=[-1], markersize=7, zorder=3,
        label="this run, and where it ended",
    )  # fmt: skip
    axes.plot(grid[:last], median[:last], color=BLUE, linewidth=2.2, label="median of the recipe's seeds")
    if last < len(grid):
        label = "median, seeds that ended held at their last value"
        axes.plot(grid[held], median[held], color=BLUE, linewidth=2.2, linestyle=(0, (1, 1)), label=label)
    fill(axes, grid, (band.p10, band.p90), 0.28, color=BLUE, label="10th to 90th percentile of the seeds")
    fill(axes, grid, (band.min, band.max), 0.12, color=BLUE, label="lowest to highest seed")
    format_axes(axes, metric, unit_of(metric), max(grid[-1], run.env_steps), gate)
    always = np.array([series.values[-1], *([gate.bound] if gate else [])])
    low, high = limits(np.concatenate([band.p10, band.p90, series.values]), always)
    axes.set_ylim(low, high)
    outside = int(((series.values < low) | (series.values > high)).sum())
    if outside:
        note = f"{outside} early report{'s'[: outside != 1]} of this run beyond the axis"
        axes.text(0.98, 0.03, note, transform=axes.transAxes, ha="right", fontsize=SMALL, style="italic")


# --- two sets of runs


def draw_comparison(ours: RunSet, theirs: RunSet, rng: np.random.Generator) -> Figure:
    """Return IQM curves with bootstrap bands: runs that have held all gates, then each compared metric."""
    wanted = comparison_panels(ours, theirs)
    title = f"{', '.join(ours.by_scenario)}: {ours.title} against {theirs.title}"
    figure, panels = panel_grid(len(wanted), title)
    for axes, (scenario, metric) in zip(panels, wanted, strict=True):
        sides = [(runs, runs.by_scenario[scenario]) for runs in (ours, theirs)]
        where = f"{scenario}: " if len(ours.by_scenario) > 1 else ""
        if metric == HELD:
            _held_panel(axes, sides, where, rng)
        else:
            _metric_panel(axes, sides, (where, metric), rng)
    first = panels[0]
    first.plot([], [], color=BLACK, linewidth=1.0, label="thin: some runs have ended, each counts with its last value")
    fill(first, np.zeros(1), (0, 0), 0.18, color=BLACK, label="95 % bootstrap interval over runs")
    add_legend(figure, 3 if len(panels) > 1 else 1)
    return figure


def comparison_panels(ours: RunSet, theirs: RunSet) -> list[tuple[str, str]]:
    """Return (scenario, metric) of each panel, :data:`HELD` first; with several scenarios fewer metrics of each."""
    each = max(_MOST_PANELS // len(ours.by_scenario), 1)
    panels = []
    for name in ours.by_scenario:
        runs = (*ours.by_scenario[name], *theirs.by_scenario[name])
        metrics = ([HELD] if all(run.gates for run in runs) else []) + list(directions(runs))
        panels += [(name, metric) for metric in metrics[:each]]
    return panels


def _side_label(side: RunSet) -> str:
    return f"{side.title}, {plural(len(side.runs), 'run')}"


def _held_panel(axes: Axes, sides: _Sides, where: str, rng: np.random.Generator) -> None:
    grid = np.linspace(0, max(run.env_steps for _, runs in sides for run in runs), _POINTS)
    for (side, runs), style in zip(sides, _SIDES, strict=True):
        steps = [(run.verdict or {}).get(HELD) for run in runs]
        held = np.array([grid >= (np.inf if s is None else s) for s in steps], np.float64)  # (n, points)
        share, low, high = bootstrap_band(held, rng, lambda rows: rows.mean(axis=-1))
        fill(axes, grid, (low, high), 0.18, color=style["color"], step="post")
        axes.step(grid, share, linewidth=2.0, where="post", label=_side_label(side), **style)
    axes.set_ylim(-0.03, 1.03)
    format_axes(axes, f"{where}runs that have held all gates", "share of runs", grid[-1])


def _metric_panel(axes: Axes, sides: _Sides, title: tuple[str, str], rng: np.random.Generator) -> None:
    all_runs, metric = [run for _, runs in sides for run in runs], title[1]
    start = max(run.series[metric].env_steps[0] for run in all_runs)
    grid = np.linspace(start, max(run.env_steps for run in all_runs), _POINTS)
    shown: list[Array] = []
    for (side, runs), style in zip(sides, _SIDES, strict=True):
        # After a run's end its last value is repeated.
        values = np.stack([np.interp(grid, *run.series[metric]) for run in runs])  # (n, points)
        middle, low, high = bootstrap_band(values, rng, iqm)
        fill(axes, grid, (low, high), 0.18, color=style["color"])
        whole = grid <= min(run.env_steps for run in runs)
        last = max(int(whole.sum()) - 1, 0)
        axes.plot(grid[whole], middle[whole], linewidth=2.0, label=_side_label(side), **style)
        axes.plot(grid[last:], middle[last:], linewidth=1.0, **style)
        shown += [middle, low[len(low) // 20 :], high[len(high) // 20 :]]
    gate = next((gate for gate in all_runs[0].gates if gate.metric == metric), None)
    format_axes(axes, "".join(title), "IQM over runs", grid[-1], gate)
    axes.set_ylim(*limits(np.concatenate(shown), np.array([gate.bound if gate else shown[0][-1]])))
