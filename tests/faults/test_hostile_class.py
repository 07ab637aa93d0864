"""A class of which half cheats: nobody's result is another one's doing, and who cheats is told with the reason."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents import agent_of
from bundles import bundle_of
from multigrid_rl.competition import sandbox

pytestmark = pytest.mark.skipif(not sandbox.bwrap_available(), reason="bubblewrap is not available")

#: Where the referee, its parent, keeps things: an agent without a sandbox would read it from the process table.
FIND = """
import glob, signal, socket
def referees():
    words = open(f"/proc/{os.getppid()}/cmdline").read().split(chr(0))
    if "multigrid_rl.cli.main" not in words: sys.exit("no referee in sight")
    return os.getppid(), words[words.index("cup") + 1], words[words.index("-o") + 1]
"""
WRITE = """
def hello(message):
    say('{"type":"ready"}')
    _, handed_in, cup = referees()
    for name in glob.glob(handed_in + "/*/*") + glob.glob(cup + "/entries/*/*"):
        if "rewriter" not in name: open(name, "w").write("raise SystemExit(1)")
"""
FORGE = """
def hello(message):
    say('{"type":"ready"}')
    _, _, cup = referees()
    for name in glob.glob(cup + "/pairings/*.json"):
        data = json.load(open(name)); data["outcomes"] = "R" * len(data["outcomes"]); json.dump(data, open(name, "w"))
    for name in ("sound", "master"): open(cup + f"/pairings/forger--{name}--00000000.json", "w").write("{}")
"""
KILL = "\ndef act(message): os.kill(referees()[0], signal.SIGKILL); time.sleep(60)"
STAY = """
def hello(message):
    say('{"type":"ready"}')
    if os.fork() == 0:
        os.setsid()
        for handle in range(3): os.close(handle)
        os.execlp("sleep", "sleep", "4321.25")
"""
GUESS = """
def act(message):
    seed = json.load(open(referees()[2] + "/cup.json"))["seed"]
    sys.exit(f"the seed is {seed}")
"""
READ = "\ndef act(message): sys.exit(open(%r).read())"
CALL = "\ndef act(message): socket.create_connection(('127.0.0.1', %d), 2); sys.exit('connected')"
BOMB = "\ndef act(message):\n  while True:\n    if os.fork() == 0: time.sleep(60)"
SHARE = """
def act(message):
    import mmap
    while True:
        if os.fork() == 0:
            pages = mmap.mmap(-1, 500_000_000)
            for at in range(0, len(pages), 4096): pages[at] = 1
            time.sleep(60)
        time.sleep(0.3)
"""
FILL = "\ndef act(message):\n  for k in range(99): open(f'{k}', 'wb').write(bytes(20_000_000))\n  time.sleep(60)"


def class_of(folder: Path, *hostile: str) -> Path:
    """A folder of hand-ins: two sound ones, and these."""
    bundle_of(folder / "sound", "blue-adept", noise=0.6)
    agent_of(folder / "honest")
    secret = folder.parent / "secret"
    secret.write_text("the instructor's secret")
    code = {"rewriter": WRITE, "forger": FORGE, "killer": KILL, "leaver": STAY, "guesser": GUESS}
    code |= {"reader": READ % str(secret), "caller": CALL % 9, "bomb": BOMB, "filler": FILL, "sharer": SHARE}
    bundles = {"clone": ("blue-adept", 0.0), "near": ("blue-adept", 0.02), "renamed": ("blue-master", 0.0)}
    for name in hostile:
        if name in code:
            agent_of(folder / name, FIND + code[name])
        else:
            bundle_of(folder / name, *bundles[name])
    return folder


def play(handed_in: Path, cup: Path, *options: str, starts: int = 1) -> tuple[dict, int]:
    """Play a cup as a user would, again where it is killed. Returns its results and how often it was started."""
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "cup", handed_in, "-o", cup, *options]
    command += ["--games", "2", "--seed", "5", "--with", "random", "--step-s", "10"]
    codes = []
    while len(codes) < starts and (not codes or codes[-1] == -signal.SIGKILL):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1500, check=False)
        codes.append(done.returncode)
    assert codes[-1] == 0, done.stderr
    return json.loads((cup / "results.json").read_text()), len(codes)


def between_the_sound(cup: Path) -> dict[str, object]:
    """The pairings of those who do nothing wrong."""
    found = {}
    for path in (cup / "pairings").glob("*.json"):
        data = json.loads(path.read_text())
        if {data["red"], data["blue"]} <= {"sound", "honest", "random"}:
            found[path.name] = {key: data[key] for key in ("outcomes", "length", "return_red", "reason")}
    return found


HOSTILE = "rewriter forger leaver guesser reader caller bomb filler sharer clone near renamed killer"
#: Why each gave up; who leaves a process behind plays on.
REASONS = {
    **dict.fromkeys(("rewriter", "forger", "killer", "guesser"), "no referee in sight"),
    "reader": "No such file or directory",
    "caller": "Connection refused",
    "bomb": "more than 64 processes",
    "filler": "more than 256 MB of files",
    "sharer": "more than 2048 MB of memory",
}


@pytest.mark.long
def test_hostile_class_is_named_and_changes_no_result(tmp_path):
    alone = class_of(tmp_path / "alone" / "in")
    play(alone, tmp_path / "quiet")
    found, _ = play(class_of(tmp_path / "all" / "in", *HOSTILE.split()), tmp_path / "loud")
    assert between_the_sound(tmp_path / "loud") == between_the_sound(tmp_path / "quiet")
    entries = {entry["name"]: entry for entry in found["entries"]}
    assert len(entries) == len(HOSTILE.split()) + 3
    for name, reason in REASONS.items():
        text = " ".join(fault["reason"] for fault in entries[name]["faults"])
        others = ("No space left", "no answer within") if name == "filler" else ()  # a slow disk
        assert any(its in text for its in (reason, *others)), (name, text)
    alike = {"clone": "blue-adept (the same)", "near": "blue-adept (", "renamed": "blue-master (the same)"}
    for name, original in alike.items():
        assert entries[name]["same_as"][0].startswith(original)
        assert entries[name]["kind"] == "broken"
    assert "% of its actions" in entries["near"]["same_as"][0]
    for name in ("sound", "honest", "random"):
        assert not entries[name]["faults"]
    assert not (tmp_path / "loud" / "pairings" / "forger--sound--00000000.json").exists()
    text = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not any(b"4321.25" in line for line in text)


@pytest.mark.long
def test_trusted_killer_of_cup_loses_and_is_named(tmp_path):
    handed_in = class_of(tmp_path / "in", "killer")
    play(class_of(tmp_path / "alone" / "in"), tmp_path / "quiet", "--trusted")
    found, starts = play(handed_in, tmp_path / "cup", "--trusted", starts=8)
    assert 2 <= starts <= 7  # once for each pairing in which it was not out yet
    faults = next(entry for entry in found["entries"] if entry["name"] == "killer")["faults"]
    assert any("the cup was killed while it played this" in fault["reason"] for fault in faults)
    assert between_the_sound(tmp_path / "cup") == between_the_sound(tmp_path / "quiet")
    assert found["unranked"] == ["killer"]
