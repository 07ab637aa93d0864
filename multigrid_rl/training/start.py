"""How a run starts and resumes: check what was asked for, take the folder, train, tell what came of it."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from multigrid_rl.config.compose import check_budget, compose, default_run_dir, resumed
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.files import exists, json_text, write_whole
from multigrid_rl.runs.checkpoints import start_of
from multigrid_rl.tables import PREFLIGHTS, STARTS, find
from multigrid_rl.text import ConfigError, expected, program, reason
from multigrid_rl.training import screen as live
from multigrid_rl.training.advice import settings
from multigrid_rl.trust import MISTAKES, mistake, own_place
from multigrid_rl.types import MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: Games against each player that a scenario holds out, when a run has ended.
HELD_OUT_GAMES, HELD_OUT_SEED = 1000, 40_000
#: Rehearsal of a first start, with those for several threads.
KERNELS = 85


if TYPE_CHECKING:
    from rich.console import Console

    from multigrid_rl.gates import GateKeeper
    from multigrid_rl.players.catalogue import LoadedPlayer
    from multigrid_rl.runs.checkpoints import Checkpoint
    from multigrid_rl.runs.folder import RunFolder
    from multigrid_rl.training.stages import Stage


#: What is called with each row of a run; a true answer ends it after this iteration, with a checkpoint.
RowCallback = Callable[[dict[str, Any]], object]


def run_training(overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Train as the overrides say and return the verdict.

    Args:
        overrides: ``key=value``.
        callback: takes each row of ``metrics.jsonl`` once it is written.

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
    return _run(config, path, callback=callback, changed=settings(overrides))


def resume_training(run: Path, overrides: list[str], callback: RowCallback | None = None) -> dict[str, Any]:
    """Resume a run from its newest whole checkpoint, or from step 0, and return the verdict.

    Raises as :func:`run_training`.
    """
    from multigrid_rl.runs import provenance, reader

    config = resumed(reader.read_config(run), overrides)
    written = reader.read_provenance(run).get("config_sha256")  # runs of earlier versions have none
    if written is not None and provenance.config_hash(reader.read_config(run)) != written:
        wanted = "the file that the run wrote: other values make a new run"
        raise ConfigError(expected(run / "config.yaml", wanted, "an edited one"))
    with live.warnings_on_screen():
        start = start_of(run)
    # Killed between its last checkpoint and its verdict: the verdict is written.
    unjudged = not (run / "verdict.json").exists() and start.env_steps < config.train.until + config.train.batch_size
    if start.env_steps >= config.train.until and not unjudged:
        played = f"more than the {start.env_steps} steps that {run} has played"
        raise ConfigError(expected("--until", played, config.train.until))
    ended = None
    with suppress(ConfigError):  # killed, or its verdict is damaged: the checkpoint decides
        ended = reader.read_verdict(run)["ended"]
    if ended == "held" and not any(override.startswith("train.stop_when_held=") for override in overrides):
        # Its gates are held already: who goes on with it wants to see more of it.
        config = config.model_copy(update={"train": config.train.model_copy(update={"stop_when_held": False})})
    if ended == "plateau":  # likewise
        train = trainer_of(config.train.trainer).beyond_plateau(config.train)
        config = config.model_copy(update={"train": train})
    return _run(config, run, start, callback=callback)


def load_stages(config: RunConfig, before: Path | None) -> tuple[list[Stage], dict[str, tuple[LoadedPlayer, ...]]]:
    """Load and check all players before Ray starts: a damaged file costs a second, not a minute.

    ``before`` is the folder of a run that goes on: its opponents must be those that it has been trained against.
    """
    from multigrid_rl.players.catalogue import Catalogue
    from multigrid_rl.runs.folder import tracker_named
    from multigrid_rl.training.stages import check_memory, seated_in, stages_of

    for name in config.trackers:
        kind = tracker_named(name)
        if hasattr(kind, "check"):
            kind.check()
    hashes = None
    if before is not None:
        from multigrid_rl.runs.reader import opponent_hashes

        hashes = opponent_hashes(before)
    try:
        stages = stages_of(config, hashes)
        check_memory(config, stages[-1].factory.specs)
        seated = seated_in(stages)
        seats = [seat for seat in config.scenario.seats if seat not in config.scenario.learning]
        for name in (name for names in config.scenario.held_out.values() for name in names):
            Catalogue(config.checkpoint_root()).seat(name, config.scenario.kind.spec, seats[0])
        for stage in stages:
            if not stage.scenario.kind.built_once:
                stage.factory.build(1, 0)
            stage.factory.check_reward()
        trainer_of(config.train.trainer).load(config, stages[-1].factory.specs, before)
        if config.init is not None and before is None:
            find(STARTS, "player")(config, stages[-1].factory.specs)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return stages, seated


def _compiled(screen: Console, count: int) -> None:
    """Show how many kernels are compiled, in one line that the next one replaces; nothing but on a terminal."""
    if screen.is_terminal and count <= KERNELS:
        screen.print(f"compiling {count} of about {KERNELS}", end="\r")


def _run(
    config: RunConfig,
    path: Path,
    start: Checkpoint | None = None,
    *,
    callback: RowCallback | None = None,
    changed: Sequence[str] = (),
) -> dict[str, Any]:
    parts, seated = load_stages(config, path if start else None)
    checkpoint = start.path if start is not None and start.env_steps else None
    if checkpoint is not None and ":" in config.model.name:
        check_networks(config, parts[-1].factory.specs, checkpoint)
    from multigrid_rl.rllib.session import RayError, check_gpus, ray_session, reason_of
    from multigrid_rl.training import loop, rehearsal, stages

    check_gpus(config)
    # Everything has been checked by now: the line of a mistake has no head of a run above it.
    screen = live.live_console()
    screen.print(f"[bold]multigrid-rl train[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    screen.print("(starting takes some seconds, and half a minute more the first time, to compile the game)")
    rehearsal.start_compiler(config, partial(_compiled, screen))
    with ExitStack() as stack:
        stack.enter_context(live.warnings_on_screen())
        try:
            if config.cluster.address is not None:
                stack.enter_context(ray_session(config))
                config, lines = find(PREFLIGHTS, "cluster")(config, path, parts)
                for line in lines:
                    screen.print(line, markup=False)
            for line in live.preflight(config, seated, path, stages.thread_tuner(config).describe(), changed):
                screen.print(line, markup=False)
            # A second call takes the session of the first. Before there is a folder, which would block its own name,
            # and before the signals, one of which Ray takes.
            stack.enter_context(ray_session(config))
            interrupted = stack.enter_context(live.interruption(screen))
            folder = stack.enter_context(run_folder(config, path, seated, start))
            path = folder.path
            stack.enter_context(tell_how_to_resume(path))
            stack.enter_context(own_mistakes(config))
            if start is not None:
                where = checkpoint.name if checkpoint else "step 0, as there is no checkpoint,"
                screen.print(f"resumed:  from {where} of {path}", markup=False)
            show = stack.enter_context(live.progress(screen, config))
            verdict = loop.train(config, folder, *with_callback(callback, show, interrupted), checkpoint, parts)
        except (RayError, MemoryError) as error:  # before OSError: a timeout of Ray's is one, too
            what = "Ray" if isinstance(error, RayError) else "memory (a smaller train.num_envs takes less)"
            raise RunError(f"{what}: {reason_of(error)}") from error
        except OSError as error:
            # Rows and verdict are written beside the loop's own work, and a full disk may show there first.
            raise RunError(reason(error, path)) from error
    for line in live.closing(verdict, path, config, changed):
        screen.print(line)
    if config.scenario.held_out.get("validate") and verdict["ended"] != "interrupted":
        screen.print(_played_held_out(path), markup=False)
    return verdict


def with_callback(
    callback: RowCallback | None, show: Callable[[dict[str, Any], GateKeeper], None], interrupted: Callable[[], bool]
) -> tuple[Callable[[dict[str, Any], GateKeeper], None], Callable[[], bool]]:
    """Return what shows a row and what asks whether to end, with a callback that takes part in both."""
    if callback is None:
        return show, interrupted
    ended = False

    def shown(row: dict[str, Any], keeper: GateKeeper) -> None:
        nonlocal ended
        show(row, keeper)
        ended = bool(callback(dict(row))) or ended

    return shown, lambda: ended or interrupted()


def _played_held_out(run: Path) -> str:
    """Play those by whom one chooses, whom the run has not met, write how it did, and tell it."""
    from multigrid_rl.evaluation.evaluation import held_out

    rows = held_out(run, "validate", HELD_OUT_GAMES, HELD_OUT_SEED)
    write_whole(run / "held_out.json", (json_text(rows, indent=2) + "\n").encode())
    shares = ", ".join(
        "{} {:.1%} ({:.1%} to {:.1%})".format(name, row["win"], *row["win_interval"]) for name, row in rows.items()
    )
    mean = sum(row["win"] for row in rows.values()) / len(rows)
    return f"held out: wins {mean:.1%} on average of {HELD_OUT_GAMES} games against each held-out player: {shares}"


@contextmanager
def run_folder(config: RunConfig, path: Path, seated: dict[str, Any], start: Checkpoint | None) -> Iterator[RunFolder]:
    """Open the folder of a run, closed at the end; a new one that nothing was reported to is removed after an error.

    Raises:
        ConfigError: another process has made it meanwhile, or writes to it.
    """
    from multigrid_rl.runs.folder import RunFolder
    from multigrid_rl.runs.provenance import facts_of

    try:
        folder = RunFolder.reopened(path, config, start) if start else RunFolder(path, config, seated, facts_of(config))
    except FileExistsError as error:
        if config.run_dir:
            raise ConfigError(expected("run_dir", "a new folder", f"{path}, which exists already")) from error
        # Another run began in the same second, with the same seed.
        folder = RunFolder(default_run_dir(config, datetime.now()), config, seated, facts_of(config))
        LOG.warning("%s: another run has this folder; this one goes to %s", path, folder.path)
    whole = False
    try:
        yield folder
        whole = True
    finally:
        folder.close()
        if not whole and start is None and not folder.begun:
            folder.discard()


def check_networks(config: RunConfig, specs: MultiAgentSpec, checkpoint: Path) -> None:
    """Check that the user's own network still has the tensors of a checkpoint. Raises ``PlayerError``."""
    from multigrid_rl.models.registry import network_of
    from multigrid_rl.players.cards import check_same

    for module in specs.modules:
        check_same(checkpoint / "players" / module, network_of(specs.agent_of(module), config.model.model_dump()))


