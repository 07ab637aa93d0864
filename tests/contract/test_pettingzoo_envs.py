"""PettingZoo's environments behind the batched face: whose turn it is, what is legal, what is paid, how it goes on."""

import pickle

import numpy as np
import pytest
import torch

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.pettingzoo import ZooSpec, kinds_of
from multigrid_rl.envs.zoo import describe_game
from multigrid_rl.fast import compile_network
from multigrid_rl.learn.advantages import Estimator
from multigrid_rl.learn.batches import estimate
from multigrid_rl.learn.rollout import StepCollector, collector_of
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.models.registry import ArchitectureError, network_of
from multigrid_rl.players.cards import Card, signature
from multigrid_rl.players.factories import MatchFactory
from multigrid_rl.players.zoo_seats import RandomLegal
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError, SeatView
from strange_games import legal_actions

MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}
#: Environments by what they stand for: turns, turns with many choices, moves at the same time, OpenSpiel's, chance.
SOME = {
    "tictactoe": "pettingzoo:classic/tictactoe-v3",
    "connect four": "pettingzoo:classic/connect_four-v3",
    "rock paper scissors": "pettingzoo:classic/rps-v2",
    "spread": "pettingzoo:mpe2.simple_spread_v3",
    "tag": "pettingzoo:mpe2.simple_tag_v3",
    "speaker and listener": "pettingzoo:mpe2.simple_speaker_listener_v4",
    "crypto": "pettingzoo:mpe2.simple_crypto_v3",
    "poker of a library": "pettingzoo:classic/leduc_holdem-v4",
    "kuhn": "openspiel:kuhn_poker",
    "leduc": "openspiel:leduc_poker",
    "moves at the same time": "openspiel:goofspiel",
}
TICTACTOE, BROKEN = SOME["tictactoe"], "pettingzoo:strange_games:broken"


def factory(env_id: str, seed: int = 5, **options) -> MatchFactory:
    args = options.pop("env_args", {})
    teams = options.pop("teams", None) or {seat: seat for seat in describe_game(env_id, args).seats}
    spec = ZooSpec(env_id, args, teams, wins=True, gaps=options.pop("gaps", True))
    return MatchFactory(spec, {}, None, {}, seed, **options)


def story(envs, steps: int, first: int = 0, draws=None):
    """Everything a learner gets to see while legal actions are drawn from a stream of each environment's own."""
    rngs = draws or [np.random.default_rng(first + n) for n in range(envs.num_envs)]
    found = []
    for _ in range(steps):
        rows = {agent.name: legal_actions(envs, agent.name, rngs) for agent in envs.specs.agents}
        found.append(pickle.loads(pickle.dumps((envs.step(rows), envs.deciding()))))
    return found


def assert_same(one, other, rows=slice(None)) -> None:
    for (a, turn), (b, other_turn) in zip(one, other, strict=True):
        columns = (a.observations, a.rewards, a.terminated, a.mask, turn)
        for mine, theirs in zip(columns, (b.observations, b.rewards, b.terminated, b.mask, other_turn), strict=True):
            np.testing.assert_equal(mine, {name: column[rows] for name, column in theirs.items()})
        np.testing.assert_equal(a.done, b.done[rows])


@pytest.mark.parametrize("env_id", SOME.values(), ids=SOME)
def test_every_environment_plays_the_same_alone_and_goes_on_where_it_stood(env_id):
    games, steps = factory(env_id), 30
    together = story(games.build(3, 0), steps)
    alone = games.build(1, 1)
    assert_same(story(alone, steps, first=1), together, slice(1, 2))

    halfway = games.build(3, 0)
    assert_same(story(halfway, 11), together[:11])
    state = pickle.loads(pickle.dumps(halfway.get_state()))
    after = story(halfway, 9)
    later = games.build(3, 0)
    later.set_state(state)
    assert_same(story(later, 9), after)


