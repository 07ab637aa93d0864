"""Recorded play from others and for others, from a user's own classes and from games of persons."""

import itertools
import json
import math
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from commands import call, complaint, works
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.replays import record, replay
from multigrid_rl.imitation.demonstrations import read_demonstrations
from multigrid_rl.imitation.torch_file import content_of, steps
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import KeyRunner, RandomPlayer
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")

PENDULUM = ("env_id=Pendulum-v1", "experiment=none")


class Bomb:
    def __reduce__(self):
        return (print, ("boom",))


def course(rows: int, **others):
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(rows, 3)), rng.uniform(-2, 2, (rows, 1))
    return {"mean_reward": np.float64(9.5), "std_reward": 1.0, "observations": obs, "actions": actions, **others}


@pytest.mark.slow
def test_course_torch_file_is_converted_once(tmp_path):
    content = course(3000)
    torch.save(content, tmp_path / "expert.pt")
    out = tmp_path / "demo"
    result = works("data", "import", tmp_path / "expert.pt", *PENDULUM, "-o", out, "--who", "expert")
    assert "clipped" not in result.output
    for told in (result, call("data", "show", out)):
        assert "returns 9.50 +- 1.00, it says" in told.output
    data = read_demonstrations(out)
    assert (data.card.who, data.card.rows, data.card.bounds, data.card.returns) == ("expert", 3000, False, None)
    np.testing.assert_allclose(data.observations, content["observations"], rtol=1e-6)
    np.testing.assert_allclose(data.actions, content["actions"], rtol=1e-6)
    assert data.seeds.tolist() == [[-1, -1, -1]]


def test_tensors_are_read_like_arrays(tmp_path):
    content = {"observations": torch.ones(4, 2).to_sparse(), "actions": torch.ones(4, 2, dtype=torch.bfloat16)}
    torch.save({**content, "actions": content["actions"].requires_grad_()}, tmp_path / "x.pt")
    steps(content_of(str(tmp_path / "x.pt")), tmp_path)
    for name in content:
        assert np.load(tmp_path / f"{name}.npy").tolist() == [[1.0, 1.0]] * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (course(4, bomb=Bomb()), "Weights only load failed"),
        ([1], "expected a dictionary, got list"),
        ({"observations": np.zeros((2, 3))}, "expected actions, an array or a list of arrays, got observations"),
        (course(4, actions=[[0.5]] * 4), "expected actions, an array or a list of arrays, got a list of other objects"),
        (course(4, actions=torch.zeros(4, 1, dtype=torch.complex64)), "actions of real numbers, got complex64"),
        (course(4, mean_reward=math.nan), "expected mean_reward, a finite number, got nan"),
        (course(4, std_reward="1.5"), "expected std_reward, a finite number, got 1.5"),
    ],
)
def test_rejects_torch_files_with_other_content(tmp_path, capsys, content, message):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(SystemExit, match=message):
        steps(content_of(str(tmp_path / "x.pt")), tmp_path)
    assert capsys.readouterr().out == ""  # nothing of it was executed


@pytest.mark.slow
def test_rejects_files_of_something_else(tmp_path):
    file, out = tmp_path / "x.pt", tmp_path / "demo"
    file.write_bytes(pickle.dumps(Bomb()))
    assert "a torch file of tensors" in complaint(call("data", "import", file, *PENDULUM, "-o", out))
    message = complaint(call("data", "import", tmp_path / "nowhere.pt", *PENDULUM, "-o", out))
    assert message.endswith(f"games (.json) or minari:DATASET_ID that exists, got {tmp_path / 'nowhere.pt'}")
    assert not out.exists()


def imported(tmp_path, monkeypatch, content):
    """What ``data import`` says of a torch file of Pendulum, read by this process, and the folder it writes."""

    def here(command, **_):
        steps(content_of(command[3]), Path(command[4]))
        return SimpleNamespace(returncode=0)

    torch.save(content, tmp_path / "x.pt")
    with monkeypatch.context() as patch:
        patch.setattr("multigrid_rl.imitation.formats.subprocess", SimpleNamespace(run=here))
        return call("data", "import", tmp_path / "x.pt", *PENDULUM, "-o", tmp_path / "demo"), tmp_path / "demo"


def episodes(*lengths, last=0):
    """Observations (each with ``last`` rows more) and actions of episodes, as lists."""
    rng = np.random.default_rng(0)
    return {
        "observations": [torch.from_numpy(rng.normal(size=(n + last, 3))) for n in lengths],
        "actions": [torch.from_numpy(rng.uniform(-2, 2, (n, 1))) for n in lengths],
    }


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        *itertools.product(["lists", "dictionaries"], [(4, 4, 4), (2, 5, 3), (1, 3)]),
        ("dictionaries", (1, 1, 1)),
        ("three axes", (4, 4, 4)),
    ],
)
def test_episodes_in_torch_files_keep_their_ends(tmp_path, monkeypatch, kind, lengths, last):
    content = given = episodes(*lengths, last=last)
    if kind == "dictionaries":
        content = [dict(zip(given, pair, strict=True)) for pair in zip(*given.values(), strict=True)]
    elif kind == "three axes":
        content = {name: torch.stack(parts) for name, parts in given.items()}
    result, out = imported(tmp_path, monkeypatch, content)
    assert result.exit_code == 0, result.output
    data = read_demonstrations(out)
    assert data.card.bounds
    assert data.episode_ends.tolist() == np.cumsum(lengths).tolist()
    np.testing.assert_allclose(data.actions, np.concatenate(given["actions"]), rtol=1e-6)
    for k, (seen, length) in enumerate(zip(given["observations"], lengths, strict=True)):
        end = data.episode_ends[k]
        np.testing.assert_allclose(data.observations[end - length : end], seen[:length], rtol=1e-6)
        np.testing.assert_allclose(data.final_observations[k], seen[-1], rtol=1e-6)


