"""Commands that pages, notebooks and help print are read alike by sh, bash and zsh."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from doc_blocks import PAGES, ROOT, all_blocks
from multigrid_rl.config.compose import compose
from multigrid_rl.tables import VERBS
from multigrid_rl.training import screen as live

SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed"))
    for shell in ("sh", "bash", "zsh")
]
_BEGIN = r"(?:\.venv/bin/)?(?:multigrid-rl (?:{})\b|make [a-z])".format("|".join(VERBS))
_INLINE = re.compile(rf"(?<!`)`({_BEGIN}[^`]*)`(?!`)")
#: What takes the place of a program: it prints its words, each ended by a zero byte.
_STUB = "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"


def commands_in(text: str) -> list[str]:
    return [" ".join(command.replace("\\|", "|").split()) for command in _INLINE.findall(text)]


def printed() -> list[str]:
    """Commands of blocks, joined where a line goes on, and those within sentences, tables and strings of code."""
    found = [
        line for block in all_blocks() if not block.language for line in block.text.replace("\\\n", " ").splitlines()
    ]
    for page in PAGES:
        found += commands_in(page.read_text(encoding="utf-8"))
    for notebook in [*ROOT.glob("examples/notebooks/*.ipynb"), *ROOT.glob("docs/assignments/*.ipynb")]:
        for cell in json.loads(notebook.read_text())["cells"]:
            found += commands_in("".join(cell["source"]))
    for pattern in ("multigrid_rl/**/*.py", "configs/**/*.yaml", "examples/**/*.py", "docs/assignments/**/*.py"):
        for file in sorted(ROOT.glob(pattern)):
            found += commands_in(file.read_text(encoding="utf-8"))
    typed = [line.strip().removeprefix("!") for line in found if re.match(rf"\s*!?{_BEGIN}", line)]
    return sorted({line for line in typed if "..." not in line and "<" not in line})


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


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS[1:])
def test_every_printed_command_survives_the_shell(shell, tmp_path):
    lines = printed()
    assert len(lines) > 150
    plain = words_by("sh", lines, tmp_path)
    for line, wanted, got in zip(lines, plain, words_by(shell, lines, tmp_path), strict=True):
        assert got == wanted, (shell, line)


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
