"""The yardsticks of the code base count what they say, and a plain run loads no add-on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import house

ROOT = Path(__file__).parents[2]
#: Modules and lines of ours that the whole process of a plain run may have loaded at its end.
LOADED = (84, 15_600)

RUN = """
import json, sys
from multigrid_rl.training.start import run_training
run_training(["scenario=1v1", "train.until=8192", "run_dir=run", "train.threads=1"])
ours = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "multigrid_rl"}
print(json.dumps(ours))
"""


def write(root: Path, **sources: str) -> Path:
    for name, text in {"__init__": "", **sources}.items():
        (root / f"{name}.py").write_text(text)
    return root


def test_counts_of_a_toy_package(tmp_path):
    package = tmp_path / "toy"
    package.mkdir()
    (package / "league").mkdir()
    write(package / "league", pool="class Pool:\n    pass\n")
    write(
        package,
        a="from toy import b\nfrom toy.league.pool import Pool\n\n\ndef f():\n    import toy.c\n",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import toy.c\n",
        c="# why\nimport ray._private.worker\n",
    )
    modules = house.modules_of(package)
    assert house.closure_of(modules, "toy.a") == {"toy", "toy.a", "toy.b", "toy.league", "toy.league.pool"}
    assert house.functions_of(modules) == [2]
    assert house.private_names_of_ray(modules) == ["ray._private"]
    rows = {name: value for name, value, _ in house.rows_of(package)}
    assert (rows["modules"], rows["classes"]) == (6, 1)
    assert rows["lines of the package"] - rows["of them the core's"] == 2


def test_plain_run_loads_little_of_ours_and_no_add_on(tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = {name: Path(file) for name, file in json.loads(done.stdout.splitlines()[-1]).items()}
    lines = sum(file.read_text(encoding="utf-8").count("\n") for file in loaded.values())
    assert len(loaded) <= LOADED[0]
    assert lines <= LOADED[1]
    assert {name.split(".")[1] for name in loaded if "." in name} & set(house.ADDONS) == set()
