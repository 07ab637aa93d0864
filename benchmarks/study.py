"""A study: arms times seeds, trained, judged on fresh episodes, and summed up on a page.

``python -m benchmarks.study policy-gradients`` reads ``benchmarks/studies/policy-gradients.yaml``, trains what is not
trained yet below ``runs/studies/``, and writes ``runs/pages/policy-gradients.md`` with its figures; sections of
groups that were not trained there stay as they are. Statistics as Agarwal et al. 2021
(https://arxiv.org/abs/2108.13264): the interquartile mean, intervals by the bootstrap over seeds, and the probability
that a run of one arm beats a run of another.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.study_runs import Job, Study, jobs_of, prepare, read_study, run_study
from benchmarks.tables import FRESH, made_on, table
from multigrid_rl.cores import available_cpus
from multigrid_rl.evaluation.seed_statistics import ENOUGH, improvement_interval, iqm, iqm_interval, permutation_p
from multigrid_rl.runs.reader import read_provenance
from multigrid_rl.show.figures import add_legend, fill, format_axes, panel_grid, save_figure

PAGES = Path("runs/pages")
#: Runs that took long, so that further seeds may come from another machine or day.
KEPT = Path("docs/results/studies")
#: Reports behind one mean return where it is asked whether a run recovers.
_STRETCH = 5
#: What a claim compares.
_MODES = {"draw": "after training", "argmax": "after training, likeliest action", "training": "over training",
          "last": f"last {_STRETCH} reports"}  # fmt: skip
#: Columns about a run's updates: name, metric, and whether the last value counts or the mean.
_UPDATES = (
    ("length at the end", "episode_len_mean", True),
    ("KL of an update", "approx_kl/agent_0", False),
    ("clipped", "clip_fraction/agent_0", False),
    ("entropy at the end", "entropy/agent_0", True),
)
#: Points of a curve.
_POINTS = 40
_KEPT_POINTS = 150
_RESAMPLES = 2000
_DEALS = 10_000
#: What a run must have lost to be asked whether it regains it.
_FALL = 100
_RETURN = "return_mean/agent_0"
_TITLES = {_RETURN: "Mean return of the episodes played", "entropy/agent_0": "Entropy of the policy",
           "approx_kl/agent_0": "KL of an update, mean of its minibatches",
           "learner/agent_0/policy_loss": "Policy loss", "learner/agent_0/vf_loss": "Value loss"}  # fmt: skip
_UNITS = {_RETURN: "reward", "approx_kl/agent_0": "nats", "entropy/agent_0": "nats"}
#: The last section of a page.
_CLAIMS = "Which is better"
Curve = tuple[NDArray[Any], NDArray[Any]]


class Arm(NamedTuple):
    """Results of one arm, one entry per seed."""

    results: list[dict[str, float]]
    curves: list[Curve]  # environment steps and mean return of each report
    updates: list[list[float]]  # the values named in ``_UPDATES``
    others: dict[str, list[Curve]]  # the same of other metrics
    made: list[dict[str, Any]] = []  # noqa: RUF012 - where each was made; never changed

    def median(self, key: str) -> float:
        """Return the median over seeds; NaN for what runs of before did not keep."""
        return float(np.median([result.get(key, float("nan")) for result in self.results]))

    def scores(self, mode: str = "draw", until: float = np.inf) -> NDArray[np.float64]:
        """Return a number for each seed.

        Args:
            mode: of ``_MODES``: mean return of fresh episodes after training, over training, or of its last reports.
            until: environment steps at which training is taken to end.
        """
        if mode not in ("training", "last"):
            return np.array([result[mode] for result in self.results])
        curves = [(steps[steps <= until], values[steps <= until]) for steps, values in self.curves]
        if mode == "last":
            return np.array([recovery(values)[2] for _, values in curves])
        grids = (np.linspace(0, steps[-1], 500) if len(steps) else steps for steps, _ in curves)
        return np.array([np.interp(g, *c).mean() if len(g) else np.nan for g, c in zip(grids, curves, strict=True)])


def recovery(returns: NDArray[Any]) -> list[float]:
    """Return the best mean of ``_STRETCH`` reports in a row, the lowest one after it, and the last one."""
    means = np.convolve(returns, np.full(_STRETCH, 1 / _STRETCH), "valid") if len(returns) >= _STRETCH else returns
    if not len(means):
        return [float("nan")] * 3
    best = int(means.argmax())
    return [float(means[best]), float(means[best:].min()), float(means[-1])]


def read_arms(
    jobs: Sequence[Job], metrics: Iterable[str] = (), kept: Sequence[dict[str, Any]] = ()
) -> tuple[dict[str, Arm], list[dict[str, Any]]]:
    """Read what finished; returns arms, and a record of each run that they are made of.

    Args:
        jobs: runs here; those that are not done are left out.
        metrics: names of metrics whose curves are read, beside returns.
        kept: records of runs that finished elsewhere; a run here stands before them.
    """
    known = {(record["arm"], record["seed"]): record for record in kept}
    for job in jobs:
        if (job.folder / "study.json").is_file():
            known[job.arm, job.seed] = _record(job, metrics)
    records = sorted(known.values(), key=lambda record: record["seed"])
    arms: dict[str, Arm] = {}
    for record in records:
        arm = arms.setdefault(record["arm"], Arm([], [], [], {}, []))
        curves = {metric: (np.array(steps), np.array(values)) for metric, (steps, values) in record["curves"].items()}
        arm.results.append(record["result"])
        arm.curves.append(curves.pop(_RETURN))
        arm.made.append(record["made"])
        arm.updates.append([float("nan") if value is None else value for value in record["updates"]])
        for metric, curve in curves.items():
            arm.others.setdefault(metric, []).append(curve)
    return arms, records


def _record(job: Job, metrics: Iterable[str]) -> dict[str, Any]:
    """Return what pages and figures need of a run that finished."""
    with (job.folder / "metrics.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    curves = {metric: [column.tolist() for column in _curve(rows, metric)] for metric in (_RETURN, *sorted(metrics))}
    return {
        "arm": job.arm,
        "seed": job.seed,
        "result": json.loads((job.folder / "study.json").read_text(encoding="utf-8")),
        "curves": curves,
        "updates": [_summarise(rows, metric, last=last) for _, metric, last in _UPDATES],
        "made": read_provenance(job.folder),
    }


def keep(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Write records, a line a run, with at most ``_KEPT_POINTS`` points of each curve."""
    lines = []
    for record in records:
        curves = {}
        for metric, (steps, values) in record["curves"].items():
            which = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _KEPT_POINTS)).astype(int))
            curves[metric] = [[steps[k] for k in which], [float(f"{values[k]:.5g}") for k in which]]
        # JSON has no NaN.
        updates = [None if value is None or np.isnan(value) else value for value in record["updates"]]
        lines.append(json.dumps(record | {"curves": curves, "updates": updates}, allow_nan=False))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _curve(rows: list[dict[str, Any]], metric: str) -> Curve:
    known = [row for row in rows if row.get(metric) is not None]
    steps, values = ([row[name] for row in known] for name in ("env_steps", metric))
    return np.array(steps), np.array(values)