@contextmanager
def own_mistakes(config: RunConfig) -> Iterator[None]:
    """Tell what the user's own code raises after its trial call, with the keys that name its module.

    Raises ``RunError``.
    """
    try:
        yield
    except MISTAKES as error:
        place = own_place(error)
        if not place or type(error).__module__.startswith("multigrid_rl."):  # ours say what is wrong themselves
            raise
        parts = {
            "model.name": config.model.name,
            **config.train.functions,
            "env_id": config.scenario.env_id or "",
            "train.shaping": config.train.shaping or "",
        }
        stem = place.partition(".py:")[0].removeprefix(" (")
        modules = {key: name.partition(":")[0] for key, name in parts.items() if ":" in name}
        named = [f"{key}={parts[key]}" for key, module in modules.items() if module.split(".")[-1] == stem]
        raise RunError(f"{', '.join(named) or 'own code'}: {mistake(error)}") from error


@contextmanager
def tell_how_to_resume(path: Path) -> Iterator[None]:
    """Give a run that breaks off the line that says how to resume it, unless nothing was reported yet."""
    from multigrid_rl.runs.divergence import DivergedError

    try:
        yield
    except RunError as error:
        with suppress(ConfigError, FileNotFoundError):
            left = start_of(path, log=False).env_steps
            kept = f"and a checkpoint at step {left:,}" if left else "but there is no checkpoint yet"
            then = f"{'go on' if left else 'start again'}: {program()} train --resume {shlex.quote(str(path))}"
            if isinstance(error, DivergedError) and not error.by_reward:
                then = "it would diverge again: lower the step size, train.lr, in a new run"
            if left or (path / "metrics.jsonl").stat().st_size:
                error.hint = f"what was reported stays, {kept}; {then}"
        raise
