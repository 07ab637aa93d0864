"""Copies of players: exact ones, near ones, and networks that only look alike because they have learned nothing."""

import json
import shutil
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agents import agent_of
from bundles import bundle, bundle_of, edit, vouch
from commands import call, works
from multigrid_rl.competition.agents import AgentPlayer, read_agent
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.competition.copies import Originals, agent_fingerprint, watch
from multigrid_rl.competition.cup import forfeit
from multigrid_rl.competition.entries import CupConfig, find_copies, find_entries
from multigrid_rl.competition.sandbox import Limits, bwrap_available
from multigrid_rl.competition.standings import tabulate
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import MAX_MODEL_BYTES, MODEL_FILE
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.show.cup_page import cup_page
from multigrid_rl.types import SeatView
from multigrid_rl.world.constants import ACTIONS, CELL, DONE, MISSIONS, other_side
from multigrid_rl.world.state import token_categories

SPEC = load_scenario("1v1").spec
CATALOGUE = Catalogue(data_root() / "checkpoints")
TABLE = CupConfig("1v1", SPEC, 2, 5, Limits())
CRITIC = {"weight": [0, 2, 0, 2], "bias": [0, 2]}


def hidden_in_memory(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same player with two more units: in the first step of a game, when its memory is empty, it does nothing."""
    pad, hidden, bias = torch.nn.functional.pad, weights["policy.weight"].shape[1], 10.0
    one, two = hidden, hidden + 1
    core = {key: weight for key, weight in weights.items() if key.startswith("core.")}
    gates = {key: pad(gate.unflatten(0, (3, hidden)), [0, 2] * (gate.dim())) for key, gate in core.items()}
    gates["core.bias_ih"][:2, one:] = torch.tensor([50.0, -50.0])[:, None]  # all reset, nothing kept
    gates["core.bias_ih"][2, one] = gates["core.weight_hh"][2, two, one] = 20.0  # 1 after a step, 1 after two
    wide = {key: pad(weights[key], [0, 2]) for key in ("table", "bias", "policy.weight", "value.weight")}
    wide["policy.weight"][DONE, two] = -bias
    wide |= {f"value_hidden.{key}": pad(weights[f"value_hidden.{key}"], by) for key, by in CRITIC.items()}
    grown = {key: gate.flatten(0, 1) for key, gate in gates.items()}
    waits = torch.nn.functional.one_hot(torch.tensor(DONE), len(ACTIONS)) * bias
    return {**weights, **grown, **wide, "policy.bias": weights["policy.bias"] + waits}


def scaled(factor: float, done: float = 0.0) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Another temperature, and a liking for ``done``."""
    waits = done * torch.nn.functional.one_hot(torch.tensor(DONE), len(ACTIONS))
    head = {0: 0.0, 1: waits, 2: 0.0}
    return lambda weights: {
        key: factor * weight + head[weight.dim()] if len(weight) == len(ACTIONS) else weight
        for key, weight in weights.items()
    }


def changed(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """A player of the catalogue with changed weights."""
    weights = change(load_file(bundle_of(folder, name) / MODEL_FILE))
    save_file({key: weight.contiguous() for key, weight in weights.items()}, folder / MODEL_FILE)
    vouch(folder)
    if name == "blue-grandmaster":
        edit(folder, architecture={"name": "gru", "hidden": [len(weights["bias"])], "activation": "tanh"})
    return folder


@pytest.mark.parametrize("name", ["blue-rookie", "blue-adept", "blue-master", "blue-grandmaster"])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_finds_copy_despite_changed_card_and_noisy_weights(name, noise, tmp_path, originals):
    (similar,) = originals.similar(originals.fingerprint(bundle_of(tmp_path / "mine", name, noise)))
    assert similar.name == name
    assert (similar.apart == 0) == (noise == 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("blue-grandmaster", hidden_in_memory),
        ("blue-grandmaster", scaled(0.1)),
        ("blue-grandmaster", scaled(3.0)),
        ("blue-grandmaster", scaled(1.0, done=8.0)),
        ("blue-master", scaled(0.1)),
        ("blue-rookie", scaled(0.1, done=1.0)),
    ],
)
def test_finds_disguised_copy(name, change, tmp_path, originals):
    (similar,) = originals.similar(originals.fingerprint(changed(tmp_path / "mine", name, change)))
    assert similar.name == name
    assert similar.apart > 0


@pytest.mark.parametrize("stolen", ["red_0", "blue_0"])
def test_finds_copy_that_plays_one_side_alone(stolen, tmp_path, originals):
    own = "blue_0" if stolen == "red_0" else "red_0"
    bundle(tmp_path / own, seats=(own,), seed=3)
    edit(bundle_of(tmp_path / stolen, "blue-grandmaster", 0.05), seats=[stolen])
    if stolen == "red_0":  # as it plays the other side
        weights = load_file(tmp_path / stolen / MODEL_FILE)
        weights["table"] = weights["table"][turned_rows()]
        save_file(weights, tmp_path / stolen / MODEL_FILE)
        vouch(tmp_path / stolen)
    assert [player.name for player in originals.similar(originals.fingerprint(tmp_path))] == ["blue-grandmaster"]


def turned_rows() -> torch.Tensor:
    """For each row of a table of tokens the row of the same token, seen from the other side."""
    tokens = token_categories(SPEC)
    offsets = np.concatenate([[0], np.cumsum(tokens)[:-1]])
    rows = []
    for column, size in enumerate(tokens):
        seen = np.zeros((size, len(tokens)), np.uint8)
        seen[:, column] = np.arange(size)
        rows += (offsets[column] + other_side(seen)[:, column]).tolist()
    return torch.tensor(rows)


def test_finds_clone(tmp_path, originals):
    teams = [load_team(CATALOGUE.folder("blue-adept"), SPEC, team) for team in ("red", "blue")]
    match = match_of(SPEC, teams[0] | teams[1], 256, seed=99)
    tokens = np.concatenate([match.env.world.outputs.tokens[:, 0].copy() for _ in range(40) if match.step({})])
    outputs, _ = teams[1]["blue_0"].outputs(SeatView(tokens, None, 0), torch.zeros(len(tokens), 0))
    wanted = torch.from_numpy(outputs).softmax(-1)
    wide = {"name": "mlp", "hidden": [128], "activation": "tanh"}
    net = build(wide, token_categories(SPEC), len(ACTIONS), 5)
    optimiser = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(8):
        for rows in torch.randperm(len(tokens), generator=torch.Generator().manual_seed(1)).split(512):
            loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(tokens)[rows])[0], wanted[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    folder = bundle(tmp_path / "clone", seats=("blue_0",))
    save_file(dict(net.state_dict()), folder / MODEL_FILE)
    vouch(folder)
    edit(folder, architecture=wide)
    assert [player.name for player in originals.similar(originals.fingerprint(folder))] == ["blue-adept"]


def test_independently_trained_players_are_no_copies(originals):
    networks = {name: its for name, its in originals.players.items() if its.teams is not None}
    assert {"blue-rookie", "blue-adept", "blue-master", "blue-grandmaster", "2v2-master"} <= set(networks)
    for name, its in networks.items():
        assert [player.name for player in originals.similar(its)] == [name]


def test_untrained_networks_are_no_copies(tmp_path, originals):
    for seed in (1, 2):
        folder = bundle(tmp_path / str(seed), seed=seed)
        save_file({key: 0.01 * its for key, its in load_file(folder / MODEL_FILE).items()}, folder / MODEL_FILE)
        vouch(folder)
    one, two = (originals.fingerprint(tmp_path / name) for name in "12")
    assert originals.similar(one, {"two": two}) == []
    assert originals.similar(one, {"twin": originals.fingerprint(tmp_path / "1")})[0] == ("twin", 0.0, 1.0)


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", ["blue-rookie", "blue-adept", "blue-grandmaster"])
def test_finds_agent_that_answers_as_network(name, greedy, team, originals):
    (player,) = load_team(CATALOGUE.folder(name), SPEC, team, greedy=greedy).values()
    watched = {team: watch(SPEC, team, player, 200, 7)}
    assert [found.name for found in originals.similar(agent_fingerprint([]), probes=watched)] == [name]


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("example", ["python", "shell"])
def test_example_agents_are_no_copies_of_networks(example, team, originals):
    with AgentPlayer(read_agent(data_root() / "examples/agents" / example), SPEC, SPEC.seats_of(team)) as agent:
        watched = {team: watch(SPEC, team, agent, 100, 7)}
    assert originals.similar(agent_fingerprint([]), probes=watched) == []


def test_networks_that_an_agent_is_compared_with_are_loaded_one_at_a_time(originals):
    class Held(dict):
        """A dictionary that can be seen to be gone."""

    mine, held = originals.players["blue-master"], []

    def load(name):
        assert not any(one() for one in held)
        teams = Held(mine.teams)
        held.append(weakref.ref(teams))
        return mine._replace(teams=teams)

    (player,) = load_team(CATALOGUE.folder("blue-master"), SPEC, "red").values()
    others = {name: mine._replace(teams=None) for name in ("h1", "h2", "h3")}
    found = originals.similar(agent_fingerprint([]), others, {"red": watch(SPEC, "red", player, 200, 7)}, load)
    assert {one.name for one in found} == {*others, "blue-master"}
    assert len(held) == 3


def test_agent_that_fails_is_compared_by_what_it_answered_before(originals):
    (player,) = load_team(CATALOGUE.folder("blue-grandmaster"), SPEC, "red").values()
    act, steps = player.act, iter(range(4))

    def fails_later(view, state, rng):
        if next(steps, None) is None:
            raise PlayerFaultError("tired", "too tired")
        return act(view, state, rng)

    player.act = fails_later
    watched = {"red": watch(SPEC, "red", player, 200, 7)}
    assert [found.name for found in originals.similar(agent_fingerprint([]), probes=watched)] == ["blue-grandmaster"]


def test_finds_files_of_others_in_agent(tmp_path, originals):
    agent_of(tmp_path / "thief")
    weights = load_file(data_root() / "checkpoints" / "blue-master" / MODEL_FILE)
    (tmp_path / "thief" / "deep").mkdir()
    save_file({f"mine-{key}": weight for key, weight in weights.items()}, tmp_path / "thief" / "deep" / "data.bin")
    assert originals.similar(originals.fingerprint(tmp_path / "thief"))[0] == ("blue-master", 0.0, 1.0)
    shutil.copytree(data_root() / "examples" / "agents" / "python", tmp_path / "grace")
    (tmp_path / "grace" / "agent.yaml").write_text("command: [python3, src/mine.py]\nname: grace\n")
    (tmp_path / "grace" / "src").mkdir()
    (tmp_path / "grace" / "agent.py").rename(tmp_path / "grace" / "src" / "mine.py")
    (tmp_path / "grace" / "notes.txt").write_text("all my own work")
    assert originals.similar(originals.fingerprint(tmp_path / "grace"))[0] == ("examples/agents/python", 0.0, 1.0)


@pytest.mark.parametrize("scenario", ["2v2", "coop"])
def test_other_games_provide_views_to_compare(scenario, tmp_path):
    its = Originals(load_scenario(scenario).spec, CATALOGUE)
    own, twin = (bundle(tmp_path / name, seats=its.spec.seats_of("red"), seed=1) for name in ("own", "twin"))
    save_file({key: 0.5 * weight for key, weight in load_file(own / MODEL_FILE).items()}, twin / MODEL_FILE)
    vouch(twin)
    (similar,) = its.similar(its.fingerprint(own), {"twin": its.fingerprint(twin)})
    assert similar.name == "twin"
    assert similar.apart > 0


@pytest.mark.slow
def test_cup_names_copies_and_rejects_catalogue_copies(tmp_path, originals):
    bundle_of(tmp_path / "renamed", "blue-master")
    bundle_of(tmp_path / "near", "blue-master", 0.03)
    bundle(tmp_path / "own", seed=1)
    bundle(tmp_path / "twin", seed=1)
    for name in ("program", "second"):
        agent_of(tmp_path / name)
        (tmp_path / name / "agent.yaml").write_text(f"command: [python3, agent.py]\nname: {name}\n")
    found = find_entries(tmp_path, ["blue-master", "random"], CATALOGUE, TABLE)
    entries = {entry.name: entry for entry in find_copies(found, originals, TABLE, refuse=True)}
    assert {name: entry.same_as[:1] for name, entry in entries.items()} == {
        "blue-master": (), "random": (), "renamed": ("blue-master (the same)",), "own": ("twin (the same)",),
        "near": (entries["near"].same_as[0],), "twin": ("own (the same)",),
        "program": ("second (the same)",), "second": ("program (the same)",),
    }  # fmt: skip
    assert {name for name, entry in entries.items() if entry.kind == "broken"} == {"renamed", "near"}
    assert "--allow-copies" in entries["near"].problem
    allowed = find_copies(found, originals, TABLE, refuse=False)
    assert not [entry.name for entry in allowed if entry.kind == "broken"]
    pairings = [forfeit(allowed[0], allowed[1], TABLE, {"near": "x"})]
    output = tabulate(allowed, pairings, TABLE, {})
    assert [entry.same_as for entry in output.entries if entry.name == "own"] == [["twin (the same)"]]
    assert "the same)" not in cup_page(output)  # it is public


@pytest.mark.slow
def test_rubric_may_reject_known_players(tmp_path):
    exam = "{name: x, opponent: idle, episodes: 100, checks: [{metric: episode_len_mean, at_most: 300, points: 1}]}"
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(f"scenario: 1v1\nrefuse_known: true\npass_points: 1\nexams: [{exam}]\n")
    for name, noise in (("class/thief", 0.01), ("before/anna", 0.5), ("class/berta", 0.5)):
        bundle_of(tmp_path / name, "blue-master", noise)
    bundle(tmp_path / "class" / "caro", seed=3)
    command = ["grade", tmp_path / "class" / "thief", "--rubric", rubric]
    refused = call(*command)
    assert refused.exit_code == 1
    copy = "blue-master (100% of its actions, <0.01% apart)"
    assert f"thief: expected an original player, got a copy of {copy}" in refused.output
    allowed = works(*command, "--allow-copies")
    assert json.loads(allowed.output.splitlines()[-1])["same_as"][0]["name"] == "blue-master"
    table = tmp_path / "grades.csv"
    works("grade", tmp_path / "class", "--rubric", rubric, "--earlier", tmp_path / "before", "-o", table)
    rows = {line.split(",")[0]: line for line in table.read_text().splitlines()}
    assert "got a copy of before/anna (the same)" in rows["berta"]
    assert "blue-master (100%" in rows["thief"]
    assert "copy" not in rows["caro"]
    # Whom it is like is the instructor's to know.
    told = [(table.with_suffix("") / "feedback" / f"{name}.md").read_text() for name in ("berta", "thief")]
    for text in told:
        assert "not original: talk to your instructor" in text
        assert not any(words in text for words in ("anna", "blue-master", "% of its"))


@pytest.mark.parametrize(("wanted", "other"), [("bundle", "an agent"), ("agent", "a bundle")])
def test_rubric_may_ask_for_bundle_or_agent(wanted, other, tmp_path):
    exam = "{name: x, opponent: idle, episodes: 100, checks: [{metric: episode_len_mean, at_most: 300, points: 1}]}"
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(f"scenario: 1v1\nhand_in: {wanted}\npass_points: 1\nexams: [{exam}]\n")
    if wanted == "agent":
        bundle(tmp_path / "mine")
    else:
        agent_of(tmp_path / "mine")
    result = call("grade", tmp_path / "mine", "--rubric", rubric)
    assert result.exit_code == 1
    assert f"hand-in: expected {wanted}, got {other}" in result.output


#: Plays as blue-rookie does, by its weights with fewer digits.
PUPIL = """
import numpy as np
weights = dict(np.load("weights.npz"))
codes = json.loads(open("codes.json").read())
def logits(tokens):
    first = np.cumsum([0, *codes["sizes"][:-1]])
    hidden = np.tanh(weights["table"][first + tokens].astype(np.float32).sum(1) + weights["bias"])
    second = np.tanh(hidden[:, :64] @ weights["policy.1.weight"].T + weights["policy.1.bias"])
    return second @ weights["policy.3.weight"].T + weights["policy.3.bias"]
def act(message):
    rows = []
    for game in message["games"]:
        (view,) = game["seats"].values()
        cells = [codes["cells"][str(cell)] for column in view["image"] for cell in column]
        rows.append([*cells, view["direction"], codes["missions"].index(view["mission"])])
    say(json.dumps({"actions": logits(np.array(rows)).argmax(1).tolist()}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not available")
def test_cup_finds_agent_that_wraps_player(tmp_path, originals):
    agent_of(tmp_path / "pupil", PUPIL, "[python3, agent.py]")
    weights = load_file(data_root() / "checkpoints" / "blue-rookie" / MODEL_FILE)
    np.savez(
        tmp_path / "pupil" / "weights.npz",
        **{key: weight.numpy().astype(np.float16) for key, weight in weights.items()},
    )
    cells = {str(cell): code for code, cell in reversed(list(enumerate(CELL.tolist())))}
    codes = {"sizes": list(token_categories(SPEC)), "cells": cells, "missions": list(MISSIONS)}
    (tmp_path / "pupil" / "codes.json").write_text(json.dumps(codes))
    agent_of(tmp_path / "own")
    table = replace(TABLE, games=64, limits=Limits())
    found = find_copies(find_entries(tmp_path, [], CATALOGUE, table), originals, table, refuse=True)
    assert [(entry.name, entry.kind) for entry in found] == [("own", "external"), ("pupil", "broken")]
    assert "a copy of blue-rookie" in found[1].problem


@pytest.mark.parametrize("scale", [1.0, 1e-39])
def test_widest_allowed_network_does_not_stall_cup(scale, tmp_path, originals):
    wide = {"name": "mlp", "hidden": [512, 512], "activation": "tanh"}
    net = build(wide, token_categories(SPEC), len(ACTIONS), 1)
    weights = {key: its * scale if its.dim() > 1 else its for key, its in net.state_dict().items()}
    folder = bundle(tmp_path / "wide")
    save_file(weights, folder / MODEL_FILE)
    vouch(folder)
    edit(folder, architecture=wide)
    assert (folder / MODEL_FILE).stat().st_size > 0.8 * MAX_MODEL_BYTES
    begin = time.process_time()
    originals.fingerprint(folder)
    assert time.process_time() - begin < 5.0  # 1,024 views; a step of a cup of 200 games is a fifth of that
