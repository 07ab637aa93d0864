"""Sizes that follow from a run's configuration: each has a name here and none stands in yaml; what acts. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from multigrid_rl.scenario import ConfigError
from multigrid_rl.schema import RunConfig, TrainConfig, available_cpus
from multigrid_rl.text import expected


def check_budget(train: TrainConfig) -> None:
    """Refuse a budget that a run would not keep: it plays whole batches. Raises ``ConfigError``."""
    if train.until < train.batch_size:
        batch = f"train.num_envs={train.num_envs} x train.num_steps={train.num_steps}"
        wanted = f"at least {train.batch_size}, one batch of {batch}"
        raise ConfigError(expected("train.until", wanted, train.until))


@dataclass(frozen=True)
class Sizes:
    """What the numbers of a configuration amount to.

    Args:
        config: the run.
        agents: network -> how many learning agents it plays (one for each seat, or one for a whole team under ctce).
    """

    config: RunConfig
    agents: Mapping[str, int]

    @property
    def batch_size(self) -> int:
        """Environment steps of one update."""
        return self.config.train.batch_size

    @property
    def games_per_sampler(self) -> int:
        """Games that one sampling process, a remote env runner or the driver alone, plays side by side."""
        return self.config.train.num_envs // max(self.config.cluster.runners, 1)

    @property
    def learner_threads(self) -> int:
        """Torch threads of the learner: as configured, or the cores that the env runners leave, at least one."""
        return self.config.train.torch_threads or max(1, available_cpus() - self.config.cluster.runners)

    def steps_of(self, module: str) -> int:
        """Return the steps that one network learns from in one update, at most: eliminated agents have fewer.

        Raises ``KeyError``: no such network.
        """
        return self.agents[module] * self.batch_size

    @property
    def largest(self) -> int:
        """Steps of the network with the most agents: it decides how many minibatches there are."""
        return max(map(self.steps_of, self.agents))

    @property
    def rows_per_minibatch(self) -> int:
        """Rows of a minibatch: steps or, for a network with memory, whole sequences of ``num_steps`` steps."""
        train = self.config.train
        return train.minibatch // train.num_steps if self.config.model.recurrent else train.minibatch

    @property
    def minibatches_per_epoch(self) -> int:
        """Gradient steps of one pass over the batch; where the last is not full, the next pass fills it."""
        return math.ceil(self.largest / self.config.train.minibatch)

    @property
    def gradient_steps_per_update(self) -> int:
        """Gradient steps, per network, until the largest batch was passed over ``epochs`` times."""
        return math.ceil(self.config.train.epochs * self.largest / self.config.train.minibatch)

    @property
    def updates(self) -> int:
        """Updates until the budget ``until`` is spent."""
        return math.ceil(self.config.train.until / self.batch_size)

    @property
    def env_steps(self) -> int:
        """Environment steps after the last update: whole batches, so up to one batch more than ``until``."""
        return self.updates * self.batch_size

    @property
    def gradient_steps(self) -> int:
        """Gradient steps, per network, until the budget is spent."""
        return self.updates * self.gradient_steps_per_update

    @property
    def checkpoints(self) -> int:
        """Checkpoints until the budget is spent: one at each first update past ``checkpoint_every``, one at the end."""
        return math.ceil(self.updates / math.ceil(self.config.train.checkpoint_every / self.batch_size))

    @property
    def horizon(self) -> float:
        """Steps that the discount looks ahead: ``1 / (1 - gamma)``, infinite for ``gamma`` 1."""
        gamma = self.config.train.gamma
        return 1 / (1 - gamma) if gamma < 1 else math.inf

    @property
    def credit_horizon(self) -> float:
        """Steps that the advantage estimate itself looks ahead: ``1 / (1 - gamma * lam)`` (Schulman et al. 2016)."""
        product = self.config.train.gamma * self.config.train.lam
        return 1 / (1 - product) if product < 1 else math.inf


def reward_facts(train: TrainConfig) -> list[tuple[str, str]]:
    """Say what is learned from beside or instead of the game's own reward; nothing where that is all."""
    only = "training reward only; gates score the game's own"
    facts = [("shaping", f"{train.shaping} ({only})")] if train.shaping else []
    if train.adversarial is not None:
        facts.append(("imitation", f"{train.adversarial.kind}, what a discriminator takes for recorded play ({only})"))
    for seat, weights in train.bonus.items():
        listed = ", ".join(f"{event} {weight:+g}" for event, weight in weights.items())
        facts.append(("bonus", f"{listed} for {seat} ({only})"))
    return facts


def schedules(train: TrainConfig, *, changing: bool = False) -> list[tuple[str, str, str]]:
    """Return name, values and course of what may change with the environment steps played.

    Args:
        train: the run's.
        changing: leave out what stays as it is, but for an entropy bonus: it is another thing that is learned from.
    """
    rows = []
    for name, its in zip(("learning rate", "entropy bonus", "clip"), train.schedules.values(), strict=True):
        if its.start != its.end:
            course = f"a straight line over the first {its.steps:,} steps, then constant"
            rows.append((name, f"{its.start:g} to {its.end:g}", course))
        elif not changing or (name == "entropy bonus" and its.start):
            rows.append((name, f"{its.start:g}", "the same all the time"))
    return rows
