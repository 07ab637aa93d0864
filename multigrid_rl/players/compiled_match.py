"""Batches of steps of red/blue doors in one compiled call, if all players are compiled networks of the same form.

The numbers equal those of single steps (``learn.rollout.StepCollector``, ``Match.step``); no Python runs in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from multigrid_rl.fast import Actor
from multigrid_rl.fast.towers import TokenTowers, policy_forward
from multigrid_rl.jit import inlined, kernel, threads
from multigrid_rl.models.distributions import Categorical, draw_choices
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import fill_uniform
from multigrid_rl.text import expected
from multigrid_rl.types import AgentSpec, BatchedStep
from multigrid_rl.world.constants import ACTIONS, SWAPPED, TURNED
from multigrid_rl.world.engine import DoorsEnv, add_up
from multigrid_rl.world.kernels import step_games

if TYPE_CHECKING:
    from multigrid_rl.players.match import Match

Array = NDArray[Any]


#: The kernel gets a tuple of a multiple of so many parts: one compiled form serves 1v1 and 2v2.
_SLOTS = 4
#: With more games, steps are played one by one, in which several threads share a network's pass.
_GAMES = 1024
_policy_forward = policy_forward.forms[0]  # type: ignore[attr-defined]


class _Part(NamedTuple):
    """A network that acts. A learner's arrays have ``T`` rows, one for each step, a player's one row."""

    seats: Array  # (V,) seats whose views it reads, its ``C`` seats first
    last_action_seats: Array  # (M,) seats whose last actions its critic reads after the views
    mirrored: bool  # trained on the other side of the board
    obs: Array  # (T, N, D)
    policy_tokens: Array  # (N, D') part of ``obs`` that its policy reads
    final: Array  # (F, D) last observations of episodes that a time limit ended; F is 0 for a player
    network: tuple[Any, ...]  # arguments of policy_forward
    logits: tuple[Array, Array]  # (N, C K), and the same numbers as (N C, K)
    uniform: tuple[Array, Array]  # (N, C), and as (N C, 1)
    weights: Array  # (K,)
    chosen: Array  # (N C,) int8
    drawn: tuple[Array, Array]  # (T, N C) log-probabilities and entropies
    actions: Array  # (T, N, C)
    stream: Array  # (N,)


class _Log(NamedTuple):
    """Results of a batch of ``T`` steps."""

    reward: Array  # (T, N, A)
    events: Array  # (T, N, A, E); T is 0 if they are not needed
    terminated: Array  # (T, N, A)
    acted: Array  # (T, N, A)
    done: Array  # (T, N)
    cut: Array  # (T, N)


@inlined
def _write_observation(part: Any, tokens: Array, last_actions: Array, n: int, out: Array) -> None:
    width = tokens.shape[2]
    for v in range(len(part.seats)):
        view, place = tokens[n, part.seats[v]], out[v * width : (v + 1) * width]
        for d in range(width):
            place[d] = view[d]
    for m in range(len(part.last_action_seats)):
        out[len(part.seats) * width + m] = last_actions[part.last_action_seats[m], n]


@inlined
def _write_policy_tokens(part: Any, tokens: Array, width: int) -> None:
    for n in range(len(tokens)):
        for d in range(part.policy_tokens.shape[1]):
            token = tokens[n, d]
            if part.mirrored and d % width < width - 2:
                token = SWAPPED[token]
            elif part.mirrored and d % width == width - 2:
                token = TURNED[token]
            part.policy_tokens[n, d] = token


@inlined
def _decide(part: Any, t: int, tokens: Array, last_actions: Array, actions: Array) -> int:
    """Draw the actions of one network's seats; returns the result of ``policy_forward``."""
    at = t if len(part.obs) > 1 else 0
    for n in range(len(actions)):
        _write_observation(part, tokens, last_actions, n, part.obs[at, n])
    policy_tokens = part.obs[at]
    if part.mirrored or len(part.last_action_seats):
        _write_policy_tokens(part, policy_tokens, tokens.shape[2])
        policy_tokens = part.policy_tokens
    sizes, kind, tower, buffers = part.network
    count: int = _policy_forward(policy_tokens, sizes, kind, tower, buffers, part.logits[0])
    fill_uniform(part.stream, part.uniform[0])
    logp, entropy = part.drawn[0][at], part.drawn[1][at]
    draw_choices(part.logits[1], part.uniform[1], part.weights, part.chosen, logp, entropy)
    members = part.actions.shape[2]
    for n in range(len(actions)):
        for c in range(members):
            action = part.chosen[n * members + c]
            part.actions[at, n, c] = action
            actions[n, part.seats[c]] = action
    return count


