"""Environments of others by the real commands: trained, evaluated, asked for actions, handed in, written as ONNX.

    python -m benchmarks.outside [--only WORD] [--steps 2000]      or: make outside

Prints one row for each environment: trained, or refused with its line. In episodes of the likeliest actions, every
agent's must be the same on every road, in value, type and shape, and the environment's own space must hold them: as
``evaluate`` plays them, as a cup plays the bundles, from ``predict`` and from the ONNX file by what the environment
itself showed. Packages that are missing are told in their row.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from gymnasium import spaces

from multigrid_rl import load_policy
from multigrid_rl.competition.bundle import load_team
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.base import AGENT, SingleAgentEnvs
from multigrid_rl.envs.gymnasium import make_env
from multigrid_rl.envs.pettingzoo import PettingZooEnvs
from multigrid_rl.envs.zoo import LEGAL, open_game
from multigrid_rl.evaluation.targets import env_target, seat_refs
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.runs.reader import run_config
from multigrid_rl.types import RunError
from multigrid_rl.walkers.mujoco import MujocoEnvs

TINY = (
    *("train.num_envs=4", "train.num_steps=64", "train.minibatch_size=64", "train.epochs=1", "train.threads=1"),
    *("scenario.report_episodes=5", "train.lr_final=null"),
)
ZOO = "env_id=pettingzoo:"
TEAM = f"{ZOO}team_env:TeamEnv env_args={{max_episode_steps: 50, env_id:"
#: What is trained, a row each: the words of its command.
ENVIRONMENTS = (
    *(f"env_id={name}" for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1")),
    *(f"env_id={name}" for name in ("Taxi-v3", "Blackjack-v1", "MountainCarContinuous-v0")),
    "env_id=CliffWalking-v1 env_args={max_episode_steps: 100}",
    *(f"env_id={name}" for name in ("LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5")),
    *(f"env_id={name}" for name in ("InvertedPendulum-v5", "minigrid:MiniGrid-Empty-5x5-v0", "CarRacing-v3")),
    *("env_id=CartPole-v1 model=gru", "env_id=Pendulum-v1 train=sac", "env_id=CarRacing-v3 model=cnn"),
    *(f"{ZOO}classic/{name}" for name in ("tictactoe-v3", "connect_four-v3", "rps-v2", "leduc_holdem-v4")),
    *(f"{ZOO}mpe2.{name}_v3" for name in ("simple_spread", "simple_tag", "simple_push")),
    *(f"{ZOO}mpe2.{name}" for name in ("simple_spread_v3 env_args={continuous_actions: true}", "simple_crypto_v3")),
    *(f"{ZOO}pettingzoo.butterfly.{name}" for name in ("knights_archers_zombies_v11", "cooperative_pong_v6")),
    f"{ZOO}magent2.environments.battle_v4 env_args={{map_size: 16}}",
    *(f"env_id=openspiel:{name}" for name in ("kuhn_poker", "goofspiel", "backgammon", "liars_dice", "crossword")),
    *(f'{TEAM} "{name}"}}' for name in ("lbforaging:Foraging-8x8-2p-3f-v3", "rware:rware-tiny-2ag-v2")),
    "env_id=lbforaging:Foraging-8x8-2p-3f-v3",
    *(f"env_id=toys:Toy-v0 env_args={{acts: {k}}}" for k in range(8)),
    *(f"{ZOO}toys:Toys env_args={{first: {k}}}" for k in (0, 4)),
)
#: Environments whose actions begin elsewhere, have bounds far from 0 or parts in rows, and which show bytes and texts.
TOYS = """
import gymnasium, numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from pettingzoo import ParallelEnv

ACTS = (Discrete(3, start=10), Discrete(2, start=-5, dtype=np.int32), MultiDiscrete([3, 2], start=[5, -1]),
        MultiDiscrete([[2, 3], [4, 2]], dtype=np.int32), MultiBinary([2, 3]), Box(300, 500, (2, 2)),
        Box(-3, 3, (2,), np.int64), Box(np.array([0, -1], np.float64), np.array([1, 9], np.float64)))
