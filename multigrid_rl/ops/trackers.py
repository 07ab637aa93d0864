"""Where else a run's rows go, beside ``metrics.jsonl`` and TensorBoard: Weights & Biases.

An entry of ``tables.TRACKERS``, which implements ``runs.folder.Tracker``.
"""

import json
import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multigrid_rl.files import installing, write_whole
from multigrid_rl.text import ConfigError, expected, one_line

LOG = logging.getLogger(__name__)
#: By what the library knows a run again that goes on.
ID_FILE = "tracking.json"


class Wandb:
    """Weights & Biases; its own environment variables set where rows go.

    Where it fails, the run goes on without it, with one warning.
    """

    @classmethod
    def check(cls) -> None:
        """Raise ``ConfigError`` where the library is not installed."""
        if find_spec("wandb") is None:
            wanted = f"web, or an installed library: {installing('wandb')}"
            raise ConfigError(expected("tracking", wanted, "wandb, which is not there"))

    def begin(self, folder: Path, values: dict[str, Any]) -> None:
        """Open a run in the library, or the one that this folder has there already."""
        self.check()
        self._library: Any = import_module("wandb")
        self._on = True
        self._try(lambda: self._open(folder, values))

    def row(self, row: dict[str, Any]) -> None:
        """Hand over what the row measured."""
        self._try(lambda: self._run.log({name: value for name, value in row.items() if value is not None}))

    def end(self, verdict: dict[str, Any] | None) -> None:  # noqa: ARG002
        """Wait until everything has arrived."""
        self._try(lambda: self._run.finish())  # noqa: PLW0108 - there is none where it could not be opened

    def _open(self, folder: Path, values: dict[str, Any]) -> None:
        file = folder / ID_FILE
        known = json.loads(file.read_bytes()).get("wandb") if file.exists() else None
        resume = {"id": known, "resume": "allow"} if known else {}
        settings = self._library.Settings(console="off", silent=True)
        self._run = self._library.init(
            project="multigrid_rl", name=folder.name, dir=str(folder), config=values, settings=settings, **resume
        )
        # Its own step counter may not decrease, as that of a resumed run does.
        self._run.define_metric("*", step_metric="env_steps")
        write_whole(file, json.dumps({"wandb": str(self._run.id)}).encode())

    def _try(self, call: Callable[[], object]) -> None:
        if not self._on:
            return
        try:
            call()
        # ValueError: an environment variable that it does not take, such as an empty WANDB_MODE.
        except (self._library.Error, OSError, ValueError) as error:
            LOG.warning("tracking=wandb: %s: %s; the run goes on without", type(error).__name__, one_line(error))
            self._on = False