@pytest.mark.parametrize("env_id", SOME.values(), ids=SOME)
def test_returns_are_what_was_paid_and_only_who_is_to_move_decides(env_id):
    envs = factory(env_id).build(2, 0)
    turn, paid, tables = envs.deciding(), np.zeros((2, len(envs.specs.seats))), []
    returns = []
    for step, after in story(envs, 120):
        for name in turn:
            assert np.array_equal(step.mask[name][:, 0], turn[name])
            assert np.isfinite(step.observations[name]).all()
        assert np.any(list(turn.values()), axis=0).all()  # somebody is always to move
        turn = after
        paid += np.stack([step.rewards[seat] for seat in envs.specs.seats], axis=1)
        for n in np.flatnonzero(step.done):
            returns.append(paid[n].copy())
            paid[n] = 0
    tables = envs.drain_episodes()
    assert tables.episodes == len(returns)
    if returns:  # a game of chess takes longer
        assert tables.returns == pytest.approx(np.array(returns))
        best = tables.returns.max(axis=1, keepdims=True) == tables.returns
        assert np.array_equal(tables.winner, np.where(best.sum(axis=1) == 1, best.argmax(axis=1), -1))


def collector(games: MatchFactory, envs: int = 4, steps: int = 23) -> StepCollector:
    torch.set_num_threads(1)
    specs = games.specs
    networks = {module: network_of(specs.agent_of(module), MLP, seed=1) for module in specs.modules}
    return collector_of(games.build(envs, 0), specs, networks, seed=3, first=0, steps=steps)


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_move_leads_to_is_counted_for_who_made_it(shared):
    # In tic-tac-toe the last move pays both: the loser's last decision must get its -1 from a step in which it did
    # nothing. All decisions of finished games are learned from, once, in the order of play.
    playing = collector(factory(TICTACTOE, shared=shared))
    env, games, decisions, paid = playing.env, 0, 0, {"player_1": 0.0, "player_2": 0.0}
    returns = np.zeros(2)
    for _ in range(5):
        rollouts = playing.collect()
        for name, rollout in rollouts.items():
            active = rollout.mask[..., 0]
            batch = estimate(rollout, Estimator(1.0, 1.0))
            decisions += len(batch.obs)
            paid[name] += rollout.rewards[active].sum()
            flags = batch.obs[:, -9:]
            assert (flags[np.arange(len(flags)), batch.actions[:, 0]] == 1).all()
            assert np.array_equal(rollout.terminated[active], rollout.done[active])
            assert (rollout.rewards[active][~rollout.done[active]] == 0).all()
            ends = rollout.rewards[active][rollout.done[active]]
            assert set(ends.tolist()) <= {-1.0, 0.0, 1.0}
        table = env.drain_episodes()
        games, returns = games + table.episodes, returns + table.returns.sum(axis=0)
    assert games > 20
    assert [paid["player_1"], paid["player_2"]] == pytest.approx(returns.tolist())
    waiting = sum(int(gaps.waiting["mask"].sum()) for gaps in playing._gaps.values())
    assert 5 * 23 * 4 - decisions == waiting  # each step is one decision: learned from, or waiting for what comes of it
    assert waiting <= env.env.env._length.sum()  # of games that are not over


def test_advantages_of_a_game_in_turns_by_hand():
    # One game of tic-tac-toe in a batch: each move's reward is what its side got before it moved again, its next value
    # that of its side's next move, and GAE (https://arxiv.org/abs/1506.02438) runs over a side's own moves.
    gamma, lam, (one, two) = 0.9, 0.8, ("player_1", "player_2")
    playing = collector(factory(TICTACTOE), envs=1, steps=9)
    rollouts = playing.collect()
    batches = {name: estimate(rollout, Estimator(gamma, lam)) for name, rollout in rollouts.items()}
    over = {name: rollout.done[rollout.mask[..., 0]] for name, rollout in rollouts.items()}
    first = {name: int(np.argmax(ends)) + 1 for name, ends in over.items()}  # own moves of the first game
    assert over[one].any()
    assert first[one] - first[two] in (0, 1)
    paid = rollouts[one].rewards[rollouts[one].mask[..., 0]][first[one] - 1]
    for name, last in ((one, paid), (two, -paid)):
        net, moves = playing.networks[name], first[name]
        with torch.inference_mode():
            values = net(torch.from_numpy(batches[name].obs[:moves]))[1].numpy()
        wanted, following = np.zeros(moves), 0.0
        for k in reversed(range(moves)):
            reward, ahead = (last, 0.0) if k == moves - 1 else (0.0, values[k + 1])
            following = reward + gamma * ahead - values[k] + gamma * lam * following
            wanted[k] = following
        assert batches[name].advantages[:moves] == pytest.approx(wanted, abs=1e-5)


