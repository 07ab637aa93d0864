"""Pages of run folders with odd numbers and names."""

import json
import os
import re

from commands import call
from run_folders import write_run


def test_curves_skip_non_finite_values(tmp_path):
    file = write_run(tmp_path / "run") / "metrics.jsonl"
    nothing = {"timing/sample_s": float("nan"), "entropy/red_0": float("inf"), "policy_updates": float("nan")}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[30] |= nothing
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tmp_path / "page.html"
    assert call("report", file.parent, "--episodes", 0, "-o", page).exit_code == 0
    assert re.search(r"\b(nan|inf)\b", page.read_text()) is None


def test_folder_with_undecodable_name_has_page(tmp_path):
    strange = os.fsdecode(bytes(tmp_path) + b"/M\xfcller")
    write_run(tmp_path / "run").rename(strange)
    assert call("report", strange, "--episodes", 0, "-o", tmp_path / "page.html").exit_code == 0
    assert "M?ller" in (tmp_path / "page.html").read_text()
