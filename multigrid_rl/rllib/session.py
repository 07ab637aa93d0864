"""Ray sessions: started when needed, shielded from signals, and removed."""

import logging
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from multigrid_rl.config.schema import ClusterConfig, RunConfig
from multigrid_rl.cores import available_cpus
from multigrid_rl.rllib import private
from multigrid_rl.text import ConfigError, expected, one_line, program
from multigrid_rl.types import RunError

__all__ = ["RayError", "ray_session", "reason_of"]
LOG = logging.getLogger(__name__)
#: Seconds in which Ray has noticed that actors, or another driver, have ended.
PATIENCE_S = 5.0
#: Locked while Ray starts: settings of the process are then restored in order, in whatever threads it starts.
_STARTING = threading.Lock()


def reason_of(error: BaseException) -> str:
    """Return the reason inside an error of Ray's, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not isinstance(error, RayTaskError):
        return lines[0] if lines else type(error).__name__
    # The error of the other process, if it could travel, is inside; its text ends with the exception.
    inner = error.cause
    return lines[-1] if inner is None else f"{type(inner).__name__}: {one_line(inner)}"


@contextmanager
def ray_session(config: RunConfig | None = None) -> Iterator[None]:
    """Run a Ray session while the context is open: on this machine, or on the cluster that ``config`` names.

    A run in which only the driver plays and learns gets none: starting one takes longer than the rest of a run's
    start. An existing one is used and left running. Temporary files of a session on this machine are removed, unless it
    ended with an error: Ray's logs may help then.

    Raises:
        ConfigError: the requested cluster does not answer, this machine has too few GPUs, or the existing session has
            too few free CPUs.
        RunError: Ray does not start on this machine.
    """
    needed = config is None
    for name in ("ray", "ray.rllib"):  # they log advice about defaults at every start
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)  # the pool reports lost env runners
    if config is not None:
        check_gpus(config)
        cluster = config.cluster
        needed |= bool(cluster.address is not None or cluster.num_env_runners or cluster.num_learners)
        if ray.is_initialized():
            _check_room(config.cluster)
    if ray.is_initialized() or not needed:
        yield
        return
    address = config.cluster.address if config else None
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        # "local": never connect to another cluster on this machine.
        processes = config.cluster.runners + config.cluster.num_learners if config else 0
        settings |= {"address": "local", "num_cpus": max(available_cpus(), processes), "include_dashboard": False}
    else:
        settings |= {"address": address}
    scratch, raylets = _start(settings, address)
    with ExitStack() as stack:
        if address is None:
            for raylet in raylets:  # one, on Linux
                stack.callback(_end_children, raylet)
            stack.callback(ray.shutdown)
            for raylet in raylets:
                stack.enter_context(_watched(raylet))
        else:
            stack.callback(ray.shutdown)
        yield
    if address is None:
        shutil.rmtree(scratch, ignore_errors=True)


def check_gpus(config: RunConfig) -> None:
    """Raise ``ConfigError`` for learners on GPUs that this machine lacks: Ray would wait without a message."""
    cluster, gpus = config.cluster, torch.cuda.device_count()
    learners = max(cluster.num_learners, 1)
    if cluster.address is None and cluster.gpus_per_learner * learners > gpus:
        wanted = f"{'0 to ' if gpus else ''}{min(1, gpus / learners):g}, or a cluster.address"
        visible = f"sees {gpus} GPU(s) here" if gpus else f"sees no GPU here ({program()} doctor says why)"
        got = f"{cluster.gpus_per_learner:g} for {learners} learner(s): torch {visible}"
        raise ConfigError(expected("cluster.gpus_per_learner", wanted, got))


def free_cpus(wanted: float) -> int:
    """Return the free CPUs for actors of this process: of its placement group in a trial of Tune's.

    Where they are fewer than ``wanted``, it waits for actors that have just ended.
    """
    group, until = ray.util.get_current_placement_group(), time.monotonic() + PATIENCE_S
    if group is not None:
        reserved = sum(bundle.get("CPU", 0) for bundle in group.bundle_specs)
        return int(reserved - ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
    while (free := int(ray.available_resources().get("CPU", 0))) < wanted and time.monotonic() < until:
        time.sleep(0.1)
    return free


def learner_cpus(cluster: ClusterConfig) -> int:
    """Return the CPUs that remote learners reserve: one each, those on GPUs none."""
    return 0 if cluster.gpus_per_learner else cluster.num_learners


def _check_room(cluster: ClusterConfig) -> None:
    """Raise ``ConfigError`` for more processes than CPUs are free: Ray would wait for them silently."""
    runners, learners = cluster.num_env_runners, learner_cpus(cluster)
    if isinstance(runners, str) or runners + learners == 0:
        return
    free = free_cpus(runners + learners)
    room = "0 to {}, the free CPUs of the cluster"
    if learners > free:
        raise ConfigError(expected("cluster.num_learners", room.format(free), learners))
    if runners + learners > free:
        raise ConfigError(expected("cluster.num_env_runners", room.format(free - learners), runners))


def _start(settings: dict[str, Any], address: str | None) -> tuple[Path, list[int]]:
    """Start Ray, or connect to it; returns the session's folder for temporary files, and raylets that were started."""
    try:
        with _STARTING, _ray_settings(local=address is None) as raylets:
            if address is None:
                _ensure_token()
            else:
                from multigrid_rl.rllib.address import connection_problem  # noqa: PLC0415 - only for clusters

                target = (private.local_address() or address) if address == "auto" else address
                if problem := connection_problem(target):
                    raise ConnectionError(f"{target}: {problem}" if target != address else problem)
            return Path(ray.init(**settings).address_info["session_dir"]), raylets
    except Exception as error:  # Ray raises bare ones, too
        if address is None:
            folders = f"TMPDIR={tempfile.gettempdir()}, HOME={os.environ.get('HOME')}"
            raise RunError(f"Ray: expected a session on this machine, got {reason_of(error)} ({folders})") from error
        got = f"{address}: {reason_of(error)}"
        raise ConfigError(expected("cluster.address", "a cluster that runs (ray start --head)", got)) from error


