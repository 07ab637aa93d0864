"""PPO in one file, to read from top to bottom, to fill in and to change: it trains ``single-obstacle`` and ``1v1``.

    python ppo_one_file_todo.py --seed 0 --export my-agent
    multigrid-rl grade my-agent --rubric 1-single-agent
    python ppo_one_file_todo.py --env-id 1v1 --seed 0 --export my-red
    tensorboard --logdir runs

Flags have CleanRL's names. The package brings the game and, in ``1v1``, the opponent ``blue-rookie``; all else stands
here. "Detail 3" and the like are those of Huang et al. 2022,
https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import multigrid_rl
from multigrid_rl.players.cards import write_player
from multigrid_rl.world.state import token_categories

SEAT, HIDDEN = "red_0", 64
REPORT_EPISODES = 100  # their return and length are reported once so many have ended
CHARTS = ("episodic_return", "episodic_length", "SPS", "held")  # in TensorBoard; all else are losses
#: Met in all reports of ``WINDOW`` steps: length at most, return, explained variance at least, entropy at most.
GATES = {"single-obstacle": (40, 2.0, 0.6, 0.3), "1v1": (20, 1.3, 0.4, 0.3)}
WINDOW = 100_000
#: Paid in training beside the game's own reward, by event (docs/game.md): without it red hardly finds the door.
BONUS = {"single-obstacle": {"key_pickup": 1.0, "door_ready": 2.0, "success": 2.0}, "1v1": {"key_pickup": 1.0}}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command line; their defaults hold the gates of both games."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--env-id", choices=tuple(GATES), default="single-obstacle")
    add("--exp-name", default="ppo_one_file", help="runs/EXP-NAME__ENV-ID__SEED is TensorBoard's folder")
    add("--seed", type=int, default=0)
    add("--total-timesteps", type=float, default=2e6, help="at most: training ends once all gates are held")
    add("--learning-rate", type=float, default=1e-3, help="Adam's step size")
    add("--anneal-lr", action=switch, default=False, help="let it fall to 0 (detail 4)")
    add("--num-envs", type=int, default=256, help="games side by side (detail 1)")
    add("--num-steps", type=int, default=16, help="steps of each in a batch")
    add("--num-minibatches", type=int, default=4, help="gradient steps in a pass over a batch (detail 6)")
    add("--update-epochs", type=int, default=4, help="passes over a batch")
    add("--gamma", type=float, default=0.97, help="discount per step")
    add("--gae-lambda", type=float, default=0.95)
    add("--norm-adv", action=switch, default=True, help="advantages of zero mean and unit variance (detail 7)")
    add("--clip-coef", type=float, default=0.2, help="clip of the ratio (detail 8)")
    add("--clip-vloss", action=switch, default=False, help="clip the value loss, too (detail 9)")
    add("--ent-coef", type=float, default=0.03, help="weight of the entropy bonus (detail 10)")
    add("--ent-final", type=float, default=0.01, help="the same at the end (not CleanRL's)")
    add("--ent-decay", type=float, default=4e5, help="environment steps in which it gets there")
    add("--vf-coef", type=float, default=0.5, help="weight of the value loss")
    add("--max-grad-norm", type=float, default=0.5, help="largest norm of a gradient (detail 11)")
    add("--target-kl", type=float, help="end an update beyond this divergence (detail 12)")
    add("--bonus", action=switch, default=True, help="pay for steps on the way to the door (not CleanRL's)")
    add("--export", type=Path, help="new folder for the agent that was trained, to be handed in")
    return parser.parse_args(words)


class Agent(nn.Module):
    """Policy and values apart (detail 13: separate networks)."""

    def __init__(self, obs_size: int, actions: int) -> None:
        super().__init__()
        self.actor = tower(obs_size, actions, 0.01)  # nearly uniform at first
        self.critic = tower(obs_size, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action (B, 7) and values (B,) of observations (B, D)."""
        return torch.log_softmax(self.actor(obs), dim=1), self.critic(obs).squeeze(1)


