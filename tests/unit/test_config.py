"""The schema and the yaml agree, every original name resolves, and every mistake is one line."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from multigrid_rl.config import (
    LEARN,
    MULTIGRID,
    ConfigError,
    RunConfig,
    ScenarioConfig,
    available_cpus,
    compose,
    data_root,
    default_run_dir,
    experiment_names,
    load_scenario,
    scenario_id,
    scenario_names,
    to_yaml,
)
from multigrid_rl.gates import Gate
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.goals import gates_of
from multigrid_rl.schema import ClusterConfig, GameConfig, GateConfig, ModelConfig, TrainConfig
from multigrid_rl.types import Rules

CONFIGS = data_root() / "configs"
SCENARIOS = scenario_names()
#: Filled in from the file's name, so no yaml names it.
DERIVED = {"name"}


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def files(group: str) -> list:
    found = sorted((CONFIGS / group).glob("*.yaml"))
    return [pytest.param(path, id=path.stem) for path in found]


def gates(*overrides: str) -> list[Gate]:
    config = compose(list(overrides))
    return gates_of(config, env_factory(config).cast)


def error_of(*overrides: str) -> str:
    """The message of the ConfigError; one line, as every mistake must be."""
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


# --- schema and yaml


@pytest.mark.parametrize("path", files("train"))
def test_train_yaml_names_exactly_the_keys_of_its_schema(path):
    assert set(read(path)) == set(TrainConfig.model_fields)


@pytest.mark.parametrize("path", files("model"))
def test_model_yaml_names_exactly_the_keys_of_its_schema(path):
    assert set(read(path)) == set(ModelConfig.model_fields)


@pytest.mark.parametrize("path", files("cluster"))
def test_cluster_yaml_names_exactly_the_keys_of_its_schema(path):
    assert set(read(path)) == set(ClusterConfig.model_fields)


@pytest.mark.parametrize("path", files("scenario"))
def test_scenario_yaml_names_exactly_the_keys_of_its_schema(path):
    content = read(path)
    other = {"env_id", "agents"} if content["game"] else set()  # what only environments of another package have
    assert set(content) == set(ScenarioConfig.model_fields) - DERIVED - other
    if content["game"] is not None:
        assert set(content["game"]) == set(GameConfig.model_fields)
    for gate in content["gates"]:
        assert set(gate) <= set(GateConfig.model_fields)


def test_the_root_yaml_names_exactly_the_keys_of_its_schema():
    content = read(CONFIGS / "config.yaml")
    groups = {next(iter(entry)) for entry in content.pop("defaults") if isinstance(entry, dict)}
    assert set(content) | groups == set(RunConfig.model_fields)


def test_every_folder_of_configs_is_a_group_that_holds_yaml():
    folders = {path.parent.name for path in CONFIGS.glob("*/*.yaml")}
    assert folders == {"scenario", "train", "model", "cluster", "experiment"}


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


# --- scenarios


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_loads_with_its_name_a_description_and_a_learner(name):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert scenario.learning
    assert set(scenario.learning) | set(scenario.opponents) == set(scenario.spec.seats)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_composes_and_plays_by_the_fair_rules(name):
    config = compose([f"scenario={name}"])
    assert config.scenario == load_scenario(name)
    assert config.scenario.spec.rules == Rules.fair()


def test_classic_rules_are_one_override_away():
    assert compose(["scenario.game.rules=classic"]).scenario.spec.rules == Rules.classic()


# Rules, section 2: name -> (blue, red, obstacle, random keys, death match, max steps, view, mission).
ALONE_V2 = {"Red-Single": (0, 1, False, False, False, 1000, 7, False)}
ALONE_V2["Red-Single-with-Obstacle"] = (0, 1, True, False, False, 1000, 7, False)
ALONE_V3 = {"Red-Single": (0, 1, False, False, False, 1280, 5, True)}
ALONE_V3["Red-Single-with-Obstacle"] = (0, 1, True, False, False, 1280, 5, True)
COOP, COOP_EVAL = ((0, 2, True, True, False, steps, 5, True) for steps in (1280, 300))
DUEL = (1, 1, False, True, True, 300, 5, True)
FOUR, FOUR_PEACE = ((2, 2, True, False, deadly, 1280, 5, True) for deadly in (True, False))
FOUR_FREE = (2, 2, False, False, True, 1280, 5, True)
SCHEMES = ("DTDE", "CTDE", "CTCE")
ORIGINAL = {
    **{f"v2-DTDE-{name}": game for name, game in ALONE_V2.items()},
    **{f"v3-DTDE-{name}": game for name, game in ALONE_V3.items()},
    **{f"v3-{scheme}-Red": COOP for scheme in SCHEMES},
    **{f"v3-{scheme}-Red-Eval": COOP_EVAL for scheme in SCHEMES},
    **{f"v3-{scheme}-1v1": DUEL for scheme in ("DTDE", "CTCE")},
    **{f"v3-{scheme}-2v2": FOUR for scheme in ("DTDE", "CTCE")},
    "v3-CTDE-2v2": FOUR_PEACE,
    **{f"v3-{scheme}-2v2-Death-Match": FOUR_FREE for scheme in SCHEMES},
}


def test_the_rules_list_18_original_names():
    assert len(ORIGINAL) == 18


@pytest.mark.parametrize(("name", "game"), ORIGINAL.items())
def test_an_original_name_resolves_to_the_right_game(name, game):
    spec = load_scenario(f"MultiGrid-CompetativeRedBlueDoor-{name}").spec
    found = (spec.blue, spec.red, spec.obstacle, spec.random_keys, spec.death_match, spec.max_steps, spec.view_size)
    assert (*found, spec.mission_observed) == game


def test_there_are_no_aliases_but_the_original_names_and_none_twice():
    aliases = [alias for name in SCENARIOS for alias in load_scenario(name).aliases]
    assert sorted(aliases) == sorted(f"MultiGrid-CompetativeRedBlueDoor-{name}" for name in ORIGINAL)


def test_an_original_name_composes_as_our_id():
    alias = "MultiGrid-CompetativeRedBlueDoor-v2-DTDE-Red-Single"
    assert scenario_id(alias) == "single"
    assert compose([f"scenario={alias}"]) == compose(["scenario=single"])


# --- mistakes

TOO_MANY = available_cpus() + 1


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
        ("train=dqn", ["train=dqn", "unknown", "allowed is ppo"]),
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


def test_a_minibatch_larger_than_the_batch_is_refused():
    text = error_of("train.num_envs=8", "train.num_steps=4", "train.minibatch_size=33")
    assert text == "train.minibatch_size=33: allowed is at most num_envs * num_steps = 32"
    assert compose(["train.num_envs=8", "train.num_steps=4", "train.minibatch_size=32"]).train.batch_size == 32


def test_games_that_the_env_runners_cannot_share_evenly_are_refused(monkeypatch):
    monkeypatch.setattr("multigrid_rl.schema.available_cpus", lambda: 4)
    text = error_of("cluster.num_env_runners=3", "train.num_envs=256")
    assert text == "train.num_envs=256: allowed is a multiple of 3 env runners"


@pytest.mark.parametrize("bounds", ["at_most:20,at_least:3", "share:0.5"])
def test_a_gate_has_exactly_one_bound(bounds):
    text = error_of(f"scenario.gates=[{{metric:episode_len_mean,{bounds}}}]")
    assert "exactly one of at_most and at_least" in text
    assert "scenario.gates.0" in text
    assert "episode_len_mean" in text  # an index alone does not tell which gate is meant


def test_the_first_of_several_mistakes_in_groups_and_keys_is_told():
    assert error_of("scenario=nowhere", "train.lr=-1").startswith("scenario=nowhere")


# --- values


@pytest.mark.parametrize(
    "value",
    ["runs/lr=3e-4 seed=1", "/tmp/a=b=c", "it's mine", "a,b", "[a]", "{a: b}", "x:y", "#1", "~/é", "a\\b", "a${b"],
)
def test_a_path_survives_as_it_was_typed(value):
    config = compose([f"run_dir={value}", f"checkpoints={value}"])
    assert (config.run_dir, config.checkpoints) == (value, value)


def test_a_folder_with_a_player_survives_as_it_was_typed():
    config = compose(["scenario.seats.blue_0=/tmp/my players/lr=3e-4/it's"])
    assert config.scenario.opponents == {"blue_0": {"/tmp/my players/lr=3e-4/it's": 1.0}}


def test_the_folder_of_players_is_the_projects_own_unless_told_otherwise(tmp_path):
    assert compose(["checkpoints=null"]).checkpoint_root() == data_root() / "checkpoints"
    assert compose([f"checkpoints={tmp_path}"]).checkpoint_root() == tmp_path


def test_star_in_a_gate_stands_for_every_learning_seat():
    assert [gate.metric for gate in gates("scenario=coop")] == [
        "episode_len_mean",
        *(f"{kind}/{seat}" for kind in ("return_mean", "explained_variance", "entropy") for seat in ("red_0", "red_1")),
    ]


def test_star_leaves_out_seats_that_do_not_learn():
    alone = gates("scenario=coop", "experiment=none", "scenario.seats.red_0=random")
    assert [gate.metric for gate in alone if gate.metric.startswith("entropy/")] == ["entropy/red_1"]
    assert compose(["scenario.seats.blue_0=learn"]).scenario.learning == {"blue_0": "blue", "red_0": "red"}


@pytest.mark.parametrize("how", ["shared=true", "scheme=ctce"])
def test_star_in_a_gate_of_a_network_stands_for_every_network(how):
    names = [gate.metric for gate in gates("scenario=coop", "experiment=none", how)]
    assert names == [
        *("episode_len_mean", "return_mean/red_0", "return_mean/red_1", "explained_variance/red", "entropy/red")
    ]


@pytest.mark.parametrize("scenario", ["1v1", "coop", "single-obstacle"])
def test_gates_are_those_of_the_course(scenario):
    bounds = {
        "1v1": (20, 1.3, 0.4, 0.3),
        "coop": (40, 1.3, 0.9, 0.4),
        "single-obstacle": (40, 2.0, 0.6, 0.3),
    }[scenario]
    found = gates(f"scenario={scenario}")
    order = ["episode_len_mean", "return_mean", "explained_variance", "entropy"]
    told = {(order.index(gate.metric.split("/")[0]), gate.comparison, gate.bound) for gate in found}
    assert sorted(told) == list(zip(range(4), ("<=", ">=", ">=", "<="), bounds, strict=True))
    assert {(gate.hold, gate.window) for gate in found} == {("every", 100_000)}


@pytest.mark.parametrize(("text", "steps"), [("2e6", 2_000_000), ("1_000", 1000), ("300000.0", 300_000)])
def test_until_is_accepted_in_scientific_notation(text, steps):
    until = compose([f"train.until={text}"]).train.until
    assert until == steps
    assert isinstance(until, int)


@pytest.mark.parametrize(("text", "value"), [("False", False), ("false", False), ("0", False), ("true", True)])
def test_false_is_false(text, value):
    assert compose([f"train.stop_when_held={text}"]).train.stop_when_held is value


def test_overrides_override_and_leave_the_rest():
    plain = compose(["scenario=coop"])
    config = compose(["scenario=coop", "train.lr=7e-4", "seed=7", "model.hidden=[24,16]", "train.epochs=9"])
    train = plain.train.model_copy(update={"lr": 7e-4, "epochs": 9})
    model = plain.model.model_copy(update={"hidden": (24, 16)})
    assert config == plain.model_copy(update={"train": train, "model": model, "seed": 7})


def test_the_same_overrides_give_equal_configurations():
    overrides = ["scenario=coop", "train.lr=3e-4"]
    assert compose(overrides) == compose(list(reversed(overrides)))
    assert compose(overrides) != compose(["scenario=coop"])


def test_a_resolved_configuration_survives_as_yaml():
    config = compose(["scenario=2v2", "seed=5"])
    assert RunConfig.model_validate(yaml.safe_load(to_yaml(config))) == config


def test_a_configuration_cannot_be_changed_afterwards():
    config = compose([])
    with pytest.raises(ValueError, match="frozen"):
        config.train.lr = 1.0


def test_the_default_run_folder_tells_scenario_time_and_seed():
    path = default_run_dir(compose(["scenario=coop", "seed=7"]), datetime(2031, 2, 3, 4, 5, 6))
    assert path == Path("runs/coop/20310203-040506-seed7")


def test_the_default_scenario_is_the_duel_that_red_learns():
    scenario = compose([]).scenario
    assert (scenario.name, scenario.seats["red_0"], scenario.learning) == ("1v1", LEARN, {"red_0": "red"})


# --- schemes


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


# --- opponents


def test_several_players_on_a_seat_are_written_with_their_weights():
    opponents = compose(["scenario.seats.blue_0=blue-rookie:3,random:1.5"]).scenario.opponents
    assert opponents == {"blue_0": {"blue-rookie": 3.0, "random": 1.5}}


@pytest.mark.parametrize("value", ["random:0,idle:1", "random:1,learn:1", "random:1.2.3"])
def test_impossible_weights_are_one_line(value):
    assert "allowed is" in error_of(f"scenario.seats.blue_0={value}")


# --- recipes


@pytest.mark.parametrize("name", experiment_names())
def test_every_recipe_composes_and_names_its_scenario(name):
    config = compose([f"experiment={name}"])
    assert config.experiment == name
    assert config.scenario.name in (*SCENARIOS, MULTIGRID)


@pytest.mark.parametrize("path", files("experiment"))
def test_a_recipe_is_a_hydra_experiment_on_top_of_everything(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")
    assert any("override /scenario" in entry for entry in read(path)["defaults"])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name in experiment_names()])
def test_a_scenarios_own_recipe_is_taken_unless_told_otherwise(name):
    assert compose([f"scenario={name}"]) == compose([f"experiment={name}"])
    assert compose([f"scenario={name}", "experiment=none"]).experiment is None


def test_a_recipe_of_a_scheme_is_taken_with_that_scheme(monkeypatch):
    for scheme in ("ctde", "dtde"):
        config = compose(["scenario=coop", f"scheme={scheme}"])
        assert (config.experiment, config.scheme) == ("coop", scheme)
    monkeypatch.setattr("multigrid_rl.config.experiment_names", lambda: ["coop", "coop-dtde"])
    assert compose(["scenario=coop", "scheme=ctde"]).experiment == "coop"
    with pytest.raises(ConfigError, match="coop-dtde"):  # this one is asked for, and there is no file of that name
        compose(["scenario=coop", "scheme=dtde"])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name in experiment_names()])
def test_without_a_recipe_everything_is_as_the_plain_files_say(name):
    config = compose([f"scenario={name}", "experiment=none"])
    assert (config.scheme, config.shared) == ("dtde", False)
    assert config.train.model_dump(mode="json") == TrainConfig.model_validate(
        read(CONFIGS / "train" / "ppo.yaml")
    ).model_dump(mode="json")
    assert config.scenario == load_scenario(name)


def test_a_recipe_gives_way_to_what_the_user_says():
    assert compose([]).train.bonus == {"all": {"key_pickup": 1.0}}
    changed = compose(["train.bonus.all.key_pickup=0.25", "train.bonus.red_0.step=-0.01"]).train.bonus
    assert changed == {"all": {"key_pickup": 0.25}, "red_0": {"step": -0.01}}
    # A whole mapping takes the recipe's place; it is not merged into it.
    assert compose(["train.bonus={}"]).train.bonus == {}
    assert compose(["train.bonus={red_0:{step:-0.01}}"]).train.bonus == {"red_0": {"step": -0.01}}


def test_an_unknown_recipe_is_one_line():
    assert error_of("experiment=coob").startswith("experiment=coob: unknown (did you mean coop?); allowed is 1v1, ")


# --- gates of a run


def names_of(*overrides: str) -> list[str]:
    return [gate.metric for gate in gates(*overrides)]


def test_a_star_stands_for_seats_teams_or_networks_as_the_metric_wants():
    assert names_of("scenario=2v2") == [
        "episode_len_mean", "team_return_mean/red", "explained_variance/red", "entropy/red",
    ]  # fmt: skip
    assert names_of("scenario=2v2", "scheme=dtde")[2:] == [
        "explained_variance/red_0", "explained_variance/red_1", "entropy/red_0", "entropy/red_1",
    ]  # fmt: skip
    seats = [f"scenario.seats.{seat}" for seat in ("blue_0", "blue_1", "red_0", "red_1")]
    blue = [f"{seat}={who}" for seat, who in zip(seats, ("learn", "learn", "random", "random"), strict=True)]
    assert names_of("scenario=2v2", *blue)[1] == "team_return_mean/blue"


@pytest.mark.parametrize(
    "metric", ["foo/red_0", "foo", "entropy/red_0", "return_mean/blue_0", "team_return_mean/red_0"]
)
def test_a_gate_on_something_never_reported_is_one_line(metric):
    with pytest.raises(ConfigError) as caught:
        names_of("scenario=2v2", f"scenario.gates=[{{metric:{metric},at_least:1}}]")
    text = str(caught.value)
    assert text.startswith(f"scenario.gates: metric={metric}: not reported in this run; allowed is ")
    assert "seats red_0, red_1, teams blue, red, networks red" in text
    assert "\n" not in text


# --- recipes, original names, mixtures on the command line


def test_a_recipe_for_another_scenario_is_refused_and_its_own_is_not():
    text = error_of("experiment=coop", "scenario=1v1")
    assert text == ("scenario=1v1: experiment=coop is a recipe for coop; allowed is scenario=coop, or experiment=none")
    assert compose(["experiment=coop", "scenario=coop"]).experiment == "coop"
    assert compose(["experiment=none", "scenario=coop"]).experiment is None


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("DTDE-Red", "dtde"), ("CTCE-Red", "ctce"), ("CTDE-2v2", "ctde"), ("CTCE-2v2", "ctce"), ("CTCE-1v1", "dtde")],
)
def test_an_original_name_brings_its_scheme_unless_a_team_has_one_agent(name, scheme):
    alias = f"scenario=MultiGrid-CompetativeRedBlueDoor-v3-{name}"
    assert compose([alias]).scheme == scheme
    if "2v2" in name:
        assert compose([alias, "scheme=dtde"]).scheme == "dtde"


def test_a_mixture_is_read_from_the_command_line():
    for value in ("random:1,hunter:2", "{random: 1, hunter: 2}", "random: 1 , hunter:2"):
        seats = compose([f"scenario.seats.blue_0={value}"]).scenario.seats
        assert seats["blue_0"] == {"random": 1.0, "hunter": 2.0}


@pytest.mark.parametrize("value", ["random:-1,hunter:1", "random:0", "random:1,random:2", "random:1.2.3", ":1", "a:b"])
def test_a_malformed_mixture_is_one_line_that_names_the_key(value):
    text = error_of(f"scenario.seats.blue_0={value}")
    assert text.startswith(f"scenario.seats.blue_0={value}: ")
    assert "is no player and weight" in text


def test_a_flag_is_no_weight():
    assert "train.bonus.red_0.step=True: allowed is a number" in error_of("train.bonus.red_0.step=true")


def test_one_entry_of_the_bonus_is_replaced_as_a_whole():
    assert compose(["train.bonus.all={step:-0.01}"]).train.bonus == {"all": {"step": -0.01}}
    assert compose(["train.bonus.all={}"]).train.bonus == {"all": {}}


def test_an_environment_id_brings_its_scenario():
    assert compose(["env_id=MultiGrid-Empty-8x8-v0"]).scenario.name == "multigrid"


def test_an_activation_that_a_network_does_not_have_is_refused():
    assert error_of("model=gru", "model.activation=relu") == "model.activation=relu: allowed is tanh with model=gru"