def _summarise(rows: list[dict[str, Any]], metric: str, *, last: bool) -> float:
    values = [row[metric] for row in rows if row.get(metric) is not None] or [float("nan")]
    return float(values[-1] if last else np.mean(values))


def draw_group(study: Study, group: dict[str, Any], arms: dict[str, Arm]) -> Figure:
    """Draw the curves of a group: interquartile mean and quartiles, at steps where half of the seeds were measured."""
    metrics, until = (_RETURN, *group.get("metrics", ())), group.get("until", np.inf)
    figure, panels = panel_grid(len(metrics), f"{study.title}: {group['title']}")
    for axes, metric in zip(panels, metrics, strict=True):
        end = 0.0
        for name in [name for name in group["arms"] if name in arms]:
            curves = arms[name].curves if metric == _RETURN else arms[name].others.get(metric, [])
            curves = [(steps[steps <= until], values[steps <= until]) for steps, values in curves]
            end = max(end, _draw_arm(axes, name, [curve for curve in curves if len(curve[0])]))
        format_axes(axes, _TITLES.get(metric, metric), _UNITS.get(metric, ""), end or 1.0)
        if metric == "approx_kl/agent_0":
            axes.set(yscale="log", ylim=(1e-5, 1e2))  # a policy that has collapsed moves by more, or by nothing
        axes.set_xlabel(group.get("axis", "environment steps"))
    add_legend(figure, 4)
    return figure


