"""Settings of ML-Agents' trainers become recipes, key by key."""

import copy

import pytest
import yaml

from commands import call, complaint, works
from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.walkers.mlagents_command import translate


def ppo(*numbers, normalize=False, lambd=0.95):
    """The settings of an example, restated; what none of them varies stands here once."""
    batch, buffer, beta, units, layers, gamma, steps, horizon = numbers
    return {
        "trainer_type": "ppo",
        "hyperparameters": {
            "batch_size": batch, "buffer_size": buffer, "learning_rate": 0.0003, "learning_rate_schedule": "linear",
            "beta": beta, "epsilon": 0.2, "lambd": lambd, "num_epoch": 3,
        },
        "network_settings": {
            "normalize": normalize, "hidden_units": units, "num_layers": layers, "vis_encode_type": "simple",
        },
        "reward_signals": {"extrinsic": {"gamma": gamma, "strength": 1.0}},
        "keep_checkpoints": 5,
        "max_steps": steps,
        "time_horizon": horizon,
        "summary_freq": 30000,
    }  # fmt: skip


EXAMPLES = {
    "Walker": ppo(2048, 20480, 0.005, 512, 3, 0.995, 30_000_000, 1000, normalize=True),
    "Crawler": ppo(2048, 20480, 0.005, 512, 3, 0.995, 10_000_000, 1000, normalize=True),
    "3DBall": ppo(64, 12000, 0.001, 128, 2, 0.99, 500_000, 1000, normalize=True, lambd=0.99),
    "PushBlock": ppo(128, 2048, 0.01, 256, 2, 0.99, 2_000_000, 64),
    "Basic": ppo(32, 256, 0.005, 20, 1, 0.9, 500_000, 3),
}
HALLWAY = ppo(128, 1024, 0.03, 128, 2, 0.99, 10_000_000, 64)
HALLWAY["network_settings"]["memory"] = {"sequence_length": 64, "memory_size": 128}
SELF_PLAY = {
    "save_steps": 50_000, "team_change": 100_000, "swap_steps": 2000, "window": 10,
    "play_against_latest_model_ratio": 0.5, "initial_elo": 1200.0,
}  # fmt: skip


def written(tmp_path, settings, name="Walker", **parts):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {name: settings}, **parts}))
    return path


