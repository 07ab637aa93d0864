"""Trial calls of networks and objectives from outside: a mistake is told with its key before a run starts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multigrid_rl.learn.losses import Rows, objective_of
from multigrid_rl.models.distributions import Distribution, distribution_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.scenario import ConfigError, user_code
from multigrid_rl.types import AgentSpec

_ROWS = 3


def check_parts(agent: AgentSpec, architecture: Mapping[str, Any], objective: str) -> None:
    """Build the network of an agent and find its objective; call those from outside (``module:name``) once.

    Raises:
        ConfigError, ArchitectureError: one line naming the key, what is expected and what came.
    """
    name = str(architecture.get("name"))
    if ":" in name:
        with user_code(f"model.name={name}"):
            network = network_of(agent, architecture)
            distribution = distribution_of(agent.action_space, network=network)
            _check_network(name, network, agent, distribution)
    else:
        distribution = distribution_of(agent.action_space, network=network_of(agent, architecture))
    objective_of(objective)
    if ":" in objective:
        with user_code(f"train.objective={objective}"):
            _check_objective(objective, distribution)


def _check_network(name: str, network: nn.Module, agent: AgentSpec, distribution: Distribution) -> None:
    key, size = f"model.name={name}", int(np.prod(agent.observation_space.shape or (1,)))
    whole = agent.observation_size
    dtype = torch.float32 if isinstance(agent.observation_space, spaces.Box) else torch.uint8
    obs: Any = torch.zeros((_ROWS, whole), dtype=dtype)
    memory: Any = torch.zeros(_ROWS, int(network.state_size))  # type: ignore[arg-type]
    given: Any = network(obs, memory) if network.state_size else network(obs)
    parts = 3 if network.state_size else 2
    if not isinstance(given, tuple) or len(given) != parts:
        said = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
        raise ConfigError(f"{key}: forward: expected {'outputs, values' + ', memory' * (parts == 3)}, got {said}")
    outputs, values = given[:2]
    _expect(f"{key}: forward: outputs", outputs, (_ROWS, distribution.outputs))
    _expect(f"{key}: forward: values", values, (_ROWS,))
    if not network.state_size:
        alone = network.logits(obs[:, :size])  # type: ignore[operator]
        _expect(f"{key}: logits", alone, (_ROWS, distribution.outputs))
        if not torch.allclose(alone, outputs, atol=1e-4):
            raise ConfigError(f"{key}: logits: expected the outputs of forward, got others for the same observations")


def _check_objective(name: str, distribution: Distribution) -> None:
    key = f"train.objective={name}"
    logp = torch.full((_ROWS,), -1.0, requires_grad=True)
    dtype = torch.int64 if distribution.dtype is np.int64 else torch.float32
    rows = Rows(
        torch.zeros((_ROWS, distribution.width), dtype=dtype),
        torch.ones((_ROWS, distribution.components), dtype=torch.bool),
        torch.full((_ROWS,), -1.1),
        torch.tensor([1.0, -1.0, 0.5]),
        torch.zeros(_ROWS),
    )
    found = objective_of(name)(logp, rows, 0.2)
    _expect(key, found, (_ROWS,))
    if not found.requires_grad:
        raise ConfigError(f"{key}: expected a gradient by the log-probabilities, got none: nothing would be learned")


def _expect(what: str, found: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(found, Tensor):
        raise ConfigError(f"{what}: expected a tensor of shape {shape}, got {type(found).__name__}")
    if tuple(found.shape) != shape:
        raise ConfigError(f"{what}: expected shape {shape} for {shape[0]} rows, got {tuple(found.shape)}")