@contextmanager
def _ray_settings(*, local: bool) -> Iterator[list[int]]:
    """Stop Ray from recording calls, keep our signal handler, and start its processes in separate sessions.

    A local session listens only on the loopback, as Ray's do by default on macOS: other machines cannot join.

    Its server would grow by 13 MiB a minute with recorded calls; its handler of SIGTERM aborts the process. A terminal
    that closes and ``timeout`` signal a whole group of processes, and a service manager all of a service's: the driver
    must end its run first, and needs the raylet, which ignores SIGTERM, and its env runners for it. Where the
    kernel does not end children with their parent, Ray ends its own by their group.
    """
    name = "RAY_task_events_report_interval_ms"
    events, handler = os.environ.get(name), signal.getsignal(signal.SIGTERM)
    os.environ[name] = events or "0"
    try:
        with private.separate_sessions(local) as raylets:
            yield raylets
    finally:
        if events is None:
            del os.environ[name]
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _end_children(raylet: int) -> None:
    """End the child processes of a killed raylet: its agents take a minute and more to notice."""
    for process in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        pid = int(process.name)
        with suppress(OSError):  # gone, or another user's
            if os.getsid(pid) == raylet:  # the session that it was started in
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _watched(raylet: int) -> Iterator[None]:
    """End this process with one line and status 3 when its raylet is lost.

    Ray would end it with status 1 and its own log as soon as it notices, which nothing here can catch.
    """
    try:
        raylet_handle = os.pidfd_open(raylet)
    except (AttributeError, OSError):  # no Linux, or a container that forbids it: Ray's own way, then
        yield
        return
    stop_reader, stop_writer = os.pipe()
    watcher = threading.Thread(target=_watch, args=(raylet_handle, stop_reader), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.write(stop_writer, b".")
        watcher.join()
        for handle in (stop_reader, stop_writer, raylet_handle):
            os.close(handle)


def _watch(raylet: int, stop_reader: int) -> None:
    poll = select.poll()  # takes handles of any number, as select does not
    for handle in (raylet, stop_reader):
        poll.register(handle, select.POLLIN)
    if stop_reader not in dict(poll.poll()):
        LOG.error("Ray: its raylet on this machine was lost; reports and whole checkpoints stay; go on with --resume")
        os._exit(3)


def _ensure_token() -> None:
    """Pass Ray a token in the environment where it cannot store one below HOME, the only other place."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    try:
        folder = Path.home() / ".ray"
        if (folder / "auth_token").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home at all
        writable = False
    if not writable:
        # It stays for this process: Ray reads it once, and its later sessions compare with that.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
