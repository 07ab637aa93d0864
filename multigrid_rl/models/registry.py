"""Architectures by name, and the fingerprint of a network's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multigrid_rl.config.network import MAX_HEAD_SIZE, MAX_LAYERS, MAX_UNITS, NORMS, network_entry, networks_with
from multigrid_rl.jit import kernel
from multigrid_rl.models import Layout
from multigrid_rl.models.distributions import Distribution, Gaussian, distribution_of
from multigrid_rl.tables import HEADS, NETWORKS, Network, load
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object
from multigrid_rl.types import AgentSpec

#: Activations by name, and those over tokens.
_ACTIVATIONS = ("tanh", "relu", "elu", "silu")
_OVER_TOKENS = ("tanh", "relu")
#: Weights, or the module of such, that only a central critic has.
CENTRAL = "central"


class ArchitectureError(ConfigError):
    """An architecture that this version does not know, or one with impossible sizes."""


def build(  # noqa: PLR0913 - all but three have defaults
    architecture: Mapping[str, Any],
    observation: Sequence[int] | int,
    outputs: int,
    seed: int = 0,
    central: Sequence[int] = (),
    *,
    log_std: float | None = None,
    legal: int = 0,
    image: Sequence[int] = (),
) -> nn.Module:
    """Build a network with a ``state_size``, the numbers of memory that a game takes.

    Without memory (``state_size`` 0): observations (B, D) in, outputs (B, K) and values (B,) out. With memory: see
    :class:`~multigrid_rl.models.recurrent.RecurrentActorCritic`.

    Args:
        architecture: ``{"name": "mlp", "hidden": [64, 64], "activation": "tanh"}`` or
            ``{"name": "gru", "hidden": [64]}``.
        observation: number of values of each token that the actor reads, or the length of a vector of floats.
        outputs: number of the policy's outputs: logits, or the means of a Gaussian.
        seed: of the initial weights.
        central: number of values of each token that only the critic reads.
        log_std: logarithm of a Gaussian's standard deviation at the start, appended to the means; ``None``: logits.
        legal: numbers at the end of a vector that say which choices are legal.
        image: height, width and channels of the image that a vector begins with.

    Raises ``ArchitectureError``: unknown name, or sizes that make no network.
    """
    name = architecture.get("name")
    entry = network_entry(name)
    if entry is None or ":" in str(name):
        raise ArchitectureError(expected("architecture.name", ", ".join(NETWORKS), name))
    vector = isinstance(observation, int)
    sizes = _units(architecture)
    if (activation := architecture.get("activation", "tanh")) not in _ACTIVATIONS:
        raise ArchitectureError(expected("architecture.activation", ", ".join(_ACTIVATIONS), activation))
    normalise, layer_norm = _options(str(name), architecture, entry, vector=vector)
    reads_it = entry.vectors or (entry.images and image) or not vector
    for allowed, key, wanted, value in (
        (reads_it, "name", f"{networks_with('vectors')} for a vector", name),
        (vector or activation in _OVER_TOKENS, "activation", f"{' or '.join(_OVER_TOKENS)} for tokens", activation),
        (entry.central or not central, "name", f"{networks_with('central')} with a central critic", name),
        (entry.legal or not legal, "name", f"{networks_with('legal')} with choices that are not always legal", name),
    ):
        if not allowed:
            raise ArchitectureError(expected(f"architecture.{key}", wanted, value))
    # A separate generator: a network's weights depend only on its seed, not on other draws in the process.
    generator = torch.Generator().manual_seed(seed)
    layout = Layout(str(name), observation, outputs, tuple(sizes), activation, generator, tuple(central))
    layout = layout._replace(log_std=log_std, normalise=normalise, layer_norm=layer_norm, legal=legal, image=image)
    network: nn.Module = load(entry.build)(layout)
    return network


def _units(architecture: Mapping[str, Any]) -> Sequence[int]:
    """Return the units of each hidden layer. Raises :class:`ArchitectureError` for sizes that make no network."""
    hidden = architecture.get("hidden")
    sizes = hidden if isinstance(hidden, (list, tuple)) else []
    possible = all(type(units) is int and 1 <= units <= MAX_UNITS for units in sizes)
    entry = network_entry(architecture.get("name"))
    layers = 1 if entry is not None and entry.memory else MAX_LAYERS
    if not 1 <= len(sizes) <= layers or not possible:
        wanted = f"a list of 1 to {MAX_UNITS} units per layer, at most {layers} layer(s)"
        raise ArchitectureError(expected("architecture.hidden", wanted, hidden))
    return sizes


def _options(name: str, architecture: Mapping[str, Any], entry: Network, *, vector: bool) -> tuple[bool, bool]:
    """Return whether to normalise observations and layers. Raises :class:`ArchitectureError`: impossible."""
    options: dict[str, Any] = {"normalise": False, "scale_values": False, "norm": NORMS[0]}
    for key, default in options.items():
        options[key] = architecture.get(key, default)
        values = (NORMS if key == "norm" else (False, True)) if vector and key in entry.options else (default,)
        if options[key] not in values:
            wanted = " or ".join(str(value).lower() for value in values)
            kind = "a vector" if vector else "tokens"
            raise ArchitectureError(expected(f"architecture.{key}", f"{wanted} with {name} for {kind}", options[key]))
    return options["normalise"], options["norm"] == "layer"


def import_parts(architecture: Mapping[str, Any]) -> None:
    """Import a network's parts. Their modules may hold tensors, which must not be on a device of a trial build."""
    name = str(architecture.get("name"))
    if ":" in name:
        import_object("model.name", name, "module:Class")
    for part in (network_entry(name), HEADS.get(str(architecture.get("head")))):
        if part is not None and part.build:
            load(part.build)


