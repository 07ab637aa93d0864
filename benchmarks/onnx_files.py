"""Do exported ONNX files play as the players do? Trains a little of every kind, plays, writes runs/pages/onnx.md.

``python -m benchmarks.onnx_files``: 10,000 observations of real games for each kind; every action must be the same.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from benchmarks.tables import describe, machine_lines, table
from multigrid_rl.competition.onnx_file import compare, write_onnx
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.files import write_whole
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.training.start import run_training
from multigrid_rl.types import SeatView

PAGE = Path("runs/pages/onnx.md")
SHORT = ("train.num_envs=32", "train.num_steps=32", "train.until=4096", "train.minibatch_size=256", "train.threads=1")
SHIPPED = {"blue-grandmaster": "scenario=1v1", "2v2-master": "scenario=2v2", "cheetah-expert-2": "scenario=halfcheetah"}
_BODY = ("scenario=halfcheetah", "train.minibatch_size=256")
#: Overrides by what is shown: a kind of network, actions or game.
KINDS: dict[str, tuple[str, ...]] = {
    "mlp over tokens": ("scenario=1v1",),
    "embedding": ("scenario=1v1", "model=embedding"),
    "cnn over cells": ("scenario=1v1", "model=cnn"),
    "attention": ("scenario=1v1", "model=attention"),
    "attention, team with one policy": ("scenario=2v2", "scheme=ctce", "model=attention"),
    "gru": ("scenario=1v1", "model=gru"),
    "lstm": ("scenario=1v1", "model=lstm"),
    "gru, central critic": ("scenario=coop", "scheme=ctde", "model=gru"),
    "team with one policy": ("scenario=2v2", "scheme=ctce"),
    "board game, choices masked": ("scenario=tictactoe",),
    "board game, image": ("scenario=connect-four", "model=cnn", "model.activation=tanh"),
    "vector, choices": ("scenario=cartpole",),
    "Gaussian, clipped": _BODY,
    "Gaussian, tanh": (*_BODY, "model.bound=tanh"),
    "Gaussian, clip3": (*_BODY, "model.bound=clip3"),
    "gru over a vector": (*_BODY, "experiment=none", "model=gru"),
    "head tanh-gaussian": (*_BODY, "model.head=tanh-gaussian"),
    "head mixture": (*_BODY, "model.head=mixture"),
    "head bins": (*_BODY, "model.head=bins"),
    "soft actor-critic": ("scenario=halfcheetah", "train=sac"),
}


class Seen(NamedTuple):
    """What a player was asked: observations (N, D) and, where it has one, its memory (N, S)."""

    rows: list[Any]
    memories: list[torch.Tensor]


@contextmanager
def recorded(sha256: str, most: int) -> Iterator[Seen]:
    """Record what the player of this hash is shown within the block, up to about ``most`` observations."""
    seen, own = Seen([], []), FrozenPlayer.outputs

    def outputs(self: FrozenPlayer, view: SeatView, state: torch.Tensor) -> Any:
        if self.sha256 == sha256 and not self.mirrored and sum(map(len, seen.rows)) < most:
            seen.rows.append(np.array(view.tokens))
            seen.memories.append(state.clone())
        return own(self, view, state)

    FrozenPlayer.outputs = outputs  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        FrozenPlayer.outputs = own  # type: ignore[method-assign]


def played(target: Any, sha256: str, states: int) -> list[torch.Tensor]:
    """Play games until enough was seen; returns observations and, where there is one, memories."""
    with recorded(sha256, states) as seen:
        for seed in range(100):
            evaluate(target, episodes=50, seed=seed, modes=("stochastic",))
            if sum(map(len, seen.rows)) >= states:
                break
    rows, memory = np.concatenate(seen.rows)[:states], torch.cat(seen.memories)[:states]
    kind = np.float32 if rows.dtype.kind == "f" else np.int32
    return [torch.from_numpy(rows.astype(kind)), memory][: 1 + bool(memory.shape[1])]


def proof(source: Path, target: Any, states: int, scratch: Path) -> list[Any]:
    """Return cells of a row: states, equal actions, largest difference, kB, microseconds of one observation."""
    file = scratch / "player.onnx"
    file.unlink(missing_ok=True)
    write_onnx(source, file)
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    card = read_card(source)
    rows = played(target, card.sha256, states)
    share, apart = compare(session, FrozenPlayer.of(card, read_network(source, card)), rows)
    one = {its.name: row[:1].numpy() for its, row in zip(session.get_inputs(), rows, strict=True)}
    session.run(None, one)
    began = perf_counter()
    for _ in range(200):
        session.run(None, one)
    each = (perf_counter() - began) / 200 * 1e6
    return [f"{len(rows[0]):,}", f"{share:.2%}", f"{apart:.1g}", f"{file.stat().st_size / 1000:,.0f}", f"{each:,.0f}"]


def trained(words: tuple[str, ...], run: Path, states: int, scratch: Path) -> list[Any]:
    """Train a little, and prove that the file plays as the player does."""
    run_training([*words, *(word for word in SHORT if word.partition("=")[0] not in str(words)), f"run_dir={run}"])
    target = find_target(str(run))
    return proof(Path(next(iter(target.refs.values()))), target, states, scratch)


def main() -> None:
    """Prove every kind and write the page; status 1 where an action differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, *SHIPPED], default=[*KINDS, *SHIPPED])
    parser.add_argument("--rows", type=Path, default=Path("runs/onnx.json"), help="rows so far, to go on with")
    asked = parser.parse_args()
    machine = describe()
    found = json.loads(asked.rows.read_text(encoding="utf-8")) if asked.rows.exists() else {}
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in [name for name in asked.only if name not in found]:
            if name in KINDS:
                cells = trained(KINDS[name], scratch / name.replace(" ", "-"), asked.states, scratch)
            else:
                home = Path("checkpoints") / name
                cells = proof(home, find_target(f"{home}/", [SHIPPED[name]]), asked.states, scratch)
            found[name] = [name, f"`{' '.join(KINDS.get(name, ('shipped',)))}`", *cells]
            print(*found[name], flush=True)
            write_whole(asked.rows, json.dumps(found).encode())
    heads = ["kind", "trained with", "observations", "same action", "numbers differ by", "kB", "us for one"]
    lines = [
        "# ONNX files against the players that they were written from",
        "",
        "`python -m benchmarks.onnx_files`, "
        f"onnxruntime {onnxruntime.__version__}. Observations, and memories where there are any,",
        "are of games that the player played; its likeliest action from torch and from the file are compared, numbers",
        "within 1e-3.",
        "",
        *machine_lines(machine),
        "",
        *table(heads, [found[name] for name in (*KINDS, *SHIPPED) if name in found], left=(0, 1)),
        "",
    ]
    if len(found) == len(KINDS) + len(SHIPPED):
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text("\n".join(lines), encoding="utf-8")
    raise SystemExit(any(row[3] != "100.00%" for row in found.values()))


if __name__ == "__main__":
    main()
