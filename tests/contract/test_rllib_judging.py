"""What was trained by ``config()`` is judged as a run is: an algorithm, a checkpoint's folder, a trial's result."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from ray.tune import Checkpoint
from typer.testing import CliRunner

import multigrid_rl
from multigrid_rl.cli.main import app
from multigrid_rl.rllib import config
from multigrid_rl.text import ConfigError
from tests.tiny_runs import TINY, running

pytestmark = pytest.mark.usefixtures("no_session")
PLAYED = {"episodes": 20, "seed": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An algorithm and the folder of its checkpoint."""
    with running(config("1v1", *TINY, seed=5)) as algorithm:
        algorithm.train()
        yield algorithm, algorithm.save_to_path(str(tmp_path_factory.mktemp("checkpoint") / "c"))


def test_algorithm_checkpoint_and_result_are_judged_alike_in_one_call(trained):
    algorithm, folder = trained
    result = SimpleNamespace(checkpoint=Checkpoint(folder), metrics={})
    found = [
        multigrid_rl.evaluate(who, opponent="hunter", **PLAYED)
        for who in (algorithm, folder, Checkpoint(folder), result)
    ]
    assert found[0]["episodes"] == 20
    assert [row == found[0] for row in found] == [True] * 4
    assert multigrid_rl.evaluate(folder, **PLAYED) != found[0]  # its own scenario's opponent
    with pytest.raises(ConfigError, match="checkpoint: expected a result with one"):
        multigrid_rl.evaluate(SimpleNamespace(checkpoint=None), **PLAYED)


def test_environment_seats_them_alone_and_in_a_mixture(trained):
    algorithm, folder = trained
    result = SimpleNamespace(checkpoint=Checkpoint(folder), metrics={})
    for who in (algorithm, folder, Checkpoint(folder), result, {algorithm: 1, "random": 2}):
        multigrid_rl.make("1v1", players={"blue_0": who}).reset(seed=1)


def test_policy_seat_start_and_replay_take_them(trained, built):
    (algorithm, folder), hashes = trained, set()
    for who in (algorithm, folder):
        hashes.add(multigrid_rl.load_policy(who).sha256)
        weights = algorithm.get_module("red_0").net.state_dict()
        assert "Replay" in repr(multigrid_rl.play(who, "random", episodes=3))
        sparring = built(config("1v1", *TINY, f"scenario.seats.blue_0={folder}", init=who))
        assert np.array_equal(sparring.get_module("red_0").net.state_dict()["table"], weights["table"])
        sparring.train()
    assert len(hashes) == 1
    env = multigrid_rl.make("1v1", players={"blue_0": folder})
    env.reset(seed=1)
    assert CliRunner().invoke(app, ["evaluate", folder, "--episodes", "4"]).exit_code == 0


@pytest.mark.slow
def test_checkpoints_are_entrants_of_a_cup_which_is_verified(trained, tmp_path):
    algorithm, folder = trained
    later = algorithm.save_to_path(str(tmp_path / "later"))
    (tmp_path / "handed-in").mkdir()
    cup = ["cup", str(tmp_path / "handed-in"), "--with", folder, "--with", later, "--with", "hunter"]
    played = CliRunner().invoke(app, [*cup, "--scenario", "1v1", "--games", "4", "-o", str(tmp_path / "cup")])
    found = json.loads(played.stdout.splitlines()[-1])
    assert (found["entries"], found["games"], found["unranked"]) == (3, 6 * 4, [])
    verified = CliRunner().invoke(app, ["cup", "verify", str(tmp_path / "cup"), "--all"])
    assert json.loads(verified.stdout.splitlines()[-1])["different"] == 0


def test_checkpoint_restores_with_what_stands_beside_it(trained, built):
    algorithm, folder = trained
    again = built(config("1v1", *TINY, seed=6))
    again.restore_from_path(folder)
    assert again.run.fingerprints() == algorithm.run.fingerprints()
    again.save_to_path(folder)  # over it
    assert multigrid_rl.evaluate(folder, **PLAYED) == multigrid_rl.evaluate(again, **PLAYED)
