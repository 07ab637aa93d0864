"""RLlib's checkpoints as players: modules of stock ``PPO`` for ``multigrid-rl export``; ours as the folder of a run."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils import force_list
from ray.rllib.utils.checkpoints import Checkpointable
from torch import nn

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.models.registry import actor_of, build
from multigrid_rl.players.cards import PlayerError, write_player
from multigrid_rl.rllib.build import Settings
from multigrid_rl.rllib.environment import RedBlueDoors
from multigrid_rl.rllib.learner import MODULES, ActorCriticModule
from multigrid_rl.runs.players import FREE
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.runs.reader import read_config
from multigrid_rl.text import ConfigError, expected, one_line, shown, unknown
from multigrid_rl.training.loop import write_players
from multigrid_rl.training.run import TrainingRun
from multigrid_rl.training.stages import card_of, seated_players, stages_of
from multigrid_rl.trust import MISTAKES, check_code
from multigrid_rl.types import TEAM_ORDER, GameSpec
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.spaces import flat_space
from multigrid_rl.world.state import token_categories

#: Names in Tune's registry, see ``rllib.environment``.
_PREFIX = "multigrid_rl/"
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def players_of(folder: Path, seat: str, target: Path, scenario: str | None = None) -> dict[str, Path]:
    """Write the players of an RLlib checkpoint into folders below ``target``.

    Args:
        folder: of an algorithm's checkpoint, or of one of its modules below ``learner_group/learner/rl_module``.
        seat: a seat, or a team.
        scenario: of an environment under a user's name.

    Returns:
        The new folder under the key ``""``; of a team with several networks, each by its seat.

    Raises:
        PlayerError: a damaged checkpoint, an environment of another package, no module for the seat, or one that is
            none of our networks.
        ConfigError: pickled files are refused (``--safe``).
    """
    check_code(folder, [str(folder / Checkpointable.CLASS_AND_CTOR_ARGS_FILE_NAME)], "data alone")
    root = next((path for path in (folder, *folder.resolve().parents) if (path / MODULES).is_dir()), None)
    if root is None:
        raise PlayerError(expected(folder, "an algorithm's checkpoint, or a module's in one", "none"))
    config = _config_of(root / Checkpointable.CLASS_AND_CTOR_ARGS_FILE_NAME)
    _check_connectors(root, config)
    settings = config.get("settings")
    if isinstance(settings, Settings):
        if scenario is not None:
            raise PlayerError(expected("--scenario", "nothing, as the checkpoint holds its own", scenario))
        return _players_of_run(root / MODULES if folder == root else folder, seat, target, settings)
    scenario = scenario or _scenario_of(root, config)
    spec = load_scenario(scenario).spec
    seats = spec.seats_of(seat) if seat in TEAM_ORDER else (seat,)
    for name in seats:
        if name not in spec.seats:
            raise PlayerError(unknown("seat", name, spec.seats))
    paths = {name: folder if folder != root else _module_for(root / MODULES, name, spec) for name in seats}
    groups = [seats] if len(set(paths.values())) == 1 else [(name,) for name in seats]
    players = {}
    for group in groups:
        key = "" if len(groups) == 1 else group[0]
        players[key] = target / (key or "player")
        _write(players[key], paths[group[0]], scenario, group)
    return players


def _players_of_run(folder: Path, seat: str, target: Path, settings: Settings) -> dict[str, Path]:
    """Write players of one of our runs, with its cards; ``folder``: of all modules, or of one."""
    stage = (settings.stages or stages_of(settings.run))[-1]
    specs = stage.factory.specs
    modules = {name: agent.module for agent in specs.agents for name in agent.seats}
    seats = [name for name in stage.scenario.kind.seats_of(seat) or (seat,) if name in modules]
    if not seats:
        raise PlayerError(unknown("seat", seat, modules))
    folders = {name: folder / modules[name] if folder.name == MODULES.name else folder for name in seats}
    for source in set(folders.values()):
        if source.name not in specs.modules:
            raise PlayerError(unknown(f"{source}: module", source.name, specs.modules))
        weights = actor_of(_module(source).net.state_dict(), specs.agent_of(source.name))
        card = {**card_of(stage, source.name, settings.run), "provenance": circumstances()}
        write_player(target / source.name, weights, card)
    players = {name: target / source.name for name, source in folders.items()}
    return players if len(set(players.values())) > 1 else {"": players[seats[0]]}


def _scenario_of(root: Path, config: Mapping[str, Any]) -> str:
    env, name = config["env"], str(config["env"])
    if name.startswith(_PREFIX):
        return name.removeprefix(_PREFIX)
    if isinstance(env, type) and issubclass(env, RedBlueDoors):
        return str(config["env_config"].get("scenario", "1v1"))
    wanted = f"RedBlueDoors, a name that begins with {_PREFIX}, or --scenario for one of your own"
    raise PlayerError(expected(f"{root}: env", wanted, shown(name)))


def _check_connectors(root: Path, config: Mapping[str, Any]) -> None:
    """Raise ``PlayerError`` for a user's connectors: a player observes and acts without them."""
    for key in ("env_to_module_connector", "module_to_env_connector"):
        make = config.get(f"_{key}")
        try:
            connectors = [] if make is None else force_list(make(None, None, None))
        except MISTAKES:  # it needs its environment
            connectors = [make]
        names = [getattr(connector, "__name__", type(connector).__name__) for connector in connectors]
        others = [name for name in names if name != "FlattenObservations"]  # one-hot vectors are flat already
        if others:
            wanted = "none, as a player sees the game without it"
            raise PlayerError(expected(f"{root}: {key}", wanted, ", ".join(others)))


