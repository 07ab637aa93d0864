"""Docs say what the code does, hints can be typed, the yardsticks count, skips and extras say what they need."""

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import has_verb
from composing import GAMES
from doc_blocks import ROOT, check_starts, loaded
from lacking import enabled_by
from multigrid_rl import files
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.metrics import glossary
from multigrid_rl.training import screen as live
from tools import house
from tools.house import ADDONS

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


# --- hints of a run are read alike by sh, bash and zsh


SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed"))
    for shell in ("sh", "bash", "zsh")
]
#: What takes the place of a program: it prints its words, each ended by a zero byte.
_STUB = "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"


def words_by(shell: str, lines: list[str], folder: Path) -> list[list[str]]:
    """Return the words that a shell hands to the programs of each line, with whatever it complains of."""
    stubs, empty = folder / "stubs", folder / shell
    for path in (stubs, empty, *(empty / "runs" / arm / "0" for arm in ("a", "b", "ref"))):  # runs/a/*
        path.mkdir(parents=True, exist_ok=True)
    for name in ("multigrid-rl", "make", "head"):
        (stubs / name).write_text(_STUB)
        (stubs / name).chmod(0o755)
    lines = [line.replace(".venv/bin/", "") for line in lines]
    script = "".join(f"(eval {shlex.quote(line)}) 2>&1 </dev/null; printf '\\001'\n" for line in lines)
    command = [shutil.which(shell), *(["-f"] if shell == "zsh" else []), "-c", script]
    run = subprocess.run(command, check=False, cwd=empty, env={"PATH": str(stubs)}, capture_output=True, text=True)
    return [answer.split("\0")[:-1] or [answer] for answer in run.stdout.split("\1")[:-1]]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_hint_of_a_run_survives_the_shell(shell, tmp_path):
    """Also where the run's folder has letters that mean something to a shell."""
    run = Path("runs/it's [a] {b,c} run")
    gate = {"metric": "return_mean/red_0", "comparison": ">=", "bound": 1, "value": 0.5, "held": False, "met": False}
    counts = dict.fromkeys(("seconds", "policy_updates", "env_steps_per_s", "env_steps"), 10**6)
    verdict = {"held": False, "ended": "until", "stage": 0, "stages": 1, "gates": [gate], "checkpoint": "x", **counts}
    verdict["last_report"] = {}
    told = []
    for typed in (["scenario=1v1"], ["scenario=1v1", "experiment=none"], ["scenario=coop", "experiment=none"]):
        told += [line.replace("\\[", "[") for line in live.closing_lines(verdict, run, compose(typed))]
    lines = [part for line in told for part in re.findall(r"(?:next: +|`)(multigrid-rl .*?)(?:`|$)", line)]
    assert len(lines) >= 9
    assert all(str(run) in words for words in words_by(shell, lines, tmp_path)), lines


# --- the yardsticks of the code base


#: Modules and lines of ours that the whole process of a plain run may have loaded at its end.
LOADED = (80, 15_660)

#: A sitecustomize that tells at a command's end which modules of ours it has, and their files.
COUNT = """
import atexit, json, sys
def tell():
    ours = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "multigrid_rl"}
    print(json.dumps(ours))
atexit.register(tell)
"""


