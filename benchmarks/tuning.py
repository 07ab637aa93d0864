"""Peers of the training benchmark: tuned by a sweep, then measured beside ours in alternating rounds."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.measure import BenchmarkError, alternate, ratios, spread, train_once
from benchmarks.tables import Report, spread_rows, table

BATCH, MINIBATCH, EPOCHS = 4096, 1024, 4
#: Best settings that are measured once more, and with two torch threads in the learner.
REFINED = 3

Setting = dict[str, Any]


class Trial(NamedTuple):
    """One setting of a sweep and what it reached; ``None`` if it failed, with the reason."""

    setting: Setting
    env_steps_per_s: float | None
    failure: str = ""


def label(setting: Setting) -> str:
    """``num_envs 64, workers dummy``."""
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def best_of(trials: Sequence[Trial]) -> Setting:
    """Return the fastest setting.

    Raises:
        BenchmarkError: none of them ran.
    """
    finished = [(trial.env_steps_per_s, number) for number, trial in enumerate(trials) if trial.env_steps_per_s]
    if not finished:
        raise BenchmarkError(f"no setting ran: {trials[-1].failure if trials else 'there is none'}")
    return trials[max(finished)[1]].setting


def sweep(settings: Sequence[Setting], measure: Callable[[Setting], float]) -> list[Trial]:
    """Every setting with one torch thread in the learner; then the best of them once more, with one and with two."""
    trials = [_trial({**setting, "threads": 1}, measure) for setting in settings]
    ranked = sorted(trials, key=lambda trial: -(trial.env_steps_per_s or 0.0))
    again = [{**trial.setting, "threads": threads} for trial in ranked[:REFINED] for threads in (1, 2)]
    return trials + [_trial(setting, measure) for setting in again]


def _trial(setting: Setting, measure: Callable[[Setting], float]) -> Trial:
    try:
        trial = Trial(setting, measure(setting))
    except BenchmarkError as error:
        trial = Trial(setting, None, str(error))
    print(f"  {label(setting)}: {trial.failure or f'{trial.env_steps_per_s:,.0f} steps/s'}", flush=True)
    return trial


def fixed(iterations: int) -> list[str]:
    """Return overrides of a run that is exactly so long and writes one checkpoint, at its end."""
    until = iterations * BATCH
    return [f"train.until={until}", "train.stop_when_held=false", f"train.checkpoint_every={until}"]


def tuned(report: Report, name: str, settings: list[Setting], measure: Callable[[Setting], float]) -> Setting:
    """Return the best setting of a peer, by a sweep."""
    print(f"tuning {name}: {len(settings)} settings and more", flush=True)
    trials = sweep(settings, measure)
    best = best_of(trials)
    rows = [[label(trial.setting), trial.env_steps_per_s or trial.failure] for trial in trials]
    note = "One run each; then the three best once more, with one and with two torch threads in the learner."
    lines = [*table(["setting", "env steps/s"], rows), "", note]
    report.section(f"Tuning {name}", lines, [t._asdict() for t in trials])
    return best


def versus(
    report: Report, options: argparse.Namespace, peer: str, ours: list[str], theirs: Callable[[], float], how: str
) -> float:
    """One pair, measured alternately; returns the median ratio."""
    overrides = [*ours, *fixed(options.iterations)]
    rows = alternate({"ours": lambda: train_once(overrides).speed(options.warmup), "theirs": theirs}, options.rounds)
    rounds = ratios(rows["ours"], rows["theirs"])
    lines = spread_rows({"multigrid-rl": rows["ours"], peer: rows["theirs"], "ratio, round by round": rounds})
    note = (
        f"{' '.join(ours)}, {BATCH} steps a batch, {EPOCHS} epochs, minibatches of {MINIBATCH}, tanh 64-64 in two "
        f"towers on one-hot tokens, {options.rounds} alternating rounds. Ours: the default recipe, the driver samples "
        f"256 games, threads as many as are free. {peer}: {how}."
    )
    report.section(f"Against {peer}", [*table(["", "env steps/s", "min to max"], lines), "", note], rows)
    return round(spread(rounds).median, 2)
