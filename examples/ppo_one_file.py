"""``make train SCENARIO=1v1`` in one file: PPO with every detail that its recipe has, to read from top to bottom.

    python examples/ppo_one_file.py --seed 0 --until 2e6

Red learns to beat the frozen player ``blue-rookie``. The package brings the game and the opponent, and nothing else. The
loop, :func:`train`, has two phases, marked ``rollout phase`` and ``learning phase``; what they compute stands above it.
Numbers are those of ``multigrid-rl train scenario=1v1`` with the same seed, but for the rounding of float32. Named details
are those of Huang et al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ ("detail 3").
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read by numpy: a second thread costs small products more than it brings
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import multigrid_rl

SEAT = "red_0"
NUM_ENVS, NUM_STEPS = 256, 16  # games side by side, steps of each in a batch (detail 1: a vectorised architecture)
EPOCHS, MINIBATCH = 4, 1024  # passes over a batch, rows of one gradient step (detail 6: minibatch updates)
GAMMA, LAM = 0.97, 0.95  # discount per step, GAE's lambda
CLIP = 0.2  # of the ratio (detail 8)
CLIP_VLOSS = False  # clip the value loss, too (detail 9): it does not help
VF_COEF, GRAD_CLIP, LR = 0.5, 0.5, 1e-3  # weight of the value loss, largest norm of a gradient, Adam's step size
ENTROPY, ENTROPY_DECAY = 0.02, 400_000  # weight of the entropy bonus, steps in which it falls to 0 (detail 10)
HIDDEN, CHOICES = 64, 7
KEY_BONUS = 1.0  # training reward for red's own key: else red lies in wait for blue, and never comes across the key
REPORT_EPISODES = 100  # returns are told once so many games have ended


# ---- random numbers: a stream for each game, so that game k draws the same beside any number of others

U64 = np.uint64
GOLDEN = np.array([0x9E3779B97F4A7C15], U64)  # arrays, as numpy's scalars warn when they overflow, which is meant here
LEARNER = 64  # draws of the learner; games and opponents have streams of their own


def mix(z: np.ndarray) -> np.ndarray:
    """Return splitmix64's output for counters ``z`` (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195)."""
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


class Streams:
    """Uniform numbers in [0, 1), one from each of ``count`` streams."""

    def __init__(self, seed: int, count: int) -> None:
        purpose = np.array([LEARNER], U64) * U64(0xBF58476D1CE4E5B9) + GOLDEN
        root = mix(mix(np.array([seed], U64) + GOLDEN) ^ purpose)
        self.counters = mix(root + np.arange(1, count + 1, dtype=U64) * GOLDEN)

    def uniform(self) -> np.ndarray:
        """Return (N,) numbers."""
        self.counters += GOLDEN
        return (mix(self.counters) >> U64(11)).astype(np.float64) / 2**53


# ---- network: two towers over one-hot tokens


