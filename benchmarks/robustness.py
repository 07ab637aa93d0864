"""Do the tests that train pass with any seed, and on other processors? Writes ``runs/pages/robustness.md``.

python -m benchmarks.robustness              # 20 seeds as this machine computes, 3 under each other setting; 90 minutes
python -m benchmarks.robustness --seeds 5 --others 1 --tests tests/learning

A processor decides which kernels torch, MKL and numba choose, and so in which order sums are added up: a run on another
one differs in the last bits and, after thousands of updates, in its numbers. The settings below choose kernels of other
processors on this one.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.tables import command_line, describe, machine_lines, table

PAGE = Path("runs/pages/robustness.md")
#: Environment variables by the name of a setting; the first is the machine as it is.
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "torch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "MKL with AVX2": {"MKL_CBWR": "AVX2"},
    "numba generic": {"NUMBA_CPU_NAME": "generic"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
_TEXT = """# Tests that train, over seeds and kernels

Every test that trains asks for a bound (the fixture `learning` of `tests/conftest.py`). One seed's
number says little: the same test gives another one with another seed, and on a processor whose kernels add up in
another order. So each was run with {seeds} seeds as the machine computes, and with {others} under each setting that
chooses other kernels. Tests of the same size that passed on one kind of processor have failed on another.
"Worst" is the value nearest to the bound, or beyond it.

`{command}`

{machine}
"""


class Run(NamedTuple):
    """One process of tests."""

    setting: str
    seed: int


class Outcome(NamedTuple):
    """What one test measured in one run."""

    test: str
    run: Run
    passed: bool
    measured: dict[str, tuple[float, float, float]]  # by name: value, lower and upper bound


def outcomes(run: Run, report: Path) -> Iterator[Outcome]:
    """Read the tests of a run out of pytest's JUnit report; those that were skipped are left out."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            properties = {one.get("name", ""): json.loads(one.get("value", "")) for one in case.iter("property")}
            passed = case.find("failure") is None and case.find("error") is None
            yield Outcome(case.get("name", ""), run, passed, properties)


def play(run: Run, tests: Sequence[str]) -> list[Outcome]:
    """Run the tests that train in a process of its own. Raises ``SystemExit`` where pytest itself failed."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-m", "learns", "-n", "0", "-p", "no:cacheprovider", *tests]
        command += [f"--learning-seed={run.seed}", f"--basetemp={folder}/tests"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]  # which keeps what each test measured
        threads = {"OMP_NUM_THREADS": "1"} | SETTINGS[run.setting]
        ended = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1):
            raise SystemExit(f"{run.setting}, seed {run.seed}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        return list(outcomes(run, report))


def room(value: float, low: float, high: float) -> float:
    """Return how far a value is inside of its bounds; below 0 outside."""
    return min(value - low, high - value)


def rows_of(found: Sequence[Outcome]) -> list[list[str]]:
    """Return a row for each test and measurement: bound, runs that passed by setting, and the worst value."""
    tests = dict.fromkeys(one.test for one in found)
    rows = []
    for test in tests:
        own = [one for one in found if one.test == test]
        shares = []
        for setting in dict.fromkeys(one.run.setting for one in found):
            passed = [one.passed for one in own if one.run.setting == setting]
            shares.append(f"{sum(passed)} of {len(passed)}")
        for k, name in enumerate(dict.fromkeys(name for one in own for name in one.measured)):
            values = [one.measured[name] for one in own if name in one.measured]
            worst = min(values, key=lambda value: room(*value))
            bounds = [f"> {worst[1]:g}"] * (worst[1] > -float("inf")) + [f"< {worst[2]:g}"] * (worst[2] < float("inf"))
            rows.append([f"`{test}`" * (k == 0), name, ", ".join(bounds), f"{worst[0]:.4g}", *shares * (k == 0)])
            rows[-1] += [""] * (4 + len(shares) - len(rows[-1]))
    return rows


def page(found: Sequence[Outcome], machine: dict[str, Any], seeds: int, others: int) -> str:
    """Return the page."""
    command, lines = command_line(), "\n".join(machine_lines(machine))
    text = _TEXT.format(command=command, machine=lines, seeds=seeds, others=others)
    settings = list(dict.fromkeys(one.run.setting for one in found))
    heads = ["test", "measured", "bound", "worst", *settings]
    named = [f"* {name}: `{' '.join(f'{key}={value}' for key, value in SETTINGS[name].items())}`" for name in settings]
    missed = [f"`{one.test}` ({one.run.setting}, seed {one.run.seed})" for one in found if not one.passed]
    said = "Failed: " + ", ".join(missed) if missed else f"All {len(found)} passed."
    return "\n".join([text, said, "", *table(heads, rows_of(found)), "", *named[1:], ""])


def main() -> None:
    """Run everything, write the page and end with status 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--others", type=int, default=3, help="seeds under each other setting")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", nargs="+", default=["tests"])
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    asked = parser.parse_args()
    as_it_is, *others = SETTINGS
    runs = [Run(as_it_is, seed) for seed in range(asked.seeds)]
    runs += [Run(setting, seed) for setting in others for seed in range(asked.others)]
    machine = describe()
    found: list[Outcome] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for run, some in zip(runs, pool.map(lambda run: play(run, asked.tests), runs), strict=True):
            found += some
            failed = [one.test for one in some if not one.passed]
            print(
                f"{run.setting}, seed {run.seed}: {len(some)} tests, failed: {', '.join(failed) or 'none'}", flush=True
            )
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(page(found, machine, asked.seeds, asked.others), encoding="utf-8")
    raise SystemExit(1 if any(not one.passed for one in found) else 0)


if __name__ == "__main__":
    main()
