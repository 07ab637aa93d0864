"""The commands and snippets of docs/first-hour.md, docs/extending.md and docs/games.md, one after the other."""

import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from commands import call, has_verb, works
from multigrid_rl import tables
from tiny_runs import TINY

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

ROOT = Path(__file__).parents[2]
#: What is typed once, before anything of ours can be called.
SETTING_UP = ("git", "make", "source")
#: What goes on until a person ends it.
SERVING = ("watch", "play")
FEW = {"--episodes": "20", "--until": "16384"}
#: Seconds of machine time for the whole way.
WHOLE_WAY = 15 * 60


def typed() -> list[list[str]]:
    """The words of each command of the page, in its order."""
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for language, block in blocks if not language for line in block.splitlines()]


def shortened(words: list[str]) -> list[str]:
    """The same command with less to play."""
    for option, value in FEW.items():
        if option in words:
            words = [*words[: words.index(option) + 1], value, *words[words.index(option) + 2 :]]
    sizes = [word for word in TINY if not word.startswith(("train.until", "train.checkpoint"))]
    less = {"train": [*sizes, "--until", FEW["--until"]], "cup": ["--games", "2"]}
    if "--rubric" in words:
        from multigrid_rl.competition.cup_commands import rubric_file  # noqa: PLC0415 - an add-on may be left out

        rubric = Path("rubric.yaml")
        text = rubric_file(Path(words[-1])).read_text(encoding="utf-8")
        rubric.write_text(re.sub(r"episodes: \d+", "episodes: 200", text), encoding="utf-8")
        words = [*words[:-1], str(rubric)]
    return [*words, *less.get(words[0], [])]


def test_a_stranger_walks_from_the_clone_to_a_cup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, *words in typed():
        if program == "mkdir":
            Path(words[0]).mkdir()
        elif program == "cp":
            if has_verb("export"):  # it makes the folder
                shutil.copytree(words[1], words[2])
        elif program not in SETTING_UP and has_verb(words[0]) and words[0] not in SERVING:
            assert program == "multigrid-rl"
            done = call(*shortened(words))
            assert done.exit_code in ((0, 1) if words[0] == "grade" else (0,)), (words, done.output, done.exception)
    assert {path.name for path in Path("runs").iterdir()} >= {"first", "no-bonus", "adept"}
    assert not has_verb("report") or Path("runs/first/report.html").stat().st_size > 50_000


def looked_at(command: list[str], folder: Path) -> str:
    """Open what a command serves, play a game if it is one, end it by Ctrl-C; returns what it printed."""
    serving = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        first = serving.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", first)[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "<h1>" in answer.read().decode()
        step = {"step": 0, "game": 0, "over": command[1] != "play"}
        while not step["over"]:
            wish = json.dumps({"action": step["step"] % 3, "game": 0, "step": step["step"]}).encode()
            asked = urllib.request.Request(f"{address}sent", wish)
            with urllib.request.urlopen(asked, timeout=60) as answer:
                step = json.loads(answer.read())
            if step["out"]:
                break
    finally:
        serving.send_signal(signal.SIGINT)
        rest = serving.communicate(timeout=60)[0]
    assert serving.returncode == 0, first + rest
    return first + rest


@pytest.mark.long
def test_the_whole_way_as_it_stands(tmp_path, monkeypatch, record_property):
    """Train, watch, play, understand the reward, change it, compare, hand in, grade: no dead end, few minutes."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    seen, times = [], []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for words in typed():
        if words[0] in SETTING_UP:
            continue
        began = time.monotonic()
        if words[1] in SERVING:
            told = looked_at(words, tmp_path)
        else:
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (words, done.stderr)
            told = done.stdout
        seen.append(told)
        times.append(f"{time.monotonic() - began:6.1f} s  {shlex.join(words)}\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record_property("processor_seconds", spent)
    record_property("commands", "".join(times))
    sys.stderr.write(f"{''.join(times)}{spent:6.1f} processor seconds in all\n")
    text = "\n".join(seen)
    sights = ("HELD all 4 gates", "wrote runs/first/report.html", "best return", "NOT HELD", "ok: plays 1v1", "PASSED")
    assert [sight for sight in sights if sight not in text] == []
    assert spent <= WHOLE_WAY


# ray and tensorboard warn about their own future at every start

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
