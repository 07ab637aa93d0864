"""Write what schema and verbs say of themselves where people look it up: ``python -m tools.reference_pages``.

In ``configs/``, the comment behind a key is the description of its field. Files of a run's parts have one behind every
key; those of scenarios where somebody has put one. Why a file has this value stands on a line above. ``docs/cli.md``
lists verbs with their options, and keys with type, default, bounds and meaning.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from multigrid_rl.cli.explain import fields, keys, meaning_of
from multigrid_rl.cli.main import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cli.md"
#: Groups of files that have a comment behind every key, and the column it begins in unless there is one already.
EVERY, COLUMN = ("", "train", "model", "cluster"), 22
#: A line of yaml with a key: how deep it stands, its name, all of it up to the comment, the comment.
_KEY = re.compile(r"((?P<depth> *)(?:- )?(?P<name>\w+):(?: +[^#\s].*?)?)(?P<gap> *)(?P<comment># .*)?")
_HEAD = """# Verbs and keys

Written by `make reference-pages` from what verbs and the schema say of themselves; `multigrid-rl VERB --help` and
`multigrid-rl config` print the same. Overrides are `key=value`, in [Hydra's grammar](https://hydra.cc/docs/advanced/override_grammar/basic/).
"""
_KEYS_HEAD = """The default is the value in the files that `multigrid-rl train` begins with, else the first that a file
of the group has. A recipe of the scenario may set another: `multigrid-rl explain` says what a run has."""
_NAMES: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null", dict: "mapping",
    Any: "keys below",
}  # fmt: skip
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "entries >=", "max_length": "entries <="}


def pages() -> dict[Path, str]:
    """Return the text that each file should have."""
    meanings = {key: meaning_of(field) for key, field in fields().items()}
    result = {PAGE: cli_page()}
    for group in (*EVERY, "scenario"):
        for path in sorted((ROOT / "configs" / group).glob("*.yaml")):
            place = f"{group}." if group else ""
            result[path] = commented(path.read_text(encoding="utf-8"), place, meanings, every=group in EVERY)
    return result


def commented(text: str, place: str, meanings: dict[str, str], *, every: bool) -> str:
    """Return yaml whose keys have their meanings as comments; ``every``: also those without a comment so far."""
    lines, above = [], list[str]()
    for line in text.splitlines():
        found = _KEY.fullmatch(line)
        if found is not None:
            del above[len(found["depth"]) // 2 :]
            keys_above = [] if above == ["defaults"] else above  # of what a run is composed: keys of the run itself
            meaning = meanings.get(place + ".".join([*keys_above, found["name"]]))
            above.append(found["name"])
            if meaning and (found["comment"] or every):
                gap = found["gap"] if found["comment"] else " " * max(2, COLUMN - len(found[1]))
                line = f"{found[1]}{gap}# {meaning}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Return the page of all verbs and keys."""
    group: Any = typer.main.get_command(app)
    above = typer.Context(group, info_name="multigrid-rl")
    verbs = [part for name in group.commands for part in _verb(group.get_command(above, name), above)]
    known = fields()
    parts: dict[str, list[tuple[str, ...]]] = {}
    for key, default, meaning in keys():
        group_of = re.split(r"\.|\[", key)[0]
        field = known[key]
        bounds = ", ".join(dict.fromkeys(_bounds(field.annotation, field.metadata)))
        row = (f"`{key}`", type_of(field.annotation), f"`{default}`" if default else "", bounds, meaning)
        parts.setdefault(group_of if group_of in (*EVERY, "scenario") else "", []).append(row)
    titles = ("key", "type", "default", "bounds", "meaning")
    tables = [text for part in sorted(parts) for text in (f"### {part or 'Run'}", table(titles, parts[part]))]
    return "\n\n".join([_HEAD.strip(), "## Verbs", *verbs, "## Keys", _KEYS_HEAD, *tables]) + "\n"


def _verb(command: Any, above: Any) -> Iterator[str]:
    context = typer.Context(command, parent=above, info_name=command.name)
    yield f"### {command.name}"
    yield escaped(command.help)
    records = [record for part in command.params if (record := part.get_help_record(context)) is not None]
    if records:
        yield table(("argument or option", "meaning"), [(f"`{name}`", meaning) for name, meaning in records])


def type_of(annotation: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin is tuple:
        return f"list of {type_of(parts[0])}"
    if hasattr(annotation, "__metadata__"):
        return type_of(parts[0])
    if parts and origin is not dict:
        return " or ".join(map(type_of, parts))
    section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return "keys below" if section else _NAMES[origin or annotation]


def _bounds(annotation: Any, metadata: Iterable[Any]) -> Iterator[str]:
    """Yield the bounds of a field: of its own, then of what it is made of."""
    for mark in metadata:
        for name, sign in _SIGNS.items():
            if getattr(mark, name, None) is not None:
                yield f"{sign} {getattr(mark, name):_}"
        yield from _bounds(None, getattr(mark, "metadata", ()))
    for part in get_args(annotation):
        yield from _bounds(part, getattr(part, "__metadata__", ()))


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [titles, ("---",) * len(titles), *(tuple(map(escaped, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return text whose letters mean themselves in Markdown, but for code in backticks."""
    parts = " ".join(text.split()).replace("|", r"\|").split("`")
    parts[::2] = [re.sub(r"([*_{\[])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
