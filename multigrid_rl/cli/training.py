"""The ``train`` verb: preflight, live table, closing lines."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from multigrid_rl.cli.live import Output, Progress, console
from multigrid_rl.config import ConfigError, RunConfig, compose, default_run_dir, resumed
from multigrid_rl.sizes import Sizes
from multigrid_rl.types import RunError

if TYPE_CHECKING:
    from multigrid_rl.runs.checkpoints import Checkpoint
    from multigrid_rl.runs.folder import RunFolder

#: What asks a run to end: Ctrl-C; ``kill``, ``timeout`` and ``docker stop``; a terminal that closes.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after which a second Ctrl-C is one: ``timeout`` sends its signal twice at once.
TWICE_S = 0.5

SCHEMES = {
    "dtde": "dtde: each agent on its own",
    "ctde": "ctde: critics see the whole team",
    "ctce": "ctce: the team is one agent",
}


def run_training(overrides: list[str]) -> dict[str, Any]:
    """Train as the overrides say and return the verdict.

    Raises:
        ConfigError, PlayerError: before training starts, with one line.
        RunError: the run broke off.
    """
    config = compose(overrides)
    path = Path(config.run_dir) if config.run_dir else default_run_dir(config, datetime.now())
    try:
        str(path).encode()
        there = path.exists()
    except UnicodeEncodeError as error:  # Ray takes no such letters
        raise ConfigError(f"run_dir={str(path)!r}: not UTF-8; allowed is a folder whose name is") from error
    except OSError as error:  # too long
        raise ConfigError(f"run_dir={path}: {error.strerror}; allowed is a folder that can be made") from error
    if there:
        raise ConfigError(f"run_dir={path}: exists already; allowed is a folder that does not exist yet")
    above = next(folder for folder in path.absolute().parents if os.access(folder, os.F_OK))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"run_dir={path}: nothing can be made in {above}; allowed is a folder that can be made")
    return _run(config, path, None)


def resume_training(run: Path, overrides: list[str]) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint and return the verdict.

    Raises:
        ConfigError, PlayerError: before training starts, with one line.
        RunError: the run broke off.
    """
    from multigrid_rl.runs.checkpoints import newest_good  # noqa: PLC0415
    from multigrid_rl.runs.reader import read_config  # noqa: PLC0415

    config = resumed(read_config(run), overrides)
    with warnings_on_screen():
        start = newest_good(run)
    # Killed between its last checkpoint and its verdict: the verdict is written.
    unjudged = not (run / "verdict.json").exists() and start.env_steps < config.train.until + config.train.batch_size
    if start.env_steps >= config.train.until and not unjudged:
        raise ConfigError(
            f"train.until={config.train.until}: {run} has played {start.env_steps} steps; allowed is --until above that"
        )
    if _ended_held(run) and not any(override.startswith("train.stop_when_held=") for override in overrides):
        # Its gates are held already: who goes on with it wants to see more of it.
        config = config.model_copy(update={"train": config.train.model_copy(update={"stop_when_held": False})})
    return _run(config, run, start)


def _ended_held(run: Path) -> bool:
    from multigrid_rl.runs.reader import read_verdict  # noqa: PLC0415

    try:
        return bool(read_verdict(run)["ended"] == "held")
    except ConfigError:
        return False  # killed, or its verdict is damaged: the checkpoint decides


