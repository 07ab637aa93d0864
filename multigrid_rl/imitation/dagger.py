"""DAgger (Ross et al. 2011, https://arxiv.org/abs/1011.0686): an expert labels the states that the learner visits.

A mixture acts: with probability beta it takes the expert's action, else the learner's. Every visited step gets the
expert's action as its label, and labels are aggregated over all rounds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.imitation.cloning import Cloning, play_out
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.imitation.imitation_trainers import CloningTrain, DaggerTrain
from multigrid_rl.learn.batches import Batch, Experience, Paths
from multigrid_rl.learn.rollout import StepCollector
from multigrid_rl.learn.turns import TurnCollector
from multigrid_rl.models.vector import Moments
from multigrid_rl.players.episodes import seat_for_agent
from multigrid_rl.runs.players import player_in_place_of
from multigrid_rl.streams import LEARNER_PURPOSE, Streams, purpose_of
from multigrid_rl.training.stages import Stage
from multigrid_rl.training.trainers import Metrics, Sampler, Weights
from multigrid_rl.types import BatchedStep, EnvFactory, EpisodeTable, Policy

Array = NDArray[Any]
#: First purposes of random streams, for the experts and for the mixture; they follow those of the first 16 learners.
_EXPERTS, _MIXTURE, _ROOM = LEARNER_PURPOSE + 16, LEARNER_PURPOSE + 32, 16


class LabelledSteps(NamedTuple):
    """Visited steps with the expert's labels: one row per step or, for a network with memory, per sequence."""

    obs: Array  # (R, D) or (R, T, D)
    actions: Array  # (R, C) or (R, T, C): the expert's
    active: Array  # (R,) or (R, T) bool: the agent was in the game
    memory: Array  # (R, S) before the first step; S = 0 without memory
    starts: Array  # (R, T) bool: a new episode begins with this step; T = 0 without memory


class LabellingCollector(StepCollector):
    """A collector in which an expert acts in a share of the steps and labels all of them.

    ``experts``: by agent; other arguments as for ``StepCollector``.

    Attributes:
        beta: probability that a step's action is the expert's.
        labels: the experts' actions (T, N, C) in the steps of the last rollout, by agent.
    """

    def __init__(self, *arguments: Any, experts: Mapping[str, Policy], **options: Any) -> None:
        super().__init__(*arguments, **options)
        count, (seed, first) = self.env.num_envs, (options["seed"], options["first"])
        numbers = np.arange(first, first + count, dtype=np.int64)
        self.beta = 1.0
        self.labels = {name: np.empty_like(rollout.actions) for name, rollout in self.rollouts.items()}
        self._experts, self._mixture, self._streams = {}, {}, list[Streams]()
        room = _ROOM if len(self.agents) <= _ROOM else 0
        for k, (name, agent) in enumerate(self.agents.items()):
            expert, mixture = (Streams(seed, numbers, purpose_of(kind, k, room)) for kind in (_EXPERTS, _MIXTURE))
            self._experts[name], self._mixture[name] = seat_for_agent(agent, experts[name], self.env, expert), mixture
            self._streams += [self._experts[name].streams, mixture]

    def _act(self, name: str, t: int, obs: Array) -> Array:
        action = super()._act(name, t, obs)
        label = self._experts[name].act(self.rollouts[name].obs[t])
        by_expert = self._mixture[name].uniform(1) < self.beta
        taken: Array = np.where(by_expert, label, action)
        self.labels[name][t] = label
        return taken

    def _store(self, t: int, step: BatchedStep) -> None:
        super()._store(t, step)
        for expert in self._experts.values():
            expert.restart(step.done)

    def labelled(self) -> dict[str, Batch]:
        """Return copies of the last rollout's steps with the experts' actions, by agent; values are empty."""
        result = {}
        for name, rollout in self.rollouts.items():
            obs, labels, mask, memory, starts = rollout.rows((rollout.obs, self.labels[name], rollout.mask))
            empty = np.empty((len(obs), 0), np.float32)
            result[name] = Batch(obs, labels, mask, *(empty,) * 5, memory, starts)
        return result

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments, learners and experts."""
        memories = {name: expert.memory for name, expert in self._experts.items()}
        return {**super().get_state(), "experts": (memories, [stream.state.copy() for stream in self._streams])}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for other agents or environments."""
        super().set_state(state)
        memories, numbers = state["experts"]
        for name, memory in memories.items():
            self._experts[name].memory = memory
        for stream, saved in zip(self._streams, numbers, strict=True):
            stream.state[:] = saved


