"""Whole batches of red/blue doors in one compiled call, where all who act are compiled networks alike.

The same numbers as step by step (``learn.rollout.Collector``, ``Match.step``), without Python between two steps.
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


#: Parts are handed over in a tuple of so many, or twice as many: one form of the kernel serves 1v1 and 2v2.
_PLACES = 4
#: With more games several threads share a pass of a network, step by step.
_GAMES = 1024
_policy_forward = policy_forward.forms[0]  # type: ignore[attr-defined]


class _Part(NamedTuple):
    """One network that acts. Its arrays have ``T`` rows where they are kept, and one where they are not."""

    seats: Array  # (V,) whose views it is shown, those of its own ``C`` seats first
    marks: Array  # (M,) seats whose last actions its critic is shown behind them
    mirrored: bool  # it learned the other side of the board
    obs: Array  # (T, N, D)
    own: Array  # (N, D') what its policy reads of them
    final: Array  # (F, D) the last ones of episodes that a time limit ended; none are kept of a player
    network: tuple[Any, ...]  # of policy_forward
    logits: tuple[Array, Array]  # (N, C K), and the same numbers as (N C, K)
    uniform: tuple[Array, Array]  # (N, C), and as (N C, 1)
    weights: Array  # (K,)
    chosen: Array  # (N C,) int8
    drawn: tuple[Array, Array]  # (T, N C) log-probabilities and entropies
    actions: Array  # (T, N, C)
    stream: Array  # (N,)


class _Log(NamedTuple):
    """What happened in a batch of ``T`` steps."""

    reward: Array  # (T, N, A)
    events: Array  # (T, N, A, E); T is 0 where none are needed
    terminated: Array  # (T, N, A)
    acted: Array  # (T, N, A)
    done: Array  # (T, N)
    cut: Array  # (T, N)


@inlined
def _show(part: Any, tokens: Array, marks: Array, n: int, out: Array) -> None:
    width = tokens.shape[2]
    for v in range(len(part.seats)):
        view, place = tokens[n, part.seats[v]], out[v * width : (v + 1) * width]
        for d in range(width):
            place[d] = view[d]
    for m in range(len(part.marks)):
        out[len(part.seats) * width + m] = marks[part.marks[m], n]


@inlined
def _read(part: Any, seen: Array, width: int) -> None:
    for n in range(len(seen)):
        for d in range(part.own.shape[1]):
            token = seen[n, d]
            if part.mirrored and d % width < width - 2:
                token = SWAPPED[token]
            elif part.mirrored and d % width == width - 2:
                token = TURNED[token]
            part.own[n, d] = token


@inlined
def _decide(part: Any, t: int, tokens: Array, marks: Array, actions: Array) -> int:
    """Draw the actions of one network's seats; returns what ``policy_forward`` does."""
    at = t if len(part.obs) > 1 else 0
    for n in range(len(actions)):
        _show(part, tokens, marks, n, part.obs[at, n])
    own = part.obs[at]
    if part.mirrored or len(part.marks):
        _read(part, own, tokens.shape[2])
        own = part.own
    sizes, kind, tower, buffers = part.network
    count: int = _policy_forward(own, sizes, kind, tower, buffers, part.logits[0])
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
def _note(log: Any, t: int, n: int, outputs: Any) -> None:
    log.done[t, n] = outputs.done[n]
    log.cut[t, n] = outputs.done[n] and outputs.truncated[n]
    for a in range(log.reward.shape[2]):
        log.reward[t, n, a] = outputs.reward[n, a]
        log.terminated[t, n, a] = outputs.terminated[n, a]
        log.acted[t, n, a] = outputs.acted[n, a]
        for e in range(log.events.shape[3] if len(log.events) else 0):
            log.events[t, n, a, e] = outputs.events[n, a, e]


@kernel
def _play(parts: Any, count: int, world: Any, marks: Array, log: Any, episodes: Any) -> int:
    """Play the steps of a ``log``; returns how many rows of episodes are kept then, -1 for a token out of range."""
    state, flags, outputs, tables, actions, orders, auto_reset, none_yet = world
    sums, rows, kept = episodes
    ended: int = kept
    finals = 0
    for t in range(len(log.done)):
        for p in range(count):
            if _decide(parts[p], t, outputs.tokens, marks, actions) < 0:
                return -1
        step_games(state, flags, outputs, tables, actions, orders, auto_reset)
        ended = add_up(outputs.reward, outputs.events, outputs.done, outputs.winner, sums, rows, ended)
        for n in range(len(actions)):
            _note(log, t, n, outputs)
            for a in range(len(marks)):
                marks[a, n] = actions[n, a] if outputs.acted[n, a] else none_yet
            if log.cut[t, n]:
                for p in range(count):
                    part = parts[p]  # each time it is named, it is chosen among all
                    if len(part.final):
                        _show(part, outputs.final_tokens, marks, n, part.final[finals])
                finals += 1
            for a in range(len(marks) if log.done[t, n] else 0):
                marks[a, n] = none_yet
    return ended


