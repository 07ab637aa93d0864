"""A run drawn over reference curves, as PNG. Figures are objects of their own: no display, no global state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from multigrid_rl.judge.curves import Reference, refuse_to_overwrite
from multigrid_rl.judge.runs import Array, CurveError, Run
from multigrid_rl.metrics import METRICS, matches
from multigrid_rl.show.figures import BLACK, BLUE, DPI, LARGE, NORMAL, SMALL, VERMILLION, save_figure, thousands


def save_overlay(run: Run, reference: Reference, path: Path, *, force: bool = False) -> None:
    """Draw ``run`` over ``reference`` into a PNG file.

    Raises:
        CurveError: the file exists already, unless ``force``; it cannot be written; nothing to draw.
    """
    refuse_to_overwrite(path, force=force)
    save_figure(draw_overlay(run, reference), path)


def draw_overlay(run: Run, reference: Reference) -> Figure:
    """One panel for each metric that a gate names; without gates one for each metric of the reference.

    Raises:
        CurveError: the run has none of them.
    """
    wanted = [gate.metric for gate in reference.gates] or list(reference.metrics)
    metrics = [metric for metric in dict.fromkeys(wanted) if metric in run.series]
    if not metrics:
        raise CurveError(f"{run.path}: reports none of {', '.join(wanted)}; allowed is a run of such a scenario")
    columns = min(2, len(metrics))
    rows = -(-len(metrics) // columns)
    # Title and legend take the same inches whatever the number of panels; one panel's legend needs a line more.
    below = 0.70 if columns > 1 else 0.95
    height = 3.6 * rows + 0.75 + below
    figure = Figure(figsize=(14.0 if columns > 1 else 9.0, height), dpi=DPI)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, metric in zip(panels, metrics, strict=False):
        _panel(axes, run, reference, metric)
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(metrics) - columns) : len(metrics)]:
        axes.set_xlabel("environment steps", fontsize=NORMAL)
        axes.tick_params(labelbottom=True)
    figure.text(0.5, 1 - 0.12 / height, _title(run, reference), fontsize=LARGE, ha="center", va="top")
    figure.text(0.5, 1 - 0.50 / height, _running(reference), fontsize=SMALL, ha="center", va="top")
    figure.legend(
        handles=_legend(reference), loc="lower center", ncols=columns + 1, fontsize=SMALL, frameon=False,
        bbox_to_anchor=(0.5, 0.08 / height),
    )  # fmt: skip
    figure.tight_layout(rect=(0, below / height, 1, 1 - 0.75 / height), h_pad=1.5, w_pad=2.0)
    return figure


def _title(run: Run, reference: Reference) -> str:
    seed = run.config.get("seed")
    return (
        f"{run.config['scenario']['name']}, seed {seed}, over the recipe {reference.name} ({len(reference.runs)} seeds)"
    )


def _running(reference: Reference) -> str:
    """How long the seeds ran, since behind a seed's end its curve is only its last value."""
    grid, seeds = reference.env_steps, len(reference.runs)
    whole = [steps for steps, running in zip(grid, reference.running, strict=True) if running == seeds]
    if reference.running[-1] == seeds:
        return f"all {seeds} seeds ran for {grid[-1]:,} environment steps"
    return f"all {seeds} seeds ran up to {max(whole, default=0):,} environment steps, the last up to {grid[-1]:,}"


def _panel(axes: Axes, run: Run, reference: Reference, metric: str) -> None:
    band, series, gate = reference.metrics[metric], run.series[metric], reference.gate_of(metric)
    grid = np.array(reference.env_steps)
    axes.fill_between(grid, band.min, band.max, color=BLUE, alpha=0.12, linewidth=0)
    axes.fill_between(grid, band.p10, band.p90, color=BLUE, alpha=0.28, linewidth=0)
    median = np.array(band.median)
    whole = np.array(reference.running) == len(reference.runs)
    last = int(whole.sum())  # runs never come back: the first so many points
    axes.plot(grid[:last], median[:last], color=BLUE, linewidth=2.2)
    axes.plot(grid[max(last - 1, 0) :], median[max(last - 1, 0) :], color=BLUE, linewidth=2.2, linestyle=(0, (1, 1)))
    axes.plot(series.env_steps, series.values, color=VERMILLION, linewidth=1.6)
    axes.plot(series.env_steps[-1:], series.values[-1:], color=VERMILLION, marker="o", markersize=7)
    bounds = []
    title = metric
    if gate is not None:
        axes.axhline(gate.bound, color=BLACK, linewidth=1.4, linestyle=(0, (6, 3)))
        bounds = [gate.bound]
        title = f"{metric}   (gate: {gate.comparison} {gate.bound:g})"
    axes.set_title(title, fontsize=NORMAL, fontweight="bold", loc="left")
    axes.set_ylabel(_unit(metric), fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: thousands(steps)))
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlim(0, max(float(grid[-1]), run.env_steps) * 1.02)
    low, high = _limits(np.concatenate([band.p10, band.p90, series.values]), np.array([*bounds, series.values[-1]]))
    axes.set_ylim(low, high)
    outside = int(((series.values < low) | (series.values > high)).sum())
    if outside:
        told = f"{outside} early report{'s' if outside > 1 else ''} of this run beyond the axis"
        axes.text(0.98, 0.03, told, transform=axes.transAxes, ha="right", fontsize=SMALL, style="italic")


def _unit(metric: str) -> str:
    """What stands at the axis: the unit of the metric, in full words where the glossary is terse."""
    pattern = next((pattern for pattern in METRICS if matches(metric, pattern)), None)
    unit = METRICS[pattern][1] if pattern else ""
    words = {"ratio": "ratio (1 is perfect)", "share": "share of episodes", "reward": "reward per episode"}
    return "steps per episode" if metric == "episode_len_mean" else words.get(unit, unit)


def _limits(values: Array, always: Array) -> tuple[float, float]:
    """Axis limits that show ``always`` and all but the wildest ``values``: one early outlier would flatten the rest."""
    most = np.percentile(values, (2, 98))
    reach = 0.5 * (most[1] - most[0])
    low = values.min() if values.min() >= most[0] - reach else most[0]
    high = values.max() if values.max() <= most[1] + reach else most[1]
    low, high = min(low, *always), max(high, *always)
    margin = 0.08 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def _legend(reference: Reference) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=VERMILLION, linewidth=1.6, marker="o", markersize=7, label="this run, and where it ended"),
        Line2D([], [], color=BLUE, linewidth=2.2, label="median of the recipe's seeds"),
    ]
    ended = len(reference.runs) - reference.running[-1]
    if ended:
        label = "median, seeds that ended held at their last value"
        handles.append(Line2D([], [], color=BLUE, linewidth=2.2, linestyle=(0, (1, 1)), label=label))
    if reference.gates:
        handles.append(Line2D([], [], color=BLACK, linewidth=1.4, linestyle=(0, (6, 3)), label="gate"))
    handles.append(Patch(color=BLUE, alpha=0.28, linewidth=0, label="10th to 90th percentile of the seeds"))
    handles.append(Patch(color=BLUE, alpha=0.12, linewidth=0, label="lowest to highest seed"))
    return handles