def test_collecting_goes_on_where_it_stood():
    games = factory(TICTACTOE)
    playing, later = collector(games), collector(games)
    playing.collect()
    state = pickle.loads(pickle.dumps(playing.get_state()))
    wanted = pickle.loads(pickle.dumps(playing.collect()))
    later.set_state(state)
    np.testing.assert_equal(later.collect(), wanted)


def test_guest_who_comes_and_goes_is_paid_between_its_decisions():
    playing = collector(factory("pettingzoo:strange_games:relay"), envs=2, steps=14)
    rollouts = playing.collect()
    guest = rollouts["guest"]
    active = guest.mask[..., 0]
    # It decides in steps 0, 3 and 6 of 7, so 6 times in two episodes, of which the last waits for nothing: it is over.
    assert active.sum(axis=0).tolist() == [6, 6]
    assert guest.rewards[active] == pytest.approx(10.0 + guest.actions[active][:, 0])
    assert guest.done[active].reshape(-1).sum() == 4


# --- what is not legal


def test_illegal_choices_have_no_probability_in_the_reference_and_in_what_is_compiled():
    agent = factory(TICTACTOE).specs.agents[0]
    net = network_of(agent, {**MLP, "normalise": True}, seed=2)
    with torch.no_grad():
        for weights in net.policy.parameters():
            weights.mul_(30.0)  # sure of itself: what is not legal would be played
    rng = np.random.default_rng(0)
    flags = (rng.uniform(size=(500, 9)) < 0.4).astype(np.float32)
    flags[np.arange(500), rng.integers(9, size=500)] = 1
    obs = np.concatenate([rng.integers(2, size=(500, 18)), flags], axis=1).astype(np.float32)
    rows = torch.from_numpy(obs)
    distribution = distribution_of(agent.action_space)
    outputs, _ = net(rows)
    compiled = compile_network(net)
    assert compiled is not None
    assert compiled.policy(obs) == pytest.approx(outputs.detach().numpy(), rel=1e-4, abs=1e-4)
    assert compiled.start(obs).outputs == pytest.approx(outputs.detach().numpy(), rel=1e-4, abs=1e-4)
    assert net.logits(rows).detach().numpy() == pytest.approx(outputs.detach().numpy())

    for k in range(20):
        drawn = distribution.draw(compiled.policy(obs), Streams(k, np.arange(500), 1))
        assert flags[np.arange(500), drawn.actions[:, 0]].all()
        assert np.isfinite(drawn.logp).all()
    assert flags[np.arange(500), distribution.mode(compiled.policy(obs))[:, 0]].all()
    alone = flags.sum(axis=1) == 1
    assert drawn.entropy[alone] == pytest.approx(0.0)
    entropy = distribution.entropy(outputs)[:, 0]
    legal = torch.log_softmax(outputs.masked_fill(rows[:, -9:] == 0, -torch.inf), dim=1)
    wanted = -(legal.exp() * legal).nan_to_num().sum(1)
    assert entropy.detach().numpy() == pytest.approx(wanted.detach().numpy(), abs=1e-5)

    (distribution.log_prob(outputs, torch.from_numpy(drawn.actions.astype(np.int64))).sum() + entropy.sum()).backward()
    last = net.policy[-1]
    assert torch.isfinite(last.weight.grad).all()
    never = torch.from_numpy(obs.copy())
    never[:, -9:] = torch.tensor([1.0, 0, 1, 1, 1, 1, 1, 1, 1])
    net.zero_grad()
    distribution.entropy(net(never)[0]).sum().backward()
    assert (last.weight.grad[1] == 0).all()  # nothing is learned about what may not be done


