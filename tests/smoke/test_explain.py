"""`explain` says beforehand what a run then does, and refuses what `train` refuses, in the same line."""

import math
import re

import pytest
import safetensors.numpy
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator

import multigrid_rl
from commands import call, complaint, works
from composing import SCENARIOS
from multigrid_rl.cli.explain import Sizes, sections
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.players.cards import MODEL_FILE
from multigrid_rl.rllib.build import algorithm_config
from tiny_runs import TINY, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

#: Neither the budget nor the interval is a multiple of the batch.
ODD = [*TINY, "train.until=2000", "train.checkpoint_every=700"]


def rows_of(*overrides: str) -> dict[str, str]:
    """Name -> value of everything that is explained."""
    config = compose(list(overrides))
    factory = env_factory(config)
    tables = sections(config, factory.specs, factory.load())
    return {name: value for rows in tables.values() for name, value, _ in rows}


def sizes(*overrides: str):
    config = compose(list(overrides))
    return Sizes.of(config, (agent.module for agent in env_factory(config).specs.agents))


@pytest.mark.parametrize(
    "more",
    [[], ["model=gru", "model.hidden=[16]", "train.minibatch_size=128"], ["train.num_steps=24", "train.epochs=3"]],
    ids=["mlp", "gru", "another batch"],
)
def test_sizes_match_real_run(tmp_path, more):
    overrides = [*ODD, *more]
    verdict, rows = tiny_run(tmp_path / "run", *overrides[len(TINY) :])
    explained, size = rows_of(*overrides), sizes(*overrides)
    assert (size.updates, compose(overrides).train.env_steps) == (rows[-1]["policy_updates"], rows[-1]["env_steps"])
    assert size.gradient_steps == rows[-1]["gradient_steps"]
    assert size.gradient_steps_per_update == rows[0]["gradient_steps"]
    assert explained["updates"] == f"{rows[-1]['policy_updates']}"
    assert explained["gradient steps"] == f"{rows[-1]['gradient_steps']}"
    assert explained["checkpoints"] == f"{len(list((tmp_path / 'run' / 'checkpoints').glob('step_*')))}"
    weights = safetensors.numpy.load_file(tmp_path / "run" / verdict["checkpoint"] / "players" / "red_0" / MODEL_FILE)
    assert explained["network red_0"] == f"{sum(array.size for array in weights.values()):,} weights"
    coefficient = compose(overrides).train.schedules["entropy_coef"].at(rows[0]["env_steps"])
    assert coefficient == pytest.approx(rows[0]["learner/red_0/entropy_coef"])


@pytest.mark.parametrize(("rows", "minibatch", "epochs"), [(512, 256, 2), (512, 300, 4), (512, 512, 3), (768, 500, 1)])
def test_gradient_steps_match_rllib(rows, minibatch, epochs):
    own = {"num_envs": rows, "num_steps": 1, "minibatch_size": minibatch, "epochs": epochs}
    size = sizes(*(f"train.{name}={value}" for name, value in own.items()))
    batch = MultiAgentBatch({"red_0": SampleBatch({"obs": list(range(rows))})}, rows)
    cut = list(MiniBatchCyclicIterator(batch, num_epochs=epochs, minibatch_size=minibatch))
    assert size.gradient_steps_per_update == len(cut)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        (["train=vpg"], 4 + 40),
        (
            ["train.pi_iters=3", "train.v_iters=5", "train.minibatch_size=24"],
            math.ceil(3 * 64 / 24) + math.ceil(5 * 64 / 24),
        ),
        (["train.recompute=true", "train.minibatch_size=24", "train.epochs=3"], 3 * math.ceil(64 / 24)),
    ],
)
def test_gradient_steps_count_passes_of_values_and_passes_with_new_advantages(tmp_path, more, steps):
    pendulum = ["env_id=Pendulum-v1", "train.num_envs=4", "train.num_steps=16", "train.until=64", *more]
    assert sizes(*pendulum).gradient_steps_per_update == steps
    assert multigrid_rl.train(None, *pendulum, run_dir=tmp_path / "run").metrics["gradient_steps"].tolist() == [steps]


def test_explains_only_what_acts_on_a_trainer(tmp_path):
    sac = ["env_id=Pendulum-v1", "train=sac", "train.until=1024", "train.sac.learning_starts=600", "model.hidden=[8]"]
    steps = multigrid_rl.train(None, *sac, "train.sac.updates_per_step=0.05", run_dir=tmp_path / "run").metrics
    assert steps["gradient_steps"].tolist() == [0, 0, 13, 26]
    assert sizes(*sac, "train.sac.updates_per_step=0.05").gradient_steps == 26
    dagger = rows_of("scenario=1v1", "train=dagger", "expert=key-runner")
    for rows in (rows_of(*sac), dagger):
        assert not rows.keys() & {"objective", "clip", "credit horizon", "entropy bonus"}
    assert "entropy/*" in dagger
    assert "explained_variance/*" not in dagger  # of a value network, which is not trained


@pytest.mark.parametrize(("runners", "threads"), [(0, 0), (2, 0), (2, 1)])
def test_shares_games_and_cores_as_train(monkeypatch, runners, threads):
    monkeypatch.setattr("multigrid_rl.config.schema.available_cpus", lambda: 4)
    overrides = [f"cluster.num_env_runners={runners}", f"train.torch_threads={threads}", "model=gru"]
    config, size = compose(overrides), sizes(*overrides)
    built = algorithm_config(config)
    assert config.learner_threads == (threads or {0: 4, 2: 2}[runners])
    assert config.games_per_sampler == built.settings.run.games_per_sampler
    assert config.rows_per_minibatch == built.minibatch_size
    assert size.batch_size == built.train_batch_size


