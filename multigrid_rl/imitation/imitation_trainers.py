"""Trainers of cloning, DAgger, GAIL, AIRL and DAC, and their metrics. Torch is imported only when they train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from multigrid_rl.config.network import MAX_LAYERS, MAX_UNITS
from multigrid_rl.config.scenario import Part, Steps, env_signature
from multigrid_rl.config.schema import RunConfig, TrainConfig
from multigrid_rl.metrics import MetricGroup
from multigrid_rl.offpolicy.sac_trainer import SacTrain, SacTrainer
from multigrid_rl.runs.checkpoints import read_state, start_of
from multigrid_rl.runs.reader import read_provenance
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.trainers import Trainer

if TYPE_CHECKING:
    from multigrid_rl.imitation.demonstrations import Demonstrations
    from multigrid_rl.training.trainers import Sampler, Updater
    from multigrid_rl.types import MultiAgentSpec


class CloningOptions(Part):
    """Learning from recorded play."""

    held_out: float = Field(ge=0, lt=1)
    """share of the episodes that are kept out of training: their loss shows overfitting. More: a surer sign, less to
    learn from"""
    weight_decay: float = Field(ge=0)
    """AdamW's pull of all weights towards 0 (Loshchilov and Hutter 2019). Larger: simpler functions"""
    play_every: Steps
    """recorded or labelled steps between evaluations of the learner alone: scenario.report_episodes whole episodes,
    which decide the gates"""
    censored: bool = True
    """true: an action at a bound counts as any output beyond it, as bounds clip them (heads gaussian, mixture,
    deterministic). false: the plain density or error, as course texts have it"""
    patience: int | None = Field(ge=1)
    """end the run after this many evaluations in a row without a new lowest held-out loss. null: never"""


class DaggerOptions(Part):
    """Learning from an expert's labels."""

    expert: str | None
    """player, its folder or a run that labels every step; expert=key-runner for short. It must be named"""
    schedule: Literal["linear", "exponential"]
    """how the share of steps in which the expert acts falls from 1: linear or exponential"""
    rounds: int = Field(ge=1)
    """with schedule=linear: rounds after which the learner acts alone. More: labels nearer to the expert's own path"""
    base: float = Field(ge=0, lt=1)
    """with schedule=exponential: the share is base ** round. Higher: the expert acts for longer"""

    def beta(self, number: int) -> float:
        """Return the share of the steps in which the expert acts in round ``number``: 1 in round 0."""
        return max(0.0, 1 - number / self.rounds) if self.schedule == "linear" else self.base**number


class AdversarialOptions(Part):
    """Learning from a discriminator's rewards."""

    kind: Literal["gail", "airl"]
    """gail: D is a network of (s, a); airl: logit D = f - log pi"""
    hidden: tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...] = Field(min_length=1, max_length=MAX_LAYERS)
    """units of each hidden layer of the discriminator, with ReLU. More: can represent more, slower"""
    lr: float = Field(gt=0)
    """Adam step size of the discriminator. Higher: follows the policy faster, may become unstable"""
    steps: int = Field(ge=1)
    """gradient steps of the discriminator before each update of the policy. More: sharper rewards, but no gradient once
    it tells both apart perfectly"""
    minibatch_size: int = Field(ge=1)
    """rows of recorded play, and as many of the batch, in each of these steps. Smaller: noisier steps"""
    payoff: Literal["softplus", "logit", "f"]
    """the reward: softplus, -log(1 - D), near 0 once the discriminator tells both apart; logit, log D - log(1 - D),
    which also pays entropy with airl; f, airl's f alone"""
    gradient_penalty: float = Field(ge=0)
    """weight of (slope - 1)^2 of the reward between the policy's steps and recorded ones. More: smoother. 0: none"""
    temperature: float = Field(default=1.0, gt=0)
    """what D divides the reward by. Less: a reward of the same slopes tells steps apart more sharply"""
    allow_variable_horizon: bool
    """true: allow environments whose episodes end early; the horizon then leaks reward information"""

    @model_validator(mode="before")
    @classmethod
    def _drop_old_keys(cls, values: Any) -> Any:
        """Drop ``reward: null`` and ``replay: 0``, which older runs and recipes have."""
        options = values if isinstance(values, dict) else {}
        return {key: value for key, value in options.items() if value or key not in ("reward", "replay")} or values


