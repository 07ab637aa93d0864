"""Docs say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from multigrid_rl.metrics import METRICS

ROOT = Path(__file__).parents[2]


def test_every_metric_stands_in_the_glossary_with_its_meaning():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name, (meaning, unit) in METRICS.items() if f"| `{name}` | {meaning} | {unit} |" not in page] == []


def test_every_relative_link_of_readme_and_docs_leads_somewhere():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
