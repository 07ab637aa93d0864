"""Docs say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from multigrid_rl.metrics import METRICS

ROOT = Path(__file__).parents[2]


def test_glossary_explains_every_metric():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name, (meaning, unit) in METRICS.items() if f"| `{name}` | {meaning} | {unit} |" not in page] == []


def test_relative_links_of_docs_resolve():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
