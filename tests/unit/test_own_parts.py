"""Networks, objectives, players and scenarios of one's own: where they may come from, and how mistakes are told."""

import json
import sys

import gymnasium
import numpy as np
import pytest
import torch
import yaml

from commands import call, complaint, works
from multigrid_rl import metrics, tables
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import check_harmless, recipe_values
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.files import data_root
from multigrid_rl.gates import Gate
from multigrid_rl.metrics import STAGES
from multigrid_rl.models.registry import custom_network
from multigrid_rl.players.cards import PlayerError, read_card, read_network, write_player
from multigrid_rl.runs.reader import read_provenance
from multigrid_rl.runs.reports import Reports, gates_of
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import SAFE, strangers
from multigrid_rl.types import EpisodeTable, RunError
from own_code import LATER, SOURCE

SPACE = gymnasium.spaces.Box(-1, 1, (3,))


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_external_network_begins_as_its_seed_says(own_parts):
    one, same, other = (custom_network("own_parts:Small", {"hidden": [8]}, [SPACE], 2, seed) for seed in (1, 1, 2))
    assert torch.equal(one.policy.weight, same.policy.weight)
    assert not torch.equal(one.policy.weight, other.policy.weight)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.objective=own_parts:meaned", "expected shape (3,) for 3 rows, got ()"),
        ("train.objective=own_parts:detached", "expected a gradient by the log-probabilities, got none"),
        ("train.objective=own_parts:two", "arguments: expected (logp, rows, clip), got (logp, rows)"),
        ("train.objective=own_parts:lost", "expected finite numbers, got [nan"),
        ("train.objective=own_parts:in_place", "rows.advantages: expected what it was before the call"),
        ("train.objective=own_parts:misnamed", "'Rows' object has no attribute 'advantage' (own_parts.py:"),
        ("train.objective=own_parts:of_three", "expected shape (4,) for 4 rows, got ()"),
        ("model.name=own_parts:Large", "expected module:Class, got own_parts:Large: module"),
        ("model.name=own_parts:Bare", "state_size: expected a whole number, 0 without memory, got None"),
        ("model.name=own_parts:NoModule", "expected a torch.nn.Module, got NoModule"),
        ("model.name=own_parts:Careless", "IndexError: 2 (own_parts.py:"),
        ("model.name=own_parts:NoNumber", "forward: outputs: expected finite numbers, got [[nan"),
        ("model.name=own_parts:NoGradient", "expected outputs with a gradient, got none"),
        ("model.name=own_parts:Doubles", "policy.weight: expected torch.float32"),
        ("model.name=own_parts:Lazy", "policy.weight: expected a layer built with its sizes, got one of torch's Lazy"),
        ("model.name=own_parts:Masked", "mask: expected torch.float32, or register_buffer(..., persistent=False)"),
        ("model.name=own_parts:Normed", "expected buffers that no call changes, got another norm.running_mean"),
        ("model.name=own_parts:NoSequence", "expected a network with sequence, got none"),
        ("model.name=own_parts:NeverStarts", "sequence: outputs: expected those of forward, game after game"),
        ("model.name=own_parts:StepByStep", "sequence: outputs: expected those of forward, game after game"),
        ("model.name=own_parts:FewerOut", "forward: outputs: expected shape (3, 2) for 3 rows, got (3, 1)"),
        ("model.name=own_parts:WideValue", "forward: values: expected shape (3,) for 3 rows, got (3, 1)"),
        ("model.name=own_parts:Other", "logits: expected the outputs of forward"),
        ("model.name=own_parts:LogitsAlone", "forward: expected outputs, values, got Tensor"),
        ("model.name=own_parts:doubled", "expected (observation_space, outputs, hidden, generator), got (logp"),
        ("model.name=broken_parts:Net", "that can be imported, got broken_parts:Net: SyntaxError"),
    ],
)
def test_rejects_bad_parts_before_run_folder_exists(own_parts, override, message):
    (own_parts / "broken_parts.py").write_text("class Net(:\n")
    run = own_parts / "run"
    output = complaint(call("train", "env_id=CartPole-v1", override, f"run_dir={run}"))
    assert all(part in output for part in override.split("="))
    assert message in output
    assert output.count("model.name") < 2
    assert not run.exists()
    assert complaint(call("explain", "env_id=CartPole-v1", override)) == output


