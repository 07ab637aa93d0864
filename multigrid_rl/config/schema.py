"""Schema of a run's configuration: names, types, bounds, and rules between keys.

Values are in yaml below ``configs/``; a test checks that both have the same keys. The string below a field is the
meaning of its key, from which `make reference-pages` writes the comments in yaml and docs/cli.md.
"""

import math
import re
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from multigrid_rl.config.network import PSI, WITHOUT_VALUES, ModelConfig, UpdateKeys, networks_with
from multigrid_rl.config.scenario import Part, ScenarioConfig, Steps, as_integer
from multigrid_rl.cores import available_cpus
from multigrid_rl.tables import SECTIONS, TRACKERS, entries, find
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.trust import CODE


class TrainConfig(UpdateKeys):
    """PPO and its batch."""

    name: str = ""
    """name of the file in configs/train/, filled in; empty in runs older than this key"""
    until: Steps
    """the budget in environment steps (bc: recorded steps; dagger: labelled ones), at least one batch; the run ends
    with the batch that reaches it. Same as --until"""
    stop_when_held: bool
    """true: end the run once every gate is held"""
    trainer: str = "ppo"
    """who samples and who learns: ppo, sac, bc, dagger, gail, airl or dac; train=NAME sets it with all that it needs"""
    objective: str = "ppo"
    """what the policy maximises: ppo (clipped surrogate), policy_gradient (log pi(a|s) Psi, nothing is clipped), or
    module:function"""
    value_loss: str = "squared"
    """what the values minimise: squared error, clipped (PPO2's, CleanRL's clip-vloss; by train.clip), or
    module:function"""
    psi: str = "gae"
    """what weighs log pi(a|s): total_reward, future_return, baselined_return, q, gae or td (docs/control.md), or
    module:function, which estimates advantages and targets of values"""
    standardise: bool = True
    """true: scale the weights psi of each batch to zero mean and unit variance"""
    num_envs: int = Field(ge=1)
    """games played side by side, over all env runners. More: faster sampling, larger batch"""
    num_steps: int = Field(ge=1)
    """steps of each game in one batch. More: longer credit, larger batch, staler data"""
    epochs: int = Field(ge=1)
    """passes over each batch. More: better use of samples, slower, risk of overshooting"""
    pi_iters: int | None = Field(default=None, ge=1)
    """passes of the policy alone, before v_iters passes of the values alone. More: learns more from each batch, may
    overfit it. null: `epochs` passes of both together"""
    v_iters: int | None = Field(default=None, ge=1)
    """passes of the values alone, with an Adam of their own. More: values follow more closely, slower. null: with the
    policy"""
    v_lr: float | None = Field(default=None, gt=0)
    """Adam step size of these passes; falls as lr does. null: as lr"""
    recompute: bool = False
    """true: compute advantages anew before each pass but the first. Fresher, slower"""
    time_limits: Literal["bootstrap", "death"] = "bootstrap"
    """where a time limit ends an episode: bootstrap from the value of the last observation, or death, as if it had
    failed (biased; for studies)"""
    target_kl: float | None = Field(default=None, gt=0)
    """end an update once a minibatch has moved the policy by 1.5 times this KL divergence. null: never"""
    minibatch_size: int | None = Field(default=None, ge=1)
    """rows of one gradient step. Smaller: more and noisier steps. null: the whole batch"""
    lr: float = Field(gt=0)
    """Adam step size at the start (bc, dagger: AdamW). Higher: learns faster, or not at all"""
    lr_final: float | None = Field(default=None, ge=0)
    """Adam step size at `until`; linear in between. null: as lr, constant"""
    gamma: float = Field(gt=0, le=1)
    """discount per step. Higher: looks further ahead, noisier"""
    lam: float = Field(ge=0, le=1)
    """GAE lambda, of psi=gae, q and td. Higher: less bias, more variance"""
    clip: float = Field(gt=0)
    """PPO ratio clip. Higher: larger policy steps"""
    clip_final: float | None = Field(default=None, gt=0)
    """PPO ratio clip at `until`; linear in between. null: as clip, constant"""
    vf_coef: float = Field(ge=0)
    """weight of the value loss. Higher: values get more of each clipped gradient. 0: none are trained"""
    entropy_coef: float = Field(ge=0)
    """weight of the entropy bonus at the start. Higher: explores longer"""
    entropy_final: float | None = Field(default=None, ge=0)
    """weight of the entropy bonus once `entropy_decay` steps are played; linear in between. null: as entropy_coef"""
    entropy_decay: Steps
    """environment steps over which the entropy bonus changes. More: explores longer"""
    grad_clip: float = Field(gt=0)
    """largest global norm of one gradient; a larger one is scaled down to it. Higher: larger single steps"""
    torch_threads: int = Field(ge=0)
    """threads of torch's own operations, for networks that have no compiled passes. More: faster on a free machine,
    much slower on a busy one. 0: all cores left"""
    threads: Literal["auto", 1, 2] = "auto"
    """threads of one pass through a network: 1, 2, or auto, two while a second core is free. No result depends on it"""
    compiled: bool = True
    """false: torch alone computes networks and losses, step by step, for a debugger and as the reference. Slower"""
    shaping: str | None = None
    """module:function of a training reward. null: the environment's own, which gates and scores always use"""
    bonus: dict[str, dict[str, float]] = Field(default_factory=dict)
    """weights on events added to the training reward, by seat or all: {all: {key_pickup: 1.0, step: -0.01}}"""
    checkpoint_every: Steps
    """environment steps between checkpoints, or 60 s, whichever comes first; one more is written at the end. More: less
    disk, more lost when killed"""
    keep_checkpoints: int = Field(default=3, ge=1)
    """how many of the newest checkpoints stay, beside the one with the best gate margin. The others are removed"""
    warm_up: Annotated[int, Field(ge=0), BeforeValidator(as_integer)] = 0
    """with init: environment steps in which the values alone learn. More: lets the critic catch up before the
    pretrained policy changes"""

    @field_validator("psi")
    @classmethod
    def _check_psi(cls, value: str) -> str:
        if value not in PSI and not CODE.fullmatch(value):
            raise ValueError(expected("psi", f"{', '.join(PSI)} or module:function", value).partition(": ")[2])
        return value

    @property
    def functions(self) -> dict[str, str]:
        """Values that may name a user's function, by key."""
        return {f"train.{key}": getattr(self, key) for key in ("objective", "value_loss", "psi")}

    @property
    def batch_size(self) -> int:
        """Environment steps of one iteration: ``num_envs * num_steps``."""
        return self.num_envs * self.num_steps

    @property
    def env_steps(self) -> int:
        """Environment steps after the last update: whole batches, so up to one batch more than ``until``."""
        return math.ceil(self.until / self.batch_size) * self.batch_size

    @property
    def minibatch(self) -> int:
        """Steps of one agent in one gradient step; the whole batch if ``minibatch_size`` is null."""
        return self.minibatch_size or self.batch_size

    @property
    def passes(self) -> int:
        """Passes of the policy over a batch."""
        return self.epochs if self.pi_iters is None else self.pi_iters


