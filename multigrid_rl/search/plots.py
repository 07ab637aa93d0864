"""Pictures of a search: parallel coordinates and importance, as PNG."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multigrid_rl.search.folder import SearchFolder
from multigrid_rl.search.outcomes import Outcome, ranked
from multigrid_rl.search.results import Importance, SearchResult
from multigrid_rl.search.space import LAST, Value, Variable
from multigrid_rl.show import figures

COORDINATES, IMPORTANCE = "parallel.png", "importance.png"
#: Continuous axes get this many numbers.
_TICKS = 5


def write_plots(folder: SearchFolder, result: SearchResult) -> list[Path]:
    """Draw what there is to draw; returns the files."""
    variables, drawn = folder.request.space.variables, {}
    if ranked(result.outcomes):
        title = f"{folder.request.name} on {folder.request.space.config.scenario.name}"
        drawn[folder.path / COORDINATES] = parallel_coordinates(variables, result, title)
    if result.importance.shares:
        drawn[folder.path / IMPORTANCE] = importance_bars(variables, result.importance)
    for path, figure in drawn.items():
        figures.save_figure(figure, path)
    return list(drawn)


def parallel_coordinates(variables: tuple[Variable, ...], result: SearchResult, title: str) -> Figure:
    """Draw one axis a variable on the scale it was drawn on, one line a trial; who held the gates stands out."""
    order = ranked(result.outcomes)
    worst_first = order[::-1]
    held = sum(bool(o.score and o.score.held) for o in order)
    size = (max(1.15 * len(variables) + 1.5, 7.0), 6.2)
    figure = figures.titled_figure(size, f"{title}: {len(order)} trials, {held} held all gates")
    axes = figure.subplots()
    best = set(result.winner.trials) if result.winner else set()
    # The best on top, and the winner above all.
    for outcome in sorted(worst_first, key=lambda outcome: outcome.spec.id in best):
        _line(axes, variables, outcome, winner=outcome.spec.id in best)
    for place, variable in enumerate(variables):
        axes.axvline(place, color=figures.BLACK, linewidth=0.8)
        for coordinate, value in ticks(variable):
            axes.annotate(
                _short(value),
                (place, coordinate),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=figures.SMALL - 2,
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )
    axes.set_xticks(range(len(variables)), [v.name for v in variables], rotation=25, ha="right", fontsize=figures.SMALL)
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(variables) - 0.4)
    axes.set_ylim(-0.03, 1.03)
    axes.spines[:].set_visible(False)
    figures.add_legend(figure, 3)
    return figure


def _line(axes: Axes, variables: tuple[Variable, ...], outcome: Outcome, *, winner: bool) -> None:
    held = outcome.score is not None and outcome.score.held
    point = outcome.spec.point
    height = [(v.level(point[v.key]) + 0.5) / v.levels if v.levels else point[v.key] for v in variables]
    colour, width, label = (figures.BLUE, 1.4, "held all gates") if held else (figures.GREY, 0.9, "did not")
    if winner:
        colour, width, label = figures.VERMILLION, 2.6, "winner"
    dashes: Any = "-" if held or winner else (0, (4, 2))
    axes.plot(range(len(variables)), height, linestyle=dashes, color=colour, linewidth=width, label=label)


def ticks(variable: Variable) -> list[tuple[float, Value]]:
    """Return the coordinates and values that an axis is labelled with."""
    levels = variable.levels
    if levels is not None and levels <= 2 * _TICKS:
        places = [(level + 0.5) / levels for level in range(levels)]
    else:
        places = np.linspace(0.0, LAST, _TICKS).tolist()
    return [(place, variable.value(place)) for place in places]


def _short(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if not 0.9 < value < 1 else f"{value:.4f}".rstrip("0")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return str(value)


def importance_bars(variables: tuple[Variable, ...], importance: Importance) -> Figure:
    """Draw one bar a variable, largest on top."""
    names = {variable.key: variable.name for variable in variables}
    rows = list(importance.shares.items())[::-1]
    figure = figures.titled_figure((8.0, 0.42 * len(rows) + 1.6), "")
    axes = figure.subplots()
    axes.barh([names[key] for key, _ in rows], [share for _, share in rows], color=figures.BLUE)
    axes.tick_params(labelsize=figures.SMALL)
    axes.set_xlabel("share of the difference between the best trials and all", fontsize=figures.NORMAL)
    axes.set_title(importance.note, fontsize=figures.NORMAL)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
