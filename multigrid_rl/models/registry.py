"""Architectures by name, and the fingerprint of a network's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multigrid_rl.config import MAX_LAYERS, MAX_UNITS
from multigrid_rl.models.cells import CellActorCritic
from multigrid_rl.models.mlp import ACTIVATIONS, MLPActorCritic
from multigrid_rl.models.recurrent import RecurrentActorCritic
from multigrid_rl.types import Unit

ARCHITECTURES = ("mlp", "embedding", "cnn", "gru", "lstm")
RECURRENT = ("gru", "lstm")
CELL_WISE = ("embedding", "cnn")
#: Weights that only a central critic has: a player does not need them.
CENTRAL = "central"


class ArchitectureError(ValueError):
    """An architecture that this version does not know, or one with impossible sizes."""


def build(
    architecture: Mapping[str, Any],
    categories: Sequence[int],
    actions: int,
    seed: int = 0,
    central: Sequence[int] = (),
) -> nn.Module:
    """Build a network with a ``state_size``, the numbers of memory that a game takes.

    Without memory (``state_size`` 0): integer tokens (B, D) in, logits (B, K) and values (B,) out. With memory: see
    :class:`~multigrid_rl.models.recurrent.RecurrentActorCritic`.

    Args:
        architecture: ``{"name": "mlp", "hidden": [64, 64], "activation": "tanh"}`` or
            ``{"name": "gru", "hidden": [64]}``.
        categories: number of values of each token that the actor reads.
        actions: number of logits.
        seed: of the initial weights.
        central: number of values of each token that only the critic reads.

    Raises:
        ArchitectureError: unknown name, or sizes that make no network.
    """
    name = architecture.get("name")
    if name not in ARCHITECTURES:
        raise ArchitectureError(f"architecture.name={name}: unknown; allowed is {', '.join(ARCHITECTURES)}")
    hidden = architecture.get("hidden")
    sizes = hidden if isinstance(hidden, (list, tuple)) else []
    good = all(type(units) is int and 1 <= units <= MAX_UNITS for units in sizes)
    layers = 1 if name in RECURRENT else MAX_LAYERS
    if not 1 <= len(sizes) <= layers or not good:
        allowed = f"a list of 1 to {MAX_UNITS} units per layer, at most {layers} layer(s)"
        raise ArchitectureError(f"architecture.hidden={hidden}: allowed is {allowed}")
    generator = torch.Generator().manual_seed(seed)
    if name in CELL_WISE:
        if central:
            raise ArchitectureError(f"architecture.name={name}: has no central critic; allowed is mlp, gru, lstm")
        return CellActorCritic(categories, actions, tuple(sizes), name == "cnn", generator)
    if name in RECURRENT:
        return RecurrentActorCritic(categories, actions, name, sizes[0], central, generator)
    activation = architecture.get("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ArchitectureError(f"architecture.activation={activation}: allowed is {', '.join(ACTIVATIONS)}")
    return MLPActorCritic(categories, actions, tuple(sizes), activation, central, generator)


def network_of(unit: Unit, architecture: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """The network that plays a unit, its critic included. Raises :class:`ArchitectureError`."""
    return build(architecture, unit.categories, unit.choices * len(unit.seats), seed, unit.central)


def fingerprint(weights: Mapping[str, Any]) -> str:
    """Hash of named weights (tensors or arrays): names, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()  # in hardware on today's machines: twice as fast as blake2b
    for name in sorted(weights):
        value = weights[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
