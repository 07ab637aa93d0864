"""How a run starts and resumes: check what was asked for before torch and Ray are imported, then :func:`drive` it."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid_rl.config.compose import check_budget, compose, default_run_dir, resumed
from multigrid_rl.config.schema import trainer_of
from multigrid_rl.files import exists
from multigrid_rl.runs.checkpoints import start_of
from multigrid_rl.text import ConfigError, expected, reason
from multigrid_rl.training.advice import settings

if TYPE_CHECKING:
    from multigrid_rl.training.trainers import RowCallback


def run_training(overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Train as the overrides say and return the verdict.

    ``callback``: takes each row of ``metrics.jsonl`` once it is written; a true answer ends the run.

    Raises:
        ConfigError, PlayerError: before training starts, with one line.
        RunError: the run broke off.
    """
    config = compose(overrides)
    check_budget(config.train)
    path = Path(config.run_dir) if config.run_dir else default_run_dir(config, datetime.now())
    try:
        str(path).encode()
        there = exists(path)
    except UnicodeEncodeError as error:  # Ray takes no such letters
        raise ConfigError(expected("run_dir", "a name in UTF-8", repr(str(path)))) from error
    except OSError as error:  # too long
        raise ConfigError(expected("run_dir", "a folder that can be made", reason(error, path))) from error
    if there:
        raise ConfigError(expected("run_dir", "a new folder", f"{path}, which exists already"))
    above = next(folder for folder in path.absolute().parents if os.access(folder, os.F_OK))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(expected("run_dir", f"a folder that can be made in {above}", path))
    from multigrid_rl.cli.drive import drive

    return drive(config, path, callback=callback, changed=settings(overrides))


def resume_training(run: Path, overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Resume a run from its newest whole checkpoint, or from step 0, and return the verdict.

    Raises as :func:`run_training`.
    """
    from multigrid_rl.runs.reader import read_config, read_provenance, read_verdict

    config = resumed(read_config(run), overrides)
    from multigrid_rl.cli.drive import drive
    from multigrid_rl.runs.provenance import config_hash
    from multigrid_rl.training.screen import warnings_on_screen

    written = read_provenance(run).get("config_sha256")  # runs of earlier versions have none
    if written is not None and config_hash(read_config(run)) != written:
        wanted = "the file that the run wrote: other values make a new run"
        raise ConfigError(expected(run / "config.yaml", wanted, "an edited one"))
    with warnings_on_screen():
        start = start_of(run)
    # Killed between its last checkpoint and its verdict: the verdict is written.
    unjudged = not (run / "verdict.json").exists() and start.env_steps < config.train.until + config.train.batch_size
    if start.env_steps >= config.train.until and not unjudged:
        played = f"more than the {start.env_steps} steps that {run} has played"
        raise ConfigError(expected("--until", played, config.train.until))
    ended = None
    with suppress(ConfigError):  # killed, or its verdict is damaged: the checkpoint decides
        ended = read_verdict(run)["ended"]
    if ended == "held" and not any(override.startswith("train.stop_when_held=") for override in overrides):
        # Its gates are held already: who goes on with it wants to see more of it.
        config = config.model_copy(update={"train": config.train.model_copy(update={"stop_when_held": False})})
    if ended == "plateau":  # likewise
        train = trainer_of(config.train.trainer).beyond_plateau(config.train)
        config = config.model_copy(update={"train": train})
    return drive(config, run, start, callback=callback)
