"""The ``train`` verb: checks the overrides before torch and Ray are imported, then calls :func:`drive`."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multigrid_rl.cli.app import LOST, refused
from multigrid_rl.config.compose import check_budget, compose, default_run_dir, resumed
from multigrid_rl.config.schema import trainer_of
from multigrid_rl.files import exists
from multigrid_rl.runs.checkpoints import start_of
from multigrid_rl.runs.provenance import config_hash
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.advice import settings
from multigrid_rl.training.screen import warnings_on_screen

if TYPE_CHECKING:
    from multigrid_rl.training.trainers import RowCallback


def train(
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides: scenario=1v1 seed=3 train.lr=3e-4")] = None,
    until: Annotated[
        float | None, typer.Option(help="Environment steps; the run ends with the batch that reaches them.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Run folder to resume, from its newest whole checkpoint; from step 0 if it has none."),
    ] = None,
    require_gates: Annotated[
        bool, typer.Option("--require-gates", help="Leave with status 1 unless all gates were held.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="tracking=web: a page of this machine that follows the run.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Of seeds=0..9: runs side by side; as many as there are cores by default.")
    ] = None,
) -> None:
    """Train the learning seats of a scenario and judge them by its gates."""
    words = list(overrides or [])
    seed_words = [word.partition("=")[2] for word in words if word.startswith("seeds=")]
    words = [word for word in words if not word.startswith("seeds=")]
    if web:
        trackers = [word for word in words if word.startswith("tracking=") and word != "tracking=null"]
        words.append(f"{trackers[-1]},web" if trackers else "tracking=web")
    if until is not None:
        if until != int(until):
            raise refused("--until", "a whole number of environment steps", until)
        words.append(f"train.until={int(until)}")
    if seed_words or (resume is not None and (resume / "seeds.json").exists()):
        _train_many(seed_words, words, resume, web=web, require_gates=require_gates, jobs=jobs)
        return
    if jobs is not None:
        raise refused("--jobs", "seeds=0..9 beside it", f"--jobs {jobs} alone")
    verdict = run_training(words) if resume is None else resume_training(resume, words)
    if verdict["ended"] == "interrupted":
        raise typer.Exit(130)  # a shell's status for Ctrl-C
    if require_gates and not verdict["held"]:
        raise typer.Exit(1)


def _train_many(
    seed_words: list[str], words: list[str], folder: Path | None, *, web: bool, require_gates: bool, jobs: int | None
) -> None:
    """Train several seeds; without ``seeds=``, those of the resumed folder."""
    from multigrid_rl.cli.seeds import read_request, run_seeds, seeds_of

    if web:
        raise refused("--web", "one seed, which a page follows", f"seeds={seed_words[-1] if seed_words else ''}")
    if single_seeds := [word for word in words if word.startswith("seed=")]:
        raise refused("seed", "nothing beside seeds=0..9", single_seeds[-1])
    seeds = seeds_of(seed_words[-1]) if seed_words else []
    if folder is not None:
        if words:
            raise refused("--resume", "nothing but seeds=0..9 with a folder of seeds", words[0])
        overrides, known = read_request(folder)
        words, seeds = [*overrides, f"run_dir={folder}"], seeds or known
    states = run_seeds(words, seeds, jobs).values()
    if any(state.state == "failed" for state in states):
        raise typer.Exit(LOST)
    if not all(state.done for state in states):
        raise typer.Exit(130)
    if require_gates and any(state.state != "held" for state in states):
        raise typer.Exit(1)


def run_training(overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Train with these overrides and return the verdict.

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
        if exists(path):
            raise ConfigError(expected("run_dir", "a new folder", f"{path}, which exists already"))
        # Made for a moment: a file system may refuse what its modes allow.
        TemporaryDirectory(dir=next(folder for folder in path.absolute().parents if exists(folder))).cleanup()
    except UnicodeEncodeError as error:  # Ray cannot write such a name
        raise ConfigError(expected("run_dir", "a name in UTF-8", repr(str(path)))) from error
    except OSError as error:  # or the name is too long
        raise ConfigError(expected("run_dir", "a folder that can be made", f"{path}: {error.strerror}")) from error
    from multigrid_rl.cli.drive import drive

    return drive(config, path, callback=callback, changed=settings(overrides))


def resume_training(run: Path, overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Resume a run from its newest complete checkpoint or step 0; returns and raises as :func:`run_training`."""
    from multigrid_rl.runs.reader import read_config, read_provenance, read_verdict

    config = resumed(read_config(run), overrides)
    from multigrid_rl.cli.drive import drive

    recorded_hash = read_provenance(run).get("config_sha256")  # runs of earlier versions have none
    if recorded_hash is not None and config_hash(read_config(run)) != recorded_hash:
        wanted = "the file that the run wrote: other values make a new run"
        raise ConfigError(expected(run / "config.yaml", wanted, "an edited one"))
    with warnings_on_screen():
        start = start_of(run)
    if not os.access(run, os.W_OK):
        raise ConfigError(expected("--resume", "a folder that can be written", f"{run}, which can only be read"))
    # A run killed between its last checkpoint and its verdict still gets its verdict.
    unjudged = not (run / "verdict.json").exists() and start.env_steps < config.train.until + config.train.batch_size
    if start.env_steps >= config.train.until and not unjudged:
        more_steps = f"more than the {start.env_steps} steps that {run} has played"
        raise ConfigError(expected("--until", more_steps, config.train.until))
    ended = None
    with suppress(ConfigError):  # without a readable verdict the checkpoint decides
        ended = read_verdict(run)["ended"]
    if ended == "held" and not any(override.startswith("train.stop_when_held=") for override in overrides):
        # Its gates are held already: a resumed run continues to train.until.
        config = config.model_copy(update={"train": config.train.model_copy(update={"stop_when_held": False})})
    if ended == "plateau":  # continue likewise
        config = config.model_copy(update={"train": trainer_of(config.train.trainer).beyond_plateau(config.train)})
    return drive(config, run, start, callback=callback)
