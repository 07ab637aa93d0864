"""The assignments' notebooks run twice in one folder, and what is stored of them is short and of no machine."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from notebooks import OF_A_MACHINE, cells_of, main_module, value_of

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "assignments").glob("*.ipynb"))
#: Steps of training; elsewhere three batches of the game of doors.
FEW = {"3-policy-gradients": 2_000, "4-imitation": 8_192, "5-walker": 5_080}
#: The fourth: six runs of HalfCheetah, each played out to be judged.
MARKS = {"3-policy-gradients": pytest.mark.slow, "4-imitation": pytest.mark.long, "5-walker": pytest.mark.slow}


def shortened(source, stem):
    """As short as it can be: a few batches, so that episodes have ended."""
    source = re.sub(r"^STEPS = [\d_]+", f"STEPS = {FEW.get(stem, 12_288)}", source, flags=re.MULTILINE)
    return source.replace("episodes=10,", "episodes=1,")


def run(path, module):
    """Run all cells; returns what each shows."""
    shown = []
    for cell in cells_of(path):
        with redirect_stdout(io.StringIO()):
            shown.append(value_of(shortened("".join(cell["source"]), path.stem), module))
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in NOTEBOOKS], ids=lambda path: path.stem
)
def test_a_notebook_runs_twice(path, tmp_path, monkeypatch):
    module = main_module(monkeypatch, tmp_path)
    stored = [bool(cell["outputs"]) for cell in cells_of(path)]
    for _ in range(2):
        assert [value is not None for value in run(path, module)] == stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_short_and_of_no_machine(path):
    assert len(NOTEBOOKS) == 6
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert [mark for mark in OF_A_MACHINE if mark in text] == []
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
