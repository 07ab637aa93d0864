"""Speed of control: environments with random actions, ours and Gymnasium's vectors; training against peers.

    python -m benchmarks.control --out runs/pages/bench-control

MuJoCo's bodies over simulations and threads (and the physics alone, in `mujoco.rollout`), then the environments that
Gymnasium steps one by one. Beside wall time stands the processor time of all threads: on a busy machine that alone can
be compared. Training is HalfCheetah's recipe against Stable-Baselines3's
PPO with the same network, batch, minibatches and epochs, in each of its settings, of which the best one counts.
Cloning is HalfCheetah's expert, recorded first, against a loop over torch's DataLoader with the same network.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import BenchmarkError, Peers, alternate, ratios, spread, train_once
from benchmarks.tables import Report, add_common, describe, measure_all, range_of, spread_rows, table
from benchmarks.training import Setting, label, sb3_speed
from multigrid_rl.envs.base import AGENT, SingleAgentEnvs
from multigrid_rl.envs.gymnasium import GymnasiumEnvs, make_env
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.jit import use_threads
from multigrid_rl.walkers.bodies import body_of
from multigrid_rl.walkers.mujoco import MujocoEnvs

BODIES = ("HalfCheetah-v5", "Walker2d-v5", "Hopper-v5", "Humanoid-v5")
OTHERS = ("CartPole-v1", "LunarLander-v3")
TRAINING, CLONING = "training", "cloning"
#: Steps to clone from, and to learn from them.
RECORDED, CLONED = 400_000, 2_400_000
PARTS = [*BODIES, *OTHERS, TRAINING, CLONING]
SIMULATIONS, THREADS = (64, 256), (1, 2)
#: Environments of Gymnasium's vectors.
VECTOR = 8
ACTION_SETS = 16
#: Two threads of torch's on a busy machine may take for ever: such a setting is not the best.
TRIAL_LIMIT_S = 300.0
#: HalfCheetah's recipe, as arguments of Stable-Baselines3.
BATCH, MINIBATCH, EPOCHS = 2048, 256, 10
#: HalfCheetah's recipe with the sizes that Stable-Baselines3 is given, too.
ALIKE = ("scenario=halfcheetah", "train.num_envs=32", "model.hidden=[64,64]")


class Speed(NamedTuple):
    """One round: environment steps a second of wall time, and of processor time over all threads."""

    wall: float
    processor: float


def timed(step: Callable[[Any], Any], actions: list[Any], count: int, seconds: float) -> Speed:
    """Step ``count`` environments for some seconds."""
    for action in actions[:2]:
        step(action)
    steps, began, worked = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        step(actions[steps % len(actions)])
        steps += 1
    return Speed(steps * count / (time.perf_counter() - began), steps * count / max(time.process_time() - worked, 1e-9))


def random_actions(space: gymnasium.Space[Any], count: int) -> list[Any]:
    """Return sets of actions of a space, for ``count`` environments, to step through again and again."""
    space.seed(0)
    return [np.stack([space.sample() for _ in range(count)]) for _ in range(ACTION_SETS)]


def engine_round(envs: SingleAgentEnvs, seconds: float, threads: int = 1) -> Speed:
    """Step environments behind our face, while a run has so many threads (``train.threads``)."""
    actions = [{AGENT: row.reshape(len(row), -1)} for row in random_actions(envs.action_space, envs.num_envs)]
    use_threads(threads)
    speed = timed(envs.step, actions, envs.num_envs, seconds)
    use_threads(1)
    return speed


def vector_round(env: gymnasium.vector.VectorEnv[Any, Any, Any], seconds: float) -> Speed:
    """Step one of Gymnasium's vectors."""
    env.reset(seed=0)
    return timed(env.step, random_actions(env.single_action_space, env.num_envs), env.num_envs, seconds)


