"""Vanilla policy gradients, to fill in: log-probabilities, advantages and the two losses.

    python vpg.py  # closed-form checks: what is filled in is right, or not
    multigrid-rl train env_id=CartPole-v1 train=vpg train.objective=vpg:objective \\
        train.psi=vpg:gae train.value_loss=vpg:value_loss

Run both in the folder of this file. ``train.psi=vpg:reward_to_go`` is REINFORCE with a reward to go,
``train.objective=vpg:clipped_objective`` PPO's objective, and the other environment is
``scenario=lunarlander experiment=none`` in the place of ``env_id=CartPole-v1``.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

# ---- what an action's probability is


def categorical_log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """Return log pi(a|s) (B,) of ``actions`` (B,) among K choices; ``logits`` (B, K) are not normalised."""
    # TODO-BEGIN categorical_log_prob: the logarithm of the softmax, at each row's action
    return torch.log_softmax(logits, dim=1).gather(1, actions[:, None]).squeeze(1)
    # TODO-END categorical_log_prob


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return log pi(a|s) (B,) of ``actions`` (B, A) of independent Gaussians; ``mean`` (B, A), ``log_std`` (A,)."""
    # TODO-BEGIN gaussian_log_prob: sum over A of -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2
    normal = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * normal.pow(2) - log_std - 0.5 * np.log(2 * np.pi)).sum(dim=1)
    # TODO-END gaussian_log_prob


# ---- what weighs it: Psi of https://arxiv.org/abs/1506.02438, equation 1


def reward_to_go(
    rewards: np.ndarray, values: np.ndarray, ends: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the discounted reward from each step on, as weights and as targets of the values, both (T, N).

    ``rewards`` (T, N); ``values`` (T + 1, N), of which the last row is what follows the batch; ``ends`` (T, N): nothing
    of the same episode follows. A batch that ends within an episode goes on with the last row of ``values``.
    """
    returns = np.zeros_like(rewards)
    # TODO-BEGIN reward_to_go: G_t = r_t + gamma G_t+1, from the last step backwards
    later = values[-1]
    for t in reversed(range(len(rewards))):
        returns[t] = later = rewards[t] + gamma * ~ends[t] * later
    # TODO-END reward_to_go
    return returns, returns


def gae(
    rewards: np.ndarray, values: np.ndarray, ends: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and targets of the values, both (T, N); arguments as those of ``reward_to_go``."""
    advantages = np.zeros_like(rewards)
    # TODO-BEGIN gae: A_t = delta_t + gamma lam A_t+1, equations 12 and 16 of https://arxiv.org/abs/1506.02438
    later = np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * ~ends[t] * values[t + 1] - values[t]
        advantages[t] = later = delta + gamma * lam * ~ends[t] * later
    # TODO-END gae
    return advantages, advantages + values[:-1]


# ---- the two losses, of each row


def compute_loss_pi(logp: Tensor, psi: Tensor) -> Tensor:
    """Return the loss (B,) whose gradient is that of policy gradients; ``logp`` (B,) with gradient, ``psi`` (B,)."""
    # TODO-BEGIN compute_loss_pi: - log pi(a|s) Psi, https://spinningup.openai.com/en/latest/algorithms/vpg.html
    return -logp * psi
    # TODO-END compute_loss_pi


def compute_loss_pi_clipped(logp: Tensor, old_logp: Tensor, psi: Tensor, clip: float) -> Tensor:
    """Return PPO's loss (B,); ``old_logp`` (B,): when the batch was played; ``clip``: of the ratio."""
    # TODO-BEGIN compute_loss_pi_clipped: equation 7 of https://arxiv.org/abs/1707.06347, negated
    ratio = torch.exp(logp - old_logp)
    return -torch.min(ratio * psi, torch.clamp(ratio, 1 - clip, 1 + clip) * psi)
    # TODO-END compute_loss_pi_clipped


def compute_loss_v(values: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (B,) of the values (B,), with gradient."""
    # TODO-BEGIN compute_loss_v: the squared error
    return (values - targets).pow(2)
    # TODO-END compute_loss_v


# ---- what train.objective and train.value_loss call: nothing to fill in


def objective(logp: Tensor, rows: object, clip: float) -> Tensor:
    """Return what is to be maximised in each row."""
    return -compute_loss_pi(logp, rows.advantages)


def clipped_objective(logp: Tensor, rows: object, clip: float) -> Tensor:
    """Return PPO's objective."""
    return -compute_loss_pi_clipped(logp, rows.logp, rows.advantages, clip)


def value_loss(values: Tensor, rows: object, clip: float) -> Tensor:
    """Return what is to be minimised in each row."""
    return compute_loss_v(values, rows.targets)


# ---- checks in closed form


def equal(found: object, expected: object) -> None:
    """Raise ``AssertionError`` unless all numbers are equal."""
    assert found is not None, "expected numbers, got None: a `return` or a gradient is missing"
    found, expected = torch.as_tensor(found).detach().double(), torch.as_tensor(expected, dtype=torch.float64)
    if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-4):
        shapes = "" if found.shape == expected.shape else f" (shape {tuple(found.shape)}, not {tuple(expected.shape)})"
        raise AssertionError(f"expected {expected.tolist()}, got {found.round(decimals=4).tolist()}{shapes}")


def check_categorical() -> None:
    """The gradient of log p(2) by the logits is one-hot minus p."""
    logits = torch.tensor([[-2.5, 0.9, 2.4, 3.7]], requires_grad=True)
    every = categorical_log_prob(logits.expand(4, 4), torch.arange(4))
    equal(every, [-6.4892, -3.0892, -1.5892, -0.2892])
    every[2].backward()
    equal(logits.grad[0], [-0.0015, -0.0455, 0.7959, -0.7489])


def check_gaussian() -> None:
    """The gradient by the mean is (a - mean) / std^2, by log std ((a - mean) / std)^2 - 1."""
    mean, log_std = torch.tensor([[0.0, 1.2], [0.5, 2.0]], requires_grad=True), torch.tensor([-0.5, 0.5])
    logp = gaussian_log_prob(mean, log_std.requires_grad_(), torch.tensor([[0.1, 1.0], [1.0, 0.0]]))
    equal(logp, [-1.8588, -2.9134])
    logp.sum().backward()
    equal(mean.grad, [[0.2718, -0.0736], [1.3591, -0.7358]])
    equal(log_std.grad, [-1.2932, -0.5138])


#: Three steps of two games; the first one ends in its second step: its third, of value 7, belongs to the next game.
BATCH = (
    np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]),
    np.array([[0.5, 0.0], [1.0, 0.0], [7.0, 0.0], [4.0, 10.0]]),
    np.array([[False, False], [True, False], [False, False]]),
)