def _draw_arm(axes: Axes, name: str, curves: list[Curve]) -> float:
    """Draw the curves of one arm; returns where they end."""
    if not curves:
        return 0.0
    steps = np.linspace(min(curve[0][0] for curve in curves), max(curve[0][-1] for curve in curves), _POINTS)
    grid = np.array([np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in curves])
    known = np.isfinite(grid).sum(axis=0) >= len(curves) / 2  # the last report of a single seed is no curve
    steps, seeds = steps[known], [row[np.isfinite(row)] for row in grid.T[known]]
    (line,) = axes.plot(steps, [iqm(row) for row in seeds], label=name, linewidth=1.6)
    low, high = np.transpose([np.quantile(row, (0.25, 0.75)) for row in seeds])
    fill(axes, steps, (low, high), 0.15, color=line.get_color())
    return float(steps[-1])


def lines_of(study: Study, arms: dict[str, Arm], command: str, before: str = "") -> Iterator[str]:
    """Yield the lines of the page; sections without ``arms`` stay as in ``before``, the page as it was."""
    kept = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in before.split("\n## ")[1:]}
    yield f"# {study.title}\n\n{study.text.strip()}\n"
    yield (
        f"Scores are mean returns of {study.episodes} fresh episodes after training, with drawn actions unless the "
        "column says otherwise. IQM is the interquartile mean over seeds, with its 95 % interval by the bootstrap over "
        f"seeds, from {ENOUGH} seeds on. Bands of the figures are quartiles over seeds.\n"
    )
    for group in study.groups:
        if arms.keys() & group["arms"].keys():
            yield from _section(study, group, arms, command)
        elif group["title"] in kept:
            yield kept[group["title"]]
    if study.came:
        yield f"{study.came.strip()}\n"
    yield from list(_claims(study, arms)) or [kept[title] for title in (_CLAIMS,) if title in kept]


def _section(study: Study, group: dict[str, Any], arms: dict[str, Arm], command: str) -> Iterator[str]:
    yield f"## {group['title']}\n\n{group['text'].strip()}\n"
    every = " ".join([*study.common, "seed=N"])
    shown = [name for name in group["arms"] if name in arms]
    made = command.format(seeds=max(len(arms[name].results) for name in shown), arms=" ".join(shown))
    yield f"Made by `{made}`. Every run: `{every}`, and its arm's overrides."
    yield made_on([row for name in shown for row in arms[name].made])
    yield f"\n![{group['title']}]({_figure_name(study, group)})\n"
    yield from _table(study, group, arms)
    updates_of = {name: arms[name].updates for name in shown if arms[name].updates}
    if updates_of:
        medians = {name: np.median(updates, axis=0) for name, updates in updates_of.items()}
        rows = [[name, *("-" if np.isnan(x) else f"{x:.4g}" for x in row)] for name, row in medians.items()]
        yield from table(["medians over seeds", *(name for name, *_ in _UPDATES)], rows)
    yield ""
    if group.get("recovery"):
        yield from _recoveries(group, arms)
    if group.get("came"):
        yield f"{group['came'].strip()}\n"


def _table(study: Study, group: dict[str, Any], arms: dict[str, Arm]) -> Iterator[str]:
    heads = ["arm", "overrides", "seeds", "IQM", "95 %", "smallest", "largest", "IQM, likeliest action"]
    heads += ["IQM over training", "steps/s", "seconds", "ms an action"]
    heads += ["score", "score, likeliest action"] * (study.scale is not None)
    rows = []
    for name, overrides in group["arms"].items():
        if name not in arms:
            continue
        arm, scores = arms[name], arms[name].scores()
        # An arm that several groups show has one interval.
        middle, low, high = iqm_interval([scores], _RESAMPLES, np.random.default_rng(0))
        likeliest = float(iqm(arm.scores("argmax")))
        numbers = (scores.min(), scores.max(), likeliest, iqm(arm.scores("training")), arm.median("env_steps_per_s"))
        told = f"{low:,.0f} to {high:,.0f}" if len(scores) >= ENOUGH else "-"
        cells = [str(len(scores)), f"{middle:,.0f}", told, *(f"{x:,.0f}" for x in numbers)]
        latency = arm.median("ms_per_action")
        cells += [f"{arm.median('seconds'):,.0f}", "-" if np.isnan(latency) else f"{latency:.2g}"]
        cells += [f"{study.score(value):.3f}" for value in (middle, likeliest) if study.scale is not None]
        rows.append([name, f"`{' '.join(overrides) or '-'}`", *cells])
    yield from table(heads, rows, left=(0, 1))
    yield ""


