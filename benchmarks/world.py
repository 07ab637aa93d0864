"""Speed of the game engine with random actions, views and resets included.

    python -m benchmarks.world --out runs/pages/bench-world

First 1v1 with view 5 and 1024 games on one core, alternately with the `multigrid` package. Then over the number of
games, views and agents. The figure for the original is the one
it was measured at elsewhere: about 11,500 game steps a second for 1v1 with random actions on one core.

Both have a red and a blue door in a room of 16 x 8 cells, where agents see the same window: the package's RedBlueDoors,
which the original was forked from. It has no keys, no elimination, no opponents' doors: it has less to do.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np

from benchmarks.measure import alternate, ratios, spread
from benchmarks.tables import Report, add_common, describe, figure, range_of, table
from multigrid_rl.types import GameSpec
from multigrid_rl.world.engine import World

ORIGINAL_GAME_STEPS_PER_S = 11_500
TARGET_AGENT_STEPS_PER_S = 4_000_000
ACTION_SETS = 64
GAMES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
VIEWS = (5, 7)
TEAMS = {1: (0, 1), 2: (1, 1), 3: (1, 2), 4: (2, 2)}  # agents -> blue, red

T = TypeVar("T")
Actions = np.ndarray[tuple[int, ...], np.dtype[np.int8]]


def spec_of(agents: int, view: int) -> GameSpec:
    """Return the 1v1 game with another number of agents and another window."""
    blue, red = TEAMS[agents]
    return GameSpec(blue=blue, red=red, view_size=view)


def random_actions(games: int, agents: int, seed: int) -> Actions:
    """Return sets of uniform actions to step through again and again."""
    return np.random.default_rng(seed).integers(0, 7, (ACTION_SETS, games, agents)).astype(np.int8)


def engine_round(world: World, actions: Actions, steps: int) -> float:
    """Game steps a second of ``steps`` batched steps."""
    began = time.perf_counter()
    for t in range(steps):
        world.step(actions[t % ACTION_SETS])
    return steps * world.num_games / (time.perf_counter() - began)


def multigrid_round(steps: int, seed: int) -> float:
    """Environment steps a second of the package's own red/blue-doors environment."""
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


def measured(measures: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Alternating rounds after one that compiles and warms up."""
    for measure in measures.values():
        measure()
    return alternate(measures, rounds)


def headline(report: Report, options: argparse.Namespace) -> None:
    """1v1, view 5, one core: the engine, and the package."""
    world = World(GameSpec(), options.games, seed=options.seed)
    actions = random_actions(options.games, 2, options.seed)
    names = ("engine", "multigrid package")
    rows = measured(
        {
            names[0]: partial(engine_round, world, actions, options.steps),
            names[1]: partial(multigrid_round, options.package_steps, options.seed),
        },
        options.rounds,
    )
    speeds = {name: spread(values) for name, values in rows.items()}
    games, to_package = speeds[names[0]].median, spread(ratios(rows[names[0]], rows[names[1]]))
    report.result |= {
        "agent_steps_per_s": round(2 * games),
        "games_steps_per_s": round(games),
        "ratio_to_original": round(games / ORIGINAL_GAME_STEPS_PER_S, 1),
        "ratio_to_multigrid_package": round(to_package.median, 1),
    }
    lines = table(
        ["game steps a second", "median", "min", "max"], [[name, s.median, s.low, s.high] for name, s in speeds.items()]
    )
    met = "reached" if 2 * games >= TARGET_AGENT_STEPS_PER_S else "NOT reached"
    lines += [
        "",
        f"{options.games} games, {options.rounds} alternating rounds, one core. {2 * games:,.0f} agent steps a second "
        f"(target {TARGET_AGENT_STEPS_PER_S:,}: {met}): {games / ORIGINAL_GAME_STEPS_PER_S:.0f} times the 11,500 game "
        f"steps a second that the original was measured at elsewhere, and {figure(to_package.median)} times "
        f"({range_of(to_package)}) the package's own, simpler environment.",
    ]
    report.section("1v1, view 5, one core", lines, rows)


def grid(report: Report, options: argparse.Namespace) -> None:
    """Over games, views, agents."""
    lines: list[list[Any]] = []
    data: list[dict[str, Any]] = []
    for view, agents, games in product(options.views, TEAMS, options.grid_games):
        # About a tenth of a second each.
        steps = max(4, min(options.grid_steps // (games * agents), 2_000))
        world = World(spec_of(agents, view), games, seed=options.seed)
        play = partial(engine_round, world, random_actions(games, agents, options.seed), steps)
        (rounds,) = measured({"engine": play}, options.grid_rounds).values()
        speed = spread([agents * rate for rate in rounds])
        lines.append([f"view {view}, {agents} agents, {games:,} games", speed.median, range_of(speed)])
        data.append({"view": view, "agents": agents, "games": games, "rounds": rounds})
    report.section("Games, views, agents", table(["agent steps a second", "median", "min to max"], lines), data)


SECTIONS = {"headline": headline, "grid": grid}


def main() -> None:
    """Measure, print tables, end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--games", type=int, default=1024, help="of the first two tables")
    parser.add_argument("--steps", type=int, default=1000, help="batched steps a round of the first table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.views, options.grid_games = VIEWS, GAMES
    options.package_steps, options.grid_steps, options.grid_rounds = 1000, 500_000, min(5, options.rounds)
    if options.quick:
        options.rounds, options.steps, options.package_steps, options.grid_steps = 1, 20, 50, 2_000
        options.grid_rounds = 1
        options.views, options.grid_games = (5,), (1, 64)
    report = Report("Speed of the game engine", describe())
    for name in options.only:
        SECTIONS[name](report, options)
    report.write(options.out)


if __name__ == "__main__":
    main()
