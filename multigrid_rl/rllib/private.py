"""Uses of private names of Ray's, each with its reason; a test fails when one of them is gone.

All other code uses only Ray's public names.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env import env_runner_group
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS


class PrivateOverrides:
    """Mixin of an ``Algorithm``: behaviour that RLlib has no option for."""

    def _setup_logdir(self) -> None:
        """Make no folder outside of Tune: nothing is written into it, and Ray would leave one in the user's home."""
        if self._storage:  # type: ignore[attr-defined]
            super()._setup_logdir()  # type: ignore[misc]
        else:
            self._logdir = tempfile.gettempdir()

    def _evaluate_with_auto_duration(self, training: Any) -> tuple[None, int, int, list[Any]]:
        """Play rounds of whole games until ``training`` is done, at least one: RLlib drops later results."""
        algorithm: Any = self
        steps = algorithm.config.evaluation_auto_duration_min_env_steps_per_sample

        def play(runner: Any) -> tuple[int, int, Any]:
            (episodes,) = runner.sample(num_timesteps=steps)
            return episodes.env_steps(), episodes.agent_steps(), runner.get_metrics()

        results = algorithm.eval_env_runner_group.foreach_env_runner(play, local_env_runner=False)
        while not training.done():
            results += algorithm.eval_env_runner_group.foreach_env_runner(play, local_env_runner=False)
        algorithm.metrics.aggregate([metrics for *_, metrics in results], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
        return None, sum(env_steps for env_steps, *_ in results), sum(steps for _, steps, _ in results), []


class UnwrappedModules:
    """Mixin of a ``TorchLearner``: no torch wrapper around modules when several learners share a batch.

    Gradients are one flat array, and learners exchange only its sum; RLlib has no option to leave the wrapper out.
    """

    def _make_modules_ddp_if_necessary(self) -> None:
        """Leave the modules as they are."""


def replace_actor(group: env_runner_group.EnvRunnerGroup, index: int, runner: Any) -> None:
    """Replace an actor of RLlib's group, which only restarts its own ones."""
    group._worker_manager.actors()[index] = runner
    group._worker_manager.set_actor_state(index, healthy=True)


class _Ray:
    """Ray for RLlib's groups of env runners: with ``without_store``, nothing goes into an object store."""

    without_store = ContextVar("without_store", default=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def put(self, value: Any) -> Any:
        """Return a reference, or the value itself."""
        return value if self.without_store.get() and not ray.is_initialized() else ray.put(value)


# Only in that module's namespace: threads and callbacks use ``ray.put`` itself.
env_runner_group.ray = _Ray()


@contextmanager
def without_object_store() -> Iterator[None]:
    """Let this thread build and use RLlib's groups of env runners where there is no Ray session.

    They put configurations and weights into the object store for other processes, of which there are none then;
    ``ray.put`` would start a session, which takes longer than the rest of a run's start.
    """
    token = _Ray.without_store.set(True)
    try:
        yield
    finally:
        _Ray.without_store.reset(token)


@contextmanager
def separate_sessions(local: bool) -> Iterator[list[int]]:
    """Start Ray's processes in separate sessions, with raylets that ignore SIGTERM; ``local``: only on the loopback.

    Yields the process numbers of the raylets that were started: Ray does not say, and they must be watched and ended.

    ``ray.init`` starts them, and takes no argument for how. Where the kernel does not end children with their parent,
    Ray ends its own by their group, and the processes stay as they are.
    """
    popen, cluster_enabled = services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER
    raylets: list[int] = []

    def start(command: list[str], **settings: Any) -> Any:
        prepare, is_raylet = settings.pop("preexec_fn"), Path(command[0]).name == ray_constants.PROCESS_TYPE_RAYLET

        def prepare_raylet() -> None:
            prepare()
            if is_raylet:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        process = popen(command, preexec_fn=prepare_raylet, start_new_session=True, **settings)
        raylets.extend([process.pid] * is_raylet)
        return process

    ray_constants.ENABLE_RAY_CLUSTER = cluster_enabled and not local
    if sys.platform == "linux":
        services.ConsolePopen = start
    try:
        yield raylets
    finally:
        services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER = popen, cluster_enabled


def algorithms_keys() -> set[str]:
    """Return keys that RLlib's and other loaded algorithms write into every module's ``model_config``.

    A module gets these keys and its user's in one dictionary, without the configuration that builds it.
    """
    classes, keys = [AlgorithmConfig], set()
    for config_class in classes:
        classes += config_class.__subclasses__()
        if "_model_config_auto_includes" in vars(config_class):
            keys |= config_class()._model_config_auto_includes.keys()
    return keys


def local_address() -> str | None:
    """Return the address that ``address=auto`` stands for; Ray would try an old one for minutes.

    It is that of a live Ray process here, else from a file that a dead one may have left.
    """
    address: str | None = services.get_ray_address_from_environment("auto", None)
    return address
