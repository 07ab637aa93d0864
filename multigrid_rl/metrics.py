"""Every metric name once, with its meaning, and the pure arithmetic behind them.

``<seat>`` is a seat such as ``red_0``, ``<team>`` a team such as ``red``; ``<module>`` is a trained network, named
after the seat it plays, or after its team if it plays several seats (``shared=true``, ``scheme=ctce``).
"""

import re

import numpy as np
from numpy.typing import NDArray

#: Name pattern -> (meaning, unit). One row of ``metrics.jsonl`` holds these names and no others (tested).
METRICS: dict[str, tuple[str, str]] = {
    "iteration": ("training iterations so far: one rollout and its update", "count"),
    "env_steps": ("environment steps so far; one step moves every agent of one game", "steps"),
    "policy_updates": ("updates so far: one per iteration, `epochs` passes over its batch", "count"),
    "gradient_steps": ("minibatch gradient steps so far, per module", "count"),
    "seconds": ("wall time since training began, set-up not counted", "s"),
    "episodes": ("finished episodes so far", "count"),
    "report_episodes": ("finished episodes behind this row's episode metrics", "count"),
    "stage": ("stage of the curriculum that this row was played in, from 0", "number"),
    "env_runners": ("processes that played this row: remote env runners, or the driver alone", "count"),
    "env_runner_restarts": ("env runners lost so far; each is replaced", "count"),
    "env_steps_per_s": ("environment steps a second over this row, everything included", "steps/s"),
    "episode_len_mean": ("mean length of the episodes that finished", "steps"),
    "return_mean/<seat>": ("mean canonical return of the seat, never shaped", "reward"),
    "team_return_mean/<team>": ("mean canonical return of the team: the sum of its seats'", "reward"),
    "explained_variance/<module>": ("1 - Var(target - value) / Var(target) over the whole train batch", "ratio"),
    "entropy/<module>": (
        "mean entropy of the sampling policy over the whole train batch; a joint action's is summed over seats",
        "nats",
    ),
    "approx_kl/<module>": (
        "KL divergence from the policy that played: mean of (r - 1) - log r over the minibatches of the update",
        "nats",
    ),
    "clip_fraction/<module>": (
        "share of steps with a ratio outside of 1 +- clip, mean over these minibatches",
        "share",
    ),
    "win/<seat>": ("share of episodes that the seat's team won", "share"),
    "draw/<seat>": ("share of episodes without a winner", "share"),
    "defeat/<seat>": ("share of episodes that the other team won", "share"),
    "win_against/<seat>/<player>": (
        "share won of the episodes against this player of a pool; `snapshots`: against all of a league's together",
        "share",
    ),
    "league/size": ("players in the league, its anchors included", "count"),
    "league/min_win": (
        "smallest win rate over all players of the league, a draw as half a win, older games fading",
        "share",
    ),
    "dagger/beta": ("probability that the expert acted in a step of this round", "share"),
    "dagger/labels": (
        "steps that the expert labelled so far, over all modules, and recorded ones it began with",
        "count",
    ),
    "behaviour/<seat>/door_open": ("own door opened by this seat, per episode", "count"),
    "behaviour/<seat>/eliminated_opponents": ("opponents eliminated by this seat, per episode", "count"),
    "behaviour/<seat>/got_eliminated": ("times this seat was eliminated, per episode", "count"),
    "behaviour/<seat>/key_pickup": ("first pickups of the own key by this seat, per episode", "count"),
    "behaviour/<seat>/ball_pay": ("factors paid for ball pickups, per episode", "sum"),
    "behaviour/<seat>/invalid_pickup": ("pickup actions that cost the penalty, per episode", "count"),
    "learner/<module>/cloning_loss": (
        "what cloning minimises, mean over the iteration: minus the log-probability of what was recorded",
        "loss",
    ),
    "learner/<module>/held_out_loss": ("the same at the end of the iteration, on episodes that are held out", "loss"),
    "learner/<module>/policy_loss": ("clipped surrogate loss, last minibatch", "loss"),
    "learner/<module>/vf_loss": ("value loss, last minibatch", "loss"),
    "learner/<module>/grad_norm": ("global gradient norm before clipping, last minibatch", "norm"),
    "learner/<module>/dropped_updates": (
        "minibatch gradients of this update that were not finite and left out",
        "count",
    ),
    "learner/<module>/discriminator_loss": (
        "cross entropy of the discriminator between recorded steps and the batch's, last of its gradient steps",
        "nats",
    ),
    "learner/<module>/discriminator_accuracy": ("share of these steps that it classified correctly", "share"),
    "learner/<module>/learnt_reward": ("mean reward over the batch that the discriminator paid", "reward"),
    "learner/<module>/lr": ("Adam step size after this update", "1"),
    "learner/<module>/entropy_coef": ("entropy bonus weight after this update", "1"),
    "timing/sample_s": ("playing, all of it", "s"),
    "timing/engine_s": ("of it: the game (with several env runners, the mean over them; likewise below)", "s"),
    "timing/players_s": ("of it: the background players' decisions", "s"),
    "timing/tokens_s": ("of it: observations into the batch", "s"),
    "timing/forward_s": ("of it: logits and values of the learning networks", "s"),
    "timing/draw_s": ("of it: drawing actions, their log-probability and entropy", "s"),
    "timing/gae_s": ("of it: advantages", "s"),
    "timing/learn_s": ("the update, all of it", "s"),
    "timing/minibatch_s": ("of it: cutting minibatches", "s"),
    "timing/network_s": ("of it: forward and backward passes; with torch's own backward, the loss too", "s"),
    "timing/loss_s": ("of it: the loss and its gradient by logits and values", "s"),
    "timing/optimizer_s": ("of it: clipping and Adam", "s"),
    "timing/normalise_s": ("of it: measuring observations and targets", "s"),
    "timing/sync_s": ("sending weights to the env runners", "s"),
    "timing/metrics_s": ("metrics and gates, and records and display of the iteration before", "s"),
    "timing/checkpoint_s": ("the checkpoint after the iteration before", "s"),
    "timing/other_s": ("the iteration without sample, learn, sync, metrics and checkpoint", "s"),
    "timing/overhead_share": (
        "share of the iteration that is neither engine, players, forward, network, loss nor optimizer",
        "share",
    ),
    "own/<function>": ("what a function of your own, which a gate names, says of the report's episodes", "its own"),
    "gates/<gate>/met": ("1 where this report meets the gate, else 0", "flag"),
    "gates/<gate>/held_steps": ("environment steps for which the gate has been met without a break", "steps"),
    "gates/held": ("1 once every gate is held", "flag"),
}

