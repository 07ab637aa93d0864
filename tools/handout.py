"""What students are handed: ``python tools/handout.py NUMBER FOLDER [ADDRESS]`` (``make handout NUMBER=1``).

Sheet, templates with their checks, rubric, a notebook with a cell for each answer, and a workflow for GitHub Classroom:
no solution and no model answer.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHEETS = ROOT / "docs" / "assignments"
sys.path.insert(0, str(ROOT))
from tools.templates import without_solutions  # noqa: E402

#: Who has not put an address into pyproject.toml: no student can install from it.
NOBODY = "/OWNER/"
INSTALL = 'pip install "multigrid-rl[control,search] @ git+{home}"'
WORKFLOW = """# Checks and grades what was pushed. A student could change this file: marks are given on your machine,
# with a rubric and a seed of your own (`multigrid-rl grade FOLDER --rubric MINE.yaml -o grades.csv`).
name: grade
on: [push, workflow_dispatch]
permissions: {{contents: read}}
jobs:
  grade:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    env: {{PIP_EXTRA_INDEX_URL: "https://download.pytorch.org/whl/cpu"}}
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.12"}}
      - run: {install}
{checks}      - run: multigrid-rl grade {hand_in} --rubric {rubric} -o grade.json
      - uses: actions/upload-artifact@v4
        if: always()
        with: {{name: grade, path: grade.json, if-no-files-found: ignore}}
"""
ANSWER = "*Your answer:*"


def handed(sheet: str) -> list[Path]:
    """Return the files that a sheet links to and a student is handed: templates, checks, rubric."""
    linked = re.findall(
        r"\]\(((?:templates|rubrics|\.\./\.\./configs/grade|\.\./\.\./examples)/[^)]+|\w+\.py)\)", sheet
    )
    return [(SHEETS / link).resolve() for link in dict.fromkeys(linked)]


def page_of(address: str) -> str:
    """Return the page of a clone's address: by ssh it is the same, and a token in it is nobody else's."""
    by_https = re.sub(r"^git@([^:]+):", r"https://\1/", address)
    return re.sub(r"^https://[^/]*@", "https://", by_https).rstrip("/").removesuffix(".git")


def address_of(typed: str | None) -> str:
    """Return where students install the project from: what was typed, or pyproject.toml's page, or git's origin."""
    (homepage,) = re.findall(
        r'^Homepage = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    asked = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    origin = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    for page in map(page_of, [typed] if typed else [homepage, origin]):
        if page.startswith("https://") and NOBODY not in page:
            return page
    got = typed or f"{homepage} in pyproject.toml, {origin or 'nothing'} as git's origin"
    sys.exit(f"ADDRESS: expected where students install from, such as https://github.com/you/multigrid_rl, got {got}")


def beside(text: str) -> str:
    """Return a text in which files of the project that are handed out lie in the folder itself."""
    return re.sub(r"(?:(?:docs/assignments|templates|rubrics|configs/grade|examples/rllib)/)+(?=[\w-]+\.)", "", text)


def sheet_of(text: str, names: set[str], stem: str, home: str) -> str:
    """Return a sheet, or a notebook's text, whose links lead to what lies beside it or to the project's pages."""

    def link(found: re.Match[str]) -> str:
        target, mark, place = found[1].partition("#")
        name = Path(target).name
        if name in names or "//" in target:
            return found[0] if "//" in target else f"]({name})"
        if name == f"{stem}.ipynb":
            return "](notebook.ipynb)"
        return f"]({home}/blob/main/{(SHEETS / target).resolve().relative_to(ROOT)}{mark}{place})"

    text = re.sub(r"\]\(([^)]+)\)", link, text)
    text = text.replace("make setup\nsource .venv/bin/activate", "make setup")  # students have no checkout
    text = text.replace("make setup", INSTALL.format(home=home))
    return beside(text.replace(f"{stem}.md", "README.md").replace(".venv/bin/", ""))


def cell(kind: str, source: str) -> dict[str, Any]:
    """Return an empty cell of a notebook."""
    code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True), **code}


def notebook_of(notebook: dict[str, Any], sheet: str, checks: list[str]) -> dict[str, Any]:
    """Return the notebook without outputs and solutions, then a cell for each task and question."""
    cells = [cell("markdown", "**Name:**\n\n**What you hand in, and by which commit:**")]
    for one in notebook["cells"]:
        cells.append(cell(one["cell_type"], without_solutions("".join(one["source"]))))
    for heading, kind in (("Tasks", "code"), ("Questions", "markdown")):
        cells.append(cell("markdown", f"## {heading}"))
        part = sheet.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
        for item in re.findall(r"^\d\. .+(?:\n {3}\S.*)*", part, re.MULTILINE):  # not what comes behind the list
            cells.append(cell("markdown", item))
            cells += [cell("code", "# TODO")] if kind == "code" else []
            cells.append(cell("markdown", ANSWER))
    for check in checks:
        cells.append(cell("code", f"!{check}"))
    for k, one in enumerate(cells):
        one["id"] = f"cell-{k}"
    return {**notebook, "cells": cells}


def write(number: int, target: Path, home: str) -> list[str]:
    """Write the hand-out of an assignment into a new folder; returns the names of its files.

    ``home``: the address from which students install the project.
    """
    (source,) = SHEETS.glob(f"{number}-*.md")
    text = source.read_text(encoding="utf-8")
    files = {path.name: beside(path.read_text(encoding="utf-8")) for path in handed(text)}
    templates = [name for name in files if name.endswith("_todo.py")]
    others = [name for name in files if name.startswith("check_")]
    checks = [f"python {other} {name}" for other in others for name in templates] or [f"python {t}" for t in templates]
    rubric = next(path.stem for path in handed(text) if path.parent.name in ("rubrics", "grade"))
    names = {*files}
    files["README.md"] = sheet = sheet_of(text, names, source.stem, home)
    notebook = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))
    for one in notebook["cells"]:
        if one["cell_type"] == "markdown":
            one["source"] = [sheet_of("".join(one["source"]), names, source.stem, home)]
    files["notebook.ipynb"] = json.dumps(notebook_of(notebook, sheet, checks), indent=1, ensure_ascii=False) + "\n"
    (hand_in,) = re.findall(rf"^multigrid-rl grade (my-\w+)/? --rubric {rubric}$", text, re.MULTILINE)
    steps = "".join(f"      - run: {check}\n" for check in checks)
    files[".github/workflows/grade.yml"] = WORKFLOW.format(
        install=INSTALL.format(home=home), checks=steps, hand_in=hand_in, rubric=rubric
    )
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(content, encoding="utf-8")
    return sorted(files)


def main() -> None:
    """Write what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("number", type=int, choices=sorted(int(path.name[0]) for path in SHEETS.glob("[0-9]-*.md")))
    parser.add_argument("folder", type=Path)
    parser.add_argument("address", nargs="?", help="where students install from; by default pyproject.toml's Homepage")
    typed = parser.parse_args()
    if typed.folder.exists():
        sys.exit(f"folder: expected a new one, got {typed.folder}, which exists")
    names = write(typed.number, typed.folder, address_of(typed.address))
    print(f"wrote {typed.folder}: {', '.join(names)}")


if __name__ == "__main__":
    main()
