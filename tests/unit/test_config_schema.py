"""The schema and the yaml agree."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from commands import call
from composing import CONFIGS, OF_OTHER_VERBS, files, read
from multigrid_rl.cli.explain import fields, keys, meaning_of
from multigrid_rl.config.compose import compose
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.config.recipes import GROUPS, RECIPES, names_in
from multigrid_rl.config.scenario import GameConfig, GateConfig, Part, ScenarioConfig, env_factory
from multigrid_rl.config.schema import ClusterConfig, RunConfig, TrainConfig, trainer_of
from multigrid_rl.tables import TRAINERS
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import check_memory
from tools import reference_pages
from tools.house import ADDONS

#: Filled in from the file's name, so no yaml names it.
DERIVED = {"name"}


@pytest.mark.parametrize("path", files("train"))
def test_train_yaml_has_exactly_schema_keys(path):
    content = read(path)
    if path.stem == "ppo":
        assert set(content) | DERIVED == set(TrainConfig.model_fields)
    else:  # every other file stands on it and says what differs
        base, itself = content.pop("defaults")
        assert (base in ("ppo", "gail", "sac"), itself) == (True, "_self_")
        settings = trainer_of(content.get("trainer", "ppo")).settings
        assert set(content) < set(settings.model_fields)
        given = read(path.with_stem(base)) | content
        for part in set(settings.model_fields) - set(TrainConfig.model_fields):
            assert set(given[part]) <= set(settings.model_fields[part].annotation.model_fields)


@pytest.mark.parametrize(("group", "schema"), [("model", ModelConfig), ("cluster", ClusterConfig)])
def test_model_and_cluster_yaml_have_exactly_schema_keys(group, schema):
    for path in (CONFIGS / group).glob("*.yaml"):
        content = read(path)
        if content.pop("defaults", None) is None:
            assert set(content) == set(schema.model_fields), path
        else:  # stands on mlp, and says what differs
            assert set(content) < set(schema.model_fields), path


@pytest.mark.parametrize("path", files("scenario"))
def test_scenario_yaml_has_exactly_schema_keys(path):
    content = read(path)
    known = set(ScenarioConfig.model_fields) - DERIVED
    optional = {"aliases", "agents", "report_episodes", "league", "env_path", "port", "held_out"}
    optional |= {"package", "env_id", "env_args"} if content["game"] else set()
    optional |= {"env_path", "port"} if content.get("package") != "unity" else set()
    optional |= {"teams", "symmetric", "outcome"} if content.get("package") != "pettingzoo" else {"outcome"}
    assert known - optional <= set(content) <= known
    if content.get("league") is not None:
        known = {key for key in fields() if key.startswith("scenario.league.")}
        assert {f"scenario.league.{name}" for name in content["league"]} == known
    if content["game"] is not None:
        assert set(content["game"]) == set(GameConfig.model_fields)
    for gate in content["gates"]:
        assert set(gate) <= set(GateConfig.model_fields)


def test_root_yaml_has_exactly_schema_keys():
    content = read(CONFIGS / "config.yaml")
    groups = {next(iter(entry)) for entry in content.pop("defaults") if isinstance(entry, dict)}  # what Hydra composes
    assert set(content) | groups == set(RunConfig.model_fields)
    assert groups == set(GROUPS)


def test_every_config_folder_is_group_or_belongs_to_verb():
    folders = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert folders == OF_OTHER_VERBS | {*GROUPS, *RECIPES} - {"experiment"}
    assert all(names_in(group) for group in GROUPS)


def test_every_key_has_meaning():
    assert [key for key, field in fields().items() if len(meaning_of(field)) < 8] == []


def test_all_keys_are_listed():
    listed = {key: value for key, value, _ in keys()}
    parts = {"train": TrainConfig, "model": ModelConfig, "cluster": ClusterConfig, "scenario": ScenarioConfig}
    wanted = {f"{part}.{name}" for part, schema in parts.items() for name in schema.model_fields}
    assert wanted | set(RunConfig.model_fields) <= set(listed)
    values = {"train": "ppo", "train.lr": "0.001", "scenario.gates[].hold": "every", "curriculum[].steps": "null"}
    assert {key: listed[key] for key in values} == values
    output = call("config").output
    assert all(text in output for text in ("train.lr ", "0.001", "Adam step size at the start", "halfcheetah-gail"))


def test_keys_of_pools_and_trainers_come_from_their_tables(monkeypatch):
    class Steering(Part):
        strength: int = 3
        """how hard it steers"""

    class SteeredTrain(TrainConfig):
        steering: Steering = Steering()
        """who steers"""

    monkeypatch.setitem(TRAINERS, "steered", "multigrid_rl.mine:TRAINER")
    monkeypatch.setattr("multigrid_rl.cli.explain.find", lambda table, name: SimpleNamespace(settings=SteeredTrain))
    monkeypatch.setattr("multigrid_rl.tables.POOLS", {})
    rows = {key: row for key, *row in keys()}
    assert rows["train.steering.strength"] == ["3", "how hard it steers"]
    assert "scenario.league.every" not in rows


@pytest.mark.skipif(not all(find_spec(f"multigrid_rl.{name}") for name in ADDONS), reason="add-ons were left out")
def test_pages_are_as_schema_and_verbs_say():
    stale = [str(path) for path, text in reference_pages.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "make reference-pages writes them"


@pytest.mark.parametrize(
    ("line", "every", "written"),
    [
        ("lr: 1.0e-3", True, "lr: 1.0e-3            # how fast"),
        ("lr: 1.0e-3    # old", False, "lr: 1.0e-3    # how fast"),
        ("lr: 1.0e-3", False, "lr: 1.0e-3"),
        ("# lr: above", True, "# lr: above"),
        ("mine: 3  # stays", True, "mine: 3  # stays"),
        ("defaults:\n  - lr: a#b\nx: 1", True, "defaults:\n  - lr: a#b           # how fast\nx: 1"),
        ("part:\n  key: x  # y\nkey: z", True, "part:\n  key: x  # what\nkey: z"),
    ],
)  # fmt: skip
def test_comments_behind_keys_are_meanings(line, every, written):
    text = reference_pages.commented(f"{line}\n", "", {"lr": "how fast", "part.key": "what"}, every=every)
    assert text == f"{written}\n"
    assert reference_pages.commented(text, "", {"lr": "how fast", "part.key": "what"}, every=every) == text


def test_letters_mean_themselves_in_markdown():
    assert reference_pages.escaped("a_b <c> {d} *|`e_f|g`") == r"a\_b &lt;c> \{d} \*\|`e_f\|g`"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("train.until", "whole number"),
        ("train.lr_final", "number or null"),
        ("model.hidden", "list of whole number"),
        ("cluster.num_env_runners", "whole number or all"),
        ("scenario.game", "keys below or null"),
        ("scenario.seats", "mapping"),
    ],
)
def test_types_in_words(key, kind):
    assert reference_pages.type_of(fields()[key].annotation) == kind


def test_configuration_that_its_own_file_could_not_hold_is_refused_before_a_run():
    config = compose(["env_id=CartPole-v1"])
    scenario = config.scenario.model_copy(update={"env_args": {"map": [1] * 60_000}})
    with pytest.raises(ConfigError, match=r"env_args: expected at most 262,144 bytes in config\.yaml .*, got \d+"):
        check_memory(config.model_copy(update={"scenario": scenario}), env_factory(config).specs)
