"""Schema of a run's configuration: names, types, bounds, and which choices fit together.

Values are in yaml, below ``configs/``; a test holds that both name the same keys. The meaning of a key is the string
below its field, from which `make reference-pages` writes the comments in yaml and docs/cli.md.
"""

import math
import os
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from multigrid_rl.config.network import MAX_LAYERS, MAX_UNITS, ModelConfig, networks_with
from multigrid_rl.config.scenario import Part, ScenarioConfig, Steps, whole
from multigrid_rl.tables import HEADS
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import WITHOUT_VALUES, Psi, Schedule

#: What ``train.runner=stock`` can do: the values of RLlib's own PPO.
_OF_STOCK = {
    "objective": "ppo", "psi": "gae", "standardise": True, "pi_iters": None, "v_iters": None, "recompute": False,
    "time_limits": "bootstrap",
    "target_kl": None, "clip_final": None,
}  # fmt: skip


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
    patience: int | None = Field(ge=1)
    """end the run after this many evaluations in a row without a new lowest held-out loss. null: never"""


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
    replay: int = Field(default=0, ge=0)
    """steps of earlier policies that are kept; half of the policy's rows are drawn from them. 0: none"""
    allow_variable_horizon: bool
    """true: allow environments whose episodes end early; the horizon then leaks reward information"""
    reward: str | None
    """with train=airl: a run of train=airl whose reward g(s, a) is paid and learned no further. null: learn one"""


class DaggerOptions(Part):
    """Learning from an expert who is asked."""

    expert: str | None
    """player, its folder or a run that labels every step; expert=key-runner for short. It must be named"""
    schedule: Literal["linear", "exponential"]
    """how the share of steps in which the expert acts falls from 1: linear or exponential"""
    rounds: int = Field(ge=1)
    """with schedule=linear: rounds after which the learner acts alone. More: labels nearer to the expert's own path"""
    base: float = Field(ge=0, lt=1)
    """with schedule=exponential: the share is base ** round. Higher: the expert acts for longer"""