class Towers(torch.autograd.Function):
    """Logits and values of tokens, and the way back by hand: torch's own takes twice as long for arrays this small.

    A tower is ``W2 tanh(W1 tanh(x) + b1) + b2``, where ``x`` is its half of a linear layer over one-hot codes: of the bias
    and a sum of those rows of the table that the codes select, without a product with a matrix of zeros.
    """

    @staticmethod
    def forward(ctx: Any, codes: np.ndarray, *weights: Tensor) -> tuple[Tensor, ...]:
        """Return logits (B, 7) and values (B, 1) of rows ``codes`` (B, D) of the table (R, 2 H)."""
        table, bias, *layers = (part.numpy() for part in weights)
        inputs = F.embedding_bag(torch.from_numpy(codes), weights[0], mode="sum").numpy() + bias
        ctx.codes, ctx.rows, ctx.towers, outputs = codes, len(table), [], []
        for half in (0, 1):
            w1, b1, w2, b2 = layers[4 * half :][:4]
            first = np.tanh(inputs[:, HIDDEN * half :][:, :HIDDEN])
            second = np.tanh(first @ w1.T + b1)
            outputs.append(torch.from_numpy(second @ w2.T + b2))
            ctx.towers.append((first, w1, second, w2))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradients of all weights (Rumelhart et al. 1986), as d tanh(x) / dx = 1 - tanh(x)^2."""
        below, gradients = [], []
        for above, (first, w1, second, w2) in zip(map(Tensor.numpy, upstream), ctx.towers, strict=True):
            inner = above @ w2 * (1 - second * second)
            below.append(inner @ w1 * (1 - first * first))
            gradients += [inner.T @ first, inner.sum(axis=0), above.T @ second, above.sum(axis=0)]
        by_inputs = np.concatenate(below, axis=1)
        # A row of the table gets the sum of the gradients of all places that read it: a sum of selected rows, once more.
        flat = ctx.codes.astype(np.uint16).ravel()  # 16 bits: numpy's stable sort is then a radix sort
        readers = np.repeat(np.arange(len(ctx.codes)), ctx.codes.shape[1])[np.argsort(flat, kind="stable")]
        count = np.bincount(flat, minlength=ctx.rows)
        places = (torch.from_numpy(array) for array in (readers, by_inputs, count.cumsum() - count))
        by_table = F.embedding_bag(*places, mode="sum")
        return None, by_table, *map(torch.from_numpy, [by_inputs.sum(axis=0), *gradients])


class ActorCritic(nn.Module):
    """Policy and values apart but for one look-up of the tokens (detail 13: separate networks)."""

    # A shared trunk would have two losses to weigh (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990).

    def __init__(self, token_sizes: list[int], seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(64 * seed)  # 64 networks of a run would have a seed each; this is the first
        self.first = np.array([0, *accumulate(token_sizes)][:-1])
        self.hash = np.random.default_rng(0).integers(2**64, size=len(token_sizes), dtype=U64)
        # One row of each token's is summed: so the sum has unit variance.
        table = torch.empty(sum(token_sizes), 2 * HIDDEN).normal_(std=len(token_sizes) ** -0.5, generator=rng)
        self.table, self.bias = nn.Parameter(table), nn.Parameter(torch.zeros(2 * HIDDEN))
        self.policy, self.value = tower(CHOICES, 0.01, rng), tower(1, 1.0, rng)

    def forward(self, obs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action (B, 7) and values (B,) of tokens ``obs`` (B, D)."""
        # In a small room many games look the same: equal rows are computed once. Rows are compared by a hash of 64 bits.
        _, which, inverse = np.unique(obs @ self.hash, return_index=True, return_inverse=True)
        logits, values = Towers.apply(obs[which] + self.first, *self.parameters())
        rows = torch.from_numpy(inverse)
        log_probs = torch.log_softmax(logits.T.contiguous(), dim=0).T  # along long rows, as torch is three times as fast
        return log_probs.index_select(0, rows), values.squeeze(1).index_select(0, rows)


