"""The short assignment on environments: its suite finds each planted fault, alone and with the others."""

from pathlib import Path

import pytest

from doc_blocks import loaded

FOLDER = Path(__file__).parents[2] / "docs" / "assignments"
#: Of each check what is wrong in the game that is handed out, and what is right.
FAULTS = {
    "check_spaces": (
        "np.array([self.cells[agent], self.cells[other]], np.float32)",
        "np.array([self.cells[agent], self.cells[other]], np.float32) / (CELLS - 1)",
    ),
    "check_seeds": ("default_rng()", "default_rng(seed)"),
    "check_rewards": ("100.0 if met else -1.0", "1.0 if met else -0.01"),
}


@pytest.mark.parametrize("left", [[*FAULTS], [], *([name] for name in FAULTS)], ids=" ".join)
def test_the_suite_finds_the_faults_that_are_left(left, tmp_path, monkeypatch, capsys):
    text = (FOLDER / "meet.py").read_text(encoding="utf-8")
    for name, (wrong, right) in FAULTS.items():
        assert text.count(wrong) == 1
        text = text if name in left else text.replace(wrong, right)
    (tmp_path / f"meet_{len(left)}_{'_'.join(left)}.py").write_text(text)
    suite = loaded(FOLDER / "check_environment.py")
    monkeypatch.syspath_prepend(tmp_path)
    (module,) = tmp_path.glob("*.py")
    monkeypatch.setattr("sys.argv", ["check_environment.py", module.stem])
    assert suite.main() == len(left)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said if not line.endswith(": right")] == [x for x in FAULTS if x in left]
