"""Players of RLlib's own checkpoints: exported, they act as their modules did, and play in a cup."""

import json
import pickle
import shutil

import cloudpickle
import numpy as np
import pytest
import safetensors.torch
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from commands import call, complaint, works
from multigrid_rl.competition.bundle import load_team, read_cards
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import read_card
from multigrid_rl.rllib import FrozenPlayerModule, NetworkModule, RedBlueDoors, config
from multigrid_rl.rllib.private import without_object_store
from multigrid_rl.training.stages import card_of
from multigrid_rl.types import SeatView
from multigrid_rl.world import spaces

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start
MODULES = "learner_group/learner/rl_module"


def checkpoint(folder, modules, scenario="1v1", observation="flat", connector=None, **player):
    """Write the checkpoint of stock PPO, whose policies are those of the seats or teams in ``modules``."""
    specs = {name: RLModuleSpec(model_config=config) for name, config in modules.items()}
    if observation == "tokens":
        specs = {name: RLModuleSpec(NetworkModule, model_config=config) for name, config in modules.items()}
    if player:
        specs["frozen"] = RLModuleSpec(FrozenPlayerModule, model_config=player)
    names = set(specs)

    def mapping(agent, *_, **__):
        return next(name for name in (agent, agent.split("_")[0], "frozen", *modules) if name in names)

    settings = (
        PPOConfig()
        .environment(RedBlueDoors, env_config={"scenario": scenario, "observation": observation})
        .env_runners(num_env_runners=0, env_to_module_connector=connector)
        .multi_agent(policies=names, policy_mapping_fn=mapping, policies_to_train=list(modules))
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .training(train_batch_size=64, minibatch_size=32, num_epochs=1, lr=1e-3)
        .debugging(seed=3)
    )
    with without_object_store():
        algorithm = settings.build_algo()
    algorithm.train()
    algorithm.save_to_path(str(folder))
    algorithm.stop()
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint in which red learns against a frozen player."""
    return checkpoint(tmp_path_factory.mktemp("rllib") / "check", {"red": None}, player="blue-rookie")


def refusal(*words):
    """The one line with which an export is refused."""
    return complaint(call("export", *words))


def acts_alike(folder, module, seat="red_0", scenario="1v1", observation="flat"):
    """The bundle's outputs and values are the module's, up to rounding."""
    spec = load_scenario(scenario).spec
    player = load_team(folder, spec, seat.split("_")[0])[seat]
    env = RedBlueDoors({"scenario": scenario, "observation": "tokens"})
    rng, rows = np.random.default_rng(0), []
    env.reset(seed=1)
    while len(rows) < 200:
        seen = env.step({agent: rng.integers(7) for agent in env.agents})[0]
        rows += [seen[seat]] if seat in seen else []
        if not env.agents:
            env.reset()
    tokens = np.stack(rows)
    source = RLModule.from_checkpoint(str(module))
    batch = {"obs": torch.as_tensor(spaces.flat_observation(spec, tokens) if observation == "flat" else tokens)}
    wanted = source.forward_inference(batch)["action_dist_inputs"].numpy()
    tokens = tokens.astype(np.uint8)
    outputs, _ = player.outputs(SeatView(tokens, None, 0), player.initial_state(len(tokens)))
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)
    assert wanted.std() > 1e-3
    with torch.no_grad():
        values = player.network(torch.from_numpy(tokens))[1].numpy()
        np.testing.assert_allclose(values, source.compute_values(batch).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_stock_ppo_is_exported_inspected_and_plays_in_a_cup(trained, tmp_path):
    works("export", trained, "--seat", "red_0", "-o", tmp_path / "entries" / "mine")
    acts_alike(tmp_path / "entries" / "mine", trained / MODULES / "red")
    card = read_card(tmp_path / "entries" / "mine")
    assert (card.scenario, card.seats, card.architecture["hidden"]) == ("1v1", ["red_0"], [256, 256])
    inspected = call("inspect", tmp_path / "entries" / "mine")
    assert inspected.output.splitlines()[-1].startswith("ok"), inspected.output
    cup = ["--with", "random", "--games", 4, "--seed", 1, "-o", tmp_path / "cup"]
    played = works("cup", tmp_path / "entries", *cup)
    assert sorted(json.loads(played.output.splitlines()[-1])["ranking"]) == ["mine", "random"]
    entries = json.loads((tmp_path / "cup" / "cup.json").read_text())["entries"]
    about = {entry["name"]: entry["about"] for entry in entries}
    assert about["mine"].startswith("mlp for red_0 of 1v1, unknown training steps")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "observation"),
    [
        (DefaultModelConfig(fcnet_hiddens=[16], vf_share_layers=True, fcnet_activation="relu"), "flat"),
        (DefaultModelConfig(fcnet_hiddens=[12, 10], head_fcnet_hiddens=[8], head_fcnet_activation="tanh"), "flat"),
        ({"hidden": [16], "activation": "relu"}, "tokens"),
        ({"name": "embedding", "hidden": [16]}, "tokens"),
    ],
    ids=["shared", "heads", "ours", "embedding"],
)
def test_networks_that_can_be_expressed(config, observation, tmp_path):
    folder = checkpoint(tmp_path / "check", {"red": config}, observation=observation, player="blue-rookie")
    works("export", folder, "--seat", "red", "-o", tmp_path / "mine")
    acts_alike(tmp_path / "mine", folder / MODULES / "red", observation=observation)


@pytest.mark.parametrize(
    ("scenario", "seat", "values"),
    [("cartpole", "agent_0", []), ("file", "red_0", []), ("2v2", "red", ["scheme=ctde"])],
    ids=["another game", "file", "central critic"],
)
def test_every_kind_of_run_of_ours_is_exported_as_its_run_would(tmp_path, monkeypatch, scenario, seat, values):
    monkeypatch.chdir(tmp_path)
    shutil.copy(data_root() / "configs" / "scenario" / "1v1.yaml", tmp_path / "duel.yaml")
    small = ["train.num_envs=8", "train.num_steps=16", "train.minibatch_size=128", *values]
    algorithm = config("./duel.yaml" if scenario == "file" else scenario, *small, seed=1).build_algo()
    algorithm.save_to_path(str(tmp_path / "check"))
    stages = algorithm.run.stages
    module = stages[-1].factory.specs.modules[0]
    weights = algorithm.run.learner.get_weights()[module]
    algorithm.stop()
    (tmp_path / "duel.yaml").unlink()
    works("export", tmp_path / "check", "--seat", seat, "-o", tmp_path / "mine")
    card, *_ = read_cards(tmp_path / "mine").values()
    wanted = card_of(stages[-1], module, algorithm.config.settings.run)
    assert (card.env and card.env.model_dump(), card.scenario) == (wanted["env"], wanted["scenario"])
    assert card.seats == wanted["seats"]
    first = min((tmp_path / "mine").rglob("model.safetensors"))
    for name, value in safetensors.torch.load_file(first).items():
        np.testing.assert_array_equal(value, weights[f"net.{name}"])
    for words, said in (
        (["nobody"], "seat: expected"),
        ([seat, "--scenario", "1v1"], "--scenario: expected nothing"),
    ):
        assert said in refusal(tmp_path / "check", "--seat", *words, "-o", tmp_path / "no")


@pytest.mark.slow
def test_a_module_of_any_name_and_teams_of_two_networks(tmp_path):
    small = DefaultModelConfig(fcnet_hiddens=[8])
    folder = checkpoint(tmp_path / "check", {"red_0": small, "red_1": small, "other": small}, "2v2")
    works("export", folder, "--seat", "red", "-o", tmp_path / "pair")
    assert sorted(read_cards(tmp_path / "pair")) == ["red_0", "red_1"]
    acts_alike(tmp_path / "pair", folder / MODULES / "red_1", "red_1", "2v2")
    works("export", folder / MODULES / "other", "--seat", "blue", "-o", tmp_path / "blue")
    assert read_card(tmp_path / "blue").seats == ["blue_0", "blue_1"]
    refused = refusal(folder, "--seat", "blue_0", "-o", tmp_path / "no")
    assert "seat: expected a module blue_0 or blue, or the folder of one below" in refused
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_what_cannot_be_expressed_is_refused_in_one_line(trained, tmp_path, monkeypatch):
    silu = DefaultModelConfig(fcnet_hiddens=[8], fcnet_activation="silu")
    normed = DefaultModelConfig(fcnet_hiddens=[8], fcnet_use_layernorm=True)
    folder = checkpoint(tmp_path / "check", {"red": silu, "blue": normed})
    for source, seat, message in (
        (folder, "red_0", "expected RLlib's default MLP, linear layers with tanh or relu between all"),
        (folder, "blue_0", "expected RLlib's default MLP, linear layers with tanh or relu between all"),
        (trained / MODULES / "frozen", "blue_0", "NetworkModule, got FrozenPlayerModule"),
        (trained, "red_3", "seat: expected blue_0, red_0, got red_3"),
    ):
        assert message in refusal(source, "--seat", seat, "-o", tmp_path / "no")
    args = (trained, "--seat", "red_0", "-o", tmp_path / "no")
    assert "nothing with a checkpoint of RLlib's" in refusal(*args, "--checkpoint", "step_1")
    shutil.copytree(trained / MODULES / "red", tmp_path / "alone")
    lonely = refusal(tmp_path / "alone", "--seat", "red_0", "-o", tmp_path / "no")
    assert "expected an algorithm's checkpoint, or a module's in one" in lonely
    monkeypatch.setenv("MULTIGRID_RL_SAFE", "1")
    assert "as code is refused here (--safe)" in refusal(*args)


class MyDoors(RedBlueDoors):
    """With a reward of somebody's own."""


