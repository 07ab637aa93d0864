"""Frozen players as they stand on disk, and why they are refused, for tests."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.scenario import env_signature
from multigrid_rl.files import data_root
from multigrid_rl.models.registry import build, network_of
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, sha256_of, signature, write_player
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.places import place_of
from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.state import token_categories

ONE, TWO = (load_scenario(name).spec for name in ("1v1", "2v2"))
MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}
#: No check may work longer: one hand-in must not keep the others waiting.
SECONDS = 5.0


@contextmanager
def torch_files_here() -> Iterator[None]:
    """Policies in files of torch's are read by this process: another one takes seconds to import torch."""
    from multigrid_rl.imitation.torch_file import content_of, weights  # noqa: PLC0415 - an add-on may be left out

    def run(command, **_):
        weights(content_of(command[3]), Path(command[4]))
        return SimpleNamespace(returncode=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multigrid_rl.imitation.formats.subprocess", SimpleNamespace(run=run))
        yield


def network(members: int = 1, seed: int = 1, spec: GameSpec = ONE) -> torch.nn.Module:
    """A small network whose actions depend clearly on what it sees."""
    net = build(MLP, token_categories(spec) * members, len(ACTIONS) * members, seed)
    with torch.no_grad():
        net.policy[-1].weight.mul_(200.0)
    return net


def bundle(
    path: Path, seats=("red_0",), members: int = 1, seed: int = 1, spec: GameSpec = ONE, **changes: object
) -> Path:
    """A sound bundle with a small network."""
    card = {
        "name": path.name,
        "architecture": MLP,
        "observation": {"view_size": spec.view_size, "categories": token_categories(spec) * members},
        "actions": len(ACTIONS),
        "members": members,
        "scenario": "1v1" if members == 1 and len(seats) == 1 else "2v2",
        "seats": list(seats),
        "provenance": {"seed": seed, "env_steps": 10 * seed},
    }
    write_player(path, network(members, seed, spec).state_dict(), {**card, **changes})
    return path


def game_bundle(
    path: Path, seat: str, seed: int = 1, *overrides: str, seats: tuple[str, ...] = (), noise: float = 0.0
) -> Path:
    """A sound bundle with a small network for a seat, and ``seats``, of any game that ``overrides`` say."""
    scenario = compose(list(overrides)).scenario
    spec = scenario.kind.spec
    (agent,) = place_of(spec).agents(spec, {seat: spec.team_of(seat)}, "dtde", shared=False)
    net = network_of(agent, {**MLP, "log_std": 0.0}, seed)
    with torch.no_grad():
        net.policy[-1].weight.mul_(200.0)
        for weight in net.parameters():
            weight.add_(
                noise * weight.abs().mean() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
            )
    about = {"name": path.name, "architecture": MLP, "scenario": scenario.name, "env": env_signature(scenario)}
    about |= {"seats": [seat, *seats], "provenance": {"seed": seed}}
    write_player(path, net.state_dict(), {**about, **signature(agent, None)})
    return path


def make_player(root: Path, name: str, seat: str = "blue_0", scenario: str = "1v1", wins: float = 0.75) -> Path:
    """A sound, untrained player in the catalogue of ``root``."""
    spec = load_scenario(scenario).spec
    strength = {"scenario": scenario, "opponent": "random", "episodes": 1000, "win": wins, "draw": 0.0}
    folder = bundle(
        root / name,
        (seat,),
        spec=spec,
        scenario=scenario,
        provenance={"env_steps": 123_456},
        strength=[{**strength, "loss": 1 - wins, "length_mean": 20.0, "seed": 1}],
    )
    Catalogue(root).add(name, {"scenario": scenario, "seats": [seat], "sha256": read_card(folder).sha256})
    return folder


def refusal(load: Callable[[], object]) -> str:
    """Why a player cannot be loaded: one line, soon."""
    begin = time.process_time()
    with pytest.raises(PlayerError) as caught:
        load()
    assert time.process_time() - begin < SECONDS
    text = str(caught.value)
    assert text
    assert text.isprintable()
    assert len(text) < 600
    return text


def vouch(path: Path) -> None:
    """Make the card say what the model file is."""
    data = (path / MODEL_FILE).read_bytes()
    edit(path, bytes=len(data), sha256=sha256_of(data))


def edit(path: Path, **changes: object) -> None:
    """Change a card."""
    content = json.loads((path / CARD_FILE).read_text())
    (path / CARD_FILE).write_text(json.dumps({**content, **changes}))


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every path below ``folder`` with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """What is done within changes nothing below ``folder``."""
    before = everything(folder)
    yield
    assert everything(folder) == before


def cheetah(folder: Path, **env: object) -> Path:
    """A copy of the cheetah in the new ``folder``, whose card says something else about its environment."""
    shutil.copytree(data_root() / "checkpoints" / "cheetah-expert", folder)
    card = json.loads((folder / CARD_FILE).read_text())
    edit(folder, env={**card["env"], **env})
    return folder


def bundle_of(folder: Path, name: str, noise: float = 0.0) -> Path:
    """A player of the catalogue that calls itself something else, with noise on its weights."""
    shutil.copytree(data_root() / "checkpoints" / name, folder)
    weights = load_file(folder / MODEL_FILE)
    random = torch.Generator().manual_seed(1)
    for key, its in weights.items():
        weights[key] = its + noise * its.std(correction=0) * torch.randn(its.shape, generator=random)
    save_file(weights, folder / MODEL_FILE, metadata={"by": "me"})
    vouch(folder)
    edit(folder, name="mine", strength=[])
    return folder
