"""Time that counts is the agent's own: neither the machine nor an opponent takes it, and what it costs is its own."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents import SPEC, agent_of, play, player_of
from multigrid_rl.competition import cup, process
from multigrid_rl.competition.entries import CupConfig, entry_in
from multigrid_rl.competition.process import BusyError
from multigrid_rl.competition.sandbox import Limits, kill_descendants
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import RandomPlayer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("trusted"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table"),
]
LIMITS = Limits(start_s=20.0, step_s=10.0, total_s=20.0, memory_mb=512)
ACT = "def act(m):"
ANSWER = "\n  say(json.dumps({'actions': [6] * len(m['games'])}))"
#: Children that compute without end, one of which leaves its parent's group and session.
SPIN = """
def hello(message):
  for k in range(6):
    if os.fork() == 0:
      if k % 2: os.setsid()
      while True: pass
  say('{"type":"ready"}')
"""


def few(player, games, steps):
    """Some steps of games against random."""
    spec = replace(SPEC, max_steps=steps)
    return play_games(spec, {"red_0": player, "blue_0": RandomPlayer()}, games, seed=1)


def computed(pid: int) -> float:
    usage = process.Usage(pid, LIMITS)
    usage._pids = usage._processes()
    process.Usage.running.discard(usage)
    return usage.computed()


def test_who_is_not_asked_stands_still_also_in_a_session_of_its_own(tmp_path):
    with kill_descendants(), player_of(agent_of(tmp_path / "a", SPIN), LIMITS) as player:
        player.start(1)
        before = computed(player._process.pid)
        time.sleep(0.5)
        assert computed(player._process.pid) - before <= 0.02


def test_opponent_that_spins_takes_no_time_of_who_is_asked(tmp_path):
    honest = agent_of(tmp_path / "honest", ACT + "\n  for _ in range(200000): pass" + ANSWER)
    spinner = agent_of(tmp_path / "spinner", SPIN + ACT + ANSWER)
    taken = []
    for rival in (agent_of(tmp_path / "quiet", ACT + ANSWER), spinner):
        with kill_descendants(), player_of(honest, LIMITS) as red, player_of(rival, LIMITS, team="blue") as blue:
            assert play_games(replace(SPEC, max_steps=10), {"red": red, "blue": blue}, 2, seed=1).fault is None
            taken.append(red.thought_s)
    assert taken[1] < 3 * taken[0] + 0.2, taken


def test_machine_that_is_busy_takes_no_time_of_an_agent(tmp_path):
    agent = agent_of(tmp_path / "a", ACT + "\n  for _ in range(2000000): pass" + ANSWER)
    with kill_descendants(), player_of(agent, LIMITS) as player:
        assert few(player, 1, 5).fault is None
        quiet = player.thought_s
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
        assert few(player, 1, 5).fault is None
        for each in busy:
            each.kill()
            each.wait()
        assert player.thought_s < 3 * quiet + 0.3


TRICKLES = "\n  while True: sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.015)"


@pytest.mark.parametrize("how", ["time.sleep(60)", "\n  while True: pass", "subprocess.run(['sleep', '60'])", TRICKLES])
def test_sleeping_and_computing_are_an_agents_own_time(how, tmp_path):
    code = "import subprocess\n" + ACT + " " + how
    with kill_descendants(), player_of(agent_of(tmp_path / "a", code), replace(LIMITS, step_s=0.5)) as player:
        assert play(player, 1).fault.reason == "step 0: no answer within 0.5 s"


def test_late_on_a_busy_machine_is_played_again_and_is_nobodys_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(process.Usage, "computes", lambda self: True)  # as if it waited for a core
    monkeypatch.setattr(process.Usage, "computed", lambda self: 0.0)
    slow = f"if not os.path.exists({str(tmp_path / 'once')!r}): open({str(tmp_path / 'once')!r}, 'w'); time.sleep(60)"
    entry = entry_in(agent_of(tmp_path / "a", f"{ACT}\n  {slow}{ANSWER}").folder, CONFIG)
    idle = entry_in(agent_of(tmp_path / "b", ACT + ANSWER).folder, CONFIG)
    quick = replace(CONFIG, limits=replace(LIMITS, step_s=0.2))
    with pytest.raises(BusyError, match="the machine was too busy"):
        cup.play_pairing(entry, idle, quick)
    (tmp_path / "once").unlink()
    (played, *_) = cup.play_cup([entry, idle], quick, tmp_path / "cup", lambda *_: None)
    assert (played.reason, played.at_fault) == (None, None)


CONFIG = CupConfig("1v1", replace(SPEC, max_steps=5), 2, 1, LIMITS)


def test_reading_what_an_agent_says_of_itself_is_its_own_time_and_done_once(tmp_path):
    code = ACT + "\n  say(json.dumps({'actions': [6] * len(m['games']), 'debug': list(range(40000))}))"
    with kill_descendants(), player_of(agent_of(tmp_path / "a", code), LIMITS) as player:
        before = time.thread_time()
        assert few(player, 100, 10).fault is None
        referee = time.thread_time() - before
    assert all(len(text) < 210 for notes in player.notes.values() for text in notes.values())
    # 10 answers of 230 kB; when each was dumped for each of 100 games, that took a referee 6 s.
    assert referee < player.thought_s + 1.5, (referee, player.thought_s)


def test_start_is_told_apart_from_answers(tmp_path):
    code = 'def hello(m):\n  for _ in range(10**7): pass\n  say(\'{"type":"ready"}\')\n' + ACT + ANSWER
    entry = entry_in(agent_of(tmp_path / "a", code).folder, CONFIG)
    other = entry_in(agent_of(tmp_path / "b", ACT + ANSWER).folder, CONFIG)
    played = cup.play_pairing(entry, other, CONFIG)
    assert 0.05 < played.starts["a"] <= played.seconds["a"]
    assert played.seconds["a"] - played.starts["a"] < 0.5
