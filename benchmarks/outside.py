"""Environments of others by the real commands: trained, saved, evaluated, asked for actions, and written as ONNX files.

    python -m benchmarks.outside [--only WORD] [--steps 2000]      or: make outside

Prints one row for each environment: trained, or refused with its line. On every road the likeliest actions must be the
same, and the environment's own space must hold them. Packages that are missing are told in their row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multigrid_rl import load_policy
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.envs.gymnasium import make_env
from multigrid_rl.envs.zoo import described
from multigrid_rl.runs.reader import run_config

TINY = (
    *("train.num_envs=4", "train.num_steps=64", "train.minibatch_size=64", "train.epochs=1", "train.threads=1"),
    *("scenario.report_episodes=5", "train.lr_final=null"),
)
ZOO = "env_id=pettingzoo:"
#: What is trained, a row each: the words of its command.
ENVIRONMENTS = (
    *(f"env_id={name}" for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1")),
    *(f"env_id={name}" for name in ("Taxi-v3", "Blackjack-v1", "MountainCarContinuous-v0")),
    "env_id=CliffWalking-v1 env_args={max_episode_steps: 100}",
    *(f"env_id={name}" for name in ("LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5")),
    *(f"env_id={name}" for name in ("InvertedPendulum-v5", "minigrid:MiniGrid-Empty-5x5-v0", "CarRacing-v3")),
    *(f"{ZOO}classic/{name}" for name in ("tictactoe-v3", "connect_four-v3", "rps-v2", "leduc_holdem-v4")),
    *(f"{ZOO}mpe2.{name}_v3" for name in ("simple_spread", "simple_tag", "simple_push")),
    *(f"{ZOO}mpe2.{name}" for name in ("simple_spread_v3 env_args={continuous_actions: true}", "simple_crypto_v3")),
    f"{ZOO}pettingzoo.butterfly.knights_archers_zombies_v11",
    f"{ZOO}magent2.environments.battle_v4 env_args={{map_size: 16}}",
    *(f"env_id=openspiel:{name}" for name in ("kuhn_poker", "goofspiel", "backgammon", "liars_dice", "crossword")),
    f'{ZOO}team_env:TeamEnv env_args={{env_id: "lbforaging:Foraging-8x8-2p-3f-v3", max_episode_steps: 50}}',
    f'{ZOO}team_env:TeamEnv env_args={{env_id: "rware:rware-tiny-2ag-v2", max_episode_steps: 50}}',
)
#: Steps in which the likeliest actions are played and compared.
STEPS = 32


class Row(NamedTuple):
    """What came of one environment."""

    name: str
    word: str  # trained, refused or FAILED
    said: str


def command(*words: object) -> tuple[int, str]:
    """Run a verb; returns its exit status and the line in which it says what is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "multigrid_rl.cli.main", *map(str, words)], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("multigrid-rl: ")]
    return done.returncode, (told or done.stderr.splitlines() or [""])[-1].removeprefix("multigrid-rl: ")


def own_space(config: RunConfig, seat: str) -> spaces.Space[Any]:
    """Return the action space as the environment has it."""
    scenario = config.scenario
    if scenario.package == "pettingzoo":
        return described(str(scenario.env_id), scenario.env_args).seats[seat].acts
    return make_env(str(scenario.env_id), scenario.env_args).action_space


def held(space: spaces.Space[Any], action: Any) -> bool:
    """Return whether a space holds an action, whose numbers may have another type."""
    return bool(space.contains(action) or space.contains(np.asarray(action, space.dtype).reshape(space.shape or ())))


def roads(run: Path, file: Path) -> str:
    """Play an environment by ``predict`` and the ONNX file; returns what differs, or nothing."""
    import onnxruntime  # noqa: PLC0415 - an extra

    config = run_config(run)
    factory = env_factory(config)
    agent = factory.specs.agents[0]
    policy, session = load_policy(run, agent.name), onnxruntime.InferenceSession(str(file))
    space, envs, rng = own_space(config, agent.seats[0]), factory.build(1, 0), np.random.default_rng(0)
    for _ in range(STEPS):
        seen = envs.observations()[agent.name].astype(np.float32)
        action, _ = policy.predict(seen[0])
        (written,) = session.run(["action"], {"observation": seen})
        if not held(space, action):
            return f"predict gives {action!r}, which {space} does not hold"
        if not np.allclose(np.asarray(action).ravel(), np.asarray(written[0]).ravel(), atol=1e-4):
            return f"predict gives {action!r}, the ONNX file {written[0]!r}"
        shown = envs.observations()
        envs.step({other.name: some_action(other, shown[other.name], rng) for other in factory.specs.agents})
    return ""


def some_action(agent: Any, seen: Any, rng: np.random.Generator) -> Any:
    """Return a random legal action (1, C) of an agent."""
    acts = agent.action_space
    if isinstance(acts, spaces.Box):
        return rng.uniform(np.maximum(acts.low, -1), np.minimum(acts.high, 1))[None].astype(np.float32)
    if not agent.legal:
        return rng.integers(acts.nvec)[None]
    parts = np.split(seen[0, -agent.legal :], np.cumsum(acts.nvec)[:-1])
    return np.array([[rng.choice(np.flatnonzero(part)) if part.any() else 0 for part in parts]])


def tried(words: str, steps: int, folder: Path) -> Row:
    """Train one environment and take its policy along all roads."""
    head, brace, rest = words.partition(" env_args=")
    run, file = folder / "run", folder / "policy.onnx"
    args = [head, *([f"env_args={rest}"] if brace else []), *TINY, f"train.until={steps}", f"run_dir={run}"]
    status, line = command("train", *args)
    name = words.removeprefix("env_id=")
    if status == 2 and not run.exists():
        return Row(name, "refused", line)
    if status:
        return Row(name, "FAILED", f"train: status {status}: {line}")
    seat = env_factory(run_config(run)).specs.agents[0].name
    for verb in (("evaluate", run, "--episodes", 5), ("export", run, "--seat", seat, "--onnx", "-o", file)):
        status, line = command(*verb)
        if status:
            return Row(name, "FAILED", f"{verb[0]}: status {status}: {line}")
    differs = roads(run, file)
    return Row(name, "FAILED" if differs else "trained", differs)


def adapter(folder: Path) -> None:
    """Write the adapter for Gymnasium ids of several agents, as the page has it, where it is imported from."""
    page = (Path(__file__).parents[1] / "docs" / "games.md").read_text("utf-8")
    (folder / "team_env.py").write_text(page[page.index("# team_env.py") :].partition("```")[0])
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def main() -> None:
    """Try all; the exit status is the number of those that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="environments whose command holds this word")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
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
