"""What asks a run to end, what it is printed on, its folder, and the statuses of verbs that did not do their work."""

import errno
import io
import os
import signal
import subprocess
import sys
import types
from bdb import BdbQuit
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from commands import call, complaint
from multigrid_rl.cli.app import TRACEBACK, Verbs
from multigrid_rl.cli.drive import run_folder
from multigrid_rl.config.compose import compose, default_run_dir
from multigrid_rl.cores import free_memory
from multigrid_rl.metrics import STAGES
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.text import ConfigError
from multigrid_rl.training import advice, stages
from multigrid_rl.training import screen as live
from multigrid_rl.training.screen import TWICE_S, Output, closing_lines, interruption, preflight
from multigrid_rl.types import RunError
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


# --- how a verb ends that did not do its work: a line, and a status that is no verdict


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
    assert f"(a fault of {Path(__file__).name}:" in line
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


# --- what the screen shows, for whom


def test_a_run_that_was_held_before_goes_on_quietly(capsys):
    """One line when its gates hold, and then one every five seconds."""
    row = {"env_steps": 1, "env_steps_per_s": 1.0, **{f"timing/{name}_s": 1.0 for name in (*STAGES, "other")}}
    keeper = types.SimpleNamespace(held=False, states=[], last=None)
    with live.progress(live.live_console(), compose(["scenario=1v1"])) as show:
        for step in range(50):
            keeper.held = step >= 10
            show(row, keeper)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_no_cursor_moves_where_there_is_no_terminal(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    live.live_console().print("[bold]x[/]")
    assert not live.live_console().is_terminal
    assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize("value", ["0.0", "0.5"])
def test_a_recipe_stays_one_when_its_values_change(value):
    typed = ["scenario=1v1", f"train.bonus.all.key_pickup={value}"]
    config = compose(typed)
    assert config.experiment == "1v1"
    assert advice.expectation(config) is not None
    told = live.preflight(config, {}, Path("runs/x"), "", advice.settings(typed))
    assert told[:2] == [f"set:      {typed[1]} instead of 1.0", "recipe:   experiment=1v1, with 1 value changed"]
    assert "recipe:   experiment=1v1, with 2 values changed" in live.preflight(
        config, {}, Path("runs/x"), "", [*advice.settings([*typed, "train.lr=0.1"])]
    )


@pytest.mark.parametrize("verb", ["train", "explain"])
def test_a_batch_beyond_the_free_memory_is_refused(verb, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "free_memory", lambda: 2**30)
    said = complaint(call(verb, "scenario=1v1", "train.num_envs=1000000", "train.until=1e9"))
    wanted = "train.num_envs=1000000 x train.num_steps=16: expected a batch that fits into 1.0 GiB of free memory"
    assert said == f"multigrid-rl: {wanted}, got at least 3.0 GiB"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "limit", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
)
def test_free_memory_is_that_of_the_machine_or_of_its_container(limit, tmp_path):
    assert free_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       4 kB\n")
    assert free_memory(tmp_path) == 4096
    for name, value in zip(limit, ("3000", "1000"), strict=True):
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    (file.parent / "memory.stat").write_text("anon 5\ninactive_file 300\nactive_file 100\n")
    assert free_memory(tmp_path) == 2400


@pytest.mark.parametrize(("seat", "learns"), [("blue_0", False), ("red_0", True), ("all", True)])
def test_a_bonus_for_a_seat_that_does_not_learn_is_a_warning_before_the_start(seat, learns):
    config = compose(["scenario=1v1", f"train.bonus.{seat}.step=0.1"])
    warnings = [line for line in live.preflight(config, {}, Path("runs/x"), "") if "train.bonus" in line]
    assert warnings == [f"warning:  train.bonus.{seat}: it has no effect, as {seat} does not learn"] * (not learns)


# --- a gate that a run is too short to hold


@pytest.mark.parametrize("window", [18_976, 20_480, 100_000, 10])
def test_gate_with_a_window_longer_than_the_budget_is_told_before_the_start(window):
    gate = f"scenario.gates=[{{metric: return_mean/*, at_least: 10, window: {window}}}]"
    batch = ["train.num_envs=8", "train.num_steps=128"]
    config = compose(["env_id=CartPole-v1", gate, *batch, "train.until=20000"])
    most = config.train.env_steps - config.train.batch_size
    lines = [line for line in preflight(config, {}, Path("run"), "") if "cannot be held" in line]
    assert len(lines) == (window > most)
    if lines:
        assert f"at most {most:,} steps" in lines[0]


@pytest.mark.parametrize(("window", "until"), [(100_000, 104_096 + 1024), (100, 8192)])
def test_end_of_a_run_that_was_too_short_names_a_budget_that_its_windows_fit_in(window, until):
    row = {"metric": "return_mean/agent_0", "comparison": ">=", "bound": 10.0, "window": window}
    verdict = {
        "gates": [row | {"value": 20.0, "held": False, "met": True}], "held": False, "stage": 0, "stages": 1,
        "ended": "until", "env_steps": 4096, "policy_updates": 4, "seconds": 1.0, "env_steps_per_s": 4096.0,
        "checkpoint": "checkpoints/step_000004096", "last_report": {},
    }  # fmt: skip
    config = compose(["env_id=CartPole-v1", "train.num_envs=8", "train.num_steps=128"])
    _, hint, *_, result = closing_lines(verdict, Path("run"), config)
    assert hint.startswith("hint:     every gate is met now, and not yet long enough")
    assert result.endswith(f"train --resume run --until {until}")
