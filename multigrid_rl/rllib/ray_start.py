"""Ray sessions: started, shielded from signals, and removed."""

import logging
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from multigrid_rl.config.schema import ClusterConfig
from multigrid_rl.cores import available_cpus
from multigrid_rl.rllib import private
from multigrid_rl.rllib.address import connection_problem
from multigrid_rl.rllib.session import reason_of
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import RunError

LOG = logging.getLogger(__name__)
#: Locked while Ray starts: settings of the process are then restored in order, in whatever threads it starts.
_STARTING = threading.Lock()


@contextmanager
def new_session(cluster: ClusterConfig | None) -> Iterator[None]:
    """Start a session on this machine, or connect to the cluster that ``cluster`` names, while the context is open.

    Raises as :func:`~multigrid_rl.rllib.session.ray_session`.
    """
    address = cluster.address if cluster else None
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        # "local": never connect to another cluster on this machine.
        processes = cluster.runners + cluster.num_learners if cluster else 0
        settings |= {"address": "local", "num_cpus": max(available_cpus(), processes), "include_dashboard": False}
    else:
        settings |= {"address": address}
    scratch, raylets = _start(settings, address)
    with ExitStack() as stack:
        for raylet in raylets:  # one, on Linux; none where an existing cluster has its own
            stack.callback(_end_children, raylet)
        stack.callback(ray.shutdown)
        for raylet in raylets:
            stack.enter_context(_watched(raylet))
        yield
    if address is None:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(settings: dict[str, Any], address: str | None) -> tuple[Path, list[int]]:
    """Start Ray, or connect to it; returns the session's folder for temporary files, and raylets that were started."""
    try:
        with _STARTING, _ray_settings(local=address is None) as raylets:
            if address is None:
                _ensure_token()
            else:
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
