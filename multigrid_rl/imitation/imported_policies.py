"""Policies of other libraries as frozen players: CleanRL's SAC, TD3 and PPO, and zips of Stable-Baselines3.

Only tensors are read; nothing in a file is executed. The imported network is compared with a computation from the file.
"""

import json
import shlex
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.cli.output import temporary_output
from multigrid_rl.config.compose import compose
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.imitation.formats import converted
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.models.mlp import ACTIVATIONS
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import signature, write_player
from multigrid_rl.runs.reader import check_of_games
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import AgentSpec

Array = NDArray[Any]
#: Largest size of the weights in a zip, in bytes.
_MAX_BYTES = 1 << 28
#: Largest difference between actions of the imported policy and those computed from the file, in float32.
_TOLERANCE = 1e-4


def import_player(source: Path, overrides: list[str], output: Path, activation: str | None) -> Iterator[str]:
    """Write another library's policy as a frozen player; yields lines to print. Raises ``ConfigError``."""
    check_of_games(overrides)
    config = compose(overrides)
    try:
        (agent,) = env_factory(config).specs.agents
    except ValueError as error:
        raise ConfigError(expected("scenario", "one of one agent", config.scenario.name)) from error
    if config.scenario.kind.board:
        raise ConfigError(expected("scenario", "an environment of Gymnasium", config.scenario.name))
    weights = read_weights(source)
    kind = kind_of(source, weights)
    architecture, state = policy_of(source, kind, weights, agent, activation or named_activation(source))
    card = {
        "name": output.name, "architecture": architecture, **signature(agent, None),
        **({} if agent.own is None else agent.own.card_fields),
        "scenario": config.scenario.name, "env": env_signature(config.scenario), "seats": [agent.name],
        "provenance": {"command": f"import-policy, {kind.name}"},
    }  # fmt: skip
    with temporary_output(output, "folder") as temporary_path:
        written = write_player(temporary_path, state, card)
    yield f"imported {output}: {kind.name}, {written.bytes:,} bytes, sha256 {written.sha256}"
    if "PPO" in kind.name:
        yield "its file has no normaliser: if it was trained on normalised observations, it does not play as it did"
    yield f"next:     multigrid-rl evaluate {shlex.quote(str(output))}"


class Kind(NamedTuple):
    """Names of a policy's tensors in a library; layers are named without ``.weight`` and ``.bias``.

    Attributes:
        layers: layers of the policy in order, the last one for the means or logits.
        log_std: layer or tensor of the logarithms of the standard deviations; ``None``: the policy has none.
        values: layers of the value network in order; empty: no value network is imported.
        activation: activation between the layers.
        head: equivalent ``model.head`` and ``model.bound``.
    """

    name: str
    layers: tuple[str, ...]
    log_std: str | None
    values: tuple[str, ...]
    activation: str
    head: tuple[str | None, str]


def _linear(tower: str) -> tuple[str, ...]:
    """Return the names of the linear layers in a tower of three, between which are activations."""
    return tuple(f"{tower}.{k}" for k in (0, 2, 4))


#: Kinds, recognised by the names of their tensors; the first match counts.
KINDS: tuple[Kind, ...] = (
    Kind("CleanRL's SAC", ("fc1", "fc2", "fc_mean"), "fc_logstd", (), "relu", ("tanh-gaussian", "clip")),
    Kind("CleanRL's TD3 or DDPG", ("fc1", "fc2", "fc_mu"), None, (), "relu", (None, "tanh")),
    Kind("CleanRL's PPO", _linear("actor_mean"), "actor_logstd", _linear("critic"), "tanh", (None, "clip")),
    Kind("CleanRL's PPO over choices", _linear("actor"), None, _linear("critic"), "tanh", (None, "clip")),
    Kind(
        "Stable-Baselines3's SAC", ("actor.latent_pi.0", "actor.latent_pi.2", "actor.mu"), "actor.log_std",
        (), "relu", ("tanh-gaussian-clamped", "clip"),
    ),
    Kind("Stable-Baselines3's TD3 or DDPG", _linear("actor.mu"), None, (), "relu", (None, "tanh")),
    Kind(
        "Stable-Baselines3's PPO or A2C", ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"),
        "log_std", ("mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"), "tanh", (None, "clip"),
    ),
)  # fmt: skip
KINDS += (KINDS[-1]._replace(name=f"{KINDS[-1].name} over choices", log_std=None),)


