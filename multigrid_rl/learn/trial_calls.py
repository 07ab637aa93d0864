"""Trial calls of networks and functions from outside: a mistake is reported with its key before a run starts."""

import copy
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multigrid_rl.learn.advantages import Estimator, own_weights
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
        made_of = "observation_space, outputs, hidden, generator"
        made_of += ", central_space" * (agent.critic_space is not None)
        _check_signature(key, import_object("model.name", name, "module:Class"), made_of)
        network = network_of(agent, architecture)
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
                # Twice: what fits three rows alone shows.
                for rows in (_ROWS, _ROWS + 1):
                    trials[key](f"{key}={name}", name, rows)


def _check_network(key: str, network: Any, agent: AgentSpec, distribution: Distribution) -> None:
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    _check_signature(f"{key}: forward", network.forward, "obs, memory" if network.state_size else "obs")
    if network.state_size:
        outputs, _ = _check_memory(key, network, agent, distribution)
    else:
        obs = _seen(agent, _ROWS)
        outputs, values = _parts(f"{key}: forward", network(obs), "outputs, values")
        _expect(f"{key}: forward: outputs", outputs, (_ROWS, distribution.outputs))
        _expect(f"{key}: forward: values", values, (_ROWS,))
        _check_signature(f"{key}: logits", network.logits, "obs")
        alone = network.logits(obs)
        _expect(f"{key}: logits", alone, (_ROWS, distribution.outputs))
        if not _allclose(alone, outputs):
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
    """Compare ``sequence`` with a loop of ``forward`` over as many steps as games; returns what it gave."""
    # A network that learns from other numbers than it plays with fails without a message: ratios are wrong from the
    # start.
    obs = _seen(agent, _ROWS * _ROWS).view(_ROWS, _ROWS, -1)
    starts = torch.eye(_ROWS, dtype=torch.bool).roll(1, 1)  # game 0 begins anew in step 1, 1 in 2, 2 in 0
    first = now = torch.linspace(0.1, 0.9, _ROWS * network.state_size).view(_ROWS, -1)
    played: list[tuple[Tensor, Tensor]] = []
    for t in range(_ROWS):
        given = network(obs[:, t], now * ~starts[:, t, None])
        outputs, values, now = _parts(f"{key}: forward", given, "outputs, values, memory")
        _expect(f"{key}: forward: outputs", outputs, (_ROWS, distribution.outputs))
        _expect(f"{key}: forward: values", values, (_ROWS,))
        _expect(f"{key}: forward: memory", now, (_ROWS, network.state_size))
        played.append((outputs, values))
    _check_signature(f"{key}: sequence", network.sequence, "obs, memory, starts")
    learned = _parts(f"{key}: sequence", network.sequence(obs, first, starts), "outputs, values")
    for name, found, steps in zip(("outputs", "values"), learned, zip(*played, strict=True), strict=True):
        wanted = torch.stack(steps, 1).flatten(0, 1)
        _expect(f"{key}: sequence: {name}", found, tuple(wanted.shape))
        if not _allclose(found, wanted):
            rule = "those of forward, game after game, each step's memory zero where starts says so"
            raise ConfigError(expected(f"{key}: sequence: {name}", rule, "others"))
    return learned


def _seen(agent: AgentSpec, rows: int) -> Tensor:
    """Return observations of an agent (rows, D) that it might see, with what its critic reads."""
    parts = []
    for space in map(copy.deepcopy, filter(None, (agent.observation_space, agent.critic_space))):
        space.seed(0)
        parts.append(np.stack([space.sample() for _ in range(rows)]).reshape(rows, -1))
    found, vector = np.concatenate(parts, axis=1), isinstance(agent.observation_space, spaces.Box)
    return torch.as_tensor(found.clip(-10, 10).astype(np.float32) if vector else found.astype(np.uint8))


def _check_loss(key: str, function: Objective, argument: str, distribution: Distribution, count: int) -> None:
    _check_signature(key, function, f"{argument}, rows, clip")
    learned = torch.full((count,), -1.0, requires_grad=True)
    dtype = torch.int64 if distribution.dtype is np.int64 else torch.float32
    rows = Rows(
        torch.zeros((count, distribution.width), dtype=dtype),
        torch.ones((count, distribution.components), dtype=torch.bool),
        torch.full((count,), -1.1),
        torch.linspace(-1.0, 1.0, count),
        torch.zeros(count),
        torch.full((count,), 0.5),
    )
    before = copy.deepcopy(rows)
    found = function(learned, rows, 0.2)
    _expect(key, found, (count,))
    if not found.requires_grad:
        of = {"logp": "the log-probabilities", "values": "the values"}[argument]
        raise ConfigError(f"{key}: expected a gradient by {of}, got none: nothing would be learned")
    for part, now, then in zip(Rows._fields, rows, before, strict=True):
        if not torch.equal(now, then):
            raise ConfigError(expected(f"{key}: rows.{part}", "what it was before the call", "a change in place"))


def _check_psi(key: str, name: str, steps: int) -> None:
    """Call a function of weights and targets for so many steps of two games."""
    _check_signature(key, import_object("train.psi", name), "rewards, values, ends, gamma, lam")
    shape = (steps, 2)
    ended = np.eye(*shape, dtype=np.bool_)
    rewards, values = np.linspace(-1, 1, 2 * steps, dtype=np.float32).reshape(shape), np.ones(shape, np.float32)
    batch: Any = SimpleNamespace(rewards=rewards, terminated=ended, done=ended)
    found = own_weights(batch, values, values, Estimator(0.9, 0.8, name))
    for what, part in zip(("weights", "targets"), found, strict=True):
        _expect(f"{key}: {what}", torch.from_numpy(part), shape)


def _check_signature(what: str, function: Callable[..., Any], arguments: str) -> None:
    """Refuse what cannot be called with ``arguments``, named one after the other. Raises :class:`ConfigError`."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # compiled: what it takes shows in the call
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        raise ConfigError(expected(f"{what}: arguments", f"({arguments})", signature)) from error


def _parts(what: str, given: Any, names: str) -> tuple[Any, ...]:
    if not isinstance(given, tuple) or len(given) != len(names.split(", ")):
        got = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
        raise ConfigError(expected(what, names, got))
    return given


def _allclose(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _expect(what: str, found: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(found, Tensor):
        raise ConfigError(f"{what}: expected a tensor of shape {shape}, got {type(found).__name__}")
    if tuple(found.shape) != shape:
        raise ConfigError(f"{what}: expected shape {shape} for {shape[0]} rows, got {tuple(found.shape)}")
    if not torch.isfinite(found).all():
        raise ConfigError(expected(what, "finite numbers", found.tolist()))
