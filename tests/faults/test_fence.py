"""What an agent may use, and what it can reach: with a sandbox, and without one."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from agents import agent_of, exists, play, player_of
from multigrid_rl.players import sandbox
from multigrid_rl.players.leftovers import none_left
from multigrid_rl.players.sandbox import Limits

LIMITS = Limits(start_s=20, step_s=10, total_s=30, memory_mb=512, disk_mb=32)
FENCED = pytest.param(True, marks=pytest.mark.skipif(not sandbox.at_hand(), reason="bubblewrap is not at hand"))
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")

FORK = "\n  while True:\n    if os.fork() == 0: %s; time.sleep(60)"
MEMORY = "\n  while True:\n    if os.fork() == 0: x = b'x' * 150_000_000; time.sleep(60)\n    time.sleep(0.1)"
FILES = "\n  for k in range(9): open(f'{k}', 'wb').write(bytes(8_000_000))\n  time.sleep(60)"
GREEDY = {
    "forks": (FORK % "pass", "more than 64 processes"),
    "forks daemons": (FORK % "os.setsid(); os.fork() and os._exit(0)", "more than 64 processes"),
    "takes memory in many processes": (MEMORY, "more than 512 MB of memory in all processes"),
    "fills the disk": (FILES, "more than 32 MB of files"),
}


def fault_of(folder: Path, code: str, *, fenced: bool) -> str | None:
    """Why an agent gave up."""
    with none_left(), player_of(agent_of(folder, code), replace(LIMITS, fence=fenced)) as player:
        fault = play(player).fault
    return None if fault is None else fault.reason


@pytest.mark.parametrize("fenced", [FENCED, False])
@pytest.mark.parametrize("name", GREEDY)
def test_total_use_of_processes_is_bounded(name, fenced, tmp_path):
    code, message = GREEDY[name]
    reason = fault_of(tmp_path / "greedy", f"def act(message): {code}", fenced=fenced)
    # In a sandbox of this size the write itself may fail first.
    assert message in str(reason) or (fenced and "No space left" in str(reason)), reason


@pytest.mark.parametrize("fenced", [FENCED, False])
def test_honest_agent_plays_and_writes_into_its_folder(fenced, tmp_path):
    code = "open('log.txt', 'a').write('x'); open(os.environ['TMPDIR'] + '/y', 'w'); import numpy, torch"
    agent = agent_of(tmp_path / "a", code, "[python3, agent.py]")
    with player_of(agent, replace(LIMITS, fence=fenced, memory_mb=4096)) as player:
        assert play(player).fault is None
    assert (tmp_path / "a" / "log.txt").exists() != fenced


@pytest.mark.skipif(not sandbox.at_hand(), reason="bubblewrap is not at hand")
def test_sandbox_hides_the_machine(tmp_path):
    (tmp_path / "secret").write_text("31337")
    listening = socket.create_server(("127.0.0.1", 0))
    reach = f"""
import signal, socket
def tried(what):
    try: what()
    except Exception as error: return type(error).__name__
    return "done"
def act(message):
    found = [tried(lambda: open({str(tmp_path / "secret")!r}).read())]
    found.append(tried(lambda: open({str(tmp_path / "mark")!r}, "w")))
    found.append(tried(lambda: socket.create_connection(("127.0.0.1", {listening.getsockname()[1]}), 2)))
    found.append(tried(lambda: os.kill({os.getpid()}, signal.SIGKILL)))
    found.append(tried(lambda: open("/usr/mark", "w")))
    found.append(tried(lambda: open("/mark", "w")))
    found.append(tried(lambda: os.mkdir("/dev/mark")))
    found.append(tried(lambda: open("/handed-in/mark", "w")))
    found.append(len([name for name in os.listdir("/proc") if name.isdigit()]) < 9)
    sys.exit(" ".join(map(str, found)))
"""
    message = fault_of(tmp_path / "curious", reach, fenced=True)
    listening.close()
    nowhere = "FileNotFoundError FileNotFoundError ConnectionRefusedError ProcessLookupError"
    assert message == f"step 0: exited with status 1: {nowhere} OSError OSError OSError OSError True"


@pytest.mark.skipif(not sandbox.at_hand(), reason="bubblewrap is not at hand")
def test_sandboxed_processes_end_with_game(tmp_path):
    code = "if os.fork() == 0: os.setsid(); os.close(0); os.close(1); os.close(2); time.sleep(300)"
    agent = agent_of(tmp_path / "a", code)
    with player_of(agent, replace(LIMITS, fence=True)) as player:
        player.start(1)
        pid = player._process.pid
    assert not exists(pid)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(tmp_path).encode() in line for line in lines)


def test_broken_bubblewrap_means_no_sandbox(tmp_path, monkeypatch):
    for body, there in (("#!/bin/sh\nexit 1\n", False), ("#!/bin/sh\nexit 0\n", True)):
        (tmp_path / "bwrap").write_text(body)
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        sandbox.at_hand.cache_clear()
        assert sandbox.at_hand() == there
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox.at_hand.cache_clear()
    assert not sandbox.at_hand()
    monkeypatch.undo()
    sandbox.at_hand.cache_clear()