def test_explains_every_scenario():
    result = works("explain", "scenario=coop")
    for text in ("experiment=coop", "network red_0", "network red_1", "4,096 steps", "33.3 steps"):
        assert text in result.output
    gates = {row.metric for row in compose(["scenario=coop"]).scenario.gates}
    assert {name for name in rows_of("scenario=coop") if "*" in name or name == "episode_len_mean"} == gates
    for scenario in SCENARIOS:
        assert all(value for name, value in rows_of(f"scenario={scenario}").items() if name != "all together")


def test_tells_what_the_game_pays_and_allows():
    names = ("1v1", "single-obstacle", "2v2", "cartpole")
    assert [rows_of(f"scenario={name}").get("best return") for name in names] == [
        "below 1.50", "below 3.01", "below 4.01", None,
    ]  # fmt: skip
    said = call("explain", "scenario=coop").output
    parts = ("key 0.5; ball 0.5 x 0.9, squared each time;", "success 1 - 0.9 x step / 1280", "docs/game.md, section 9")
    assert [part for part in parts if part not in said] == []
    assert "eliminating" not in said


def test_rows_of_shared_networks():
    alone = rows_of("scenario=coop", "scheme=dtde")
    shared = rows_of("scenario=coop", "scheme=dtde", "shared=true")
    team = rows_of("scenario=coop", "scheme=ctce")
    assert (alone["rows of red_0"], alone["rows of red_1"]) == ("4,096 steps", "4,096 steps")
    assert (shared["rows of red"], team["rows of red"]) == ("8,192 steps", "4,096 steps")


def test_mentions_eliminated_agents():
    for scenario, mentioned in (("2v2-deathmatch", True), ("1v1", False)):
        update = call("explain", f"scenario={scenario}").output.partition("The whole run")[0].partition("One update")[2]
        assert ("eliminated" in update) is mentioned


def test_horizons_and_schedules():
    assert math.isinf(sizes("train.gamma=1").horizon)
    assert sizes("train.gamma=0.99", "train.lam=0").credit_horizon == pytest.approx(1)
    assert rows_of("train.gamma=1")["reward horizon"] == "the whole game"
    assert "the same all the time" in call("explain", "train.entropy_final=0.02", "train.entropy_coef=0.02").output
    assert "the budget ends before" in call("explain", "train.entropy_decay=9_000_000").output
    assert rows_of("train.clip_final=0.1")["clip"] == "0.2 to 0.1"
    clone = rows_of("train=dagger", "expert=key-runner")
    assert (clone.get("reward horizon"), clone["training reward"]) == (None, "none: actions are imitated")


@pytest.mark.parametrize(("scenario", "idle"), [("tictactoe", "in which it does not move"), ("1v1", "")])
def test_rows_are_an_upper_bound_where_agents_do_not_move_in_every_step(scenario, idle):
    config = compose([f"scenario={scenario}"])
    (row,) = (row for row in sections(config, env_factory(config).specs, {})["One update: play, then learn"]
              if row[0].startswith("rows of"))  # fmt: skip
    assert row[2].partition(". At most: ")[2] == (f"steps {idle} do not count" if idle else "")


POLE = "env_id=CartPole-v1"
#: Overrides, and a pattern of the one line. What a configuration alone refuses is in test_refused_overrides.py.
REFUSED = [
    ("scheme=ctce", "scheme: expected dtde"),
    ("train.until=20", r"train\.until: expected at least 4096, one batch of train.num_envs=256 .*, got 20"),
    ("scenario.seats.blue_0=nobody", r"scenario\.seats\.blue_0.*nobody"),
    ("experiment=nowhere.yaml", "experiment: .*got nowhere.yaml: No such file or directory: 'nowhere.yaml'"),
    ("train.shaping=nowhere:f", r"train\.shaping: expected module:function that can be imported, got nowhere:f"),
    ("train.shaping=math:pi", r"train\.shaping: expected module:function, got math:pi"),
    ("train.objective=math:pi", "train.objective: expected module:function, got math:pi: 3.14"),
    ("train.bonus.all.jump=1", r"train\.bonus.*jump"),
    (f"{POLE} train.bonus.all.key_pickup=1", "train.bonus: expected {}.*no events to weigh.*'key_pickup': 1.0"),
    (f"{POLE} scenario.seats.agent_0=random", "scenario.seats: expected {}, as .*every agent learns, got .*agent_0"),
    (f"{POLE} model=cnn", "expected mlp, gru or lstm for a vector, got cnn"),
    (f"{POLE} train.shaping=math:sqrt", "train.shaping=math:sqrt: TypeError: math.sqrt.. takes exactly one argument"),
    (f"{POLE} scenario.agents=2", "scenario.agents: expected 1, got 2"),
    (f"{POLE} train.objective=best", "train.objective: expected ppo, policy_gradient or module:function, got best"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[overrides for overrides, _ in REFUSED])
def test_train_and_explain_refuse_in_one_line(overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = complaint(call("explain", *overrides.split()))
    assert re.search(message, said)
    assert complaint(call("train", *overrides.split())) == said
    assert list(tmp_path.iterdir()) == []
