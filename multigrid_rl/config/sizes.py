"""Sizes that follow from a run's configuration: each has a name here and none stands in yaml; what acts. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from multigrid_rl.config.schema import RunConfig, TrainConfig, trainer_of
from multigrid_rl.text import ConfigError, expected


def check_budget(train: TrainConfig) -> None:
    """Refuse a budget that a run would not keep: it plays whole batches. Raises ``ConfigError``."""
    if train.until < train.batch_size:
        batch = f"train.num_envs={train.num_envs} x train.num_steps={train.num_steps}"
        wanted = f"at least {train.batch_size}, one batch of {batch}"
        raise ConfigError(expected("train.until", wanted, train.until))


class Sizes(NamedTuple):
    """What the numbers of a configuration amount to; made by :meth:`of`."""

    agents: Mapping[str, int]  # network -> learning agents that it plays: one a seat, or one a whole team under ctce
    batch_size: int  # environment steps of one update
    minibatches_per_epoch: int  # gradient steps of one pass; where the last is not full, the next pass fills it
    gradient_steps_per_update: int  # per network, until the largest batch was passed over ``epochs`` times
    updates: int  # until the budget ``until`` is spent
    gradient_steps: int  # per network, until the budget is spent
    checkpoints: int  # in all: one at each first update past ``checkpoint_every``, one at the end
    horizon: float  # steps that the discount looks ahead: ``1 / (1 - gamma)``, infinite for ``gamma`` 1
    credit_horizon: float  # that advantages look ahead: ``1 / (1 - gamma * lam)`` (Schulman et al. 2016)

    @classmethod
    def of(cls, config: RunConfig, modules: Iterable[str] = ()) -> "Sizes":
        """Work out the sizes of a run; ``modules``: the network of each agent that learns."""
        train, agents = config.train, dict(Counter(modules))
        batch, product = train.batch_size, train.gamma * train.lam
        # The network with the most agents decides how many minibatches there are.
        largest = max(agents.values(), default=0) * batch
        updates, steps = math.ceil(train.until / batch), math.ceil(train.epochs * largest / train.minibatch)
        return cls(
            agents=agents,
            batch_size=batch,
            minibatches_per_epoch=math.ceil(largest / train.minibatch),
            gradient_steps_per_update=steps,
            updates=updates,
            gradient_steps=updates * steps,
            checkpoints=math.ceil(updates / math.ceil(train.checkpoint_every / batch)),
            horizon=1 / (1 - train.gamma) if train.gamma < 1 else math.inf,
            credit_horizon=1 / (1 - product) if product < 1 else math.inf,
        )

    def steps_of(self, module: str) -> int:
        """Return the steps that one network learns from in one update, at most: eliminated agents have fewer.

        Raises ``KeyError``: no such network.
        """
        return self.agents[module] * self.batch_size


def reward_facts(train: TrainConfig) -> list[tuple[str, str]]:
    """Describe training rewards other than the game's own; empty where there are none."""
    only = "training reward only; gates score the game's own"
    facts = [("shaping", f"{train.shaping} ({only})")] if train.shaping else []
    facts += [(name, f"{fact} ({only})") for name, fact in trainer_of(train.trainer).facts(train)]
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
    for name, schedule in zip(("learning rate", "entropy bonus", "clip"), train.schedules.values(), strict=True):
        if schedule.start != schedule.end:
            course = f"a straight line over the first {schedule.steps:,} steps, then constant"
            rows.append((name, f"{schedule.start:g} to {schedule.end:g}", course))
        elif not changing or (name == "entropy bonus" and schedule.start):
            rows.append((name, f"{schedule.start:g}", "the same all the time"))
    return rows
