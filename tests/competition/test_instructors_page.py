"""The page for instructors names bounds and options as the code has them."""

from __future__ import annotations

from commands import call
from multigrid_rl.competition.copies import APART, EXPLAINED, HAND_IN, KNOWN, TWO
from multigrid_rl.competition.gradebook import KEY_FILE
from multigrid_rl.competition.process import MAX_FILES, MAX_PROCESSES, MAX_THREADS
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.files import data_root


def test_instructor_page_is_accurate():
    page = (data_root() / "docs" / "instructors.md").read_text(encoding="utf-8")
    counted = f"{MAX_PROCESSES} processes, {MAX_THREADS:,} threads"
    own = f"{counted}, `--memory-mb` for all together, {Limits().disk_mb} MB, {MAX_FILES:,} files"
    assert own in page
    for bound in (KNOWN, HAND_IN, TWO, EXPLAINED):
        assert f"| {bound:.0%}".replace("%", " %") in page
    assert f"{APART}" in page
    assert KEY_FILE in page
    for verb in ("cup", "grade"):
        message = call(verb, "--help").output
        for option in ("--trusted",) if verb == "cup" else ("--earlier",):
            assert option in message
            assert option in page
        assert "--allow-copies" in message
