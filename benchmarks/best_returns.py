"""The best return that each scenario of red/blue doors allows: ``python -m benchmarks.best_returns``.

Exhaustive search: the last red acts on the game's own engine, and everybody else stands still. From every state that it
reaches, every action is played, until no state is reached with more reward, less what its steps take from the success
reward. Where keys lie on random cells, each cell of red's is searched, with blue's key out of the way. The table goes
into docs/game.md, section 9.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.events import best_return
from multigrid_rl.world.state import State

PAGE = Path(__file__).parents[1] / "docs" / "game.md"
BETWEEN = re.compile(r"(?<=<!-- best returns -->\n).*(?=<!-- end of best returns -->)", re.DOTALL)
SCENARIOS = ("single", "single-v3", "single-obstacle", "single-obstacle-v3", "1v1", "coop", "coop-eval", "2v2",
             "2v2-deathmatch", "2v2-peace")  # fmt: skip
#: What tells two states apart: all else follows from these, or changes nothing that is rewarded.
APART = ("cells", "position", "heading", "hand", "out")
EPSILON = 1e-12


class Best(NamedTuple):
    """The best game of one red while everybody else stands still."""

    total: float  # the team's return
    steps: int


class Layer(NamedTuple):
    """States that were reached after equally many steps."""

    state: State
    score: NDArray[np.float64]  # (N,) the team's reward so far, less what the steps take from the success reward


def search(world: World, actor: int) -> Best:
    """Return the best game from the first game of a world, for agent ``actor``.

    Raises ``ValueError``: no game is won within its steps.
    """
    layer = Layer(State._make(array[:1].copy() for array in world.state), np.zeros(1))
    best, known = Best(-np.inf, 0), dict[bytes, float]()
    for step in range(1, world.spec.max_steps + 1):
        layer, won = _played(world.spec, layer, actor, step)
        if len(won) and won.max() > best.total + EPSILON:
            best = Best(float(won.max()), step)
        layer = _worth_going_on(world.spec, layer, best.total, known)
        if not len(layer.score):
            break
    if not best.steps:
        raise ValueError(f"expected a game that can be won within {world.spec.max_steps} steps, got none")
    return best


def _played(spec: GameSpec, layer: Layer, actor: int, step: int) -> tuple[Layer, NDArray[np.float64]]:
    """Play every action but ``done`` from every state; returns states of games that go on, and returns of those won."""
    came_from = np.repeat(np.arange(len(layer.score)), c.DONE)
    world = World(spec, len(came_from), auto_reset=False)
    for name, array in world.state._asdict().items():
        array[...] = getattr(layer.state, name)[came_from]
    actions = np.full((len(came_from), spec.num_agents), c.DONE, np.int8)
    actions[:, actor] = np.arange(len(came_from)) % c.DONE
    played = world.step(actions)
    red = world.flags.team == c.RED
    score, cost = layer.score[came_from] + played.reward[:, red].sum(axis=1), _cost(spec)
    won, on = played.winner == c.RED, ~played.done
    going = Layer(State._make(array[on] for array in world.state), score[on] - cost)
    return going, score[won] + cost * (step - 1)  # the success reward has all that the steps cost


def _cost(spec: GameSpec) -> float:
    """Return what a step takes from the success reward."""
    return 0.9 * spec.reward.success / spec.max_steps


def _worth_going_on(spec: GameSpec, layer: Layer, best: float, known: dict[bytes, float]) -> Layer:
    """Leave out states that were reached before with as high a score, and those that cannot beat the best game."""
    state, score = layer
    factors = np.ascontiguousarray(np.nan_to_num(state.ball_factor)).view(np.uint8).reshape(len(score), -1)
    keys = np.concatenate([*(getattr(state, name) for name in APART), factors], axis=1)
    hopeful = np.flatnonzero(score + _left(spec, state) > best + EPSILON)
    chosen = []
    for k in hopeful[np.argsort(-score[hopeful], kind="stable")]:
        key = keys[k].tobytes()
        if score[k] > known.get(key, -np.inf) + EPSILON:
            known[key] = score[k]
            chosen.append(k)
    return Layer(State._make(array[chosen] for array in state), score[chosen])


def _left(spec: GameSpec, state: State) -> NDArray[np.float64]:
    """Return at least what red can still earn from each state (N,)."""
    weights, blues = spec.reward, spec.blue if spec.death_match else 0
    key = (state.cells == c.KEY).any(axis=1) | (state.hand == c.KEY).any(axis=1)
    factor, balls = np.nan_to_num(state.ball_factor[:, c.BLUE]), np.zeros(len(key))
    for _ in range(30):
        balls, factor = balls + factor, factor**2
    living = (state.out[:, :blues] == 0).sum(axis=1)  # blue agents come first
    paid = weights.key_pickup * key + weights.ball_pickup * balls + weights.eliminated_opponent * living
    return np.asarray(paid + weights.success, np.float64)


def games_of(spec: GameSpec) -> list[World]:
    """Return a game for each cell that red's key may lie on; one where keys are fixed."""
    if not spec.random_keys:
        return [World(spec, 1, auto_reset=False)]
    drawn = World(spec, 4096, auto_reset=False).state.cells
    worlds = []
    for cell in np.unique(np.argmax(drawn == c.KEY, axis=1)):
        world = World(spec, 1, auto_reset=False)
        board = world.state.cells[0]
        board[(board >= c.KEY) & (board < c.BALL)] = c.EMPTY
        board[cell] = c.KEY
        worlds.append(world)
    return worlds


def row_of(name: str) -> str:
    """Return a scenario's row of the table."""
    spec = load_scenario(name).spec
    found = [search(world, spec.num_agents - 1) for world in games_of(spec)]
    totals, steps = [best.total for best in found], [best.steps for best in found]
    return (
        f"| `{name}` | {best_return(spec, 'red'):.4f} | {np.mean(totals):.4f} | {_range(totals, '.4f')} "
        f"| {_range(steps, 'd')} | {len(found)} |"
    )


def _range(values: list[float] | list[int], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def table(names: tuple[str, ...]) -> str:
    """Return the table of section 9."""
    head = "| scenario | the team's bound | one red, mean | range over key positions | steps | key positions |"
    return f"{head}\n|---|--:|--:|--:|--:|--:|\n" + "".join(f"{row_of(name)}\n" for name in names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, help="print these rows, and leave the page as it is")
    only = parser.parse_args().only
    text = table(tuple(only or SCENARIOS))
    print(text, end="")
    if not only:
        PAGE.write_text(BETWEEN.sub(lambda _: text, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
