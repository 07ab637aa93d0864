"""Speed of the game engine: 1v1, view 5, random actions, views and resets included, one core.

    python -m benchmarks.world

The figure for the original is the one it was measured at elsewhere: about 11,500 game steps a second for 1v1 with
random actions on one core. The `multigrid` package's RedBlueDoors environment, which the original was forked from, runs
alternately in the same process as a live yardstick.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from multigrid_rl.types import GameSpec
from multigrid_rl.world.constants import CELL
from multigrid_rl.world.engine import World
from multigrid_rl.world.views import decode_views

ORIGINAL_GAME_STEPS_PER_S = 11_500
ACTION_SETS = 64


def engine_round(world: World, actions: np.ndarray[tuple[int, ...], np.dtype[np.int8]], steps: int) -> float:
    """Game steps a second of ``steps`` batched steps."""
    began = time.perf_counter()
    for t in range(steps):
        world.step(actions[t % ACTION_SETS])
    return steps * world.num_games / (time.perf_counter() - began)


def decoded_round(world: World, actions: np.ndarray[tuple[int, ...], np.dtype[np.int8]], steps: int) -> float:
    """The same with every view turned into (type, colour, state) triples."""
    area = world.spec.view_size**2
    triples = np.empty((world.num_games, world.spec.num_agents, area, 3), np.uint8)
    began = time.perf_counter()
    for t in range(steps):
        decode_views(world.step(actions[t % ACTION_SETS]).tokens, CELL, triples)
    return steps * world.num_games / (time.perf_counter() - began)


def multigrid_round(steps: int, seed: int) -> float:
    """Environment steps a second of the package's own two-agent red/blue-doors environment."""
    from multigrid.envs import RedBlueDoorsEnv  # noqa: PLC0415 - pulls in pygame

    env = RedBlueDoorsEnv(size=8, agents=2, agent_view_size=5)
    env.reset(seed=seed)
    actions = np.random.default_rng(seed).integers(0, 7, (steps, 2))
    began = time.perf_counter()
    for row in actions:
        _, _, terminated, truncated, _ = env.step(dict(enumerate(row.tolist())))
        if any(terminated.values()) or all(truncated.values()):
            env.reset()
    return steps / (time.perf_counter() - began)


def main() -> None:
    """Measure, print a table, end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000, help="batched steps a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    world = World(GameSpec(), options.games, seed=options.seed)
    shape = (ACTION_SETS, options.games, 2)
    actions = np.random.default_rng(options.seed).integers(0, 7, shape).astype(np.int8)
    measures: dict[str, Callable[[], float]] = {
        "engine, cell codes": lambda: engine_round(world, actions, options.steps),
        "engine, decoded triples": lambda: decoded_round(world, actions, options.steps),
        "multigrid package": lambda: multigrid_round(1000, options.seed),
    }
    for measure in measures.values():
        measure()  # compile and warm up
    rows: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(options.rounds):
        for name, measure in measures.items():
            rows[name].append(measure())
    print(f"1v1, view 5, {options.games} games, random actions, {options.rounds} rounds, one core")
    print(f"{'':26}{'median':>14}{'min':>14}{'max':>14}   game steps a second")
    for name, values in rows.items():
        print(f"{name:26}{statistics.median(values):>14,.0f}{min(values):>14,.0f}{max(values):>14,.0f}")
    games = statistics.median(rows["engine, cell codes"])
    result = {
        "agent_steps_per_s": round(2 * games),
        "games_steps_per_s": round(games),
        "ratio_to_original": round(games / ORIGINAL_GAME_STEPS_PER_S, 1),
        "decoded_agent_steps_per_s": round(2 * statistics.median(rows["engine, decoded triples"])),
        "ratio_to_multigrid_package": round(games / statistics.median(rows["multigrid package"]), 1),
    }
    print(
        f"{2 * games:,.0f} agent steps a second; {result['ratio_to_original']} times the original's 11,500 game steps"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
