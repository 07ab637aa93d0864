"""How a verb ends that did not do its work: a line, and a status that is nobody's verdict."""

import errno
import io
import os
import re
import subprocess
import sys
from bdb import BdbQuit
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from multigrid_rl.cli.app import TRACEBACK, Verbs
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError


def ended(raised: BaseException | None, **env: str):
    """Calls a verb that raises this."""
    app = Verbs()

    @app.command()
    def verb(word: str = "none") -> None:
        """Say a word."""
        typer.echo(word)
        if raised is not None:
            raise raised

    return CliRunner().invoke(app, ["--word", "said"], env=env)


@pytest.mark.parametrize(
    "raised",
    [KeyError("seat"), EOFError("Ran out of input"), RecursionError(), ValueError("two\nlines \x1b[2J"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_crash_is_one_line_status_70_and_file(raised, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = ended(raised)
    assert (result.exit_code, result.stdout) == (70, "said\n")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"multigrid-rl: unexpected {type(raised).__name__}: ")
    assert "(a fault of test_statuses.py:" in line
    assert "\x1b" not in line
    (file,) = tmp_path.iterdir()
    assert str(file) in line
    assert "in verb" in file.read_text()


def test_crash_without_writable_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert f"{TRACEBACK}=1" in ended(KeyError("seat")).stderr
    result = ended(KeyError("seat"), **{TRACEBACK: "1"})
    assert "in verb" in result.stderr
    assert result.exit_code == 70


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 3, "multigrid-rl: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 3, "multigrid-rl: runs/x: Permission denied\n"),
        (TimeoutError("no answer"), 3, "multigrid-rl: no answer\n"),
        (BdbQuit(), 3, ""),  # who leaves a debugger
        (ConfigError("seed: expected a number, got x"), 2, "multigrid-rl: seed: expected a number, got x\n"),
        (PlayerError("nobody: unknown"), 2, "multigrid-rl: nobody: unknown\n"),
    ],
)
def test_errors_of_the_system_and_of_users_are_one_line(raised, status, message):
    result = ended(raised)
    assert (result.exit_code, result.stdout, result.stderr) == (status, "said\n", message)


@pytest.mark.parametrize("hint", ["", "go on: train --resume run"])
def test_run_errors_are_status_3_with_hint(hint):
    error = RunError("env runner 1 is lost")
    error.hint = hint
    result = ended(error)
    lines = ["multigrid-rl: env runner 1 is lost", *([f"multigrid-rl: {hint}"] if hint else [])]
    assert (result.exit_code, result.stderr.splitlines()) == (3, lines)


def printing(text: str, monkeypatch, stream) -> None:
    """Calls a verb that prints, on that standard output."""
    app = Verbs()

    @app.command()
    def verb() -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    monkeypatch.setattr(sys, "stdout", stream)
    app([], standalone_mode=False)


def test_unencodable_letters(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    printing("Müller", monkeypatch, stream)
    assert stream.buffer.getvalue() == b"M\\xfcller"


def test_closed_standard_output(monkeypatch):
    printing("unheard", monkeypatch, None)
    sys.stdout.close()


@pytest.mark.parametrize(("target", "message"), [("full", "multigrid-rl: No space left on device\n"), ("pipe", "")])
def test_full_disk_and_broken_pipe_are_status_3(target, message):
    if target == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    program = (
        "from multigrid_rl.cli.app import Verbs\nfrom multigrid_rl.cli.output import console\napp = Verbs()\n"
        "@app.command()\ndef verb():\n    console().print('unheard')\napp()\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(out)
    assert (done.returncode, done.stderr) == (3, message)


def test_docs_list_every_status():
    text = (Path(__file__).parents[2] / "docs" / "judging.md").read_text()
    table = text[text.index("## Exit status") :]
    assert re.findall(r"^\| (\d+) ", table, re.MULTILINE) == ["0", "1", "2", "3", "70", "130"]
