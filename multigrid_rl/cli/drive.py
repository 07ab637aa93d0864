"""A run on this screen: its folder, its session, RLlib's algorithm driven to the end, and what came of it."""

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
from multigrid_rl.files import json_text, write_whole
from multigrid_rl.gates import GateKeeper
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import check_same
from multigrid_rl.runs.checkpoints import Checkpoint, start_of
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.runs.provenance import facts_of
from multigrid_rl.tables import PREFLIGHTS, find
from multigrid_rl.text import ConfigError, expected, program, reason
from multigrid_rl.training import screen as live
from multigrid_rl.training.loop import DivergedError, train
from multigrid_rl.training.stages import load_stages, thread_tuner
from multigrid_rl.training.trainers import RowCallback
from multigrid_rl.training.warm_up import start_compiler
from multigrid_rl.trust import MISTAKES, mistake, own_place
from multigrid_rl.types import MultiAgentSpec, RunError

LOG = logging.getLogger(__name__)
#: Games against each player that a scenario holds out, when a run has ended.
HELD_OUT_GAMES, HELD_OUT_SEED = 1000, 40_000
#: Rehearsal of a first start, with those for several threads.
KERNELS = 85


def drive(
    config: RunConfig,
    path: Path,
    start: Checkpoint | None = None,
    *,
    callback: RowCallback | None,
    changed: Sequence[str] = (),
) -> dict[str, Any]:
    """Build RLlib's algorithm of a run, drive it from the start or from a checkpoint, and return the verdict.

    Args:
        start: where it goes on; ``None``: it is new.
        callback: takes each row; a true answer ends the run after this iteration.
        changed: what was set, as ``advice.settings`` tells it.

    Raises:
        ConfigError, PlayerError: before training starts, with one line.
        RunError: the run broke off.
    """
    stages, seated = load_stages(config, path if start else None)
    checkpoint = start.path if start is not None and start.env_steps else None
    if checkpoint is not None and ":" in config.model.name:
        check_networks(config, stages[-1].factory.specs, checkpoint)
    # A damaged file of a player has cost the import of torch; Ray's takes as long again.
    from multigrid_rl.rllib.algorithm import built_algorithm
    from multigrid_rl.rllib.session import RayError, check_gpus, ray_session, reason_of

    check_gpus(config)
    # Everything has been checked by now: the line of a mistake has no head of a run above it.
    screen = live.live_console()
    screen.print(f"[bold]multigrid-rl train[/] {escape(f'{config.scenario.name}: {config.scenario.description}')}")
    screen.print("(starting takes some seconds, and half a minute more the first time, to compile the game)")
    start_compiler(config, partial(_compiled, screen))
    with ExitStack() as stack:
        stack.enter_context(live.warnings_on_screen())
        try:
            lines: list[str] = []
            if config.cluster.address is not None:
                stack.enter_context(ray_session(config))
                config, lines = find(PREFLIGHTS, "cluster")(config, path, stages)
            for line in (*lines, *live.preflight(config, seated, path, thread_tuner(config).describe(), changed)):
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

            def observe(row: dict[str, Any], keeper: GateKeeper) -> object:
                show(row, keeper)
                return callback is not None and callback(dict(row))

            with built_algorithm(config, stages, checkpoint) as algorithm:
                verdict = train(algorithm, config, folder, observe, interrupted, checkpoint)
        except (RayError, MemoryError) as error:  # before OSError: a timeout of Ray's is one, too
            what = "Ray" if isinstance(error, RayError) else "memory (a smaller train.num_envs takes less)"
            raise RunError(f"{what}: {reason_of(error)}") from error
        except OSError as error:
            # Rows and verdict are written beside the loop's own work, and a full disk may show there first.
            raise RunError(reason(error, path)) from error
    for line in live.closing_lines(verdict, path, config, changed):
        screen.print(line)
    if config.scenario.held_out.get("validate") and verdict["ended"] != "interrupted":
        screen.print(_played_held_out(path), markup=False)
    return verdict


def _compiled(screen: Console, count: int) -> None:
    """Show how many kernels are compiled, in one line that the next one replaces; nothing but on a terminal."""
    if screen.is_terminal and count <= KERNELS:
        screen.print(f"compiling {count} of about {KERNELS}", end="\r")


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

    Raises ``ConfigError``: another process has made it meanwhile, or writes to it.
    """
    try:
        folder = RunFolder.reopen(path, config, start) if start else RunFolder(path, config, seated, facts_of(config))
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
        if not whole and start is None and not folder.is_started:
            folder.discard()


def check_networks(config: RunConfig, specs: MultiAgentSpec, checkpoint: Path) -> None:
    """Check that the user's own network still has the tensors of a checkpoint. Raises ``PlayerError``."""
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