#: Parts of an iteration that follow one another; the other ``timing/`` metrics are parts of these.
STAGES = ("sample", "learn", "sync", "metrics", "checkpoint")
#: Parts in which games are played and networks computed; everything else is overhead.
WORK = ("engine", "players", "forward", "network", "loss", "optimizer")

#: Behaviour metrics, by the event of the engine that they average.
BEHAVIOUR = tuple(name.rpartition("/")[2] for name in METRICS if name.startswith("behaviour/"))


def explained_variance(targets: NDArray[np.float32], values: NDArray[np.float32]) -> float:
    """Return ``1 - Var(targets - values) / Var(targets)`` over all rows; NaN where the targets do not vary.

    1 is a perfect critic, 0 one no better than a constant. Both arrays have shape ``(B,)``.
    """
    variance = float(np.var(targets, dtype=np.float64))
    if variance == 0.0:
        return float("nan")
    return 1.0 - float(np.var(targets - values, dtype=np.float64)) / variance


def outcome_shares(winner: NDArray[np.int8], team: int) -> tuple[float, float, float]:
    """Return shares of wins, draws and losses of ``team`` (0 red, 1 blue) from the win flags ``(M,)``, ``M >= 1``.

    A win is the win flag, never "more reward than the other".
    """
    win = float(np.mean(winner == team))
    draw = float(np.mean(winner < 0))
    return win, draw, max(0.0, 1.0 - win - draw)  # rounding must not make it -0.0


def wilson_interval(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion (Wilson 1927); a draw may count as half a success.

    Raises ``ValueError``: no trials.
    """
    if trials < 1:
        raise ValueError(f"trials: expected at least 1, got {trials}")
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * float(np.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)))
    # Where none or all succeeded, rounding would go slightly beyond 0 or 1 and print "-0.0%".
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: NDArray[np.float64], z: float = 1.96) -> tuple[float, float, float]:
    """Return the mean of ``(M,)`` values, ``M >= 1``, and its 95 % interval by the central limit theorem.

    A single value has an interval of no width.
    """
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / float(np.sqrt(len(values))) if len(values) > 1 else 0.0
    return mean, mean - z * error, mean + z * error


def matches(name: str, pattern: str) -> bool:
    """Return whether a metric name fits a pattern of :data:`METRICS`; ``<gate>`` may itself contain slashes."""
    expression = re.sub("<[a-z]+>", "[^/]+", pattern.replace("<gate>", ".+"))
    return re.fullmatch(expression, name) is not None
