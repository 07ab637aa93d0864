"""The schema and the yaml agree, and every mistake is one line."""

from __future__ import annotations

import re

import pytest

from composing import CONFIGS, SCENARIOS, error_of, files, read
from multigrid_rl.config import GROUPS, RunConfig, ScenarioConfig, available_cpus, compose
from multigrid_rl.schema import ClusterConfig, GameConfig, GateConfig, ModelConfig, TrainConfig

#: Filled in from the file's name, so no yaml names it.
DERIVED = {"name"}
#: Folders of configs/ that other verbs than train read, as they stand: nothing of a run's composition.
OF_OTHER_VERBS = {"grade", "search"}
TOO_MANY = available_cpus() + 1


# --- schema and yaml


@pytest.mark.parametrize("path", files("train"))
def test_train_yaml_names_exactly_the_keys_of_its_schema(path):
    content = read(path)
    if path.stem == "ppo":
        assert set(content) == set(TrainConfig.model_fields)
    else:  # every other file stands on it and says what differs
        assert content.pop("defaults") == ["ppo", "_self_"]
        assert set(content) < set(TrainConfig.model_fields)


@pytest.mark.parametrize("path", files("model"))
def test_model_yaml_names_exactly_the_keys_of_its_schema(path):
    assert set(read(path)) == set(ModelConfig.model_fields)


@pytest.mark.parametrize("path", files("cluster"))
def test_cluster_yaml_names_exactly_the_keys_of_its_schema(path):
    assert set(read(path)) == set(ClusterConfig.model_fields)


@pytest.mark.parametrize("path", files("scenario"))
def test_scenario_yaml_names_exactly_the_keys_of_its_schema(path):
    content = read(path)
    other = (
        {"package", "env_id", "env_args", "agents"} if content["game"] else set()
    )  # what only environments of another package have
    assert set(content) == set(ScenarioConfig.model_fields) - DERIVED - other
    if content["game"] is not None:
        assert set(content["game"]) == set(GameConfig.model_fields)
    for gate in content["gates"]:
        assert set(gate) <= set(GateConfig.model_fields)


def test_the_root_yaml_names_exactly_the_keys_of_its_schema():
    content = read(CONFIGS / "config.yaml")
    assert set(content) - {"defaults"} | set(groups_of_a_run()) == set(RunConfig.model_fields)


def groups_of_a_run() -> list[str]:
    """What Hydra composes: the defaults list of the root."""
    defaults = read(CONFIGS / "config.yaml")["defaults"]
    return [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]


def test_groups_are_what_the_root_composes():
    assert sorted(GROUPS) == sorted(groups_of_a_run())


def test_every_folder_of_configs_is_a_group_or_belongs_to_another_verb():
    folders = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert folders - OF_OTHER_VERBS == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_holds_yaml(group):
    assert files(group)


@pytest.mark.parametrize("folder", sorted(OF_OTHER_VERBS))
def test_what_other_verbs_read_is_no_override(folder):
    assert f"unknown key '{folder}'" in error_of(f"{folder}=1v1")


@pytest.mark.parametrize(
    "path",
    [
        *files("train"),
        *files("cluster"),
        pytest.param(CONFIGS / "config.yaml", id="root"),
        pytest.param(CONFIGS / "scenario" / "multigrid.yaml", id="multigrid"),
    ],
)
def test_each_key_has_a_comment_beside_its_value(path):
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"[a-z_]+:", line)]
    keys = set(read(path)) - {"defaults"}
    bare = [key for key in keys if not any(re.match(rf"{key}:.*\S\s+# \S.{{8,}}", line) for line in rows)]
    assert bare == []


# --- mistakes


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("scenario=1v2", ["scenario=1v2", "unknown", *SCENARIOS]),
        ("scenario=", ["scenario=", "unknown", "1v1"]),
        ("train.lrr=1", ["train.lrr=1", "unknown key 'lrr'", "did you mean lr?", "lr_final"]),
        ("+train.foo=1", ["train.foo=1", "unknown key 'foo'", "lr_final"]),
        ("colour=3", ["colour=3", "unknown key 'colour'", "seed"]),
        ("scenario.seats.blue_5=random", ["scenario.seats.blue_5=random", "unknown key 'blue_5'", "blue_0, red_0"]),
        ("train.lr=-1", ["train.lr=-1", "greater than 0"]),
        ("train.lr=inf", ["train.lr=inf", "finite"]),
        ("train.lr=fast", ["train.lr=fast", "allowed is a valid number"]),
        ("train.gamma=1.1", ["train.gamma=1.1", "less than or equal to 1"]),
        ("train.num_envs=1.5", ["train.num_envs=1.5", "valid integer"]),
        ("train.stop_when_held=maybe", ["train.stop_when_held=maybe", "valid boolean"]),
        ("cluster.num_env_runners=true", ["cluster.num_env_runners=", "valid integer"]),
        (f"cluster.num_env_runners={TOO_MANY}", [f"num_env_runners={TOO_MANY}", f"0 to {TOO_MANY - 1}", "CPUs"]),
        ("cluster.num_env_runners=-1", ["cluster.num_env_runners=-1", "greater than or equal to 0"]),
        ("scenario.seats.red_0=random", ["scenario.seats=", "'red_0': 'random'", "at least one seat: learn"]),
        ("train.foo", ["train.foo", "not an override", "key=value"]),
        ("train=dqn", ["train=dqn", "unknown", "allowed is a2c, ppo"]),
        ("model=mlpp", ["model=mlpp", "unknown", "did you mean mlp?", "gru, lstm, mlp"]),
        ("cluster=moon", ["cluster=moon", "unknown", "allowed is local"]),
        ("model.hidden=[0]", ["model.hidden=[0]", "at least 1 unit"]),
        ("model.hidden=[5000]", ["model.hidden=[5000]", "4096"]),
        ("model.activation=gelu", ["model.activation=gelu", "'tanh' or 'relu'"]),
        ("scenario.game.view_size=4", ["scenario.game.view_size=4", "3, 5 or 7"]),
        ("scenario.game.blue=0", ["scenario", "blue_0, red_0", "this game's seats are red_0"]),
        ("seed=-1", ["seed=-1", "greater than or equal to 0"]),
        ("train.until=1.5", ["train.until=1.5", "valid integer"]),
        ("train.lr=[1", ["train.lr=[1"]),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_what_is_allowed(override, said):
    text = error_of(override)
    assert [part for part in said if part not in text] == []


