"""`train` from the first line to the verdict, with a local runner and with remote ones, under every scheme."""

import json
import pickle
from contextlib import contextmanager

import pytest
import ray
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composing import RECIPES
from multigrid_rl.config.compose import compose
from multigrid_rl.metrics import STAGES, WORK, glossary, matches
from multigrid_rl.players.cards import read_card, read_network
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.rllib.algorithm import MultigridAlgorithm
from multigrid_rl.rllib.build import algorithm_config
from multigrid_rl.rllib.private import without_object_store
from multigrid_rl.types import RunError
from tiny_runs import TINY, running, tiny_run, unknown_metrics, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "local"
    return path, *tiny_run(path, "seed=5")


def test_run_folder_is_self_describing(local):
    path, verdict, rows = local
    assert json.loads((path / "verdict.json").read_text()) == verdict
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert (config["seed"], config["train"]["until"]) == (5, 4096)
    provenance = json.loads((path / "provenance.json").read_text())
    assert provenance["versions"]["ray"] == ray.__version__
    assert provenance["opponents"][0]["sha256"] == read_card(Catalogue().folder("blue-rookie")).sha256
    assert [row["env_steps"] for row in rows] == list(range(512, 4097, 512))
    (events,) = (path / "tensorboard").glob("events*")
    board = EventAccumulator(str(events)).Reload()
    assert [event.step for event in board.Scalars("run/env_steps_per_s")] == [row["env_steps"] for row in rows]
    lengths = {row["env_steps"]: row["episode_len_mean"] for row in rows if "episode_len_mean" in row}
    assert all("/" in tag for tag in board.Tags()["scalars"])
    logged = {event.step: event.value for event in board.Scalars("run/episode_len_mean")}
    assert logged == pytest.approx(lengths)


