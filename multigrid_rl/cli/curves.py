"""The ``overlay`` and ``reference`` verbs: a run over its recipe's reference curves, and how those are made."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multigrid_rl.config import ConfigError, data_root
from multigrid_rl.runs.reader import ALL_GATES, Run, read_run
from multigrid_rl.runs.reference import (
    Comparison,
    Reference,
    build_reference,
    compare,
    load_reference,
    refuse_to_overwrite,
    save_reference,
)


def curves_folder() -> Path:
    """Where the project's own reference curves are, one file for each recipe that has some."""
    return data_root() / "configs" / "experiment" / "curves"


def find_reference(run: Run, given: str | None) -> Path:
    """The file of reference curves: as given by name or path, or of the run's own recipe.

    Raises:
        ConfigError: there is none.
    """
    if given is not None and (Path(given).is_file() or "/" in given or given.endswith(".json")):
        return Path(given)
    name = given if given is not None else run.config.get("experiment")
    if name is None:
        raise ConfigError(f"{run.path}: experiment=null, it followed no recipe; allowed is --reference NAME or FILE")
    path = curves_folder() / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in curves_folder().glob("*.json"))) or "none yet"
        raise ConfigError(f"reference {name}: no curves of that name; allowed is a file, or one of: {known}")
    return path


def overlay(folder: Path, given: str | None, output: Path, *, force: bool) -> None:
    """Draw a run over its reference and print how they compare.

    Raises:
        ConfigError: a run or reference that cannot be used, or an output file that exists, unless ``force``.
    """
    refuse_to_overwrite(output, force=force)
    run = read_run(folder)
    reference = load_reference(find_reference(run, given))
    rows = compare(run, reference)
    # Imported here: matplotlib takes a second, which a mistake above need not cost.
    from multigrid_rl.show.figures import draw_overlay, save_figure  # noqa: PLC0415

    save_figure(draw_overlay(run, reference), output)
    console = _console()
    seeds = ", ".join(map(str, reference.seeds))
    console.print(f"{folder} against {reference.name}: {reference.command}, seeds {seeds}")
    for line in _caveats(run, reference):
        console.print(line)
    console.print(comparison_table(rows))
    for row in rows:
        console.print(sentence(row))
    console.print(verdict_sentence(run, reference))
    console.print(f"drawn: {output}")


def make_reference(folders: list[Path], name: str, output: Path, *, force: bool) -> None:
    """Build reference curves out of finished runs and write them.

    Raises:
        ConfigError: runs that do not belong together, or an output file that exists, unless ``force``.
    """
    refuse_to_overwrite(output, force=force)
    reference = build_reference([read_run(folder) for folder in folders], name)
    save_reference(reference, output, force=force)
    held = sum(run.steps_to_held.get(ALL_GATES) is not None for run in reference.runs)
    _console().print(
        f"{output}: {len(reference.metrics)} metrics of {len(reference.runs)} runs "
        f"(seeds {', '.join(map(str, reference.seeds))}), {reference.env_steps[0]:,} to {reference.env_steps[-1]:,} "
        f"environment steps; all gates held by {held}; behind its end a run's last value is held forward "
        f"({reference.running[-1]} still running at the end)"
    )


def comparison_table(rows: list[Comparison]) -> Table:
    """One row for each metric."""
    table = Table(box=None, pad_edge=False)
    titles = ("metric", "in band", "usual", "at end", "median", "place", "held at", "median")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number in (0, 5) else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(
            row.metric,
            _share(row.inside),
            _share(row.own_inside),
            f"{row.last:.3g}",
            f"{row.median:.3g}",
            row.end,
            _steps(row.held) if row.gate else "",
            _steps(row.median_held) if row.gate else "",
        )
    return table


def sentence(row: Comparison) -> str:
    """One metric in plain words."""
    place = {
        "better": "better than the band",
        "worse": "worse than the band",
        "inside": "inside the band",
        "above": "above the band",
        "below": "below the band",
    }[row.end]
    if row.reports:
        expected = f" (its own seeds: {_share(row.own_inside)})" if row.own_inside is not None else ""
        told = f"{_share(row.inside)} of {row.reports} reports lie inside the reference's 10-90 % band{expected}"
    else:
        told = "no report lies within the reference's steps"
    told = f"{row.metric}: {told}; it ends at {row.last:.3g}, {place} (median {row.median:.3g})"
    return told + (f"; {_when(row.held, row.median_held)}." if row.gate else ".")


def verdict_sentence(run: Run, reference: Reference) -> str:
    """When all gates were held, against the reference."""
    if not reference.gates:
        return "The reference has no gates."
    if run.verdict is None:
        return "This run has no verdict: it is still going, or it was killed."
    return f"All gates: {_when(run.steps_to_held()[ALL_GATES], reference.median_to_held(ALL_GATES))}."


def _when(held: int | None, median: float | None) -> str:
    if held is None:
        return "not held" + (f" (reference: median {median:,.0f} steps)" if median else " (nor by the median seed)")
    if median is None:
        return f"held at {held:,} steps (the median seed never held it)"
    later = held / median - 1
    relation = "at the median" if abs(later) < 0.005 else f"{abs(later):.0%} {'later' if later > 0 else 'sooner'}"
    return f"held at {held:,} steps, {relation} (reference: median {median:,.0f})"


def _caveats(run: Run, reference: Reference) -> Iterator[str]:
    pairs = {
        "scenario": (run.config["scenario"]["name"], reference.scenario),
        "scheme": (run.config.get("scheme"), reference.scheme),
    }
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield f"note: {key}={ours} here, {theirs} in the reference"
    missing = [metric for metric in reference.metrics if metric not in run.series]
    if missing:
        yield f"note: this run does not report {', '.join(missing)}"


def _share(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{share:.0%}"


def _steps(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:,.0f}"


def _console() -> Console:
    # Where the output goes into a file, lines stay whole and the table gets the width that its numbers need.
    file = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=file, width=100 if file else None)
