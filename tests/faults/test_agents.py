"""Agents that break a limit or the protocol: one line that says how, in time, and nothing left of them."""

import gc
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents import agent_of, exists, gone, living, play, player_of
from multigrid_rl.competition.process import MAX_LINE, AgentProcess
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.players.match import PlayerFaultError

pytestmark = [
    pytest.mark.usefixtures("trusted"),  # what a sandbox adds is in test_fence.py
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table"),
]

#: So late a fault may be noticed, on a busy machine: agents would sleep for longer.
SLACK_S = 30.0
#: For agents that answer, if wrongly: on a busy machine they take their time.
PATIENT = Limits(start_s=20.0, step_s=10.0, total_s=20.0, memory_mb=512)
#: For those that do not.
QUICK = replace(PATIENT, step_s=0.3)


@pytest.fixture
def groups(monkeypatch) -> list[int]:
    """Process groups of all agents that a test starts."""
    started: list[int] = []
    before = AgentProcess.__init__

    def noted(self, *args):
        before(self, *args)
        started.append(self.pid)

    monkeypatch.setattr(AgentProcess, "__init__", noted)
    return started


def fault(tmp_path, groups, code, limits=PATIENT, command=None, games=3) -> str:
    """Why an agent gave up; checks that it ended in time, cleanly, and that its games count as unfinished."""
    agent = agent_of(tmp_path / "culprit", code, *([command] if command else []))
    begin = time.monotonic()
    with player_of(agent, limits) as player:
        played = play(player, games)
        assert gone(groups[0])  # already now, not only when the block ends
    assert time.monotonic() - begin < SLACK_S
    assert not exists(groups[0])
    assert len(groups) == 1
    assert played.fault is not None
    assert played.fault.name == "culprit"
    assert not played.finished.all()
    assert "\n" not in played.fault.reason
    assert len(played.fault.reason) < 400
    return played.fault.reason


