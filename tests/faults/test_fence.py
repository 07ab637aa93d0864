"""What an agent may use, and what it can reach in its sandbox; without one it does not run, or is trusted."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents import SPEC, agent_of, exists, play, player_of
from commands import call, complaint, works
from multigrid_rl.competition import process, sandbox
from multigrid_rl.competition.rubric import opponents
from multigrid_rl.competition.sandbox import Limits, check_not_bound, kill_descendants, parents_of_all
from multigrid_rl.cores import free_memory
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.episodes import play_games
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import TRUSTED

LIMITS = Limits(start_s=20, step_s=10, total_s=30, memory_mb=512, disk_mb=32)
pytestmark = pytest.mark.skipif(not sandbox.bwrap_available(), reason="bubblewrap is not available")

FORK = "\n  while True:\n    if os.fork() == 0: %s; time.sleep(60)"
MEMORY = "\n  while True:\n    if os.fork() == 0: x = b'x' * 150_000_000; time.sleep(60)\n    time.sleep(0.1)"
SHARED = """
  import mmap
  while True:
    if os.fork() == 0:
      pages = mmap.mmap(-1, 150_000_000)
      for at in range(0, len(pages), 4096): pages[at] = 1
      time.sleep(60)
    time.sleep(0.1)"""
#: Calls for memory that belongs to no process, and ways to file systems that nobody counts.
REFUSED = """
  import ctypes
  libc, tried = ctypes.CDLL(None, use_errno=True), []
  for name, arguments in {"memfd_create": [b"x", 0], "shmget": [0, 4096, 0o1600], "msgget": [0, 0o1600]}.items():
    tried.append(getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() == 1)
  sys.exit(str(tried))"""
MOUNTS = """
  import subprocess
  command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp"]
  sys.exit(str(subprocess.run(command, capture_output=True).returncode != 0))"""
THREADS = """
  import threading
  threading.stack_size(65536)
  for _ in range(4):
    if os.fork() == 0:
      for _ in range(400): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
      time.sleep(60)
  time.sleep(60)"""
FILES = "\n  for k in range(9): open(f'{k}', 'wb').write(bytes(8_000_000))\n  time.sleep(60)"
GREEDY = {
    "forks": (FORK % "pass", "more than 64 processes"),
    "forks daemons": (FORK % "os.setsid(); os.fork() and os._exit(0)", "more than 64 processes"),
    "starts threads": (THREADS, "more than 1024 threads"),
    "takes memory in many processes": (MEMORY, "more than 512 MB of memory in all processes"),
    "takes memory that they share": (SHARED, "more than 512 MB of memory in all processes"),
    "takes memory of no process": (REFUSED, "[True, True, True]"),
    "fills the disk": (FILES, "more than 32 MB of files"),
}


def fault_of(folder: Path, code: str) -> str | None:
    """Why an agent gave up."""
    with kill_descendants(), player_of(agent_of(folder, code), LIMITS) as player:
        fault = play(player).fault
    return None if fault is None else fault.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", GREEDY)
def test_total_use_of_processes_is_bounded(name, tmp_path):
    code, message = GREEDY[name]
    reason = fault_of(tmp_path / "greedy", f"def act(message): {code}")
    # In a sandbox of this size the write itself may fail first.
    assert message in str(reason) or "No space left" in str(reason), reason


@pytest.mark.slow
@pytest.mark.parametrize("trusted", [False, True])
def test_honest_agent_plays_and_writes_into_its_copy(trusted, tmp_path, monkeypatch):
    monkeypatch.setenv(TRUSTED, str(int(trusted)))
    code = "open('log.txt', 'a').write('x'); open(os.environ['TMPDIR'] + '/y', 'w'); import numpy, torch"
    agent = agent_of(tmp_path / "a", code, "[python3, agent.py]")
    with player_of(agent, replace(LIMITS, memory_mb=4096)) as player:
        assert play(player).fault is None
    assert not (tmp_path / "a" / "log.txt").exists()


def test_no_file_system_of_its_own_in_sandbox(tmp_path):
    assert fault_of(tmp_path / "mounts", f"def act(message): {MOUNTS}").endswith(": True")


def test_largest_agent_is_ended_where_memory_runs_out(tmp_path, monkeypatch):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 4000000 kB")
    monkeypatch.setattr(process, "free_memory", lambda: free_memory(tmp_path))
    monkeypatch.setenv(TRUSTED, "1")  # one of them writes there
    large = agent_of(tmp_path / "large", "def hello(m): global x; x = b'x' * 120_000_000; say('{\"type\":\"ready\"}')")
    small = agent_of(
        tmp_path / "small",
        f"import time\ndef hello(m): open({str(tmp_path / 'proc/meminfo')!r}, 'w')"
        ".write('MemAvailable: 399999 kB'); time.sleep(0.5); say('{\"type\":\"ready\"}')",
    )
    with player_of(large, LIMITS) as red, player_of(small, LIMITS, team="blue") as blue:
        played = play_games(SPEC, {"red": red, "blue": blue}, 2, seed=1)
    assert played.fault.name == "large", played.fault
    assert "the machine runs out of memory, and of all agents this one holds the most: 1" in played.fault.reason


def test_sandbox_has_no_kernel_settings_and_no_paths_of_the_machine(tmp_path):
    probe = """