SEEN = (Box(0, 255, (4, 4, 3), np.uint8), Discrete(5, start=2), Tuple([Discrete(3), Box(-1, 1, (2,))]),
        Dict(text=Text(9), image=Box(0, 255, (2, 2), np.uint8), place=MultiDiscrete([3, 3])))

class Toy(gymnasium.Env):
    def __init__(self, acts):
        self.action_space, self.observation_space = ACTS[acts], SEEN[acts % 4]
    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}
    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observation_space.sample(), float(np.sum(action)), self.time == 9, False, {}
gymnasium.register("Toy-v0", Toy)

class Toys(ParallelEnv):
    metadata, render_mode = {"name": "toys"}, None
    def __init__(self, first):
        self.toys = {f"toy_{k}": Toy(k) for k in range(first, first + 4)}
        self.possible_agents = list(self.toys)
    def observation_space(self, agent): return self.toys[agent].observation_space
    def action_space(self, agent): return self.toys[agent].action_space
    def reset(self, seed=None, options=None):
        self.agents = list(self.toys)
        return {name: toy.reset(seed=seed)[0] for name, toy in self.toys.items()}, {}
    def step(self, actions):
        seen, paid, ended, cut, infos = zip(*(self.toys[name].step(action) for name, action in actions.items()))
        self.agents = [] if all(ended) else self.agents
        return tuple(dict(zip(actions, told)) for told in (seen, paid, ended, cut, infos))
"""
#: Episodes of which moments are kept, and how many of each in the mean.
EPISODES, STEPS = 12, 4


class Row(NamedTuple):
    """What came of one environment."""

    name: str
    word: str  # trained, refused or FAILED
    said: str


class Moment(NamedTuple):
    """What an environment showed a seat, and what it was given to play."""

    seat: str
    seen: Any
    flags: Any  # of legal choices that stood in its info
    played: Any
    begins: bool  # an episode of this seat


class Enough(BaseException):
    """Ends episodes before their end, as there are moments enough."""


class Watched:
    """An environment of Gymnasium, or a game, that writes down its moments."""

    def __init__(self, env: Any, moments: list[Moment]) -> None:
        self.env, self.moments, self.shown, self.begun = env, moments, dict[str, Any](), set[str]()

    def __getattr__(self, name: str) -> Any:
        """Return what the environment has."""
        return getattr(self.env, name)

    def start(self, seed: int) -> Any:
        """Begin an episode of a game."""
        self.begun.clear()
        return self.told(self.env.start(seed))

    def play(self, actions: dict[str, Any]) -> Any:
        """Play a step of a game."""
        self.write(actions)
        return self.told(self.env.play(actions))

    def told(self, now: Any) -> Any:
        """Keep what a game showed."""
        self.shown |= deepcopy(now.observations)
        return now

    def reset(self, **options: Any) -> Any:
        """Begin an episode of Gymnasium."""
        self.begun.clear()
        return self.answered(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        """Play a step of Gymnasium."""
        self.write({AGENT: action})
        return self.answered(self.env.step(action))

    def answered(self, answer: Any) -> Any:
        """Keep what Gymnasium showed."""
        self.shown[AGENT] = deepcopy((answer[0], answer[-1]))
        return answer

    def write(self, actions: dict[str, Any]) -> None:
        """Write down a moment of each seat that acts."""
        for seat, action in actions.items():
            seen, info = self.shown[seat]
            self.moments.append(Moment(seat, seen, info.get(LEGAL), deepcopy(action), seat not in self.begun))
            self.begun.add(seat)


def watched(play: Callable[[], object], seats: int) -> list[Moment]:
    """Return the moments of some episodes, those of one environment after those of another."""
    written: list[list[Moment]] = []

    def watching(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Watched:
            written.append([])
            return Watched(make(*args, **options), written[-1])

        return made

    def step(envs: Any, actions: dict[str, Any]) -> Any:
        if sum(map(len, written)) >= EPISODES * STEPS * seats:
            raise Enough
        if isinstance(envs, MujocoEnvs):  # bodies that are stepped without their environments
            written.extend([] for _ in range(EPISODES - len(written)))
            rows = zip(written, envs.observations()[AGENT].copy(), envs.native(actions[AGENT]), strict=True)
            for moments, seen, played in rows:
                moments.append(Moment(AGENT, seen, None, played, begins=not moments))
        return steps[type(envs) is PettingZooEnvs](envs, actions)

    steps = SingleAgentEnvs.step, PettingZooEnvs.step
    with ExitStack() as stack:
        stack.enter_context(suppress(Enough))
        for name, make in (("gymnasium.make_env", make_env), ("pettingzoo.open_game", open_game)):
            stack.enter_context(patch(f"multigrid_rl.envs.{name}", watching(make)))
        for kind in (SingleAgentEnvs, PettingZooEnvs):
            stack.enter_context(patch.object(kind, "step", step))
        play()
    return [moment for moments in written for moment in moments]


def command(*words: object) -> tuple[int, str]:
    """Run a verb; returns its exit status and the line in which it says what is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "multigrid_rl.cli.main", *map(str, words)], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("multigrid-rl: ")]
    return done.returncode, (told or done.stderr.splitlines() or [""])[-1].removeprefix("multigrid-rl: ")


