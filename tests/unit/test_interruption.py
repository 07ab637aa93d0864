"""What asks a run to end, what it is printed on, and its folder."""

import io
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from commands import call, complaint
from multigrid_rl.cli.drive import run_folder
from multigrid_rl.config.compose import compose, default_run_dir
from multigrid_rl.text import ConfigError
from multigrid_rl.training import screen as live
from multigrid_rl.training.screen import TWICE_S, Output, interruption
from tiny_runs import TINY


@pytest.fixture
def screen():
    """A console that prints nothing."""
    return Console(file=io.StringIO())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_repeated_signal_asks_run_to_end(screen, number):
    found = signal.signal(number, before := lambda *_: None)  # where tests were started with nohup, too
    with interruption(screen) as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
    assert signal.signal(number, found) == before
    assert screen.file.getvalue().count("interrupted: writing a checkpoint") == 1


def test_second_ctrl_c_leaves_at_once(screen, monkeypatch):
    clock = iter([0.0, 10.0, 10.0 + TWICE_S])
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with interruption(screen) as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_nohup_ignores_hang_ups(screen):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption(screen) as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_broken_pipe_asks_run_to_end():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        output = Output(stream)
        screen = Console(file=output)
        with interruption(screen) as interrupted:
            screen.print("one")
            assert os.read(reader, 9) == b"one\n"
            assert not interrupted()
            os.close(reader)
            screen.print("two")
            assert interrupted()
            screen.print("three")
            output.flush()
    assert stream.closed  # as at the end of Python, without an error


def test_output_survives_unencodable_letters_and_closed_streams():
    raw = io.BytesIO()
    screen = Console(file=Output(io.TextIOWrapper(raw, encoding="ascii")), color_system=None)
    screen.print("runs/Müller")
    assert raw.getvalue() == b"runs/M\\xfcller\n"
    nowhere = Output(None)  # train >&-
    with interruption(Console(file=nowhere)) as interrupted:
        assert nowhere.write("word") == 4
        nowhere.flush()
        assert not interrupted()


def test_output_whose_stream_was_closed_ends_in_silence():
    """Python 3.13 tells what an output raises that is flushed when it goes."""
    stream = io.StringIO()
    output = Output(stream)
    stream.close()
    output.write("late")
    output.flush()


def test_rejects_impossible_folder_names(tmp_path):
    assert "File name too long" in complaint(call("train", f"run_dir={tmp_path / ('a' * 256)}"))
    assert "run_dir: expected a name in UTF-8" in complaint(call("train", f"run_dir={tmp_path}/M\udcfcller"))


def test_run_folder_is_kept_once_something_was_reported(tmp_path):
    config = compose([*TINY, f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(KeyError), run_folder(config, tmp_path / "run", {}, None):
        raise KeyError
    assert not (tmp_path / "run").exists()
    with run_folder(config, tmp_path / "run", {}, None) as folder:
        folder.record({"env_steps": 1})
    other = run_folder(config, tmp_path / "other", {}, None)
    other.__enter__().record({"env_steps": 1})
    assert not other.__exit__(KeyError, KeyError(), None)  # it is raised again
    assert (tmp_path / "other" / "metrics.jsonl").read_text()
    assert (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="run_dir: expected a new"), run_folder(config, tmp_path / "run", {}, None):
        pass
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_default_folder_of_another_run_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose(TINY)
    path = default_run_dir(config, datetime.now())
    path.mkdir(parents=True)
    with run_folder(config, path, {}, None) as folder:
        assert folder.path != path
        assert folder.path.parent == path.parent
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("words", [("-m", "multigrid_rl"), ("-c", "from multigrid_rl.cli.main import app; app()")])
def test_ctrl_c_while_the_command_itself_is_imported_is_no_traceback(tmp_path, words):
    # A shell has what it runs in the background ignore the signal.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    source = f"import os, signal\n{heard}\nos.kill(os.getpid(), signal.SIGINT)\nimport rich.console\n"
    (tmp_path / "typer.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    env = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, *words, "players"], check=False, env=env, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, b"")