def test_parts_of_an_action_that_are_not_legal_are_never_played():
    games = factory("pettingzoo:strange_games:parts", shared=True)
    agent = games.specs.agents[0]
    assert agent.legal == 5
    assert agent.observation_space.shape == (3 + 6 + 5,)  # one-hot, as Gymnasium flattens them
    playing = collector(games, envs=2, steps=60)
    for rollout in playing.collect().values():  # the environment complains of what is not legal
        active = rollout.mask[..., 0]
        obs, actions = rollout.obs[active], rollout.actions[active]
        every = np.arange(len(obs))
        assert obs[every, 9 + actions[:, 0]].all()
        assert obs[every, 11 + actions[:, 1]].all()
        rows = torch.from_numpy(obs)
        net = playing.networks["a"]
        reference = net(rows)[0].detach().numpy()
        assert compile_network(net).policy(rows.numpy()) == pytest.approx(reference, rel=1e-4, abs=1e-4)
        logp = distribution_of(agent.action_space).logits(reference).max(axis=-1)
        assert (logp > -1e3).all()  # a legal choice of each part
    drawn, _ = RandomLegal(agent).act(SeatView(obs, None, 0), None, Streams(0, every, 1))
    assert obs[every, 9 + drawn[:, 0]].all()
    assert obs[every, 11 + drawn[:, 1]].all()
    assert {*drawn[:, 0].tolist()} == {0, 1}


def test_images_are_read_by_convolutions_and_bytes_become_shares():
    games = factory("pettingzoo:strange_games:pixels", shared=True)
    agent = games.specs.agents[0]
    assert agent.image == (9, 7, 3)
    seen = games.build(2, 0).observations()["a_0"]
    assert seen.min() >= 0
    assert seen.max() == 1.0
    net = network_of(agent, {"name": "cnn", "hidden": [8]}, seed=2)
    rows = torch.from_numpy(seen)
    outputs, values = net(rows)
    assert outputs.shape == (2, 3)
    assert values.shape == (2,)
    assert compile_network(net) is None  # torch computes it
    memory = ["env_id=pettingzoo:strange_games:pixels", "model=gru", "train.minibatch_size=2048"]
    assert env_factory(compose(memory)).specs.agents  # flattened, for a network with memory
    first = net.policy[1]
    image = seen.reshape(2, 9, 7, 3).transpose(0, 3, 1, 2)  # by hand: the upper left corner, padded with zeros
    corner = (first.weight.detach().numpy()[:, :, 1:, 1:] * image[:1, :, :2, :2]).sum(axis=(1, 2, 3))
    assert net.policy[:2](rows)[0, :, 0, 0].detach().numpy() == pytest.approx(corner, abs=1e-5)
    card = {"name": "x", "architecture": {"name": "cnn", "hidden": [8]}, "scenario": "s", "seats": ["a_0"]}
    card = Card(**card, provenance={}, **signature(agent, None), bytes=1, sha256="0" * 64)
    assert card.observation.image == [9, 7, 3]
    with pytest.raises(ValueError, match=r"image: expected sides of 189 numbers, got \[9, 7, 2\]"):
        Card(**{**card.model_dump(), "observation": {"size": 189, "image": [9, 7, 2]}})
    with pytest.raises(ArchitectureError, match="name: expected mlp, gru or lstm for a vector, got cnn"):
        network_of(factory(SOME["tag"]).specs.agents[0], {"name": "cnn", "hidden": [8]})


def test_network_that_cannot_leave_choices_out_is_refused():
    agent = factory(TICTACTOE).specs.agents[0]
    refused = "name: expected mlp or cnn with choices that are not always legal, got gru"
    with pytest.raises(ArchitectureError, match=refused):
        network_of(agent, {"name": "gru", "hidden": [8]})
    with pytest.raises(ConfigError, match=r"model: expected a network without memory, as .*tictactoe-v3 has turns"):
        env_factory(compose([f"env_id={TICTACTOE}", "model=gru", "train.minibatch_size=512"]))


def test_card_keeps_what_is_legal():
    agent = factory(TICTACTOE).specs.agents[0]
    described_by = signature(agent, None)
    assert described_by["observation"] == {"size": 27, "legal": 9, "image": [3, 3, 2]}
    card = {"name": "x", "architecture": MLP, "scenario": "s", "seats": ["player_1"], "provenance": {}, **described_by}
    assert Card(**card, bytes=1, sha256="0" * 64).observation.legal == 9
    with pytest.raises(ValueError, match="legal: expected 0, or as many as there are choices, got 8"):
        Card(**{**card, "observation": {"size": 27, "legal": 8}}, bytes=1, sha256="0" * 64)


# --- who is who