class LabellingTurnCollector(LabellingCollector, TurnCollector):
    """The same where agents come and go: labels replace the rollout's actions, so that they move with their rows."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.labels = {name: rollout.actions for name, rollout in self.rollouts.items()}


class Dagger(Cloning):
    """Learns from all labelled steps so far, each network from those of its module; every round draws new rows.

    Arguments as in :class:`~multigrid_rl.imitation.cloning.Cloning`.
    """

    def _open(self) -> None:
        self.known: dict[str, LabelledSteps] = {}
        self._moments: dict[str, Moments] = {}
        if self._data is not None:
            data = read_demonstrations(Path(self._data))
            empty = np.empty((data.card.rows, 0), np.float32)
            active, starts = np.ones(data.card.rows, np.bool_), empty.astype(np.bool_)
            for name, distribution in self._distributions.items():
                actions = data.actions.astype(distribution.dtype)
                self.add({name: LabelledSteps(data.observations, actions, active, empty, starts)})

    def learn(
        self, batches: Mapping[str, Batch], env_steps: int, paths: Mapping[str, list[Paths]] | None = None
    ) -> dict[str, dict[str, float]]:
        """Add labelled steps, then learn from all labels; see ``Cloning.learn``."""
        labels = self.add(
            {name: LabelledSteps(b.obs, b.actions, b.active, b.memory, b.starts) for name, b in batches.items()}
        )
        if self._networks.keys() - self.known.keys():
            return {}  # the first decision of one of them is not over yet
        metrics = super().learn({}, env_steps, paths)
        for name in self._networks:
            metrics[name]["dagger/labels"] = float(labels)
        return metrics

    def begin_with(self, weights: Mapping[str, Mapping[str, Tensor]], rows: int) -> None:
        """Load initial ``weights``, by module; their normalisers count as statistics of ``rows`` observations."""
        super().begin_with(weights, rows)
        for name, normaliser in self._normalisers.items():
            if name in weights:
                self._moments[name] = Moments(len(normaliser.mean))
                self._moments[name].take(normaliser, rows)

    def add(self, labelled: Mapping[str, LabelledSteps]) -> int:
        """Add labelled steps, by module, and update the normalisers; returns the number of steps."""
        for name, rows in labelled.items():
            parts = [self.known[name], rows] if name in self.known else [rows]
            self.known[name] = LabelledSteps._make(map(np.concatenate, zip(*parts, strict=True)))
            if (normaliser := self._normalisers.get(name)) is not None:
                moments = self._moments.setdefault(name, Moments(len(normaliser.mean)))
                moments.add(rows.obs[rows.active])
                normaliser.set_statistics(moments.mean, moments.std)
        return sum(int(rows.active.sum()) for rows in self.known.values())

    def get_state(self) -> dict[str, Any]:
        """Return the state without weights and optimisers: all labelled steps."""
        all_moments = {name: dict(vars(moments)) for name, moments in self._moments.items()}
        return {"known": {name: tuple(rows) for name, rows in self.known.items()}, "seen": all_moments}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.known = {name: LabelledSteps(*columns) for name, columns in state["known"].items()}
        for name, values in state["seen"].items():
            self._moments[name] = Moments(len(values["mean"]))
            vars(self._moments[name]).update(values)

    def held_out_losses(self) -> dict[str, float]:
        """Return an empty mapping: no step is held out."""
        return {}

    def _rows(self, name: str, position: int) -> LabelledSteps:
        known = self.known[name]
        steps = known.starts.shape[1] or 1
        rng = np.random.default_rng((self._seed, 4, position))
        chosen = rng.integers(0, len(known.obs), -(-self._train.batch_size * self._train.epochs // steps))
        return LabelledSteps._make(column[chosen] for column in known)

    def losses(self, name: str, rows: Any) -> Tensor:
        """Return the cloning loss of each active step."""
        net = self._networks[name]
        if not net.state_size:
            return super().losses(name, rows)
        obs, memory, starts = (torch.as_tensor(c, device=self._device) for c in (rows.obs, rows.memory, rows.starts))
        outputs, _ = net.sequence(obs, memory, starts)
        active = torch.as_tensor(rows.active.reshape(-1), device=self._device)
        return self._loss(name, outputs, rows.actions.reshape(-1, rows.actions.shape[-1]))[active]


class PlayOuts(Sampler):
    """Samples no steps, since they are recorded; plays fresh episodes after every ``play_every`` recorded steps."""

    def __init__(self, config: RunConfig, stage: Stage, networks: Mapping[str, Any]) -> None:
        assert isinstance(config.train, CloningTrain)
        self._run, self._stage, self._networks = config, stage, networks
        self._every, self._batch = config.train.cloning.play_every, config.train.batch_size
        self.env_steps = self.policy_updates = 0

    def sample(self) -> list[Experience]:
        """Return an experience without steps, which counts as one batch of the budget."""
        return [Experience({}, {}, None, self._batch, {}, {})]

    def set_weights(self, weights: Weights) -> None:
        """Play with these weights from now on."""
        for name, tensors in weights.items():
            named = {key.removeprefix("net."): torch.as_tensor(value) for key, value in tensors.items()}
            self._networks[name].load_state_dict(named)

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Play fresh episodes every ``play_every`` steps; also return the entropy over visited states by module."""
        before = self.env_steps
        self.env_steps += sum(part.env_steps for part in experience)
        self.policy_updates += 1
        if self.env_steps // self._every == before // self._every:
            return None, {}
        episodes, entropies = self._play_out()
        return episodes, {f"entropy/{module}": value for module, value in entropies.items()}

    def last_episodes(self) -> EpisodeTable:
        """Return the episodes of an extra play-out, which changes no state."""
        return self._play_out()[0]

    def _play_out(self) -> tuple[EpisodeTable, Metrics]:
        config = self._run
        return play_out(
            self._stage.factory,
            self._networks,
            self._stage.scenario.report_episodes,
            num_envs=config.games_per_sampler,
            first=self.policy_updates * config.games_per_sampler,
            seed=config.seed,
            bound=config.model.bound,
        )

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:  # noqa: ARG002 - the games are the same
        """Continue from a run's state."""
        self.env_steps, self.policy_updates = state["env_steps"], state["policy_updates"]
        return True


