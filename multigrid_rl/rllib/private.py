"""What only private names of Ray's give, each with its reason; a test fails when one of them is gone.

Everything else of Ray is used by its public names alone.
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


class OwnWays:
    """Beside an ``Algorithm``: what RLlib has no option for."""

    def _setup_logdir(self) -> None:
        """Make no folder outside of Tune: nothing is written into it, and Ray would leave one in the user's home."""
        if self._storage:  # type: ignore[attr-defined]
            super()._setup_logdir()  # type: ignore[misc]
        else:
            self._logdir = tempfile.gettempdir()

    def _evaluate_with_auto_duration(self, training: Any) -> tuple[None, int, int, list[Any]]:
        """Play rounds of whole games until ``training`` is done, at least one: RLlib drops what comes back later."""
        algorithm: Any = self
        steps = algorithm.config.evaluation_auto_duration_min_env_steps_per_sample

        def play(runner: Any) -> tuple[int, int, Any]:
            (played,) = runner.sample(num_timesteps=steps)
            return played.env_steps(), played.agent_steps(), runner.get_metrics()

        found = algorithm.eval_env_runner_group.foreach_env_runner(play, local_env_runner=False)
        while not training.done():
            found += algorithm.eval_env_runner_group.foreach_env_runner(play, local_env_runner=False)
        algorithm.metrics.aggregate([each for *_, each in found], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
        return None, sum(env_steps for env_steps, *_ in found), sum(each for _, each, _ in found), []


class WithoutWrapper:
    """Beside a ``TorchLearner``: no torch wrapper around modules when several learners share a batch.

    Gradients are one flat array, and its sum is all that they exchange; RLlib has no option to leave the wrapper out.
    """

    def _make_modules_ddp_if_necessary(self) -> None:
        """Leave the modules as they are."""


def put_in_place(group: env_runner_group.EnvRunnerGroup, index: int, runner: Any) -> None:
    """Let RLlib's group reach a runner that took the place of one it made; it only restarts its own actors."""
    group._worker_manager.actors()[index] = runner
    group._worker_manager.set_actor_state(index, healthy=True)


class _Ray:
    """Ray as RLlib's groups of env runners call it: where they ask for it, nothing goes into an object store."""

    alone = ContextVar("alone", default=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def put(self, value: Any) -> Any:
        """Return a reference, or the value itself."""
        return value if self.alone.get() and not ray.is_initialized() else ray.put(value)


# In the namespace of that one module, once: ``ray.put`` itself is everybody's, in threads and callbacks, too.
env_runner_group.ray = _Ray()


@contextmanager
def without_object_store() -> Iterator[None]:
    """Let this thread build and use RLlib's groups of env runners where there is no Ray session.

    They put configurations and weights into the object store for other processes, of which there are none then;
    ``ray.put`` would start a session, which takes longer than all else that a run does before its first step.
    """
    token = _Ray.alone.set(True)
    try:
        yield
    finally:
        _Ray.alone.reset(token)


@contextmanager
def starting(local: bool) -> Iterator[list[int]]:
    """Start Ray's processes in sessions of their own, whose raylet ignores SIGTERM; ``local``: on the loopback alone.

    Yields the process numbers of the raylets that were started: Ray does not say, and they must be watched and ended.

    ``ray.init`` starts them, and takes no argument for how. Where the kernel does not end children with their parent,
    Ray ends its own by their group, and the processes stay as they are.
    """
    popen, reachable = services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER
    raylets: list[int] = []

    def start(command: list[str], **settings: Any) -> Any:
        prepare, is_raylet = settings.pop("preexec_fn"), Path(command[0]).name == ray_constants.PROCESS_TYPE_RAYLET

        def prepared() -> None:
            prepare()
            if is_raylet:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        process = popen(command, preexec_fn=prepared, start_new_session=True, **settings)
        raylets.extend([process.pid] * is_raylet)
        return process

    ray_constants.ENABLE_RAY_CLUSTER = reachable and not local
    if sys.platform == "linux":
        services.ConsolePopen = start
    try:
        yield raylets
    finally:
        services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER = popen, reachable


def algorithms_keys() -> set[str]:
    """Return what RLlib's algorithms, and others' that are loaded, write into every module's ``model_config``.

    A module gets these keys and its user's in one dictionary, and is not told whose configuration it is built by.
    """
    kinds, keys = [AlgorithmConfig], set()
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "_model_config_auto_includes" in vars(kind):
            keys |= kind()._model_config_auto_includes.keys()
    return keys


def local_address() -> str | None:
    """Return the address that ``address=auto`` stands for; Ray would try an old one for minutes, so it is asked first.

    That is of a Ray process that lives here, else of a file that a dead one may have left.
    """
    found: str | None = services.get_ray_address_from_environment("auto", None)
    return found