def test_external_network_takes_recipe_values_it_can_use(own_parts):
    model = compose(["scenario=halfcheetah", "model=own_parts:Small"]).model
    assert (model.normalise, model.scale_values, model.norm, model.log_std) == (False, False, "none", 0.0)
    assert model.hidden == compose(["scenario=halfcheetah"]).model.hidden


@pytest.mark.parametrize("override", ["normalise=true", "norm=layer", "log_std=-1", "activation=relu"])
def test_rejects_values_external_network_ignores(own_parts, override):
    key, value = override.split("=")
    refused = rf"^model\.{key}: expected nothing with model=own_parts:Small.*, got {value}$"
    with pytest.raises(ConfigError, match=refused):
        compose(["env_id=CartPole-v1", "model=own_parts:Small", f"model.{override}"])


SHORT = ("train.num_envs=4", "train.num_steps=8", "train.minibatch_size=32", "train.epochs=1")


def test_run_names_external_code_that_failed(own_parts):
    run = f"run_dir={own_parts / 'run'}"
    result = call("train", "env_id=CartPole-v1", "train.objective=own_parts:later", *SHORT, run, "--until", "2e3")
    assert result.exit_code == 3
    assert f"train.objective=own_parts:later: ValueError: no more (own_parts.py:{LATER})" in result.output


def test_memory_network_needs_no_logits_and_changes_are_noticed(own_parts):
    run = own_parts / "run"
    memory = ("model=own_parts:Remembers", *SHORT, "train.minibatch_size=16")  # of 4 sequences of 8 steps
    first = works("train", "env_id=CartPole-v1", *memory, f"run_dir={run}", "--until", "64")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["gradient_steps"] for row in rows] == [2, 4]
    assert "; model own_parts:Remembers" in first.output
    assert list(read_provenance(run)["modules"]) == ["own_parts"]
    (own_parts / "own_parts.py").write_text(SOURCE + "\n")
    sys.modules.pop("own_parts")
    assert "own_parts: changed since the run began" in call("train", "--resume", str(run), "--until", "96").output
    (own_parts / "own_parts.py").write_text(SOURCE.replace("GRUCell", "RNNCell"))
    sys.modules.pop("own_parts")
    output = complaint(call("train", "--resume", str(run), "--until", "128"))
    assert "tensor core." in output
    assert "expected shape (64,) of the card's network, got (192,)" in output


def test_card_imports_no_module_where_code_is_refused(own_parts, monkeypatch, caplog):
    network = custom_network("own_parts:Small", {"hidden": [8]}, [SPACE], 2)
    card = {
        "name": "mine", "architecture": {"name": "own_parts:Small", "hidden": [8]}, "observation": {"size": 3},
        "actions": 2, "scenario": "gymnasium", "seats": ["agent_0"], "provenance": {},
    }  # fmt: skip
    folder = own_parts / "player"
    write_player(folder, network.state_dict(), card)
    sys.modules.pop("own_parts")
    refused = pytest.raises(PlayerError, match=r"architecture\.name: .*code is refused here.*, got own_parts:Small")
    with strangers(), refused:
        read_network(folder, read_card(folder))
    with monkeypatch.context() as patch, refused:
        patch.setenv(SAFE, "1")
        read_network(folder, read_card(folder))
    assert "own_parts" not in sys.modules
    loaded = read_network(folder, read_card(folder))
    said = "architecture.name: names code, which is run: own_parts:Small (`multigrid-rl --safe` refuses it)"
    assert caplog.messages in ([], [said])  # once in a process
    assert torch.equal(loaded.policy.weight, network.policy.weight)


