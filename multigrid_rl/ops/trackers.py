"""Further outputs of a run's rows, in addition to ``metrics.jsonl`` and TensorBoard: CSV, Weights & Biases, MLflow.

Each is an entry of ``tables.TRACKERS`` and implements ``runs.folder.Tracker``.
"""

import csv
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from multigrid_rl.files import install_command, write_atomic
from multigrid_rl.text import ConfigError, expected, one_line

LOG = logging.getLogger(__name__)
PROJECT = "multigrid_rl"
#: File with the library's id of a run, for resuming it.
ID_FILE = "tracking.json"
#: Limits for MLflow while a run starts. By default it retries a dead server eight times, for up to two minutes each.
_MLFLOW_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Csv:
    """``metrics.csv``: a column for each metric; missing values are empty."""

    def begin(self, folder: Path, values: dict[str, Any]) -> None:  # noqa: ARG002 - interface of trackers
        """Write the rows of the run so far."""
        self._rows, self._path = folder / "metrics.jsonl", folder / "metrics.csv"
        self._write_all()

    def _write_all(self) -> None:
        rows = [json.loads(line) for line in self._rows.read_text(encoding="utf-8").splitlines()]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)
        self._writer.writeheader()
        self._writer.writerows(rows)
        self._file.flush()

    def row(self, row: dict[str, Any]) -> None:
        """Append the row; a row with new metrics, such as the first report, rewrites the file."""
        if row.keys() <= set(self._columns):
            self._writer.writerow(row)
            self._file.flush()
        else:
            self._file.close()
            self._write_all()

    def end(self, verdict: dict[str, Any] | None) -> None:  # noqa: ARG002
        """Close the file."""
        self._file.close()


class Library:
    """A tracking library; the library's environment variables set its server or folder.

    If it fails, the run continues without it, after one warning.
    """

    name: ClassVar[str]
    #: Name of its error class; other errors are not caught.
    error: ClassVar[str]

    @classmethod
    def check(cls) -> None:
        """Raise ``ConfigError`` if the library is not installed."""
        if find_spec(cls.name) is None:
            wanted = f"csv, or an installed library: {install_command(cls.name)}"
            raise ConfigError(expected("tracking", wanted, f"{cls.name}, which is not there"))

    def begin(self, folder: Path, values: dict[str, Any]) -> None:
        """Open a run in the library, or reopen the run of this folder."""
        self.check()
        self._library: Any = import_module(self.name)
        self._is_active = True
        file = folder / ID_FILE
        ids = json.loads(file.read_bytes()) if file.exists() else {}  # of several libraries
        with self._guarded():
            ids[self.name] = self._open(folder, values, ids.get(self.name))
            write_atomic(file, json.dumps(ids).encode())

    def row(self, row: dict[str, Any]) -> None:
        """Log the metrics of the row."""
        if self._is_active:
            with self._guarded():
                self._log({name: value for name, value in row.items() if value is not None})

    def end(self, verdict: dict[str, Any] | None) -> None:  # noqa: ARG002
        """Wait until the library has sent all rows."""
        if self._is_active:
            with self._guarded():
                self._close()

    def _open(self, folder: Path, values: dict[str, Any], run_id: str | None) -> str:
        """Open a new run, or the run with the id ``run_id``; returns the id."""
        raise NotImplementedError

    def _log(self, row: dict[str, Any]) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        # ValueError: an invalid environment variable, such as an empty WANDB_MODE.
        except (getattr(self._library, self.error), OSError, ValueError) as error:
            what = f"{type(error).__name__}: {one_line(error)}"
            LOG.warning("tracking=%s: %s; the run goes on without", self.name, what)
            self._is_active = False


class Wandb(Library):
    """Weights & Biases."""

    name, error = "wandb", "Error"

    def _open(self, folder: Path, values: dict[str, Any], run_id: str | None) -> str:
        resume = {"id": run_id, "resume": "allow"} if run_id else {}
        settings = self._library.Settings(console="off", silent=True)
        self._run = self._library.init(
            project=PROJECT, name=folder.name, dir=str(folder), config=values, settings=settings, **resume
        )
        # The library's step counter may not decrease, as env_steps of a resumed run does.
        self._run.define_metric("*", step_metric="env_steps")
        return str(self._run.id)

    def _log(self, row: dict[str, Any]) -> None:
        self._run.log(row)

    def _close(self) -> None:
        self._run.finish()


class Mlflow(Library):
    """MLflow."""

    name, error = "mlflow", "MlflowException"

    def _open(self, folder: Path, values: dict[str, Any], run_id: str | None) -> str:
        limits = {name: value for name, value in _MLFLOW_LIMITS.items() if name not in os.environ}
        os.environ.update(limits)
        try:
            run = self._library.start_run(run_id=run_id, run_name=folder.name, nested=True)
            self._id = str(run.info.run_id)
            if run_id is None:
                self._library.log_params(dict(_leaves(values)))
        finally:
            for name in limits:
                del os.environ[name]
        return self._id

    def _log(self, row: dict[str, Any]) -> None:
        self._library.log_metrics(row, step=row["env_steps"], run_id=self._id, synchronous=False)

    def _close(self) -> None:
        self._library.flush_async_logging()
        self._library.end_run()


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    else:
        yield place, str(node)
