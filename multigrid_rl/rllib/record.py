"""A run folder tells its own story in text: configuration, provenance, metrics, verdict, TensorBoard, checkpoints."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from multigrid_rl.config import RunConfig, data_root, to_yaml
from multigrid_rl.players.catalogue import Seated

PACKAGES = ("multigrid-rl", "ray", "torch", "numpy", "numba", "gymnasium", "pettingzoo", "multigrid")


def versions() -> dict[str, str]:
    """Versions of Python and of what decides a run."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def git_commit() -> str | None:
    """Commit of the project's checkout, with ``+changes`` if files differ from it; ``None`` outside a checkout."""
    git = shutil.which("git")
    root = data_root()
    if git is None or not (root / ".git").exists():
        return None
    head = subprocess.run([git, "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run([git, "-C", str(root), "status", "--porcelain"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def opponent_rows(seated: dict[str, tuple[Seated, ...]]) -> list[dict[str, Any]]:
    """Who sits on the background seats, for verdict and provenance."""
    return [
        {
            "seat": seat,
            "name": s.name,
            "weight": s.weight,
            "sha256": s.sha256,
            "strength": [row.model_dump() for row in s.strength],
        }
        for seat, row in seated.items()
        for s in row
    ]


class RunFolder:
    """Writes one run's folder. Raises ``FileExistsError`` if it exists already."""

    def __init__(self, path: Path, config: RunConfig, seated: dict[str, tuple[Seated, ...]]) -> None:
        path.mkdir(parents=True, exist_ok=False)
        self.path = path
        self.provenance: dict[str, Any] = {
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seed": config.seed,
            "commit": git_commit(),
            "versions": versions(),
            "machine": {"system": platform.platform(), "processor": platform.machine()},
            "opponents": opponent_rows(seated),
        }
        (path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        self._write_json("provenance.json", self.provenance)
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self._board = EventFileWriter(str(path / "tensorboard"))

    def record(self, row: dict[str, Any]) -> None:
        """Append one iteration's row to ``metrics.jsonl`` and TensorBoard."""
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        # One event with all values: forty events take a tenth of an iteration. TensorBoard groups by what stands before
        # the first slash.
        values = [
            Summary.Value(tag=name if "/" in name else f"run/{name}", simple_value=value)
            for name, value in row.items()
            if value is not None
        ]
        self._board.add_event(Event(wall_time=time.time(), step=row["env_steps"], summary=Summary(value=values)))

    def checkpoint_path(self, env_steps: int) -> Path:
        """Folder of the checkpoint at ``env_steps``."""
        return self.path / "checkpoints" / f"step_{env_steps:09d}"

    def commit_checkpoint(self, unfinished: Path, env_steps: int) -> Path:
        """Move a completely written checkpoint into place and name it as the latest."""
        final = self.checkpoint_path(env_steps)
        unfinished.rename(final)
        latest = final.parent / "latest.tmp"
        latest.write_text(final.name + "\n", encoding="utf-8")
        latest.replace(final.parent / "latest")
        return final

    def verdict(self, verdict: dict[str, Any]) -> None:
        """Write ``verdict.json``."""
        self._write_json("verdict.json", verdict)

    def close(self) -> None:
        """Flush and close all files."""
        self._metrics.close()
        self._board.close()

    def _write_json(self, name: str, content: Any) -> None:
        (self.path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