def recipe_of(tmp_path, settings, *options):
    """What the verb writes, and the run that it makes."""
    output = tmp_path / "recipe.yaml"
    result = works("config", "import-mlagents", written(tmp_path, settings), "-o", output, *options)
    return result.output, compose(["scenario=walker", f"experiment={output}"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_becomes_recipe_with_same_numbers(tmp_path, name):
    settings = EXAMPLES[name]
    _, lines, recipe = translate(written(tmp_path, settings))
    hyper, net, train = settings["hyperparameters"], settings["network_settings"], recipe["train"]
    assert train["num_envs"] * train["num_steps"] == hyper["buffer_size"]
    assert abs(train["num_steps"] - settings["time_horizon"]) <= max(1, settings["time_horizon"] // 40)
    assert (train["minibatch_size"], train["lam"]) == (hyper["batch_size"], hyper["lambd"])
    assert (train["lr"], train["lr_final"], train["epochs"]) == (0.0003, 1e-10, 3)
    assert (train["entropy_coef"], train["entropy_final"]) == (hyper["beta"], 1e-5)
    assert (train["clip"], train["clip_final"]) == (0.2, 0.1)
    assert train["entropy_decay"] == train["until"] == settings["max_steps"]
    assert (train["gamma"], train["keep_checkpoints"]) == (settings["reward_signals"]["extrinsic"]["gamma"], 5)
    assert recipe["model"]["hidden"] == [net["hidden_units"]] * net["num_layers"]
    assert recipe["model"]["normalise"] == net["normalize"]
    statuses = {line.key: line.status for line in lines}
    assert len(statuses) == len(hyper) + len(net) + 2 + 5  # every key is listed
    assert (statuses["max_steps"], statuses["summary_freq"]) == ("taken", "left out")
    assert "refused" not in statuses.values()


def test_verb_reports_every_key_and_allows_ten_walkers(tmp_path):
    output, run = recipe_of(tmp_path, EXAMPLES["Walker"], "--agents", 10)
    assert len(output.splitlines()) == 19
    assert (run.train.num_envs, run.train.num_steps, run.train.clip_final) == (10, 2048, 0.1)
    assert (run.model.name, run.model.activation, run.model.bound) == ("mlp", "silu", "clip3")


def test_common_settings_precede_ml_agents_defaults(tmp_path):
    common = {"network_settings": {"hidden_units": 64, "num_layers": 1}, "max_steps": 1000}
    path = written(tmp_path, {"network_settings": {"hidden_units": 32}}, default_settings=common)
    name, _, recipe = translate(path)
    train = recipe["train"]
    assert (name, recipe["model"]["hidden"], train["until"]) == ("Walker", [32], 1000)
    assert (train["num_envs"], train["num_steps"], train["minibatch_size"]) == (160, 64, 1024)
    assert (train["lr"], train["entropy_coef"], train["gamma"], train["epochs"]) == (3e-4, 5e-3, 0.99, 3)
    common["network_settings"] |= {"memory": {"memory_size": 64}}
    off = translate(written(tmp_path, {"network_settings": {"memory": None}}, default_settings=common))[2]
    assert (off["model"]["hidden"], off["defaults"]) == ([64], [{"override /model": "mlp"}])


def test_sections_without_keys_have_their_defaults(tmp_path):
    recipe = translate(written(tmp_path, {"network_settings": {"memory": {}}, "self_play": {}}))[2]
    assert (recipe["model"]["hidden"], recipe["defaults"]) == ([64], [{"override /model": "lstm"}])
    assert (recipe["scenario"]["league"]["every"], recipe["scenario"]["league"]["most"]) == (20_000, 10)
    curious = translate(written(tmp_path, {"reward_signals": {"extrinsic": {}, "curiosity": {}}}))[1]
    assert [line.key for line in curious if line.status == "refused"] == ["reward_signals.curiosity"]


@pytest.mark.parametrize(
    ("schedules", "finals"),
    [
        ({"learning_rate_schedule": "constant"}, (None, None, None)),
        ({"learning_rate_schedule": "constant", "beta_schedule": "linear"}, (None, 1e-5, None)),
        ({"epsilon_schedule": "constant"}, (1e-10, 1e-5, None)),
    ],
)
def test_missing_schedules_follow_step_size(tmp_path, schedules, finals):
    _, _, recipe = translate(written(tmp_path, {"hyperparameters": schedules}))
    assert tuple(recipe["train"][key] for key in ("lr_final", "entropy_final", "clip_final")) == finals


def test_memory_becomes_lstm_that_learns_whole_sequences(tmp_path):
    output, run = recipe_of(tmp_path, HALLWAY)
    assert (run.model.name, run.model.hidden, run.train.num_steps, run.train.num_envs) == ("lstm", (64,), 64, 16)
    assert run.train.minibatch_size == 128
    assert "changed   network_settings.memory.memory_size" in output
    # A buffer that is no multiple of a sequence: the nearest number of whole ones, no divisor of the buffer.
    hyper = {**HALLWAY["hyperparameters"], "buffer_size": 1000}
    _, _, recipe = translate(written(tmp_path, {**HALLWAY, "hyperparameters": hyper}))
    assert (recipe["train"]["num_steps"], recipe["train"]["num_envs"]) == (64, 16)


def test_self_play_becomes_settings_of_league(tmp_path):
    _, _, recipe = translate(written(tmp_path, {"self_play": SELF_PLAY}))
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"defaults": recipe["defaults"], "scenario": recipe["scenario"]}))
    league = compose(["scenario=1v1-league", f"experiment={path}"]).scenario.league
    assert (league.every, league.most, league.latest_share, league.redraw) == (50_000, 10, 0.5, 2000)
    assert (league.weighting, league.win) == ("uniform", None)


def test_accepts_numbers_that_yaml_reads_as_strings(tmp_path):
    _, _, recipe = translate(written(tmp_path, {"max_steps": 5.0e5, "hyperparameters": {"learning_rate": "3e-4"}}))
    assert (recipe["train"]["until"], recipe["train"]["lr"]) == (500_000, 3e-4)


