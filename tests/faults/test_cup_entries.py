"""Every kind of submission in one cup: it ends, and each has its reason on its page."""

import json
import pickle
import shutil
import time
from pathlib import Path

import pytest

from agents import agent_of
from bundles import vouch
from commands import works
from multigrid_rl.files import data_root

pytestmark = pytest.mark.slow

ACT = """
def act(message):
    actions = [6] * len(message["games"])
    if message["step"] > 2: %s
    say(json.dumps({"actions": actions}))
"""
#: Name -> (what it does before it answers, words of the reason that is told).
AGENTS = {
    "hangs": ("time.sleep(600)", "no answer within"),
    "exits": ("sys.exit(3)", "3"),
    "garbage": ("return say('<html>')", "JSON"),
    "illegal": ("actions[0] = 7", "7"),
}


class Trap:
    """Whoever unpickles this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handed-in")
    for name, (what, _) in AGENTS.items():
        agent_of(folder / name, ACT % what)
    agent_of(folder / "never-ready", command="[sleep, '600']")
    for name in ("good", "pickle"):
        shutil.copytree(data_root() / "checkpoints" / "blue-rookie", folder / name)
    (folder / "pickle" / "model.safetensors").write_bytes(pickle.dumps(Trap(folder / "trap-went-off")))
    vouch(folder / "pickle")
    (folder / "no-card").mkdir()
    (folder / "zipped.zip").write_bytes(b"PK")
    return folder


@pytest.fixture(scope="module")
def played(entries, tmp_path_factory):
    output = tmp_path_factory.mktemp("cup") / "cup"
    arguments = ["cup", str(entries), "--games", "6", "--with", "key-runner", "--allow-copies", "-o", str(output)]
    began = time.monotonic()
    works(*arguments, "--start-s", "2", "--step-s", "1")
    found = json.loads((output / "results.json").read_text())
    return found, output, time.monotonic() - began


def test_sound_entries_win_and_all_are_placed(played, entries):
    found, _, _ = played
    assert [row["name"] for row in found["standings"]][:2] == ["key-runner", "good"]
    assert len(found["standings"]) + len(found["unranked"]) == len(list(entries.iterdir())) + 1
    assert {"pickle", "zipped.zip", "never-ready"} <= set(found["unranked"])
    for row in found["standings"][:2]:
        assert row["forfeited"] == 0


@pytest.mark.parametrize("name", AGENTS)
def test_agent_failing_in_play_forfeits_with_reason(played, name):
    faults = {entry["name"]: entry["faults"] for entry in played[0]["entries"]}[name]
    assert AGENTS[name][1] in faults[0]["reason"]
    assert any("out after 3" in fault["reason"] for fault in faults)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pickle", "expected a safetensors file"),
        ("no-card", "neither card.json nor agent.yaml"),
        ("zipped.zip", "expected a zip file that can be read"),
    ],
)
def test_unplayable_bundle_is_listed_with_reason(played, name, reason):
    entry = next(entry for entry in played[0]["entries"] if entry["name"] == name)
    assert entry["kind"] == "broken"
    assert reason in entry["problem"]
    assert str(played[1].parent) not in entry["problem"]


def test_unpickles_nothing(played, entries):
    assert not (entries / "trap-went-off").exists()


def test_hanging_start_costs_only_start_limit(played):
    entry = next(entry for entry in played[0]["entries"] if entry["name"] == "never-ready")
    assert "2" in entry["faults"][0]["reason"]
    assert played[2] < 300  # it would sleep for twice as long


def test_page_shows_reasons(played):
    page = (played[1] / "report.html").read_text(encoding="utf-8")
    for text in ("expected a safetensors file", "no answer within", "neither card.json nor agent.yaml"):
        assert text in page


def test_entries_that_cannot_play_are_one_row_each(played):
    found, output, _ = played
    rows = [json.loads(path.read_bytes()) for path in (output / "pairings").glob("*.json")]
    broken = {entry["name"] for entry in found["entries"] if entry["kind"] == "broken"}
    assert len(broken) == 3
    assert not [row for row in rows if broken & {row["red"], row["blue"]}]
    ranked = {row["name"] for row in found["standings"]}
    assert all({row["red"], row["blue"]} <= ranked for row in found["sides"])
    for entry in found["entries"]:
        assert len(entry["faults"]) <= 4  # three failed pairings, and one reason for all the rest