def act(message):
    opened = []
    for top in ("/proc", "/sys"):
        for here, _, names in os.walk(top):
            if here.split("/")[2:3] in (["self"], ["thread-self"], [str(os.getpid())]): continue
            for name in names:
                try: os.close(os.open(os.path.join(here, name), os.O_WRONLY | os.O_NONBLOCK))  # and nothing is written
                except OSError: continue
                opened.append(os.path.join(here, name))
    sys.exit(str([opened[:3], os.path.isdir("/proc/sys/kernel"), open("/proc/1/cmdline").read().count("%s")]))
"""
    assert fault_of(tmp_path / "a", probe % tmp_path).endswith(": [[], True, 0]")


def found_inside(script: str, folder: Path) -> set[str]:
    """Lines that a script writes in a sandbox."""
    command = sandbox.launch_command(("sh", "-c", script), folder, LIMITS, in_sandbox=True)
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def test_sandbox_holds_interpreter_and_scenarios_alone(tmp_path, monkeypatch):
    there = {Path(line).name for line in found_inside(f"find {sandbox.data_root()} -maxdepth 2", tmp_path)}
    assert "scenario" in there
    assert not {"checkpoints", "grade"} & there
    # An environment that was made in the very folder of a class, with a package as a wheel installs it.
    packaged = "lib/packages/multigrid_rl/_data"
    hidden = ["submissions", "rubric", f"{packaged}/checkpoints", f"{packaged}/configs/grade"]
    seen = ["bin", "lib", f"{packaged}/configs/scenario"]
    for folder in (*seen, *hidden):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "file").touch()
    (tmp_path / "lib64").symlink_to("lib")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sandbox, "data_root", lambda: tmp_path / packaged)
    assert found_inside(f"find {tmp_path} -type f", tmp_path / "rubric") == {f"{tmp_path}/{name}/file" for name in seen}
    check_not_bound(*(tmp_path / name for name in hidden))
    for name in (*seen, "lib64/deep"):
        with pytest.raises(PlayerError, match="expected a place that agents in a sandbox cannot read, got one in "):
            check_not_bound(tmp_path / "rubric", tmp_path / name)
    with pytest.raises(ConfigError, match="agents in a sandbox cannot read"):
        opponents("../lib", "blue", SPEC, tmp_path / "rubric")
    for words in (["grade", tmp_path / "rubric", "--rubric"], ["cup", tmp_path / "rubric", "-o"]):
        assert "agents in a sandbox cannot read" in complaint(call(*words, tmp_path / "lib" / "file"))


@pytest.mark.slow
def test_kernels_of_this_package_are_not_compiled_again_in_sandbox(tmp_path):
    package = Path(sandbox.__file__).parents[1]
    if not os.access(package / "world", os.W_OK):
        pytest.skip("kernels are not kept beside the sources")
    Streams(1, np.zeros(1, np.int64))
    # Those of a checkout below /tmp are there before.
    code = "import pathlib; kept = lambda: {*pathlib.Path('/tmp').rglob('*.nbc')}; before = kept()\n"
    code += "import numpy, multigrid_rl.streams as s; s.Streams(1, numpy.zeros(1, numpy.int64))\n"
    code += "def act(message): sys.exit(str(len(kept() - before)))"
    agent = agent_of(tmp_path / "a", code, "[python3, agent.py]")
    with player_of(agent, replace(LIMITS, memory_mb=4096, start_s=60)) as player:
        assert play(player).fault.reason == "step 0: exited with status 1: 0"


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
    message = fault_of(tmp_path / "curious", reach)
    listening.close()
    nowhere = "FileNotFoundError FileNotFoundError ConnectionRefusedError ProcessLookupError"
    assert message == f"step 0: exited with status 1: {nowhere} OSError OSError OSError OSError True"


def test_sandboxed_processes_end_with_game(tmp_path):
    code = "if os.fork() == 0: os.setsid(); os.close(0); os.close(1); os.close(2); time.sleep(300)"
    agent = agent_of(tmp_path / "a", code)
    with player_of(agent, LIMITS) as player:
        player.start(1)
        pid = player._process.pid
    assert not exists(pid)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(tmp_path).encode() in line for line in lines)


@pytest.mark.slow
def test_agent_is_refused_without_sandbox_or_trust(tmp_path, monkeypatch):
    monkeypatch.delenv(TRUSTED, raising=False)
    monkeypatch.setattr(sandbox, "bwrap_available", lambda: False)
    agent = agent_of(tmp_path / "in" / "a")
    cup = ["cup", tmp_path / "in", "--with", "random", "--games", "1", "-o", tmp_path / "cup"]
    seated = ["evaluate", "random", "scenario.seats.blue_0=" + str(agent.folder)]
    for words in (cup, ["inspect", agent.folder], seated):
        message = complaint(call(*words))
        assert "agents: expected bubblewrap that works here (apt-get install bubblewrap" in message, words
        assert "--trusted" in message
    assert not (tmp_path / "cup" / "cup.json").exists()
    assert "agents run without a sandbox" in works(*cup, "--trusted").output
    works("inspect", agent.folder, "--trusted")


def test_broken_bubblewrap_means_no_sandbox(tmp_path, monkeypatch):
    for body, there in (("#!/bin/sh\nexit 1\n", False), ("#!/bin/sh\nexit 0\n", True)):
        (tmp_path / "bwrap").write_text(body)
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        sandbox.bwrap_available.cache_clear()
        assert sandbox.bwrap_available() == there
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox.bwrap_available.cache_clear()
    assert not sandbox.bwrap_available()
    monkeypatch.undo()
    sandbox.bwrap_available.cache_clear()


def test_what_waits_in_sockets_counts_and_other_families_than_unix_are_none(tmp_path):
    code = """