def spoilt(name, row, value):
    content = course(8)
    content[name][row] = value
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (course(0), "x.pt: expected steps, as many actions as observations or one less in each episode, got 0, 0"),
        ({name: torch.zeros(0) for name in ("observations", "actions")}, "x.pt: expected steps, "),
        (course(4, actions=np.zeros((3, 1))), "as many actions as observations"),
        (course(4, actions=np.zeros((4, 2))), "column actions: expected (1,) for each row, got (4, 2)"),
        (spoilt("observations", 5, np.nan), "x.pt: column observations: expected finite numbers, got nan in row 5"),
        (spoilt("actions", 5, np.inf), "x.pt: column actions: expected finite numbers, got inf in row 5"),
        (course(8, observations=np.zeros((8, 1)), actions=np.zeros((8, 3))), "are the two exchanged?"),
        (course(8, observations=np.zeros((9, 3))), "x.pt: expected as many actions as observations, or a list"),
        (episodes(3) | {"observations": episodes(3, 4)["observations"]}, "as many episodes of actions as of observa"),
        ({name: [*of, of[0][:0]] for name, of in episodes(3).items()}, "x.pt: episode 1: expected steps, "),
    ],
)
def test_import_names_the_file_that_was_given_and_what_is_wrong_in_it(tmp_path, monkeypatch, content, said):
    result, out = imported(tmp_path, monkeypatch, content)
    line = complaint(result)
    assert said in line
    assert ".unfinished" not in line
    assert not out.exists()


def test_actions_beyond_their_bounds_are_clipped_and_said(tmp_path, monkeypatch):
    content = course(8)
    content["actions"][:2] = [[3.5], [-2.5]]
    result, out = imported(tmp_path, monkeypatch, content)
    assert "clipped:  25.0% of the numbers in actions lay up to 1.5 outside of their bounds" in result.output
    np.testing.assert_allclose(read_demonstrations(out).actions, np.clip(content["actions"], -2, 2), rtol=1e-6)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demos") / "hunter"
    assert call("data", "record", "hunter", "scenario=1v1", "--steps", 300, "-o", out).exit_code == 0
    return out


@pytest.mark.parametrize("name", ["z.csv", "z.parquet"])
def test_exports_to_minari_alone(demo, tmp_path, name):
    message = complaint(call("data", "export", demo, "-o", tmp_path / name))
    assert message.endswith(f"--output: expected minari:ID, got {tmp_path / name}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "scenario=cartpole"], "data show: expected neither overrides nor --who, got scenario=cartpole"),
        (["export", "--who", "me", "-o", "minari:a/b-v0"], "neither overrides nor --who, got --who me"),
        (["show", "-o", "there"], "--output: expected nothing to write with data show, got there"),
    ],
)
def test_refuses_words_that_only_an_import_reads(words, said):
    assert said in complaint(call("data", words[0], "demos", *words[1:]))


def test_minari_round_trip(demo, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    works("data", "export", demo, "-o", "minari:doors/hunter-v0")
    works("data", "import", "minari:doors/hunter-v0", "scenario=1v1", "-o", tmp_path / "back")
    mine, theirs = read_demonstrations(demo), read_demonstrations(tmp_path / "back")
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "episode_ends", "final_observations"):
        assert (getattr(mine, name) == getattr(theirs, name)).all(), name


class Leaner:
    """Pushes the cart to where its pole leans: about 150 steps of CartPole."""

    def __init__(self, observation_space, action_space) -> None:
        assert observation_space.shape == (4,)
        assert action_space.nvec.tolist() == [2]

    def act(self, view, state, rng):
        return (view.tokens[:, 2] + view.tokens[:, 3] > 0).astype(int), None


class Twister:
    """Brakes a pendulum, and asks for more torque than there is; what it is shown it overwrites."""

    def __init__(self, *spaces) -> None:
        pass

    def act(self, view, state, rng):
        torque = -5 * view.tokens[:, 2:3]
        view.tokens[:] = 0
        return torque, None


class Wrong(Leaner):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), 2), None


class Lost(Leaner):
    def act(self, view, state, rng):
        return np.full(len(view.tokens), np.nan), None


