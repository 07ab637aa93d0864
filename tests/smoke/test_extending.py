"""Every snippet of docs/extending.md and docs/games.md does what the page says, in an empty folder."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from commands import has_verb, works
from multigrid_rl import tables
from tiny_runs import TINY

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

PAGE = "".join(
    (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text("utf-8") for page in ("extending", "games")
)
_BLOCK = re.compile(r"^```(?:python|yaml)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SMALL = [*(word for word in TINY if not word.startswith(("model.hidden", "train.until"))), "train.until=512"]
_FEW = {"evaluate": ["--episodes", "8"], "video": ["--episodes", "4"], "cup": ["--games", "4"]}


def _sections() -> dict[str, tuple[dict[str, str], list[str]]]:
    """Heading -> files by name, and command lines; those without commands are left out."""
    found = {}
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        blocks = _BLOCK.findall(part)
        files = {name[1]: block for block in blocks if (name := re.match(r"# (\S+\.(?:py|yaml))\n", block))}
        lines = [line for block in blocks for line in block.splitlines() if line.startswith(("multigrid-rl ", "cp "))]
        if lines:
            found[part.splitlines()[0]] = (files, lines)
    return found


def _install(files: dict[str, str], folder: Path) -> bool:
    """Write the metadata of an installed package with the page's entry points of these files; whether there are any."""
    groups = re.findall(r'^\[project\.entry-points\."(\S+)"\]\n((?:.+\n)+)', PAGE, re.MULTILINE)
    points = [(group, re.findall(r'^(\S+ = )"((\S+):\S+)"', lines, re.MULTILINE)) for group, lines in groups]
    found = {group: [name + value for name, value, module in rows if f"{module}.py" in files] for group, rows in points}
    metadata = folder / "mine-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: mine\nVersion: 0.1\n")
    text = "".join(f"[{group}]\n{chr(10).join(lines)}\n" for group, lines in found.items() if lines)
    (metadata / "entry_points.txt").write_text(text)
    return bool(text)


@pytest.mark.slow
@pytest.mark.parametrize("heading", _sections())
def test_snippets_run_in_empty_folder(heading, tmp_path, monkeypatch, request):
    files, lines = _sections()[heading]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MULTIGRID_RL_PLAYERS", str(tmp_path / "players"))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if _install(files, site := tmp_path.parent / f"{tmp_path.name}-site"):
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(site)
        tables.installed.cache_clear()
        request.addfinalizer(tables.installed.cache_clear)
    for line in lines:
        verb, *words = shlex.split(line)[1:]
        if line.startswith("cp "):
            shutil.copy(verb, *words)
            continue
        missing = "scenario=walker" in line and not tables.has(tables.BATCHED, "multigrid_rl.walkers.bodies:WalkerEnv")
        missing |= "league" in line and not tables.has(tables.WEIGHTINGS, "uniform")
        if missing or not has_verb(verb) or ("agents/" in line and not tables.has(tables.NAMINGS, "agent")):
            continue
        # What the line says comes last: it wins.
        works(verb, *(_SMALL if verb == "train" else []), *words, *_FEW.get(verb, []))
    assert not list(tmp_path.glob("runs/evaluations/*:*"))  # Windows has no such names, and paths list folders with it


def test_docs_show_every_kind_of_part():
    assert {"A scenario", "A player", "A training reward", "An environment"} < set(_sections())
