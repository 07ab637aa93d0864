"""The verb ``config import-mlagents``: converts settings of ML-Agents' PPO trainer to a recipe."""

import math
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml

from multigrid_rl.cli.app import refused
from multigrid_rl.cli.output import console, temporary_output
from multigrid_rl.config.overrides import merge, put, written
from multigrid_rl.files import read_plain_yaml
from multigrid_rl.text import ConfigError, expected, shown, suggestion


class _Rule(NamedTuple):
    """One key of ML-Agents' settings."""

    default: Any
    kind: Any = None  # float, int, or the allowed words; None: anything
    least: float = 0
    most: float = math.inf
    into: str = ""  # our keys that it sets; a single key takes the value unchanged, unless code below differs
    typical: tuple[float, float] | None = None  # range on ML-Agents' page of its configuration file
    why: str = ""  # reason for having no counterpart

    @property
    def wanted(self) -> str:
        """Allowed values."""
        if isinstance(self.kind, tuple):
            return " or ".join(map(str, self.kind)).lower()
        limits = f"{self.least:g} to {self.most:g}".replace(" to inf", " and more")
        return f"a {'whole ' * (self.kind is int)}number of {limits}"

    def read(self, value: Any) -> Any:
        """Return the value of a file. Raises ``ValueError`` or ``TypeError``: it is not allowed."""
        if self.kind is None:
            return value
        if isinstance(self.kind, tuple):
            if value in self.kind and isinstance(value, bool) == isinstance(self.kind[0], bool):
                return value
            raise ValueError
        number = float("nan" if isinstance(value, bool) else value)  # yaml reads 3e-4 as a string
        if not self.least <= number <= self.most or math.isinf(number) or self.kind(number) != number:
            raise ValueError
        return self.kind(number)


