"""Serves pages to tests, and goes through them by keyboard."""

from answering import answering
from multigrid_rl.show.live import listen, server_of

#: What has the focus: its kind, its name, and whether that is seen.
FOCUS = """() => { const e = document.activeElement;
    const labels = e.labels ? [...e.labels].map((label) => label.innerText).join(" ") : "";
    const ring = getComputedStyle(e);
    return [e.tagName, (e.getAttribute("aria-label") || labels || e.innerText || "").trim(),
            ring.outlineStyle !== "none" && parseFloat(ring.outlineWidth) >= 2]; }"""


def served(app):
    """Serve an application for a block; yields its port."""
    return answering(server_of(app), listen(0))


def tabbed(page, most: int) -> int:
    """How many things the Tab key reaches; each has a name, and it is seen that it has the focus."""
    for reached in range(most):
        page.keyboard.press("Tab")
        kind, name, seen = page.evaluate(FOCUS)
        if kind == "BODY":
            return reached
        assert name, kind
        assert seen, f"no visible focus: {kind} {name}"
    return most