import socket
def tried(*kind):
    try: socket.socket(*kind).close()
    except OSError: return "refused"
    return "made"
def act(message):
    one, _ = socket.socketpair()
    before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
    same = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
    kinds = (socket.AF_UNIX, 1), (socket.AF_INET, 2), (socket.AF_INET6, 1), (38, 5, 0), (40, 1), (17, 3)
    sys.exit(" ".join([tried(*kind) for kind in kinds] + [str(same)]))
"""
    assert fault_of(tmp_path / "a", code).endswith(": made refused refused refused refused refused True")
    hoards = """def act(message):
  import socket
  for _ in range(4):
    if os.fork() == 0: held = [socket.socketpair() for _ in range(120)]; time.sleep(60)
  time.sleep(60)"""
    small = replace(LIMITS, memory_mb=128)
    with kill_descendants(), player_of(agent_of(tmp_path / "b", hoards), small) as player:
        assert play(player).fault.reason.endswith("more than 128 MB of memory in all processes")


def test_process_that_ends_while_the_table_is_read_is_left_out(monkeypatch):
    looked_at = os.stat

    def gone(path, **options):
        if str(path).startswith("/proc/") and str(path).endswith("/stat"):
            raise ProcessLookupError(3, "No such process", str(path))
        return looked_at(path, **options)

    monkeypatch.setattr(os, "stat", gone)
    assert parents_of_all()[os.getpid()] == os.getppid()
