"""Policy-gradient weights of an action's log-probability: the six ``Psi_t``.

Notation and numbering of generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438),
equation 1. Arrays are (T, N): ``T`` steps of ``N`` environments.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.jit import kernel
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import import_object

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


class Estimator(NamedTuple):
    """Settings that turn rewards into weights of log-probabilities; see :func:`weigh`."""

    gamma: float
    lam: float
    psi: str = "gae"  # one of ``train.psi``, or ``module:function``: see :func:`own_weights`
    critic: bool = True  # a value network is trained; without one all values count as 0
    timeout_terminates: bool = False  # a truncation counts as a termination


def gae(
    steps: Any, values: Floats, next_values: Floats, *, gamma: float, lam: float, timeout_terminates: bool = False
) -> Floats:
    """Compute advantages (T, N): ``A_t = delta_t + gamma lam A_{t+1}``, ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``.

    Termination drops ``V(s_{t+1})``; truncation keeps it: it bootstraps from the final observation (Pardo et al. 2018,
    https://arxiv.org/abs/1712.00378). Neither lets ``A`` of the next episode flow back. There is no correction for
    off-policy rows such as V-trace (https://arxiv.org/abs/1802.01561): the weights that learn first drew all of them.

    Args:
        steps: a ``Rollout`` or ``Paths``; read are, each (T, N): ``rewards``; ``terminated``, the agent's episode
            ended for good; ``done``, the environment's episode ended, also by truncation; ``active``, the agent was in
            the game: other rows are not experience and get 0; by :func:`weigh` ``starts``, an episode begins.
        values: (T, N) ``V(s_t)``.
        next_values: (T, N) ``V(s_{t+1})``; of the final observation where the episode ended in this step.
        gamma: discount per step.
        lam: weight of later residuals.
        timeout_terminates: a truncation counts as a termination.
    """
    ended = steps.terminated | steps.done if timeout_terminates else steps.terminated
    # One pass over contiguous rows; torch or numpy would need T calls, each on N numbers.
    result = np.zeros(values.shape, np.float32)
    floats = np.stack([steps.rewards, values, next_values], dtype=np.float32, casting="same_kind")
    _gae(floats, np.stack([ended, steps.done, steps.active]), np.float32(gamma), np.float32(gamma * lam), result)
    return result


@kernel
def _gae(floats: Floats, flags: Flags, discount: np.float32, carry: np.float32, result: Floats) -> None:
    # Backwards, as A_t needs A_{t+1}. A terminated step is worth only its reward; after an episode's end, of either
    # kind, no advantage is carried over. Rows of agents that are out keep 0 and pass nothing on.
    rewards, values, next_values = floats
    terminated, done, active = flags
    zero, steps = np.float32(0), len(values)
    for t in range(steps - 1, -1, -1):
        for n in range(values.shape[1]):
            if active[t, n]:
                delta = rewards[t, n] + (zero if terminated[t, n] else discount) * next_values[t, n] - values[t, n]
                next_advantage = result[t + 1, n] if t + 1 < steps else zero
                result[t, n] = delta + (zero if terminated[t, n] or done[t, n] else carry) * next_advantage


def weigh(steps: Any, values: Floats, next_values: Floats, estimator: Estimator) -> tuple[Floats, Floats]:
    """Compute the weights of the log-probabilities and the targets of the value network; both (T, N).

    With ``G_t`` the discounted reward from ``t`` on, bootstrapped by ``V`` where a path is cut off, and ``A_t`` of
    :func:`gae`:

    ================  ========================  =====================
    ``psi``           weight                    target of the values
    ================  ========================  =====================
    total_reward      ``G_0``                   ``G_t``
    future_return     ``G_t``                   ``G_t``
    baselined_return  ``G_t - V(s_t)``          ``G_t``
    q                 ``A_t + V(s_t)``          ``A_t + V(s_t)``
    gae               ``A_t``                   ``A_t + V(s_t)``
    td                ``delta_t``               ``A_t + V(s_t)``
    ================  ========================  =====================

    Values are zeros where no value network is trained; other arguments are those of :func:`gae`.
    """
    psi, timeout = estimator.psi, estimator.timeout_terminates
    if ":" in psi:
        return custom_weights(steps, values, next_values, estimator)
    residuals = partial(gae, steps, values, next_values, gamma=estimator.gamma, timeout_terminates=timeout)
    # With lam = 1 the sum of residuals telescopes to G_t - V(s_t): Monte Carlo returns need no separate code.
    monte_carlo = psi in ("total_reward", "future_return", "baselined_return")
    advantages = residuals(lam=1.0 if monte_carlo else estimator.lam)
    targets = advantages + values
    if psi == "total_reward":
        return total_reward(targets, steps.starts), targets
    if psi in ("future_return", "q"):
        return targets, targets
    return (residuals(lam=0.0) if psi == "td" else advantages), targets


def custom_weights(steps: Any, values: Floats, next_values: Floats, estimator: Estimator) -> tuple[Floats, Floats]:
    """Compute weights and targets with a user's function, in the textbook's form; arguments as of :func:`weigh`.

    The function gets ``rewards`` (T, N), ``values`` (T + 1, N), whose last row follows the rollout,
    ``ends`` (T, N), after which nothing of the same episode follows, ``gamma`` and ``lam``; it returns weights and
    targets, both (T, N). Where a time limit cut an episode, its reward holds ``gamma V`` of the final observation,
    which gives the same sums as a bootstrap there. Raises ``ConfigError``: the function returned something
    else.
    """
    ended = steps.terminated | steps.done
    cut = steps.done & ~steps.terminated & (not estimator.timeout_terminates)
    rewards = np.where(cut, steps.rewards + np.float32(estimator.gamma) * next_values, steps.rewards).astype(np.float32)
    last_value = np.where(ended[-1], np.float32(0), next_values[-1])
    function = import_object("train.psi", estimator.psi)
    result = function(rewards, np.concatenate([values, last_value[None]]), ended, estimator.gamma, estimator.lam)
    shapes = [np.shape(part) for part in result] if isinstance(result, tuple) else type(result).__name__
    if shapes != [values.shape] * 2:
        wanted = f"weights and targets, both of the rewards' shape {values.shape}"
        raise ConfigError(expected(f"train.psi={estimator.psi}", wanted, shapes))
    weights, targets = (np.asarray(part, np.float32) for part in result)
    return weights, targets


def total_reward(returns: Floats, starts: Flags) -> Floats:
    """Give every step the return of its whole path, ``Psi_t = G_0``: :func:`gae` with ``lam=1`` at its start.

    Args:
        returns: (T, N) ``G_t``, the discounted reward from each step on.
        starts: (T, N) an episode begins with this step. A path that began earlier counts from the first step.
    """
    result = np.empty_like(returns)
    path_return = returns[0]
    for t in range(len(returns)):
        path_return = np.where(starts[t], returns[t], path_return)
        result[t] = path_return
    return result


def standardise(values: Floats) -> Floats:
    """Scale to zero mean and unit variance over all rows (a constant column becomes zeros)."""
    # In float64: float32 sums of 10^5 rows lose the digits that a small deviation is made of.
    centred = values - values.mean(dtype=np.float64)
    result: Floats = (centred / max(float(values.std(dtype=np.float64)), 1e-8)).astype(np.float32)
    return result
