"""What a rubric's checks measure: metrics of games that were played, and the entropy of a network in them."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid_rl.evaluation.evaluation import results_of
from multigrid_rl.evaluation.seeds import Interval
from multigrid_rl.metrics import BEHAVIOUR, mean_interval, wilson_interval
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, GameSpec, SeatView, UniformSource
from multigrid_rl.world.constants import EVENTS

#: Cannot be measured for a program, which answers with an action alone.
ENTROPY = "entropy/*"
OUTCOMES = {"win/*": 1, "draw/*": 0, "defeat/*": -1}
#: Metrics of checks; ``*`` stands for every seat (team, network) of the bundle.
METRICS = (
    "episode_len_mean",
    "return_mean/*",
    "team_return_mean/*",
    *OUTCOMES,
    ENTROPY,
    *(f"behaviour/*/{name}" for name in BEHAVIOUR),
)


def measured(
    metric: str, spec: GameSpec, tables: list[tuple[str, EpisodeTable]], meters: "list[Metered]"
) -> list[Interval]:
    """Measure one of :data:`METRICS` over the games of all sides, for each seat (network) that ``*`` stands for."""
    if metric == ENTROPY:
        return [Interval(meter.mean, meter.mean, meter.mean) for meter in meters]
    if metric in OUTCOMES:
        results = np.concatenate([results_of(table, team) for team, table in tables])
        count = int((results == OUTCOMES[metric]).sum())
        return [Interval(count / len(results), *wilson_interval(count, len(results)))]
    columns = []  # (M, own seats), or (M, 1) of the team
    for team, table in tables:
        own = [spec.seats.index(seat) for seat in spec.seats_of(team)]
        if metric == "episode_len_mean":
            columns.append(table.length[:, None].astype(np.float64))
        elif metric.startswith("behaviour/"):
            columns.append(table.events[:, own, EVENTS.index(metric.rsplit("/", 1)[1])])
        else:
            returns = table.returns[:, own]
            columns.append(returns.sum(axis=1, keepdims=True) if metric.startswith("team_") else returns)
    return [Interval(*mean_interval(values)) for values in np.concatenate(columns).T]


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
