"""The schema and the yaml agree, and every mistake is one line."""

from __future__ import annotations

import re

import pytest

from commands import call
from composing import CONFIGS, SCENARIOS, error_of, files, read
from multigrid_rl.architecture import ModelConfig
from multigrid_rl.cli.explain import keys
from multigrid_rl.config import GROUPS, RunConfig, ScenarioConfig, available_cpus, compose
from multigrid_rl.scenario import GameConfig, GateConfig, LeagueConfig
from multigrid_rl.schema import CloningOptions, ClusterConfig, DaggerOptions, TrainConfig

#: Filled in from the file's name, so no yaml names it.
DERIVED = {"name"}
#: What a scenario need not say: without it there is no league, and a report has as many episodes as anywhere.
OPTIONAL = {"league", "report_episodes"}
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
        assert content.pop("defaults") in (["ppo", "_self_"], ["gail", "_self_"])
        assert set(content) < set(TrainConfig.model_fields)
    for part, schema in (("cloning", CloningOptions), ("dagger", DaggerOptions)):
        assert set(content.get(part) or schema.model_fields) == set(schema.model_fields)


@pytest.mark.parametrize(("group", "schema"), [("model", ModelConfig), ("cluster", ClusterConfig)])
def test_model_and_cluster_yaml_name_exactly_the_keys_of_their_schema(group, schema):
    for path in (CONFIGS / group).glob("*.yaml"):
        assert set(read(path)) == set(schema.model_fields), path


@pytest.mark.parametrize("path", files("scenario"))
def test_scenario_yaml_names_exactly_the_keys_of_its_schema(path):
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


def test_root_yaml_names_exactly_the_keys_of_its_schema():
    content = read(CONFIGS / "config.yaml")
    groups = {next(iter(entry)) for entry in content.pop("defaults") if isinstance(entry, dict)}  # what Hydra composes
    assert set(content) | groups == set(RunConfig.model_fields)
    assert groups == set(GROUPS)


def test_every_folder_of_configs_is_a_group_or_belongs_to_another_verb():
    folders = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert folders == OF_OTHER_VERBS | set(GROUPS)
    assert all(files(group) for group in GROUPS)


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
    rows = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if re.match(r" *[a-z_]+:", line)]
    content = read(path)
    parts = [key for key in ("cloning", "dagger") if isinstance(content.get(key), dict)]
    keys = set(content) - {"defaults"} | {name for part in parts for name in content[part]}
    bare = [key for key in keys if not any(re.match(rf"{key}:(.*\S)?\s+# \S.{{8,}}", line) for line in rows)]
    assert bare == []


def test_all_keys_are_listed_with_their_meaning():
    rows = {key: meaning for key, _, meaning in keys(CONFIGS)}
    parts = {"train": TrainConfig, "model": ModelConfig, "cluster": ClusterConfig, "scenario": ScenarioConfig}
    wanted = {f"{part}.{name}" for part, schema in parts.items() for name in schema.model_fields}
    wanted |= set(RunConfig.model_fields) | {f"train.dagger.{name}" for name in DaggerOptions.model_fields}
    assert wanted - {"scenario.name", "scenario.aliases"} - set(rows) == set()
    assert [key for key, meaning in rows.items() if len(meaning) < 8] == []
    listed = call("config")
    assert all(text in listed.output for text in ("train.lr ", "1.0e-3", "Adam step size at the start"))


# --- mistakes