def test_connectors_and_environments_of_ones_own(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "check")
    made = folder / "class_and_ctor_args.pkl"
    content = pickle.loads(made.read_bytes())
    settings = content["ctor_args_and_kwargs"][0][0]

    def asked(env, spaces, device):
        return env.missing

    for key, make, name in (
        ("env_to_module", lambda *_: [MeanStdFilter(multi_agent=True)], "MeanStdFilter"),
        ("env_to_module", lambda *_: PrevActionsPrevRewards(multi_agent=True), "PrevActionsPrevRewards"),
        ("module_to_env", asked, "asked"),
    ):
        settings[f"_{key}_connector"] = make
        made.write_bytes(cloudpickle.dumps(content))
        refused = refusal(folder, "--seat", "red_0", "-o", tmp_path / "no")
        assert f"{key}_connector: expected none, as a player sees the game without it, got {name}" in refused
        settings[f"_{key}_connector"] = None
    settings["_env_to_module_connector"] = lambda *_: [FlattenObservations(multi_agent=True)]
    settings["env"] = "my-doors"  # register_env's, which is of another process
    made.write_bytes(cloudpickle.dumps(content))
    args = (folder, "--seat", "red_0", "-o", tmp_path / "named")
    assert "--scenario for one of your own, got my-doors" in refusal(*args)
    works("export", *args, "--scenario", "1v1")
    settings["env"] = MyDoors
    made.write_bytes(cloudpickle.dumps(content))
    works("export", folder, "--seat", "red_0", "-o", tmp_path / "mine")