@inlined
def _log_step(log: Any, t: int, n: int, outputs: Any) -> None:
    log.done[t, n] = outputs.done[n]
    log.cut[t, n] = outputs.done[n] and outputs.truncated[n]
    for a in range(log.reward.shape[2]):
        log.reward[t, n, a] = outputs.reward[n, a]
        log.terminated[t, n, a] = outputs.terminated[n, a]
        log.acted[t, n, a] = outputs.acted[n, a]
        for e in range(log.events.shape[3] if len(log.events) else 0):
            log.events[t, n, a, e] = outputs.events[n, a, e]


@kernel
def _play(parts: Any, count: int, world: Any, last_actions: Array, log: Any, episodes: Any) -> int:
    """Play the steps of a ``log``; returns the new number of rows of episodes, or -1 for a token out of range."""
    state, flags, outputs, tables, actions, orders, auto_reset, no_action = world
    sums, rows, row_count = episodes
    ended: int = row_count
    finals = 0
    for t in range(len(log.done)):
        for p in range(count):
            if _decide(parts[p], t, outputs.tokens, last_actions, actions) < 0:
                return -1
        step_games(state, flags, outputs, tables, actions, orders, auto_reset)
        ended = add_up(outputs.reward, outputs.events, outputs.done, outputs.winner, sums, rows, ended)
        for n in range(len(actions)):
            _log_step(log, t, n, outputs)
            for a in range(len(last_actions)):
                last_actions[a, n] = actions[n, a] if outputs.acted[n, a] else no_action
            if log.cut[t, n]:
                for p in range(count):
                    part = parts[p]  # read once: each access selects it among all parts
                    if len(part.final):
                        _write_observation(part, outputs.final_tokens, last_actions, n, part.final[finals])
                finals += 1
            for a in range(len(last_actions) if log.done[t, n] else 0):
                last_actions[a, n] = no_action
    return ended


def play(
    match: Match[Any],
    acting: Mapping[str, Actor],
    agents: Sequence[AgentSpec],
    mates: Mapping[str, Sequence[str]],
    last_actions: Array,
) -> BatchedStep | None:
    """Play a batch of steps; ``None``, without playing, if not all networks can be compiled together.

    Args:
        acting: networks of the learning agents, and the arrays for their rows.
        mates: by agent, the seats whose views its critic also reads.
        last_actions: (A, N) last action of each seat if critics read them, else (0, N).

    Returns:
        The steps in arrays (T, N) and (T, N, C). ``truncated`` marks episodes that a time limit ended, and
        ``final_observations`` (F, D) has only their observations. ``observations`` is empty.
    """
    env = match.env
    key = [env, env.shaping, *(part for row in acting.values() for part in row), *(pair[1] for pair in match.seated())]
    if match.batch is None or list(map(id, match.batch[0])) != list(map(id, key)):
        match.batch = key, *_prepare(match, acting, agents, mates)
    _, parts, count, log = match.batch
    if not count or (threads() > 1 and match.num_envs > _GAMES):
        return None
    world, shaping = env.world, env.shaping
    match.clock.begin()
    rules = world.state, world.flags, world.outputs, world.tables, env.actions, world.index_order, world.auto_reset
    episodes = env.sums, env.room(log.done.size), env.row_count
    ended = _play(parts, count, (*rules, len(ACTIONS)), last_actions, log, episodes)
    match.clock.lap("play")
    if ended < 0:
        raise IndexError(expected("tokens", "of the game's own", "one that is out of range"))
    env.row_count, reward = ended, log.reward
    if shaping is not None:
        if getattr(shaping, "by_game", False):
            flattened = log.events.reshape(-1, *log.events.shape[2:]), reward.reshape(-1, reward.shape[2])
            paid = shaping(*flattened).reshape(reward.shape)
        else:
            paid = [shaping(*step_arrays) for step_arrays in zip(log.events, reward, strict=True)]
        reward = np.where(log.acted, paid, 0.0)
    by_seat = {agent.name: [match.index[seat] for seat in agent.seats] for agent in agents}
    finals = np.count_nonzero(log.cut)
    return BatchedStep(
        observations={},
        final_observations={agent.name: part.final[:finals] for agent, part in zip(agents, parts, strict=False)},
        rewards={name: _combined(np.add, reward, indices) for name, indices in by_seat.items()},
        terminated={name: _combined(np.logical_and, log.terminated, indices) for name, indices in by_seat.items()},
        mask={name: log.acted[:, :, indices] for name, indices in by_seat.items()},
        truncated=log.cut,
        done=log.done,
    )


