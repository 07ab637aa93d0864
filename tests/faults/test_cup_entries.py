"""Every kind of submission in one cup: it ends, and each has its reason on its page."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch

from commands import call
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import read_card, write_card, write_player

READY = """
import json, sys
hello = json.loads(sys.stdin.readline())
print(json.dumps({"type": "ready"}), flush=True)
step = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] != "act":
        continue
    step += 1
    actions = [6] * len(message["games"])
"""
ANSWER = '    print(json.dumps({"actions": actions}), flush=True)\n'
#: Name -> (what it does in the loop before it answers, words of the reason that is told).
AGENTS = {
    "hangs": ("    import time\n    if step > 2: time.sleep(600)\n", "no answer within"),
    "exits": ("    if step > 2: sys.exit(3)\n", "3"),
    "garbage": ("    if step > 2: print('<html>'); sys.stdout.flush(); continue\n", "JSON"),
    "illegal": ("    if step > 2: actions[0] = 7\n", "7"),
}


class Trap:
    """Whoever unpickles this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def bundle(folder: Path, name: str) -> Path:
    shutil.copytree(data_root() / "checkpoints" / "blue-rookie", folder / name)
    return folder / name


def rewritten(folder: Path, name: str, change) -> None:
    """A bundle whose card fits its changed weights, as an exporter gone wrong would write it."""
    from safetensors.torch import load_file  # noqa: PLC0415

    source = data_root() / "checkpoints" / "blue-rookie"
    weights = load_file(source / "model.safetensors")
    key = next(iter(weights))
    weights[key] = change(weights[key])
    card = read_card(source).model_dump(exclude={"bytes", "sha256"})
    write_player(folder / name, weights, card)


def with_size(folder: Path, data: bytes) -> None:
    """Write the model and let the card agree with its size and hash."""
    import hashlib  # noqa: PLC0415

    (folder / "model.safetensors").write_bytes(data)
    card = read_card(folder).model_copy(update={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    write_card(folder, card)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handed-in")
    for name, (loop, _) in AGENTS.items():
        (folder / name).mkdir()
        (folder / name / "agent.yaml").write_text("command: [python3, agent.py]\n")
        (folder / name / "agent.py").write_text(READY + loop + ANSWER)
    (folder / "never-ready").mkdir()
    (folder / "never-ready" / "agent.yaml").write_text("command: [sleep, '600']\n")
    bundle(folder, "good")
    with_size(bundle(folder, "pickle"), pickle.dumps(Trap(folder / "trap-went-off")))
    with_size(bundle(folder, "header-10gb"), struct.pack("<Q", 10 * 2**30) + b"{}")
    with (bundle(folder, "file-10gb") / "model.safetensors").open("r+b") as file:
        file.truncate(10 * 2**30)  # sparse: takes no room
    rewritten(folder, "wrong-shape", lambda weight: weight[:-1])
    rewritten(folder, "nan", lambda weight: weight * torch.nan)
    (folder / "no-card").mkdir()
    (folder / "zipped.zip").write_bytes(b"PK")
    return folder


@pytest.fixture(scope="module")
def played(entries, tmp_path_factory):
    output = tmp_path_factory.mktemp("cup") / "cup"
    arguments = ["cup", str(entries), "--games", "6", "--with", "key-runner", "--allow-copies", "-o", str(output)]
    began = time.monotonic()
    result = call(*arguments, "--start-s", "2", "--step-s", "1")
    assert result.exit_code == 0, result.output
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
        ("header-10gb", "safetensors"),
        ("file-10gb", "expected at most"),
        ("wrong-shape", "shape"),
        ("nan", "finite numbers"),
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
    for text in ("finite numbers", "no answer within", "neither card.json nor agent.yaml"):
        assert text in page


def test_entries_that_cannot_play_are_one_row_each(played):
    found, output, _ = played
    rows = [json.loads(path.read_bytes()) for path in (output / "pairings").glob("*.json")]
    broken = {entry["name"] for entry in found["entries"] if entry["kind"] == "broken"}
    assert len(broken) == 7
    assert not [row for row in rows if broken & {row["red"], row["blue"]}]
    ranked = {row["name"] for row in found["standings"]}
    assert all({row["red"], row["blue"]} <= ranked for row in found["sides"])
    for entry in found["entries"]:
        assert len(entry["faults"]) <= 4  # three failed pairings, and one reason for all the rest
