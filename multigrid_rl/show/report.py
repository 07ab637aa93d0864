"""Reports as files: kinds of folders, paths of pages, and overwriting."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from multigrid_rl.cli.output import refuse_to_overwrite, write_file
from multigrid_rl.cli.seeds import SEEDS_FILE, held_summary, read_request, run_path, state_of
from multigrid_rl.evaluation.cup_results import RESULTS_FILE, read_results
from multigrid_rl.evaluation.replays import ReplayError
from multigrid_rl.evaluation.seed_statistics import median_text
from multigrid_rl.evaluation.sets import final_value, final_window
from multigrid_rl.runs.reader import RunRecord, read_run
from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.show.figures import Chart, Line
from multigrid_rl.show.page import GENERATOR, render
from multigrid_rl.show.reference import build_reference, curves_of
from multigrid_rl.show.run_data import read_report
from multigrid_rl.show.run_page import run_page
from multigrid_rl.show.words import metric_title, unit_of
from multigrid_rl.tables import PAGES, find
from multigrid_rl.text import ConfigError, expected, one_line
from multigrid_rl.training.screen import warnings_on_screen

LOG = logging.getLogger(__name__)
#: Default name of a report, in its folder.
REPORT_FILE = "report.html"


def is_cup(folder: Path) -> bool:
    """Return whether ``folder`` holds a cup's results."""
    return (folder / RESULTS_FILE).is_file()


def write_report(
    folder: Path, output: Path | None, *, force: bool = False, games: int | None = None, films: bool = True
) -> Path:
    """Write the page of a run, of seeds or of a cup; arguments as below. Raises ``ConfigError``, also for others."""
    kind, options = "run", dict[str, Any](games=games, films=films)
    if is_cup(folder) or (folder / SEEDS_FILE).is_file():
        kind, options = "cup" if is_cup(folder) else "seeds", {}
        if games is not None:
            why = "a cup, whose games are played" if kind == "cup" else "several runs, of which each has a report"
            raise ConfigError(expected("--episodes", f"nothing for {folder}, {why}", games))
    elif not (folder / "metrics.jsonl").is_file():
        wanted = "the folder of a run, of seeds or a cup"
        raise ConfigError(expected(folder, wanted, "none of metrics.jsonl, seeds.json, results.json"))
    with warnings_on_screen():
        if kind == "run":
            options["reference"] = curves_of(read_run(folder))
        written: Path = find(PAGES, kind)(folder, output, force=force, **options)
    return written


def write_run_report(
    folder: Path,
    output: Path | None = None,
    *,
    force: bool = False,
    games: int | None = None,
    reference: Path | None = None,
    films: bool = True,
) -> Path:
    """Write the page of a training run, ``report.html`` in its folder by default; returns the file.

    Args:
        output: another file, which must be new unless ``force``.
        games: fresh games to play with its policy in each mode, see :func:`run_data.read_report`; 0 plays none.

    Raises ``ConfigError``: not a run, a damaged file, or an output that may not be written.
    """
    target = _target(folder, output, force=force)
    report = read_report(folder, games=games, reference=reference, films=films)
    if report.not_played:
        LOG.warning("no games to show, the policy could not be played: %s", one_line(report.not_played))
    return _write_page(target, run_page(report))


def write_cup_report(folder: Path, output: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of a cup like that of a run.

    Raises ``ConfigError``: no cup, a damaged file, or an output that may not be written.
    """
    target = _target(folder, output, force=force)
    path = folder / RESULTS_FILE
    try:
        return _write_page(target, cup_page(read_results(path)))
    except ReplayError as error:
        raise ConfigError(f"{path}: games: {error}") from error


def write_seeds_report(folder: Path, output: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of a folder of seeds like that of a run: every finished seed, median, interval, curves.

    Raises ``ConfigError``: no such folder, no finished seed, a damaged file, or an output that may not be written.
    """
    target = _target(folder, output, force=force)
    overrides, seeds = read_request(folder)
    runs = [read_run(run_path(folder, seed)) for seed in seeds if state_of(run_path(folder, seed)).done]
    if not runs:
        raise ConfigError(expected(folder, "a seed that is done", "none"))
    rows = [{**(run.verdict or {}), "seed": run.config["seed"]} for run in runs]
    metrics = list(dict.fromkeys(gate.metric for gate in runs[0].gates))  # one may have two bounds
    metrics += [name for name in runs[0].series if name.startswith("return_mean/") and name not in metrics]
    metrics = [name for name in metrics if all(name in run.series for run in runs)]  # a gate's may have no value
    ends = np.array([[final_value(run.series[name], final_window(run)) for name in metrics] for run in runs])
    sentences = [
        f"{metric_title(name)}: {median_text(values, '.4g')}." for name, values in zip(metrics, ends.T, strict=True)
    ]
    sentences.append(f"These are means over the last {final_window(runs[0]):,} steps of a run.")
    held = held_summary([row["env_steps_to_held"] for row in rows]) if runs[0].gates else "There are no gates."
    origin = {
        "Command": f"{' '.join(['multigrid-rl train', *overrides])} seeds={','.join(map(str, seeds))}",
        "Commit": ", ".join(sorted({str(run.provenance.get("commit")) for run in runs})),
        "Processor": str((runs[0].provenance.get("machine") or {}).get("processor")),
        "Folder": str(folder),
    }
    text = render(
        "seeds.html",
        kind=f"{len(runs)} of {len(seeds)} seeds \u00b7 {runs[0].config['scenario']['name']}",
        title=held.partition(".")[0],
        lead=" ".join([held.partition(". ")[2], *sentences]).strip(),
        rows=[{**row, "ends": values} for row, values in zip(rows, ends.tolist(), strict=True)],
        ends=[f"#{metric_title(name)}" for name in metrics],
        curves=_seed_curves(runs, metrics),
        origin=origin.items(),
        data=None,
    )
    return _write_page(target, text)


def _write_page(target: Path, text: str) -> Path:
    # A folder's name may contain bytes that are no text: the page shows a question mark.
    write_file(target, text.encode(errors="replace"))
    return target


def _seed_curves(runs: list[RunRecord], metrics: list[str]) -> list[Chart]:
    """Return a chart for each metric: the band over seeds, with the seeds that ended first and last."""
    try:
        reference = build_reference(runs, "seeds")
    except ConfigError:  # a single seed, or too short for a curve
        return []
    order = sorted(runs, key=lambda run: run.env_steps)
    ended = {"first": order[0], "last": order[-1]}.items()
    return [
        Chart(
            title=metric_title(name),
            unit=unit_of(name),
            lines=tuple(Line(f"seed {run.config['seed']}, which ended {k}", run.series[name]) for k, run in ended),
            x_max=order[-1].env_steps,
            gate=next((gate for gate in reference.gates if gate.metric == name), None),
            under=(reference, name),
        )
        for name in metrics
    ]


def _target(folder: Path, output: Path | None, *, force: bool) -> Path:
    """Return the path of the page. Called before games are played, so that an error loses none."""
    target = output if output is not None else folder / REPORT_FILE
    # A newer page replaces the one in the run's folder, but only a file that was written as a report.
    is_own_report = False
    with suppress(OSError), target.open("rb") as file:
        is_own_report = output is None and f'content="{GENERATOR}"'.encode() in file.read(2000)
    if not is_own_report:
        refuse_to_overwrite(target, force=force)
    return target
