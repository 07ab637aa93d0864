"""Measure a newcomer's start: a clone, ``make train scenario=1v1``, caches empty. Writes the table of docs/setup.md."""

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "setup.md"


def main() -> None:
    """Measure and write; the last committed state counts."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        empty = {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip", "NUMBA_CACHE_DIR": ""}
        env = {name: value for name, value in (os.environ | empty).items() if value and name != "PYTHONPATH"}
        began, said = time.monotonic(), dict[str, tuple[float, str]]()
        command = ["make", "train", "scenario=1v1", f"PYTHON={sys.executable}"]
        with subprocess.Popen(command, cwd=clone, env=env, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                for word in (" packages, ", "run: ", "HELD"):
                    if word in line:
                        said.setdefault(word, (time.monotonic() - began, line))
        if "HELD" not in said:
            sys.exit("the run held no gates")
        count = said[" packages, "][1].split()[0]
        used = subprocess.run(["du", "-sk", str(clone / ".venv")], capture_output=True, text=True, check=True).stdout
        ready, begins, held = (said[word][0] for word in (" packages, ", "run: ", "HELD"))
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    table = f"""\
| from the clone on, caches empty | seconds |
|---|---|
| {count} packages are installed, {int(used.split()[0]) * 1024 / 1e9:.2f} GB in `.venv` | {ready:.0f} |
| the run begins: Python, Ray, the first kernels | {begins - ready:.0f} |
| the others are compiled, it has trained and HELD | {held - begins:.0f} |
| together | {held:.0f} |

By `python tools/measure_start.py`: Python {platform.python_version()}, {cores} cores, load {load:.1f}.
"""
    marks = "<!-- start -->\n", "<!-- /start -->"
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"{marks[0]}.*{marks[1]}", lambda _: marks[0] + table + marks[1], text, flags=re.DOTALL))
    print(table)


if __name__ == "__main__":
    main()
