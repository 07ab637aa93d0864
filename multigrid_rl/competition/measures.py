"""Measurements for a rubric's checks: metrics of played games, and a network's entropy in them."""

import math
import re
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.metrics import groups, interval_of, samples_of
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import place_of
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, Seats, SeatView, UniformSource

#: Not measurable for a program, which answers only with actions.
ENTROPY = "entropy/*"


def known_metrics() -> list[str]:
    """Return the metrics of checks; ``*`` means every seat (team, network) of the bundle."""
    names = [name for group in groups("metrics") for name in group.names if "<player>" not in name]
    return [ENTROPY, *(re.sub("<[a-z]+>", "*", name) for name in names)]


def measure(
    metric: str, spec: Seats, tables: list[tuple[str, EpisodeTable]], meters: "list[EntropyMeter]"
) -> list[Interval]:
    """Measure one of :func:`known_metrics` over the games of all sides, for each seat (team) of ``*``."""
    if metric == ENTROPY:
        return [Interval(meter.mean, meter.mean, meter.mean) for meter in meters]
    sides = []  # for each side the values (M,) of every seat of the bundle
    for team, table in tables:
        samples = samples_of(table, place_of(spec).who(spec), (*spec.seats_of(team), team))
        sides.append([sample.values for name, sample in samples.items() if fnmatchcase(name, metric)])
    intervals = [Interval(*interval_of(np.concatenate(values))) for values in zip(*sides, strict=True)]
    return [Interval(each.value, -math.inf, math.inf) if math.isnan(each.low) else each for each in intervals]


class EntropyMeter:
    """Adds up a frozen player's entropy while it plays: in nats, of its distribution, per decision.

    A team's joint action counts as one decision: the sum over its living seats, as in training (``entropy/<module>``).
    ``required``: a check names the entropy; otherwise a head without probabilities plays, too.
    """

    def __init__(self, player: FrozenPlayer, *, required: bool = True) -> None:
        self.player = player
        self.entropic = required or getattr(player.distribution, "density", True)
        self.name = player.name
        self.initial_state, self.reset_state = player.initial_state, player.reset_state
        self.total = 0.0
        self.decisions = 0

    @property
    def mean(self) -> float:
        """Mean entropy of the decisions so far; NaN before the first."""
        return self.total / self.decisions if self.decisions else float("nan")

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[Any], torch.Tensor]:
        """Return the player's actions (N,), of a team (N, C).

        Raises ``PlayerError``: network outputs that are no distribution, from too large weights or the head.
        """
        outputs, state = self.player.outputs(view, state)
        sample = self.player.choose(outputs, rng)
        seats = slice(view.seat, view.seat + self.player.members)
        deciding = view.turn  # no decision: eliminated seats, finished games, others' turns
        if deciding is None:
            deciding = np.ones((len(view.tokens), 1), np.bool_) if view.board is None else view.board.out[:, seats] == 0
        entropy = float((sample.entropy.reshape(len(deciding), -1) * deciding).sum())
        if not math.isfinite(entropy if self.entropic else sample.actions.sum()):
            wanted = f"finite {'entropy' if self.entropic else 'numbers'} in every decision"
            raise PlayerError(expected(self.name, wanted, "network outputs without probabilities"))
        self.total += entropy
        self.decisions += int(deciding.any(axis=1).sum())
        return self.player.native_actions(sample.actions), state
