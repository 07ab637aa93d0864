"""Agents for tests: folders with a small program, and whether a process is gone."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from multigrid_rl.competition.agents import Agent, AgentPlayer, read_agent
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.episodes import EpisodeBatch, play_games
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.types import GameSpec

#: Short games: whatever may go wrong goes wrong soon.
SPEC = replace(load_scenario("1v1").spec, max_steps=60)

#: Reads what it is told; `hello` and `act` may be replaced, `say` answers.
PROGRAM = """
import json, os, sys, time
def say(text): print(text, flush=True)
def hello(message): say('{"type":"ready","name":"tester"}')
def act(message): say(json.dumps({"actions": [{seat: 2 for seat in game["seats"]} for game in message["games"]]}))
def end(message): pass
def bye(message): pass
%s
for line in sys.stdin:
    message = json.loads(line)
    globals()[message["type"]](message)
"""

#: Writes what it is told into a file, where it is trusted to, and plays its game's number.
RECORDER = """
log = open(%r, "a")
def note(message): log.write(json.dumps(message) + "\\n"); log.flush()
def hello(message): note(message); say('{"type":"ready"}')
def act(message):
    note(message)
    say(json.dumps({"actions": [{seat: game["game"] %% 7 for seat in game["seats"]} for game in message["games"]]}))
def end(message): note(message)
def bye(message): note(message); note({"type": "rest", "text": sys.stdin.read()}); sys.exit()
"""


def recorder_of(folder: Path) -> tuple[Agent, Callable[[], list[dict]]]:
    """An agent in the new ``folder``, and what it was told so far."""
    log = folder.with_suffix(".log")
    return agent_of(folder, RECORDER % str(log)), lambda: [*map(json.loads, log.read_text().splitlines())]


def agent_of(folder: Path, code: str = "", command: str = "[python3, -I, -S, agent.py]") -> Agent:
    """An agent in the new ``folder`` with ``code`` of its own."""
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(PROGRAM % code)
    (folder / "agent.yaml").write_text(f"command: {command}\n")
    return read_agent(folder)


def play(player: AgentPlayer, games: int = 3, seed: int = 1) -> EpisodeBatch:
    """Games of a 1v1 player against random."""
    seat = "blue_0" if player.seats == ("red_0",) else "red_0"
    return play_games(SPEC, {player.seats[0]: player, seat: RandomPlayer()}, games, seed=seed)


def player_of(
    agent: Agent, limits: Limits | None = None, *, team: str = "red", scenario: str = "1v1", spec: GameSpec = SPEC
) -> AgentPlayer:
    """It plays a team, red of 1v1."""
    return AgentPlayer(agent, spec, spec.seats_of(team), limits or Limits(), scenario=scenario, seed=7)


def living(group: int) -> list[int]:
    """Processes of a group, those that only wait to be reaped left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # gone meanwhile
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def gone(group: int, within: float = 30.0) -> bool:
    """Whether nothing of a process group is left."""
    deadline = time.monotonic() + within
    while living(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def exists(pid: int) -> bool:
    """Whether there is a process, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