def test_every_row_accounts_for_its_time(local):
    _, _, rows = local
    seconds, missed = [0.0, *(row["seconds"] for row in rows)], []
    for before, after, row in zip(seconds[:-1], seconds[1:], rows, strict=True):
        parts = {name: row[f"timing/{name}_s"] for name in (*STAGES, "other")}
        assert min(parts.values()) >= 0
        missed.append(abs(sum(parts.values()) - (after - before)))
        sampling, learning = ("play", "forward"), WORK[WORK.index("forward") + 1 :]
        assert 0 < sum(row[f"timing/{name}_s"] for name in sampling) < parts["sample"]
        assert 0 < sum(row[f"timing/{name}_s"] for name in learning) < parts["learn"]
        assert 0 < row["timing/overhead_share"] < 1
    # A busy machine may stop us between two looks at the clock, but not in most rows.
    assert sorted(missed)[len(missed) // 2] < 0.02


def test_rows_use_exactly_documented_metrics(local):
    _, _, rows = local
    assert unknown_metrics(rows) == []
    names = {name for row in rows for name in row}
    unused = [pattern for pattern in glossary() if not any(matches(name, pattern) for name in names)]
    step_by_step = {f"timing/{part}_s" for part in ("engine", "players", "tokens", "draw")}
    assert step_by_step <= set(unused)  # this run plays batches in one call
    unused = [pattern for pattern in unused if pattern not in step_by_step]
    # Only where players take turns (the next test), in leagues (test_league), from demonstrations, and a user's own.
    elsewhere = ("own/", "win_against/", "league/", "dagger/", *(f"learner/<module>/{part}" for part in LEARNT))
    assert [pattern for pattern in unused if not pattern.startswith(elsewhere)] == []


def test_reports_wins_by_opponent_where_several_take_turns(tmp_path):
    seats = "scenario.seats.blue_0=random:1,idle:1"
    _, rows = tiny_run(tmp_path / "run", "seed=5", seats, "scenario.game.max_steps=20", "train.until=4096")
    reports = [row for row in rows if "win/red_0" in row]
    assert reports
    for row in reports:
        apart = [row[f"win_against/red_0/{name}"] for name in ("random", "idle")]
        assert min(apart) <= row["win/red_0"] <= max(apart)
        assert all(matches(f"win_against/red_0/{name}", "win_against/<seat>/<player>") for name in ("random", "idle"))


@contextmanager
def restored(folder):
    """The algorithm of a checkpoint, for a block."""
    with without_object_store():
        algorithm = MultigridAlgorithm.from_checkpoint(str((folder / "rllib").resolve()))
    try:
        yield algorithm
    finally:
        algorithm.stop()


def test_checkpoint_loads_into_rllib_and_as_player(local):
    path, verdict, _ = local
    folder = path / verdict["checkpoint"]
    assert (path / "checkpoints" / "latest").read_text().strip() == folder.name
    assert sorted(p.name for p in (path / "checkpoints").glob("step_*")) == ["step_000002048", "step_000004096"]
    player = folder / "players" / "red_0"
    network = read_network(player, read_card(player))
    with restored(folder) as algorithm:
        weights = algorithm.env_runner.module["red_0"].net.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


def iterated(algorithm):
    algorithm.iterate()
    return algorithm.row


def built(*overrides):
    return running(algorithm_config(compose([*TINY, "seed=5", *overrides])))


def test_wrong_driver_weights_end_run():
    with built() as algorithm:
        next(iter(algorithm.env_runner.module["red_0"].parameters())).data.add_(1e-3)
        with pytest.raises(RunError, match="an env runner played with other weights"):
            iterated(algorithm)


@pytest.mark.slow
def test_env_runners_play_driver_games_and_resume(session, local, tmp_path, cores, caplog):
    with built("cluster.num_env_runners=2") as algorithm:
        row = iterated(algorithm)
        # Played with the same weights by the same games: only the order of a batch's rows differs.
        for name in ("entropy/red_0", "explained_variance/red_0", "episodes"):
            assert row[name] == pytest.approx(local[2][0][name], rel=1e-5)
        # Taken up where they stood, games and weights go on as before.
        algorithm.write(tmp_path)
        state = pickle.dumps(algorithm.run.get_state())
        ahead, weights = [iterated(algorithm) for _ in range(2)], algorithm.run.fingerprints()
        algorithm.read(tmp_path)
        algorithm.run.set_state(pickle.loads(state))
        assert "games start afresh" not in caplog.text
        assert without_time([iterated(algorithm) for _ in range(2)]) == without_time(ahead)
        assert algorithm.run.fingerprints() == weights
        for one in algorithm.pool._runners:
            one.actor.__ray_call__.remote(lambda actor: next(iter(actor.module["red_0"].parameters())).data.add_(1e-3))
        with pytest.raises(RunError, match="an env runner played with other weights"):
            iterated(algorithm)


def test_shaping_changes_learning_but_not_evaluation(tmp_path, monkeypatch):
    (tmp_path / "my_shaping.py").write_text("def ten(events, reward):\n    return 10 * reward\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, rows = tiny_run(tmp_path / "shaped", "seed=5", "train.shaping=my_shaping:ten")
    _, plain = tiny_run(tmp_path / "plain", "seed=5", "train.shaping=null")
    shaped_first = next(row for row in rows if "return_mean/red_0" in row)
    assert -1.1 < shaped_first["return_mean/red_0"] < 1.5  # canonical, whatever the factor
    assert rows[0]["episodes"] == plain[0]["episodes"]  # the first batch is the same games
    assert rows[0]["learner/red_0/vf_loss"] > 10 * plain[0]["learner/red_0/vf_loss"]


# --- schemes and networks with memory

FOUR = ["scenario=2v2-deathmatch", "experiment=none", "scenario.game.max_steps=30"]
FOUR += ["scenario.seats.blue_0=random", "scenario.seats.blue_1=random"]
COOP = ["scenario=coop", "experiment=none", "scheme=ctde", "scenario.game.max_steps=60"]
GRU = ["scenario=1v1", "experiment=none", "model=gru", "model.hidden=[16]"]
#: Overrides, and seats of each network.
KINDS = {
    "coop ctde": (COOP, {"red_0": ["red_0"], "red_1": ["red_1"]}),
    "2v2 ctce": ([*FOUR, "scheme=ctce"], {"red": ["red_0", "red_1"]}),
    "2v2 shared": ([*FOUR, "scheme=dtde", "shared=true"], {"red": ["red_0", "red_1"]}),
    "1v1 gru": (GRU, {"red_0": ["red_0"]}),
}
SHORT = ["seed=5", "train.until=1536"]


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request, tmp_path_factory):
    """Name, folder, verdict and rows of one tiny run."""
    path = tmp_path_factory.mktemp("kinds") / request.param.replace(" ", "-")
    return request.param, path, *tiny_run(path, *KINDS[request.param][0], *SHORT)


def test_every_scheme_trains_and_reports_its_networks(kind):
    name, _, verdict, rows = kind
    assert [row["env_steps"] for row in rows] == [512, 1024, 1536]
    modules = KINDS[name][1]
    assert set(verdict["weights"]) == set(modules)
    seats = {seat for its in modules.values() for seat in its}
    assert {row.split("/")[1] for row in rows[-1] if row.startswith("return_mean/")} <= seats
    for module in modules:
        values = [rows[-1][f"{metric}/{module}"] for metric in ("entropy", "explained_variance")]
        values += [rows[-1][f"learner/{module}/{part}"] for part in ("policy_loss", "vf_loss", "grad_norm")]
        assert all(isinstance(value, float) and abs(value) < 1e3 for value in values)
        assert rows[-1][f"learner/{module}/grad_norm"] > 0
        assert rows[0][f"learner/{module}/vf_loss"] != rows[-1][f"learner/{module}/vf_loss"]
    assert unknown_metrics(rows) == []


def test_every_scheme_plays_same_run_with_same_seed(kind, tmp_path):
    name, _, verdict, rows = kind
    again_verdict, again = tiny_run(tmp_path / "again", *KINDS[name][0], *SHORT)
    assert without_time(again) == without_time(rows)
    assert again_verdict["weights"] == verdict["weights"]


@pytest.mark.long
def test_remote_runner_equals_driver_with_joint_action(session, tmp_path, cores):
    # Later batches are played with weights that differ by rounding.
    once = [*KINDS["2v2 ctce"][0], "seed=5", "train.until=512"]
    _, here = tiny_run(tmp_path / "here", *once)
    _, rows = tiny_run(tmp_path / "remote", *once, "cluster.num_env_runners=2")
    for name in ("entropy/red", "explained_variance/red", "episodes"):
        assert rows[0][name] == pytest.approx(here[0][name], rel=1e-5)


#: What a learner tells of demonstrations alone.
LEARNT = ("cloning_loss", "held_out_loss", "discriminator_", "learnt_reward", "q_", "alpha", "kl_")
#: What needs an environment's id, recorded play, or a program to talk to: tests of their own start them.
NOT_ALONE = (
    "gymnasium", "unity",
    "halfcheetah-airl", "halfcheetah-bc", "halfcheetah-dac", "halfcheetah-gail", "halfcheetah-gail-clone",
)  # fmt: skip


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in NOT_ALONE])
def test_every_recipe_starts_and_trains_two_iterations(recipe, tmp_path):
    # The fixture that shrinks: one small layer fits every network, 1024 steps are two batches.
    # Players that others begin with are larger.
    changed = ["train.until=1024", "model.hidden=[16]", "init=null", "train.warm_up=0"]
    verdict, rows = tiny_run(tmp_path / "run", f"experiment={recipe}", *changed)
    assert [row["env_steps"] for row in rows] == [512, 1024]
    assert (verdict["experiment"], verdict["ended"]) == (recipe, "until")


def test_network_without_living_seats_does_not_learn(tmp_path):
    _, rows = tiny_run(
        tmp_path / "run", "scenario=2v2-deathmatch", "seed=1", "train.num_envs=1", "train.minibatch_size=4",
        "train.num_steps=4", "train.until=200", "scenario.seats.blue_0=hunter", "scenario.seats.blue_1=hunter",
    )  # fmt: skip
    idle = [row for row in rows if row["entropy/red_0"] is None or row["entropy/red_1"] is None]
    assert idle
    assert all("learner/red_0/policy_loss" not in row for row in rows if row["entropy/red_0"] is None)