class CloningTrain(TrainConfig):
    """Settings of ``train=bc``."""

    cloning: CloningOptions
    """how recorded or labelled play is learned from, with train=bc or dagger"""


class DaggerTrain(CloningTrain):
    """Settings of ``train=dagger``."""

    dagger: DaggerOptions
    """the expert that labels, and how often it acts, with train=dagger"""


class AdversarialTrain(TrainConfig):
    """Settings of ``train=gail`` and ``train=airl``."""

    adversarial: AdversarialOptions
    """how rewards are learned from recorded play, with train=gail, airl or dac"""


class DacTrain(SacTrain, AdversarialTrain):
    """Settings of ``train=dac``."""


class Imitation(Trainer):
    """Base of all trainers that learn from recorded play."""

    reads_data = True

    def check(self, config: RunConfig) -> None:
        """Check that there is a source to imitate, and that all settings work with recorded steps."""
        condition, has_expert = f"with train={config.train.trainer}", isinstance(config.train, DaggerTrain)
        wanted = f"a folder that `multigrid-rl data record` wrote, {condition}"
        config.require(config.data is not None or has_expert, "data", wanted, "null")
        memory = config.model.recurrent and (not has_expert or config.data is not None)
        config.require(not memory, "model", f"a network without memory {condition} and data", config.model.name)
        config.require(config.model.bound in (None, "clip"), "model.bound", f"clip {condition}")
        config.require(config.cluster.num_learners == 0, "cluster.num_learners", f"0 {condition}")

    def load(self, config: RunConfig, specs: MultiAgentSpec, before: Path | None) -> None:
        """Check the recorded play; its hash must be that of the run ``before``. Raises ``ConfigError``."""
        from multigrid_rl.imitation.demonstrations import read_demonstrations

        if config.data is None:
            return
        env = env_signature(config.scenario)
        found = [read_demonstrations(Path(config.data), specs.agent_of(module), env) for module in specs.modules]
        data_hash = found[0].card.sha256
        recorded_hash = read_provenance(before).get("data", {}).get("sha256") if before else data_hash
        if recorded_hash != data_hash:
            raise ConfigError(expected(f"data: {config.data}: sha256", f"{recorded_hash}, as before", data_hash))
        self._check_data(found[0], config)

    def _check_data(self, recorded: Demonstrations, config: RunConfig) -> None:
        """Raise ``ConfigError`` if this trainer cannot learn from the recorded play with these settings."""

    def describe(self, config: RunConfig, threads: str, games: str) -> list[str]:
        """Return lines of the preflight, the recorded play first."""
        from multigrid_rl.imitation.demonstrations import read_data_card

        data = [] if config.data is None else [f"data:     {read_data_card(Path(config.data)).summary()}"]
        return data + self._describe_play(config, threads, games)

    def _describe_play(self, config: RunConfig, threads: str, games: str) -> list[str]:
        return super().describe(config, threads, games)


