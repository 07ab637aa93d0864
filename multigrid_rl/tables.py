"""Doors of the package: tables of extension points, from names in configurations and commands to ``module:object``.

The core looks names up here and never imports an add-on: an entry's module is imported at its first use. An addition
is an entry here and its file. An installed package adds entries of ENVIRONMENTS, GAMES, TEXTS, TRAINERS, NETWORKS,
WEIGHTINGS, METRICS and MEASURED by an entry point of the group ``multigrid_rl.<table>``: ``multigrid_rl.environments``.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from multigrid_rl.trust import user_code

#: Kinds of environments: the ``package`` of a scenario, or ``doors`` for one with a ``game``.
ENVIRONMENTS: dict[str, str] = {
    "doors": "multigrid_rl.players.places:Doors",
    "gymnasium": "multigrid_rl.envs.gymnasium:Gymnasium",
    "pettingzoo": "multigrid_rl.players.zoo_seats:PettingZoo",
    "unity": "multigrid_rl.walkers.unity:Unity",
}

#: Default kind by prefix of ``env_id``; the longest matching prefix counts.
ENV_IDS: dict[str, str] = {"": "gymnasium", "pettingzoo:": "pettingzoo", "openspiel:": "pettingzoo"}

#: Seats for players of a game (``players.places.Place``), by the class that describes the game.
PLACES: dict[str, str] = {
    "GameSpec": "multigrid_rl.players.doors:PLACE",
    "ZooSpec": "multigrid_rl.players.zoo_seats:PLACE",
    "NoOpponentSpec": "multigrid_rl.players.no_opponents:PLACE",
}

#: Protocols between games and programs of strangers: classes made from a game and seats of one team.
PROTOCOLS: dict[str, str] = {
    "1": "multigrid_rl.competition.messages:DoorsProtocol",
    "2": "multigrid_rl.competition.messages:SeatsProtocol",
}

#: Prefixes of the next table after which a name without a slash is a module, which is imported.
IMPORTED = ("pettingzoo",)

#: Functions that open one game of the kind ``pettingzoo``, by prefix of its ``env_id``: (rest of the id, arguments) ->
#: ``envs.zoo.Game``.
GAMES: dict[str, str] = {
    "pettingzoo": "multigrid_rl.envs.farama:zoo_game",
    "openspiel": "multigrid_rl.envs.openspiel:Spiel",
}

#: Text renderers for games of PettingZoo without one, by their ``metadata["name"]``: unwrapped environment -> text.
TEXTS: dict[str, str] = {
    "tictactoe_v3": "multigrid_rl.envs.farama:tictactoe",
    "connect_four_v3": "multigrid_rl.envs.farama:connect_four",
}

#: Environments of this package for Gymnasium: arguments of ``gymnasium.register`` by id.
GYMNASIUM: dict[str, dict[str, Any]] = {
    "Walker-v0": {"entry_point": "multigrid_rl.walkers.bodies:WalkerEnv", "max_episode_steps": 1000},
}

#: Environments of Gymnasium by class, with the function that builds many in parallel: ``walkers.mujoco.side_by_side``.
BATCHED: dict[str, str] = dict.fromkeys(
    (
        "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv",
        "gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv",
        "gymnasium.envs.mujoco.hopper_v5:HopperEnv",
        "gymnasium.envs.mujoco.humanoid_v5:HumanoidEnv",
        "multigrid_rl.walkers.bodies:WalkerEnv",
    ),
    "multigrid_rl.walkers.mujoco:side_by_side",
)

#: Trainers by ``train.trainer``: samplers, updaters, and their options.
TRAINERS: dict[str, str] = {
    "ppo": "multigrid_rl.training.trainers:TRAINER",
    "bc": "multigrid_rl.imitation.imitation_trainers:CLONING",
    "dagger": "multigrid_rl.imitation.imitation_trainers:DAGGER",
    "gail": "multigrid_rl.imitation.imitation_trainers:ADVERSARIAL",
    "airl": "multigrid_rl.imitation.imitation_trainers:ADVERSARIAL",
    "sac": "multigrid_rl.offpolicy.sac_trainer:SAC",
    "dac": "multigrid_rl.imitation.imitation_trainers:DAC",
}

#: Sections of ``train`` that decide the trainer of a file older than ``train.trainer``: the first one in the file.
SECTIONS: dict[str, str] = {"dagger": "dagger", "cloning": "bc", "adversarial": "gail"}

#: Keys of add-ons that name files or code, which no file may set in safe mode.
NAMING_CODE = ("train.dagger.expert", "expert")

#: Short forms of add-ons' keys, without their section.
SHORT_KEYS: dict[str, str] = {"expert": "train.dagger.expert"}

#: Sources of initial weights that ``init`` may name.
STARTS: dict[str, str] = {"player": "multigrid_rl.runs.players:initial_weights"}

#: Modules that moved, and that older checkpoints name: old name -> new name.
MOVED: dict[str, str] = {"multigrid_rl.players.league": "multigrid_rl.league.league"}


@dataclass(frozen=True)
class Network:
    """A network that ``model.name`` may name: facts for configurations, without importing torch.

    Attributes:
        build: ``module:Class`` or function, from a :class:`multigrid_rl.models.Layout` to a ``torch.nn.Module``.
        memory: it is recurrent, and has one hidden layer.
        towers: policy and values share no weights, so that one can learn without the other.
        central: its critic may read more than its actor.
        legal: it masks choices that are not legal.
        vectors: it reads vectors of floats, not only tokens.
        images: it reads images, if the environment has them.
        options: switches of ``model`` that it supports on vectors.
        activations: activations that it supports; ``None``: not checked.
    """

    build: str
    memory: bool = False
    towers: bool = False
    central: bool = False
    legal: bool = False
    vectors: bool = False
    images: bool = False
    options: tuple[str, ...] = ()
    activations: tuple[str, ...] | None = ("tanh",)


@dataclass(frozen=True)
class HeadEntry:
    """A distribution over bounded numbers by a policy's outputs: ``model.head``.

    Attributes:
        build: ``module:Class``, called with low, high, size, features and a generator; ``None``: the Gaussian.
        size: default of ``model.head_size``; ``None``: it has none.
        probability: actions have a probability; without it no policy gradient can train the head.
    """

    build: str | None
    size: int | None = None
    probability: bool = True


_RECURRENT = "multigrid_rl.models.recurrent:RecurrentActorCritic"
#: Networks by ``model.name``, in addition to a user's ``module:Class``.
NETWORKS: dict[str, Network] = {
    "mlp": Network(
        "multigrid_rl.models.mlp:build",
        towers=True,
        central=True,
        legal=True,
        vectors=True,
        options=("normalise", "scale_values", "norm"),
        activations=("tanh", "relu", "elu", "silu"),
    ),
    "embedding": Network("multigrid_rl.models.cells:CellActorCritic", towers=True),
    "cnn": Network("multigrid_rl.models.cells:build", towers=True, legal=True, images=True, options=("scale_values",)),
    "attention": Network(
        "multigrid_rl.models.cells:AttentionActorCritic", towers=True, central=True, activations=("tanh", "relu")
    ),
    "gru": Network(_RECURRENT, memory=True, central=True, vectors=True, options=("normalise",)),
    "lstm": Network(_RECURRENT, memory=True, central=True, vectors=True, options=("normalise",)),
}

#: Heads by ``model.head``.
HEADS: dict[str, HeadEntry] = {
    "gaussian": HeadEntry(None),
    "deterministic": HeadEntry("multigrid_rl.models.heads:Deterministic", probability=False),
    "mixture": HeadEntry("multigrid_rl.models.heads:Mixture", size=5),
    "bins": HeadEntry("multigrid_rl.models.heads:Bins", size=20),
    "diffusion": HeadEntry("multigrid_rl.models.heads:Diffusion", size=10, probability=False),
    "tanh-gaussian": HeadEntry("multigrid_rl.models.squashed:TanhGaussian"),
    "tanh-gaussian-clamped": HeadEntry("multigrid_rl.models.squashed:ClampedTanhGaussian"),
}

#: Groups of metrics of episodes: ``metrics.MetricGroup`` with a function that computes them.
METRICS: dict[str, str] = {
    "returns": "multigrid_rl.metrics:RETURNS",
    "outcomes": "multigrid_rl.metrics:OUTCOMES",
    "doors": "multigrid_rl.world.events:DOORS",
}

#: Groups of metrics that parts of training measure, the core's before those of add-ons.
MEASURED: dict[str, str] = {
    "run": "multigrid_rl.metrics:RUN",
    "learner": "multigrid_rl.metrics:LEARNER",
    "later": "multigrid_rl.metrics:LATER",
    "own": "multigrid_rl.metrics:OWN",
    "league": "multigrid_rl.league.settings:LEAGUE_METRICS",
    "imitation": "multigrid_rl.imitation.imitation_trainers:METRICS",
    "sac": "multigrid_rl.offpolicy.sac_trainer:METRICS",
}

#: Rules by which a pool chooses opponents.
WEIGHTINGS: dict[str, str] = {
    "squared": "multigrid_rl.league.rules:SQUARED",
    "variance": "multigrid_rl.league.rules:VARIANCE",
    "linear": "multigrid_rl.league.rules:LINEAR",
    "linear_capped": "multigrid_rl.league.rules:LINEAR_CAPPED",
    "uniform": "multigrid_rl.league.rules:UNIFORM",
    "latest": "multigrid_rl.league.rules:LATEST",
    "nash": "multigrid_rl.league.rules:NASH",
}

#: Pools of opponents that grow during a run: settings under the key of ``scenario`` with this name.
POOLS: dict[str, str] = {"league": "multigrid_rl.league.settings:LeagueConfig"}

#: Names of players outside the catalogue: a class, a program, a run.
NAMINGS: dict[str, str] = {
    "class": "multigrid_rl.players.classes:NAMING",
    "agent": "multigrid_rl.competition.agents:NAMING",
    "run": "multigrid_rl.runs.players:NAMING",
}

#: Pages of commands' output, by its kind: a function of the folder that writes the page. For a game it is a function
#: of the record that returns text.
PAGES: dict[str, str] = {
    "run": "multigrid_rl.show.report:write_run_report",
    "cup": "multigrid_rl.show.report:write_cup_report",
    "seeds": "multigrid_rl.show.report:write_seeds_report",
    "game": "multigrid_rl.show.replay:game_page",
}

#: Folders that ``export`` reads in addition to runs, by a file that only they have: (folder, seat or team, folder to
#: write into, scenario or None) -> folders of players as ``runs.players.players_for`` returns them.
CHECKPOINTS: dict[str, str] = {
    "rllib_checkpoint.json": "multigrid_rl.rllib.export:players_of",
    "module_state.pkl": "multigrid_rl.rllib.export:players_of",
}

#: Figures that commands draw as PNG: functions of the data, then the file.
FIGURES: dict[str, str] = {"comparison": "multigrid_rl.show.figures:save_comparison"}

#: Further outputs of a run's rows that ``tracking`` may name; each is a ``runs.folder.Tracker``.
TRACKERS: dict[str, str] = {
    "csv": "multigrid_rl.ops.trackers:Csv",
    "wandb": "multigrid_rl.ops.trackers:Wandb",
    "mlflow": "multigrid_rl.ops.trackers:Mlflow",
    "tensorboard-media": "multigrid_rl.show.media:Media",
    "web": "multigrid_rl.show.live:Web",
}

#: Provenance of a run's inputs, by the configuration key that names the input: RunConfig -> plain data.
FACTS: dict[str, str] = {"data": "multigrid_rl.imitation.demonstrations:facts"}

#: Checks of a connected cluster before its use. ``cluster``, for a run: (RunConfig, folder, stages) -> the RunConfig
#: with as many env runners as fit, lines to print. ``nodes``: (folder, stages, trials=whether it is a search) -> lines.
PREFLIGHTS: dict[str, str] = {
    "cluster": "multigrid_rl.ops.cluster:fit_to_cluster",
    "nodes": "multigrid_rl.ops.cluster:preflight",
}

#: Verbs of the command line, one word or two, in the order of typical use.
VERBS: dict[str, str] = {
    "train": "multigrid_rl.cli.train:train",
    "search": "multigrid_rl.search.search_command:search",
    "explain": "multigrid_rl.cli.explain:explain",
    "config": "multigrid_rl.cli.explain:config",
    "config import-mlagents": "multigrid_rl.walkers.mlagents_command:import_mlagents",
    "evaluate": "multigrid_rl.cli.evaluate:evaluate",
    "report": "multigrid_rl.show.watch_commands:report",
    "watch": "multigrid_rl.show.watch_commands:watch",
    "video": "multigrid_rl.show.watch_commands:video",
    "play": "multigrid_rl.show.watch_commands:play",
    "compare": "multigrid_rl.cli.evaluate:compare",
    "export": "multigrid_rl.competition.cup_commands:export",
    "inspect": "multigrid_rl.serve.serve_commands:inspect",
    "grade": "multigrid_rl.competition.cup_commands:grade",
    "cup": "multigrid_rl.competition.cup_commands:cup",
    "serve": "multigrid_rl.serve.serve_commands:serve",
    "submit": "multigrid_rl.serve.serve_commands:submit",
    "players": "multigrid_rl.cli.players_commands:players",
    "players freeze": "multigrid_rl.cli.players_commands:freeze",
    "players rate": "multigrid_rl.cli.players_commands:rate",
    "exploit": "multigrid_rl.league.exploit_command:exploit",
    "data": "multigrid_rl.imitation.data_commands:data",
    "data record": "multigrid_rl.imitation.data_commands:record",
    "data import-policy": "multigrid_rl.imitation.data_commands:import_policy",
    "doctor": "multigrid_rl.ops.doctor:doctor",
}


def load(reference: str) -> Any:
    """Import the object ``module:object``. Raises ``ConfigError``: it is another package's, and importing it fails."""
    module, _, attribute = reference.partition(":")
    with nullcontext() if module.startswith("multigrid_rl.") else user_code(f"entry point {reference}"):
        return getattr(import_module(module), attribute)


def find(table: Mapping[str, str], name: str) -> Any:
    """Import the object of a table entry. Raises ``KeyError``: no such entry."""
    return load(table[name])


def has(table: Mapping[str, str], name: str) -> bool:
    """Return whether a table has this entry, and its add-on is part of this checkout."""
    module = table.get(name, "").partition(":")[0]
    return bool(module) and find_spec(".".join(module.split(".")[:2])) is not None


@cache
def installed(group: str) -> dict[str, str]:
    """Return the entries that installed packages add to the table ``group``, such as ``environments``."""
    return {point.name: point.value for point in entry_points(group=f"multigrid_rl.{group}")}


def entries(group: str) -> dict[str, str]:
    """Return all entries of a table, such as ``environments``: ours, and those of installed packages."""
    return {**installed(group), **globals()[group.upper()]}


def loaded(table: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield name and object of every entry of a table, without those of missing add-ons."""
    yield from ((name, find(table, name)) for name in table if has(table, name))