def _run(config: RunConfig, path: Path, start: Checkpoint | None) -> dict[str, Any]:
    screen = console()
    screen.print(f"[bold]multigrid-rl train[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    # The players are loaded and checked before Ray starts: a damaged file costs a second, not a minute.
    from multigrid_rl.rllib.stages import seated_in, stages_of  # noqa: PLC0415
    from multigrid_rl.runs.reader import opponent_hashes  # noqa: PLC0415

    screen.print("(starting takes some seconds, and half a minute more the first time, to compile the game)")
    try:
        stages = stages_of(config, opponent_hashes(path) if start else None)
        seated = seated_in(stages)
        for stage in stages:
            stage.factory.build(1, 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    from multigrid_rl.rllib.cluster import fitted  # noqa: PLC0415
    from multigrid_rl.rllib.session import RayError, ray_session, reason_of  # noqa: PLC0415
    from multigrid_rl.rllib.train import train  # noqa: PLC0415

    with ExitStack() as stack:
        stack.enter_context(warnings_on_screen())
        try:
            # Before there is a folder, which would block its own name, and before the signals, one of which Ray takes.
            stack.enter_context(ray_session(config))
            if config.cluster.address is not None:
                config, lines = fitted(config, path, stages)
                for line in lines:
                    screen.print(line, markup=False)
            interrupted = stack.enter_context(interruption(screen))
            folder = stack.enter_context(run_folder(config, path, seated, start))
            path = folder.path
            stack.enter_context(hints(path))
            for line in preflight(config, seated, Sizes(config, {}).learner_threads, path):
                screen.print(line, markup=False)
            if start is not None:
                screen.print(f"resumed:  from {start.path.name} of {path}", markup=False)
            progress = stack.enter_context(Progress(screen, config.train.until))
            verdict = train(config, folder, progress.show, interrupted, start.path if start else None, stages)
        except RayError as error:  # before OSError: a timeout of Ray's is one, too
            raise RunError(f"Ray: {reason_of(error)}") from error
        except OSError as error:
            # Rows and verdict are written beside the loop's own work, and a full disk may show there first.
            raise RunError(f"{error.filename or path}: {error.strerror or error}") from error
    for line in closing(verdict, path):
        screen.print(line)
    return verdict


@contextmanager
def run_folder(config: RunConfig, path: Path, seated: dict[str, Any], start: Checkpoint | None) -> Iterator[RunFolder]:
    """The folder of a run, closed at the end; a new one that nothing was reported to is removed after an error.

    Raises:
        ConfigError: another process has made it meanwhile, or writes to it.
    """
    from multigrid_rl.runs.folder import RunFolder  # noqa: PLC0415

    try:
        folder = RunFolder.reopened(path, config, start) if start else RunFolder(path, config, seated)
    except FileExistsError as error:
        if config.run_dir:
            raise ConfigError(f"run_dir={path}: exists already; allowed is a folder that does not exist yet") from error
        # Another run began in the same second, with the same seed.
        folder = RunFolder(default_run_dir(config, datetime.now()), config, seated)
    try:
        yield folder
    except BaseException:
        folder.close()
        if start is None and not folder.begun:
            folder.discard()
        raise
    folder.close()


@contextmanager
def hints(path: Path) -> Iterator[None]:
    """Give a run that breaks off the line that says how to go on with it, if there is anything to go on from."""
    from multigrid_rl.runs.checkpoints import newest_good  # noqa: PLC0415
    from multigrid_rl.runs.divergence import DivergedError  # noqa: PLC0415

    try:
        yield
    except RunError as error:
        with suppress(ConfigError):
            left = newest_good(path, say=False)
            then = f"go on: train --resume {path}"
            if isinstance(error, DivergedError) and not error.by_reward:
                then = "it would diverge again: lower the step size, train.lr, in a new run"
            error.hint = f"what was reported stays, and a checkpoint at step {left.env_steps:,}; {then}"
        raise


@contextmanager
def warnings_on_screen() -> Iterator[None]:
    """Show what a run warns of, one line each, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("multigrid-rl: %(message)s"))
    logger = logging.getLogger("multigrid_rl")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def preflight(config: RunConfig, seated: dict[str, Any], threads: int, path: Path) -> list[str]:
    """Who plays, who samples, how many threads, where the results go."""
    recipe = f"experiment/{config.experiment}" if config.experiment else "none, the defaults of train/ppo"
    lines = [f"recipe:   {recipe}", f"learns:   {', '.join(config.scenario.learning)} ({SCHEMES[config.scheme]})"]
    for seat, player in [(seat, player) for seat, row in seated.items() for player in row]:
        made = f"sha256 {player.sha256[:16]}" if player.sha256 else "scripted"
        measured = [s for s in player.strength if s.opponent == "random"]
        strength = (
            f"wins {measured[0].win:.1%} of {measured[0].episodes} games against random"
            if measured
            else "strength not measured"
        )
        turns = f"in {player.weight:.0%} of the games; " if player.weight < 1 else ""
        lines.append(f"opponent: {player.name} on {seat} ({turns}{made}; {strength})")
    train, runners = config.train, config.cluster.runners
    who = (
        "the driver process, 0 env runners" if runners == 0 else f"{runners} remote env runner(s), 1 torch thread each"
    )
    if train.runner == "stock":
        who = f"RLlib's own env runner in {who}"
    lines.append(
        f"sampling: {who}; {train.num_envs} games x {train.num_steps} steps = {train.batch_size} steps a batch"
    )
    lines.append(f"learner:  {threads} torch thread(s), {train.epochs} epochs, minibatches of {train.minibatch}")
    for k, stage in enumerate(config.curriculum):
        ends = [f"after {stage.steps:,} steps"] if stage.steps else []
        ends += ["when its gates are held"] if stage.held else []
        seats = ", ".join(f"{seat} {'+'.join(names)}" for seat, names in stage.scenario.opponents.items())
        against = f" against {seats}" if seats else ""
        lines.append(f"stage {k + 1}:  {stage.scenario.name}{against}, {' or '.join(ends)} the next one begins")
    lines.append(f"run:      {path} (seed {config.seed}, at most {train.until:,} environment steps)")
    return lines


def closing(verdict: dict[str, Any], path: Path) -> list[str]:
    """What the run achieved."""
    v = verdict
    spent = (
        f"{v['env_steps']:,} environment steps, {v['policy_updates']} updates, {v['seconds']:.1f} s "
        f"({v['env_steps_per_s']:,.0f} steps/s)"
    )
    gates = verdict["gates"]
    if verdict["held"]:
        first = (
            f"[bold green]HELD[/] all {len(gates)} gates at {v['env_steps_to_held']:,} environment steps "
            f"({v['policy_updates_to_held']} updates, {v['seconds_to_held']:.1f} s)"
        )
    elif gates:
        unmet = ", ".join(f"{g['metric']} {g['comparison']} {g['bound']:g}" for g in gates if not g["held"])
        first = f"[bold yellow]NOT HELD[/]: {unmet}"
    else:
        first = "this scenario has no gates for the seats that learn"
    if v["stage"] < v["stages"] - 1:
        first = f"ended in stage {v['stage'] + 1} of {v['stages']}; the gates of the last one were not judged yet"
    if verdict["ended"] == "interrupted":
        first = f"interrupted; {first}"
    return [
        first,
        f"played:   {spent}",
        escape(f"saved:    {path / 'verdict.json'} and {path / verdict['checkpoint']}"),
    ]


@contextmanager
def interruption(screen: Console) -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM or a console that is gone ask the run to end after this iteration, with a checkpoint.

    A second Ctrl-C ends it at once.
    """
    asked: list[float] = []

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        asked.append(time.monotonic())
        if len(asked) == 1:
            screen.print("interrupted: writing a checkpoint (once more Ctrl-C leaves at once)")
        elif number == signal.SIGINT and asked[-1] - asked[0] > TWICE_S:
            raise KeyboardInterrupt

    # nohup has hang-ups ignored, and means it.
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: bool(asked) or (isinstance(screen.file, Output) and screen.file.lost)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
