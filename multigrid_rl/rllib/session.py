"""Whether a run needs a Ray session, and has room in it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from multigrid_rl.config.schema import ClusterConfig, RunConfig
from multigrid_rl.text import ConfigError, expected, one_line, program

__all__ = ["RayError", "ray_session", "reason_of"]
#: Seconds in which Ray has noticed that actors, or another driver, have ended.
PATIENCE_S = 5.0


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
    from multigrid_rl.rllib.ray_start import new_session  # noqa: PLC0415 - most runs need no session

    with new_session(None if config is None else config.cluster):
        yield


def check_gpus(config: RunConfig) -> None:
    """Raise ``ConfigError`` for learners on more GPUs than this machine, or the session, has: Ray would only wait."""
    cluster, learners = config.cluster, max(config.cluster.num_learners, 1)
    in_session = cluster.num_learners > 0 and ray.is_initialized()
    gpus = int(ray.cluster_resources().get("GPU", 0)) if in_session else torch.cuda.device_count()
    if (in_session or cluster.address is None) and cluster.gpus_per_learner * learners > gpus:
        wanted = f"{'0 to ' if gpus else ''}{min(1, gpus / learners):g}{'' if in_session else ', or a cluster.address'}"
        visible = f"{gpus} GPU(s)" if gpus else f"no GPU ({program()} doctor says why)"
        place = "the cluster has" if in_session else "torch sees"
        got = f"{cluster.gpus_per_learner:g} for {learners} learner(s): {place} {visible}"
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
    key, got, room = ("learners", learners, free) if learners > free else ("env_runners", runners, free - learners)
    if got > room:
        raise ConfigError(expected(f"cluster.num_{key}", f"0 to {room}, the free CPUs of the cluster", got))