_FLAG, _SCHEDULE = (True, False), ("linear", "constant")
_LAYERS = ("network_settings.hidden_units", "network_settings.num_layers")
#: Values, defaults and typical ranges of ML-Agents' release 19.
_RULES: dict[str, _Rule] = {
    "trainer_type": _Rule("ppo", ("ppo",), into="train.objective"),
    "hyperparameters.batch_size": _Rule(1024, int, 1, into="train.minibatch_size", typical=(32, 5120)),
    "hyperparameters.buffer_size": _Rule(10240, int, 1, into="train.num_envs train.num_steps", typical=(2048, 409_600)),
    "hyperparameters.learning_rate": _Rule(3e-4, float, 1e-12, 1, into="train.lr", typical=(1e-5, 1e-3)),
    "hyperparameters.beta": _Rule(5e-3, float, 0, into="train.entropy_coef", typical=(1e-4, 1e-2)),
    "hyperparameters.epsilon": _Rule(0.2, float, 1e-6, into="train.clip", typical=(0.1, 0.3)),
    "hyperparameters.lambd": _Rule(0.95, float, 0, 1, into="train.lam", typical=(0.9, 0.95)),
    "hyperparameters.num_epoch": _Rule(3, int, 1, into="train.epochs", typical=(3, 10)),
    "hyperparameters.learning_rate_schedule": _Rule("linear", _SCHEDULE, into="train.lr_final"),
    "hyperparameters.beta_schedule": _Rule(None, _SCHEDULE, into="train.entropy_final"),
    "hyperparameters.epsilon_schedule": _Rule(None, _SCHEDULE, into="train.clip_final"),
    "hyperparameters.shared_critic": _Rule(False, _FLAG, why="policy and values have towers of their own"),
    "network_settings.normalize": _Rule(False, _FLAG, into="model.normalise"),
    "network_settings.hidden_units": _Rule(128, int, 1, 4096, into="model.hidden", typical=(32, 512)),
    "network_settings.num_layers": _Rule(2, int, 1, 8, into="model.hidden", typical=(1, 3)),
    "network_settings.vis_encode_type": _Rule("simple", ("simple",), why="only vectors are seen"),
    "network_settings.memory.sequence_length": _Rule(64, int, 1, into="train.num_steps", typical=(4, 128)),
    "network_settings.memory.memory_size": _Rule(128, int, 2, 8192, into="model.hidden", typical=(32, 256)),
    "network_settings.goal_conditioning_type": _Rule("hyper", ("hyper", "none"), why="goals are numbers among others"),
    "network_settings.deterministic": _Rule(False, _FLAG, why="evaluate plays drawn and likeliest actions"),
    "reward_signals.extrinsic.gamma": _Rule(0.99, float, 1e-6, 1, into="train.gamma", typical=(0.8, 0.995)),
    "reward_signals.extrinsic.strength": _Rule(
        1.0, float, 0, why="its weights are standardised: one reward needs none"
    ),
    "reward_signals.extrinsic.network_settings": _Rule(None, why="the value network is as large as the policy"),
    "max_steps": _Rule(500_000, int, 1, into="train.until"),
    "time_horizon": _Rule(64, int, 1, into="train.num_steps", typical=(32, 2048)),
    "keep_checkpoints": _Rule(5, int, 1, into="train.keep_checkpoints"),
    "checkpoint_interval": _Rule(500_000, int, 1, into="train.checkpoint_every"),
    "summary_freq": _Rule(50_000, int, 1, why="every iteration is reported"),
    "threaded": _Rule(False, _FLAG, why="games do not wait for one another"),
    "even_checkpoints": _Rule(False, _FLAG, why="checkpoint_interval says when"),
    "init_path": _Rule(None, why="train --resume goes on"),
    "self_play.save_steps": _Rule(20_000, int, 1, into="scenario.league.every", typical=(10_000, 100_000)),
    "self_play.window": _Rule(10, int, 1, 64, into="scenario.league.most", typical=(5, 30)),
    "self_play.play_against_latest_model_ratio": _Rule(0.5, float, 0, 1, into="scenario.league.latest_share"),
    "self_play.swap_steps": _Rule(2000, int, 1, into="scenario.league.redraw"),
    "self_play.team_change": _Rule(None, why="one team learns, the other is its past"),
    "self_play.initial_elo": _Rule(None, why="win rates choose opponents"),
}
#: Sections that no recipe expresses: status, and the supported alternative.
_SECTIONS = {
    "reward_signals.curiosity": ("refused", "extrinsic rewards alone"),
    "reward_signals.rnd": ("refused", "extrinsic rewards alone"),
    "reward_signals.gail": (
        "left out", "train=gail data=DEMOS learns from demonstrations alone (docs/imitation.md)",
    ),
    "behavioral_cloning": (
        "left out", "train=bc data=DEMOS clones them; init=ITS_RUN then goes on by PPO (docs/imitation.md)",
    ),
}  # fmt: skip
#: Other parts of the file than behaviours, and our settings in their place.
_OTHER_PARTS = {
    "env_settings": "env_path, port and train.num_envs say it for scenario=unity",
    "engine_settings": "env_args say it for scenario=unity",
    "environment_parameters": "env_args.parameters say it for scenario=unity",
    "checkpoint_settings": "run_dir and --resume say it",
    "torch_settings": "cluster says it",
    "debug": "the log of a run is whole",
}
_TOP = ("behaviors", "default_settings")


class TranslatedLine(NamedTuple):
    """Conversion of one key."""

    key: str
    value: Any
    status: str  # taken, changed, left out or refused
    result: str  # our keys and values, or the reason for none