MEMORY = "train.num_steps=16 train.minibatch_size=1000"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("scenario=1v2", rf"^scenario: expected {', '.join(SCENARIOS[:4])}, .*, got 1v2"),
        ("scenario=", "^scenario: expected 1v1, .*, got"),
        ("scenario=nowhere train.lr=-1", "^scenario: .*, got nowhere"),
        ("train.lrr=1", r"^train\.lrr: expected .*lr, lr_final.*, got lrr \(did you mean lr\?\)"),
        ("lr=3e-4", r"^lr: expected one of the keys .*, got lr \(did you mean train\.lr\?\)"),
        ("entropy_coeff=0", r"^entropy_coeff: .*, got entropy_coeff \(did you mean train\.entropy_coef\?\)"),
        ("sed=0", r"^sed: .*, got sed \(did you mean seed\?\)"),
        ("scenario=1v1 scenario.gates=[{metric:entropy/*,at_mots:1}]", r"at_mots \(did you mean at_most\?\)"),
        ("+train.foo=1", r"^train\.foo: expected .*lr_final.*, got foo"),
        ("train.lr.foo=1", r"^train\.lr: .*got train\.lr\.foo=1"),
        ("colour=3", "^colour: expected .*seed.*, got colour"),
        *((f"{verb}=1v1", f"^{verb}: expected .*seed.*, got {verb}") for verb in sorted(OF_OTHER_VERBS)),
        ("scenario.seats.blue_5=random", r"^scenario\.seats\.blue_5: expected .*blue_0, red_0, got blue_5"),
        ("train.lr=-1", r"^train\.lr: expected greater than 0, got -1"),
        ("train.lr=inf", r"^train\.lr: expected .*finite.*, got inf"),
        ("train.lr=fast", r"^train\.lr: expected a valid number.*, got fast"),
        ("train.gamma=1.1", r"^train\.gamma: .*less than or equal to 1, got 1\.1"),
        ("train.num_envs=1.5", r"^train\.num_envs: .*valid integer.*, got 1\.5"),
        ("train.stop_when_held=maybe", r"^train\.stop_when_held: .*valid boolean.*, got maybe"),
        ("cluster.num_env_runners=true", r"^cluster\.num_env_runners: .*valid integer.*, got True"),
        (
            f"cluster.num_env_runners={TOO_MANY}",
            rf"^cluster\.num_env_runners: .*0 to {TOO_MANY - 1}.*CPUs.*, got {TOO_MANY}",
        ),
        ("cluster.num_env_runners=-1", r"^cluster\.num_env_runners: .*at least 0.*, got -1"),
        ("cluster.num_env_runners=2 train.num_envs=255", r"^train\.num_envs: .*multiple of 2 env runners, got 255"),
        ("scenario.seats.red_0=random", r"^scenario\.seats: expected learn .*'red_0': 'random'"),
        ("train.foo", r"^train\.foo: expected key=value"),
        ("train=dqn", "^train: expected a2c, .*, vpg, got dqn"),
        ("model=mlpp", r"^model: expected .*gru, lstm, mlp.*, got mlpp \(did you mean mlp\?\)"),
        ("cluster=moon", "^cluster: expected local.*, got moon"),
        ("model.hidden=[0]", r"^model\.hidden: .*at least 1 unit.*, got \[0\]"),
        ("model.hidden=[5000]", r"^model\.hidden: .*4096.*, got \[5000\]"),
        ("model.activation=gelu", r"^model\.activation: .*'tanh', 'relu', 'elu' or 'silu', got gelu"),
        ("model=gru model.activation=relu", r"^model\.activation: expected tanh .*, got relu"),
        (f"model=gru {MEMORY}", r"^train\.minibatch_size: .*multiple of num_steps=16 .*, got 1000"),
        (f"model=lstm {MEMORY}", r"^train\.minibatch_size: .*multiple of num_steps=16 .*, got 1000"),
        ("model=lstm model.hidden=[8,8]", r"^model\.hidden: expected one size .*, got \[8, 8\]"),
        ("scenario.game.view_size=4", r"^scenario\.game\.view_size: expected 3, 5 or 7, got 4"),
        ("scenario.game.blue=0", r"^scenario\.seats: expected red_0 .*, got blue_0, red_0"),
        ("seed=-1", "^seed: .*greater than or equal to 0, got -1"),
        ("train.until=1.5", r"^train\.until: .*valid integer.*, got 1\.5"),
        ("train.lr=[1", r"^train\.lr=\[1.*: "),
        (
            "train.num_envs=8 train.num_steps=4 train.minibatch_size=33",
            r"^train\.minibatch_size: .*num_envs \* num_steps = 32, got 33$",
        ),
        ("scheme=ctde", "^scheme: expected dtde, .*red of 1v1 has one agent, got ctde$"),
        ("scheme=ctce", "^scheme: expected dtde, .*red of 1v1 has one agent, got ctce$"),
        ("scenario=single scheme=ctde", "^scheme: expected dtde, .*red of single has one agent, got ctde$"),
        ("scenario=2v2 scheme=ctce scenario.seats.red_1=random", "^scheme: expected dtde, .*red learns, got ctce$"),
        ("scenario=2v2 scheme=ctde scenario.seats.blue_0=learn", "^scheme: expected dtde, .*blue learns, got ctde$"),
        ("scenario=2v2 scheme=ctce shared=true", "^shared: expected false, .*ctce.*, got True$"),
        ("scenario=single shared=true", "^shared: expected false, .*two agents that learn, got True$"),
        ("scheme=ctdd", "^scheme: expected 'dtde', 'ctde' or 'ctce', got ctdd$"),
        ("scenario.seats.blue_0=random:1,learn:1", r"^scenario\.seats\.blue_0: .*weights above 0, got .*learn"),
        *(
            (f"scenario.seats.blue_0={value}", rf"^scenario\.seats\.blue_0: .*weights above 0.*, got {value}$")
            for value in (
                "random:-1,hunter:1",
                "random:0,idle:1",
                "random:1,random:2",
                "random:1.2.3",
                ":1",
                "blue-rookie:b",
            )
        ),
        ("train.bonus.red_0.step=true", r"^train\.bonus\.red_0\.step: expected a number, got True$"),
    ],
)
def test_rejects_mistakes_in_one_line(overrides, said, monkeypatch):
    if "env_runners=2" in overrides:
        monkeypatch.setattr("multigrid_rl.schema.available_cpus", lambda: 4)
    assert re.search(said, error_of(*overrides.split()))


def test_minibatch_may_be_the_whole_batch():
    assert compose(["train.num_envs=8", "train.num_steps=4", "train.minibatch_size=32"]).train.batch_size == 32


def test_gru_and_lstm_have_memory():
    assert [compose([f"model={name}"]).model.recurrent for name in ("gru", "lstm", "mlp")] == [True, True, False]
