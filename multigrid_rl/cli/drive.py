"""Drives one run: opens its folder and Ray session, trains RLlib's algorithm, and prints progress and verdict."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from multigrid_rl.config.compose import default_run_dir
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import check_same
from multigrid_rl.runs.checkpoints import Checkpoint, start_of
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.tables import PREFLIGHTS, find
from multigrid_rl.text import ConfigError, expected, program, reason
from multigrid_rl.training import screen
from multigrid_rl.training.loop import DivergedError, train
from multigrid_rl.training.stages import load_stages, thread_tuner
from multigrid_rl.training.trainers import RowCallback
from multigrid_rl.training.warm_up import start_compiler
from multigrid_rl.trust import MISTAKES, mistake, user_code, user_code_place
from multigrid_rl.types import MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: Kernels that a first start compiles, those for several threads included.
KERNELS = 85


def drive(
    config: RunConfig,
    path: Path,
    start: Checkpoint | None = None,
    *,
    callback: RowCallback | None,
    changed: Sequence[str] = (),
) -> dict[str, Any]:
    """Build RLlib's algorithm of a run, train it from the start or from a checkpoint, and return the verdict.

    Args:
        start: checkpoint to continue from; ``None``: a new run.
        callback: takes each row; a true answer ends the run after this iteration.
        changed: keys that overrides set, from ``advice.settings``.

    Raises:
        ConfigError, PlayerError: before training starts, with one line.
        RunError: the run broke off.
    """
    stages, seated = load_stages(config, path if start else None)
    checkpoint = start.path if start is not None and start.env_steps else None
    if checkpoint is not None and ":" in config.model.name:
        check_networks(config, stages[-1].factory.specs, checkpoint)
    # A damaged player file is reported above, before the slow import of Ray.
    from multigrid_rl.rllib.algorithm import built_algorithm
    from multigrid_rl.rllib.session import RayError, check_gpus, ray_session, reason_of

    check_gpus(config)
    # All checks come before the heading, so an error line stands alone.
    console = screen.live_console()
    console.print(f"[bold]multigrid-rl train[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    console.print("(starting takes some seconds, and half a minute more the first time, to compile the game)")
    start_compiler(config, partial(_show_compiled, console))
    with ExitStack() as stack:
        stack.enter_context(screen.warnings_on_screen())
        try:
            lines: list[str] = []
            if config.cluster.address is not None:
                stack.enter_context(ray_session(config))
                config, lines = find(PREFLIGHTS, "cluster")(config, path, stages)
            for line in (*lines, *screen.preflight(config, seated, path, thread_tuner(config).describe(), changed)):
                console.print(line, markup=False)
            # A second call reuses the first session. It comes before the folder, since a failure would leave an empty
            # one, and before the signal handlers, since Ray installs one.
            stack.enter_context(ray_session(config))
            interrupted = stack.enter_context(screen.interruption(console))
            folder = stack.enter_context(run_folder(config, path, seated, start))
            path = folder.path
            stack.enter_context(resume_hint(path))
            stack.enter_context(user_code_errors(config))
            if start is not None:
                origin = checkpoint.name if checkpoint else "step 0, as there is no checkpoint,"
                console.print(f"resumed:  from {origin} of {path}", markup=False)
            show = stack.enter_context(screen.progress(console, config))

            def observe(row: dict[str, Any], keeper: GateKeeper) -> bool:
                show(row, keeper)
                with user_code("callback", RunError):  # also its answer: an array is neither true nor false
                    return callback is not None and bool(callback(dict(row)))

            with built_algorithm(config, stages, checkpoint) as algorithm:
                verdict = train(algorithm, config, folder, observe, interrupted, checkpoint)
        except (RayError, MemoryError) as error:  # before OSError: a timeout of Ray's is one, too
            cause = "Ray" if isinstance(error, RayError) else "memory (a smaller train.num_envs takes less)"
            raise RunError(f"{cause}: {reason_of(error)}") from error
        except OSError as error:
            raise RunError(reason(error, path)) from error  # a full disk: rows and verdict are written in the loop
    for line in screen.closing_lines(verdict, path, config, changed):
        console.print(line)
    if config.scenario.held_out.get("validate") and verdict["ended"] != "interrupted":
        from multigrid_rl.evaluation.evaluation import write_held_out

        console.print(write_held_out(path), markup=False)
    return verdict


def _show_compiled(console: Console, count: int) -> None:
    """Show on a terminal how many kernels are compiled, in one line that each call overwrites."""
    if console.is_terminal and count <= KERNELS:
        console.print(f"compiling {count} of about {KERNELS}", end="\r")


@contextmanager
def run_folder(config: RunConfig, path: Path, seated: dict[str, Any], start: Checkpoint | None) -> Iterator[RunFolder]:
    """Open the folder of a run and close it at the end; after an error, remove a new folder without any report.

    Raises ``ConfigError``: another process made it first, or writes to it.
    """
    try:
        folder = RunFolder.reopen(path, config, start) if start else RunFolder(path, config, seated)
    except FileExistsError as error:
        if config.run_dir:
            raise ConfigError(expected("run_dir", "a new folder", f"{path}, which exists already")) from error
        # Another run with the same seed started in the same second.
        folder = RunFolder(default_run_dir(config, datetime.now()), config, seated)
        LOG.warning("%s: another run has this folder; this one goes to %s", path, folder.path)
    complete = False
    try:
        yield folder
        complete = True
    finally:
        folder.close()
        if not complete and start is None and not folder.is_started:
            folder.discard()


def check_networks(config: RunConfig, specs: MultiAgentSpec, checkpoint: Path) -> None:
    """Check that the user's own network still has the tensors of a checkpoint. Raises ``PlayerError``."""
    for module in specs.modules:
        check_same(checkpoint / "players" / module, network_of(specs.agent_of(module), config.model.model_dump()))


@contextmanager
def user_code_errors(config: RunConfig) -> Iterator[None]:
    """Raise ``RunError`` for errors of user code after its trial call, with the keys that name its module."""
    try:
        yield
    except MISTAKES as error:
        place = user_code_place(error)
        if not place or type(error).__module__.startswith("multigrid_rl."):  # our errors have messages for users
            raise
        parts = {
            "model.name": config.model.name,
            **config.train.functions,
            "env_id": config.scenario.env_id or "",
            "train.shaping": config.train.shaping or "",
        }
        stem = place.partition(".py:")[0].removeprefix(" (")
        keys = [f"{key}={name}" for key, name in parts.items() if f".{stem}:" in f".{name}"]
        raise RunError(f"{', '.join(keys) or 'own code'}: {mistake(error)}") from error


@contextmanager
def resume_hint(path: Path) -> Iterator[None]:
    """Add to a ``RunError`` a hint how to resume the run, unless the run reported nothing yet."""
    try:
        yield
    except RunError as error:
        with suppress(ConfigError, FileNotFoundError):
            steps = start_of(path, log=False).env_steps
            checkpoint = f"and a checkpoint at step {steps:,}" if steps else "but there is no checkpoint yet"
            advice = f"{'go on' if steps else 'start again'}: {program()} train --resume {shlex.quote(str(path))}"
            if isinstance(error, DivergedError) and not error.by_reward:
                advice = "it would diverge again: lower the step size, train.lr, in a new run"
            if steps or (path / "metrics.jsonl").stat().st_size:
                error.hint = f"what was reported stays, {checkpoint}; {advice}"
        raise
