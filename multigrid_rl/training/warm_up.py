"""Every kernel of a run called once, before its clock runs; where they are not on disk yet, by two processes.

One compiles kernels that play while the other compiles those that learn, then the forms for several threads, which
training does without until they are there: no result depends on the number of threads.
"""

from __future__ import annotations

import fcntl
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import numpy as np
import torch

from multigrid_rl import fast, jit
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import RunConfig, trainer_of
from multigrid_rl.cores import available_cpus
from multigrid_rl.fast.threads import set_threads
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.learn.update import Update
from multigrid_rl.models.registry import network_of
from multigrid_rl.training.stages import estimator_of, thread_tuner, update_config
from multigrid_rl.types import EnvFactory
from multigrid_rl.world.engine import DoorsEnv

_COMPILED_LINE, _NEXT_LINE = "compiled", "next"
#: The compiler of this process's run, if any.
_compilers: list[CompilerProcess] = []


class Rehearsal:
    """Calls all kernels with few small games."""

    def __init__(self, config: RunConfig, factory: EnvFactory | None = None) -> None:
        self._config, self._factory = config, factory or env_factory(config)
        env = self._factory.build(config.train.num_envs if config.scenario.kind.built_once else 2, 0)
        specs, architecture = self._factory.specs, config.model.model_dump()
        self._networks = {module: network_of(specs.agent_of(module), architecture) for module in specs.modules}
        self._rules = getattr(env, "env", None)
        self._collector = collector_of(env, specs, self._networks, seed=0, first=0, steps=4, bound=config.model.bound)

    def rules(self) -> None:
        """Call those of the game, before kernels that call them."""
        if isinstance(self._rules, DoorsEnv):
            self._rules.world.step(np.zeros_like(self._rules.actions))

    def play(self) -> None:
        """Call those that play."""
        self._collector.collect()

    def act(self) -> None:
        """Call those that act; observations and actions, which :meth:`learn` needs, are zeros."""
        for agent in self._factory.specs.agents:
            rollout, network = self._collector.rollouts[agent.name], self._networks[agent.module]
            for column in rollout:
                column[:] = 0
            rollout.mask[:] = True
            compiled = None if network.state_size else fast.compile_network(network)
            if compiled is not None:
                with torch.inference_mode():
                    compiled.policy(rollout.obs[0])

    def learn(self) -> None:
        """Call those that learn, from the played steps."""
        config, specs = self._config, self._factory.specs
        if not trainer_of(config.train.trainer).learns_values:
            return
        rollouts = self._collector.rollouts
        batches = {agent.module: estimate(rollouts[agent.name], estimator_of(config)) for agent in specs.agents}
        # An agent that takes turns may have none.
        if not (batches := {module: batch for module, batch in batches.items() if len(batch.obs)}):
            return
        spaces = {module: specs.agent_of(module).action_space for module in self._networks}
        single_pass = replace(update_config(config), epochs=1, minibatch_size=None, recompute=None)
        Update(self._networks, spaces, single_pass, device=torch.device("cpu")).learn(batches, 0)


def warm_up(config: RunConfig, factory: EnvFactory | None = None, threads: int = 1) -> None:
    """Compile or load every kernel before the clock runs and before env runners would all compile them at once.

    Multi-threaded kernels are separate: those of up to ``threads`` threads are compiled, or with ``auto`` threads left
    to the process of :func:`start_compiler`.
    """
    kernels = Rehearsal(config, factory)
    compiler = _compilers[-1] if _compilers else None
    if compiler is not None:
        kernels.rules()
        compiler.wait()
    kernels.play()
    if compiler is not None:
        compiler.wait()
    kernels.learn()
    with suppress(jit.NotCompiledError):
        for count in range(2, threads + 1):
            with jit.using(forbid_compiling=compiler is not None and config.train.threads == "auto"):
                set_threads(count)
                kernels.play()
                kernels.learn()
    set_threads(1)


class CompilerProcess:
    """Another process that compiles, started when a kernel is missing on disk.

    It outlives a short run, whose next start then finds all of them. ``on_count``: called after each kernel,
    with their number.
    """

    def __init__(self, config: bytes, on_count: Callable[[int], None]) -> None:
        self._config, self._on_count, self._count = config, on_count, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = Semaphore(0)

    def __call__(self) -> None:
        """Start it, once."""
        if self._process is None:
            command = [sys.executable, "-m", __name__]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, start_new_session=True, **pipes)
            Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError), process:  # it has ended: only this process compiles
            process.stdin.write(self._config)  # type: ignore[union-attr]
            process.stdin.close()  # type: ignore[union-attr]
            for line in process.stdout or ():
                if line.decode().strip() == _NEXT_LINE:
                    self._ready.release()
                else:
                    self.compiled()

    def compiled(self) -> None:
        """Count one more."""
        self._count += 1
        self._on_count(self._count)

    def wait(self) -> None:
        """Wait until kernels that act are compiled; when called again, those that learn."""
        while self.busy() and not self._ready.acquire(timeout=0.2):
            pass

    def busy(self) -> bool:
        """Return whether it compiles."""
        return self._process is not None and self._process.poll() is None


def start_compiler(config: RunConfig, on_count: Callable[[int], None]) -> None:
    """Let another process compile, too, when the run that starts finds kernels missing on disk."""
    if available_cpus() > 1 and config.train.compiled:
        try:
            pickled = pickle.dumps(config)
        except (pickle.PicklingError, AttributeError, TypeError):  # user classes: only this process compiles
            return
        _compilers[:] = [process := CompilerProcess(pickled, on_count)]
        jit.state.missing, jit.state.compiled, jit.state.busy = process, process.compiled, process.busy


def _main() -> None:
    """Compile what learns, then the forms for several threads, for :class:`CompilerProcess`; one at a time."""
    config = pickle.load(sys.stdin.buffer)
    with Path(jit.__file__).open() as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        jit.state.compiled = lambda: _send(_COMPILED_LINE)
        torch.set_num_threads(1)
        kernels = Rehearsal(config)
        kernels.act()
        _send(_NEXT_LINE)
        kernels.learn()
        _send(_NEXT_LINE)
        if thread_tuner(config).limit > 1:
            set_threads(2)
            kernels.act()
            kernels.learn()
            kernels.play()


def _send(word: str) -> None:
    with suppress(OSError):  # the other process has ended
        print(word, flush=True)  # noqa: T201 - to the process that asked


if __name__ == "__main__":
    _main()
