"""Shared by tests: a person's session, and keys that win it."""

import numpy as np

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.scripted import IdlePlayer, KeyRunner
from multigrid_rl.show.play import OtherPlayers, Session
from multigrid_rl.streams import Streams
from multigrid_rl.types import GameSpec, SeatView
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World

SPEC = load_scenario("1v1").spec


def session(opponent=None, *, spec: GameSpec = SPEC, seat: str = "red_0", seed: int = 4) -> Session:
    """A person on ``seat``; everybody else plays ``opponent`` (idle by default)."""
    others = [s for s in spec.seats if s != seat]
    players = {s: opponent or IdlePlayer() for s in others}
    names = {s: "you" if s == seat else players[s].name for s in spec.seats}
    return Session(spec, OtherPlayers(seat, players, names), seed=seed)


def plan_of(game: Session) -> list[int]:
    """Actions with which red wins this game, as the key-runner would in the person's place."""
    world = World(game.spec, 1, seed=game.seed, first_game=game.game, auto_reset=False)
    runner, idle, plan = KeyRunner(game.spec), np.full((1, game.spec.num_agents), c.DONE, np.int8), []
    while not world.state.over[0]:
        actions = idle.copy()
        view = SeatView(world.outputs.tokens[:, game.agent], world.board(), game.agent)
        actions[0, game.agent] = runner.act(view, None, Streams(0, np.arange(1)))[0][0]
        plan.append(int(actions[0, game.agent]))
        world.step(actions)
    return plan
