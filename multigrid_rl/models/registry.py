"""Architectures by name, and the fingerprint of a network's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multigrid_rl.config import MAX_LAYERS, MAX_UNITS
from multigrid_rl.models.mlp import ACTIVATIONS, MLPActorCritic

ARCHITECTURES = ("mlp",)


class ArchitectureError(ValueError):
    """An architecture that this version does not know, or one with impossible sizes."""


def build(architecture: Mapping[str, Any], categories: Sequence[int], actions: int, seed: int = 0) -> nn.Module:
    """Build a network: integer tokens (B, D) in, logits (B, K) and values (B,) out.

    Args:
        architecture: ``{"name": "mlp", "hidden": [64, 64], "activation": "tanh"}``.
        categories: number of values of each token.
        actions: number of discrete actions.
        seed: of the initial weights.

    Raises:
        ArchitectureError: unknown name, or sizes that make no network.
    """
    name = architecture.get("name")
    if name not in ARCHITECTURES:
        raise ArchitectureError(f"architecture.name={name}: unknown; allowed is {', '.join(ARCHITECTURES)}")
    hidden, activation = architecture.get("hidden"), architecture.get("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ArchitectureError(f"architecture.activation={activation}: allowed is {', '.join(ACTIVATIONS)}")
    sizes = hidden if isinstance(hidden, (list, tuple)) else []
    good = all(type(units) is int and 1 <= units <= MAX_UNITS for units in sizes)
    if not 1 <= len(sizes) <= MAX_LAYERS or not good:
        allowed = f"a list of 1 to {MAX_UNITS} units per layer, at most {MAX_LAYERS} layers"
        raise ArchitectureError(f"architecture.hidden={hidden}: allowed is {allowed}")
    generator = torch.Generator().manual_seed(seed)
    return MLPActorCritic(categories, actions, tuple(sizes), activation, generator)


def fingerprint(weights: Mapping[str, Any]) -> str:
    """Hash of named weights (tensors or arrays): names, shapes and bytes, in the order of the names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        value = weights[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