def tower(outputs: int, last_gain: float, rng: torch.Generator) -> nn.ModuleList:
    """Build the layers that follow the first, with orthogonal weights (detail 2)."""
    # The policy's last layer is a hundredth as large: it begins nearly uniform (Engstrom et al. 2020,
    # https://arxiv.org/abs/2005.12729).
    layers = nn.ModuleList(nn.Linear(HIDDEN, after) for after in (HIDDEN, outputs))
    for layer, gain in zip(layers, (2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain, generator=rng)
        nn.init.zeros_(layer.bias)
    return layers


# ---- formulas


def draw(log_probs: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw an action for each row of ``log_probs`` (N, 7); returns actions, their log-probabilities, entropies, (N,)."""
    probs = np.exp(log_probs, dtype=np.float64)
    # The inverse of the cumulative distribution; the last action takes the rounding error, too.
    actions = (probs[:, :-1].cumsum(axis=1) <= uniform[:, None]).sum(axis=1)
    return actions, log_probs[np.arange(len(actions)), actions], -(probs * log_probs).sum(axis=1)


def gae(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, terminated: np.ndarray, done: np.ndarray
) -> np.ndarray:
    """Return advantages (T, N) of ``rewards``, ``V(s_t)``, ``V(s_t+1)`` and ends, all (T, N) (detail 5).

    ``next_values`` are those of the final observation where a game ended in this step. ``terminated``: nothing is worth
    anything after it. ``done``: a new game begins, also where a time limit cut the old one, whose future counts
    (Pardo et al. 2018, https://arxiv.org/abs/1712.00378).
    """
    advantages = np.zeros_like(rewards)
    # TODO-BEGIN gae: equations 11, 12 and 16 of https://arxiv.org/abs/1506.02438
    later = np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):  # backwards, as A_t = delta_t + gamma lam A_t+1
        delta = rewards[t] + np.float32(GAMMA) * next_values[t] * ~terminated[t] - values[t]
        later = delta + np.float32(GAMMA * LAM) * ~(terminated[t] | done[t]) * later
        advantages[t] = later
    # TODO-END gae
    return advantages


def standardise(advantages: np.ndarray) -> np.ndarray:
    """Scale to zero mean and unit variance: step sizes then fit rewards of any size (detail 7)."""
    # Over the batch, not in each minibatch: a step weighs the same in every epoch. In float64, as digits get lost.
    centred = advantages - advantages.mean(dtype=np.float64)
    return (centred / max(float(advantages.std(dtype=np.float64)), 1e-8)).astype(np.float32)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> Tensor:
    """Return PPO's loss of the policy, a scalar; log-probabilities of the actions now (with gradient) and then, (B,)."""
    # TODO-BEGIN policy_loss: equation 7 of https://arxiv.org/abs/1707.06347, negated, as a mean over the rows
    ratio = torch.exp(logp - old_logp)
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    # TODO-END policy_loss
    return loss


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, *, clip: bool = CLIP_VLOSS) -> Tensor:
    """Return the loss of the values, a scalar; values now (with gradient), when the batch was played, targets, (B,)."""
    # TODO-BEGIN value_loss: the mean squared error; with clip detail 9, the larger of it and the error of values that moved by at most CLIP
    error = (values - targets).pow(2)
    if clip:
        near = old_values + torch.clamp(values - old_values, -CLIP, CLIP)
        error = torch.max(error, (near - targets).pow(2))
    loss = error.mean()
    # TODO-END value_loss
    return loss


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy in nats, a scalar, mean over rows of all actions' log-probabilities (B, 7)."""
    # TODO-BEGIN entropy: H = - sum over actions of p log p; the bonus is of Williams and Peng 1991, detail 10
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    # TODO-END entropy
    return entropy


def explained_variance(targets: np.ndarray, values: np.ndarray) -> float:
    """Return 1 - Var(targets - values) / Var(targets): 1 for perfect values, 0 for a constant."""
    variance = float(np.var(targets, dtype=np.float64))
    return 1 - float(np.var(targets - values, dtype=np.float64)) / variance if variance else math.nan


def minibatches(rows: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the rows of each gradient step: first in the order of play, then in a new random order for each epoch."""
    orders = [np.arange(rows)] + [rng.permutation(rows) for _ in range(EPOCHS - 1)]
    yield from np.concatenate(orders).reshape(-1, MINIBATCH)


# ---- the loop


def train(seed: int = 0, until: float = 2e6, save: str | None = None) -> Iterator[dict[str, float]]:
    """Train for ``until`` environment steps and yield a row of numbers for each iteration; ``save``: weights go there."""
    torch.set_num_threads(1)  # a second thread costs more than it brings to a network of this size
    match = multigrid_rl.make("1v1", SEAT, num_envs=NUM_ENVS).match  # games, with blue-rookie on the other seat
    red = match.spec.seats.index(SEAT)
    obs = match.reset(seed)[SEAT]  # (N, 27) uint8: a code for each cell of the view, red's heading, its mission
    net = ActorCritic([23] * 25 + [4, 4], seed)
    # Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980), with its own epsilon: detail 3 has 1e-5.
    weights = nn.Parameter(torch.cat([part.detach().ravel() for part in net.parameters()]))
    weights.grad = torch.zeros_like(weights)
    sizes = [part.numel() for part in net.parameters()]
    for part, row, gradient in zip(net.parameters(), weights.data.split(sizes), weights.grad.split(sizes), strict=True):
        part.data, part.grad = row.view_as(part), gradient.view_as(part)
    adam = torch.optim.Adam([weights], lr=LR, fused=True)
    streams, order = Streams(seed, NUM_ENVS), np.random.default_rng(seed)
    shape = (NUM_STEPS, NUM_ENVS)
    all_obs = np.empty((*shape, obs.shape[1]), np.uint8)
    rewards, values, logp, entropy = (np.empty(shape, np.float32) for _ in range(4))
    actions, done, terminated = np.empty(shape, np.int64), np.empty(shape, np.bool_), np.empty(shape, np.bool_)
    env_steps, episodes, pending, entropy_coef, before = 0, 0, [], ENTROPY, time.perf_counter()
    while env_steps < until:
        # ---- rollout phase: T steps of N games with the policy as it is
        finals, cut = [obs[:0]], np.zeros(shape, np.bool_)
        for t in range(NUM_STEPS):
            all_obs[t] = obs
            with torch.no_grad():
                log_probs, values[t] = map(Tensor.numpy, net(obs))
            actions[t], logp[t], entropy[t] = draw(log_probs, streams.uniform())
            step = match.step({SEAT: actions[t]})  # games that end begin anew in the same step
            bonus = KEY_BONUS * match.world.outputs.events[:, red, 0]  # 1 where red took its key for the first time
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
        columns = (actions, logp, standardise(advantages), targets, values)
        flat_obs, flat = all_obs.reshape(-1, obs.shape[1]), [column.ravel() for column in columns]
        kls, clipped = [], []
        for rows in minibatches(rewards.size, order):
            took, old_logp, weight, target, old_value = (torch.from_numpy(column[rows]) for column in flat)
            log_probs, value = net(flat_obs[rows])
            new_logp = log_probs.gather(1, took[:, None]).squeeze(1)
            of_policy, of_values = policy_loss(new_logp, old_logp, weight), value_loss(value, old_value, target)
            weights.grad.zero_()
            (of_policy + VF_COEF * of_values - entropy_coef * entropy_of(log_probs)).backward()  # equation 9 of the paper
            norm = float(torch.linalg.vector_norm(weights.grad))  # detail 11: one norm over all weights
            weights.grad *= min(1.0, GRAD_CLIP / (norm + 1e-6))
            adam.step()
            log_ratio = new_logp.detach().numpy() - old_logp.numpy()
            off = np.expm1(log_ratio)  # how far the ratio is off 1
            kls.append((off - log_ratio).mean())  # k3 of http://joschu.net/blog/kl-approx.html
            clipped.append((np.abs(off) > CLIP).mean())
        entropy_coef = float(np.float32(ENTROPY - ENTROPY * min(env_steps / ENTROPY_DECAY, 1)))

        # ---- what is told of it, by the names of docs/metrics.md
        now = time.perf_counter()
        table = match.drain_episodes()
        pending, episodes = [*pending, table], episodes + table.episodes
        row = {
            "env_steps": env_steps,
            "episodes": episodes,
            f"entropy/{SEAT}": float(entropy.ravel().mean()),
            f"explained_variance/{SEAT}": explained_variance(targets.ravel(), values.ravel()),
            f"approx_kl/{SEAT}": float(np.mean(kls)),
            f"clip_fraction/{SEAT}": float(np.mean(clipped)),
            f"learner/{SEAT}/policy_loss": of_policy.item(),
            f"learner/{SEAT}/vf_loss": of_values.item(),
            f"learner/{SEAT}/grad_norm": norm,
            f"learner/{SEAT}/entropy_coef": entropy_coef,
            "env_steps_per_s": rewards.size / (now - before),
        }
        before = now
        if sum(table.episodes for table in pending) >= REPORT_EPISODES:
            lengths, returns, winners = (
                np.concatenate([getattr(table, name) for table in pending]) for name in ("length", "returns", "winner")
            )
            pending = []
            row |= {"report_episodes": len(lengths), "episode_len_mean": float(lengths.mean())}
            row |= {f"return_mean/{SEAT}": float(returns.mean(axis=0)[red]), f"win/{SEAT}": float(np.mean(winners == 0))}
        if save is not None and env_steps >= until:
            torch.save(net.state_dict(), save)
        yield row


def main() -> None:
    """Train as the command line says and print a line for each iteration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, default=500_000, help="environment steps")
    parser.add_argument("--save", help="file for the weights (torch.save of a state_dict)")
    arguments = parser.parse_args()
    for row in train(arguments.seed, arguments.until, arguments.save):
        print("  ".join(f"{name.removeprefix('learner/')} {value:.4g}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
