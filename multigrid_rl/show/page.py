"""Pages: templates with autoescape, rendered to one file that needs no network."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from multigrid_rl import __version__
from multigrid_rl.show import words
from multigrid_rl.text import percent

#: Written into every page: a file with this mark may be overwritten.
GENERATOR = "multigrid-rl report"
#: Scripts in the order in which they are joined; only the last one has effects, the others are functions.
SCRIPTS = ("decode.js", "board.js", "steps.js", "replay.js", "page.js")
#: Scripts for games that are written as text.
TEXT_SCRIPTS = ("texts.js", *SCRIPTS[2:])
#: Further scripts of pages with a server, and the addition to their policy.
LIVE_SCRIPTS = ("live.js", "play.js")
_LIVE_POLICY = "; connect-src 'self'"
STYLES = ("page.css", "replay.css")


class Scale(NamedTuple):
    """Range of an interval plot."""

    low: float
    high: float

    @classmethod
    def around(cls, rows: Sequence[Any]) -> "Scale":
        """Return a scale on which the intervals of all rows fit, from their ``low`` to their ``high``."""
        rows = [row for row in rows if row.low == row.low]  # one without an interval has NaN
        low, high = min((row.low for row in rows), default=0.0), max((row.high for row in rows), default=0.0)
        margin = 0.04 * (high - low) or 1.0
        return cls(low - margin, high + margin)

    def place(self, value: float) -> float:
        """Return the position of a number, in per cent of the width, clipped to the ends."""
        return min(max(round(100 * (value - self.low) / (self.high - self.low), 2), 0), 100)


def headed(rows: Markup, heads: list[str]) -> Markup:
    """Return the rows of a table with the head of its column on each cell, for narrow screens."""

    def labelled_row(row: re.Match[str]) -> str:
        columns = iter(heads)

        def cell(tag: re.Match[str]) -> str:
            head = next(columns, "").lstrip("#")
            return f'{tag[0]} data-head="{escape(head)}"' if head and tag[0] == "<td" else tag[0]

        return re.sub(r"<t[dh](?=[ >])", cell, row[0])

    return Markup(re.sub(r"<tr.*?</tr>", labelled_row, rows, flags=re.DOTALL))


_FILTERS = (
    words.bound, words.duration, words.metric_title, percent, words.plural,
    words.rounded, words.short, words.signed, words.shortened, headed,
)  # fmt: skip


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the project's templates: everything is escaped, and a missing name is an error."""
    environment = Environment(
        loader=PackageLoader("multigrid_rl.show"),
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {function.__name__: function for function in _FILTERS}
    return environment


def render(template: str, *, scripts: tuple[str, ...] = SCRIPTS, live: bool = False, **content: Any) -> str:
    """Return a complete page. Pure: the same content gives the same page.

    Args:
        template: one that extends ``page.html``.
        scripts: those that replay its ``data``.
        live: a server on this machine sends the page, and an event for each newer one.
        content: its variables: ``kind`` ("Training run"), ``title`` (the conclusion), ``lead``, ``data`` (of the
            replay, or ``None``), and those of the template.
    """
    style, script = asset_text(STYLES), asset_text((*(LIVE_SCRIPTS if live else ()), *scripts))
    # Hashes keep injected scripts and styles from running.
    style_hash, script_hash = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style, script))
    return templates().get_template(template).render(
        content, style=Markup(style), script=Markup(script), version=__version__, generator=GENERATOR,
        policy=f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        f"img-src data:; media-src data:; base-uri 'none'; form-action 'none'{_LIVE_POLICY if live else ''}",
        live=live,
    )  # fmt: skip


@lru_cache(maxsize=4)
def asset_text(names: tuple[str, ...]) -> str:
    """Return the project's style sheets or scripts, joined."""
    folder = files("multigrid_rl.show") / "assets"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
    return f'"use strict";(() => {{\n{text}}})();' if names[0].endswith(".js") else text
