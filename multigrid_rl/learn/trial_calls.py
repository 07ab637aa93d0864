"""Trial calls of networks and functions from outside: they report a mistake with its key before a run starts."""

import copy
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from multigrid_rl.learn.advantages import Estimator, custom_weights
from multigrid_rl.learn.losses import Objective, Rows, objective_of, value_loss_of
from multigrid_rl.models.distributions import Distribution, distribution_of
from multigrid_rl.models.registry import network_of
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object, user_code
from multigrid_rl.types import AgentSpec

#: Rows of a trial call: steps for an objective, games for a network, which plays as many steps of them with memory.
_ROWS = 3


def try_network(agent: AgentSpec, architecture: Mapping[str, Any]) -> nn.Module:
    """Build a network from outside (``module:Class``) and call it once.

    Raises ``ConfigError``: one line naming the key, what is expected and what came.
    """
    name = str(architecture["name"])
    key = f"model.name={name}"
    with user_code(key):
        arguments = "observation_space, outputs, hidden, generator"
        arguments += ", central_space" * (agent.critic_space is not None)
        _check_signature(key, import_object("model.name", name, "module:Class"), arguments)
        network = network_of(agent, architecture)
        if lazy := [part for part, weights in network.named_parameters() if is_lazy(weights)]:
            # A copy or a checkpoint's network has no first batch to take sizes from.
            raise ConfigError(expected(f"{key}: {lazy[0]}", "a layer built with its sizes", "one of torch's Lazy"))
        _check_network(key, network, agent, distribution_of(agent.action_space, network=network))
    return network


def try_functions(functions: Mapping[str, str], distribution: Distribution) -> None:
    """Call functions of training from outside (``module:function``), on actions of ``distribution``.

    ``functions``: by key, as ``TrainConfig.functions`` has them. Raises ``ConfigError``: one line naming the key, what
    is expected and what came.
    """
    trials: dict[str, Callable[[str, str, int], None]] = {
        "train.objective": lambda key, name, rows: _check_loss(key, objective_of(name), "logp", distribution, rows),
        "train.value_loss": lambda key, name, rows: _check_loss(key, value_loss_of(name), "values", distribution, rows),
        "train.psi": _check_psi,
    }
    for key, name in functions.items():
        if ":" in name:
            with user_code(f"{key}={name}"):
                # Twice: a function that fits only three rows shows.
                for rows in (_ROWS, _ROWS + 1):
                    trials[key](f"{key}={name}", name, rows)


def _check_network(key: str, network: Any, agent: AgentSpec, distribution: Distribution) -> None:
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    _check_signature(f"{key}: forward", network.forward, "obs, memory" if network.state_size else "obs")
    if network.state_size:
        outputs, _ = _check_memory(key, network, agent, distribution)
    else:
        obs = _sample_observations(agent, _ROWS)
        outputs, values = _unpack(f"{key}: forward", network(obs), "outputs, values")
        _check_tensor(f"{key}: forward: outputs", outputs, (_ROWS, distribution.outputs))
        _check_tensor(f"{key}: forward: values", values, (_ROWS,))
        _check_signature(f"{key}: logits", network.logits, "obs")
        logits = network.logits(obs)
        _check_tensor(f"{key}: logits", logits, (_ROWS, distribution.outputs))
        if not _allclose(logits, outputs):
            raise ConfigError(f"{key}: logits: expected the outputs of forward, got others for the same observations")
    if not outputs.requires_grad:
        raise ConfigError(f"{key}: expected outputs with a gradient, got none: nothing would be learned")
    for name, buffer in network.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise ConfigError(f"{key}: expected buffers that no call changes, got another {name} (as of BatchNorm)")
    for name, weights in network.state_dict().items():
        if weights.dtype != torch.float32:
            wanted = "torch.float32, or register_buffer(..., persistent=False)"
            raise ConfigError(expected(f"{key}: {name}", wanted, weights.dtype))


