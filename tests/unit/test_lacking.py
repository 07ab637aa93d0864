"""A run of tests ends with what was skipped and what would enable it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lacking import enabled_by

TESTS = Path(__file__).parents[1]
FILES = {
    "conftest.py": f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom lacking import pytest_terminal_summary\n",
    "test_whole_file.py": "import pytest\npytest.importorskip('onnx_of_nowhere')\n",
    "test_some.py": """
import pytest

@pytest.mark.parametrize("number", range(3))
@pytest.mark.skipif(True, reason="bubblewrap is not available")
def test_marked(number): pass

def test_called(): pytest.skip("the moon is not full")

@pytest.mark.xfail(reason="known")
def test_known(): raise ValueError
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "several"])
def test_summary_tells_each_reason_once_and_what_enables_it(processes, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    # Plugins of other packages take seconds to import in each process, minutes on a busy machine.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *processes], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    _, _, told = done.stdout.partition("skipped here, and what would enable it")
    lines = [line.strip() for line in told.splitlines()[1:4]]
    assert lines[0] == "3 bubblewrap is not available: apt-get install bubblewrap", done.stdout
    assert "1 the moon is not full: nothing is known to enable it" in lines
    assert any(line.startswith("1 could not import 'onnx_of_nowhere'") for line in lines)
    assert "known" not in told.partition("the moon")[0]


def reasons_in(file: Path) -> list[str]:
    """Why tests of a file may be skipped."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
        if name in {"pytest.skip", "pytest.importorskip", "pytest.mark.skipif", "pytest.mark.skip"}:
            found.append(ast.unparse(keywords.get("reason", node.args[0])))
    return found


def test_whatever_may_be_skipped_says_what_would_enable_it():
    files = [file for file in TESTS.rglob("*.py") if file.name != Path(__file__).name]
    reasons = {why: file.name for file in files for why in reasons_in(file)}
    assert len(reasons) > 15
    built = {"LACKS": "Postgres, psycopg", "f'{shell} is not installed'": "zsh"}
    assert {why: where for why, where in reasons.items() if not enabled_by(built.get(why, why))} == {}
