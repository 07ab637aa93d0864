"""The red/blue-door game as RLlib plays it: the same games as ``Match``, with frozen players as modules."""

import pickle

import numpy as np
import pytest
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.utils.pre_checks.env import check_multiagent_environments
from ray.tune.registry import ENV_CREATOR, _global_registry

from composing import available
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.recipes import scenario_names
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.factories import match_of
from multigrid_rl.rllib import FrozenPlayer, FrozenPlayerModule, NetworkModule, RedBlueDoors, register_envs
from multigrid_rl.rllib.private import without_object_store
from multigrid_rl.text import ConfigError
from multigrid_rl.world import spaces
from tiny_runs import running

#: RLlib registers every environment under one name.
pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env:UserWarning")
SEED = 7


def team(agent, *_, **__):
    return agent.split("_")[0]


def runner(player, scenario="1v1", **environment):
    """RLlib's own env runner: red learns with RLlib's default module, blue is ``player``."""
    register_envs()
    frozen = RLModuleSpec(FrozenPlayerModule, model_config={"player": player})
    config = (
        PPOConfig()
        .environment(f"multigrid_rl/{scenario}", env_config=environment)
        .env_runners(num_env_runners=0)
        .multi_agent(policies={"red", "blue"}, policy_mapping_fn=team, policies_to_train=["red"])
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(), "blue": frozen}))
        .debugging(seed=SEED)
    )
    return MultiAgentEnvRunner(config=config)


def same_games(episodes, match):
    """Replay red's actions in a match and compare everything that both say."""
    seen, steps = match.reset(SEED), 0
    for episode in episodes:
        red, blue = episode.agent_episodes["red_0"], episode.agent_episodes["blue_0"]
        views, rewards = red.get_observations(), red.get_rewards()
        for t, action in enumerate(red.get_actions()):
            np.testing.assert_array_equal(views[t], spaces.flat_observation(match.env.spec, seen["red_0"][0]))
            step = match.step({"red_0": np.array([action], np.int8)})
            seen, steps = step.observations, steps + 1
            assert match.env.actions[0, 0] == blue.get_actions(t)
            assert rewards[t] == step.rewards["red_0"][0]
        assert step.done[0]
        final = spaces.flat_observation(match.env.spec, step.final_observations["red_0"][0])
        np.testing.assert_array_equal(views[-1], final)
        assert episode.is_terminated == red.is_terminated == step.terminated["red_0"][0]
        assert episode.is_truncated == red.is_truncated == step.truncated[0]
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [15, pytest.param(200, marks=pytest.mark.long)])
def test_stock_ppo_plays_the_games_of_a_match(episodes):
    player = Catalogue().seat("blue-rookie", load_scenario("1v1").spec, "blue_0").player
    played = runner("blue-rookie").sample(num_episodes=episodes)
    assert len(played) == episodes
    assert same_games(played, match_of(load_scenario("1v1").spec, {"blue_0": player}, 1)) > 20 * episodes


def test_a_player_with_memory_plays_the_games_of_a_match():
    """Its memory begins anew with each episode, and goes on where RLlib cuts one."""
    spec = load_scenario("1v1").spec
    player = Catalogue().seat("blue-grandmaster", spec, "blue_0").player
    env_runner = runner("blue-grandmaster")
    pieces = [piece for _ in range(6) for piece in env_runner.sample(num_timesteps=7)]
    match = match_of(spec, {"blue_0": player}, 1)
    match.reset(SEED)
    for piece in pieces:
        for t, action in enumerate(piece.agent_episodes["red_0"].get_actions()):
            match.step({"red_0": np.array([action], np.int8)})
            assert match.env.actions[0, 0] == piece.agent_episodes["blue_0"].get_actions(t)
    assert len({piece.id_ for piece in pieces}) > 1
    assert len(pieces) > len({piece.id_ for piece in pieces})


def test_background_players_are_those_of_a_match():
    spec = load_scenario("2v2").spec
    background = {"blue_0": {"2v2-rookie": 1.0, "random": 2.0}, "blue_1": "hunter", "red_1": "idle"}
    env = RedBlueDoors({"scenario": "2v2", "players": background})
    twin = RedBlueDoors({"scenario": "2v2", "players": background, "observation": "tokens"})
    rng = np.random.default_rng(0)
    for game in range(5):
        seen, tokens = env.reset(seed=None if game else 5)[0], twin.reset(seed=None if game else 5)[0]
        while env.agents:
            np.testing.assert_array_equal(seen["red_0"], spaces.flat_observation(spec, tokens["red_0"]))
            action = {"red_0": int(rng.integers(7))}
            seen, *rest = env.step(action)
            tokens, *others = twin.step(action)
            assert rest == others
        _, terminated, truncated, infos = rest
        assert terminated["__all__"] or truncated["__all__"]
        assert set(infos) == {"red_0"}