def _check_memory(key: str, network: Any, agent: AgentSpec, distribution: Distribution) -> tuple[Any, ...]:
    """Compare ``sequence`` with a loop of ``forward`` over as many steps as games; returns outputs and values."""
    # A network that learns from other numbers than it plays with fails without a message: ratios are wrong from the
    # start.
    obs = _sample_observations(agent, _ROWS * _ROWS).view(_ROWS, _ROWS, -1)
    starts = torch.eye(_ROWS, dtype=torch.bool).roll(1, 1)  # game 0 begins anew in step 1, 1 in 2, 2 in 0
    first = memory = torch.linspace(0.1, 0.9, _ROWS * network.state_size).view(_ROWS, -1)
    played: list[tuple[Tensor, Tensor]] = []
    for t in range(_ROWS):
        result = network(obs[:, t], memory * ~starts[:, t, None])
        outputs, values, memory = _unpack(f"{key}: forward", result, "outputs, values, memory")
        _check_tensor(f"{key}: forward: outputs", outputs, (_ROWS, distribution.outputs))
        _check_tensor(f"{key}: forward: values", values, (_ROWS,))
        _check_tensor(f"{key}: forward: memory", memory, (_ROWS, network.state_size))
        played.append((outputs, values))
    _check_signature(f"{key}: sequence", network.sequence, "obs, memory, starts")
    learned = _unpack(f"{key}: sequence", network.sequence(obs, first, starts), "outputs, values")
    for name, result, steps in zip(("outputs", "values"), learned, zip(*played, strict=True), strict=True):
        stepwise = torch.stack(steps, 1).flatten(0, 1)
        _check_tensor(f"{key}: sequence: {name}", result, tuple(stepwise.shape))
        if not _allclose(result, stepwise):
            rule = "those of forward, game after game, each step's memory zero where starts says so"
            raise ConfigError(expected(f"{key}: sequence: {name}", rule, "others"))
    return learned


def _sample_observations(agent: AgentSpec, rows: int) -> Tensor:
    """Return drawn observations (rows, D) of an agent and its critic."""
    parts = []
    for space in map(copy.deepcopy, filter(None, (agent.observation_space, agent.critic_space))):
        space.seed(0)
        parts.append(np.stack([space.sample() for _ in range(rows)]).reshape(rows, -1))
    drawn, is_vector = np.concatenate(parts, axis=1), isinstance(agent.observation_space, spaces.Box)
    return torch.as_tensor(drawn.clip(-10, 10).astype(np.float32) if is_vector else drawn.astype(np.uint8))


def _check_loss(key: str, function: Objective, argument: str, distribution: Distribution, count: int) -> None:
    _check_signature(key, function, f"{argument}, rows, clip")
    inputs = torch.full((count,), -1.0, requires_grad=True)
    dtype = torch.int64 if distribution.dtype is np.int64 else torch.float32
    rows = Rows(
        torch.zeros((count, distribution.width), dtype=dtype),
        torch.ones((count, distribution.components), dtype=torch.bool),
        torch.full((count,), -1.1),
        torch.linspace(-1.0, 1.0, count),
        torch.zeros(count),
        torch.full((count,), 0.5),
    )
    copied = copy.deepcopy(rows)
    result = function(inputs, rows, 0.2)
    _check_tensor(key, result, (count,))
    if not result.requires_grad:
        differentiated = {"logp": "the log-probabilities", "values": "the values"}[argument]
        raise ConfigError(f"{key}: expected a gradient by {differentiated}, got none: nothing would be learned")
    for part, after, before_call in zip(Rows._fields, rows, copied, strict=True):
        if not torch.equal(after, before_call):
            raise ConfigError(expected(f"{key}: rows.{part}", "what it was before the call", "a change in place"))


def _check_psi(key: str, name: str, steps: int) -> None:
    """Call a function of weights and targets for so many steps of two games."""
    _check_signature(key, import_object("train.psi", name), "rewards, values, ends, gamma, lam")
    shape = (steps, 2)
    ended = np.eye(*shape, dtype=np.bool_)
    rewards, values = np.linspace(-1, 1, 2 * steps, dtype=np.float32).reshape(shape), np.ones(shape, np.float32)
    batch: Any = SimpleNamespace(rewards=rewards, terminated=ended, done=ended)
    result = custom_weights(batch, values, values, Estimator(0.9, 0.8, name))
    for label, part in zip(("weights", "targets"), result, strict=True):
        _check_tensor(f"{key}: {label}", torch.from_numpy(part), shape)


def _check_signature(label: str, function: Callable[..., Any], arguments: str) -> None:
    """Check that a function takes ``arguments``, names after each other. Raises :class:`ConfigError`."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # compiled: what it takes shows in the call
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        raise ConfigError(expected(f"{label}: arguments", f"({arguments})", signature)) from error


def _unpack(label: str, result: Any, names: str) -> tuple[Any, ...]:
    if not isinstance(result, tuple) or len(result) != len(names.split(", ")):
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ConfigError(expected(label, names, got))
    return result


def _allclose(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-3, atol=1e-4)


def _check_tensor(label: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor):
        raise ConfigError(f"{label}: expected a tensor of shape {shape}, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{label}: expected shape {shape} for {shape[0]} rows, got {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise ConfigError(expected(label, "finite numbers", tensor.tolist()))