def changed(**parts):
    settings = copy.deepcopy(EXAMPLES["Walker"])
    for key, value in parts.items():
        *place, last = key.split("__")
        node = settings
        for part in place:
            node = node.setdefault(part, {})
        node[last] = value
    return settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (changed(trainer_type="sac", hyperparameters__tau=0.005), "Walker.trainer_type: expected ppo, got sac"),
        (changed(trainer_type="poca"), "Walker.trainer_type: expected ppo, got poca"),
        (changed(network_settings__vis_encode_type="resnet"), "vis_encode_type: expected simple, got resnet"),
        (changed(hyperparameters__bach_size=3), "bach_size (did you mean hyperparameters.batch_size?)"),
        (changed(hyperparameters__epsilon=0), "epsilon: expected a number of 1e-06 and more, got 0"),
        (changed(hyperparameters__num_epoch=2.5), "num_epoch: expected a whole number of 1 and more, got 2.5"),
        (changed(network_settings__num_layers=9), "num_layers: expected a whole number of 1 to 8, got 9"),
        (changed(network_settings__normalize=1), "normalize: expected true or false, got 1"),
        (changed(max_steps=True), "max_steps: expected a whole number of 1 and more, got True"),
        (changed(max_steps=[1]), "max_steps: expected a whole number of 1 and more, got [1]"),
        (changed(hyperparameters=3), "got hyperparameters"),
        (changed(reward_signals__curiosity__strength=0.02), "curiosity: expected extrinsic rewards alone, got"),
        (changed(reward_signals__rnd__strength=0.02), "rnd: expected extrinsic rewards alone, got"),
    ],
)  # fmt: skip
def test_rejects_unsupported_settings_by_name(tmp_path, settings, message):
    result = call("config", "import-mlagents", written(tmp_path, settings), "-o", tmp_path / "recipe.yaml")
    assert message in complaint(result)
    assert not (tmp_path / "recipe.yaml").exists()


def test_warns_of_values_beyond_the_typical_range(tmp_path):
    settings = changed(hyperparameters__beta=0.05, hyperparameters__num_epoch=10)
    result = works("config", "import-mlagents", written(tmp_path, settings), "-o", tmp_path / "recipe.yaml")
    warned = [line for line in result.output.splitlines() if line.startswith("warning:")]
    assert warned == ["warning:  hyperparameters.beta: 0.05 lies beyond ML-Agents' typical 0.0001 to 0.01"]


def test_tells_which_command_imitates(tmp_path):
    settings = changed(reward_signals__gail__strength=0.1, behavioral_cloning__demo_path="x.demo")
    _, lines, recipe = translate(written(tmp_path, settings))
    told = {line.key: (line.status, line.result) for line in lines}
    assert told["reward_signals.gail"][0] == told["behavioral_cloning"][0] == "left out"
    assert "train=gail data=" in told["reward_signals.gail"][1]
    assert "train=bc data=" in told["behavioral_cloning"][1]
    assert recipe["train"]["value_loss"] == "clipped", "as ML-Agents clips it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "behaviors: expected settings by behaviour, got none"),
        ("[1, 2", "expected trainer settings of ML-Agents, got not valid yaml"),
        ("Walker:\n  trainer: ppo\n", "behaviors: expected settings by behaviour, got Walker"),
        ("behaviors: {A: {}, B: {}}", "--behavior: expected one of A, B, got none"),
        ("behaviors: {A: 3}", "A: expected keys and values, got 3"),
        ("behaviours: {A: {}}\nbehaviors: {A: {}}", "got behaviours (did you mean behaviors?)"),
    ],
)
def test_rejects_broken_file_in_one_line(tmp_path, text, message):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    assert message in refusal(translate, path)


def test_selects_behaviour_and_reads_sibling_settings(tmp_path):
    path = tmp_path / "settings.yaml"
    others = "env_settings: {num_envs: 3}\nengine_settings: {width: 84}\n"
    path.write_text("behaviors: {A: {}, B: {max_steps: 7}}\n" + others)
    name, lines, recipe = translate(path, "B")
    assert (name, recipe["train"]["until"]) == ("B", 7)
    assert [line.key for line in lines[1:] if line.status == "left out"] == ["env_settings", "engine_settings"]
    assert len(lines) == 3