def read_weights(path: Path) -> dict[str, Array]:
    """Return the tensors of a policy's file, by name. Raises ``ConfigError``: no such file, or no weights in it."""
    key = f"import-policy: {path}"
    if not path.is_file():
        raise ConfigError(expected("import-policy", "a file with a policy's weights", path))
    with TemporaryDirectory(prefix="multigrid-rl-") as folder:
        source = path
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if "policy.pth" in archive.namelist():  # a torch file is a zip, too, without this name
                    if archive.getinfo("policy.pth").file_size > _MAX_BYTES:
                        raise ConfigError(expected(key, f"weights of at most {_MAX_BYTES:,} bytes", "more"))
                    source = Path(folder) / "policy.pth"
                    try:
                        with archive.open("policy.pth") as packed, source.open("wb") as file:
                            shutil.copyfileobj(packed, file)
                    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                        raise ConfigError(expected(key, "a whole zip", error)) from error
        with converted(key, "weights", source) as found, np.load(found / "weights.npz", allow_pickle=False) as arrays:
            weights = {name: np.asarray(arrays[name], np.float32) for name in arrays.files}
    if wrong := [name for name, values in weights.items() if not np.isfinite(values).all()]:
        raise ConfigError(expected(key, "finite weights", f"others in {shown(', '.join(wrong))}"))
    return weights


def named_activation(path: Path) -> str | None:
    """Return the activation that a zip of Stable-Baselines3 names; ``None``: its library's own.

    Raises ``ConfigError``: one that our networks lack.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data") as file:
            settings = json.loads(file.read(_MAX_BYTES))
        # The class as text, such as <class 'torch.nn.modules.activation.ReLU'>.
        named = str(settings["policy_kwargs"]["activation_fn"]).rpartition(".")[2].rstrip("'>")
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError, ValueError, RuntimeError):
        return None  # no such zip, or nothing that differs from the library's own
    if named.lower() not in ACTIVATIONS:
        wanted = f"{', '.join(ACTIVATIONS)}, or --activation"
        raise ConfigError(expected(f"import-policy: {path}: activation_fn", wanted, shown(named)))
    return named.lower()


def kind_of(path: Path, weights: Mapping[str, Array]) -> Kind:
    """Return the kind of a policy by the names of its tensors. Raises ``ConfigError``: an unknown kind."""
    for kind in KINDS:
        squashed = kind.head[0] is not None  # a layer computes its deviations
        layers = [*kind.layers, kind.log_std] if squashed else kind.layers
        stds = set() if squashed or kind.log_std is None else {kind.log_std}
        if {f"{layer}.{suffix}" for layer in layers for suffix in ("weight", "bias")} | stds <= weights.keys():
            return kind
    got = shown(", ".join(weights), 200)
    raise ConfigError(expected(f"import-policy: {path}", f"a policy of {', '.join(k.name for k in KINDS)}", got))


def policy_of(
    path: Path, kind: Kind, weights: Mapping[str, Array], agent: AgentSpec, activation: str | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the architecture of a player's network, and its weights from a file.

    ``activation``: activation between the layers; ``None``: the library's default. Raises ``ConfigError``:
    the weights do not fit the environment, or our network acts otherwise than the file's.
    """
    key, continuous = f"import-policy: {path}", isinstance(agent.action_space, spaces.Box)
    _check_layers(key, kind, weights, agent.action_space)
    hidden = [len(weights[f"{layer}.weight"]) for layer in kind.layers[:-1]]
    head, bound = kind.head if continuous else (None, "clip")
    named = {"name": "mlp", "hidden": hidden, "activation": activation or kind.activation, "head": head, "bound": bound}
    architecture = ModelConfig.model_validate(named).model_dump(mode="json")
    network: Any = network_of(agent, architecture)
    state = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
    state["value_scale"] = torch.ones(1)
    critic = kind.values if all(f"{layer}.weight" in weights for layer in kind.values) else ()
    for part, layers in (("policy", kind.layers), ("value", critic)):
        for k, layer in enumerate(layers):
            for suffix in ("weight", "bias"):
                state[f"{part}.{2 * k}.{suffix}"] = torch.from_numpy(weights[f"{layer}.{suffix}"].copy())
    last = 2 * (len(kind.layers) - 1)
    if head is not None:  # deviations are outputs after the means
        for suffix in ("weight", "bias"):
            parts = [state[f"policy.{last}.{suffix}"], torch.from_numpy(weights[f"{kind.log_std}.{suffix}"].copy())]
            state[f"policy.{last}.{suffix}"] = torch.cat(parts)
    elif "spread.log_std" in state:
        # A policy without deviations is deterministic: noise of e^-20 is lost in float32.
        none = np.full(len(state["spread.log_std"]), -20.0, np.float32)
        deviations = none if kind.log_std is None else weights[kind.log_std]
        state["spread.log_std"] = torch.from_numpy(deviations.reshape(-1).copy())
    for name, value in network.state_dict().items():
        if name in state and state[name].shape != value.shape and name.startswith(("policy", "spread")):
            wanted = f"{name} of shape {tuple(value.shape)}, as {agent.name}'s observations and actions need"
            raise ConfigError(expected(f"{key}: {kind.name}", wanted, tuple(state[name].shape)))
        if state[name].shape != value.shape:  # a critic of another size, which players do not use
            state[name] = torch.zeros_like(value)
    network.load_state_dict(state)
    _check_bounds(key, weights, agent)
    _check_same(key, kind, weights, network, agent, bound)
    return architecture, state