def import_mlagents(
    file: Annotated[Path, typer.Argument(help="Trainer settings of ML-Agents, .yaml.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="New file of the recipe, .yaml.")],
    behavior: Annotated[str | None, typer.Option(help="Which behaviour, where the file has several.")] = None,
    agents: Annotated[
        int | None, typer.Option(min=1, help="Agents side by side; by default as many as fill a buffer in one horizon.")
    ] = None,
) -> None:
    """Make a recipe of ML-Agents' PPO settings: train scenario=walker experiment=RECIPE.yaml."""
    if output.suffix not in (".yaml", ".yml"):
        raise refused("--output", "a file .yaml", output)
    name, lines, recipe = translate(file, behavior, agents)
    width = max(len(line.key) for line in lines)
    for line in lines:
        console().print(f"{line.status:<8}  {line.key:<{width}}  {shown(str(line.value), 30)} -> {line.result}")
    for line in lines:
        typical = _RULES[line.key].typical if line.key in _RULES else None
        if typical and not typical[0] <= float(line.value) <= typical[1]:
            limits = f"{typical[0]:g} to {typical[1]:g}"
            console().print(f"warning:  {line.key}: {line.value} lies beyond ML-Agents' typical {limits}")
    if unsupported := [line for line in lines if line.status == "refused"]:
        keys = ", ".join(line.key for line in unsupported)
        raise refused(f"{file}: {unsupported[0].key}", unsupported[0].result, keys)
    with temporary_output(output) as temporary:
        top = f"# {name} of {file.name}, ML-Agents' settings: multigrid-rl train scenario=walker experiment={output}\n"
        temporary.write_text(top + yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def translate(
    file: Path, behavior: str | None = None, agents: int | None = None
) -> tuple[str, list[TranslatedLine], Any]:
    """Return the name of a behaviour, the conversion of each of its keys, and the recipe.

    Raises ``ConfigError``: no settings of ML-Agents, no such behaviour, an unknown key or an invalid value.
    """
    name, settings, others = _read(file, behavior)
    values: dict[str, Any] = {}
    lines: dict[str, TranslatedLine] = {}
    for key, value in settings.items():
        section = next((prefix for prefix in _SECTIONS if f"{key}.".startswith(f"{prefix}.")), None)
        if section is not None:
            lines[section] = TranslatedLine(section, "", *_SECTIONS[section])
            continue
        if key not in _RULES:
            raise ConfigError(_unknown(f"{file}: {name}.{key}", key))
        try:
            values[key] = _RULES[key].read(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(expected(f"{file}: {name}.{key}", _RULES[key].wanted, value)) from error
    recipe = _recipe(values, agents)
    lines |= {key: _translated(key, settings[key], values, recipe) for key in settings if key in values}
    lines |= {key: TranslatedLine(key, "...", "left out", _OTHER_PARTS[key]) for key in others}
    return name, list(lines.values()), recipe


def _read(file: Path, behavior: str | None) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name of a behaviour, its settings by dotted key, and the other parts of the file."""
    try:
        content = read_plain_yaml(file)
    except (OSError, ValueError) as error:
        raise ConfigError(expected(file, "trainer settings of ML-Agents", error)) from error
    content = content if isinstance(content, dict) else {}
    common, behaviors = content.get("default_settings") or {}, content.get("behaviors") or {}
    if not isinstance(behaviors, dict) or not behaviors or not isinstance(common, dict):
        got = ", ".join(map(str, content)) or "none"
        raise ConfigError(expected(f"{file}: behaviors", "settings by behaviour", shown(got)))
    if unknown := [key for key in content if key not in (*_TOP, *_OTHER_PARTS)]:
        raise ConfigError(_unknown(f"{file}: {unknown[0]}", str(unknown[0]), (*_TOP, *_OTHER_PARTS)))
    name = behavior or (next(iter(behaviors)) if len(behaviors) == 1 else None)
    if name not in behaviors:
        got = "none" if behavior is None else behavior
        raise ConfigError(expected("--behavior", f"one of {', '.join(map(str, behaviors))}", got))
    options = behaviors[name] or {}
    if not isinstance(options, dict):
        raise ConfigError(expected(f"{file}: {name}", "keys and values", options))
    settings = dict(_leaves(merge(common, options)))  # null of a behaviour switches off what it has in common
    # Another trainer has other keys: its type is refused first.
    first = {key: settings[key] for key in ("trainer_type",) if key in settings}
    return str(name), first | settings, [key for key in content if key not in _TOP]


def _leaves(node: dict[Any, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        key = f"{place}{name}"
        if isinstance(value, dict) and value and key not in _RULES:
            yield from _leaves(value, f"{key}.")
        elif value == {} and key not in _RULES:  # such as memory: {}: it has the defaults of its keys
            usual = {each: rule.default for each, rule in _RULES.items() if each.startswith(f"{key}.")}
            yield from _leaves(usual) if usual else [(key, value)]
        elif value is not None:  # null counts as missing
            yield key, value


def _unknown(place: str, key: str, known: tuple[str, ...] = tuple(_RULES)) -> str:
    return expected(place, "a key of ML-Agents' PPO settings", f"{key}{suggestion(key, known)}")


def _translated(key: str, value: Any, values: dict[str, Any], recipe: dict[str, Any]) -> TranslatedLine:
    """Return the conversion of a key: it is taken if it alone determines the keys that it sets."""
    rule = _RULES[key]
    if not rule.into:
        return TranslatedLine(key, value, "left out", rule.why)
    made = {name: reduce(getitem, name.split("."), recipe) for name in rule.into.split()}
    result: Any = next(iter(made.values())) if len(made) == 1 else math.prod(made.values())  # a buffer is a product
    # A schedule is a word, and layers are a list where there is no memory, whose size is all there is.
    not_compared = key.endswith("_schedule") or (key in _LAYERS and recipe["model"].get("activation") == "silu")
    text = ", ".join(f"{name}: {written(value)}" for name, value in made.items())
    return TranslatedLine(key, value, "taken" if not_compared or result == values[key] else "changed", text)


def _recipe(settings: dict[str, Any], agents: int | None) -> dict[str, Any]:
    values = {key: settings.get(key, rule.default) for key, rule in _RULES.items()}
    memory = any(key.startswith("network_settings.memory.") for key in settings)
    league = any(key.startswith("self_play.") for key in settings)
    recipe: dict[str, Any] = {"defaults": [{"override /model": "lstm" if memory else "mlp"}]}
    for key, rule in _RULES.items():
        if rule.into and " " not in rule.into and (league or not key.startswith("self_play.")):
            put(recipe, rule.into, values[key])
    if league:
        recipe["scenario"]["league"] |= {"weighting": "uniform", "win": None, "anchor_share": 0.0}
    recipe["train"] |= {**_sizes(values, agents, memory=memory), **_finals(values)}
    # Its loss: half the squared error of the values, their change clipped as ratios are, gradients of any size.
    recipe["train"] |= {
        "entropy_decay": values["max_steps"], "vf_coef": 0.5, "value_loss": "clipped", "grad_clip": 1e6,
    }  # fmt: skip
    layers = [values["network_settings.hidden_units"]] * values["network_settings.num_layers"]
    body = {"hidden": layers, "activation": "silu"}
    if memory:  # half of ML-Agents' memory size
        body = {"hidden": [values["network_settings.memory.memory_size"] // 2]}
    recipe["model"] = {**body, "normalise": recipe["model"]["normalise"], "bound": "clip3", "log_std": 0.0}
    return recipe


def _sizes(values: dict[str, Any], agents: int | None, *, memory: bool) -> dict[str, int]:
    """Return batch sizes: a buffer is a number of agents times one horizon, or times one sequence of a memory."""
    buffer, batch = values["hyperparameters.buffer_size"], values["hyperparameters.batch_size"]
    length = values["network_settings.memory.sequence_length" if memory else "time_horizon"]
    wanted = max(1, round(buffer / length))
    # The number of agents that fills the buffer exactly, or nearly; sequences have a length of their own.
    choices = [wanted] if memory else range(math.ceil(wanted / 2), 2 * wanted)
    envs = agents or min(choices, key=lambda count: (-buffer % count, abs(count - wanted)))
    steps = length if memory else math.ceil(buffer / envs)
    rows = min(batch, envs * steps)
    rows = max(1, rows // steps) * steps if memory else rows
    return {"num_envs": envs, "num_steps": steps, "minibatch_size": rows}


def _finals(values: dict[str, Any]) -> dict[str, Any]:
    """Return the last step size, entropy bonus and clip; their default schedule is that of the step size."""
    usual = values["hyperparameters.learning_rate_schedule"]
    finals = (("learning_rate", "lr", 1e-10), ("beta", "entropy", 1e-5), ("epsilon", "clip", 0.1))
    return {
        f"{name}_final": last if (values[f"hyperparameters.{setting}_schedule"] or usual) == "linear" else None
        for setting, name, last in finals
    }