def _flattened(*_, **__):
    return FlattenObservations(multi_agent=True)


def test_flattened_views_are_exported_though_their_space_has_lost_its_bounds(tmp_path):
    folder = checkpoint(tmp_path / "check", {"red": None, "blue": None}, connector=_flattened)
    works("export", folder, "--seat", "red_0", "-o", tmp_path / "mine")
    acts_alike(tmp_path / "mine", folder / MODULES / "red")


def test_damaged_checkpoints_and_other_environments_are_refused(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "check")
    args = (folder, "--seat", "red_0", "-o", tmp_path / "no")
    state = folder / MODULES / "red" / "module_state.pkl"
    state.write_bytes(state.read_bytes()[:100])
    assert "expected a module of an RLlib checkpoint" in refusal(*args)
    made = folder / "class_and_ctor_args.pkl"
    content = pickle.loads(made.read_bytes())
    content["ctor_args_and_kwargs"][0][0]["env"] = "CartPole-v1"
    made.write_bytes(cloudpickle.dumps(content))
    assert "or --scenario for one of your own, got CartPole-v1" in refusal(*args)
    for other in ({"a": 1}, {"ctor_args_and_kwargs": (({"lr": 1},), {})}, []):
        made.write_bytes(pickle.dumps(other))
        assert f"{made}: expected a" in refusal(*args)
    made.write_bytes(b"")
    assert "expected a file of an RLlib checkpoint" in refusal(*args)