def played(run: Path, bundles: Path | None) -> list[Moment]:
    """Play a run's players as ``evaluate`` does, or its bundles as a cup does, all by their likeliest actions."""
    config = run_config(run)
    agents, game = env_factory(config).specs.agents, config.scenario.kind
    if not game.rivals:
        who = run if bundles is None else bundles / agents[0].name
        target = env_target(str(who))
        lineup = target.lineup(target.team, greedy=True)
        return watched(lambda: lineup.play(EPISODES, seed=0), 1)
    spec, players = game.spec, dict[str, Any]()
    if bundles is None:
        refs = seat_refs(run, config)
        players = {seat: Catalogue().seat(ref, spec, seat, greedy=True).player for seat, ref in refs.items()}
    else:
        for team in dict.fromkeys(map(spec.team_of, spec.seats)):
            players |= load_team(bundles, spec, team, greedy=True)
    return watched(lambda: play_games(spec, players, EPISODES, seed=0), len(agents))


def same(one: Any, other: Any) -> bool:
    """Return whether two actions are the same in value, type and shape; numbers may round otherwise."""
    a, b = np.asarray(one), np.asarray(other)
    choice = isinstance(other, int) and a.dtype.kind == "i"  # games are given an int that has what numpy's have
    if (a.dtype != b.dtype and not choice) or a.shape != b.shape:
        return False
    return np.array_equal(a, b) if a.dtype.kind in "iu" else np.allclose(a, b, rtol=1e-4, atol=1e-4)


def numbers(space: Any, seen: Any) -> list[float]:
    """Return what an ONNX file reads of an observation, as docs/games.md says, without a line of the package's."""
    if isinstance(space, spaces.Dict):
        return [x for name, part in space.items() if name != LEGAL for x in numbers(part, seen[name])]
    if isinstance(space, spaces.Tuple):
        return [x for part, one in zip(space, seen, strict=True) for x in numbers(part, one)]
    if space.dtype.kind == "U":
        return []
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.high.max() == 255
    return list(np.ravel(seen) / 255 if image else spaces.flatten(space, seen))


def own_spaces(run: Path, seat: str) -> tuple[Any, Any]:
    """Return what the environment itself says that a seat sees and does."""
    scenario = run_config(run).scenario
    if scenario.package == "pettingzoo":
        return open_game(str(scenario.env_id), scenario.env_args).spaces(seat)
    env = make_env(str(scenario.env_id), scenario.env_args)
    return env.observation_space, env.action_space


def roads(run: Path, bundles: Path) -> str:
    """Take the policies of a run along all roads; returns where they differ, or nothing."""
    moments, cup = played(run, None), played(run, bundles)
    for one, other in zip(moments, cup, strict=True):
        if one.seat != other.seat or not same(one.played, other.played):
            return f"evaluate plays {one.seat}: {one.played!r}, a cup {other.seat}: {other.played!r}"
    for agent in env_factory(run_config(run)).specs.agents:
        own = [moment for moment in moments if moment.seat == agent.name]
        if len(own) < EPISODES:
            return f"only {len(own)} moments of {agent.name}"
        for differs in differences(run, bundles, agent, own):
            return f"{agent.name}: {differs}"
    return ""


