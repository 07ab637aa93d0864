"""The yardsticks of the code base count what they say, and a plain run and its verb load no add-on."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools import house

ROOT = Path(__file__).parents[2]
#: Modules and lines of ours that the whole process of a plain run may have loaded at its end.
LOADED = (80, 15_700)

#: A sitecustomize that tells at a command's end which modules of ours it has, and their files.
COUNT = """
import atexit, json, sys
def tell():
    ours = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "multigrid_rl"}
    print(json.dumps(ours))
atexit.register(tell)
"""


def loaded_by(folder: Path, *words: str) -> tuple[list[str], int]:
    """Modules of ours that the real command has loaded at its end, and their lines."""
    (folder / "sitecustomize.py").write_text(COUNT)
    ours = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [str(Path(sys.executable).with_name("multigrid-rl")), *words]
    done = subprocess.run(command, cwd=folder, env=ours, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    return list(loaded), sum(Path(file).read_text(encoding="utf-8").count("\n") for file in loaded.values())


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


def test_plain_run_as_it_is_typed_loads_little_of_ours_and_no_add_on(tmp_path):
    words = ("train", "scenario=1v1", "--until", "8192", "run_dir=run", "train.threads=1")
    loaded, lines = loaded_by(tmp_path, *words)
    assert "multigrid_rl.cli.main" in loaded
    assert len(loaded) <= LOADED[0]
    assert lines <= LOADED[1]
    assert {name.split(".")[1] for name in loaded if "." in name} & set(house.ADDONS) == set()


def test_version_loads_no_verb(tmp_path):
    loaded, _ = loaded_by(tmp_path, "--version")
    assert len(loaded) <= 9
