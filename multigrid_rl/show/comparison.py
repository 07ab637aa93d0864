"""Two sets of runs over environment steps, as PNG: IQM curves and shares that held, with bootstrap bands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from multigrid_rl.gates import Gate
from multigrid_rl.judge.curves import refuse_to_overwrite
from multigrid_rl.judge.runs import Array, Run
from multigrid_rl.judge.seeds import iqm
from multigrid_rl.judge.sets import HELD, RunSet, directions
from multigrid_rl.show.figures import BLACK, BLUE, DPI, LARGE, NORMAL, SMALL, VERMILLION, save_figure, thousands

POINTS = 151
BAND_REPS = 1000
Style: TypeAlias = Any  # what matplotlib takes as a line style
_COLOURS: tuple[tuple[str, Style], ...] = ((BLUE, "-"), (VERMILLION, (0, (5, 1.5))))  # told apart by style as well
#: Panels of one figure; of several scenarios each gets its share of them.
_MOST_PANELS = 6


def save_comparison(ours: RunSet, theirs: RunSet, path: Path, rng: np.random.Generator, *, force: bool) -> None:
    """Draw two sets into a PNG file.

    Raises:
        CurveError: the file exists already, unless ``force``; it cannot be written.
    """
    refuse_to_overwrite(path, force=force)
    save_figure(draw_comparison(ours, theirs, rng), path)


def draw_comparison(ours: RunSet, theirs: RunSet, rng: np.random.Generator) -> Figure:
    """One panel for the share of runs that have held their gates, one for each metric that is compared."""
    wanted = panels(ours, theirs)
    columns = min(2, len(wanted))
    rows = -(-len(wanted) // columns)
    height = 3.4 * rows + 1.2
    figure = Figure(figsize=(7.0 * columns, height), dpi=DPI)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    several = len(ours.by_scenario) > 1
    for axes, (scenario, metric) in zip(grid, wanted, strict=False):
        sides = [runs.by_scenario[scenario] for runs in (ours, theirs)]
        if metric == HELD:
            _held_panel(axes, sides, rng)
        else:
            _metric_panel(axes, sides, metric, rng)
        title = axes.get_title(loc="left")
        axes.set_title(f"{scenario}: {title}" if several else title, fontsize=NORMAL, fontweight="bold", loc="left")
    for axes in grid[len(wanted) :]:
        axes.set_visible(False)
    figure.text(0.5, 1 - 0.12 / height, _title(ours, theirs), fontsize=LARGE, ha="center", va="top")
    handles = _legend(ours, theirs)
    figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=SMALL, frameon=False)
    figure.tight_layout(rect=(0, 0.8 / height, 1, 1 - 0.5 / height), h_pad=1.5, w_pad=2.0)
    return figure


def panels(ours: RunSet, theirs: RunSet) -> list[tuple[str, str]]:
    """(scenario, metric) of each panel, :data:`HELD` first; of several scenarios fewer metrics of each."""
    scenarios = list(ours.by_scenario)
    each = max(_MOST_PANELS // len(scenarios), 1)
    found = []
    for name in scenarios:
        runs = (*ours.by_scenario[name], *theirs.by_scenario[name])
        metrics = ([HELD] if all(run.gates for run in runs) else []) + list(directions(runs))
        found += [(name, metric) for metric in metrics[:each]]
    return found


def _title(ours: RunSet, theirs: RunSet) -> str:
    return f"{', '.join(ours.by_scenario)}: {ours.title} against {theirs.title}"


def _ends(sides: list[list[Run]]) -> int:
    return max(run.env_steps for runs in sides for run in runs)


def _held_panel(axes: Axes, sides: list[list[Run]], rng: np.random.Generator) -> None:
    grid = np.linspace(0, _ends(sides), POINTS)
    for runs, (colour, style) in zip(sides, _COLOURS, strict=True):
        steps = [(run.verdict or {}).get(HELD) for run in runs]
        held = np.array([grid >= (np.inf if s is None else s) for s in steps], np.float64)  # (n, points)
        share, low, high = curve(held, rng, lambda rows: rows.mean(axis=-1))
        axes.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0, step="post")
        axes.step(grid, share, color=colour, linestyle=style, linewidth=2.0, where="post")
    axes.set_ylim(-0.03, 1.03)
    _dress(axes, "runs that have held all gates", "share of runs", grid[-1])


def _metric_panel(axes: Axes, sides: list[list[Run]], metric: str, rng: np.random.Generator) -> None:
    start = max(run.series[metric].env_steps[0] for runs in sides for run in runs)
    grid = np.linspace(start, _ends(sides), POINTS)
    shown: list[Array] = []
    for runs, (colour, style) in zip(sides, _COLOURS, strict=True):
        # Behind a run's end its last value is held forward.
        values = np.stack([np.interp(grid, *run.series[metric]) for run in runs])  # (n, points)
        middle, low, high = curve(values, rng)
        axes.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
        whole = grid <= min(run.env_steps for run in runs)
        axes.plot(grid[whole], middle[whole], color=colour, linestyle=style, linewidth=2.0)
        last = max(int(whole.sum()) - 1, 0)
        axes.plot(grid[last:], middle[last:], color=colour, linestyle=style, linewidth=1.0)
        shown += [middle, low[len(low) // 20 :], high[len(high) // 20 :]]
    gate = _gate(sides[0][0], metric)
    if gate is not None:
        axes.axhline(gate.bound, color=BLACK, linewidth=1.4, linestyle=(0, (1, 2)))
    _limit(axes, np.concatenate(shown), gate)
    _dress(axes, metric + (f"   (gate: {gate.comparison} {gate.bound:g})" if gate else ""), "IQM over runs", grid[-1])


def curve(
    values: Array, rng: np.random.Generator, statistic: Callable[[Array], Array] = iqm
) -> tuple[Array, Array, Array]:
    """A statistic over runs of ``values`` (n, points), and its 95 % bootstrap band; whole runs are resampled."""
    drawn = rng.integers(len(values), size=(BAND_REPS, len(values)))
    # Point by point: all samples of a long curve at once would take hundreds of megabytes.
    samples = np.stack([statistic(column[drawn]) for column in values.T])  # (points, reps)
    low, high = np.quantile(samples, (0.025, 0.975), axis=1)
    return statistic(values.T), low, high


def _gate(run: Run, metric: str) -> Gate | None:
    return next((gate for gate in run.gates if gate.metric == metric), None)


def _limit(axes: Axes, values: Array, gate: Gate | None) -> None:
    # The first reports of untrained networks would flatten all that follows.
    low, high = np.percentile(values, (2, 98))
    if gate is not None:
        low, high = min(low, gate.bound), max(high, gate.bound)
    margin = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _dress(axes: Axes, title: str, unit: str, end: float) -> None:
    axes.set_title(title, loc="left")
    axes.set_ylabel(unit, fontsize=NORMAL)
    axes.set_xlabel("environment steps", fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: thousands(steps)))
    axes.grid(visible=True, alpha=0.25)
    axes.set_xlim(0, end * 1.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(ours: RunSet, theirs: RunSet) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for runs, (colour, style) in zip((ours, theirs), _COLOURS, strict=True):
        label = f"{runs.title}, {len(runs.runs)} runs"
        handles.append(_line(colour, style, 2.0, label))
    handles.append(_line(BLACK, "-", 1.0, "thin: some runs have ended, each counts with its last value"))
    handles.append(Patch(color=BLACK, alpha=0.18, linewidth=0, label="95 % bootstrap interval over runs"))
    return handles


def _line(colour: str, style: Style, width: float, label: str) -> Line2D:
    return Line2D([], [], color=colour, linestyle=style, linewidth=width, label=label)