@pytest.mark.parametrize(
    "line",
    [
        "model: {name: 'a:B'}",
        "model: 'a:B'",
        "train: {objective: 'a:b'}",
        "scenario: {env_id: 'a:B-v0'}",
        "scenario: {seats: {blue_0: 'a:B'}}",
        "scenario: {league: {anchors: {'a:B': 1}}}",
        "curriculum: [{seats: {blue_0: 'a:B'}, steps: 3}]",
    ],
)
def test_recipe_names_no_code_where_it_is_refused(tmp_path, monkeypatch, line):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"defaults: []\n{line}\n")
    assert recipe_values(str(recipe))
    monkeypatch.setenv(SAFE, "1")
    with pytest.raises(ConfigError, match="imports code"):
        recipe_values(str(recipe))


BOTS = """
import numpy as np


class Left:
    def __init__(self, spec):
        self.spec = spec

    def act(self, view, state, rng):
        return np.zeros(len(view.tokens), np.int64), state


class Counting(Left):
    def initial_state(self, games):
        return np.zeros(games, np.int64)

    def reset_state(self, state, done):
        return np.where(done, 0, state)

    def act(self, view, state, rng):
        return state % 7, state + 1


class Late(Left):
    def __init__(self, spec):
        self.steps = 0

    def act(self, view, state, rng):
        self.steps += 1
        return np.full(len(view.tokens), 7 * (self.steps > 3)), state


class Wild(Left):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), 7), state


class Bare(Left):
    act = None


class Alone(Left):
    def act(self, view, state, rng):
        return np.zeros(len(view.tokens), np.int64)
"""


@pytest.fixture
def own_bots(own_parts):
    (own_parts / "own_bots.py").write_text(BOTS)
    yield own_parts
    sys.modules.pop("own_bots", None)


def test_seats_external_players_alone_and_mixed(own_bots):
    config = compose(["scenario.seats.blue_0=own_bots:Left:3,own_bots:Counting:1,random:1", "experiment=none"])
    assert config.scenario.kind.opponents == {"blue_0": {"own_bots:Left": 3, "own_bots:Counting": 1, "random": 1}}
    factory = env_factory(config)
    assert [row.name for row in factory.packed().load()["blue_0"]] == ["own_bots:Left", "own_bots:Counting", "random"]
    env = factory.build(64, 0)
    for _ in range(3):
        env.step({"red_0": np.full((64, 1), 6)})
    env.set_state(env.get_state())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_bots:Wild", "player own_bots:Wild: actions: expected integers 0 to 6, one for each of 3 games"),
        ("own_bots:Bare", "player own_bots:Bare: TypeError: 'NoneType' object is not callable"),
        ("own_bots:Alone", "player own_bots:Alone: act: expected actions and the next memory, a tuple of two, got nd"),
        ("own_bots:Right", "player own_bots:Right: expected module:Class, got own_bots:Right: module 'own_bots' has"),
        ("own_bots:np", "got own_bots:np: <module 'numpy'"),
    ],
)
def test_rejects_bad_players_before_run_folder_exists(own_bots, name, message):
    run = own_bots / "run"
    assert message in complaint(call("train", f"scenario.seats.blue_0={name}", f"run_dir={run}"))
    assert not run.exists()


def test_player_failing_mid_run_is_reported_in_one_line(own_bots):
    env = env_factory(compose(["scenario.seats.blue_0=own_bots:Late"])).build(2, 0)
    done = {"red_0": np.full((2, 1), 6)}
    env.step(done)
    env.step(done)
    with pytest.raises(RunError, match="player own_bots:Late: actions: expected integers 0 to 6, one for each of 2"):
        env.step(done)