class Fails(Leaner):
    def act(self, view, state, rng):
        raise ZeroDivisionError("no idea")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    own = ModuleType("own_experts")
    for one in (Leaner, Twister, Wrong, Lost, Fails):
        setattr(own, one.__name__, one)
    monkeypatch.setitem(sys.modules, own.__name__, own)


def test_evaluates_and_records_where_overrides_say(tmp_path):
    works("evaluate", "own_experts:Leaner", "scenario=cartpole", "--episodes", 20, "-o", tmp_path / "judged")
    modes = json.loads((tmp_path / "judged" / "summary.json").read_text())["modes"]
    assert modes["stochastic"]["return_mean"] > 100, "random has 22"
    works("data", "record", "own_experts:Twister", "env_id=Pendulum-v1", "-o", tmp_path / "demos", "--steps", 400)
    data = read_demonstrations(tmp_path / "demos")
    assert np.allclose(data.actions, np.clip(-5 * data.observations[:, 2:3], -2, 2), atol=1e-5), "as the task took them"


def test_labels_what_a_learner_visits(tmp_path):
    run = ["scenario=cartpole", "train=dagger", "expert=own_experts:Leaner", "train.until=1024", "train.epochs=1"]
    _, rows = tiny_run(tmp_path / "run", *run)
    assert rows[-1]["dagger/labels"] == 1024
    assert rows[-1]["learner/agent_0/cloning_loss"] < rows[0]["learner/agent_0/cloning_loss"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Wrong", "actions: expected integers 0 to [1] of shape (3, 1)"),
        ("Lost", "actions: expected finite numbers of shape (3, 1)"),
        ("Fails", "ZeroDivisionError: no idea"),
        ("None", "own_experts:None"),
    ],
)
def test_what_cannot_act_is_refused_before_the_start(name, said):
    result = call("evaluate", f"own_experts:{name}", "scenario=cartpole", "--episodes", 20)
    assert result.exit_code not in (0, 70), result.output
    assert said in complaint(result), result.output


def doubled(obs, action, next_obs, reward, info):
    return 2.0 * reward


def test_recordings_leave_a_users_reward_out(tmp_path, monkeypatch):
    own = ModuleType("own_rewards")
    own.doubled = doubled
    monkeypatch.setitem(sys.modules, own.__name__, own)
    tiny_run(tmp_path / "run", "env_id=CartPole-v1", "train.until=2048", "train.shaping=own_rewards:doubled")
    assert call("data", "record", tmp_path / "run", "--steps", 300, "-o", tmp_path / "demos").exit_code == 0
    assert set(read_demonstrations(tmp_path / "demos").rewards.tolist()) == {1.0}


def test_recordings_of_a_board_run_leave_its_bonus_out(tmp_path):
    tiny_run(tmp_path / "run", "scenario=single", "train.bonus={all: {step: 5.0}}", "train.until=512")
    assert call("data", "record", tmp_path / "run", "--steps", 300, "-o", tmp_path / "demos").exit_code == 0
    assert np.abs(read_demonstrations(tmp_path / "demos").rewards).max() < 5.0


SPEC = load_scenario("1v1").spec


def written(path, count=5):
    """A file of games of a key runner as red, called you, against a random blue."""
    played = play_games(SPEC, {"red_0": KeyRunner(SPEC), "blue_0": RandomPlayer()}, count, seed=3)
    names = {"red_0": "you", "blue_0": "random"}
    games = [record(SPEC, played, row, seed=3, players=names, label=f"game {row}") for row in range(count)]
    path.write_text(json.dumps([game.model_dump() for game in games]))
    return games


def test_games_of_a_person_become_demonstrations(tmp_path):
    games = written(tmp_path / "games.json")
    works("data", "import", tmp_path / "games.json", "scenario=1v1", "-o", tmp_path / "demos")
    data, red = read_demonstrations(tmp_path / "demos"), SPEC.seats.index("red_0")
    assert data.card.who == "you"
    first = 0
    for game, behind in zip(games, data.episode_ends.tolist(), strict=True):
        played = replay(game)
        steps = behind - first
        assert (data.observations[first:behind] == played.tokens[:steps, red]).all()
        assert (data.actions[first:behind, 0] == played.actions[:steps, red]).all()
        np.testing.assert_allclose(data.rewards[first:behind].sum(), played.reward[:, red].sum(), atol=1e-5)
        assert data.terminated[behind - 1] == (game.steps < SPEC.max_steps)
        first = behind


def test_games_that_cannot_teach_are_refused_in_one_line(tmp_path):
    written(tmp_path / "games.json", 2)
    (tmp_path / "none.json").write_text("[]")
    for arguments, message in (
        (["games.json", "scenario=1v1", "--who", "me"], "--who: expected one of you on red_0 in"),
        (["games.json", "scenario=single"], "expected games of the scenario, got another: game 0"),
        (["none.json", "scenario=1v1"], "no games in it"),
        (["games.json", "scenario=coop", "scheme=ctce"], "expected an agent of one seat (scheme=dtde), got red_0"),
    ):
        file, *words = arguments
        assert message in complaint(call("data", "import", tmp_path / file, *words, "-o", tmp_path / "demos"))
        assert not (tmp_path / "demos").exists()
