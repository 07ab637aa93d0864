"""Tiny real runs for tests."""

import json
from contextlib import contextmanager
from pathlib import Path

from multigrid_rl.cli.train import run_training
from multigrid_rl.metrics import glossary, matches

TINY = [
    "train.num_envs=32",
    "train.num_steps=16",
    "train.minibatch_size=256",
    "train.epochs=2",
    "train.threads=1",
    "train.until=4096",
    "train.checkpoint_every=2048",
    "model.hidden=[16,16]",
]
#: Overrides beside which no run reads ``train.epochs``.
WITHOUT_EPOCHS = (
    "train=sac",
    "train=dac",
    "train=a2c",
    "train=vpg",
    "train.pi_iters=",
    "experiment=sac",
    "experiment=gymnasium-a2c",
)
NO_TIME = ("seconds", "env_steps_per_s")


def tiny_run(path: Path, *overrides: str):
    """Train for a few iterations; returns verdict and rows."""
    unread = any(word.startswith(WITHOUT_EPOCHS) for word in overrides)
    tiny = [word for word in TINY if not (unread and word.startswith("train.epochs"))]
    verdict = run_training([*tiny, f"run_dir={path}", *overrides])
    return verdict, rows_of(path)


def rows_of(path: Path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def unknown_metrics(rows):
    """Names in rows that the glossary does not have."""
    return sorted({name for row in rows for name in row if not any(matches(name, pattern) for pattern in glossary())})


def without_time(rows):
    return [
        {name: value for name, value in row.items() if name not in NO_TIME and not name.startswith("timing/")}
        for row in rows
    ]


@contextmanager
def running(config):
    """An algorithm of RLlib's, built from its config, for a block."""
    algorithm = config.build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()