def test_takes_scenario_and_network_by_name(own_parts, monkeypatch):
    mine = {**yaml.safe_load((data_root() / "configs/scenario/1v1.yaml").read_text()), "aliases": [], "recipe": None}
    mine["seats"]["blue_0"] = "hunter"
    (own_parts / "mine.yaml").write_text(yaml.safe_dump(mine))
    monkeypatch.chdir(own_parts)
    config = compose(["scenario=./mine.yaml", "scenario.game.max_steps=50", "model=own_parts:Small"])
    assert (config.scenario.name, config.scenario.game.max_steps, config.experiment) == ("mine", 50, None)
    assert (config.scenario.seats["blue_0"], config.model.name) == ("hunter", "own_parts:Small")
    (own_parts / "mine.yaml").write_text(yaml.safe_dump({**mine, "seats": {"blue_0": "idle", "red_0": "learn"}}))
    assert compose(["scenario=./mine.yaml"]).scenario.seats["blue_0"] == "idle"  # read anew
    monkeypatch.setenv("MULTIGRID_RL_SCENARIOS", f"nowhere:{own_parts}")
    assert load_scenario("mine") == compose(["scenario=mine"]).scenario
    assert compose(["curriculum=[{scenario: ./mine.yaml, steps: 9}]"]).curriculum[0].scenario.name == "mine"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("1v1", {}, "scenario: expected a file with a name of its own, of letters, digits and -, got ./1v1.yaml"),
        ("mine", {"seats": {"blue_0": "a:B", "red_0": "learn"}}, "'scenario.seats.blue_0=a:B' in mine.yaml"),
        ("mine", {"seats": {"blue_0": {"a:B": 1, "idle": 1}, "red_0": "learn"}}, "a:B: 1"),
        ("mine", {"description": "${oc.env:HOME}"}, "nor imports code"),
        ("mine", {"package": "gymnasium", "env_id": "a:B-v0"}, "nor imports code"),
        ("mine", {"colour": 3}, "scenario.colour: "),
        ("mine", None, "scenario: expected a file like those in configs/scenario, got ./mine.yaml: list"),
        ("none", None, "No such file"),
    ],
)
def test_rejects_invalid_and_unsafe_scenario_files(own_parts, monkeypatch, name, change, message):
    mine = {**yaml.safe_load((data_root() / "configs/scenario/1v1.yaml").read_text()), "aliases": []}
    if name != "none":
        (own_parts / f"{name}.yaml").write_text(yaml.safe_dump([1] if change is None else {**mine, **change}))
    monkeypatch.chdir(own_parts)
    if "seats" in (change or {}):
        assert "a:B" in str(compose([f"scenario=./{name}.yaml"]).scenario.seats["blue_0"])
    monkeypatch.setenv(SAFE, "1")
    with pytest.raises(ConfigError) as error:
        compose([f"scenario=./{name}.yaml"])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_installed_package_registers_players_and_scenarios(tmp_path, monkeypatch):
    home = tmp_path / "duels-1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: duels\nVersion: 1.0\n")
    (home / "entry_points.txt").write_text(
        "[multigrid_rl.players]\nsleeper = plugged_bots:Sleeper\n"
        "[multigrid_rl.scenarios]\nduels = plugged_duels\ngone = not_there.at_all\n"
    )
    (tmp_path / "plugged_bots.py").write_text(
        "import numpy as np\n\n\nclass Sleeper:\n    def __init__(self, spec): pass\n"
        "    def act(self, view, state, rng): return np.full(len(view.tokens), 6), state\n"
    )
    (tmp_path / "plugged_duels").mkdir()
    ours = (data_root() / "configs" / "scenario" / "1v1.yaml").read_text()
    (tmp_path / "plugged_duels" / "nap.yaml").write_text(ours.replace("aliases", "#").replace("blue-rookie", "sleeper"))
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(["scenario=nap"])
    assert config.scenario.kind.opponents == {"blue_0": {"sleeper": 1.0}}
    factory = env_factory(config).packed()
    assert factory.load()["blue_0"][0].name == "sleeper"
    with pytest.raises(PlayerError, match=r"sleeper.*, a folder"):
        env_factory(compose(["scenario=1v1", "scenario.seats.blue_0=snorer"])).load()