def _check_layers(key: str, kind: Kind, weights: Mapping[str, Array], actions: spaces.Space[Any]) -> None:
    """Raise ``ConfigError`` if the policy would act otherwise: it has further layers, or other actions than its kind.

    Further layers are also those of Stable-Baselines3's ``features_extractor``, before the policy.
    """
    if (choices := kind.name.endswith("over choices")) == isinstance(actions, spaces.Box):
        wanted = f"an environment of {'choices' if choices else 'continuous actions'}"
        raise ConfigError(expected(f"{key}: {kind.name}", wanted, actions))
    tower = kind.layers[0].rpartition(".")[0]
    layers = {layer for layer, _, suffix in (name.rpartition(".") for name in weights) if suffix == "weight"}
    more = {layer for layer in layers if layer.rpartition(".")[0] == tower or "features_extractor." in layer}
    if more := more - {*kind.layers, kind.log_std}:
        wanted = f"no other layers than {', '.join(kind.layers)}"
        raise ConfigError(expected(f"{key}: {kind.name}", wanted, ", ".join(sorted(more))))


def _check_bounds(key: str, weights: Mapping[str, Array], agent: AgentSpec) -> None:
    """Raise ``ConfigError`` if the file's scale and bias of actions do not match the environment's bounds."""
    if "action_scale" not in weights:
        return
    space: Any = agent.action_space
    scale, bias = (weights[f"action_{part}"].reshape(-1) for part in ("scale", "bias"))
    if not (np.allclose(bias - scale, space.low) and np.allclose(bias + scale, space.high)):
        wanted = f"actions of {space.low.tolist()} to {space.high.tolist()}"
        raise ConfigError(expected(key, wanted, f"{(bias - scale).tolist()} to {(bias + scale).tolist()}"))


def _check_same(key: str, kind: Kind, weights: Mapping[str, Array], network: Any, agent: AgentSpec, bound: Any) -> None:
    """Raise ``ConfigError`` unless the network's likeliest actions equal those computed from the file."""
    rng = np.random.default_rng(0)
    x = obs = rng.normal(size=(64, weights[f"{kind.layers[0]}.weight"].shape[1])).astype(np.float32)
    for k, layer in enumerate(kind.layers):
        x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        if k < len(kind.layers) - 1:
            x = ACTIVATIONS[network.activation]()(torch.from_numpy(x)).numpy()
    space, distribution = agent.action_space, distribution_of(agent.action_space, bound, network)
    with torch.no_grad():
        found = distribution.bounded(distribution.mode(network.logits(torch.from_numpy(obs)).numpy()))
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        wanted = np.clip(x, low, high) if kind.head == (None, "clip") else low + (np.tanh(x) + 1) / 2 * (high - low)
    else:
        wanted = distribution.mode(x)
    if not np.allclose(found, wanted, atol=_TOLERANCE):
        raise ConfigError(expected(f"{key}: {kind.name}", "the actions of the network in the file", "other ones"))
