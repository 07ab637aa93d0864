"""``make train SCENARIO=1v1`` written a second time, without the package's learner: its numbers must be the same.

The package brings the game, the opponent ``blue-rookie`` and streams of random numbers. "Detail 3" and the like are
those of Huang et al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.

Numbers are those of ``multigrid-rl train scenario=1v1`` with the same seed, within 1e-5, as float32 is added up in
another order, until a ratio falls on the other side of a clip's bound (seeds 0 to 2: after 12 to 18 iterations).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import multigrid_rl
from multigrid_rl.streams import LEARNER_PURPOSE, Streams
from multigrid_rl.world.constants import EVENTS

SEAT = "red_0"  # in 1v1 it acts in every step: no row is left out
NUM_ENVS, NUM_STEPS = 256, 16  # games side by side, steps of each in a batch (detail 1: a vectorised architecture)
EPOCHS, MINIBATCH = 4, 1024  # passes over a batch, rows of one gradient step (detail 6: minibatch updates)
GAMMA, LAM = 0.97, 0.95  # discount per step, GAE's lambda
CLIP = 0.2  # of the ratio (detail 8)
VF_COEF, GRAD_CLIP, LR = 0.5, 0.5, 1e-3  # weight of the value loss, largest norm of a gradient, Adam's step size
ENTROPY, ENTROPY_DECAY = 0.02, 400_000  # weight of the entropy bonus, steps in which it falls to 0 (detail 10)
HIDDEN, CHOICES = 64, 7
KEY_BONUS = 1.0  # training reward for red's own key: else red lies in wait for blue, and never comes across the key
REPORT_EPISODES = 100  # returns are told once so many games have ended


# ---- network: two towers over one-hot tokens


class ActorCritic(nn.Module):
    """Policy and values apart but for one look-up of the tokens (detail 13: separate networks)."""

    # A shared trunk would have two losses to weigh (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990).

    def __init__(self, token_sizes: list[int], seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(64 * seed)  # a run has room for 64 networks; this is the first
        self.first = torch.tensor([0, *accumulate(token_sizes)][:-1])
        # One row of each token's is summed: so the sum has unit variance.
        table = torch.empty(sum(token_sizes), 2 * HIDDEN).normal_(std=len(token_sizes) ** -0.5, generator=rng)
        self.table, self.bias = nn.Parameter(table), nn.Parameter(torch.zeros(2 * HIDDEN))
        # The policy's last layer is a hundredth as large: it begins nearly uniform (Engstrom et al. 2020,
        # https://arxiv.org/abs/2005.12729).
        self.policy, self.value = (
            nn.Sequential(nn.Tanh(), layer(HIDDEN, 2**0.5, rng), nn.Tanh(), layer(outputs, gain, rng))
            for outputs, gain in ((CHOICES, 0.01), (1, 1.0))
        )

    def forward(self, obs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action (B, 7) and values (B,) of tokens ``obs`` (B, D)."""
        # A linear layer over one-hot codes, without a product with a matrix of zeros.
        codes = torch.from_numpy(obs.astype(np.int64)) + self.first
        inputs = F.embedding_bag(codes, self.table, mode="sum") + self.bias
        policy, value = inputs.chunk(2, dim=1)
        return torch.log_softmax(self.policy(policy), dim=1), self.value(value).squeeze(1)


