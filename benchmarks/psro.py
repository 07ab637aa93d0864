"""PSRO (Lanctot et al. 2017): each training is a best response to a mixture of all players before it.

    python -m benchmarks.psro runs/psro --rounds 4 --budget 2e5 --meta nash scenario=1v1

A plan over runs, for games of one against one: all players meet each other from both sides; the mixture follows from
the payoffs (uniform, a Nash equilibrium, or what replicator dynamics come to); the next run trains red against it,
from the weights of the last one. Who learned on red sits on blue by symmetry. The same command goes on after a kill.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from multigrid_rl.competition.bundle import export
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import evaluate, summary
from multigrid_rl.evaluation.targets import against, player_target
from multigrid_rl.files import write_whole
from multigrid_rl.league.rules import nash
from multigrid_rl.league.verbs import trained
from multigrid_rl.runs.players import players_for
from multigrid_rl.text import ConfigError, expected

Payoffs = NDArray[np.float64]
#: Players with a smaller share of a mixture are left out of it.
LEAST = 0.01
SEED = 60_000


def replicator(payoffs: Payoffs, steps: int = 20_000, pace: float = 0.02) -> Payoffs:
    """Return the mean mixture of replicator dynamics, begun evenly; payoffs (K, K) are win rates."""
    logs, total = np.zeros(len(payoffs)), np.zeros(len(payoffs))
    for _ in range(steps):
        mixture = np.exp(logs - logs.max())
        mixture /= mixture.sum()
        total += mixture
        logs += pace * (payoffs @ mixture)
    mean: Payoffs = total / steps
    return mean


METAS: dict[str, Callable[[Payoffs], Payoffs]] = {
    "uniform": lambda payoffs: np.full(len(payoffs), 1 / len(payoffs)),
    "nash": nash,
    "replicator": replicator,
}


def mixture_of(names: list[str], payoffs: Payoffs, meta: str) -> dict[str, float]:
    """Return who plays in which share of the games."""
    drawn = METAS[meta](payoffs)
    shares = {name: float(share) for name, share in zip(names, drawn, strict=True) if share >= LEAST}
    return {name: round(share / sum(shares.values()), 4) for name, share in shares.items()}


class Plan:
    """What has been played and trained so far, in ``psro.json``.

    Args:
        folder: of the plan, new or to go on with.
        overrides: of the game and the trainings.
        first: who is there before anybody has been trained.
        games: of each pair, half from each side.
    """

    def __init__(self, folder: Path, overrides: list[str], first: list[str], games: int) -> None:
        self.folder, self.overrides, self.games = folder, overrides, games
        spec = compose(overrides).scenario.spec
        if (spec.red, spec.blue) != (1, 1):
            raise ConfigError(expected("scenario", "one of one against one", f"{spec.red} red and {spec.blue} blue"))
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "psro.json"
        earlier = json.loads(self._file.read_bytes()) if self._file.exists() else {}
        request = {"overrides": overrides, "first": first, "games": games}
        if earlier.get("asked", request) != request:
            raise ConfigError(expected(folder, f"a new folder, or what it began with: {earlier['asked']}", request))
        self.state = {"asked": request, "names": list(first), "wins": {}, "rounds": [], **earlier}

    @property
    def names(self) -> list[str]:
        """All players, in the order in which they joined."""
        return list(self.state["names"])

    def _keep(self) -> None:
        write_whole(self._file, (json.dumps(self.state, indent=1) + "\n").encode())

    def payoffs(self) -> Payoffs:
        """Return win rates (K, K) of all against all, a draw as half a win; pairs that were played are not again."""
        names, wins = self.names, self.state["wins"]
        rates = np.full((len(names), len(names)), 0.5)
        for i, name in enumerate(names):
            for j, other in enumerate(names[:i]):
                key = f"{name} {other}"
                if key not in wins:
                    wins[key] = win_rate(name, other, self.overrides, self.games)
                    self._keep()
                rates[i, j], rates[j, i] = wins[key], 1 - wins[key]
        return rates

    def respond(self, meta: str, budget: int) -> None:
        """Train a best response to the mixture of all players, and add it."""
        rounds = self.state["rounds"]
        mixture = mixture_of(self.names, self.payoffs(), meta)
        seats = ",".join(f"{name}:{share}" for name, share in mixture.items())
        run = [*self.overrides, f"scenario.seats.blue_0={seats}", "scenario.seats.red_0=learn", f"seed={len(rounds)}"]
        run += ["scenario.gates=[]", "train.stop_when_held=false", f"train.until={budget}"]
        run += [f"init={self.folder / f'round-{len(rounds) - 1}'}"] if rounds else []
        trained_run = trained(self.folder / f"round-{len(rounds)}", run)
        target = self.folder / f"player-{len(rounds)}"
        if not target.exists():
            export(players_for(trained_run, "red_0"), target)
        rounds.append({"meta": meta, "budget": budget, "mixture": mixture, "player": str(target)})
        self.state["names"].append(str(target))
        self._keep()

    def lines(self) -> list[str]:
        """Return a table of rounds: the opponents of each response, and its results against them and the hardest."""
        names, payoffs, rows = self.names, self.payoffs(), []
        for row in self.state["rounds"]:
            k = names.index(row["player"])
            met = sum(share * payoffs[k, names.index(name)] for name, share in row["mixture"].items())
            mixture = ", ".join(f"{Path(name).name} {share:.0%}" for name, share in row["mixture"].items())
            rows.append((Path(row["player"]).name, mixture, float(met), float(payoffs[k, :k].min())))
        return table(("player", "trained against", "wins against that", "against the hardest of them"), rows)


def win_rate(one: str, other: str, overrides: list[str], games: int) -> float:
    """Return how often ``one`` beats ``other``, a draw as half a win, from both sides."""
    target = against(player_target(one, compose(overrides)), other)
    evaluation = evaluate(target, episodes=games, seed=SEED, modes=("stochastic",), sides="both")
    row = summary(evaluation.parts)
    return float(row["win"] + row["draw"] / 2)


def main() -> None:
    """Play, train and print a table, round after round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", help="of the game and the trainings: scenario=1v1 train.lr=3e-4")
    parser.add_argument("--rounds", type=int, default=4, help="best responses in all")
    parser.add_argument("--budget", type=float, default=2e5, help="environment steps of each")
    parser.add_argument("--meta", choices=list(METAS), default="nash")
    parser.add_argument("--first", nargs="+", default=["random"], help="who is there before the first round")
    parser.add_argument("--games", type=int, default=1000, help="of each pair")
    options = parser.parse_intermixed_args()
    plan = Plan(options.folder, options.overrides, options.first, options.games)
    while len(plan.state["rounds"]) < options.rounds:
        plan.respond(options.meta, int(options.budget))
    print("\n".join(plan.lines()))


if __name__ == "__main__":
    main()