class Labelling(PlayOuts):
    """Plays batches with a mixture of the learner and an expert, which labels every step. Arguments as above."""

    def __init__(self, config: RunConfig, stage: Stage, networks: Mapping[str, Any]) -> None:
        super().__init__(config, stage, networks)
        assert isinstance(config.train, DaggerTrain)
        factory, self._dagger = stage.factory, config.train.dagger
        expert = str(self._dagger.expert)
        experts = {agent.name: player_in_place_of(agent, expert, config) for agent in factory.specs.agents}
        self._experts = {name: row.sha256 for name, row in experts.items()}
        env = factory.build(config.games_per_sampler, 0)
        kind = LabellingTurnCollector if hasattr(env, "deciding") else LabellingCollector
        self._collector = kind(
            env,
            factory.specs,
            networks,
            seed=config.seed,
            first=0,
            steps=config.train.num_steps,
            bound=config.model.bound,
            experts={name: row.player for name, row in experts.items()},
        )

    def sample(self) -> list[Experience]:
        """Play a batch; returns it with the expert's actions."""
        self._collector.beta = self._dagger.beta(self.policy_updates)
        self._collector.collect()
        self._collector.env.drain_episodes()  # dropped: the expert played a part of them
        return [Experience(self._collector.labelled(), {}, None, self._batch, {}, {})]

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Play fresh episodes of the learner alone, as above; also return the expert's share of this round."""
        episodes, metrics = super().finished(experience)
        return episodes, {**metrics, "dagger/beta": self._collector.beta}

    def get_state(self) -> dict[str, Any]:
        """Return the state of the labelled games, and the experts' sha256."""
        return {"games": {0: self._collector.get_state()}, "experts": self._experts}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:
        """Continue from a run's state."""
        self._collector.set_state(state["games"][0])
        return super().set_state(state, factory)
