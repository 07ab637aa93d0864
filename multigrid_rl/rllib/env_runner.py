"""RLlib's env runner around our own sampling path (:mod:`multigrid_rl.learn.rollout`)."""

from typing import Any

import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from multigrid_rl.league.league import Roster
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import Experience, estimate
from multigrid_rl.learn.rollout import Collector
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.ops.cluster import installed
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.types import EnvFactory


class BatchedEnvRunner(EnvRunner, Checkpointable):
    """Plays ``num_envs`` environments for ``num_steps`` steps with the current weights.

    ``config.env_config`` holds ``factory`` (a ``types.EnvFactory``), ``num_envs``, ``num_steps``, ``bound``,
    ``estimator`` and ``recompute``. Numbers of environments are shared out so that number ``k`` is the same on any
    runner. A remote runner is sent its factory with :meth:`begin`: what the configuration holds stays small enough
    for every checkpoint.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        settings = self.config.env_config
        remote = bool(self.worker_index)
        if remote:
            torch.set_num_threads(1)  # runners share the cores; a second thread each would slow them down
        self.num_envs: int = settings["num_envs"]
        self.module = self.config.get_multi_rl_module_spec(spaces=self.get_spaces(), inference_only=False).build()
        if not remote:
            self.begin(settings["factory"], 0)

    def begin(self, factory: EnvFactory, offset: int) -> dict[str, str]:
        """Play the environments of ``factory`` from now on, all fresh; returns what is installed here, by package.

        Args:
            factory: recipe of the environments.
            offset: added to the numbers of this runner's environments.

        Raises:
            PlayerError: a background player is damaged or not the one that was announced.
        """
        self.offset = offset
        self.factory: Any = factory
        first = offset + max(self.worker_index - 1, 0) * self.num_envs
        settings = self.config.env_config
        self.modules = factory.specs.modules
        self.collector = Collector(
            factory.build(self.num_envs, first),
            factory.specs,
            {name: self.module[name].net for name in self.modules},
            seed=settings["seed"],
            first=first,
            steps=settings["num_steps"],
            bound=settings["bound"],
        )
        return installed() if self.worker_index else {}

    def get_games(self) -> dict[str, Any]:
        """Return the state of environments, players and random streams; the weights are not part of it."""
        factory = self.factory
        league = isinstance(factory, MatchFactory) and factory.league
        playing = {"opponents": factory.playing(self.collector.env)} if league else {}
        return {"offset": self.offset, **playing, **self.collector.get_state()}

    def set_opponents(self, roster: Roster) -> None:
        """Set the league's players from the next games on. Raises ``PlayerError`` for damaged files."""
        self.factory.join(self.collector.env, roster)

    def set_games(self, games: dict[str, Any]) -> None:
        """Continue from the state of :meth:`get_games`. Raises ``ValueError`` for the games of another runner."""
        if games["offset"] != self.offset:
            raise ValueError(f"state: expected games from number {self.offset}, got {games['offset']}")
        self.collector.set_state(games)

    def sample(self, **kwargs: Any) -> Experience:  # noqa: ARG002
        """Play ``num_steps`` steps of every environment."""
        collector = self.collector
        rollouts = collector.collect()
        collector.clock.begin()
        estimator: Estimator = self.config.env_config["estimator"]
        batches = {name: estimate(rollout, estimator) for name, rollout in rollouts.items()}
        paths = collector.paths() if self.config.env_config["recompute"] else {}
        collector.clock.lap("gae")
        return Experience(
            batches,
            paths,
            collector.env.drain_episodes(),
            self.num_envs * self.config.env_config["num_steps"],
            self.weights_hash(),
            {**collector.clock.drain(), **collector.env.drain_seconds()},
        )

    def weights_hash(self) -> dict[str, str]:
        """Return the checksum of each module's weights."""
        return {name: fingerprint(self.module[name].state_dict(), quick=True) for name in self.modules}

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Return observation and action space of each module."""
        specs = self.config.rl_module_spec.rl_module_specs
        return {name: (spec.observation_space, spec.action_space) for name, spec in specs.items()}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return the weights, as RLlib's group asks for them."""
        return {COMPONENT_RL_MODULE: self.module.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights."""
        if COMPONENT_RL_MODULE in state:
            modules = state[COMPONENT_RL_MODULE]
            # RLlib's weight sync sends a reference inside the dictionary.
            self.module.set_state(ray.get(modules) if isinstance(modules, ray.ObjectRef) else modules)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """Return how RLlib builds this runner again from a checkpoint."""
        return (), {"config": self.config, "worker_index": self.worker_index, "num_workers": self.num_workers}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Return the modules, as a part of their own in checkpoints."""
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_metrics(self) -> Any:
        """Return RLlib's own metrics: none; everything is in what :meth:`sample` returns."""
        return self.metrics.reduce()

    def assert_healthy(self) -> None:
        """Raise unless the networks were built."""
        assert self.module is not None
