"""Small pieces of HTML and SVG: everything that comes from outside is escaped unless it is made here."""

from __future__ import annotations

import html
from typing import TypeAlias

_VOID = frozenset({"meta", "link", "br", "col", "rect", "line", "path", "circle", "polyline", "polygon", "use"})


class Raw(str):
    """Markup that is finished: it is put into a page as it stands."""

    __slots__ = ()


#: What may stand inside an element: text is escaped, numbers are written out, ``None`` is nothing.
Child: TypeAlias = "str | int | float | list[Raw] | tuple[Raw, ...] | None"
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Raw:
    """One element.

    Args:
        name: of the element.
        children: text (escaped), finished markup, or lists of it.
        attributes: ``class_`` is class, other underscores are dashes; ``None`` and ``False`` leave one out.

    Raises:
        ValueError: a ``style`` or ``on...`` attribute: the page's own security policy would switch it off.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID and not children:
        return Raw(f"<{name}{written}>") if name in ("meta", "link", "br", "col") else Raw(f"<{name}{written}/>")
    return Raw(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Raw:
    """Children behind one another without an element around them."""
    return Raw("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Raw):
        return child
    if isinstance(child, (list, tuple)):
        return "".join(child)
    return html.escape(str(child), quote=False)


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if name == "style" or name.startswith("on"):
        raise ValueError(f"attribute {name}: allowed is a class, or a listener in the page's own script")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {_CASED.get(name, name)}="{html.escape(str(value))}"'


#: Attributes of SVG whose names have capitals.
_CASED = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}


def table(head: tuple[Raw, ...], rows: list[Raw], *, caption: str, class_: str = "") -> Raw:
    """A table in a box of its own, which scrolls where the screen is narrow.

    Args:
        head: header cells.
        rows: finished rows.
        caption: what the table says; it also names the box for those who scroll it by keyboard.
        class_: more classes of the table.
    """
    inside = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        class_=class_ or None,
    )
    return tag("div", inside, class_="scroll", tabindex=0, role="region", aria_label=caption)


def th(text: Child, *, number: bool = False, scope: str = "col", title: str | None = None) -> Raw:
    """A header cell; ``number`` aligns it with numbers below."""
    return tag("th", text, scope=scope, class_="n" if number else None, title=title)


def td(content: Child, *, number: bool = False, class_: str = "") -> Raw:
    """A cell; ``number`` aligns it to the right in figures of equal width."""
    classes = " ".join(part for part in ("n" if number else "", class_) if part)
    return tag("td", content, class_=classes or None)


def section(key: str, title: str, *content: Child, lead: Child = None) -> Raw:
    """A section with a title that says the conclusion, and a sentence below it."""
    head = tag("h2", title, id=f"{key}-title")
    led = tag("p", lead, class_="lead") if lead else None
    return tag("section", head, led, *content, id=key, aria_labelledby=f"{key}-title")
