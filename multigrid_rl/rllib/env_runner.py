"""RLlib's env runner around our sampling path (:mod:`multigrid_rl.learn.rollout`)."""

from types import SimpleNamespace
from typing import Any

import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils import force_list
from ray.rllib.utils.checkpoints import Checkpointable

from multigrid_rl import jit
from multigrid_rl.learn.batches import Experience, estimate
from multigrid_rl.learn.rollout import collector_of
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.models.registry import fingerprint
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.runs.provenance import local_versions
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.stages import config_of, estimator_of
from multigrid_rl.training.trainers import Sampler, Weights
from multigrid_rl.types import EnvFactory, EpisodeTable

#: Numbers of games: a runner's replacement, and every stage of a curriculum, plays new games.
GENERATION, STAGE = 1 << 32, 1 << 52
#: Numbers of evaluated games, which no training plays, and how many run side by side.
EVALUATION, SIDE_BY_SIDE = 1 << 62, 256
_EVALUATED = "evaluated"
_ALGORITHM = "MultigridAlgorithm, which config(...).build_algo() builds"


class BatchedEnvRunner(EnvRunner, Checkpointable):
    """Plays ``num_envs`` environments for ``num_steps`` steps with the current weights.

    ``config.settings`` is a :class:`~multigrid_rl.rllib.build.Settings`. Environment ``k`` is
    the same on any runner. A remote runner gets its factory with :meth:`begin`: the configuration stays small enough
    for every checkpoint.

    Attributes:
        env: the games it plays, a :class:`~multigrid_rl.types.BatchedEnv`; of evaluation the newest.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        settings = self.config.settings
        if not settings.stages:  # no algorithm of ours has validated it
            raise ConfigError(expected("algorithm", _ALGORITHM, self.config.algo_class.__name__))
        self.run = settings.run
        self._recomputes = settings.trainer.recomputes(self.run)
        if remote := bool(self.worker_index):
            torch.set_num_threads(1)  # runners share the cores; a second thread each would slow them down
            jit.state.networks = self.run.train.compiled
        self.num_envs: int = self.run.games_per_sampler
        self.module = self.config.get_multi_rl_module_spec(spaces=self.get_spaces(), inference_only=False).build()
        # Tensors of the weights, which are only overwritten: a module's state takes longer than a copy of them.
        self.tensors = {name: self.module[name].state_dict() for name in self.module.keys()}  # noqa: SIM118 - no dict
        self._callbacks = [callback() for callback in force_list(self.config.callbacks_class)]
        self.opponent: str | None = getattr(self.config, "opponent", None)  # of evaluation
        self._opponent_games: dict[str | None, Any] = {}
        self._evaluated_count, self.greedy = 0, not self.config.explore
        if self.config.in_evaluation:
            self._load(settings.stages[-1].factory)
        elif not remote:
            self.begin(settings.stages[0].factory, 0)

    def begin(self, factory: EnvFactory, offset: int) -> dict[str, str]:
        """Play the environments of ``factory`` from now on, all fresh; returns versions on this machine, by package.

        ``offset``: added to the numbers of this runner's environments. Raises ``PlayerError``: a background player is
        damaged or not the announced one.
        """
        self.offset = offset
        self._load(factory)
        run, first = self.run, offset + max(self.worker_index - 1, 0) * self.num_envs
        networks = {name: self.module[name].net for name in self.modules}
        options = {"seed": run.seed, "first": first, "steps": run.train.num_steps, "bound": run.model.bound}
        with jit.using(networks=run.train.compiled):  # an opponent keeps the form that it gets here
            self.collector = collector_of(factory.build(self.num_envs, first), factory.specs, networks, **options)
        self.env = self.collector.env
        return local_versions() if self.worker_index else {}

    def _load(self, factory: EnvFactory) -> None:
        self.factory: Any = factory
        self.modules = factory.specs.modules
        self._estimators = {
            agent.name: estimator_of(config_of(self.run, agent.module)) for agent in factory.specs.agents
        }

    def get_games(self) -> dict[str, Any]:
        """Return the state of environments, players and random streams, without the weights."""
        league = getattr(self.factory, "league", None)
        opponents = {"opponents": self.factory.playing(self.collector.env)} if league else {}
        return {"offset": self.offset, **opponents, **self.collector.get_state()}

    def set_opponents(self, roster: Any) -> None:
        """Set the league's players from the next games on. Raises ``PlayerError`` for damaged files."""
        self.factory.join(self.collector.env, roster)

    def set_games(self, games: dict[str, Any], fresh: int) -> bool:
        """Continue from the state of :meth:`get_games`; from fresh games, numbered from ``fresh`` on, if these differ.

        Returns whether it continues. Raises ``ValueError`` for the games of another runner.
        """
        if games["offset"] != self.offset:
            raise ValueError(f"state: expected games from number {self.offset}, got {games['offset']}")
        try:
            self.collector.set_state(games)
        except (ValueError, KeyError):  # of another size, game or mixture: parts may be set already
            self.begin(self.factory, fresh)
            return False
        return True

    def sample(self, *, num_episodes: int | None = None, num_timesteps: float | None = None, **kwargs: Any) -> Any:  # noqa: ARG002
        """Play ``num_steps`` steps of every environment, and return the :class:`Experience`.

        ``num_episodes``: play so many fresh ones instead, for RLlib's evaluation, and log them;
        ``num_timesteps``: as many as reach so many steps.
        """
        if num_timesteps is None and num_episodes is None:
            return self._rollout()
        from multigrid_rl.rllib.results import call_hooks, log_episodes  # noqa: PLC0415 - most runs evaluate nothing

        table, wanted_steps = self._evaluate(num_episodes or 1), num_timesteps or 0
        while (steps := int(table.length.sum())) < wanted_steps:
            missing = max(1, int((wanted_steps - steps) * table.episodes / steps))
            table = EpisodeTable.concatenate([table, self._evaluate(missing)])
        specs = self._evaluation_games().specs
        log_episodes(self.metrics, table, specs)
        call_hooks(self.config, self._callbacks, table, specs, self.metrics)
        # RLlib reads only the steps of these episodes.
        return [SimpleNamespace(env_steps=lambda: steps, agent_steps=lambda: steps * len(specs.agents))]

    def _evaluation_games(self) -> Any:
        """Return the games of the run's main scenario, in every stage, with the opponent of evaluation."""
        factory: Any = self.config.settings.stages[-1].factory
        if self.opponent is not None and self.opponent not in self._opponent_games:
            self._opponent_games = {self.opponent: factory.against(self.opponent)}
        return self._opponent_games.get(self.opponent, factory)

    def _evaluate(self, episodes: int) -> EpisodeTable:
        """Play fresh episodes with the current weights, separate from the games under way."""
        from multigrid_rl.players.episodes import play_episodes  # noqa: PLC0415 - most runs evaluate nothing

        factory = self._evaluation_games()
        specs, bound = factory.specs, self.run.model.bound
        players = {}
        for agent in specs.agents:
            net = self.module[agent.module].net
            distribution = distribution_of(agent.action_space, bound, net)
            options: dict[str, Any] = {"members": len(agent.seats), "greedy": self.greedy}
            players[agent.name] = FrozenPlayer(agent.name, net, "", distribution=distribution, **options)
        first = EVALUATION + self.worker_index * GENERATION + self._evaluated_count
        self._evaluated_count += episodes
        env = factory.build(min(episodes, SIDE_BY_SIDE), first)
        if self.config.in_evaluation:
            self.env = env
        return play_episodes(env, specs.agents, players, episodes, seed=self.run.seed, first=first).full_table()

    def _rollout(self) -> Experience:
        collector = self.collector
        rollouts = collector.collect()
        collector.clock.begin()
        batches = {name: estimate(rollout, self._estimators[name]) for name, rollout in rollouts.items()}
        paths = collector.paths() if self._recomputes else {}
        collector.clock.lap("gae")
        return Experience(
            batches,
            paths,
            collector.env.drain_episodes(),
            self.num_envs * self.run.train.num_steps,
            self.weights_hash(),
            {**collector.clock.drain(), **collector.env.drain_seconds()},
        )

    def weights_hash(self) -> dict[str, str]:
        """Return the checksum of each module's weights."""
        return {name: fingerprint(self.tensors[name], quick=True) for name in self.modules}

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Return observation and action space of each module."""
        specs = self.config.rl_module_spec.rl_module_specs
        return {name: (spec.observation_space, spec.action_space) for name, spec in specs.items()}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return the weights for RLlib's group, and the number of evaluated games."""
        return {COMPONENT_RL_MODULE: self.module.get_state(), _EVALUATED: self._evaluated_count}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set weights, and from a checkpoint the next number of an evaluated game."""
        self._evaluated_count = state.get(_EVALUATED, self._evaluated_count)
        if COMPONENT_RL_MODULE in state:
            modules = state[COMPONENT_RL_MODULE]
            # RLlib's weight sync sends a reference inside the dictionary.
            self.module.set_state(ray.get(modules) if isinstance(modules, ray.ObjectRef) else modules)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[()], dict[str, Any]]:
        """Return arguments with which RLlib rebuilds this runner from a checkpoint."""
        return (), {"config": self.config, "worker_index": self.worker_index, "num_workers": self.num_workers}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Return the modules, a separate part of checkpoints."""
        return [(COMPONENT_RL_MODULE, self.module)]

    def get_metrics(self) -> Any:
        """Return logged metrics of evaluated games; those of others are in the result of :meth:`sample`."""
        metrics = self.metrics.reduce()
        if not metrics:  # after a rollout: RLlib's own PPO, which would sample for ever
            raise ConfigError(expected("algorithm", _ALGORITHM, "one that asks for metrics of a rollout"))
        return metrics

    def assert_healthy(self) -> None:
        """Raise unless the networks were built."""
        assert self.module is not None


