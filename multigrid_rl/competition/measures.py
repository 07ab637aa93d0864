"""What a rubric's checks measure: metrics of games that were played, and the entropy of a network in them."""

import math
import re
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.evaluation.seeds import Interval
from multigrid_rl.metrics import groups, interval_of, samples_of
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, GameSpec, SeatView, UniformSource
from multigrid_rl.world.events import game_specs

#: Cannot be measured for a program, which answers with an action alone.
ENTROPY = "entropy/*"


def known_metrics() -> list[str]:
    """Return the metrics of checks; ``*`` stands for every seat (team, network) of the bundle."""
    names = [name for group in groups("metrics") for name in group.names if "<player>" not in name]
    return [ENTROPY, *(re.sub("<[a-z]+>", "*", name) for name in names)]


def measured(
    metric: str, spec: GameSpec, tables: list[tuple[str, EpisodeTable]], meters: "list[Metered]"
) -> list[Interval]:
    """Measure one of :func:`known_metrics` over the games of all sides, for each seat (team) that ``*`` stands for."""
    if metric == ENTROPY:
        return [Interval(meter.mean, meter.mean, meter.mean) for meter in meters]
    sides = []  # of each side the values (M,) of every seat of the bundle
    for team, table in tables:
        samples = samples_of(table, game_specs(spec), (*spec.seats_of(team), team))
        sides.append([sample.values for name, sample in samples.items() if fnmatchcase(name, metric)])
    return [Interval(*interval_of(np.concatenate(values))) for values in zip(*sides, strict=True)]


class Metered:
    """A frozen player whose entropy is added up while it plays: in nats, of its own distribution, per decision.

    A team's joint action counts as one decision: the sum over its living seats, as in training (``entropy/<module>``).
    """

    def __init__(self, player: FrozenPlayer) -> None:
        self.player = player
        self.name = player.name
        self.initial_state, self.reset_state = player.initial_state, player.reset_state
        self.total = 0.0
        self.decisions = 0

    @property
    def mean(self) -> float:
        """Mean entropy of the decisions so far; NaN before the first."""
        return self.total / self.decisions if self.decisions else float("nan")

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[np.int8], torch.Tensor]:
        """Return actions (N,), of a team (N, C), exactly those of the player.

        Raises:
            PlayerError: network outputs that are no distribution, because of too large weights.
        """
        outputs, state = self.player.outputs(view, state)
        drawn = self.player.choose(outputs, rng)
        if view.board is not None:
            seats = slice(view.seat, view.seat + self.player.members)
            living = view.board.out[:, seats] == 0  # eliminated seats and finished games make no decision
            entropy = drawn.entropy.reshape(living.shape)
            added = float((entropy * living).sum())
            if not math.isfinite(added):
                raise PlayerError(
                    expected(self.name, "finite entropy in every decision", "network outputs without probabilities")
                )
            self.total += added
            self.decisions += int(living.any(axis=1).sum())
        actions = drawn.actions.astype(np.int8)
        return (actions[:, 0] if self.player.members == 1 else actions), state
