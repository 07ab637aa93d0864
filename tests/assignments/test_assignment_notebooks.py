"""The assignments' notebooks run twice in one folder, and what is stored of them is short and of no machine."""

import ast
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from commands import works

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "assignments").glob("*.ipynb"))
#: Steps of training; elsewhere three batches of the game of doors.
FEW = {"3-policy-gradients": 2_000, "4-imitation": 8_192, "5-walker": 5_080}
#: The fourth: six runs of HalfCheetah, each played out to be judged.
MARKS = {"3-policy-gradients": pytest.mark.slow, "4-imitation": pytest.mark.long, "5-walker": pytest.mark.slow}


def cells_of(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def shortened(source, stem):
    """As short as it can be: a few batches, so that episodes have ended."""
    source = re.sub(r"^STEPS = [\d_]+", f"STEPS = {FEW.get(stem, 12_288)}", source, flags=re.MULTILINE)
    return source.replace("episodes=10,", "episodes=1,")


def run(path, module):
    """Run all cells; returns what each shows."""
    shown = []
    for cell in cells_of(path):
        tree = ast.parse(shortened("".join(cell["source"]), path.stem))
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(io.StringIO()):
            exec(compile(tree, "cell", "exec"), module.__dict__)
            shown.append(None if last is None else eval(compile(last, "cell", "eval"), module.__dict__))
    return shown


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_twice(path, tmp_path, monkeypatch):
    module, started = ModuleType("notebook_main"), subprocess.run

    def here(command, **options):
        """Run our verbs in this process, which has been started already."""
        if command[:3] != [sys.executable, "-m", "multigrid_rl.cli.main"]:
            return started(command, **options)
        return works(*map(os.fspath, command[3:]))

    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(subprocess, "run", here)
    monkeypatch.chdir(tmp_path)
    stored = [bool(cell["outputs"]) for cell in cells_of(path)]
    for _ in range(2):
        assert [value is not None for value in run(path, module)] == stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_short_and_of_no_machine(path):
    assert len(NOTEBOOKS) == 6
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert [mark for mark in ("\\u001b", "/tmp", "/home", "/root", "Traceback", "WARNING") if mark in text] == []
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
