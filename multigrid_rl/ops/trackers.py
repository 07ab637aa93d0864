"""Where else a run's rows go, beside ``metrics.jsonl`` and TensorBoard: a CSV, Weights & Biases, or MLflow."""

import csv
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from multigrid_rl.files import write_whole
from multigrid_rl.text import ConfigError, expected, one_line

LOG = logging.getLogger(__name__)
PROJECT = "multigrid_rl"
#: By what a library knows a run again that goes on.
ID_FILE = "tracking.json"
#: Errors of each library; what else it raises is a fault.
_ERRORS = {"wandb": "Error", "mlflow": "MlflowException"}
#: How long MLflow tries while a run starts. By itself it asks a dead server eight times, for up to two minutes each.
_MLFLOW_BRIEF = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Tracker(NamedTuple):
    """What takes the rows of a run."""

    id: str  # by which its library finds the run
    log: Callable[[dict[str, Any]], None]  # takes a row
    close: Callable[[], None]  # waits until everything has arrived


class Csv:
    """``metrics.csv``: a column for each name; what was not measured is empty."""

    id = "metrics.csv"

    def __init__(self, folder: Path, values: dict[str, Any], run_id: str | None) -> None:  # noqa: ARG002 - as the others
        self._rows, self._path = folder / "metrics.jsonl", folder / self.id
        self._write_all()

    def _write_all(self) -> None:
        rows = [json.loads(line) for line in self._rows.read_text(encoding="utf-8").splitlines()]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)
        self._writer.writeheader()
        self._writer.writerows(rows)
        self._file.flush()

    def log(self, row: dict[str, Any]) -> None:
        """Append the row; one with new names, as the first report has, makes the file anew."""
        if row.keys() <= set(self._columns):
            self._writer.writerow(row)
            self._file.flush()
        else:
            self._file.close()
            self._write_all()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _wandb(folder: Path, values: dict[str, Any], run_id: str | None) -> Tracker:
    wandb = import_module("wandb")
    resume = {"id": run_id, "resume": "allow"} if run_id else {}
    settings = wandb.Settings(console="off", silent=True)
    run = wandb.init(project=PROJECT, name=folder.name, dir=str(folder), config=values, settings=settings, **resume)
    # Its own step counter may not decrease, as that of a resumed run does.
    run.define_metric("*", step_metric="env_steps")
    return Tracker(str(run.id), lambda row: run.log(_measured(row)), run.finish)


def _mlflow(folder: Path, values: dict[str, Any], run_id: str | None) -> Tracker:
    mlflow = import_module("mlflow")
    brief = {name: value for name, value in _MLFLOW_BRIEF.items() if name not in os.environ}
    os.environ.update(brief)
    try:
        active = str(mlflow.start_run(run_id=run_id, run_name=folder.name, nested=True).info.run_id)
        if run_id is None:
            mlflow.log_params(dict(_leaves(values)))
    finally:
        for name in brief:
            del os.environ[name]

    def log(row: dict[str, Any]) -> None:
        mlflow.log_metrics(_measured(row), step=row["env_steps"], run_id=active, synchronous=False)

    def close() -> None:
        mlflow.flush_async_logging()
        mlflow.end_run()

    return Tracker(active, log, close)


_OPEN: dict[str, Callable[..., Tracker | Csv]] = {"csv": Csv, "wandb": _wandb, "mlflow": _mlflow}


def check_tracking(kind: str | None) -> None:
    """Raise ``ConfigError`` where a run is to be tracked by a library that is not installed."""
    if kind in _ERRORS and find_spec(kind) is None:
        wanted = f"csv, or an installed library: pip install 'multigrid-rl[{kind}]'"
        raise ConfigError(expected("tracking", wanted, f"{kind}, which is not there"))


class Tracking:
    """Hands the rows of a run to a tracker; where its library fails, the run goes on without, with one warning.

    Args:
        kind: ``csv``, ``wandb`` or ``mlflow``; the libraries' environment variables set where rows go.
        folder: of the run; what it has reported so far is known to the tracker where it was there.
        values: of the run's configuration.
    """

    def __init__(self, kind: str, folder: Path, values: dict[str, Any]) -> None:
        check_tracking(kind)
        self.kind = kind
        self._tracker: Tracker | Csv | None = None
        file = folder / ID_FILE
        run_id = json.loads(file.read_bytes()).get(kind) if file.exists() else None
        with self._guarded():
            self._tracker = _OPEN[kind](folder, values, run_id)
            write_whole(file, json.dumps({kind: self._tracker.id}).encode())

    def log(self, row: dict[str, Any]) -> None:
        """Hand over a row."""
        if self._tracker is not None:
            with self._guarded():
                self._tracker.log(row)

    def close(self) -> None:
        """Wait until everything has arrived."""
        if self._tracker is not None:
            with self._guarded():
                self._tracker.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        # ValueError: an environment variable that it does not take, such as an empty WANDB_MODE.
        errors: tuple[type[Exception], ...] = ()
        if self.kind in _ERRORS:
            errors = (getattr(import_module(self.kind), _ERRORS[self.kind]), OSError, ValueError)
        try:
            yield
        except errors as error:
            LOG.warning(
                "tracking=%s: %s: %s; the run goes on without", self.kind, type(error).__name__, one_line(error)
            )
            self._tracker = None


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
    else:
        yield place, str(node)