class ClusterConfig(Part):
    """Where games are played and gradients computed."""

    address: str | None = None
    """Ray cluster to use: auto, host:port or ray://host:port. null: a session of this machine alone"""
    num_env_runners: int | Literal["all"] = 0
    """0: the driver process samples. n: n remote Ray actors share num_envs games. all: as many as the cluster has CPUs
    for. More: faster where cores are free"""
    num_learners: int = Field(default=0, ge=0, le=64)
    """0: the driver process learns. n: n remote Ray actors share every minibatch; rows have the losses of the first"""
    gpus_per_learner: float = Field(default=0, ge=0, le=1)
    """share of a GPU for each learner; with num_learners 0, for the driver's"""
    sample_timeout_s: float = Field(default=120, gt=0)
    """seconds after which an env runner that has not delivered its part counts as lost. Less: lost nodes are noticed
    sooner, slow ones lost too"""
    max_consecutive_failures: int = Field(default=5, ge=1)
    """the run stops once one env runner was lost this often without a rollout in between. More: bears worse nodes"""

    @field_validator("num_env_runners", mode="plain")
    @classmethod
    def _check_num_env_runners(cls, value: Any) -> Any:
        if value == "all" or (type(value) is int and value >= 0):
            return value
        raise ValueError("expected a whole number of at least 0, or all with a cluster.address")

    @property
    def runners(self) -> int:
        """Remote env runners, a number. Raises :class:`ConfigError` while it is still ``all``."""
        if isinstance(self.num_env_runners, str):
            wanted = "a number before a cluster has reported its CPUs"
            raise ConfigError(expected("cluster.num_env_runners", wanted, self.num_env_runners))
        return self.num_env_runners


