"""The schema and the yaml agree."""

from __future__ import annotations

import re

import pytest

from commands import call
from composing import CONFIGS, OF_OTHER_VERBS, files, read
from multigrid_rl.cli.explain import keys
from multigrid_rl.config.compose import RunConfig, ScenarioConfig, compose
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.config.recipes import GROUPS, RECIPES, names_in
from multigrid_rl.config.scenario import GameConfig, GateConfig
from multigrid_rl.config.schema import ClusterConfig, TrainConfig, trainer_of
from multigrid_rl.league.settings import LeagueConfig

#: Filled in from the file's name, so no yaml names it.
DERIVED = {"name"}
#: What a scenario need not say: without it there is no league, and a report has as many episodes as anywhere.
OPTIONAL = {"league", "report_episodes"}


@pytest.mark.parametrize("path", files("train"))
def test_train_yaml_has_exactly_schema_keys(path):
    content = read(path)
    if path.stem == "ppo":
        assert set(content) | DERIVED == set(TrainConfig.model_fields)
    else:  # every other file stands on it and says what differs
        assert content.pop("defaults") in (["ppo", "_self_"], ["gail", "_self_"])
        settings = trainer_of(content.get("trainer", "ppo")).settings
        assert set(content) < set(settings.model_fields)
        own = {
            name: field.annotation
            for name, field in settings.model_fields.items()
            if name not in TrainConfig.model_fields
        }
        assert all(set(content[part]) <= set(schema.model_fields) for part, schema in own.items())


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
    assert known - optional <= set(content) <= known
    if content.get("league") is not None:
        assert set(content["league"]) == set(LeagueConfig.model_fields)
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


@pytest.mark.parametrize(
    "path",
    [
        *files("train"),
        *files("cluster"),
        pytest.param(CONFIGS / "config.yaml", id="root"),
        pytest.param(CONFIGS / "scenario" / "multigrid.yaml", id="multigrid"),
    ],
)
def test_each_key_has_comment(path):
    rows = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if re.match(r" *[a-z_]+:", line)]
    content = read(path)
    parts = [key for key in ("cloning", "dagger") if isinstance(content.get(key), dict)]
    keys = set(content) - {"defaults"} | {name for part in parts for name in content[part]}
    bare = [key for key in keys if not any(re.match(rf"{key}:(.*\S)?\s+# \S.{{8,}}", line) for line in rows)]
    assert bare == []


def test_all_keys_are_listed_with_meaning():
    rows = {key: meaning for key, _, meaning in keys(CONFIGS)}
    parts = {"train": TrainConfig, "model": ModelConfig, "cluster": ClusterConfig, "scenario": ScenarioConfig}
    wanted = {f"{part}.{name}" for part, schema in parts.items() for name in schema.model_fields}
    wanted |= set(RunConfig.model_fields) | {
        f"train.dagger.{name}" for name in ("expert", "schedule", "rounds", "base")
    }
    assert wanted - {"scenario.name", "scenario.aliases", "train.name"} - set(rows) == set()
    assert [key for key, meaning in rows.items() if len(meaning) < 8] == []
    listed = call("config")
    assert all(text in listed.output for text in ("train.lr ", "1.0e-3", "Adam step size at the start"))


def test_minibatch_may_be_whole_batch():
    assert compose(["train.num_envs=8", "train.num_steps=4", "train.minibatch_size=32"]).train.batch_size == 32


def test_gru_and_lstm_have_memory():
    assert [compose([f"model={name}"]).model.recurrent for name in ("gru", "lstm", "mlp")] == [True, True, False]