class TrainConfig(Part):
    """PPO and its batch."""

    name: str = ""
    """name of the file in configs/train/, filled in; empty in runs older than this key"""
    until: Steps
    """the budget in environment steps (bc: recorded steps; dagger: labelled ones), at least one batch; the run ends
    with the batch that reaches it. Same as --until"""
    stop_when_held: bool
    """true: end the run once every gate is held"""
    runner: Literal["batched", "stock"] = "batched"
    """who samples: batched (all games in one pass) or stock (RLlib's own env runner and learner, many times slower)"""
    objective: str = "ppo"
    """what the policy maximises: ppo (clipped surrogate), policy_gradient (log pi(a|s) Psi, nothing is clipped), or
    module:function"""
    psi: Psi = "gae"
    """what weighs log pi(a|s): total_reward, future_return, baselined_return, q, gae or td (docs/control.md)"""
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
    lr_final: float | None = Field(default=None, gt=0)
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
    shaping: str | None = None
    """module:function of a training reward. null: the environment's own, which gates and scores always use"""
    bonus: dict[str, dict[str, float]] = Field(default_factory=dict)
    """weights on events added to the training reward, by seat or all: {all: {key_pickup: 1.0, step: -0.01}}"""
    checkpoint_every: Steps
    """environment steps between checkpoints, or 60 s, whichever comes first; one more is written at the end. More: less
    disk, more lost when killed"""
    keep_checkpoints: int = Field(default=3, ge=1)
    """how many of the newest checkpoints stay, beside the one with the best gate margin. The others are removed"""
    warm_up: Annotated[int, Field(ge=0), BeforeValidator(whole)] = 0
    """with init: environment steps in which the values alone learn. More: lets the critic catch up before the
    pretrained policy changes"""
    cloning: CloningOptions | None = None
    """how recorded or labelled play is learned from, with train=bc or dagger"""
    adversarial: AdversarialOptions | None = None
    """how rewards are learned from recorded play, with train=gail or airl"""
    dagger: DaggerOptions | None = None
    """which expert is asked, and how often it acts, with train=dagger"""

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
        """Steps of one gradient step, of one agent; the whole batch where ``minibatch_size`` is null."""
        return self.minibatch_size or self.batch_size

    @property
    def passes(self) -> int:
        """ShuffledReader of the policy over a batch."""
        return self.epochs if self.pi_iters is None else self.pi_iters

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What changes with the environment steps played: step size, weight of the entropy bonus, clip of the ratio."""
        lr, entropy, clip = self.lr_final, self.entropy_final, self.clip_final
        return {
            "lr": Schedule(self.lr, self.lr if lr is None else lr, self.until),
            "entropy_coef": Schedule(
                self.entropy_coef, self.entropy_coef if entropy is None else entropy, self.entropy_decay
            ),
            "clip": Schedule(self.clip, self.clip if clip is None else clip, self.until),
        }


class ClusterConfig(Part):
    """Where games are played and gradients computed."""

    address: str | None = None
    """Ray cluster to use: auto, host:port or ray://host:port. null: a session of this machine alone"""
    num_env_runners: int | Literal["all"] = 0
    """0: the driver process samples. n: n remote Ray actors share num_envs games. all: as many as the cluster has CPUs
    for. More: faster where cores are free"""
    num_learners: int = Field(default=0, ge=0, le=64)
    """0: the driver process learns. n: n remote Ray actors share every minibatch; more of them change no result"""
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
    """A stage of a curriculum, before the run's own scenario: its game and what ends it."""

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
    train: TrainConfig
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
    """folder of recorded play to learn from (`multigrid-rl record`), with train=bc, dagger, gail or airl"""
    init: str | None = None
    """player, its folder or run whose policy and normaliser training begins with. null: fresh ones"""
    tracking: Literal["csv", "wandb", "mlflow"] | None = None
    """csv, wandb or mlflow: where rows go beside metrics.jsonl and TensorBoard; csv writes metrics.csv. null:
    nowhere"""

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        train, model = self.train, self.model
        self._require(bool(self.scenario.learning), "scenario.seats", "learn on at least one seat")
        self._check_scheme()
        self._check_objective()
        self._check_imitation()
        self._check_init()
        self._check_runner()
        self._check_cluster()
        self._check_curriculum()
        allowed = f"at most num_envs * num_steps = {train.batch_size}"
        self._require(train.minibatch <= train.batch_size, "train.minibatch_size", allowed)
        able = model.entry.activations
        allowed = f"{' or '.join(able or ())} with model={model.name}"
        self._require(able is None or model.activation in able, "model.activation", allowed)
        if model.recurrent:
            allowed = f"a multiple of num_steps={train.num_steps} for a network with memory"
            self._require(train.minibatch % train.num_steps == 0, "train.minibatch_size", allowed)
            self._require(len(model.hidden) == 1, "model.hidden", "one size for a recurrent core", list(model.hidden))
        return self

    def _require(self, condition: bool, key: str, allowed: str, value: Any = None) -> None:
        """Raise ``ConfigError`` for ``key`` unless ``condition``; ``value``: reported in place of the key's value."""
        if not condition:
            got = reduce(getattr, key.split("."), self) if value is None else value
            raise ConfigError(expected(key, allowed, got))

    def _check_scheme(self) -> None:
        able = self.scheme != "ctde" or self.model.entry.central
        self._require(able, "model", f"{networks_with('central')} with scheme=ctde", self.model.name)
        scenario = self.scenario
        learning = list(scenario.learning.values())
        if self.scheme != "dtde":
            for team in dict.fromkeys(learning):
                mates = scenario.kind.seats_of(team)
                whole = all(seat in scenario.learning for seat in mates)
                self._require(len(mates) > 1, "scheme", f"dtde, as {team} of {scenario.name} has one agent")
                self._require(whole, "scheme", f"dtde, as not every agent of team {team} learns")
        if self.shared:
            self._require(self.scheme != "ctce", "shared", "false, as under ctce a team is one agent")
            several = any(learning.count(team) > 1 for team in learning)
            self._require(several, "shared", f"false, as no team of {scenario.name} has two agents that learn")

    def _check_objective(self) -> None:
        train, model = self.train, self.model
        others = ", ".join(head for head, entry in HEADS.items() if entry.probability)
        able = train.cloning is not None or model.head is None or HEADS[model.head].probability
        allowed = f"{others} or null with train.objective={train.objective}, as actions need a probability"
        self._require(able, "model.head", allowed)
        if train.vf_coef == 0:
            allowed = f"{' or '.join(WITHOUT_VALUES)} with vf_coef=0: no value network is trained"
            self._require(train.psi in WITHOUT_VALUES, "train.psi", allowed)
            self._require(train.v_iters is None, "train.v_iters", "null with vf_coef=0")
            self._require(not train.recompute, "train.recompute", "false with vf_coef=0")
        apart = train.v_iters is not None
        both = (train.pi_iters is None) == (train.v_iters is None) or train.vf_coef == 0
        self._require(both, "train.v_iters", "a number with pi_iters, null without")
        self._require(train.v_lr is None or apart, "train.v_lr", "null without v_iters")
        self._require(model.entry.towers or not apart, "train.v_iters", f"null with model={model.name}: not two towers")
        allowed = f"null with scenario={self.scenario.name}: networks over tokens share their first layer"
        self._require(self.scenario.kind.vectors or not apart, "train.v_iters", allowed)
        self._require(not (train.recompute and model.recurrent), "train.recompute", f"false with model={model.name}")

    def _check_imitation(self) -> None:
        """Check that there is something to imitate, and nothing that recorded steps do not hold."""
        train, model, cluster = self.train, self.model, self.cluster
        cloning, adversarial, dagger = train.cloning, train.adversarial, train.dagger
        if cloning is None and adversarial is None:
            self._require(self.data is None, "data", "null without train=bc, dagger, gail or airl")
            return
        condition = "with train=" + ("dagger" if dagger else "bc" if adversarial is None else adversarial.kind)
        wanted = f"a folder that `multigrid-rl record` wrote, {condition}"
        self._require(self.data is not None or dagger is not None, "data", wanted, "null")
        memory = model.recurrent and (dagger is None or self.data is not None)
        self._require(not memory, "model", f"a network without memory {condition} and data", model.name)
        self._require(model.bound == "clip", "model.bound", f"clip {condition}")
        self._require(train.runner == "batched", "train.runner", f"batched {condition}")
        self._require(cluster.num_learners == 0, "cluster.num_learners", f"0 {condition}")
        if adversarial is not None:
            allowed = f"one of Gymnasium {condition}: discriminators read vectors"
            self._require(self.scenario.kind.discriminators, "scenario", allowed, self.scenario.name)
            self._require(train.vf_coef > 0, "train.vf_coef", f"above 0 {condition}")
            paid = ("logit", "f") if adversarial.kind == "airl" else ("softplus", "logit")
            self._require(adversarial.payoff in paid, "train.adversarial.payoff", f"{' or '.join(paid)} {condition}")
        if cloning is None:
            return
        self._require(adversarial is None, "train.adversarial", "null with train=bc or dagger", "settings")
        if dagger is None:
            allowed = f"1 {condition}: train.until sets how often data is passed over"
            self._require(train.epochs == 1, "train.epochs", allowed)
        else:
            self._require(dagger.expert is not None, "expert", f"a player, its folder or a run, {condition}", "null")
            self._require(cloning.patience is None, "train.cloning.patience", f"null {condition}: nothing is held out")
        self._require(self.scheme != "ctde", "scheme", f"dtde or ctce {condition}: no critic is trained")
        self._require(not self.curriculum, "curriculum", f"[] {condition}", "stages")
        self._require(self.scenario.league is None, "scenario.league", f"null {condition}", "settings")
        self._require(cluster.num_env_runners == 0, "cluster.num_env_runners", f"0 {condition}")

    def _check_init(self) -> None:
        warm_up = self.train.warm_up
        self._require(self.train.runner == "batched" or self.init is None, "train.runner", "batched with init")
        self._require(self.init is not None or not warm_up, "train.warm_up", "0 without init")
        self._require(self.train.cloning is None or not warm_up, "train.warm_up", "0 with train=bc: no values")
        allowed = f"0 with model={self.model.name}, whose values share its policy"
        self._require(self.model.entry.towers or not warm_up, "train.warm_up", allowed)

    def _check_cluster(self) -> None:
        train, cluster, model = self.train, self.cluster, self.model
        runners = cluster.num_env_runners
        kind, condition = self.scenario.kind, f"with scenario={self.scenario.package}"
        self._require(kind.remote or runners == 0, "cluster.num_env_runners", f"0 {condition}")
        able = kind.memory or not model.recurrent
        self._require(able, "model", f"a network without memory {condition}", model.name)
        if isinstance(runners, str):
            self._require(cluster.address is not None, "cluster.num_env_runners", "a number without cluster.address")
        else:
            cpus = available_cpus()
            here = runners <= cpus or cluster.address is not None
            self._require(here, "cluster.num_env_runners", f"0 to {cpus}, the CPUs of this machine")
            shares = max(runners, 1)
            self._require(train.num_envs % shares == 0, "train.num_envs", f"a multiple of {shares} env runners")
        learners = max(cluster.num_learners, 1)
        allowed = f"what {learners} learners can share equally"
        self._require(self.rows_per_minibatch % learners == 0, "train.minibatch_size", allowed)

    def _check_curriculum(self) -> None:
        own = self.scenario
        league = [stage.scenario for stage in self.curriculum if stage.scenario.league is not None or own.league]
        self._require(not league, "curriculum", "[] with a league", f"stages before scenario={own.name}")
        for k, stage in enumerate(self.curriculum):
            key, other = f"curriculum.{k}.scenario", stage.scenario
            self._require(own.kind.board, key, f"no curriculum with scenario={own.name}", other.name)
            self._require(other.kind.board, key, "a scenario of the red/blue-door game", other.name)
            allowed = f"a scenario in which {', '.join(own.learning)} learn, as in {own.name}"
            self._require(other.learning == own.learning, key, allowed, other.name)

    def _check_runner(self) -> None:
        if self.train.runner == "batched":
            return
        cluster = self.cluster
        values = {key: (getattr(self.train, key), own) for key, own in _OF_STOCK.items()}
        for able, allowed in (
            (not self.curriculum, "with a curriculum"),
            (self.scenario.league is None, "with a league"),
            (self.scenario.kind.stock, f"with scenario={self.scenario.package}"),
            *((value == own, f"with train.{key}={value}") for key, (value, own) in values.items()),
            (cluster.num_learners == 0 and cluster.address is None, "on a cluster or with remote learners"),
            (not self.model.recurrent, f"with model={self.model.name}, which has memory"),
            (self.scheme != "ctde", "with scheme=ctde"),
        ):
            self._require(able, "train.runner", f"batched {allowed}")

    @property
    def rows_per_minibatch(self) -> int:
        """Rows of one gradient step: steps or, for a network with memory, whole sequences of ``num_steps`` steps."""
        return self.train.minibatch // self.train.num_steps if self.model.recurrent else self.train.minibatch

    @property
    def games_per_sampler(self) -> int:
        """Games that one sampling process, a remote env runner or the driver alone, plays side by side."""
        return self.train.num_envs // max(self.cluster.runners, 1)

    @property
    def learner_threads(self) -> int:
        """Threads of torch in the learner: as configured, or the cores that the env runners leave, at least one."""
        return self.train.torch_threads or max(1, available_cpus() - self.cluster.runners)

    def checkpoint_root(self) -> Path | None:
        """Return the folder of frozen players; ``None``: the user's and the project's."""
        return Path(self.checkpoints) if self.checkpoints else None


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
