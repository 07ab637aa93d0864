"""The peers of training and what of theirs is tuned, so that each is compared at its best.

The batch stays 4096 steps whatever is tuned, so every setting makes the same updates out of as many games.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.measure import BenchmarkError, Peers, train_once

BATCH, MINIBATCH, EPOCHS = 4096, 1024, 4
#: What of a run is not measured: compilation, first allocations.
PEER_WARMUP = 2
STOCK_RUNNERS = (0, 1, 2)
STOCK_ENVS = (8, 16, 32, 64, 128)
SB3_ENVS = (8, 16, 32, 64, 128, 256)
#: Best settings that are measured once more, and with two torch threads in the learner.
REFINED = 3

Setting = dict[str, Any]


class Trial(NamedTuple):
    """One setting of a sweep and what it reached; ``None`` if it failed, with the reason."""

    setting: Setting
    env_steps_per_s: float | None
    failure: str = ""


def label(setting: Setting) -> str:
    """``num_envs 64, workers dummy``."""
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def best_of(trials: Sequence[Trial]) -> Setting:
    """The fastest setting.

    Raises:
        BenchmarkError: none of them ran.
    """
    done = [(trial.env_steps_per_s, number) for number, trial in enumerate(trials) if trial.env_steps_per_s]
    if not done:
        raise BenchmarkError(f"no setting ran: {trials[-1].failure if trials else 'there is none'}")
    return trials[max(done)[1]].setting


def sweep(settings: Sequence[Setting], measure: Callable[[Setting], float]) -> list[Trial]:
    """Every setting with one torch thread in the learner; then the best of them once more, with one and with two."""
    trials = [_trial({**setting, "threads": 1}, measure) for setting in settings]
    ranked = sorted(trials, key=lambda trial: -(trial.env_steps_per_s or 0.0))
    again = [{**trial.setting, "threads": threads} for trial in ranked[:REFINED] for threads in (1, 2)]
    return trials + [_trial(setting, measure) for setting in again]


def _trial(setting: Setting, measure: Callable[[Setting], float]) -> Trial:
    try:
        trial = Trial(setting, measure(setting))
    except BenchmarkError as error:
        trial = Trial(setting, None, str(error))
    print(f"  {label(setting)}: {trial.failure or f'{trial.env_steps_per_s:,.0f} steps/s'}", flush=True)
    return trial


def stock_settings(*, quick: bool) -> list[Setting]:
    """Of RLlib's own PPO: env runners, and games over all of them."""
    if quick:
        return [{"num_env_runners": 0, "num_envs": 64}]
    return [{"num_env_runners": runners, "num_envs": envs} for runners in STOCK_RUNNERS for envs in STOCK_ENVS]


def fixed(iterations: int) -> list[str]:
    """Overrides of a run that is exactly so long and writes one checkpoint, at its end."""
    until = iterations * BATCH
    return [f"train.until={until}", "train.stop_when_held=false", f"train.checkpoint_every={until}"]


def stock_speed(setting: Setting, iterations: int) -> float:
    """Environment steps a second of RLlib's own PPO in 1v1."""
    envs = setting["num_envs"]
    overrides = ["scenario=1v1", "train.runner=stock", f"train.num_envs={envs}", f"train.num_steps={BATCH // envs}"]
    overrides += [f"cluster.num_env_runners={setting['num_env_runners']}", f"train.torch_threads={setting['threads']}"]
    return train_once([*overrides, *fixed(iterations)]).speed(PEER_WARMUP)


def sb3_settings(*, quick: bool) -> list[Setting]:
    """Of Stable-Baselines3: games, who steps them, and who encodes observations."""
    if quick:
        return [{"num_envs": 64, "workers": "dummy", "encoding": "one-hot"}]
    kinds = [("dummy", "multidiscrete"), ("dummy", "one-hot"), ("subproc", "one-hot")]
    return [
        {"num_envs": envs, "workers": workers, "encoding": encoding} for workers, encoding in kinds for envs in SB3_ENVS
    ]


def sb3_speed(peers: Peers, setting: Setting, iterations: int, scenario: str) -> float:
    """Environment steps a second of Stable-Baselines3's PPO on the Gymnasium face of ``scenario``."""
    arguments = [f"--scenario={scenario}", f"--iterations={iterations}", f"--warmup={PEER_WARMUP}"]
    arguments += [f"--{name.replace('_', '-')}={value}" for name, value in setting.items()]
    arguments += [f"--batch={BATCH}", f"--minibatch={MINIBATCH}", f"--epochs={EPOCHS}"]
    return float(peers.run("sb3_ppo", arguments)["env_steps_per_s"])