def test_seats_of_a_kind_are_those_that_see_and_do_alike():
    seats = describe_game(SOME["tag"], {}).seats
    kinds = {"adversary_0": "adversary", "adversary_1": "adversary", "adversary_2": "adversary", "agent_0": "agent"}
    assert kinds_of(seats) == kinds
    unlike = {**seats, "adversary_2": seats["agent_0"]}
    assert kinds_of(unlike) == {seat: seat if "adv" in seat else "agent" for seat in unlike}
    config = compose([f"env_id={SOME['tag']}", "shared=true"])
    assert [agent.module for agent in env_factory(config).specs.agents] == ["adversary"] * 3 + ["agent"]


def test_team_with_most_wins():
    teams = {"adversary_0": "hunters", "adversary_1": "hunters", "adversary_2": "hunters", "agent_0": "prey"}
    envs = factory(SOME["tag"], teams=teams).build(4, 0)
    story(envs, 60)
    table = envs.drain_episodes()
    assert table.episodes == 8
    hunters, prey = table.returns[:, :3].sum(axis=1), table.returns[:, 3]
    assert np.array_equal(table.winner, np.where(hunters == prey, -1, np.where(hunters > prey, 0, 1)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env_id=pettingzoo:nowhere.game"], "a module that is installed, got nowhere.game: .*pip install nowhere"),
        (["env_id=pettingzoo:multigrid_rl.text"], "expected a module with parallel_env or env, got multigrid_rl.text"),
        (["env_id=openspiel:kuhn_pocker"], r"a game of OpenSpiel's, got kuhn_pocker.*kuhn_poker"),
        ([f"env_id={TICTACTOE}", "env_args={size: 4}"], "env_args: expected arguments of .*tictactoe-v3"),
        ([f"env_id={TICTACTOE}", "env_args={render_mode: human}"], "env_args: expected no render_mode"),
        ([f"env_id={TICTACTOE}", "scenario.teams={us: [player_1]}"], "teams: expected each of player_1, player_2 once"),
        ([f"env_id={TICTACTOE}", "scenario.agents=2"], "agents: expected 1, got 2"),
        (["env_id=pettingzoo:strange_games:words"], "runner_0: expected observations that can be flattened"),
        (["env_id=pettingzoo:strange_games:endless"], "runner_0: expected Discrete, MultiDiscrete, MultiBinary or Box"),
        (["env_id=pettingzoo:strange_games:relay", "env_args={fault: reset}"], "relay: reset: .*no board"),
        ([f"env_id={TICTACTOE}", "scheme=ctde"], "scheme: expected dtde"),
        (["env_id=pettingzoo:strange_games:empty"], "expected an environment of PettingZoo's with possible_agents"),
        (["env_id=pettingzoo:strange_games:counted"], "expected an environment of PettingZoo's with possible_agents"),
        ([f"env_id={BROKEN}", "env_args={nobody: true}"], "expected an environment of PettingZoo's with possible_agen"),
        ([f"env_id={BROKEN}", "env_args={human: true}"], "expected render_mode: null, as this .* opens a window"),
        ([f"env_id={BROKEN}", "env_args={fault: reset}"], "reset: expected .* got Unheard: lost it"),
        ([f"env_id={BROKEN}", "env_args={seen: 3}"], "a_0: expected observations that can be flattened .*, got 3"),
        ([f"env_id={BROKEN}", "env_args={max_episode_steps: 0}"], "max_episode_steps: expected a whole number of at"),
        (["env_id=pettingzoo:pettingzoo.butterfly.pistonball_v5"], r"\(did you mean pistonball_v6\?\)"),
        (["env_id=pettingzoo:mpe2.simple_tag_v3", "model=cnn"], "model: expected mlp, as not all seats see images"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        assert env_factory(compose(overrides)).specs
    assert "\n" not in str(error.value)


def test_memory_needs_agents_that_stay():
    envs = factory("pettingzoo:strange_games:relay", gaps=False).build(1, 0)
    nothing = {name: np.zeros((1, 1), np.int64) for name in envs.observations()}
    for _ in range(2):
        envs.step(nothing)
    with pytest.raises(RunError, match="a network without memory where agents come and go, as guest does"):
        envs.step(nothing)
    assert not hasattr(envs, "deciding")