def tower(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Return linear layers with orthogonal weights (detail 2) and tanh between them."""
    layers: list[nn.Module] = []
    for size, units, gain in ((inputs, HIDDEN, 2**0.5), (HIDDEN, HIDDEN, 2**0.5), (HIDDEN, outputs, last_gain)):
        layers += [nn.Linear(size, units), nn.Tanh()]
        nn.init.orthogonal_(layers[-2].weight, gain)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])


# ---- formulas


def gae(  # noqa: PLR0913, PLR0917 - the names of the formula
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, done: Tensor, gamma: float, lam: float
) -> Tensor:
    """Return advantages (T, N) of ``rewards``, ``V(s_t)``, ``V(s_t+1)`` and ends, all (T, N) (detail 5).

    ``next_values`` are those of the last observation of a game where it ended in this step. ``terminated``: nothing
    comes after it. ``done``: a new game begins, also where a time limit cut the old one, whose future counts
    (Pardo et al. 2018, https://arxiv.org/abs/1712.00378).
    """
    advantages = torch.zeros_like(rewards)
    # TODO gae: A_t = delta_t + gamma lam A_t+1, equations 12 and 16 of https://arxiv.org/abs/1506.02438
    raise NotImplementedError("gae is to be filled in")
    return advantages


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """Return PPO's loss of the policy, a scalar; log-probabilities (B,) of the actions now, with gradient, and then."""
    # TODO policy_loss: equation 7 of https://arxiv.org/abs/1707.06347, negated, as a mean over the rows
    raise NotImplementedError("policy_loss is to be filled in")
    return loss


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip_coef: float, *, clip_vloss: bool) -> Tensor:
    """Return the loss of the values, a scalar; values now (with gradient), when the batch was played, targets, (B,)."""
    # TODO value_loss: the mean squared error; with clip_vloss, in each row the larger of two (detail 9)
    raise NotImplementedError("value_loss is to be filled in")
    return loss


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy in nats, a scalar, mean over rows of all actions' log-probabilities (B, 7)."""
    # TODO entropy: H = - sum over actions of p log p; the bonus is of Williams and Peng 1991, detail 10
    raise NotImplementedError("entropy is to be filled in")
    return entropy


# ---- rollout phase: T steps of N games with the policy as it is


class Games:
    """Games side by side, what is seen of them now, and the episodes that have ended."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.envs: Any = multigrid_rl.make(args.env_id, SEAT, num_envs=args.num_envs, flat=True)
        self.bonus = BONUS[args.env_id] if args.bonus else {}
        self.obs, _ = self.envs.reset(seed=args.seed)
        self.returns, self.lengths = np.zeros((2, args.num_envs))
        self.ended: list[tuple[float, float]] = []  # return and length of each

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Play one step: training rewards, the observations that follow, terminated, done; what has ended restarts."""
        self.obs, rewards, terminated, truncated, infos = self.envs.step(actions)
        done, following = terminated | truncated, self.obs
        self.returns += rewards
        self.lengths += 1
        if done.any():
            following = np.where(done[:, None], infos["final_obs"], self.obs)
            self.ended += zip(self.returns[done], self.lengths[done], strict=True)
            self.returns[done] = self.lengths[done] = 0
        paid = rewards + sum(weight * infos[event] for event, weight in self.bonus.items())
        return paid.astype(np.float32), following, terminated, done


class Batch(NamedTuple):
    """What a rollout brings, by step and game: (T, N, ...)."""

    obs: Tensor
    log_probs: Tensor  # of all actions
    actions: Tensor
    values: Tensor
    rewards: Tensor
    next_values: Tensor
    terminated: Tensor
    done: Tensor


def collect(agent: Agent, games: Games, steps: int) -> Batch:
    """Play ``steps`` steps of all games."""
    rows = []
    with torch.no_grad():
        for _ in range(steps):
            obs = torch.from_numpy(games.obs)
            log_probs, values = agent(obs)
            actions = torch.multinomial(log_probs.exp(), 1).squeeze(1)
            rewards, following, terminated, done = map(torch.from_numpy, games.step(actions.numpy()))
            next_values = agent.critic(following).squeeze(1)
            rows.append((obs, log_probs, actions, values, rewards, next_values, terminated, done))
    return Batch(*map(torch.stack, zip(*rows, strict=True)))


# ---- learning phase: advantages, then epochs of minibatches


def learn(
    agent: Agent, optimizer: torch.optim.Optimizer, batch: Batch, ent_coef: float, args: argparse.Namespace
) -> dict[str, float]:
    """Update the agent by a batch; returns losses and measures, by CleanRL's names."""
    advantages = gae(batch.rewards, batch.values, *batch[5:], args.gamma, args.gae_lambda)
    targets = advantages + batch.values  # as in TD(lambda): detail 5
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    old_logp = batch.log_probs.gather(2, batch.actions[..., None]).squeeze(2)
    columns = [batch.obs, batch.actions, old_logp, batch.values, advantages, targets]
    rows = [column.flatten(0, 1) for column in columns]
    found = []
    for _ in range(args.update_epochs):
        for chosen in torch.randperm(len(rows[0])).chunk(args.num_minibatches):
            losses = loss_of(agent, [column[chosen] for column in rows], ent_coef, args)
            optimizer.zero_grad()
            losses["loss"].backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            found.append([value.item() for value in losses.values()])
        if args.target_kl is not None and losses["approx_kl"] > args.target_kl:
            break
    means = dict(zip(losses, np.mean(found, axis=0).tolist(), strict=True))
    played = entropy_of(batch.log_probs.flatten(0, 1)).item()
    return {**means, "entropy": played, "explained_variance": explained_variance(targets, batch.values)}


def loss_of(agent: Agent, rows: list[Tensor], ent_coef: float, args: argparse.Namespace) -> dict[str, Tensor]:
    """Return the loss of a minibatch, with its parts and how far the policy has moved."""
    obs, actions, old_logp, old_values, advantages, targets = rows
    log_probs, values = agent(obs)
    logp = log_probs.gather(1, actions[:, None]).squeeze(1)
    of_policy = policy_loss(logp, old_logp, advantages, args.clip_coef)
    of_values = value_loss(values, old_values, targets, args.clip_coef, clip_vloss=args.clip_vloss)
    loss = of_policy + args.vf_coef * of_values - ent_coef * entropy_of(log_probs)  # equation 9 of the paper
    log_ratio = (logp - old_logp).detach()
    off = torch.expm1(log_ratio)  # how far the ratio is off 1
    return {
        "loss": loss,
        "policy_loss": of_policy,
        "value_loss": of_values,
        "approx_kl": (off - log_ratio).mean(),  # k3 of http://joschu.net/blog/kl-approx.html
        "clipfrac": (off.abs() > args.clip_coef).float().mean(),
    }


def explained_variance(targets: Tensor, values: Tensor) -> float:
    """Return 1 - Var(targets - values) / Var(targets): 1 for perfect values, 0 for a constant."""
    variance = targets.var().item()
    return 1 - (targets - values).var().item() / variance if variance else math.nan


# ---- the loop, and what it reports


class Gates:
    """Whether all gates have been met at every report of the last ``WINDOW`` steps."""

    def __init__(self, env_id: str) -> None:
        self.bounds, self.since = GATES[env_id], math.inf

    def held(self, steps: int, report: dict[str, float]) -> bool:
        """Judge a report."""
        length, returned, explained, entropy = self.bounds
        met = report["episodic_length"] <= length and report["episodic_return"] >= returned
        met = met and report["explained_variance"] >= explained and report["entropy"] <= entropy
        self.since = min(self.since, steps) if met else math.inf
        return steps - self.since >= WINDOW


def train(args: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Train, and yield a report after each batch; ends once all gates are held."""
    torch.set_num_threads(1)  # a second thread costs more than it brings to a network of this size
    torch.manual_seed(args.seed)
    games = Games(args)
    agent = Agent(games.obs.shape[1], games.envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)  # detail 3
    gates, steps, began = Gates(args.env_id), 0, time.perf_counter()
    row: dict[str, float] = {}
    while steps < args.total_timesteps and not row.get("held"):
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - steps / args.total_timesteps)
        ent_coef = args.ent_final + (args.ent_coef - args.ent_final) * max(0.0, 1 - steps / args.ent_decay)
        batch = collect(agent, games, args.num_steps)
        row = learn(agent, optimizer, batch, ent_coef, args)
        steps += batch.rewards.numel()
        row |= {"steps": steps, "SPS": steps / (time.perf_counter() - began)}
        if len(games.ended) >= REPORT_EPISODES:
            row["episodic_return"], row["episodic_length"] = np.mean(games.ended, axis=0).tolist()
            games.ended.clear()
            row["held"] = gates.held(steps, row)
        yield row
    if args.export is not None:
        export(agent, games.envs.game, steps, args)


def export(agent: Agent, game: Any, steps: int, args: argparse.Namespace) -> None:
    """Write the agent as a folder that ``grade``, ``cup``, ``submit`` and ``evaluate`` take."""
    # The package reads a token's code where we read its one-hot vector: a linear layer on that is a row of a table.
    first = agent.actor[0], agent.critic[0]
    hidden = [layer.out_features for layer in agent.actor[:-1] if isinstance(layer, nn.Linear)]
    weights = {"table": torch.cat([layer.weight.T for layer in first], 1), "bias": torch.cat([x.bias for x in first])}
    for name, layers in (("policy", agent.actor), ("value", agent.critic)):
        weights |= {
            f"{name}.{k}.{part}": value
            for k, layer in enumerate(layers[1:])
            for part, value in layer.named_parameters()
        }
    card = {
        "name": args.export.name,
        "architecture": {"name": "mlp", "hidden": hidden, "activation": type(agent.actor[1]).__name__.lower()},
        "observation": {"view_size": game.view_size, "categories": token_categories(game)},
        "actions": int(agent.actor[-1].out_features),
        "scenario": args.env_id,
        "seats": [SEAT],
        "provenance": {"command": " ".join(["python", *sys.argv]), "env_steps": steps},
    }
    write_player(args.export, {name: value.detach() for name, value in weights.items()}, card)


def main() -> None:
    """Train as the command line says; a line for each report, and everything in TensorBoard."""
    args = arguments()
    if args.export is not None and args.export.exists():
        sys.exit(f"--export: expected a new folder, got {args.export}, which exists")
    board = SummaryWriter(f"runs/{args.exp_name}__{args.env_id}__{args.seed}")
    board.add_text("hyperparameters", "\n".join(f"{name}: {value}  " for name, value in vars(args).items()))
    for row in train(args):
        steps = int(row.pop("steps"))
        for name, value in row.items():
            board.add_scalar(f"{'charts' if name in CHARTS else 'losses'}/{name}", value, steps)
        if "held" in row:
            print(f"steps {steps:,}  " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    board.close()
    print(f"{'HELD all gates' if row.get('held') else 'not held'} at {steps:,} steps")


if __name__ == "__main__":
    main()
