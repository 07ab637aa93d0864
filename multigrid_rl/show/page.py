"""The frame of a page: one file, no network, and a security policy that lets nothing in but what is written here."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from multigrid_rl import __version__
from multigrid_rl.show.html import Child, Raw, join, tag

#: Written into every page: a file that says so may be written anew.
GENERATOR = "multigrid-rl report"
#: In the order in which they are joined; only the last one does something, the others are functions.
SCRIPTS = ("decode.js", "elements.js", "board.js", "panels.js", "replay.js", "plots.js", "start.js")
STYLES = ("base.css", "plots.css", "replay.css")


class Heading(NamedTuple):
    """What stands above everything."""

    kind: str  # "Training run"
    title: str  # the conclusion
    lead: str  # a sentence or two
    contents: tuple[tuple[str, str], ...]  # (id, title) of the sections, for the table of contents


def page(heading: Heading, *content: Child, data: dict[str, Any] | None = None) -> str:
    """A whole page.

    Args:
        heading: what stands above everything.
        content: finished sections.
        data: what the replay reads: names it finds by their keys; plain JSON.
    """
    style, script = asset_text(STYLES), asset_text(SCRIPTS)
    links = [tag("a", title, href=f"#{key}") for key, title in heading.contents]
    top = tag(
        "header",
        tag("p", heading.kind, class_="kind"),
        tag("h1", heading.title),
        tag("p", heading.lead, class_="lead") if heading.lead else None,
        tag("nav", links, aria_label="Sections") if links else None,
    )
    foot = tag("footer", f"Written by multigrid-rl {__version__}. One file, no network: it can be kept and sent.")
    body = join(
        top,
        tag("main", *content),
        foot,
        json_block("replay-data", data) if data is not None else None,
        tag("script", Raw(script)),
    )
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{heading.title} · {heading.kind}"),
        tag("style", Raw(style)),
    )
    return f'<!doctype html>\n<html lang="en">\n{tag("head", head)}\n{tag("body", body)}\n</html>\n'


def replay_box() -> Raw:
    """The place where the page's script shows games; they stand in the page's data block."""
    without = tag("p", "The replay needs JavaScript; everything else on this page does not.", class_="note")
    return tag(
        "div", tag("noscript", without), id="replay", class_="replay", role="region", aria_label="Replay of a game"
    )


def json_block(key: str | None, data: Any, class_: str | None = None) -> Raw:
    """Data for the page's script. Nothing in it can end the block: ``<``, ``>`` and ``&`` are written as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Raw(text), type="application/json", id=key, class_=class_)


@lru_cache(maxsize=4)
def asset_text(names: tuple[str, ...]) -> str:
    """The project's own style sheets or scripts, joined."""
    folder = files("multigrid_rl.show") / "assets"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
    return f'"use strict";(() => {{\n{text}}})();' if names[0].endswith(".js") else text


def _policy(style: str, script: str) -> str:
    # With hashes nothing else runs, whatever somebody manages to write into a page: no attribute, no second script.
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