def network_of(agent: AgentSpec, architecture: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Build the network that plays an agent, its critic included. Raises :class:`ArchitectureError`."""
    distribution = _head(agent.action_space, architecture, seed)
    name = str(architecture.get("name"))
    if ":" in name:
        read_spaces = [space for space in (agent.observation_space, agent.critic_space) if space is not None]
        network = custom_network(name, architecture, read_spaces, distribution.outputs, seed)
    else:
        gaussian = isinstance(distribution, Gaussian)
        central = () if agent.critic_space is None else signature_of(agent.critic_space)
        network = build(
            architecture,
            signature_of(agent.observation_space),
            distribution.width if gaussian else distribution.outputs,
            seed,
            (central,) if isinstance(central, int) else central,
            log_std=architecture.get("log_std", 0.0) if gaussian else None,
            legal=agent.legal,
            image=agent.image,
        )
    if isinstance(distribution, nn.Module):  # a head, with weights of its own
        network.head = distribution
    return network


def actor_of(weights: Mapping[str, Tensor], agent: AgentSpec) -> dict[str, Tensor]:
    """Return the weights that a player needs: all without a central critic's."""
    omitted = None if agent.critic_space is None else CENTRAL
    return {name: value for name, value in weights.items() if name.partition(".")[0] != omitted}


def _head(space: spaces.Space[Any], architecture: Mapping[str, Any], seed: int) -> Distribution:
    """Return the distribution over actions of ``space``. Raises :class:`ArchitectureError`: impossible settings."""
    name, size, bound = (architecture.get(key) for key in ("head", "head_size", "bound"))
    base = distribution_of(space, bound)
    asked = (name or "gaussian", bound or "clip")
    if isinstance(base, Gaussian) and not base.finite and asked != ("gaussian", "clip"):  # every draw is an action
        key, got = "bound" if asked[0] == "gaussian" else "head", " with ".join(asked)
        wanted = "head gaussian with bound clip for actions without bounds"
        raise ArchitectureError(expected(f"architecture.{key}", wanted, got))
    if name is None or (name == "gaussian" and isinstance(base, Gaussian)):
        return base
    if not isinstance(base, Gaussian) or name not in HEADS:
        wanted = ", ".join(HEADS) if isinstance(base, Gaussian) else "null for choices, as heads are for numbers (Box)"
        raise ArchitectureError(expected("architecture.head", wanted, name))
    if bound not in (None, "clip"):
        raise ArchitectureError(expected("architecture.bound", f"clip with head {name}", bound))
    if HEADS[name].size is not None and (type(size) is not int or not 1 < size <= MAX_HEAD_SIZE):
        raise ArchitectureError(expected("architecture.head_size", f"2 to {MAX_HEAD_SIZE} with head {name}", size))
    generator = torch.Generator().manual_seed(seed)
    head: Distribution = load(str(HEADS[name].build))(base.low, base.high, size, _units(architecture)[-1], generator)
    return head


def custom_network(
    name: str, architecture: Mapping[str, Any], reads: Sequence[spaces.Space[Any]], outputs: int, seed: int = 0
) -> nn.Module:
    """Build a user's network that ``reads`` observations, then the critic's; this runs the user's code.

    Raises:
        ConfigError: it cannot be imported.
        ArchitectureError: it is no ``torch.nn.Module``, or has no ``state_size``, and no ``logits`` or ``sequence``.
    """
    _options(name, architecture, Network(""), vector=isinstance(reads[0], spaces.Box))
    generator = torch.Generator().manual_seed(seed)
    network: nn.Module = import_object("model.name", name, "module:Class")(
        reads[0], outputs, tuple(architecture["hidden"]), generator, *reads[1:]
    )
    if not isinstance(network, nn.Module):
        raise ArchitectureError(expected(f"model.name={name}", "a torch.nn.Module", type(network).__name__))
    size = getattr(network, "state_size", None)
    if type(size) is not int or size < 0:
        raise ArchitectureError(expected(f"model.name={name}: state_size", "a whole number, 0 without memory", size))
    part = "sequence" if size else "logits"
    if not callable(getattr(network, part, None)):
        raise ArchitectureError(expected(f"model.name={name}", f"a network with {part}", "none"))
    return network


def signature_of(space: spaces.Space[Any]) -> tuple[int, ...] | int:
    """Return a network's input: the number of values of each token, or the length of a vector."""
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.tolist())
    return int(np.prod(space.shape or (1,)))


@kernel
def _mix(words: Any, lanes: Any) -> None:
    prime = np.uint32(0x9E3779B1)  # odd: multiplication can be inverted, so no word is lost
    lanes_end = len(words) - len(words) % len(lanes)
    for first in range(0, lanes_end, len(lanes)):
        for k in range(16):
            lanes[k] = (lanes[k] ^ words[first + k]) * prime
    for k in range(len(words) - lanes_end):
        lanes[k] = (lanes[k] ^ words[lanes_end + k]) * prime


def fingerprint(weights: Mapping[str, Any], *, quick: bool = False) -> str:
    """Hash of named weights (tensors or arrays): names, shapes and bytes, in the order of the names.

    A ``quick`` one is for comparisons within a process: of bytes only, a tenth of the time, no proof against intent.
    """
    digest, lanes = hashlib.sha256(), np.zeros(16, np.uint32)  # in hardware: twice as fast as blake2b
    for name in sorted(weights):
        value = weights[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        contiguous = np.ascontiguousarray(array)
        # It detects weights that training changed: sixteen 32-bit lanes need no proof against intent.
        if quick:
            _mix(contiguous.reshape(-1).view(np.uint32), lanes)
            continue
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(contiguous.data)
    return lanes.tobytes().hex() if quick else digest.hexdigest()[:32]
