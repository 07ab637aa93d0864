"""Processes of agents that hide, and referees that are killed: nothing goes on afterwards, nothing lies about."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from agents import agent_of
from commands import call
from multigrid_rl.competition import folders
from multigrid_rl.competition.cup import play_pairing
from multigrid_rl.competition.entries import CupConfig, Entry, entry_in
from multigrid_rl.competition.folders import Scratch, remove_leftovers
from multigrid_rl.competition.sandbox import Limits, kill_descendants
from multigrid_rl.config.compose import load_scenario

pytestmark = [
    pytest.mark.usefixtures("trusted"),  # in a sandbox processes have other numbers, and see no note
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone gives a process its orphans"),
]

TABLE = CupConfig("1v1", load_scenario("1v1").spec, 2, 5, Limits())
#: Starts a process that is in no group or session of the agent's and whose parent has left; it notes its number.
DAEMON = """
import subprocess
script = "import os, time; open(%(note)r, 'a').write('%%d ' %% os.getpid()); time.sleep(600)"
starter = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
def hello(message):
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-c", starter, script], start_new_session=True, **pipes)
    while not os.path.exists(%(note)r): time.sleep(0.01)
    say('{"type":"ready"}')
"""
#: Ignores the end of its input and everything that it can.
STUBBORN = """
import signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
def act(message):
    open(%(note)r, 'a').write('%%d ' %% os.getpid())
    while True: time.sleep(1)
"""
COMMAND = """
import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may have been started with nohup
from multigrid_rl.cli.main import app
app()
"""


def noted(note: Path) -> list[int]:
    return list(map(int, note.read_text().split())) if note.exists() else []


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def soon(condition, within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_agent_daemons_end_with_pairing(tmp_path):
    note = tmp_path / "note"
    agent = agent_of(tmp_path / "agent", DAEMON % {"note": str(note)})
    entry = entry_in(agent.folder, TABLE)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        pairing = play_pairing(entry, Entry("random", "scripted", ""), TABLE)
        assert pairing.reason is None
        (daemon,) = noted(note)
        assert not Path(f"/proc/{daemon}").exists()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
def test_agent_daemons_end_with_inspection(tmp_path):
    note = tmp_path / "note"
    agent = agent_of(tmp_path / "agent", DAEMON % {"note": str(note)})
    assert call("inspect", agent.folder).exit_code == 0
    assert len(noted(note)) == 4  # against itself, and from each side
    assert not any(map(running, noted(note)))


def test_fork_bomb_is_ended(tmp_path):
    note = tmp_path / "note"
    # 400 at most: they would never end by themselves.
    chain = f'echo $$ >> {note}; sleep 0.05; [ $(wc -l < {note}) -lt 400 ] && setsid sh -c "$1" x "$1" & '
    with kill_descendants():
        subprocess.run(["setsid", "sh", "-c", chain, "x", chain], check=True)
        assert soon(lambda: len(noted(note)) > 3)
    length = len(noted(note))
    time.sleep(0.3)
    assert len(noted(note)) == length


@pytest.fixture
def stubborn(tmp_path):
    """A cup, or an inspection, that waits for an agent that never answers nor leaves."""
    note = tmp_path / "note"
    agent_of(tmp_path / "in" / "agent", STUBBORN % {"note": str(note)})
    (tmp_path / "tmp").mkdir()
    processes = []

    def start(verb: str) -> tuple[subprocess.Popen, int]:
        what = ["inspect", tmp_path / "in" / "agent"]
        if verb == "cup":
            what = ["cup", tmp_path / "in", "--with", "random", "-o", tmp_path / "cup"]
            what += ["--games", "2", "--start-s", "60", "--step-s", "600"]
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", COMMAND, *map(str, what)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        assert soon(lambda: noted(note), 120)
        return process, noted(note)[0]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number"), [("cup", signal.SIGTERM), pytest.param("inspect", signal.SIGHUP, marks=pytest.mark.long)]
)
def test_terminated_referee_leaves_no_process_or_folder(verb, number, stubborn, tmp_path):
    process, agent = stubborn(verb)
    process.send_signal(number)
    lines = process.communicate(timeout=120)[1].splitlines()
    assert process.returncode == 130
    assert lines[-1].startswith("multigrid-rl: interrupted")
    assert not running(agent)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_agent_ends_with_killed_referee(stubborn, tmp_path, monkeypatch):
    process, agent = stubborn("cup")
    process.kill()
    process.wait()
    assert soon(lambda: not running(agent))
    left = list((tmp_path / "tmp").iterdir())
    assert len(left) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    remove_leftovers()
    assert list((tmp_path / "tmp").iterdir()) == left  # too young: nobody may have come to lock it
    monkeypatch.setattr(folders, "_YOUNG_S", -1.0)
    with closing(Scratch()) as used:  # that of the next agent, or training
        assert list((tmp_path / "tmp").iterdir()) == [used.path]
        remove_leftovers()
        assert list((tmp_path / "tmp").iterdir()) == [used.path]