def differences(run: Path, bundles: Path, agent: Any, moments: list[Moment]) -> Iterator[str]:
    """Yield where the roads of one agent's policy differ."""
    import onnxruntime  # noqa: PLC0415 - an extra

    seen, acts = own_spaces(run, agent.name)
    session = onnxruntime.InferenceSession(str(bundles.parent / f"{agent.name}.onnx"))
    players = {"run": load_policy(run, agent.name), "bundle": load_policy(bundles / agent.name, agent.name)}
    memories: dict[str, Any] = {}
    for moment in moments:
        memories = {} if moment.begins else memories
        given = moment.seen if moment.flags is None else {"observation": moment.seen, LEGAL: moment.flags}
        answers = {"evaluate": moment.played}
        for name, player in players.items():
            answers[f"predict of the {name}"], memories[name] = player.predict(given, memories.get(name))
        flags = moment.seen.get(LEGAL) if isinstance(moment.seen, dict) else moment.flags
        row = numbers(seen, moment.seen) + np.ravel(np.ones(agent.legal) if flags is None else flags).tolist()
        fed = {"observation": np.array([row], np.float32)}
        if len(session.get_inputs()) > 1:
            fed["memory"] = memories.get("ONNX", np.zeros((1, session.get_inputs()[1].shape[1]), np.float32))
        (answers["ONNX"], *_), _, *after = session.run(None, fed)
        memories["ONNX"] = after[0] if after else None
        for name, answer in answers.items():
            if not acts.contains(answer):
                yield f"{name} gives {answer!r}, which {acts} does not hold"
            elif not same(answer, moment.played):
                yield f"{name} gives {answer!r}, evaluate {moment.played!r}"


def tried(words: str, steps: int, folder: Path) -> Row:
    """Train one environment and take its policies along all roads."""
    head, brace, rest = words.partition(" env_args=")
    run, bundles = folder / "run", folder / "bundles"
    args = [*head.split(), *([f"env_args={rest}"] if brace else []), *TINY, f"train.until={steps}", f"run_dir={run}"]
    status, line = command("train", *args)
    name = words.removeprefix("env_id=")
    if status == 2 and not run.exists():
        return Row(name, "refused", line)
    if status:
        return Row(name, "FAILED", f"train: status {status}: {line}")
    bundles.mkdir()
    verbs: list[tuple[object, ...]] = [("evaluate", run, "--episodes", 5)]
    for agent in env_factory(run_config(run)).specs.agents:
        export = "export", run, "--seat", agent.name
        verbs += [
            (*export, "-o", bundles / agent.name),
            (*export, "--onnx", "-o", bundles.parent / f"{agent.name}.onnx"),
        ]
    for verb in verbs:
        status, line = command(*verb)
        if status:
            return Row(name, "FAILED", f"{verb[0]}: status {status}: {line}")
    try:
        differs = roads(run, bundles)
    except (ValueError, RunError) as error:
        differs = f"{type(error).__name__}: {error}"
    return Row(name, "FAILED" if differs else "trained", differs or f"agents: {len(verbs) // 2}")


def adapter(folder: Path) -> None:
    """Write toys, and the page's adapter for Gymnasium ids of several agents, where they are imported from."""
    page = (Path(__file__).parents[1] / "docs" / "games.md").read_text("utf-8")
    (folder / "team_env.py").write_text(page[page.index("# team_env.py") :].partition("```")[0])
    (folder / "toys.py").write_text(TOYS)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def main() -> None:
    """Try all; the exit status is the number of those that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="environments whose command holds this word")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    failed = 0
    with tempfile.TemporaryDirectory() as top:
        adapter(Path(top))
        for number, words in enumerate(words for words in ENVIRONMENTS if options.only in words):
            folder = Path(top) / str(number)
            folder.mkdir()
            row = tried(words, options.steps, folder)
            failed += row.word == "FAILED"
            print(f"{row.name:<72} {row.word:<8} {row.said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
