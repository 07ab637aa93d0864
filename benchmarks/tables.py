"""Reports: Markdown for readers, JSON for programs, both from the same values; the machine that they were made on."""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import BenchmarkError, Spread, spread
from multigrid_rl.cores import available_cpus
from multigrid_rl.files import markdown_table
from multigrid_rl.runs.provenance import cpu_model, git_commit, versions

#: The first of the seeds that nobody tunes on: recipes are frozen in a commit, then judged on these.
FRESH = 100
#: Share of all cores that others may use, now and in the last minute, before a report says that it was busy.
BUSY, BUSY_LAST_MINUTE = 0.1, 0.5


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a Markdown table; columns in ``left`` are text, the others are numbers."""
    return markdown_table(heads, [[figure(value) for value in row] for row in rows], left)


def spread_rows(rounds: Mapping[str, Sequence[float]]) -> list[list[Any]]:
    """Return rows of a table: name, median and range of what was measured round by round."""
    return [[name, (found := spread(values)).median, range_of(found)] for name, values in rounds.items()]


def figure(value: Any) -> str:
    """Return a number as one reads it: three digits, thousands apart; a dash for nothing, anything else as it is."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) >= 1 else 3}f}"


def range_of(spread: Spread) -> str:
    """Smallest to largest."""
    return f"{figure(spread.low)} to {figure(spread.high)}"


@dataclass
class Report:
    """One command's results; sections are added as they are measured and printed at once."""

    title: str
    machine: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def section(self, heading: str, lines: Sequence[str], data: Any) -> None:
        """Add one section; ``data`` is what the JSON says of it."""
        block = ["", f"## {heading}", "", *lines]
        print("\n".join(block), flush=True)
        self.lines += block
        self.data[heading] = data

    def markdown(self, command: str) -> str:
        """Return the page."""
        heading = [f"# {self.title}", "", f"`{command}`", "", *machine_lines(self.machine), *self.lines]
        overall = ["", "Overall, the last line that the command prints:", "", "```json", json.dumps(self.result), "```"]
        return "\n".join([*heading, *overall, ""])

    def write(self, out: Path | None) -> None:
        """Write ``out``.md and ``out``.json if asked to, and print the overall result as the last line."""
        if out is not None:
            command = command_line()
            out.parent.mkdir(parents=True, exist_ok=True)
            out.with_suffix(".md").write_text(self.markdown(command), encoding="utf-8")
            report = {"command": command, "machine": self.machine, "result": self.result, "sections": self.data}
            out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(self.result), flush=True)


def measure_all(report: Report, sections: Iterable[Callable[[], None]], out: Path | None) -> None:
    """Run sections one after the other and write the report, also of those before one that failed.

    Raises:
        SystemExit: a section failed.
    """
    failure = None
    try:
        for section in sections:
            section()
    except BenchmarkError as error:
        failure = f"benchmarks: {error}"  # what was measured before is not lost
    report.write(out)
    if failure:
        sys.exit(failure)


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Return the machine section of a page."""
    numbers = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    free = (
        f"{'**busy**' if machine['busy'] else 'free'} at the start (others used "
        f"{machine['cores_used_by_others_at_start']:.1f} cores, load average {machine['load_average_at_start']:.2f})"
    )
    return [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']} "
        f"({machine['architecture']}), {free}.",
        f"Commit {machine['commit']}. Versions: {numbers}.",
    ]


def made_on(provenances: Sequence[Mapping[str, Any]]) -> str:
    """Say at which commits and on which processors runs were made: on one kind of processor steps are exact."""
    commits = sorted({str(row.get("commit") or "unknown") for row in provenances})
    kinds = sorted({str((row.get("machine") or {}).get("processor", "unknown")) for row in provenances})
    exact = "steps are exact on this kind of processor" if len(kinds) == 1 else "each run is exact on its own"
    return f"Commit {', '.join(commits)}; processor {', '.join(kinds)}: {exact}, seconds are not."


def describe() -> dict[str, Any]:
    """Machine, versions, commit and load at the start. Warns on stderr if others use the machine."""
    used, load, cores = cores_used(), os.getloadavg()[0], available_cpus()
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "architecture": platform.machine(),
        "versions": versions(),
        "commit": git_commit(),
        "load_average_at_start": round(load, 2),
        "cores_used_by_others_at_start": round(used, 2),
        "busy": used > BUSY * cores or load > BUSY_LAST_MINUTE * cores,
    }
    if facts["busy"]:
        print(
            f"benchmarks: others use {used:.1f} of {cores} cores (load {load:.1f}): expect a wide spread",
            file=sys.stderr,
        )
    return facts


def cores_used() -> float:
    """Cores that were busy while this process slept for a second; 0 where the system does not report it."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before = busy_ticks(stat.read_text(encoding="utf-8"))
    time.sleep(1)
    return (busy_ticks(stat.read_text(encoding="utf-8")) - before) / os.sysconf("SC_CLK_TCK")


def busy_ticks(text: str) -> int:
    """Ticks of all cores in ``/proc/stat`` that were neither idle nor waiting for a disk."""
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4]


def command_line() -> str:
    """Return the command as one types it in the project's folder."""
    script = Path(sys.argv[0])
    folder = "peers." if script.parent.name == "peers" else ""
    return shlex.join(["python", "-m", f"benchmarks.{folder}{script.stem}", *sys.argv[1:]])


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every benchmark has."""
    parser.add_argument("--out", type=Path, help="write PATH.md and PATH.json, for example runs/pages/bench-world")
    parser.add_argument("--quick", action="store_true", help="a smoke test: everything once and short; means nothing")