_GROUP = "from multigrid_rl.metrics import MetricGroup\nTHING = MetricGroup({'x': ('share', 'share')}"


@pytest.mark.parametrize(
    ("group", "body", "message"),
    [
        ("metrics", "import not_there", r"entry point plugged:THING: ModuleNotFoundError: .*\(plugged.py:1\)"),
        ("metrics", "def (", "entry point plugged:THING: SyntaxError"),
        ("metrics", f"{_GROUP})", r"plugged:THING: expected a MetricGroup \(metrics: with samples\), got .*Group"),
        ("metrics", f"{_GROUP}, lambda *_: {{'x': 0.5}})", "metrics x: TypeError: .*float"),
        ("measured", "THING = 3", "plugged:THING: expected a MetricGroup .*got .*int"),
        ("trainers", "import not_there", "entry point plugged:THING: ModuleNotFoundError"),
    ],
)
def test_installed_parts_that_are_broken_are_named(tmp_path, monkeypatch, group, body, message):
    (tmp_path / "plugged.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugged", raising=False)
    monkeypatch.setattr(tables, "installed", lambda name: {"mine": "plugged:THING"} if name == group else {})
    overrides = ["train.trainer=mine"] if group == "trainers" else []

    def use_all():
        specs = env_factory(compose(["scenario=single", *overrides])).specs
        metrics.glossary()
        metrics.samples_of(EpisodeTable.empty(1, len(specs.events), 0), specs, specs.learning)

    with pytest.raises((ConfigError, RunError), match=message):
        use_all()


@pytest.mark.parametrize(("home", "failure"), [("plugged", RunError), ("multigrid_rl.metrics", KeyError)])
def test_failing_metrics_break_a_run_off_and_ours_are_not_called_the_users(home, failure):
    def samples(*_):
        raise KeyError("lengths")

    samples.__module__ = home
    with pytest.raises(failure, match=r"^(metrics x: KeyError: )?'lengths'"):
        metrics.MetricGroup({"x": ("share", "share")}, samples).measure(EpisodeTable.empty(1, 0, 0), None, ())


def test_gate_may_use_custom_metric_function(tmp_path, monkeypatch):
    (tmp_path / "plugged_gates.py").write_text(
        "def longest(episodes): return episodes.length.max()\ndef broken(episodes): return episodes.lengths\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = compose(["scenario=single", "scenario.gates=[{metric:plugged_gates:longest,at_most:40}]"])
    specs = env_factory(config).specs
    gates = gates_of(config, specs)
    table = EpisodeTable.empty(1, len(specs.events), 0)
    table = table._replace(
        length=np.full(100, 30), returns=np.ones((100, 1)), events=np.ones((100, 1, len(specs.events))),
        winner=np.zeros(100, np.int8), players=np.zeros((100, 0), np.int16),
    )  # fmt: skip
    counts, measured = {"env_steps": 5, "policy_updates": 1}, {f"timing/{stage}_s": 0.0 for stage in STAGES}
    row = Reports(gates).row(counts, measured, table, specs)
    assert (row["own/plugged_gates:longest"], row["gates/own/plugged_gates:longest/met"]) == (30.0, 1.0)
    wrong = Gate("own/plugged_gates:broken", "<=", 1.0)
    with pytest.raises(RunError, match=r"scenario.gates: metric own/plugged_gates:broken: AttributeError"):
        Reports([wrong]).row(counts, measured, table, specs)
    with pytest.raises(ConfigError, match=r"scenario.gates: metric: expected module:function, got plugged_gates:no"):
        Reports([Gate("own/plugged_gates:nobody", "<=", 1.0)])
    monkeypatch.setenv(SAFE, "1")
    with pytest.raises(ConfigError, match="imports code"):
        check_harmless("scenario", tmp_path, {"scenario.gates": [{"metric": "plugged_gates:longest", "at_most": 40}]})