def _recoveries(group: dict[str, Any], arms: dict[str, Arm]) -> Iterator[str]:
    rows = []
    for name in [name for name in group["arms"] if name in arms]:
        found = np.array([recovery(returns) for _, returns in arms[name].curves])
        best, lowest, last = found.T
        fell = best - lowest >= _FALL
        regained = fell & (last - lowest >= (best - lowest) / 2)
        counts = [f"{fell.sum()} of {len(fell)}", f"{regained.sum()} of {fell.sum()}"]
        rows.append([name, *(f"{x:,.0f}" for x in np.nanmedian(found, axis=0)), *counts])
    heads = ["medians over seeds", f"best {_STRETCH} reports", "lowest after", "at the end"]
    heads += [f"fell by {_FALL} and more", "regained half of it by the end"]
    yield from table(heads, rows)
    yield ""


def _claims(study: Study, arms: dict[str, Arm]) -> Iterator[str]:
    claims = [claim for claim in study.claims if claim["better"] in arms and claim["worse"] in arms]
    if not claims:
        return
    rows, rng = [], np.random.default_rng(0)
    yield f"## {_CLAIMS}\n"
    yield (
        "Probability that a run of the first beats a run of the second, with its 95 % interval; p is that of a "
        "permutation test of this probability against 1/2, two-sided. "
        f"A claim needs {ENOUGH} seeds.\n"
    )
    for claim in claims:
        mode = claim.get("score", "draw")
        until = claim.get("until", np.inf)
        better, worse = ([arms[claim[side]].scores(mode, until)] for side in ("better", "worse"))
        share, low, high = improvement_interval(better, worse, _RESAMPLES, rng, smaller=False)
        cut = f", {until:,} steps" if "until" in claim else ""
        sides = [claim["better"], claim["worse"], _MODES[mode] + cut]
        p = permutation_p(better, worse, _DEALS, rng, smaller=False)
        told = "< .001" if p < 0.001 else f"{p:.3f}"
        cells = [f"{share:.2f}", f"{low:.2f} to {high:.2f}", told]
        if min(len(*better), len(*worse)) < ENOUGH:
            cells = ["-", "-", "too few seeds"]
        rows.append([*sides, *cells, claim["expected"]])
    yield from table(["first", "second", "score", "probability", "95 %", "p", "expected"], rows, left=(0, 1, 2, 6))


def _figure_name(study: Study, group: dict[str, Any]) -> str:
    return f"{study.name}-{group['name']}.png"


def main() -> None:
    """Run a study and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--fresh", type=int, nargs="?", const=FRESH, help=f"from a seed that nobody tuned on, {FRESH}")
    parser.add_argument("--arms", nargs="+", help="train these alone; the page shows all that were trained")
    parser.add_argument("--jobs", type=int, default=available_cpus())
    parser.add_argument("--folder", type=Path, default=Path("runs/studies"))
    parser.add_argument("--keep", action="store_true", help=f"write finished runs to {KEPT}/NAME.jsonl, too")
    parser.add_argument("--page-only", action="store_true", help="write the page of what was trained already")
    options = parser.parse_args()
    study = read_study(options.name)
    first = options.fresh or 0
    jobs = jobs_of(study, range(first, first + options.seeds), options.folder / options.name)
    chosen = [job for job in jobs if options.arms is None or job.arm in options.arms]
    if not options.page_only:
        prepare(study, options.folder / study.name)
    failed = [] if options.page_only else run_study(chosen, options.jobs, options.folder / study.name / "processes.log")
    file = KEPT / f"{study.name}.jsonl"
    kept = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    arms, records = read_arms(jobs, study.metrics, [json.loads(line) for line in kept])
    if options.keep:
        keep(records, file)
    PAGES.mkdir(parents=True, exist_ok=True)
    for group in study.groups:
        if arms.keys() & group["arms"].keys():
            save_figure(draw_group(study, group, arms), PAGES / _figure_name(study, group))
    fresh = "" if options.fresh is None else " --fresh" if first == FRESH else f" --fresh {first}"
    command = f"make study NAME={study.name} ARGS='--seeds {{seeds}}{fresh} --arms {{arms}}'"
    page = PAGES / f"{study.name}.md"
    lines = lines_of(study, arms, command, page.read_text(encoding="utf-8") if page.exists() else "")
    page.write_text("\n".join(list(lines)).rstrip() + "\n", encoding="utf-8")
    print(f"saved: {PAGES / study.name}.md")
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