class StageConfig(Part):
    """A stage of a curriculum, before the run's scenario: its game and its end."""

    scenario: ScenarioConfig
    """the scenario of this stage, in which the same seats learn. Left out: the run's own; `seats` beside it changes who
    plays"""
    steps: Steps | None = None
    """environment steps after which the stage ends. null: by held alone"""
    held: bool = False
    """true: the stage ends when its gates are held"""

    @model_validator(mode="after")
    def _ends(self) -> "StageConfig":
        if self.steps is None and not self.held:
            raise ValueError(f"expected steps: N, held: true, or both for the stage on {self.scenario.name}")
        if self.held and not self.scenario.gates:
            raise ValueError(expected("held", f"steps: N, as {self.scenario.name} has no gates", "held: true"))
        return self


class RunConfig(Part):
    """Everything that decides a run."""

    scenario: ScenarioConfig
    """a file of configs/scenario/ or your own: the game, who sits where, the gates"""
    train: SerializeAsAny[TrainConfig]
    """a file of configs/train/: the algorithm and its batch"""
    model: ModelConfig
    """a file of configs/model/: the network"""
    cluster: ClusterConfig
    """a file of configs/cluster/: where games are played and gradients computed"""
    curriculum: tuple[StageConfig, ...] = ()
    """stages before `scenario`, which end at steps, or when their gates are held: [{scenario: 1v1, seats: {blue_0:
    random}, steps: 200000, held: true}]"""
    scheme: Literal["dtde", "ctde", "ctce"]
    """dtde: each agent on its own; ctde: critics see the whole team; ctce: the team is one agent"""
    shared: bool
    """true: all learning agents of a team play one network (dtde, ctde)"""
    experiment: str | None = None
    """a recipe of configs/recipe/, ladder/ or study/, or a file. null: the scenario's own, if it has one; none: no
    recipe"""
    seed: int = Field(ge=0, lt=2**31)
    """the same seed gives the same run on the same machine and versions"""
    run_dir: str | None = None
    """folder of this run; must not exist yet. null: runs/<scenario>/<time>-seed<seed>"""
    checkpoints: str | None = None
    """folder of frozen players. null: your own, then the project's checkpoints/ (docs/extending.md)"""
    data: str | None = None
    """folder of recorded play to learn from (`multigrid-rl data record`), with train=bc, dagger, gail, airl or dac"""
    init: str | None = None
    """player, its folder or run whose policy and normaliser training begins with. null: fresh ones"""
    tracking: str | None = None
    """csv, web, tensorboard-media, wandb, mlflow or module:Class, with commas: where rows go, too. null: nowhere"""

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of trackers: entries of ``tables.TRACKERS`` or ``module:Class``."""
        return tuple(re.findall(r"[^\s,\[\]\"']+", self.tracking or ""))

    @field_validator("train", mode="before")
    @classmethod
    def _by_trainer(cls, values: Any) -> Any:
        """Validate ``train`` by the settings of its trainer; files older than ``train.trainer`` are accepted."""
        if not isinstance(values, dict):
            return values
        runner = (values := dict(values)).pop("runner", "batched")
        if runner != "batched":
            wanted = "no such key: train again without it, or run RLlib's own by `python -m benchmarks.stock`"
            raise ValueError(expected("runner", wanted, runner))
        others = [name for section, name in SECTIONS.items() if values.get(section) is not None]
        values.setdefault("trainer", next(iter(others), "ppo"))
        settings = trainer_of(str(values["trainer"])).settings
        known = {key: value for key, value in values.items() if value is not None or key not in SECTIONS}
        return settings.model_validate(known)

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        train, model = self.train, self.model
        self.require(bool(self.scenario.kind.learning), "scenario.seats", "learn on at least one seat")
        choices = ", ".join([*TRACKERS, "module:Class or several with commas"])
        for name in self.trackers:
            self.require(name in TRACKERS or CODE.fullmatch(name) is not None, "tracking", choices, name)
        self._check_scheme()
        self._check_objective()
        trainer = trainer_of(train.trainer)
        trainer.check(self)
        self.require(self.data is None or trainer.reads_data, "data", f"null with train={train.name or train.trainer}")
        self.require(self.init is not None or not train.warm_up, "train.warm_up", "0 without init")
        allowed = f"0 with model={model.name}, whose values share its policy"
        self.require(model.entry.towers or not train.warm_up, "train.warm_up", allowed)
        self._check_cluster()
        self._check_curriculum()
        allowed = f"at most num_envs * num_steps = {train.batch_size}"
        self.require(trainer.replays or train.minibatch <= train.batch_size, "train.minibatch_size", allowed)
        activations = model.entry.activations
        allowed = f"{' or '.join(activations or ())} with model={model.name}"
        self.require(activations is None or model.activation in activations, "model.activation", allowed)
        if model.recurrent:
            allowed = f"a multiple of num_steps={train.num_steps} for a network with memory"
            self.require(train.minibatch % train.num_steps == 0, "train.minibatch_size", allowed)
            self.require(len(model.hidden) == 1, "model.hidden", "one size for a recurrent core", list(model.hidden))
        return self

    def require(self, condition: bool, key: str, allowed: str, value: Any = None) -> None:
        """Raise ``ConfigError`` for ``key`` unless ``condition``; ``value``: reported in place of the key's value."""
        if not condition:
            got = reduce(getattr, key.split("."), self) if value is None else value
            raise ConfigError(expected(key, allowed, got))

    def _check_scheme(self) -> None:
        valid = self.scheme != "ctde" or self.model.entry.central
        self.require(valid, "model", f"{networks_with('central')} with scheme=ctde", self.model.name)
        scenario = self.scenario
        learning = list(scenario.kind.learning.values())
        if self.scheme != "dtde":
            for team in dict.fromkeys(learning):
                mates = scenario.kind.seats_of(team)
                all_learn = all(seat in scenario.kind.learning for seat in mates)
                self.require(len(mates) > 1, "scheme", f"dtde, as {team} of {scenario.name} has one agent")
                self.require(all_learn, "scheme", f"dtde, as not every agent of team {team} learns")
        if self.shared:
            self.require(self.scheme != "ctce", "shared", "false, as under ctce a team is one agent")
            several = len(set(scenario.kind.sharing.values())) < len(scenario.kind.sharing)
            self.require(several, "shared", f"false, as no team of {scenario.name} has two agents that learn")

    def _check_objective(self) -> None:
        train, model = self.train, self.model
        for key, default in UpdateKeys():
            valid = train.trainer == "ppo" or getattr(train, key) == default
            without = "null" if default is None else default
            self.require(valid, f"train.{key}", f"{without} with train.trainer={train.trainer}")
        self.require(train.kl_coef is None or model.head is None, "train.kl_coef", f"null with model.head={model.head}")
        self.require(train.v_lr is None or train.lr_schedule is None, "train.v_lr", "null with lr_schedule")
        for name in train.modules:
            self.model_copy(update={"train": train.of(name)})._check_objective()
        if train.vf_coef == 0:
            allowed = f"{' or '.join(WITHOUT_VALUES)} with vf_coef=0: no value network is trained"
            self.require(train.psi in WITHOUT_VALUES or ":" in train.psi, "train.psi", allowed)
            self.require(train.v_iters is None, "train.v_iters", "null with vf_coef=0")
            self.require(not train.recompute, "train.recompute", "false with vf_coef=0")
        split = train.v_iters is not None
        consistent = (train.pi_iters is None) == (train.v_iters is None) or train.vf_coef == 0
        self.require(consistent, "train.v_iters", "a number with pi_iters, null without")
        self.require(train.v_lr is None or split, "train.v_lr", "null without v_iters")
        self.require(model.entry.towers or not split, "train.v_iters", f"null with model={model.name}: not two towers")
        allowed = f"null with scenario={self.scenario.name}: networks over tokens share their first layer"
        self.require(self.scenario.kind.vectors or not split, "train.v_iters", allowed)
        self.require(not (train.recompute and model.recurrent), "train.recompute", f"false with model={model.name}")

    def _check_cluster(self) -> None:
        train, cluster, model = self.train, self.cluster, self.model
        runners = cluster.num_env_runners
        kind, condition = self.scenario.kind, f"with scenario={self.scenario.package}"
        self.require(kind.remote or runners == 0, "cluster.num_env_runners", f"0 {condition}")
        self.require(kind.memory or not model.recurrent, "model", f"a network without memory {condition}", model.name)
        if isinstance(runners, str):
            self.require(cluster.address is not None, "cluster.num_env_runners", "a number without cluster.address")
        else:
            cpus = available_cpus()
            fits = runners <= cpus or cluster.address is not None
            self.require(fits, "cluster.num_env_runners", f"0 to {cpus}, the CPUs of this machine")
            shares = max(runners, 1)
            self.require(train.num_envs % shares == 0, "train.num_envs", f"a multiple of {shares} env runners")
        learners = max(cluster.num_learners, 1)
        allowed = f"what {learners} learners can share equally"
        self.require(self.rows_per_minibatch % learners == 0, "train.minibatch_size", allowed)

    def _check_curriculum(self) -> None:
        scenario = self.scenario
        league = [stage.scenario for stage in self.curriculum if stage.scenario.league is not None or scenario.league]
        self.require(not league, "curriculum", "[] with a league", f"stages before scenario={scenario.name}")
        for k, stage in enumerate(self.curriculum):
            key, other = f"curriculum.{k}.scenario", stage.scenario
            self.require(scenario.kind.board, key, f"no curriculum with scenario={scenario.name}", other.name)
            self.require(other.kind.board, key, "a scenario of the red/blue-door game", other.name)
            allowed = f"a scenario whose learning seats are {', '.join(scenario.kind.learning)}, as in {scenario.name}"
            self.require(other.kind.learning == scenario.kind.learning, key, allowed, other.name)

    @property
    def rows_per_minibatch(self) -> int:
        """Rows of one gradient step: steps or, for a network with memory, whole sequences of ``num_steps`` steps."""
        return self.train.minibatch // self.train.num_steps if self.model.recurrent else self.train.minibatch

    @property
    def games_per_sampler(self) -> int:
        """Parallel games of one sampling process: a remote env runner, or the driver without any."""
        return self.train.num_envs // max(self.cluster.runners, 1)

    @property
    def learner_threads(self) -> int:
        """Threads of torch in the learner: as configured, else the cores without env runners, at least one."""
        return self.train.torch_threads or max(1, available_cpus() - self.cluster.runners)

    @property
    def canonical(self) -> "RunConfig":
        """The configuration without training rewards: evaluation and recordings use the environment's rewards."""
        return self.model_copy(update={"train": self.train.model_copy(update={"shaping": None, "bonus": {}})})

    def checkpoint_root(self) -> Path | None:
        """Return the folder of frozen players; ``None``: the user's and the project's."""
        return Path(self.checkpoints) if self.checkpoints else None


def trainer_of(name: str) -> Any:
    """Return the :class:`~multigrid_rl.training.trainers.Trainer` of that name. Raises ``ConfigError``."""
    known = entries("trainers")
    if name not in known:
        raise ConfigError(unknown("train.trainer", name, known, "one of {}"))
    return find(known, name)


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as yaml."""
    return str(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