@pytest.mark.parametrize("scenario", [name for name in scenario_names() if available("scenario", name)])
def test_every_scenario_is_registered(scenario):
    assert f"multigrid_rl/{scenario}" in register_envs()
    env = _global_registry.get(ENV_CREATOR, f"multigrid_rl/{scenario}")({})
    check_multiagent_environments(env)
    assert tuple(env.possible_agents) == load_scenario(scenario).spec.seats
    assert env.render().shape == (256, 512, 3)


@pytest.mark.slow
def test_an_eliminated_agent_leaves_and_the_others_play_on():
    env = RedBlueDoors({"scenario": "2v2-deathmatch"})
    rng, left = np.random.default_rng(1), 0
    for seed in range(60):
        env.reset(seed=seed)
        while env.agents:
            before = list(env.agents)
            seen, rewards, terminated, truncated, _ = env.step({seat: rng.integers(7) for seat in before})
            assert list(seen) == list(rewards) == before
            assert terminated.pop("__all__") is all(terminated.values())
            left += len(before) == 4 and len(env.agents) in {1, 2, 3}
            assert list(truncated) == ["__all__"]
    assert left


def test_a_seed_decides_everything_and_without_one_the_streams_go_on():
    def games(env, *seeds):
        found = []
        for seed in seeds:
            found.append(env.reset(seed=seed)[0]["red_0"].tolist())
            for _ in range(5):
                found.append(env.step({"red_0": 2})[0]["red_0"].tolist())
        return found

    config = {"players": {"blue_0": "random"}, "observation": "tokens"}
    first = games(RedBlueDoors(config), 3, None, None)
    assert first == games(RedBlueDoors(config), 3, None, None)
    assert first[:6] != first[6:12]
    env = RedBlueDoors(config)
    games(env, 9)
    assert games(env, 3, None, None) == first
    assert games(RedBlueDoors(config), None) != games(RedBlueDoors(config), None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"player": {}}, "env_config: expected scenario, players, observation, got player (did you mean players?)"),
        ({"observation": "image"}, "env_config.observation: expected flat or tokens, got image"),
        ({"scenario": 3}, "env_config.scenario: expected a name or a file, got 3"),
        ({"players": {"blue_0": {"hunter": "x", "random": 1}}}, "players['blue_0']: expected a player, or players"),
        ({"players": "blue-rookie"}, "env_config.players: expected players by seat, such as"),
        ({"players": {"blue_7": "random"}}, "seat: expected blue_0, red_0, got 'blue_7'"),
        ({"players": {"blue_0": "idle", "red_0": "idle"}}, "env_config.players: expected at least one open seat"),
        ({"players": {"blue_0": "blue-rooky"}}, "(did you mean blue-rookie?)"),
        ({"scenario": "3v3"}, "3v3"),
    ],
)
def test_wrong_env_config_is_one_line(config, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        RedBlueDoors(config)
    assert message in str(refused.value)


def test_wrong_steps_are_refused():
    env = RedBlueDoors()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step({"red_0": 0})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action of red_0: expected 0 left"):
        env.step({"red_0": 7})
    with pytest.raises(ValueError, match="agent: expected blue_0, red_0, got 'red'"):
        env.step({"red": 0})


def module(observation="flat", **config):
    env = RedBlueDoors({"scenario": config.get("scenario", "1v1"), "observation": observation})
    spec = RLModuleSpec(
        FrozenPlayerModule,
        observation_space=env.observation_spaces["red_0"],
        action_space=env.action_spaces["red_0"],
        model_config=config,
    )
    return spec.build()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_config.player: expected a player's name, got none"),
        ({"player": "blue-master", "sead": 3}, "model_config: expected player, seat, scenario, seed, greedy, got sead"),
        ({"player": "hunter"}, "env_config={'players': ...}), got hunter"),
        ({"player": "cheetah-expert"}, "model_config.player: expected a frozen player of one seat"),
        ({"player": "blue-master", "seat": "red_3"}, "seat: expected blue_0, red_0, got 'red_3'"),
        ({"player": "blue-master", "seed": "x"}, "model_config.seed: expected a whole number, got 'x'"),
        ({"player": "blue-master", "greedy": "no"}, "model_config.greedy: expected true or false, got 'no'"),
    ],
)
def test_a_wrong_frozen_player_is_one_line(config, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        module(**config)
    assert message in str(refused.value)


def test_checkpoints_of_the_earlier_name_find_the_frozen_player():
    assert FrozenPlayer is FrozenPlayerModule
    assert pickle.loads(b"cmultigrid_rl.rllib.modules\nFrozenPlayer\n.") is FrozenPlayerModule


def test_a_frozen_player_of_another_game_is_refused():
    spec = RLModuleSpec(
        FrozenPlayerModule,
        observation_space=spaces.flat_space(load_scenario("1v1").spec),
        action_space=spaces.action_space(),
        model_config={"player": "blue-master"},
    )
    spec.action_space = None
    spec.observation_space = RedBlueDoors({"observation": "tokens"}).action_spaces["red_0"]
    with pytest.raises(ConfigError, match="blue-master: observation_space: expected Box"):
        spec.build()


def test_a_frozen_player_sits_on_the_other_side_reads_tokens_and_keeps_its_hash():
    tokens = np.stack([RedBlueDoors({"observation": "tokens"}).reset(seed=k)[0]["red_0"] for k in range(9)])
    spec = load_scenario("1v1").spec
    flat = module(player="blue-master", seat="red_0", seed=1)
    compact = module("tokens", player="blue-master", seat="red_0", seed=1)
    first = flat.forward_inference({"obs": spaces.flat_observation(spec, tokens)})["actions"]
    np.testing.assert_array_equal(first, compact.forward_exploration({"obs": tokens})["actions"])
    assert (flat.forward_exploration({"obs": tokens[:3]})["actions"].shape) == (3,)
    greedy = module("tokens", player="blue-master", seat="red_0", seed=2, greedy=True)
    assert len({tuple(greedy.forward_exploration({"obs": tokens})["actions"]) for _ in range(5)}) == 1
    flat.set_state(greedy.get_state())
    with pytest.raises(PlayerError, match="blue-rookie: sha256: expected"):
        module(player="blue-rookie").set_state(flat.get_state())
    with pytest.raises(ConfigError, match="policies_to_train: expected modules that learn, got blue-master"):
        flat.forward_train({"obs": tokens})


class OwnConfig(PPOConfig):
    """Of an algorithm of somebody's own, which writes a key of its own into every module's ``model_config``."""

    @property
    def _model_config_auto_includes(self):
        return super()._model_config_auto_includes | {"own_key": 3}


@pytest.mark.parametrize("kind", [DQNConfig, SACConfig, OwnConfig])
def test_modules_of_ours_stand_beside_those_of_any_algorithm(kind):
    foreign = kind()._model_config_auto_includes
    assert module(**foreign, player="blue-rookie").player.name == "blue-rookie"
    env = RedBlueDoors({"observation": "tokens"})
    seen, acts = env.observation_spaces["red_0"], env.action_spaces["red_0"]
    RLModuleSpec(NetworkModule, seen, acts, model_config={**foreign, "hidden": [8]}).build()
    with pytest.raises(ConfigError, match="model_config: expected player, seat, scenario, seed, greedy, got seet"):
        module(**foreign, player="blue-rookie", seet="blue_0")


@pytest.mark.slow
def test_a_frozen_player_plays_against_dqn():
    frozen = RLModuleSpec(FrozenPlayerModule, model_config={"player": "blue-rookie"})
    buffer = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 500, "alpha": 0.6, "beta": 0.4}
    made = (
        DQNConfig()
        .environment(RedBlueDoors)
        .env_runners(num_env_runners=0, rollout_fragment_length=16)
        .multi_agent(policies={"red", "blue"}, policy_mapping_fn=team, policies_to_train=["red"])
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"red": RLModuleSpec(), "blue": frozen}))
        .training(replay_buffer_config=buffer, num_steps_sampled_before_learning_starts=8, train_batch_size=8)
    )
    with without_object_store(), running(made) as algorithm:
        results = [algorithm.train() for _ in range(2)]
    assert "red" in results[-1]["learners"]
    assert "blue" not in results[-1]["learners"]