def rollout_round(env_id: str, count: int, threads: int, seconds: float) -> Speed:
    """Step ``mujoco.rollout``, MuJoCo's own threads: the physics alone, nothing is seen, paid or reset."""
    import mujoco  # noqa: PLC0415 - beside its module, which is imported where it is used
    from mujoco.rollout import Rollout  # noqa: PLC0415

    env: Any = make_env(env_id, {}).unwrapped
    model, frames = env.model, env.frame_skip
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    state = np.empty((count, mujoco.mj_stateSize(model, full)))
    for k in range(count):
        env.reset(seed=k)
        mujoco.mj_getState(model, env.data, state[k], full)
    datas = [mujoco.MjData(model) for _ in range(threads)]
    with Rollout(nthread=threads if threads > 1 else 0) as rollout:

        def step(actions: Any) -> None:
            control = np.repeat(actions[:, None].astype(np.float64), frames, axis=1)
            state[:] = rollout.rollout(model, datas, state, control)[0][:, -1]

        return timed(step, random_actions(env.action_space, count), count, seconds)


def measures_of(env_id: str, options: argparse.Namespace) -> dict[str, Callable[[], Speed]]:
    """Return the measurements of an environment, by their name in the table."""
    seconds = options.seconds
    make = partial(gymnasium.make, env_id, disable_env_checker=True)
    measures: dict[str, Callable[[], Speed]] = {}
    if env_id in BODIES:
        for count in options.simulations:
            for threads in options.threads:
                body = body_of(make_env(env_id, {}))
                assert body is not None
                envs = MujocoEnvs(env_id, body, count, threads=threads)
                measures[f"ours, {count} bodies, {threads} thread(s)"] = partial(engine_round, envs, seconds, threads)
                measures[f"mujoco.rollout, {count} bodies, {threads} thread(s)"] = partial(
                    rollout_round, env_id, count, threads, seconds
                )
    measures[f"ours, one by one, {VECTOR}"] = partial(engine_round, GymnasiumEnvs(env_id, VECTOR), seconds)
    measures[f"SyncVectorEnv, {VECTOR}"] = partial(vector_round, SyncVectorEnv([make] * VECTOR), seconds)
    return measures


def engines(report: Report, env_id: str, options: argparse.Namespace) -> None:
    """Measure one environment and add its table."""
    rows = alternate(measures_of(env_id, options), options.rounds)
    lines: list[list[Any]] = []
    for name, speeds in rows.items():
        wall = spread([speed.wall for speed in speeds])
        worked = spread([speed.processor for speed in speeds]).median
        lines.append([name, wall.median, range_of(wall), worked])
    best = max(lines, key=lambda line: float(line[1]))
    report.result[env_id] = {"steps_per_s": round(best[1]), "by": best[0]}
    heads = ["environment steps a second", "median", "min to max", "a second of processor time"]
    report.section(env_id, table(heads, lines), rows)


def sb3_settings(*, quick: bool) -> list[Setting]:
    """Return settings of Stable-Baselines3: numbers of environments and vector environment classes."""
    if quick:
        return [{"num_envs": 8, "workers": "dummy", "threads": 1}]
    return [
        {"num_envs": envs, "workers": workers, "threads": 1}
        for workers in ("dummy", "subproc")
        for envs in (1, 2, 8, 32)
    ]


def _sb3_or_nothing(peers: Peers, arguments: list[str], setting: Setting) -> float:
    try:
        return sb3_speed(peers, arguments, setting, limit=TRIAL_LIMIT_S)
    except BenchmarkError:
        return 0.0


