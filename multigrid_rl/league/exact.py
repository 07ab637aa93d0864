"""Exact exploitability in small games, by OpenSpiel's own best responses."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multigrid_rl.config.scenario import Strict
from multigrid_rl.envs.zoo import open_game
from multigrid_rl.players.catalogue import LoadedPlayer
from multigrid_rl.text import ConfigError, expected

#: Positions of the largest game that is looked through: a minute.
MOST = 1_000_000


class Exact(Strict):
    """How far players are from an equilibrium, all their actions drawn."""

    exploitability: float  # NashConv (https://arxiv.org/abs/1711.00832) / number of seats
    earned: dict[str, float]  # mean return of each seat's player
    best: dict[str, float]  # what a perfect best response earns there against all the others

    @property
    def mean_best(self) -> float:
        """What perfect best responses earn, averaged over the seats; the exploitability where returns sum to 0."""
        return float(np.mean(list(self.best.values())))


def exact(spec: Any, seated: Mapping[str, LoadedPlayer]) -> Exact:
    """Compute the exploitability of players on all seats of a game.

    Args:
        spec: the game.
        seated: player of each seat.

    Raises:
        ConfigError: no game of OpenSpiel's, one with more than ``MOST`` positions, or a player whose probabilities are
            not known.
    """
    env_id = getattr(spec, "env_id", "the red/blue-door game")
    game: Any = open_game(env_id, spec.env_args) if hasattr(spec, "env_args") else None
    if not hasattr(game, "situations"):
        raise ConfigError(expected("--exact", "a game of OpenSpiel's (env_id=openspiel:GAME)", env_id))
    for seat, its in seated.items():
        if not hasattr(its.player, "probabilities"):
            raise ConfigError(expected("--exact", f"a network or random on {seat}", its.name))
    try:
        situations = game.situations(MOST)
    except ValueError as error:
        raise ConfigError(f"--exact: {error}") from error
    policy = {}
    for seat, its in seated.items():
        names = [name for name, situation in situations.items() if situation.agent == seat]
        player: Any = its.player
        seen = np.array([np.concatenate([situations[name].seen, situations[name].flags]) for name in names])
        for name, row in zip(names, player.probabilities(seen), strict=True):
            legal = np.flatnonzero(situations[name].flags).tolist()
            total = row[legal].sum()  # all but 1: what is not legal has a logit of -1e9
            policy[name] = [(action, float(row[action] / total)) for action in legal]
    pairs = game.best_responses(policy)
    gains = [best - own for own, best in pairs.values()]
    return Exact(
        exploitability=sum(gains) / len(gains),
        earned={seat: own for seat, (own, _) in pairs.items()},
        best={seat: best for seat, (_, best) in pairs.items()},
    )