def play(
    match: Match[Any],
    acting: Mapping[str, Actor],
    agents: Sequence[AgentSpec],
    mates: Mapping[str, Sequence[str]],
    marks: Array,
) -> BatchedStep | None:
    """Play a batch of steps; ``None``, and nothing is played, where not all who act can be compiled together.

    Args:
        acting: what the learning agents act with, and where their rows go.
        mates: of each, the seats whose views its critic is shown.
        marks: (A, N) last action of each seat, where critics are shown them, else (0, N).

    Returns:
        The steps in arrays (T, N) and (T, N, C). ``truncated`` says where a time limit ended an episode, and
        ``final_observations`` (F, D) has the observations of these alone. ``observations`` is empty.
    """
    env = match.env
    key = [env, env.shaping, *(part for one in acting.values() for part in one), *(one for _, one in match.seated())]
    if match.batch is None or list(map(id, match.batch[0])) != list(map(id, key)):
        match.batch = key, *_prepared(match, acting, agents, mates)
    _, parts, count, log = match.batch
    if not count or (threads() > 1 and match.num_envs > _GAMES):
        return None
    world, shaping = env.world, env.shaping
    match.clock.begin()
    rules = world.state, world.flags, world.outputs, world.tables, env.actions, world.index_order, world.auto_reset
    ended = _play(parts, count, (*rules, len(ACTIONS)), marks, log, (env.sums, env.room(log.done.size), env.kept))
    match.clock.lap("play")
    if ended < 0:
        raise IndexError(expected("tokens", "of the game's own", "one that is out of range"))
    env.kept, reward = ended, log.reward
    if shaping is not None:
        if getattr(shaping, "by_game", False):
            flat = log.events.reshape(-1, *log.events.shape[2:]), reward.reshape(-1, reward.shape[2])
            paid = shaping(*flat).reshape(reward.shape)
        else:
            paid = [shaping(*happened) for happened in zip(log.events, reward, strict=True)]
        reward = np.where(log.acted, paid, 0.0)
    by_seat = {agent.name: [match.index[seat] for seat in agent.seats] for agent in agents}
    finals = np.count_nonzero(log.cut)
    return BatchedStep(
        observations={},
        final_observations={agent.name: part.final[:finals] for agent, part in zip(agents, parts, strict=False)},
        rewards={name: _joined(np.add, reward, own) for name, own in by_seat.items()},
        terminated={name: _joined(np.logical_and, log.terminated, own) for name, own in by_seat.items()},
        mask={name: log.acted[:, :, own] for name, own in by_seat.items()},
        truncated=log.cut,
        done=log.done,
    )


def _prepared(
    match: Match[Any], acting: Mapping[str, Actor], agents: Sequence[AgentSpec], mates: Mapping[str, Sequence[str]]
) -> tuple[tuple[Any, ...], int, Any]:
    """Return all who act, how many they are, and the log of a batch; 0 where not all can be compiled together."""
    env = match.env
    if type(env) is not DoorsEnv or not env.world.auto_reset:
        return (), 0, None
    tokens, events = env.world.outputs.tokens, env.world.outputs.events
    steps, (games, seats, width) = len(acting[agents[0].name].obs), tokens.shape
    most = games * (steps // env.spec.max_steps + 1)  # time limits in so many steps
    parts = []
    for agent in agents:
        shown = [match.index[seat] for seat in (*agent.seats, *mates[agent.name])]
        seats_of = len(agent.seats), shown, shown if agent.critic_space is not None else []
        parts.append(_part(acting[agent.name], seats_of, most, width))
    for own, seated in match.seated():
        player = seated.player
        if type(player) is not FrozenPlayer or player.greedy or seated.mixture is not None:
            return (), 0, None
        kept = (np.empty((1, games, len(own)), kind) for kind in (np.int64, np.float32, np.float32))
        obs = np.empty((1, games, len(own) * width), np.uint8)
        part = Actor(player.towers, player.distribution, seated.streams.state, obs, *kept)
        shown = [match.index[seat] for seat in own]
        parts.append(_part(part, (len(own), shown, []), 0, width, mirrored=player.mirrored))
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
    places = -len(parts) % _PLACES
    return (*parts, *parts[:1] * places), len(parts), log


def _joined(how: np.ufunc, columns: Array, own: Sequence[int]) -> Array:
    return columns[:, :, own[0]] if len(own) == 1 else how.reduce([columns[:, :, seat] for seat in own], axis=0)


def _part(
    acting: Actor, seats: tuple[int, list[int], list[int]], finals: int, width: int, *, mirrored: bool = False
) -> _Part | None:
    """Return the arrays of one network, ``None`` if it is not compiled for tokens and choices."""
    count, shown, last = seats
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
        np.array(shown, np.int64),
        np.array(last, np.int64),
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
