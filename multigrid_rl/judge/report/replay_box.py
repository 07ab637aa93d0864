"""The place of a page where its script shows games."""

from __future__ import annotations

from multigrid_rl.judge.report.html import Raw, tag


def replay_box() -> Raw:
    """An empty box; games stand in the page's data block."""
    return tag(
        "div",
        tag("noscript", tag("p", "The replay needs JavaScript; everything else on this page does not.", class_="note")),
        id="replay",
        class_="replay",
        role="region",
        aria_label="Replay",
    )