class CloningTrainer(Imitation):
    """Learns from ``train.batch_size`` recorded steps in each iteration, which count as environment steps.

    After every ``play_every`` of them it plays fresh episodes, which are the finished episodes of its reports.
    """

    settings: type[TrainConfig] = CloningTrain
    brings = ("learner/*/cloning_loss", "learner/*/held_out_loss")
    learns_values = False
    unread = (*SacTrainer.unread, "gamma", "time_limits", "shaping", "bonus")
    counts = ("learned", "recorded")

    def check(self, config: RunConfig) -> None:
        """Check the requirements of cloning."""
        super().check(config)
        train, condition = config.train, f"with train={config.train.trainer}"
        runners = config.cluster.num_env_runners
        for key, valid, wanted, value in (
            ("scheme", config.scheme != "ctde", f"dtde or ctce {condition}: no critic is trained", config.scheme),
            ("curriculum", not config.curriculum, f"[] {condition}", "stages"),
            ("scenario.league", config.scenario.league is None, f"null {condition}", "settings"),
            ("cluster.num_env_runners", runners == 0, f"0 {condition}", runners),
            ("train.warm_up", not train.warm_up, f"0 {condition}: no values", train.warm_up),
        ):
            config.require(valid, key, wanted, value)
        self._check_settings(config, condition)

    def _check_settings(self, config: RunConfig, condition: str) -> None:
        train: Any = config.train
        allowed = f"1 {condition}: train.until sets how often data is passed over"
        config.require(train.epochs == 1, "train.epochs", allowed)
        valid = train.cloning.patience is None or train.cloning.held_out > 0
        config.require(valid, "train.cloning.patience", "null with train.cloning.held_out=0: there is no loss to watch")

    def _check_data(self, recorded: Demonstrations, config: RunConfig) -> None:
        from multigrid_rl.imitation.cloning import ShuffledReader

        assert isinstance(config.train, CloningTrain)
        ShuffledReader(recorded, config.train.cloning.held_out, config.seed)

    def _describe_play(self, config: RunConfig, threads: str, games: str) -> list[str]:  # noqa: ARG002
        train: Any = config.train
        often = f"every {train.cloning.play_every:,} {self.counts[1]} steps"
        lines = [
            f"playing:  {config.scenario.report_episodes} whole episodes {often}; gates go by them",
            f"{threads}, {train.batch_size:,} {self.counts[1]} steps an iteration, minibatches of {train.minibatch}",
        ]
        if any(gate.of_values for gate in config.scenario.gates):
            lines.append("gates:    all but that on explained_variance: no value network is trained")
        return lines

    def absent(self, config: RunConfig) -> dict[str, str]:
        """Return metrics that rows of cloning do not have, with the reason."""
        train: Any = config.train
        absent = super().absent(config)
        return absent if train.cloning.held_out else {**absent, "learner/*/held_out_loss": "no episodes are held out"}

    def updater(self, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, **options: Any) -> Updater:
        """Return the learner from recorded steps."""
        from multigrid_rl.imitation.cloning import Cloning

        assert isinstance(config.train, CloningTrain)
        return Cloning(networks, action_spaces, config.train, config.data, config.seed, options["device"])

    def sampler(self, config: RunConfig, stages: Any, networks: Mapping[str, Any]) -> Sampler:
        """Return the sampler that plays fresh episodes for the gates."""
        from multigrid_rl.imitation.dagger import PlayOuts

        return PlayOuts(config, stages[0], networks)

    def patience(self, config: RunConfig) -> tuple[str, int | None]:
        """Return the watched loss, and the number of play-outs without a new lowest value that ends the run."""
        train: Any = config.train
        return "held_out_loss", train.cloning.patience

    def beyond_plateau(self, train: TrainConfig) -> TrainConfig:
        """Return the settings without patience."""
        assert isinstance(train, CloningTrain)
        return train.model_copy(update={"cloning": train.cloning.model_copy(update={"patience": None})})


class DaggerTrainer(CloningTrainer):
    """Plays ``train.batch_size`` steps in each iteration, has an expert label them, and learns from all labels."""

    settings = DaggerTrain
    brings = ("learner/*/cloning_loss", "dagger/*")
    counts = ("played", "environment")

    def _check_settings(self, config: RunConfig, condition: str) -> None:
        train: Any = config.train
        wanted = f"a player, its folder or a run, {condition}"
        config.require(train.dagger.expert is not None, "expert", wanted, "null")
        wanted = f"0 {condition}: all labels are learned from"
        config.require(not train.cloning.held_out, "train.cloning.held_out", wanted)
        wanted = f"null {condition}: nothing is held out"
        config.require(train.cloning.patience is None, "train.cloning.patience", wanted)

    def load(self, config: RunConfig, specs: MultiAgentSpec, before: Path | None) -> None:
        """Check the expert, too; it must be that of the run ``before``."""
        from multigrid_rl.runs.players import player_in_place_of

        super().load(config, specs, before)
        train: Any = config.train
        found = {agent.name: player_in_place_of(agent, train.dagger.expert, config).sha256 for agent in specs.agents}
        start = before and start_of(before, log=False)
        if start and start.env_steps and (known := read_state(start.path)["experts"]) != found:
            wanted, got = (", ".join(map(str, hashes.values())) for hashes in (known, found))
            raise ConfigError(expected("expert", f"the player of sha256 {wanted}, as before", got))

    def _describe_play(self, config: RunConfig, threads: str, games: str) -> list[str]:
        train: Any = config.train
        expert = f"expert:   {train.dagger.expert} labels every step of {train.num_envs} {games}"
        return [expert, *super()._describe_play(config, threads, games)]

    def updater(self, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, **options: Any) -> Updater:
        """Return the learner from all labels."""
        from multigrid_rl.imitation.dagger import Dagger

        assert isinstance(config.train, DaggerTrain)
        return Dagger(networks, action_spaces, config.train, config.data, config.seed, options["device"])

    def sampler(self, config: RunConfig, stages: Any, networks: Mapping[str, Any]) -> Sampler:
        """Return the sampler that plays and has the expert label each step."""
        from multigrid_rl.imitation.dagger import Labelling

        return Labelling(config, stages[0], networks)


