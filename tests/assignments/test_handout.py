"""``make handout`` hands out no solution; the suite of faults finds each; notebooks run twice."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from doc_blocks import loaded
from notebooks import OF_A_MACHINE, cells_of, main_module, value_of
from tools.templates import SOURCES

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

ROOT = Path(__file__).parents[2]
HOME = "https://git.example.org/lab/multigrid_rl"
NUMBERS = sorted(int(path.name[0]) for path in (ROOT / "docs" / "assignments").glob("[0-9]-*.md"))
#: What stands between the marks of a program, or of a notebook's cell.
BLOCK = re.compile(r"# TODO-BEGIN (\w+): .+\n((?:.*\n)*?) *# TODO-END \1\b")


@pytest.fixture(scope="module")
def tool():
    return loaded(ROOT / "tools" / "handout.py")


@pytest.fixture(scope="module", params=NUMBERS)
def handed(request, tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("handout") / "new"
    tool.write(request.param, folder, HOME)
    return request.param, folder


def every_cell(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def solutions():
    notebooks = [cell for path in (ROOT / "docs" / "assignments").glob("*.ipynb") for cell in every_cell(path)]
    texts = [path.read_text() for path in SOURCES.values()] + ["".join(cell["source"]) + "\n" for cell in notebooks]
    return {line.strip() for text in texts for _, block in BLOCK.findall(text) for line in block.splitlines()}


def test_no_solution_and_no_model_answer_is_handed_out(handed):
    number, folder = handed
    lines = {line for line in solutions() if len(line) > 25}
    (answers,) = (ROOT / "tests" / "assignments" / "answers").glob(f"{number}-*.md")
    lines |= {line.strip() for line in answers.read_text().splitlines() if len(line) > 60}
    assert len(lines) > 20
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_text(encoding="utf-8")
        text = text if path.suffix != ".ipynb" else "\n".join("".join(cell["source"]) for cell in every_cell(path))
        assert [line for line in text.splitlines() if line.strip() in lines] == [], path
    assert not list(folder.rglob("*solution*"))


def test_links_and_programs_of_a_handed_sheet_are_beside_it_or_on_the_project_s_pages(handed):
    _, folder = handed
    text = (folder / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        place = re.fullmatch(rf"{re.escape(HOME)}/blob/main/([^#]+)(#.*)?", link)
        if link.startswith("https://github.com/Unity-Technologies/"):  # a file of ML-Agents'
            continue
        assert (ROOT / place[1] if place else folder / link).is_file(), link
    named = {word for line in re.findall("^python .*$", text, re.MULTILINE) for word in line.split() if ".py" in word}
    assert [name for name in named if not (folder / name).is_file()] == []
    assert re.search("^make ", text, re.MULTILINE) is None


def test_nothing_handed_out_names_a_placeholder_or_a_place_of_the_project_s_checkout(handed):
    _, folder = handed
    for path in filter(Path.is_file, folder.rglob("*")):
        found = re.findall(r"OWNER|make setup|\.venv|(?<!main/)docs/assignments", path.read_text(encoding="utf-8"))
        assert found == [], path


@pytest.mark.parametrize(
    ("typed", "known", "page"),
    [
        ("https://a.org/x/", ("https://github.com/me/x", ""), "https://a.org/x"),
        (None, ("https://github.com/me/x", "https://a.org/x"), "https://github.com/me/x"),
        (None, ("https://github.com/OWNER/x", "git@github.com:me/x.git"), "https://github.com/me/x"),
        (None, ("https://github.com/OWNER/x", "https://me:secret@a.org/x.git"), "https://a.org/x"),
        (None, ("https://github.com/OWNER/x", "/home/me/x"), None),
        (None, ("https://github.com/OWNER/x", ""), None),
        ("../x", ("https://github.com/me/x", ""), None),
    ],
)
def test_an_address_from_which_no_student_can_install_is_refused(tool, tmp_path, monkeypatch, typed, known, page):
    homepage, origin = known
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'Homepage = "{homepage}"\n')
    for words in (["init", "-q"], *([["remote", "add", "origin", origin]] if origin else [])):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    if page:
        assert tool.address_of(typed) == page
    else:
        with pytest.raises(SystemExit, match="ADDRESS: expected where students install from"):
            tool.address_of(typed)


def test_its_notebook_has_a_cell_for_each_answer_and_no_outputs(handed):
    _, folder = handed
    cells = every_cell(folder / "notebook.ipynb")
    asked = re.findall(r"^\d\. ", (folder / "README.md").read_text().split("## Tasks")[1].split("## Rubric")[0], re.M)
    assert sum("".join(cell["source"]) == "*Your answer:*" for cell in cells) == len(asked) >= 9
    assert not any(cell.get("outputs") for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_its_workflow_checks_and_grades_what_lies_there(handed):
    number, folder = handed
    flow = yaml.safe_load((folder / ".github" / "workflows" / "grade.yml").read_text())
    steps = [step["run"] for step in flow["jobs"]["grade"]["steps"] if "run" in step]
    assert [name for step in steps[1:-1] for name in step.split()[1:] if not (folder / name).is_file()] == []
    assert len(steps) == 3 or number == 2
    assert steps[-1].split()[2] == ("my-team" if number == 6 else "my-agent")
    assert (folder / f"{steps[-1].split('--rubric ')[1].split()[0]}.yaml").is_file()


def test_a_folder_that_exists_is_refused(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["handout", "1", str(tmp_path)])
    with pytest.raises(SystemExit, match="folder: expected a new one"):
        tool.main()


FOLDER = Path(__file__).parents[2] / "docs" / "assignments"
#: Of each check what is wrong in the game that is handed out, and what is right.
FAULTS = {
    "check_spaces": (
        "np.array([self.cells[agent], self.cells[other]], np.float32)",
        "np.array([self.cells[agent], self.cells[other]], np.float32) / (CELLS - 1)",
    ),
    "check_seeds": ("default_rng()", "default_rng(seed)"),
    "check_rewards": ("100.0 if met else -1.0", "1.0 if met else -0.01"),
}


#: The game with all faults, with none, with each; then repairs that are none, and a mistake made on the way.
REPAIRS = [
    *((left, {}) for left in ([*FAULTS], [], *([name] for name in FAULTS))),
    (["check_seeds"], {"default_rng(seed)": "default_rng(0)"}),
    ([*FAULTS], {"rng.choice": "rng.choose"}),
    ([*FAULTS], {"self.agents = []": "pass"}),
]


@pytest.mark.parametrize(("left", "changes"), REPAIRS, ids=[f"{k}-{'-'.join(row[0])}" for k, row in enumerate(REPAIRS)])
def test_the_suite_finds_the_faults_that_are_left(left, changes, tmp_path, monkeypatch, capsys):
    text = (FOLDER / "meet.py").read_text(encoding="utf-8")
    for name, (wrong, right) in FAULTS.items():
        assert text.count(wrong) == 1
        text = text if name in left and not changes else text.replace(wrong, right)
    for right, wrong in changes.items():
        text = text.replace(right, wrong)
    (tmp_path / f"meet_{len(left)}_{len(changes)}_{'_'.join(left)}.py").write_text(text)
    suite = loaded(FOLDER / "check_environment.py")
    monkeypatch.syspath_prepend(tmp_path)
    (module,) = tmp_path.glob("*.py")
    monkeypatch.setattr("sys.argv", ["check_environment.py", module.stem])
    assert suite.main() == len(left)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said if not line.endswith(": right")] == [x for x in FAULTS if x in left]


NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "assignments").glob("*.ipynb"))
#: Steps of training; elsewhere three batches of the game of doors.
FEW = {"3-policy-gradients": 2_000, "4-imitation": 8_192, "5-walker": 5_080}
#: The fourth: six runs of HalfCheetah, each played out to be judged.
MARKS = {"3-policy-gradients": pytest.mark.slow, "4-imitation": pytest.mark.long, "5-walker": pytest.mark.slow}


def shortened(source, stem):
    """As short as it can be: a few batches, so that episodes have ended."""
    source = re.sub(r"^STEPS = [\d_]+", f"STEPS = {FEW.get(stem, 12_288)}", source, flags=re.MULTILINE)
    return source.replace("episodes=10,", "episodes=1,")


def run(path, module):
    """Run all cells; returns what each shows."""
    shown = []
    for cell in cells_of(path):
        with redirect_stdout(io.StringIO()):
            shown.append(value_of(shortened("".join(cell["source"]), path.stem), module))
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in NOTEBOOKS], ids=lambda path: path.stem
)
def test_a_notebook_runs_twice(path, tmp_path, monkeypatch):
    module = main_module(monkeypatch, tmp_path)
    stored = [bool(cell["outputs"]) for cell in cells_of(path)]
    for _ in range(2):
        assert [value is not None for value in run(path, module)] == stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_short_and_of_no_machine(path):
    assert len(NOTEBOOKS) == 6
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert [mark for mark in OF_A_MACHINE if mark in text] == []
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