def check_reward_to_go() -> None:
    """Nothing flows back over an end; a batch that is cut off goes on with the last value."""
    returns, targets = reward_to_go(*BATCH, 0.5, 0.9)
    equal(returns, [[2.0, 3.0], [2.0, 4.0], [5.0, 6.0]])
    equal(targets, returns)


def check_gae() -> None:
    """With lam 1 it is the reward to go minus the value, with lam 0 the residual; a target is it plus the value."""
    equal(gae(*BATCH, 0.5, 1.0)[0], [[1.5, 3.0], [1.0, 4.0], [-2.0, 6.0]])
    equal(gae(*BATCH, 0.5, 0.0)[0], [[1.0, 1.0], [1.0, 1.0], [-2.0, 6.0]])
    advantages, targets = gae(*BATCH, 0.5, 0.4)
    equal(advantages, [[1.2, 1.44], [1.0, 2.2], [-2.0, 6.0]])
    equal(targets, [[1.7, 1.44], [2.0, 2.2], [5.0, 6.0]])


def check_losses() -> None:
    """Losses and gradients of two rows, each on its own: - Psi by log pi, 2 (V - G) by the value; no mean over them."""
    logp, values = torch.tensor([-1.0, -0.5], requires_grad=True), torch.tensor([3.0, 1.0], requires_grad=True)
    loss_pi, loss_v = compute_loss_pi(logp, torch.tensor([2.0, -4.0])), compute_loss_v(values, torch.tensor([1.0, 2.0]))
    equal(loss_pi, [2.0, -2.0])
    equal(loss_v, [4.0, 1.0])
    (loss_pi + loss_v).sum().backward()
    equal(logp.grad, [-2.0, 4.0])
    equal(values.grad, [4.0, -2.0])


def check_clip() -> None:
    """Ratios of 1.5, 0.5 and 1.05: beyond the clip they teach nothing where that was good, and all where it was bad."""
    logp = (torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5, 1.05])) - 1).requires_grad_()
    loss = compute_loss_pi_clipped(logp, torch.full((5,), -1.0), torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0]), 0.1)
    equal(loss, [-2.2, 3.0, -1.0, 1.8, -2.1])
    loss.sum().backward()
    equal(logp.grad, [0.0, 3.0, -1.0, 0.0, -2.1])


def main() -> int:
    """Run all checks and return the number of those that fail."""
    failed = 0
    for check in (check_categorical, check_gaussian, check_reward_to_go, check_gae, check_losses, check_clip):
        try:
            check()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what is filled in may raise anything
            failed += 1
            plain = isinstance(error, AssertionError | NotImplementedError)
            print(f"{check.__name__}: {error if plain else repr(error)}")
        else:
            print(f"{check.__name__}: right")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
