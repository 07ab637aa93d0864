"""Fenced blocks of README and docs, and a shell in which their commands are typed.

A block without a language holds commands, as one types them; ``text`` is what is printed.
"""

import importlib.util
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from commands import help_of

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "assignments").glob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: Stands where the program does: asks the test for it, which has imported everything already.
_SHIM = """#!/bin/bash
printf '%s\\0' $# "$@" > "$ASKED"
read -r status < "$ANSWERED"
exit "$status"
"""


def loaded(path: Path, name: str = "") -> Any:
    """A program as a module, by the name of its file or another one."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_starts(line: str) -> None:
    """``make`` has the target, or the verb all options of the line."""
    program, *words = shlex.split(line)
    if program == "make":
        done = subprocess.run(
            ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return
    shown = help_of(words)
    assert shown.exit_code == 0, shown.output
    options = re.findall(r"(?<=\s)--[a-z-]+", line)
    assert [option for option in options if option not in shown.output] == []


class Block(NamedTuple):
    """A fenced block."""

    page: str  # "docs/game.md"
    heading: str  # of its section
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        outside = _FENCE.sub("", text[: match.start()])
        heading = (re.findall(r"^#+ (.*)$", outside, re.MULTILINE) or [""])[-1]
        found.append(Block(page.relative_to(ROOT).as_posix(), heading, match[2], match[3]))
    return found


def all_blocks() -> list[Block]:
    """Return those of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]


class Shell:
    """Bash in a folder, in which ``multigrid-rl`` (also from ``make``) is what ``ask`` does with its words.

    Args:
        folder: where commands are typed; it gets what a checkout has beside the package.
        ask: takes the words after ``multigrid-rl``, returns the exit status.
    """

    def __init__(self, folder: Path, ask: Callable[[list[str]], int]) -> None:
        self._folder, self._ask = folder, ask
        binaries = folder / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "multigrid-rl").write_text(_SHIM)
        (binaries / "multigrid-rl").chmod(0o755)
        (binaries / "python").symlink_to(sys.executable)
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "configs", folder / "configs")
        for name in ("examples", "docs", "checkpoints", "docker"):
            (folder / name).symlink_to(ROOT / name)
        for ready in (".ready", ".ready-dev", ".ready-search", ".ready-control"):
            (folder / ".venv" / ready).touch()
        self._asked, self._answered = binaries / "asked", binaries / "answered"
        os.mkfifo(self._asked)
        os.mkfifo(self._answered)
        names = {"ASKED": str(self._asked), "ANSWERED": str(self._answered), "PYTHONPATH": str(ROOT)}
        self._env = {**os.environ, **names, "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]])}

    def type(self, text: str) -> None:
        """Run a script; raises ``AssertionError`` where a line of it fails."""
        # Opened for both directions: neither waits for the other, nor sees an end.
        asked, answered = os.open(self._asked, os.O_RDWR), os.open(self._answered, os.O_RDWR)
        errors = self._folder / ".venv" / "errors"
        try:
            with errors.open("w") as told:
                shell = subprocess.Popen(["bash", "-euc", text], cwd=self._folder, env=self._env, stderr=told,
                                         stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)  # fmt: skip
                try:
                    self._serve(shell, asked, answered)
                finally:
                    shell.kill()
                    shell.wait()
            assert shell.returncode == 0, (shell.returncode, text, errors.read_text())
        finally:
            os.close(asked)
            os.close(answered)

    def _serve(self, shell: subprocess.Popen[bytes], asked: int, answered: int) -> None:
        got, waiting = b"", select.poll()  # select.select takes no file above 1,023
        waiting.register(asked, select.POLLIN)
        while shell.poll() is None:
            if not waiting.poll(20):
                continue
            got += os.read(asked, 65536)
            parts = got.split(b"\0")
            if len(parts) > 1 and len(parts) == int(parts[0]) + 2:
                got = b""
                os.write(answered, b"%d\n" % self._ask([part.decode() for part in parts[1:-1]]))