def loaded_by(folder: Path, *words: str) -> tuple[list[str], int]:
    """Modules of ours that the real command has loaded at its end, and their lines."""
    (folder / "sitecustomize.py").write_text(COUNT)
    ours = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [str(Path(sys.executable).with_name("multigrid-rl")), *words]
    done = subprocess.run(command, cwd=folder, env=ours, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    return list(loaded), sum(Path(file).read_text(encoding="utf-8").count("\n") for file in loaded.values())


def write(root: Path, **sources: str) -> Path:
    for name, text in {"__init__": "", **sources}.items():
        (root / f"{name}.py").write_text(text)
    return root


def test_counts_of_a_toy_package(tmp_path):
    package = tmp_path / "toy"
    package.mkdir()
    (package / "league").mkdir()
    write(package / "league", pool="class Pool:\n    pass\n")
    write(
        package,
        a="from toy import b\nfrom toy.league.pool import Pool\n\n\ndef f():\n    import toy.c\n",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import toy.c\n",
        c="# why\nimport ray._private.worker\n",
    )
    modules = house.modules_of(package)
    assert house.closure_of(modules, "toy.a") == {"toy", "toy.a", "toy.b", "toy.league", "toy.league.pool"}
    assert house.functions_of(modules) == [2]
    assert house.private_names_of_ray(modules) == ["ray._private"]
    rows = {name: value for name, value, _ in house.rows_of(package)}
    assert (rows["modules"], rows["classes"]) == (6, 1)
    assert rows["lines of the package"] - rows["of them the core's"] == 2


def test_plain_run_as_it_is_typed_loads_little_of_ours_and_no_add_on(tmp_path):
    words = ("train", "scenario=1v1", "--until", "8192", "run_dir=run", "train.threads=1")
    loaded, lines = loaded_by(tmp_path, *words)
    assert "multigrid_rl.cli.main" in loaded
    assert len(loaded) <= LOADED[0]
    assert lines <= LOADED[1]
    assert {name.split(".")[1] for name in loaded if "." in name} & set(house.ADDONS) == set()


TESTS = Path(__file__).parents[1]


def reasons_in(file: Path) -> list[str]:
    """Why tests of a file may be skipped."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
        if name in {"pytest.skip", "pytest.importorskip", "pytest.mark.skipif", "pytest.mark.skip"}:
            found.append(ast.unparse(keywords.get("reason", node.args[0])))
    return found


def test_whatever_may_be_skipped_says_what_would_enable_it():
    reasons = {why: file.name for file in TESTS.rglob("*.py") for why in reasons_in(file)}
    assert len(reasons) > 15
    built = {"LACKS": "Postgres, psycopg", "f'{shell} is not installed'": "zsh"}
    assert {why: where for why, where in reasons.items() if not enabled_by(built.get(why, why))} == {}


# --- what an environment is filled by: uv with the settings of pip, or pip


install = loaded(ROOT / "tools" / "install.py")
PIP_CONFIG = """:env:.find-links='/wheels /more'
global.cert='/etc/own.crt'
global.extra-index-url='https://a/simple\\nhttps://b/simple'
global.index-url='https://files/simple'
install.index-url='https://install/simple'
"""


@pytest.fixture
def ran(monkeypatch):
    """Commands that would run, of which none does; each ends as ``status`` says."""
    commands, status = [], {}

    def run(command, **_):
        commands.append(command)
        code = next((code for word, code in status.items() if word in command), 0)
        if code and _.get("check"):
            raise subprocess.CalledProcessError(code, command)
        return SimpleNamespace(returncode=code, stdout=PIP_CONFIG)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("INSTALLER", raising=False)
    return commands, status


def test_uv_has_the_settings_of_pip(ran, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("UV_FIND_LINKS", "/own")
    variables = install.uv(install.pip_settings())
    assert variables["UV_DEFAULT_INDEX"] == "https://install/simple"
    assert variables["UV_INDEX"] == "https://a/simple https://b/simple"
    assert variables["SSL_CERT_FILE"] == "/etc/own.crt"
    assert variables["UV_FIND_LINKS"] == "/own"  # uv's own come first
    monkeypatch.delenv("UV_FIND_LINKS")
    assert install.uv(install.pip_settings())["UV_FIND_LINKS"] == "/wheels,/more"


@pytest.mark.parametrize("why", ["unknown setting", "asked for", "no uv"])
def test_pip_installs_where_uv_cannot(ran, monkeypatch, why):
    settings, (commands, status) = install.pip_settings(), ran
    if why == "unknown setting":
        settings["require-hashes"] = "true"
    elif why == "asked for":
        monkeypatch.setenv("INSTALLER", "pip")
    else:
        status["uv"] = 1
    assert install.install(["torch"], install.uv(settings)) == "pip"
    assert commands[-1][:4] == [sys.executable, "-m", "pip", "install"]


def test_pip_tries_where_uv_failed(ran):
    commands, status = ran
    variables = install.uv(install.pip_settings())
    status["uv"] = 2
    assert install.install(["torch"], variables) == "pip"
    assert [command[2] for command in commands[-2:]] == ["uv", "pip"]


def test_extras_are_named_by_what_can_be_typed_there(monkeypatch, tmp_path):
    """Of a wheel by the packages themselves: anybody could take the name of this one on an index."""
    monkeypatch.chdir(files.data_root())
    monkeypatch.setattr(sys, "prefix", str(files.data_root() / ".venv"))
    assert files.install_command("films") == "make setup EXTRAS=films"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert files.install_command("films") == f"pip install --editable '{files.data_root()}[films]'"
    monkeypatch.setattr(files, "data_root", lambda: tmp_path / "multigrid_rl" / "_data")
    monkeypatch.setattr(files, "requires", lambda name: ["rich>=13", 'imageio-ffmpeg>=0.6; extra == "films"'])
    assert files.install_command("films") == "pip install 'imageio-ffmpeg>=0.6'"