def _module_for(modules: Path, seat: str, spec: GameSpec) -> Path:
    """Return the folder of the module that plays a seat: one of its name or its team's, or the only one."""
    found = sorted(path.name for path in modules.iterdir() if path.is_dir())
    names = [name for name in (seat, spec.team_of(seat)) if name in found] or found
    if len(names) != 1 and names == found:
        wanted = f"a module {seat} or {spec.team_of(seat)}, or the folder of one below {modules}"
        raise PlayerError(expected("seat", wanted, ", ".join(found)))
    return modules / names[0]


def _config_of(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = pickle.loads(path.read_bytes())["ctor_args_and_kwargs"][0][0]
        complete = {"env", "env_config"} <= config.keys()
    except (*MISTAKES, pickle.UnpicklingError, EOFError) as error:
        raise PlayerError(expected(path, "a file of an RLlib checkpoint", one_line(error))) from error
    if not complete:
        got = ", ".join(map(str, config))
        raise PlayerError(expected(path, "an algorithm's configuration with env and env_config", got))
    return config


def _module(source: Path) -> Any:
    try:
        return RLModule.from_checkpoint(str(source.resolve()))
    except (*MISTAKES, pickle.UnpicklingError, EOFError) as error:
        raise PlayerError(expected(source, "a module of an RLlib checkpoint", one_line(error))) from error


def _write(target: Path, source: Path, scenario: str, seats: tuple[str, ...]) -> None:
    module = _module(source)
    spec = load_scenario(scenario).spec
    categories = token_categories(spec)
    is_ours = isinstance(module, ActorCriticModule)
    wanted: gymnasium.Space[Any] = gymnasium.spaces.MultiDiscrete(categories) if is_ours else flat_space(spec)
    space = module.observation_space
    unbounded = gymnasium.spaces.Box(-np.inf, np.inf, wanted.shape)  # FlattenObservations forgets the bounds
    if space != wanted and (is_ours or space != unbounded):
        raise PlayerError(expected(f"{source}: observation_space", f"{wanted} of {scenario}", space))
    architecture, network = (module.architecture, module.net) if is_ours else _from_default(source, module, categories)
    card = {
        "name": f"{scenario}-{source.name}",
        "architecture": architecture,
        "observation": {"view_size": spec.view_size, "categories": categories},
        "actions": len(ACTIONS),
        "scenario": scenario,
        "seats": list(seats),
        "provenance": circumstances(),
    }
    write_player(target, network.state_dict(), card)


def _from_default(source: Path, module: Any, categories: list[int]) -> tuple[dict[str, Any], nn.Module]:
    """Return RLlib's default network over one-hot vectors as ours over tokens, with its architecture.

    A linear layer on one-hot codes is a sum of the rows of a table: its transposed weights. An encoder that policy and
    values share goes into both towers.
    """
    if not isinstance(module, DefaultPPOTorchRLModule):
        raise _unsupported(source, type(module).__name__)
    shared = getattr(module.encoder, "encoder", None)
    policy, activation = _layers(source, shared or module.encoder.actor_encoder, module.pi)
    values, _ = _layers(source, shared or module.encoder.critic_encoder, module.vf)
    hidden = [layer.out_features for layer in policy[:-1]]
    architecture = {"name": "mlp", "hidden": hidden, "activation": activation}
    network: Any = build(architecture, categories, policy[-1].out_features)
    towers = [[layer for layer in tower if isinstance(layer, nn.Linear)] for tower in (network.policy, network.value)]
    with torch.no_grad():
        network.table.copy_(torch.cat([policy[0].weight.T, values[0].weight.T], dim=1))
        network.bias.copy_(torch.cat([_bias(policy[0]), _bias(values[0])]))
        for ours, theirs in zip([*towers[0], *towers[1]], [*policy[1:], *values[1:]], strict=True):
            ours.weight.copy_(theirs.weight)
            ours.bias.copy_(_bias(theirs))
    return architecture, network


def _layers(source: Path, *parts: nn.Module) -> tuple[list[nn.Linear], str]:
    """Return the linear layers of ``parts`` in order, and the one activation between them."""
    leaves = [leaf for part in parts for leaf in part.modules() if not list(leaf.children())]
    linear, activations = leaves[::2], {type(leaf) for leaf in leaves[1::2]}
    kinds = {type(leaf) for leaf in linear}
    if kinds != {nn.Linear} or len(leaves) % 2 == 0 or len(activations) != 1 or not activations <= set(_ACTIVATIONS):
        raise _unsupported(source, ", ".join(type(leaf).__name__ for leaf in leaves))
    return [leaf for leaf in linear if isinstance(leaf, nn.Linear)], _ACTIVATIONS[activations.pop()]


def _bias(layer: nn.Linear) -> torch.Tensor:
    return layer.bias if layer.bias is not None else torch.zeros(layer.out_features)


def _unsupported(source: Path, got: str) -> PlayerError:
    wanted = "RLlib's default MLP, linear layers with tanh or relu between all, or multigrid_rl.rllib.NetworkModule"
    return PlayerError(expected(source, wanted, got))


def check_component(component: str, known: Collection[str], modules: Collection[str]) -> None:
    """Check that an algorithm has a component. Raises ``ConfigError``: RLlib would restore nothing, without a word."""
    parts = component.split("/")
    if parts[0] not in known:
        raise ConfigError(unknown("component", parts[0], known))
    if parts[-2:-1] == [COMPONENT_RL_MODULE] and parts[-1] not in modules:
        raise ConfigError(unknown(f"component: {COMPONENT_RL_MODULE}", parts[-1], modules))


def check_networks(folder: Path, settings: Settings) -> None:
    """Check that a checkpoint has the networks of a run. Raises ``ConfigError``: other networks or agents."""
    wanted, model = settings.stages[0].factory.specs.modules, read_config(folder)["model"]
    found = sorted(path.name for path in (folder / MODULES).iterdir() if path.is_dir())
    if not {*wanted} <= {*found}:
        raise ConfigError(expected(f"{folder}: modules", ", ".join(wanted), ", ".join(found)))
    for key, value in settings.run.model.model_dump(mode="json", exclude={*FREE, "bound"}).items():
        if model.get(key, value) != value:
            raise ConfigError(expected(f"model.{key}", f"{model[key]}, as in {folder}", value))


def write_run_files(path: Path, settings: Settings, run: TrainingRun) -> None:
    """Write configuration, provenance and players next to RLlib's files. Raises ``DivergedError``: not finite."""
    seats, name = seated_players(settings.stages), f"step_{run.env_steps}"
    opponents = [
        {"seat": seat, "name": player.name, "weight": player.weight, "sha256": player.sha256}
        for seat, players in seats.items()
        for player in players
    ]
    provenance = {**circumstances(), "seed": settings.run.seed, "opponents": opponents}
    shutil.rmtree(path / "checkpoints", ignore_errors=True)  # of an earlier checkpoint in the same folder
    write_players(path / "checkpoints" / name / "players", run, settings.run, path, provenance)
    texts = {
        "checkpoints/latest": f"{name}\n",
        "provenance.json": json.dumps(provenance),
        "config.yaml": to_yaml(settings.run),
    }
    for file, text in texts.items():
        (path / file).write_text(text, encoding="utf-8")
