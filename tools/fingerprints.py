"""Does a change of the code change what a run computes? Fixed runs, told by their rows without what the clock decides.

    python -m tools.fingerprints --save prints/before.json       # in the checkout before it
    python -m tools.fingerprints --against prints/before.json    # after it: 1 for a difference

Every case runs through the command line program beside this interpreter, in a temporary folder of its own. Beside FILE
its rows are kept as NAME.jsonl. Same machine, same versions: other processors round differently.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

PROGRAM = Path(sys.executable).parent / "multigrid-rl"
LIST = Path(__file__).with_suffix(".yaml")
#: Keys that clock, checkout and machine decide: not what was computed.
APART = re.compile(r"(^|/)(timing|\w*seconds|started|commit|command|versions|machine)(/|$)|_per_s$")
#: What is read of a case's folder, as far as it is there.
READ = ["demos/card.json", "run/metrics.jsonl", "run/held_out.json", "out/trials/*/metrics.jsonl", "out/*.csv"]
READ += ["out/summary.json", "out/results.json", "out/outcomes.jsonl"]
VERDICT = ("ended", "held", "env_steps_to_held", "weights")
Row = dict[str, Any]
_REWARDS = "def first(events, reward):\n    return reward + 0.1 * events[..., 0]\n"


def cases(*parts: str) -> dict[str, list[str]]:
    """Name of each case of some parts of the list -> its commands."""
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(LIST.read_text("utf-8"))
    return {name: commands for part in parts or found for name, commands in found[part].items()}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of everything in a document, but for `APART`."""
    if APART.search(path):
        return
    if isinstance(value, dict | list) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(part, f"{path}/{key}" if path else str(key))
    else:
        yield path, value


def rows_in(file: Path) -> list[Row]:
    """Rows of a JSON lines or CSV file, or a JSON document as one row; none where there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        read: list[Any] = list(csv.DictReader(lines)) if file.suffix == ".csv" else []
        if file.suffix != ".csv":
            read = [json.loads(line) for line in lines] if file.suffix == ".jsonl" else [json.load(lines)]
    return [dict(flat(row)) for row in read]


def difference(before: list[Row], after: list[Row]) -> str | None:
    """Return the first row and key that differ, in words; ``None`` where all are equal."""
    for number, (old, new) in enumerate(zip(before, after, strict=False), 1):
        for key in [*old, *(key for key in new if key not in old)]:
            pair = [json.dumps(row[key]) if key in row else "nothing" for row in (old, new)]
            if pair[0] != pair[1]:
                return f"row {number}, {key}: {pair[0]} before, {pair[1]} after"
    return None if len(before) == len(after) else f"{len(before)} rows before, {len(after)} after"


def run(name: str) -> tuple[Row, list[Row], str]:
    """Run a case; returns its fingerprint, its rows, and what went wrong, if anything did."""
    with tempfile.TemporaryDirectory(prefix="multigrid-rl-prints-") as folder:
        at = Path(folder)
        (at / "none").mkdir()
        (at / "fingerprint_rewards.py").write_text(_REWARDS, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(LIST.parents[1])])}  # this checkout's
        for command in cases()[name]:
            arguments = [str(PROGRAM), *shlex.split(command)]
            done = subprocess.run(arguments, cwd=at, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                return {}, [], f"status {done.returncode}: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        rows = [row for kind in READ for file in sorted(at.glob(kind)) for row in rows_in(file)]
        whole = rows_in(at / "whole/metrics.jsonl")
        verdict = json.loads((at / "run/verdict.json").read_text("utf-8")) if (at / "run/verdict.json").exists() else {}
    steps = [row["env_steps"] for row in rows if "env_steps" in row]
    found = {"rows": len(rows), "env_steps": steps[-1] if steps else None, "sha256": digest(rows)}
    broken = difference(whole, rows) if whole else None
    return {**found, **{key: verdict.get(key) for key in VERDICT}}, rows, f"resumed: {broken}" if broken else ""


def digest(rows: list[Row]) -> str:
    """Return sha256 of rows, whatever the order of their keys."""
    return hashlib.sha256("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()).hexdigest()


def changed(name: str, found: Row, rows: list[Row], file: Path) -> str:
    """Say in one line where a case differs from the one that was saved, or nothing."""
    saved = json.loads(file.read_text("utf-8")).get(name)
    if saved is None:
        return f"not in {file}"
    keys = [key for key in found if found[key] != saved.get(key)]
    where = difference(rows_in(file.parent / f"{name}.jsonl"), rows) if "sha256" in keys else None
    return where or "".join(f"{key}: {saved.get(key)} before, {found[key]} after" for key in keys[:1])


def keep(name: str, found: Row, rows: list[Row], file: Path) -> None:
    """Add a case to a file, or replace it there, and write its rows beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = json.loads(file.read_text("utf-8")) if file.exists() else {}
    (file.parent / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    file.write_text(json.dumps({**saved, name: found}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the cases, print a line for each; save or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick, known = list(cases("quick")), list(cases())
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(quick)} alone")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--save", type=Path, metavar="FILE", help="others that FILE has stay in it")
    parser.add_argument("--against", type=Path, metavar="FILE")
    args = parser.parse_args()
    names = args.only or (quick if args.quick else known)
    before = json.loads(args.against.read_text("utf-8")) if args.against else {}
    wrong = []
    print(f"{'case':16} {'rows':>5} {'env_steps':>9}  {'ended':8} {'held':5}  {'before':12}  sha256", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, (found, rows, fault) in zip(names, pool.map(run, names), strict=True):
            said = fault or (changed(name, found, rows, args.against) if args.against else "")
            wrong += [f"{name}: {said}"] if said else []
            cells = [str(found.get(key)) for key in ("rows", "env_steps", "ended", "held", "sha256")]
            old = str(before.get(name, {}).get("sha256", "-"))[:12]
            texts = [f"{name:16} {cells[0]:>5} {cells[1]:>9}  {cells[2]:8} {cells[3]:5}  {old:12}  {cells[4][:12]}"]
            print(*texts, said and "DIFFERS" if found else said, flush=True)
            if args.save and not fault:
                keep(name, found, rows, args.save)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
