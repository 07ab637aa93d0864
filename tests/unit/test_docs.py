"""Docs say what the code does."""

import ast
import importlib
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from commands import has_verb
from composing import GAMES
from doc_blocks import check_starts
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.metrics import glossary
from multigrid_rl.types import Board, GameSpec, RewardWeights
from multigrid_rl.world import constants as c
from multigrid_rl.world.events import best_return
from multigrid_rl.world.state import view_tables
from tools.house import ADDONS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def doc(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_glossary_explains_every_metric():
    page = doc("running.md")
    rows = [f"| `{name}` | {meaning} | {unit} |" for name, (meaning, unit) in glossary().items()]
    assert [row for row in rows if row not in page] == []


def test_relative_links_of_docs_resolve():
    links = [
        (page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert links
    # To files that the site has, too: `make docs` copies these, and is strict.
    papers = ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    site = [ROOT / name for name in (*papers, "docs", "examples", "docker", "configs")]
    found = {(page.name, link): (page.parent / link).resolve() for page, link in links}
    assert [name for name, file in found.items() if not file.is_file()] == []
    assert [name for name, file in found.items() if not {file, *file.parents} & set(site)] == []


def test_imports_of_snippets_exist():
    ours = ("multigrid_rl", "benchmarks", "tools", "tests")
    missing, found = [], 0
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ours:
                    room = str(node.module).split(".")[:2]
                    if room[-1] in ADDONS and find_spec(".".join(room)) is None:
                        continue  # an add-on that was left out of this checkout
                    module = importlib.import_module(str(node.module))
                    found += len(node.names)
                    missing += [
                        (page.name, node.module, name.name) for name in node.names if not hasattr(module, name.name)
                    ]
    assert found
    assert missing == []


def test_the_table_of_tokens_is_that_of_the_cell_codes():
    rows = {
        "door, locked": [c.DOOR_LOCKED],
        "door, closed and not locked": [c.DOOR_CLOSED],
        "door, open": [c.DOOR_OPEN],
        "key, never picked up": [c.KEY],
        "key, picked up before": [c.KEY + 1],
        "ball": [c.BALL],
        "agent, by heading": [c.AGENT + heading for heading in range(4)],
    }
    page, codes = doc("extending.md"), {c.UNSEEN, c.EMPTY, c.WALL}
    assert "| unseen, empty, wall | 0, 1, 2 | 0, 1, 2 |" in page
    assert (c.UNSEEN, c.EMPTY, c.WALL) == (0, 1, 2)
    for what, (first, *_) in rows.items():
        line = re.search(rf"^\| {what} \| (.*) \| (.*) \|$", page, re.MULTILINE)
        red, blue = ([int(code) for code in cell.split(", ")] for cell in line.groups())
        assert red == rows[what]
        # Blue's are the same things in the other colour.
        assert c.CELL[red][:, [0, 2]].tolist() == c.CELL[blue][:, [0, 2]].tolist()
        assert {c.COLOURS[k] for k in c.CELL[red][:, 1]} == {"red"}
        assert {c.COLOURS[k] for k in c.CELL[blue][:, 1]} == {"blue"}
        assert c.TYPES[c.CELL[first][0]] == what.split(",")[0]
        codes |= {*red, *blue}
    assert codes == set(range(c.NUM_CODES))
    words = " ".join(page.split())
    assert f"Actions: {', '.join(f'{k} {name}' for k, name in enumerate(c.ACTIONS))}." in words
    missions = ", ".join(f'{k} "{text}"' for k, text in enumerate(c.MISSIONS))
    assert f"Missions: {missions}." in words
    assert re.findall(r"^\| `(\w+)` \(N, ", page, re.MULTILINE) == list(Board._fields)


def test_the_docs_have_the_order_of_cells_in_a_view():
    words, size, x, y = " ".join(doc("extending.md").split()), 3, 7, 3
    assert "cell `i * V + j` is `i - V // 2` to its right and `V - 1 - j` ahead of it" in words
    assert "`V // 2 * V + V - 1 - n` is `n` cells ahead" in words
    seen, pose = view_tables(size).cells, c.cell_index(x, y) * 4
    for i in range(size):
        for j in range(size):
            right, ahead = i - size // 2, size - 1 - j
            assert seen[pose, i * size + j] == c.cell_index(x + ahead, y + right)  # heading +x, down is to the right
            assert seen[pose + 3, i * size + j] == c.cell_index(x + right, y - ahead)
    for n in range(size):
        assert seen[pose, size // 2 * size + size - 1 - n] == c.cell_index(x + n, y)


def test_the_page_of_the_game_has_every_scenario_as_it_is():
    told = re.findall(r"^\| `([\w-]+)` \| (\d) \| (\d) \| (.*) \|$", doc("game.md"), re.MULTILINE)
    yes = {True: "yes", False: "no"}
    for name, blue, red, rest in told:
        spec = load_scenario(name).spec
        keys = "random" if spec.random_keys else "fixed"
        rows = [yes[spec.obstacle], keys, yes[spec.death_match], spec.max_steps, spec.view_size,
                yes[spec.mission_observed]]  # fmt: skip
        assert (int(blue), int(red), rest) == (spec.blue, spec.red, " | ".join(map(str, rows)))
    assert {load_scenario(name).spec for name, *_ in told} == {load_scenario(name).spec for name in GAMES}


def test_the_page_of_the_game_has_the_rewards_as_they_are():
    page, pays = doc("game.md"), RewardWeights()
    balls = [pays.ball_pickup * pays.ball_discount ** (2**k) for k in range(5)]
    for number in (f"| {pays.key_pickup} |", f"| {pays.eliminated_opponent} |", f"| {pays.got_eliminated:g} |",
                   f"| {pays.invalid_pickup} |", ", ".join(f"{ball:.3g}" for ball in balls), "1.5087"):  # fmt: skip
        assert number in page
    both = best_return(GameSpec(blue=0, obstacle=True, death_match=False), "red")
    assert both == pytest.approx(0.5 + 1.5087 + 1, abs=5e-5)
    assert [row for row in c.ACTIONS if f"| {row} |" not in page] == []
    assert [mission for mission in c.MISSIONS if mission not in " ".join(page.split())] == []


def test_cited_sections_of_the_game_exist():
    """Code and configurations cite ``docs/game.md, section N``."""
    sections = set(re.findall(r"^## (\d+)\. ", doc("game.md"), re.MULTILINE))
    cited = []
    for room in ("multigrid_rl", "configs", "tests", "benchmarks", "tools"):
        for file in (file for ending in ("*.py", "*.yaml") for file in (ROOT / room).rglob(ending)):
            cited += re.findall(r"game\.md, sections?([\d, and]+)", file.read_text(encoding="utf-8"))
    assert len(cited) >= 20
    assert {number for part in cited for number in re.findall(r"\d+", part)} <= sections


def test_lists_stay_lists_on_the_site():
    """Python's Markdown wants four blanks before a block below a bullet, and an empty line behind it."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        wrong += re.findall(r"^\* .*\n(?: .*\n)*\n {1,3}\S.*|^ {4}.*\n\* .*", text, re.MULTILINE)
    assert wrong == []


def test_tables_are_tables_on_the_site():
    """A head with other columns than its line of dashes stays text there."""
    wrong, found = [], 0
    for page in PAGES:
        for head, rule in re.findall(r"^(\|.*)\n(\|[-:| ]+\|)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            found += 1
            if re.sub(r"\\\||`[^`]*`", "", head).count("|") != rule.count("|"):
                wrong.append((page.name, head))
    assert found > 50
    assert wrong == []


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 120] == []
    pictures = [name for line in lines for name in re.findall(r"^!\[.*\]\(docs/images/(.*)\)$", line)]
    made = (ROOT / "tools" / "pictures.py").read_text(encoding="utf-8")
    assert [name for name in pictures if name not in made] == []
    assert any(name.endswith(".gif") for name in pictures)


def commands_of(*pages: str) -> list[str]:
    """Commands of fenced blocks and code spans that are one."""
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    lines += re.findall(r"`((?:multigrid-rl|make) [^`\n]+)`", text)
    return sorted({line.partition("  #")[0].strip() for line in lines if line.startswith(("multigrid-rl ", "make "))})


@pytest.mark.parametrize("line", commands_of("README.md", "docs/first-hour.md", "docs/looking.md", "docs/game.md"))
def test_commands_would_start(line):
    """Each is composed, or its verb knows its options; the walk-through runs those of the first hour."""
    program, *words = shlex.split(line)
    if program != "make" and words[0] in ("train", "explain") and "--resume" not in words:
        typed = [word for word in words[1:] if "=" in word and not word.startswith(("init=", "scenario.seats"))]
        compose([word.replace("seeds=0..9", "seed=0") for word in typed if word != "cluster=ray"])
    elif program == "make" or has_verb(words[0]):
        check_starts(line)


def test_every_guide_is_in_a_menu_of_the_site():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in menu] == []


@pytest.mark.parametrize(
    ("typed", "ran"),
    [
        (["train"], "train"),
        (["train", "experiment=coop"], "train experiment=coop"),
        (["train", "ARGS=--resume runs/x --until 2e6"], "train --resume runs/x --until 2e6"),
        (["train", "scenario=coop", "train.lr=3e-4"], "train scenario=coop train.lr=3e-4"),
        (["train", "SCENARIO=coop", "ARGS=seed=3 --until 2e6"], "train scenario=coop seed=3 --until 2e6"),
        (["train", "curriculum=[{steps: 9}, a]"], "train curriculum=[{steps: 9}, a]"),
        (["cup", "FOLDER=all", "scenario=2v2"], "cup all --scenario 2v2"),
        (["cup", "FOLDER=entries", "SCENARIO=coop"], "cup entries --scenario coop"),
        (["cup", "FOLDER=league-run"], "cup league-run"),  # a run brings its own scenario
        (["evaluate", "WHO=runs/x", "scenario=2v2"], "evaluate runs/x scenario=2v2"),
        (["evaluate", "WHO=runs/x", "SCENARIO=2v2"], "evaluate runs/x scenario=2v2"),
        (["train", "env_id=CartPole-v1"], "train env_id=CartPole-v1"),
        (["train", "env_id=Mine-v0", "SCENARIO=cartpole"], "train scenario=cartpole env_id=Mine-v0"),
    ],
)  # fmt: skip
def test_make_passes_on_what_is_typed(tmp_path, typed, ran):
    (tmp_path / ".ready").touch()
    old = ("--old-file=pyproject.toml", "--old-file=constraints.txt")
    command = ["make", "--silent", "--dry-run", f"VENV={tmp_path}", *old, *typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert " ".join(shlex.split(done.stdout)[1:]) == ran


def test_the_page_of_the_architecture_is_short():
    assert len(doc("architecture.md").splitlines()) <= 120