def _prepare(
    match: Match[Any], acting: Mapping[str, Actor], agents: Sequence[AgentSpec], mates: Mapping[str, Sequence[str]]
) -> tuple[tuple[Any, ...], int, Any]:
    """Return the parts, their number and the log of a batch; 0 parts if not all can be compiled together."""
    env = match.env
    if type(env) is not DoorsEnv or not env.world.auto_reset:
        return (), 0, None
    tokens, events = env.world.outputs.tokens, env.world.outputs.events
    steps, (games, seats, width) = len(acting[agents[0].name].obs), tokens.shape
    max_finals = games * (steps // env.spec.max_steps + 1)  # time limits in so many steps
    parts = []
    for agent in agents:
        indices = [match.index[seat] for seat in (*agent.seats, *mates[agent.name])]
        seats_and_critic = len(agent.seats), indices, indices if agent.critic_space is not None else []
        parts.append(_part_of(acting[agent.name], seats_and_critic, max_finals, width))
    for seat_names, seated in match.seated():
        player = seated.player
        if type(player) is not FrozenPlayer or player.greedy or seated.mixture is not None:
            return (), 0, None
        outputs = (np.empty((1, games, len(seat_names)), kind) for kind in (np.int64, np.float32, np.float32))
        obs = np.empty((1, games, len(seat_names) * width), np.uint8)
        part = Actor(player.towers, player.distribution, seated.streams.state, obs, *outputs)
        indices = [match.index[seat] for seat in seat_names]
        parts.append(_part_of(part, (len(seat_names), indices, []), 0, width, mirrored=player.mirrored))
    if None in parts or len({numba.typeof(part) for part in parts}) > 1:
        return (), 0, None
    shape = steps, games, seats
    paid = 0 if env.shaping is None else steps
    log = _Log(
        np.empty(shape),
        np.empty((paid, *events.shape), events.dtype),
        *(np.empty(shape, np.bool_) for _ in range(2)),
        *(np.empty(shape[:2], np.bool_) for _ in range(2)),
    )
    slots = -len(parts) % _SLOTS
    return (*parts, *parts[:1] * slots), len(parts), log


def _combined(ufunc: np.ufunc, columns: Array, indices: Sequence[int]) -> Array:
    return columns[:, :, indices[0]] if len(indices) == 1 else ufunc.reduce([columns[:, :, a] for a in indices], axis=0)


def _part_of(
    acting: Actor, seats: tuple[int, list[int], list[int]], finals: int, width: int, *, mirrored: bool = False
) -> _Part | None:
    """Return the arrays of one network, ``None`` if it is not compiled for tokens and choices."""
    count, view_seats, last_action_seats = seats
    network, choices = acting.network, acting.distribution
    if not isinstance(network, TokenTowers) or not isinstance(choices, Categorical) or not choices.equal:
        return None
    obs = acting.obs
    if choices.components != count or network.tokens != count * width:
        return None
    games = obs.shape[1]
    arguments, logits = network.acting(games)
    uniform = np.empty((games, count))
    return _Part(
        np.array(view_seats, np.int64),
        np.array(last_action_seats, np.int64),
        mirrored,
        obs,
        np.empty((games, network.tokens), np.uint8),
        np.empty((finals, obs.shape[2]), np.uint8),
        arguments,
        (logits, logits.reshape(games * count, -1)),
        (uniform, uniform.reshape(-1, 1)),
        np.empty(logits.shape[1] // count),
        np.empty(games * count, np.int8),
        (acting.logp.reshape(len(obs), -1), acting.entropy.reshape(len(obs), -1)),
        acting.actions,
        acting.stream,
    )
