"""Who plays while recorded or labelled steps are learned from."""

from collections.abc import Mapping
from typing import Any

import torch

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.imitation.cloning import play_out
from multigrid_rl.imitation.dagger import LabellingCollector
from multigrid_rl.imitation.imitation_trainers import CloningTrain, DaggerTrain
from multigrid_rl.learn.batches import Experience
from multigrid_rl.runs.players import player_in_place_of
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.stages import Stage
from multigrid_rl.training.trainers import Metrics, Sampler, Weights
from multigrid_rl.types import EnvFactory, EpisodeTable


class PlayOuts(Sampler):
    """Samples nothing: the learner has its steps. After every ``play_every`` of them fresh episodes are played.

    Args:
        config: the run.
        stage: whose games are played.
        networks: by module.
    """

    def __init__(self, config: RunConfig, stage: Stage, networks: Mapping[str, Any]) -> None:
        assert isinstance(config.train, CloningTrain)
        self._run, self._stage, self._networks = config, stage, networks
        self._every, self._batch = config.train.cloning.play_every, config.train.batch_size
        self.env_steps = self.policy_updates = 0

    def sample(self) -> list[Experience]:
        """Return an experience without steps of its own, which counts as a batch of the budget."""
        return [Experience({}, {}, None, self._batch, {}, {})]

    def set_weights(self, weights: Weights) -> None:
        """Play with these weights from now on."""
        for name, tensors in weights.items():
            named = {key.removeprefix("net."): torch.as_tensor(value) for key, value in tensors.items()}
            self._networks[name].load_state_dict(named)

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Play fresh episodes, if it is time; the entropy over the visited states by module."""
        before = self.env_steps
        self.env_steps += sum(part.env_steps for part in experience)
        self.policy_updates += 1
        if self.env_steps // self._every == before // self._every:
            return None, {}
        episodes, entropies = self._play_out()
        return episodes, {f"entropy/{module}": value for module, value in entropies.items()}

    def last_episodes(self) -> EpisodeTable:
        """Return a play-out of its own, which changes no state."""
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
    """Plays a batch with a mixture of the learner and an expert, who labels every step. Arguments as above."""

    def __init__(self, config: RunConfig, stage: Stage, networks: Mapping[str, Any]) -> None:
        super().__init__(config, stage, networks)
        assert isinstance(config.train, DaggerTrain)
        factory, self._dagger = stage.factory, config.train.dagger
        expert = str(self._dagger.expert)
        experts = {agent.name: player_in_place_of(agent, expert, config) for agent in factory.specs.agents}
        self._experts = {name: row.sha256 for name, row in experts.items()}
        self._collector = LabellingCollector(
            factory.build(config.games_per_sampler, 0),
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
        self._collector.env.drain_episodes()  # partly the expert's, so no measure of the learner
        return [Experience(self._collector.labelled(), {}, None, self._batch, {}, {})]

    def finished(self, experience: list[Experience]) -> tuple[EpisodeTable | None, Metrics]:
        """Play fresh episodes of the learner alone, if it is time; the expert's share of this round, too."""
        episodes, told = super().finished(experience)
        return episodes, {**told, "dagger/beta": self._collector.beta}

    def get_state(self) -> dict[str, Any]:
        """Return the games that the expert labels, and the experts' sha256."""
        return {"games": {0: self._collector.get_state()}, "experts": self._experts}

    def set_state(self, state: dict[str, Any], factory: EnvFactory) -> bool:
        """Continue from a run's state. Raises ``ConfigError`` for another expert."""
        if state["experts"] != self._experts:
            wanted = f"the player of sha256 {', '.join(map(str, state['experts'].values()))}, as before"
            raise ConfigError(expected("expert", wanted, ", ".join(map(str, self._experts.values()))))
        self._collector.set_state(state["games"][0])
        return super().set_state(state, factory)
