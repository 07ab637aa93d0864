"""The schema and the yaml agree, and what no run may be asked for is refused by key and value."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from commands import call
from composing import CONFIGS, OF_OTHER_VERBS, files, read, unsaid
from multigrid_rl.cli.explain import fields, keys, meaning_of
from multigrid_rl.config.compose import compose
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.config.recipes import GROUPS
from multigrid_rl.config.scenario import GameConfig, GateConfig, Part, ScenarioConfig, env_factory
from multigrid_rl.config.schema import ClusterConfig, RunConfig, TrainConfig, trainer_of
from multigrid_rl.cores import available_cpus
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
    monkeypatch.setattr("multigrid_rl.tables.find", lambda table, name: SimpleNamespace(settings=SteeredTrain))
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


def test_configuration_that_its_own_file_could_not_hold_is_refused_before_a_run():
    config = compose(["env_id=CartPole-v1"])
    scenario = config.scenario.model_copy(update={"env_args": {"map": [1] * 60_000}})
    with pytest.raises(ConfigError, match=r"env_args: expected at most 262,144 bytes in config\.yaml .*, got \d+"):
        check_memory(config.model_copy(update={"scenario": scenario}), env_factory(config).specs)


# --- what no run may be asked for: one table of overrides, each with what its one line must say


TOO_MANY = available_cpus() + 1
MEMORY = "train.num_steps=16 train.minibatch_size=1000"
BODY = "env_id=Pendulum-v1 experiment=none"
GATE = "scenario.gates=[{metric:episode_len_mean"
#: Overrides, then words of the message, or patterns of it.
REFUSED = [
    (
        "scenario=1v2",
        r"^scenario: expected one \(did you mean 2v2\?\) of 2v2, 1v1.* and \d+ more, or a file .*, got 1v2$",
    ),
    ("scenario=MultiGrid-CompetativeRedBlueDoor-v3-DTDE-1vs1", r"mean MultiGrid-CompetativeRedBlueDoor-v3-DTDE-1v1\?"),
    ("scenario=", "^scenario: expected 1v1, .*, got"),
    (
        "train.lrr=1",
        r"^train\.lrr: expected one of the keys .*lr, .* and \d+ more, got lrr \(did you mean train\.lr\?\)",
    ),
    ("lr=3e-4", r"^lr: expected one of the keys .*, got lr \(did you mean train\.lr\?\)"),
    ("entropy_coeff=0", r"^entropy_coeff: .*, got entropy_coeff \(did you mean train\.entropy_coef\?\)"),
    ("scenario=1v1 scenario.gates=[{metric:entropy/*,at_mots:1}]", r"at_mots \(did you mean at_most\?\)"),
    ("train.until=1e30", r"^train\.until: expected a whole number within 64 bits, got 1e\+30"),
    ("train.lr.foo=1", r"^train\.lr: .*got train\.lr\.foo=1"),
    ("colour=3", r"^colour: expected .* and \d+ more, got colour"),
    *((f"{verb}=1v1", rf"^{verb}: expected .* and \d+ more, got {verb}") for verb in sorted(OF_OTHER_VERBS)),
    ("scenario.seats.blue_5=random", r"^scenario\.seats\.blue_5: expected .*blue_0, red_0, got blue_5"),
    ("scenario=1v1 env_args={max_steps:20}", "env_args: expected none, as the red/blue-door game .*'max_steps': 20"),
    ("curriculum=3", "^curriculum: expected a list of stages, got 3$"),
    ("train.lr=-1", r"^train\.lr: expected greater than 0, got -1"),
    ("train.lr_final=true", r"^train\.lr_final: expected a number, got True"),
    ("train.threads=true", r"^train\.threads: expected a whole number, got True"),
    ("scenario.gates=[{metric:x,at_most:<3}]", r"token recognition error at: '<', expected quotes around it$"),
    ("train.minibatch_size=true", r"^train\.minibatch_size: expected a whole number, got True"),
    ("scenario=1v1-league scenario.league.every=true", r"league.*every: expected a whole number, got True"),
    ("scheme=[]", r"^scheme: expected .*, got \[\]"),
    ("train.lr=inf", r"^train\.lr: expected .*finite.*, got inf"),
    ("scenario=1v1 scenario.seats.blue_0=null", r"^scenario\.seats\.blue_0: expected a string, got None$"),
    ("scenario=1v1 scenario.seats={blue_0:{random:x}}", r"^scenario\.seats\.blue_0\.random: expected a number, got x$"),
    ("model.hidden=null", r"^model\.hidden: expected a list, such as \[\], got None$"),
    ("model.hidden=64", r"^model\.hidden: expected a list, such as \[64\], got 64$"),
    ("scheme=dtde,ctde", r"^scheme: expected one value, or a list: \[a, b\], got dtde,ctde$"),
    ("tracking=csv,wnb", r"^tracking: expected csv, .*several with commas, got wnb$"),
    ("train.learning_rate=1", r"got learning_rate \(did you mean train.lr\?\)$"),
    ("opponent=hunter", r"got opponent \(did you mean scenario.seats.blue_0\?\)$"),
    ("n_steps=8", r"got n_steps \(did you mean train.num_steps\?\)$"),
    ("train.batch_size=8", r"got batch_size \(did you mean train.minibatch_size\?\)$"),
    ("gae_lambda=1", r"got gae_lambda \(did you mean train.lam\?\)$"),
    ("clip_range=1", r"got clip_range \(did you mean train.clip\?\)$"),
    ("train.checkpoint_every=1e99", r"^train\.checkpoint_every: expected a whole number within 64 bits, got 1e\+99$"),
    ("train.keep_checkpoints=99999999999999999999", r"^train\.keep_checkpoints: expected .* within 64 bits, got 9+$"),
    ("env_id=CartPole-v1 env_args={x:{y:-9999999999999999999}}", r"^scenario\.env_args\.x\.y: expected .*, got -9+$"),
    ("train.lr=fast", r"^train\.lr: expected a number, got fast"),
    ("train.gamma=1.1", r"^train\.gamma: .*less than or equal to 1, got 1\.1"),
    ("train.stop_when_held=maybe", r"^train\.stop_when_held: expected true or false, got maybe"),
    ("cluster.num_env_runners=true", r"^cluster\.num_env_runners: .*whole number.*, got True"),
    (f"cluster.num_env_runners={TOO_MANY}", f"^cluster.num_env_runners: .*0 to {TOO_MANY - 1}.*CPUs.*, got {TOO_MANY}"),
    ("cluster.num_env_runners=-1", r"^cluster\.num_env_runners: .*at least 0.*, got -1"),
    ("cluster.num_env_runners=2 train.num_envs=255", r"^train\.num_envs: .*multiple of 2 env runners, got 255"),
    ("scenario.seats.red_0=random", r"^scenario\.seats: expected learn .*'red_0': 'random'"),
    ("train.foo", r"^train\.foo: expected key=value"),
    ("model=mlpp", r"^model: expected .*gru, lstm, mlp.*, got mlpp \(did you mean mlp\?\)"),
    ("model.hidden=[0]", r"^model\.hidden: .*at least 1 unit.*, got \[0\]"),
    ("model.activation=gelu", r"^model\.activation: .*'tanh', 'relu', 'elu' or 'silu', got gelu"),
    ("model=gru model.activation=relu", r"^model\.activation: expected tanh .*, got relu"),
    (f"model=gru {MEMORY}", r"^train\.minibatch_size: .*multiple of num_steps=16 .*, got 1000"),
    ("model=lstm model.hidden=[8,8]", r"^model\.hidden: expected one size .*, got \[8, 8\]"),
    ("scenario.game.view_size=4", r"^scenario\.game\.view_size: expected 3, 5 or 7, got 4"),
    ("scenario.game.blue=0", r"^scenario\.seats: expected red_0 .*, got blue_0, red_0"),
    ("train.lr=[1", r"^train\.lr=\[1.*: "),
    ("train.num_envs=8 train.num_steps=4 train.minibatch_size=33", r"train\.minibatch_size: .*num_steps = 32, got 33$"),
    ("scheme=ctde", "^scheme: expected dtde, .*red of 1v1 has one agent, got ctde$"),
    ("scenario=2v2 scheme=ctce scenario.seats.red_1=random", "^scheme: expected dtde, .*red learns, got ctce$"),
    ("scenario=2v2 scheme=ctde scenario.seats.blue_0=learn", "^scheme: expected dtde, .*blue learns, got ctde$"),
    ("scenario=2v2 scheme=ctce shared=true", "^shared: expected false, .*ctce.*, got True$"),
    ("scenario=single shared=true", "^shared: expected false, .*two agents that learn, got True$"),
    ("scenario.seats.blue_0=random:1,learn:1", r"^scenario\.seats\.blue_0: .*weights above 0, got .*learn"),
    *(
        (f"scenario.seats.blue_0={value}", rf"^scenario\.seats\.blue_0: .*weights above 0.*, got {value}$")
        for value in ("random:-1,hunter:1", "random:0,idle:1", "random:1,random:2", ":1")
    ),
    ("train.bonus.red_0.step=true", r"^train\.bonus\.red_0\.step: expected a number, got True$"),
    # curricula
    ("curriculum=[{scenario:2v2,steps:10}]", "curriculum.0.scenario: expected", "learning seats are red_0", "got 2v2"),
    ("curriculum=[{scenario:2v3,steps:10}]", "scenario: expected one (did you mean 2v2?) of", "got 2v3"),
    ("curriculum=[{scenario:1v1}]", "curriculum.0", "steps: N, held: true"),
    ("curriculum=[{scenario:1v1,steps:5,until:7}]", "curriculum.0.until: ", "got until"),
    ("curriculum=[{seats:{green_0:random},steps:5}]", "green_0", "seats"),
    ("curriculum=[{scenario:cartpole,steps:5}]", "curriculum.0.scenario"),
    # gates and recipes
    (GATE + ",at_most:20,at_least:3}]", "scenario.gates.0.*exactly one of at_most and at_least", "episode_len_mean"),
    (GATE + ",share:0.5}]", "scenario.gates.0.*exactly one of at_most and at_least", "episode_len_mean"),
    ("experiment=coob", "experiment: expected coop, ", "got coob (did you mean coop?)"),
    ("experiment=coop scenario=1v1", "scenario: expected coop with experiment=coop, or experiment=none, got 1v1"),
    ("scenario=halfcheetah model=gru", r"train.recompute.*got True \(set by experiment=halfcheetah; experiment=none "),
    ("train=gail data=x", "scenario: expected one of Gymnasium.*got 1v1$"),  # the default, with any recipe
    ("scenario=halfcheetah model=gru train.recompute=true", "train.recompute.*got True$"),
    # objectives
    ("scenario=gymnasium train.psi=gae train.vf_coef=0", "train.psi", "total_reward or future_return", "gae"),
    ("scenario=gymnasium scenario=1v1 train=vpg experiment=none", "train.v_iters", "null with scenario=1v1", "40"),
    ("scenario=gymnasium train.recompute=true train.psi=future_return train.vf_coef=0", "train.recompute", "vf_coef=0"),
    ("scenario=gymnasium train.v_lr=0.1", "train.v_lr", "null without v_iters"),
    ("scenario=gymnasium model=gru train=vpg train.num_envs=2", "train.v_iters", "null with model=gru"),
    ("scenario=gymnasium model=gru train.recompute=true train.minibatch_size=null", "train.recompute.*with model=gru"),
    ("train.modules={red_0:{lr:0}}", r"train\.modules\.red_0\.lr: expected greater than 0, got 0$"),
    # heads
    (f"{BODY} model.head=deterministic", "model.head: expected gaussian, mixture, .* or null with train.objective=ppo"),
    (f"{BODY} model.head=diffusion train=a2c", "with train.objective=policy_gradient, as actions need a probability"),
    (f"{BODY} model.head=mixture model.bound=tanh", "model.bound: expected clip with head=mixture, got tanh"),
    (f"{BODY} model.head=mixture model.log_std=-1", "model.log_std: expected nothing with model.head=mixture, "),
    (f"{BODY} model.head_size=4", "model.head_size: expected null with head=null, got 4"),
    (f"{BODY} model.head=mixture model.head_size=1", "model.head_size: expected"),
    (f"{BODY} model.head=best", "model.head: expected"),
    # recorded play
    ("scenario=1v1 data=x", "data: expected null with train=ppo, got x"),
    ("scenario=1v1 train.warm_up=5", "train.warm_up: expected 0 without init, got 5"),
    # RLlib's own sampling
    ("train.runner=stock", "train.runner"),
    ("train.trainer=sarsa", "train.trainer: expected one of ppo, bc, dagger, gail, airl, sac, dac, got sarsa"),
    ("train.trainer=dagga", r"got dagga \(did you mean dagger\?\)$"),
    ("model.name=mpl", r"model\.name: expected mlp, .*, or module:Class of .*, got mpl \(did you mean mlp\?\)$"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_rejects_override_in_one_line(row, monkeypatch):
    if "num_envs=255" in row[0]:
        monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 4)
    assert unsaid(*row) == []
