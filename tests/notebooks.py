"""Notebooks for tests: their cells, run one after the other in this process, which has imported everything already."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from commands import works

#: What no notebook is stored with: codes of a terminal, places of a machine, failures.
OF_A_MACHINE = ("\\u001b", "/tmp", "/home", "/root", "Traceback", "WARNING")


def cells_of(path: Path) -> list[dict[str, Any]]:
    """Cells of code, as they are stored."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def value_of(source: str, module: ModuleType) -> Any:
    """Run a cell; returns the value of its last line, as a notebook shows it."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), module.__dict__)
    return None if last is None else eval(compile(last, "cell", "eval"), module.__dict__)


def main_module(monkeypatch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    """A module like a notebook's, in ``folder``; our verbs, which it starts, run in this process and do not find it."""
    module, started = ModuleType("notebook_main"), subprocess.run

    def here(command, **options):
        if command[:3] != [sys.executable, "-m", "multigrid_rl.cli.main"]:
            return started(command, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(sys.modules, module.__name__)
            return works(*map(os.fspath, command[3:]))

    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(subprocess, "run", here)
    monkeypatch.chdir(folder)
    return module