ACT = "def act(message): "
START = "def hello(message): "
FAULTS = {
    "sleeps": (ACT + "time.sleep(60)", "step 0: no answer within 0.3 s"),
    "stops reading": ('def hello(m): say(\'{"type":"ready"}\'); time.sleep(60)', "step 0: no answer within 0.3 s"),
    "exits": (ACT + "sys.exit(3)", "step 0: exited with status 3"),
    "raises": (ACT + "1 / 0", "step 0: exited with status 1: ZeroDivisionError: division by zero"),
    "is killed": (ACT + "os.kill(os.getpid(), 11)", "step 0: was killed by SIGSEGV"),
    "says goodbye": (ACT + "sys.exit('I quit')", "step 0: exited with status 1: I quit"),
    "closes its output": (ACT + "os.close(1); time.sleep(60)", "step 0: closed its output"),
    "closes its input": (
        'def hello(m): os.close(0); say(\'{"type":"ready"}\'); time.sleep(60)',
        "step 0: closed its output",
    ),
    "prose": (ACT + "say('left, I think')", "step 0: answer: expected JSON, got left, I think"),
    "half an answer": (ACT + "say('{\"actions\":[2,')", 'step 0: answer: expected JSON, got {"actions":[2,'),
    "no text": (ACT + "sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush()", "step 0: answer: expected JSON"),
    "an empty line": (ACT + "say('')", "step 0: answer: expected JSON, got an empty line"),
    "a list": (ACT + "say('[2,2,2]')", "step 0: answer: expected a JSON object, got [2,2,2]"),
    "no actions": (ACT + "say('{\"action\":2}')", 'step 0: answer: expected {"actions":[...]}, got {"action":2}'),
    "a nest": (ACT + "say('[' * 100000)", "step 0: answer: expected JSON"),
    "a number without end": (ACT + "say('{\"actions\":' + '9' * 10000 + '}')", "step 0: answer: expected JSON"),
    "too few": (ACT + "say('{\"actions\":[2,2]}')", "actions: expected one for each of the 3 games, got 2"),
    "too many": (ACT + "say('{\"actions\":[2,2,2,2]}')", "actions: expected one for each of the 3 games, got 4"),
    "seven": (ACT + "say('{\"actions\":[2,7,2]}')", "step 0: game 1: red_0: expected an integer 0 to 6, got 7"),
    "minus one": (ACT + "say('{\"actions\":[2,-1,2]}')", "step 0: game 1: red_0: expected an integer 0 to 6, got -1"),
    "a float": (ACT + "say('{\"actions\":[2.0,2,2]}')", "step 0: game 0: red_0: expected an integer 0 to 6, got 2.0"),
    "a bool": (ACT + "say('{\"actions\":[2,2,true]}')", "step 0: game 2: red_0: expected an integer 0 to 6, got true"),
    "a word": (ACT + 'say(\'{"actions":[2,2,"left"]}\')', 'red_0: expected an integer 0 to 6, got "left"'),
    "nothing": (ACT + "say('{\"actions\":[null,2,2]}')", "game 0: red_0: expected an integer 0 to 6, got null"),
    "another seat": (
        ACT + 'say(\'{"actions":[2,2,{"blue_0":2}]}\')',
        "step 0: game 2: expected an action for each of red_0, got",
    ),
    "two lines": (ACT + "say('{\"actions\":[2,2,2]}\\n{}')", "step 0: answer: expected one line, got {} behind it"),
    "chatter": ("def hello(m): say('{\"type\":\"ready\"}'); time.sleep(0.2); say('hello!'); time.sleep(0.2)", "hello!"),
    "no end of line": (ACT + "os.write(1, b'2'); time.sleep(60)", "step 0: no answer within 0.3 s"),
    "no line ever": (
        ACT + "\n  while True: os.write(1, b'x' * 65536)",
        f"step 0: answer: expected at most {MAX_LINE} bytes",
    ),
    # Many lines at a time, fewer bytes than a pipe takes at once: one line alone might be read as the answer.
    "lines without end": (
        ACT + "\n  while True: say('\\n'.join(['x' * 100] * 30))",
        "step 0: answer: expected one line, got ",
    ),
    "no memory": (ACT + "bytearray(2**31)", "step 0: exited with status 1: MemoryError"),
    "a large file": (
        ACT + "\n  with open(os.environ['TMPDIR'] + '/x', 'wb') as file: file.truncate(2**30)",
        "step 0: exited with status 1: OSError: File too large",
    ),
    "is not ready": (START + "time.sleep(60)", "start: not ready within 0.5 s"),
    "is ready for something else": (
        START + 'say(\'{"type":"steady"}\')',
        'start: answer: expected {"type":"ready"}, got {"type":"steady"}',
    ),
    "greets": (START + "say('Hello from a library')", "start: answer: expected JSON, got Hello from a library"),
    "does not start": (START + "sys.exit('no model here')", "start: exited with status 1: no model here"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_one_timely_line_and_leaves_no_process(name, tmp_path, groups):
    code, message = FAULTS[name]
    limits = replace(QUICK, start_s=0.5) if name == "is not ready" else QUICK if "within" in message else PATIENT
    assert message in fault(tmp_path, groups, code, limits)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("[no-such-program]", "start: exited with status 127: no-such-program: No such file or directory"),
        ("[./agent.py]", "start: exited with status 127: ./agent.py: Permission denied"),
        ("[python3, nowhere.py]", "start: exited with status 2: "),
        ("[sh, -c, 'echo oops >&2; kill -9 $$']", "start: was killed by SIGKILL: oops"),
        ("['true']", "start: exited with status 0"),
        ("[cat]", 'start: answer: expected {"type":"ready"}, got {"type":"hello",'),
    ],
)
def test_rejects_command_that_is_no_agent(command, message, tmp_path, groups):
    assert fault(tmp_path, groups, "", command=command).startswith(message)