def layer(outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    """Return a linear layer with orthogonal weights (detail 2)."""
    linear = nn.Linear(HIDDEN, outputs)
    nn.init.orthogonal_(linear.weight, gain, generator=rng)
    nn.init.zeros_(linear.bias)
    return linear


# ---- formulas


def draw(log_probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return actions (N,) drawn by ``log_probs`` (N, 7) and numbers ``uniform`` (N,) in [0, 1)."""
    # The inverse of the cumulative distribution; the last action takes the rounding error, too.
    return (np.exp(log_probs[:, :-1], dtype=np.float64).cumsum(axis=1) <= uniform[:, None]).sum(axis=1)


def gae(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, terminated: np.ndarray, done: np.ndarray
) -> np.ndarray:
    """Return advantages (T, N) of ``rewards``, ``V(s_t)``, ``V(s_t+1)`` and ends, all (T, N) (detail 5).

    ``next_values`` are those of the final observation where a game ended in this step. ``terminated``: nothing is worth
    anything after it. ``done``: a new game begins, also where a time limit cut the old one, whose future counts
    (Pardo et al. 2018, https://arxiv.org/abs/1712.00378).
    """
    advantages = np.zeros_like(rewards)
    later = np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):  # backwards, as each needs the next one
        delta = rewards[t] + np.float32(GAMMA) * next_values[t] * ~terminated[t] - values[t]
        later = delta + np.float32(GAMMA * LAM) * ~(terminated[t] | done[t]) * later
        advantages[t] = later
    return advantages


def standardise(advantages: np.ndarray) -> np.ndarray:
    """Scale to zero mean and unit variance: step sizes then fit rewards of any size (detail 7)."""
    # Over the batch, not in each minibatch: a step weighs the same in every epoch. In float64, as digits get lost.
    centred = advantages - advantages.mean(dtype=np.float64)
    return (centred / max(float(advantages.std(dtype=np.float64)), 1e-8)).astype(np.float32)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> Tensor:
    """Return PPO's loss of the policy, a scalar; log-probabilities (B,) of the actions now, with gradient, and then."""
    ratio = torch.exp(logp - old_logp)
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    return -torch.min(advantages * ratio, advantages * clipped).mean()


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy in nats, a scalar, mean over rows of all actions' log-probabilities (B, 7)."""
    return -(log_probs.exp() * log_probs).sum(dim=1).mean()


def explained_variance(targets: np.ndarray, values: np.ndarray) -> float:
    """Return 1 - Var(targets - values) / Var(targets): 1 for perfect values, 0 for a constant."""
    variance = float(np.var(targets, dtype=np.float64))
    return 1 - float(np.var(targets - values, dtype=np.float64)) / variance if variance else math.nan


def minibatches(rows: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the rows of each gradient step: first in the order of play, then in a new random order for each epoch."""
    orders = [np.arange(rows)] + [rng.permutation(rows) for _ in range(EPOCHS - 1)]
    yield from np.concatenate(orders).reshape(-1, MINIBATCH)


def learn(
    net: ActorCritic,
    adam: torch.optim.Adam,
    obs: np.ndarray,
    columns: tuple[np.ndarray, ...],
    order: np.random.Generator,
    entropy_coef: float,
) -> dict[str, float]:
    """Take epochs of gradient steps on a batch, and return what is told of them.

    ``columns``: actions, their log-probabilities, advantages and targets of the rows of ``obs``.
    """
    flat, kls, clipped = [column.ravel() for column in columns], [], []
    for rows in minibatches(len(obs), order):
        took, old_logp, weight, target = (torch.from_numpy(column[rows]) for column in flat)
        log_p, value = net(obs[rows])
        new_logp = log_p.gather(1, took[:, None]).squeeze(1)
        of_policy, of_values = policy_loss(new_logp, old_logp, weight), (value - target).pow(2).mean()
        adam.zero_grad()
        (of_policy + VF_COEF * of_values - entropy_coef * entropy_of(log_p)).backward()  # equation 9 of the paper
        norm = nn.utils.clip_grad_norm_(net.parameters(), GRAD_CLIP)  # detail 11: one norm over all weights
        adam.step()
        log_ratio = new_logp.detach().numpy() - old_logp.numpy()
        off = np.expm1(log_ratio)  # how far the ratio is off 1
        kls.append((off - log_ratio).mean())  # k3 of http://joschu.net/blog/kl-approx.html
        clipped.append((np.abs(off) > CLIP).mean())
    return {
        f"approx_kl/{SEAT}": float(np.mean(kls)),
        f"clip_fraction/{SEAT}": float(np.mean(clipped)),
        f"learner/{SEAT}/policy_loss": of_policy.item(),
        f"learner/{SEAT}/vf_loss": of_values.item(),
        f"learner/{SEAT}/grad_norm": norm.item(),
    }


def report(ended: list[Any], red: int) -> dict[str, float]:
    """Return what is told of the games that have ended."""
    lengths, returns, winners = (
        np.concatenate([getattr(table, name) for table in ended]) for name in ("length", "returns", "winner")
    )
    return {
        "report_episodes": len(lengths),
        "episode_len_mean": float(lengths.mean()),
        f"return_mean/{SEAT}": float(returns.mean(axis=0)[red]),
        f"win/{SEAT}": float(np.mean(winners == 0)),  # winner 0 is the red team
    }


# ---- the loop


def train(seed: int, until: int) -> Iterator[dict[str, float]]:
    """Train for ``until`` environment steps and yield the numbers of each iteration."""
    torch.set_num_threads(1)  # a second thread costs more than it brings to a network of this size
    match = multigrid_rl.make("1v1", SEAT, num_envs=NUM_ENVS).match  # games, with blue-rookie on the other seat
    red = match.index[SEAT]
    obs = match.reset(seed)[SEAT]  # (N, 27) uint8: a code for each cell of the view, red's heading, its mission
    net = ActorCritic([23] * 25 + [4, 4], seed)
    # Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980), with its own epsilon: detail 3 has 1e-5.
    adam = torch.optim.Adam(net.parameters(), lr=LR, fused=True)
    streams, order = Streams(seed, np.arange(NUM_ENVS), LEARNER_PURPOSE), np.random.default_rng(seed)
    shape = (NUM_STEPS, NUM_ENVS)
    all_obs = np.empty((*shape, obs.shape[1]), np.uint8)
    log_probs, rewards, values = np.empty((*shape, CHOICES), np.float32), *np.empty((2, *shape), np.float32)
    actions, done, terminated = np.empty(shape, np.int64), np.empty(shape, np.bool_), np.empty(shape, np.bool_)
    env_steps, episodes, pending, entropy_coef = 0, 0, [], ENTROPY
    while env_steps < until:
        # ---- rollout phase: T steps of N games with the policy as it is
        finals, cut = [obs[:0]], np.zeros(shape, np.bool_)
        for t in range(NUM_STEPS):
            all_obs[t] = obs
            with torch.no_grad():
                log_probs[t], values[t] = map(Tensor.numpy, net(obs))
            actions[t] = draw(log_probs[t], streams.uniform(1)[:, 0])
            step = match.step({SEAT: actions[t]})  # games that end begin anew in the same step
            bonus = KEY_BONUS * match.env.world.outputs.events[:, red, EVENTS.index("key_pickup")]  # its first
            rewards[t], terminated[t], done[t] = step.rewards[SEAT] + bonus, step.terminated[SEAT], step.done
            cut[t] = step.done & step.truncated  # the time limit: what would have come counts
            finals.append(step.final_observations[SEAT][cut[t]])
            obs = step.observations[SEAT]
        with torch.no_grad():
            _, found = net(np.concatenate([obs, *finals]))
        next_values = np.where(done, np.float32(0), np.concatenate([values[1:], found[None, :NUM_ENVS]]))
        next_values[cut] = found[NUM_ENVS:]
        env_steps += rewards.size

        # ---- learning phase: advantages, then epochs of minibatches
        advantages = gae(rewards, values, next_values, terminated, done)
        targets = advantages + values  # as in TD(lambda): detail 5
        logp = np.take_along_axis(log_probs, actions[..., None], axis=2)
        columns = (actions, logp, standardise(advantages), targets)
        learnt = learn(net, adam, all_obs.reshape(-1, obs.shape[1]), columns, order, entropy_coef)
        entropy_coef = float(np.float32(ENTROPY - ENTROPY * min(env_steps / ENTROPY_DECAY, 1)))

        # ---- what is told of it, by the names of docs/running.md
        table = match.drain_episodes()
        pending, episodes = [*pending, table], episodes + table.episodes
        row = {
            "env_steps": env_steps,
            "episodes": episodes,
            f"entropy/{SEAT}": -float((np.exp(log_probs) * log_probs).sum(axis=2).mean()),
            f"explained_variance/{SEAT}": explained_variance(targets.ravel(), values.ravel()),
            **learnt,
            f"learner/{SEAT}/entropy_coef": entropy_coef,
        }
        if sum(table.episodes for table in pending) >= REPORT_EPISODES:
            row |= report(pending, red)
            pending = []
        yield row