def our_speed(iterations: int) -> float:
    """Environment steps a second of HalfCheetah's recipe, the first tenth left out."""
    until = iterations * BATCH
    record = train_once([*ALIKE, f"train.until={until}", f"train.checkpoint_every={until}"])
    return record.speed(max(iterations // 10, 1))


def training(report: Report, options: argparse.Namespace) -> None:
    """Compare training of HalfCheetah with Stable-Baselines3's."""
    iterations = 8 if options.quick else 100
    measures = {"ours": partial(our_speed, iterations)}
    notes: list[str] = []
    if not options.skip_peers:
        arguments = ["--env-id=HalfCheetah-v5", f"--iterations={4 if options.quick else 8}"]
        arguments += [f"--batch={BATCH}", f"--minibatch={MINIBATCH}", f"--epochs={EPOCHS}"]
        sb3 = partial(_sb3_or_nothing, Peers(options.peers), arguments)
        measures |= {label(setting): partial(sb3, setting) for setting in sb3_settings(quick=options.quick)}
    rows = alternate(measures, options.rounds)
    report.result["HalfCheetah-v5 training"] = {name: round(spread(of).median) for name, of in rows.items()}
    if not options.skip_peers:
        best = max(rows.keys() - {"ours"}, key=lambda name: spread(rows[name]).median)
        ratio = spread(ratios(rows["ours"], rows[best]))
        report.result["ratio_to_sb3"] = round(ratio.median, 2)
        notes = ["", "Other rows are Stable-Baselines3's settings, 0 where one took too long."]
        notes.append(f"Ours over their best ({best}), round by round: {ratio.median:.1f} ({range_of(ratio)}).")
    heads = ["environment steps a second", "median", "min to max"]
    report.section("Training HalfCheetah", [*table(heads, spread_rows(rows)), *notes], rows)


def our_cloning_speed(data: Path, threads: int) -> float:
    """Return recorded steps a second of behavioural cloning, the first iterations left out; nothing is played."""
    end = [f"train.until={CLONED}", f"train.checkpoint_every={CLONED}", f"train.cloning.play_every={2 * CLONED}"]
    return train_once(["experiment=halfcheetah-bc", f"data={data}", f"train.torch_threads={threads}", *end]).speed(3)


def loader_speed(data: Path, workers: int) -> float:
    """Return recorded steps a second of the same network in a loop over torch's ``DataLoader``, in its usual form."""
    recorded = read_demonstrations(data)
    columns = (torch.from_numpy(np.array(column, np.float32)) for column in (recorded.observations, recorded.actions))
    network = nn.Sequential(nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6))
    log_std = nn.Parameter(torch.zeros(6))
    optimizer = torch.optim.AdamW([*network.parameters(), log_std], 1e-3)
    loader = DataLoader(TensorDataset(*columns), 1024, shuffle=True, num_workers=workers)
    rows, began = 0, 0.0
    for k, (observations, actions) in enumerate(loader):
        if k == 10:  # processes have begun
            rows, began = 0, time.perf_counter()
        loss = (0.5 * ((actions - network(observations)) / log_std.exp()).pow(2) + log_std).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(observations)
    return rows / (time.perf_counter() - began)


def cloning(report: Report, options: argparse.Namespace) -> None:
    """Compare behavioural cloning of HalfCheetah's expert with a loop over torch's ``DataLoader``."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="multigrid-rl-bench-") as folder:
        data, began = Path(folder) / "data", time.perf_counter()
        steps = "20000" if options.quick else str(RECORDED)
        record = ["multigrid_rl.cli.main", "record", "cheetah-expert", "scenario=halfcheetah", "--mode", "argmax"]
        subprocess.run(
            [sys.executable, "-m", *record, "--steps", steps, "-o", str(data)], check=True, capture_output=True
        )
        notes = ["", f"Recording {int(steps):,} steps took {time.perf_counter() - began:.0f} s, process and all."]
        measures = {
            f"ours, {threads} of torch's threads": partial(our_cloning_speed, data, threads) for threads in (1, 2)
        }
        for workers in (0, 1):
            measures[f"DataLoader, {workers} worker(s)"] = partial(loader_speed, data, workers)
        rows = alternate(measures, options.rounds)
    ours, theirs = (
        [max(speeds) for speeds in zip(*(rows[name] for name in rows if name.startswith(side)), strict=True)]
        for side in ("ours", "DataLoader")
    )
    ratio = spread(ratios(ours, theirs))
    report.result["recorded steps a second"] = {name: round(spread(of).median) for name, of in rows.items()}
    notes.append(
        f"The faster of ours over the faster of theirs, round by round: {ratio.median:.1f} ({range_of(ratio)})."
    )
    heads = ["recorded steps a second", "median", "min to max"]
    report.section("Cloning HalfCheetah", [*table(heads, spread_rows(rows)), *notes], rows)


def main() -> None:
    """Measure, print tables, end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--simulations", nargs="+", type=int, default=SIMULATIONS)
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--peers", type=Path, default=Path(".venv-bench"), help="environment of make bench-setup")
    parser.add_argument("--skip-peers", action="store_true", help="leave Stable-Baselines3 out")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.simulations, options.threads = 1, 0.05, (8,), (1, 2)
    report = Report("Speed of control environments", describe())
    others = {TRAINING: partial(training, report, options), CLONING: partial(cloning, report, options)}
    sections = [others.get(name, partial(engines, report, name, options)) for name in options.only]
    measure_all(report, sections, options.out)


if __name__ == "__main__":
    main()