class LocalSampler(Sampler):
    """The driver's env runner."""

    def __init__(self, runner: BatchedEnvRunner) -> None:
        self._runner = runner

    def sample(self) -> list[Experience]:
        """Play ``num_steps`` steps of every environment."""
        return [self._runner.sample()]

    def set_weights(self, weights: Weights) -> None:
        """Play with these weights from now on."""
        for name, arrays in weights.items():
            for key, tensor in self._runner.tensors[name].items():
                tensor.copy_(torch.from_numpy(arrays[key]))

    def begin(self, factory: EnvFactory, stage: int) -> None:
        """Play the games of another stage; a runner is built with those of the first."""
        if stage:
            self._runner.begin(factory, stage * STAGE)

    def set_opponents(self, factory: EnvFactory, roster: Any) -> None:  # noqa: ARG002 - no other process starts
        """Set a league's players from the next games on."""
        self._runner.set_opponents(roster)

    def get_state(self) -> dict[str, Any]:
        """Return the games under way."""
        return {"games": {0: self._runner.get_games()}}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:
        """Continue the games of a run's state, or start fresh ones if remote runners played them, or other games."""
        games = None if state["env_runners"] else state["games"][0]
        first_number = state["stage"] * STAGE + fresh_generation(state) * GENERATION
        self._runner.begin(factory, first_number if games is None else games["offset"])
        return games is not None and self._runner.set_games(games, first_number)


def fresh_generation(state: dict[str, Any]) -> int:
    """Return a generation of games that a run has not played before, from its state."""
    return int(state["policy_updates"] % (STAGE // GENERATION))