def test_the_first_of_several_mistakes_in_groups_and_keys_is_told():
    assert error_of("scenario=nowhere", "train.lr=-1").startswith("scenario=nowhere")


def test_a_minibatch_larger_than_the_batch_is_refused():
    text = error_of("train.num_envs=8", "train.num_steps=4", "train.minibatch_size=33")
    assert text == "train.minibatch_size=33: allowed is at most num_envs * num_steps = 32"
    assert compose(["train.num_envs=8", "train.num_steps=4", "train.minibatch_size=32"]).train.batch_size == 32


def test_games_that_the_env_runners_cannot_share_evenly_are_refused(monkeypatch):
    monkeypatch.setattr("multigrid_rl.schema.available_cpus", lambda: 4)
    text = error_of("cluster.num_env_runners=3", "train.num_envs=256")
    assert text == "train.num_envs=256: allowed is a multiple of 3 env runners"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scheme=ctde"], "scheme=ctde: allowed is dtde: team red of 1v1 has one agent"),
        (["scheme=ctce"], "scheme=ctce: allowed is dtde: team red of 1v1 has one agent"),
        (["scenario=single", "scheme=ctde"], "scheme=ctde: allowed is dtde: team red of single has one agent"),
        (
            ["scenario=2v2", "scheme=ctce", "scenario.seats.red_1=random"],
            "scheme=ctce: allowed is dtde: not every agent of team red learns",
        ),
        (
            ["scenario=2v2", "scheme=ctde", "scenario.seats.blue_0=learn"],
            "scheme=ctde: allowed is dtde: not every agent of team blue learns",
        ),
        (
            ["scenario=2v2", "scheme=ctce", "shared=true"],
            "shared=True: allowed is false: under ctce a team is one agent",
        ),
        (
            ["scenario=single", "shared=true"],
            "shared=True: allowed is false: no team of single has two agents that learn",
        ),
        (["shared=true"], "shared=True: allowed is false: no team of 1v1 has two agents that learn"),
        (["scheme=ctdd"], "scheme=ctdd: allowed is 'dtde', 'ctde' or 'ctce'"),
    ],
)
def test_an_impossible_scheme_is_one_line(overrides, message):
    assert error_of(*overrides) == message


@pytest.mark.parametrize("model", ["gru", "lstm"])
def test_networks_with_memory_learn_whole_sequences_and_have_one_layer(model):
    text = error_of(f"model={model}", "train.num_steps=16", "train.minibatch_size=1000")
    assert text.startswith("train.minibatch_size=1000: allowed is a multiple of num_steps=16")
    assert "one size" in error_of(f"model={model}", "model.hidden=[8,8]")
    assert compose([f"model={model}"]).model.recurrent
    assert not compose([]).model.recurrent


def test_an_activation_that_a_network_does_not_have_is_refused():
    assert error_of("model=gru", "model.activation=relu") == "model.activation=relu: allowed is tanh with model=gru"


@pytest.mark.parametrize("value", ["random:0,idle:1", "random:1,learn:1", "random:1.2.3"])
def test_impossible_weights_are_one_line(value):
    assert "allowed is" in error_of(f"scenario.seats.blue_0={value}")


@pytest.mark.parametrize("value", ["random:-1,hunter:1", "random:0", "random:1,random:2", "random:1.2.3", ":1", "a:b"])
def test_a_malformed_mixture_is_one_line_that_names_the_key(value):
    text = error_of(f"scenario.seats.blue_0={value}")
    assert text.startswith(f"scenario.seats.blue_0={value}: ")
    assert "is no player and weight" in text


def test_a_flag_is_no_weight():
    assert "train.bonus.red_0.step=True: allowed is a number" in error_of("train.bonus.red_0.step=true")
