"""Copies of players: exact ones, near ones, and networks that only look alike because they have learned nothing."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agents import agent_of
from bundles import bundle, edit, vouch
from commands import call
from multigrid_rl.config import data_root, load_scenario
from multigrid_rl.judge.copies import BOUND, Originals, distance, find_similar
from multigrid_rl.judge.cup.cup import forfeited
from multigrid_rl.judge.cup.entries import CupConfig, Entry, find_copies, find_entries
from multigrid_rl.judge.cup.standings import results
from multigrid_rl.judge.gradebook import KEY_FILE
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import MAX_MODEL_BYTES, MODEL_FILE
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.sandbox import MAX_FILES, MAX_PROCESSES, Limits
from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.spaces import token_categories

SPEC = load_scenario("1v1").spec
CATALOGUE = Catalogue(data_root() / "checkpoints")
TABLE = CupConfig("1v1", SPEC, 2, 5, Limits())


@pytest.fixture(scope="module")
def originals() -> Originals:
    return Originals(SPEC, CATALOGUE)


def copied(folder: Path, noise: float = 0.0, name: str = "blue-master") -> Path:
    """A player of the catalogue with another name, and a little noise on its weights."""
    shutil.copytree(data_root() / "checkpoints" / name, folder)
    weights = load_file(folder / MODEL_FILE)
    random = torch.Generator().manual_seed(1)
    for key, weight in weights.items():
        weights[key] = weight + noise * weight.std(correction=0) * torch.randn(weight.shape, generator=random)
    save_file(weights, folder / MODEL_FILE, metadata={"by": "me"})
    vouch(folder)
    edit(folder, name="mine", strength=[])
    return folder


def test_finds_copy_despite_changed_card_and_noisy_weights(tmp_path, originals):
    for noise, most in ((0.0, 0.0), (0.01, 0.01), (0.1, 0.02)):
        like = find_similar(originals.fingerprint(copied(tmp_path / f"{noise}", noise)), originals.players)
        assert [likely.name for likely in like] == ["blue-master"]
        assert like[0].apart <= most
        assert (like[0].apart == 0) == (noise == 0)


def test_independently_trained_players_are_no_copies(originals):
    names = list(originals.players)
    assert {"blue-rookie", "blue-adept", "blue-master"} <= set(names)
    distances = [distance(originals.players[a], originals.players[b]) for a in names for b in names if a < b]
    assert min(distances) > 1.5 * BOUND


def test_untrained_networks_are_no_copies(tmp_path, originals):
    for seed in (1, 2):
        folder = bundle(tmp_path / str(seed), seed=seed)
        save_file({key: 0.01 * its for key, its in load_file(folder / MODEL_FILE).items()}, folder / MODEL_FILE)
        vouch(folder)
    one, two = (originals.fingerprint(tmp_path / name) for name in "12")
    assert distance(one, two) is None
    assert distance(one, originals.fingerprint(tmp_path / "1")) == 0


@pytest.mark.parametrize("scenario", ["2v2", "single", "coop"])
def test_other_games_provide_views_to_compare(scenario):
    its = Originals(load_scenario(scenario).spec, CATALOGUE)
    assert its.views.shape[:2] == (1024, len(its.spec.seats_of("red")))


def test_cup_names_copies_and_rejects_catalogue_copies(tmp_path, originals):
    copied(tmp_path / "renamed")
    copied(tmp_path / "near", 0.03)
    bundle(tmp_path / "own", seed=1)
    bundle(tmp_path / "twin", seed=1)
    for name in ("program", "second"):
        agent_of(tmp_path / name)
        (tmp_path / name / "agent.yaml").write_text(f"command: [python3, agent.py]\nname: {name}\n")
    found = find_entries(tmp_path, ["blue-master", "random"], CATALOGUE, TABLE)
    entries = {entry.name: entry for entry in find_copies(found, originals, refuse=True)}
    assert {name: entry.same_as[:1] for name, entry in entries.items()} == {
        "blue-master": (), "random": (), "renamed": ("blue-master (the same)",), "own": ("twin (the same)",),
        "near": (entries["near"].same_as[0],), "twin": ("own (the same)",),
        "program": ("second (the same)",), "second": ("program (the same)",),
    }  # fmt: skip
    assert {name for name, entry in entries.items() if entry.kind == "broken"} == {"renamed", "near"}
    assert "--allow-copies" in entries["near"].problem
    allowed = find_copies(found, originals, refuse=False)
    assert not [entry.name for entry in allowed if entry.kind == "broken"]
    pairings = [forfeited(allowed[0], allowed[1], TABLE, {"near": "x"})]
    output = results(allowed, pairings, TABLE, {})
    assert [entry.same_as for entry in output.entries if entry.name == "own"] == [["twin (the same)"]]
    assert "the same)" not in cup_page(output)  # it is public


def test_catalogue_cup_has_no_copies(originals):
    found = find_entries(CATALOGUE.root, ["random"], CATALOGUE, TABLE)
    assert all(not entry.same_as for entry in find_copies(found, originals, refuse=True))
    assert isinstance(found[0], Entry)


def test_rubric_may_reject_known_players(tmp_path):
    exam = "{name: x, opponent: idle, episodes: 100, checks: [{metric: episode_len_mean, at_most: 300, points: 1}]}"
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(f"scenario: 1v1\nrefuse_known: true\npass_points: 1\nexams: [{exam}]\n")
    copied(tmp_path / "class" / "thief", 0.01)
    copied(tmp_path / "before" / "anna", 0.5)
    copied(tmp_path / "class" / "berta", 0.5)
    bundle(tmp_path / "class" / "caro", seed=3)
    command = ["grade", tmp_path / "class" / "thief", "--rubric", rubric]
    refused = call(*command)
    assert refused.exit_code == 1
    assert "thief: expected an original player, got a copy of blue-master (0." in refused.output
    allowed = call(*command, "--allow-copies")
    assert allowed.exit_code == 0, allowed.output
    assert json.loads(allowed.output.splitlines()[-1])["same_as"][0]["name"] == "blue-master"
    table = tmp_path / "grades.csv"
    done = call("grade", tmp_path / "class", "--rubric", rubric, "--earlier", tmp_path / "before", "-o", table)
    assert done.exit_code == 0, done.output
    rows = {line.split(",")[0]: line for line in table.read_text().splitlines()}
    assert "got a copy of before/anna (the same)" in rows["berta"]
    assert "blue-master (0." in rows["thief"]
    assert "copy" not in rows["caro"]


@pytest.mark.parametrize("scale", [1.0, 1e-39])
def test_widest_allowed_network_does_not_stall_cup(scale, tmp_path, originals):
    wide = {"name": "mlp", "hidden": [512, 512], "activation": "tanh"}
    net = build(wide, token_categories(SPEC), len(ACTIONS), 1)
    weights = {key: its * scale if its.dim() > 1 else its for key, its in net.state_dict().items()}
    folder = bundle(tmp_path / "wide")
    save_file(weights, folder / MODEL_FILE)
    vouch(folder)
    edit(folder, architecture=wide)
    assert (folder / MODEL_FILE).stat().st_size > 0.9 * MAX_MODEL_BYTES
    begin = time.process_time()
    originals.fingerprint(folder)
    assert time.process_time() - begin < 5.0  # 1,024 views; a step of a cup of 200 games is a fifth of that


def test_instructor_page_is_accurate():
    page = (data_root() / "docs" / "instructors.md").read_text(encoding="utf-8")
    own = f"{MAX_PROCESSES} processes, `--memory-mb` for all together, {Limits().disk_mb} MB, {MAX_FILES:,} files"
    assert own in page
    assert f"is below {BOUND:.0%}".replace("%", " %") in page
    assert KEY_FILE in page
    for verb in ("cup", "grade"):
        message = call(verb, "--help").output
        for option in ("--isolate", "--no-isolate") if verb == "cup" else ("--earlier",):
            assert option in message
            assert option in page
        assert "--allow-copies" in message