def test_unresponsive_reader_does_not_block_referee(tmp_path, groups):
    # More than any pipe holds: writing it all would need somebody who reads.
    reason = fault(tmp_path, groups, FAULTS["stops reading"][0], QUICK, games=2000)
    assert reason == "step 0: no answer within 0.3 s"


def test_thinking_time_accumulates(tmp_path, groups):
    code = "def act(m): time.sleep(0.2); say(json.dumps({'actions': [6] * len(m['games'])}))"
    # On a busy machine fewer answers fit; the last may come late to a referee that was kept waiting: it counts.
    reason = fault(tmp_path, groups, code, replace(PATIENT, total_s=1.0))
    assert re.fullmatch("step [1-5]: more than 1 s for all answers", reason)


def test_fault_keeps_games_played_before_it(tmp_path, groups):
    agent = agent_of(tmp_path / "culprit", "def act(m): say('{\"actions\":[2,2,2]}' if m['step'] < 5 else 'x')")
    with player_of(agent, PATIENT) as player:
        played = play(player)
    assert played.fault.reason == "step 5: answer: expected JSON, got x"
    assert played.actions.shape[1] == 5
    np.testing.assert_array_equal(played.table.length, 5)


def test_failed_agent_stays_failed_until_next_games(tmp_path, groups):
    answer = f"say('{{\"actions\":[3,3,3]}}' if os.path.exists({str(tmp_path / 'now')!r}) else 'x')"
    agent = agent_of(tmp_path / "culprit", ACT + answer)
    with player_of(agent, PATIENT) as player:
        first = play(player).fault
        with pytest.raises(PlayerFaultError) as again:
            player.act(None, np.ones(3, np.bool_), None)
        assert again.value is first
        (tmp_path / "now").touch()
        assert play(player).actions.shape[1] > 0
    assert len(groups) == 2
    assert all(map(gone, groups))


CHILDREN = """
import signal, subprocess
def hello(message):
    for _ in range(2): subprocess.Popen(['sh', '-c', 'trap "" HUP TERM INT; while true; do sleep 0.1; done'])
    say('{"type":"ready"}')
"""


@pytest.mark.parametrize("how", ["close", "fault", "forgotten", "ignores goodbye"])
def test_child_processes_end_with_agent(how, tmp_path, groups):
    code = CHILDREN + {"fault": ACT + "sys.exit(1)", "ignores goodbye": "def bye(m): time.sleep(60)"}.get(how, "")
    # Its children keep the pipe open: that nobody answers is all that tells of a fault.
    player = player_of(agent_of(tmp_path / "parent", code), replace(PATIENT, step_s=1.0))
    player.start(3)
    assert len(living(groups[0])) >= 3
    begin = time.monotonic()
    if how == "forgotten":
        del player
        gc.collect()
    elif how == "fault":
        assert play(player).fault is not None
    else:
        player.close()
    assert gone(groups[0])
    assert not exists(groups[0])
    assert time.monotonic() - begin < SLACK_S


def interrupted(player):
    with player:
        player.start(1)
        raise KeyboardInterrupt


def test_agent_processes_end_with_interrupted_referee(tmp_path, groups):
    agent = agent_of(tmp_path / "parent", CHILDREN)
    with pytest.raises(KeyboardInterrupt):
        interrupted(player_of(agent, PATIENT))
    assert gone(groups[0])


@pytest.mark.slow
def test_open_files_and_folders_do_not_leak(tmp_path, groups, monkeypatch):
    agent = agent_of(tmp_path / "culprit", ACT + "sys.exit(1)")
    scratch = tmp_path / "scratch"  # in that of the machine, others may start agents meanwhile
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    counts = []
    for _ in range(5):
        with player_of(agent, PATIENT) as player:
            assert play(player).fault is not None
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[0] == counts[-1]
    assert list(scratch.iterdir()) == []
