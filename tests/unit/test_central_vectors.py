"""Central critics over vectors: in games of PettingZoo's kind they also read what team mates see, and actors do not."""

import numpy as np
import pytest
import torch

from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.evaluation.evaluation import evaluate, report
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.models.registry import actor_of, network_of
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, tiny_run, without_time

pytest.importorskip("mpe2")
SPREAD = ["scenario=simple-spread", "scheme=ctde"]


def test_behind_an_agents_own_view_stand_those_of_its_mates_in_index_order():
    env = env_factory(compose(SPREAD)).build(3, 0)
    seen = env.reset(0)
    own = {seat: env.env.observations()[seat] for seat in env.specs.seats}
    for seat, mates in (("agent_0", ("agent_1", "agent_2")), ("agent_1", ("agent_0", "agent_2"))):
        np.testing.assert_array_equal(seen[seat], np.concatenate([own[name] for name in (seat, *mates)], axis=1))
    acts = {seat: np.ones((3, 1), np.int64) for seat in own}
    assert env.step(acts).observations["agent_2"].shape == (3, 54)


def test_its_critic_reads_all_views_and_its_actor_its_own():
    config = compose(SPREAD)
    agent = env_factory(config).specs.agents[0]
    net = network_of(agent, config.model.model_dump(), 5)
    obs = torch.randn(7, agent.observation_size, generator=torch.Generator().manual_seed(0))
    other = torch.cat([obs[:, :18], obs[:, 18:].flip(0)], dim=1)
    (logits, values), (others, valued) = net(obs), net(other)
    torch.testing.assert_close(logits, others)
    torch.testing.assert_close(net.logits(obs), logits)
    torch.testing.assert_close(net.values(obs), values)
    assert (values != valued).any()
    player = network_of(env_factory(compose(SPREAD[:1])).specs.agents[0], config.model.model_dump(), 5)
    player.load_state_dict(actor_of(net.state_dict(), agent))
    torch.testing.assert_close(player.logits(obs[:, :18]), logits)


def test_a_run_with_central_critics_plays_resumes_and_counts_its_own_view_alone(tmp_path):
    small = ["train.num_envs=8", "train.num_steps=25", "train.minibatch_size=100", "train.checkpoint_every=400"]
    words = [*SPREAD, "model.hidden=[8,8]", "train.lr_final=null", *small]
    whole = tiny_run(tmp_path / "whole", *words, "train.until=1600")[1]
    tiny_run(tmp_path / "part", *words, "train.until=800")
    resume_training(tmp_path / "part", ["train.until=1600"])
    assert without_time(rows_of(tmp_path / "part")) == without_time(whole)
    played = report(evaluate(find_target(str(tmp_path / "whole"), []), episodes=4, seed=3, modes=("stochastic",)))
    assert played["parts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scenario=simple-spread", "scheme=ctce", "shared=false"], "scheme: expected dtde or ctde with this package"),
        ([*SPREAD, "model.name=gru", "model.hidden=[8]", "model.activation=tanh"], "model"),
        (["env_id=pettingzoo:mpe2.simple_speaker_listener_v4", "scheme=ctde"], "scheme: expected dtde"),
    ],
)
def test_what_central_critics_do_not_fit_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        env_factory(compose(words))