class AdversarialTrainer(Imitation):
    """Learns by the rewards of a discriminator between the policy's steps and recorded ones."""

    settings: type[TrainConfig] = AdversarialTrain
    unread: tuple[str, ...] = ("shaping", "bonus")
    brings = (*Trainer.brings, "learner/*/learnt_reward", "learner/*/discriminator_*")

    def check(self, config: RunConfig) -> None:
        """Check inputs and rewards of discriminators."""
        Trainer.check(self, config)
        super().check(config)
        train: Any = config.train
        condition = f"with train={train.trainer}"
        allowed = f"one of Gymnasium {condition}: discriminators read vectors"
        config.require(config.scenario.kind.discriminators, "scenario", allowed, config.scenario.name)
        config.require(train.vf_coef > 0, "train.vf_coef", f"above 0 {condition}")
        payoffs = ("logit", "f") if train.adversarial.kind == "airl" else ("softplus", "logit")
        wanted = f"{' or '.join(payoffs)} with kind={train.adversarial.kind}"
        config.require(train.adversarial.payoff in payoffs, "train.adversarial.payoff", wanted)

    def facts(self, train: Any) -> list[tuple[str, str]]:
        """Return a description of the training reward."""
        return [("imitation", f"{train.adversarial.kind}, what a discriminator takes for recorded play")]

    def _check_data(self, recorded: Demonstrations, config: RunConfig) -> None:
        from multigrid_rl.imitation.adversarial import AdversarialConfig, check_horizon

        check_horizon("demonstrations", recorded.terminated, AdversarialConfig.of(config), ConfigError)

    def recomputes(self, config: RunConfig) -> bool:  # noqa: ARG002
        """Return true: the rewards of a batch are computed after it was played."""
        return True

    def updater(self, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, **options: Any) -> Updater:
        """Return an update with learned rewards."""
        from multigrid_rl.imitation.adversarial import AdversarialUpdate

        return AdversarialUpdate.of(config, networks, action_spaces, **options)


class DacTrainer(AdversarialTrainer, SacTrainer):
    """Soft actor-critic with the rewards of a discriminator that also learns from the replay buffer."""

    settings = DacTrain
    unread = (*SacTrainer.unread, *AdversarialTrainer.unread)
    brings = (*SacTrainer.brings, "learner/*/discriminator_*")

    def check(self, config: RunConfig) -> None:
        """Check the requirements of both."""
        SacTrainer.check(self, config)
        super().check(config)

    def updater(self, config: RunConfig, networks: Mapping[str, Any], action_spaces: Any, **options: Any) -> Updater:  # noqa: ARG002
        """Return the learner from replayed and recorded steps."""
        from multigrid_rl.imitation import adversarial, dac, demonstrations

        settings = adversarial.AdversarialConfig.of(config)
        data = demonstrations.read_demonstrations(Path(str(config.data)))
        return dac.Dac(settings, data, networks, config.train, config.seed, options["device"])


METRICS = MetricGroup(
    {
        "dagger/beta": ("probability that the expert acted in a step of this round", "share"),
        "dagger/labels": (
            "steps that the expert labelled so far, over all modules, and recorded ones it began with",
            "count",
        ),
        "learner/<module>/cloning_loss": (
            "what cloning minimises, mean over the iteration: minus the log-probability of what was recorded",
            "loss",
        ),
        "learner/<module>/held_out_loss": (
            "the same at the end of the iteration, on episodes that are held out",
            "loss",
        ),
        "learner/<module>/discriminator_loss": (
            "cross entropy of the discriminator between recorded steps and the batch's, last of its gradient steps",
            "nats",
        ),
        "learner/<module>/discriminator_accuracy": ("share of these steps that it classified correctly", "share"),
        "learner/<module>/learnt_reward": ("mean reward over the batch that the discriminator paid", "reward"),
    }
)
CLONING, DAGGER, ADVERSARIAL, DAC = CloningTrainer(), DaggerTrainer(), AdversarialTrainer(), DacTrainer()
