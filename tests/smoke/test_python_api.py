"""The Python API: what is evaluated, made and trained by it; a run's folder wherever a player's name stands."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import multigrid_rl
import multigrid_rl.rllib
from bundles import edit
from commands import call, complaint, works
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.players.cards import CARD_FILE, PlayerError, read_card
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.runs.reader import opponent_hashes
from multigrid_rl.text import ConfigError
from multigrid_rl.types import RunError
from multigrid_rl.world.spaces import tokens_of
from run_folders import write_run
from tiny_runs import TINY, rows_of, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start


class Forward:
    """Walks on; counts its steps."""

    def __init__(self, action=2):
        self.action, self.steps = action, 0

    def act(self, view, state, rng):
        self.steps += 1
        return np.full(len(view.tokens), self.action), state


def test_objects_are_evaluated_as_they_are():
    one, other = Forward(), Forward(6)
    assert multigrid_rl.evaluate(one, opponent=other, episodes=4)["episodes"] == 4
    assert one.steps > 0 < other.steps
    assert multigrid_rl.evaluate("blue-rookie", opponent=one, episodes=4)["win"] > 0


def test_an_evaluation_names_its_mode():
    answers = [multigrid_rl.evaluate("blue-rookie", episodes=4, **how) for how in ({}, {"mode": "argmax"})]
    assert [answer["mode"] for answer in answers] == ["stochastic", "argmax"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"mode": mode}, r"^mode: expected stochastic, argmax, got") for mode in ("greedy", True, None, "argmx")),
        *(({"seed": seed}, "^seed: expected a whole number of at least 0, got") for seed in (-1, 1.5, True, "7")),
        *(({"episodes": games}, "^episodes: expected a whole number of at least") for games in (0, 1, 2.5, "ten")),
    ],
)
def test_what_an_evaluation_cannot_mean_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        multigrid_rl.evaluate("blue-rookie", **given)


@pytest.mark.parametrize("given", [{"game": "bets"}, {"game": 1}, {"seed": -1}, {"episodes": "ten"}])
def test_what_a_game_to_look_at_cannot_mean_is_refused(given):
    (key,) = given
    with pytest.raises(ConfigError, match=f"^{key}: expected"):
        multigrid_rl.play("hunter", "idle", **given)


def test_trained_policy_predicts_from_what_a_game_shows():
    env = multigrid_rl.make("1v1", "blue_0", players={"red_0": "idle"})
    player = multigrid_rl.load_player("blue-rookie", "blue_0")
    shown, _ = env.reset(seed=3)
    for _ in range(20):
        tokens = env.match.env.world.outputs.tokens[0, 0]
        np.testing.assert_array_equal(tokens_of(shown), tokens)
        action, _ = player.predict(shown)
        assert action == player.predict(tokens)[0]
        shown = env.step(action)[0]
    several = {key: np.stack([value, value]) for key, value in shown.items()}
    assert player.predict(several)[0].shape == (2,)


@pytest.mark.parametrize(
    ("overrides", "width", "actions"),
    [
        (["scenario=1v1", "scenario.seats.blue_0=learn", "scenario.seats.red_0=random"], 27, ()),
        (["scenario=2v2", "scheme=ctce", "model=gru", "model.hidden=[16]"], 54, (2,)),
        (["env_id=CartPole-v1"], 4, ()),
        (["scenario=tictactoe"], 27, ()),
    ],
    ids=["blue", "a team with a memory", "gymnasium", "turns"],
)
def test_the_policy_of_every_kind_of_run_predicts(tmp_path, overrides, width, actions):
    tiny_run(tmp_path / "run", "train.until=512", *overrides)
    policy = multigrid_rl.load_policy(tmp_path / "run")
    action, state = policy.predict(np.zeros(width, np.uint8))
    assert np.shape(action) == actions
    assert np.shape(policy.predict(np.zeros((3, width), np.uint8))[0]) == (3, *actions)
    policy.predict(np.zeros(width, np.uint8), state)


def test_only_what_was_trained_is_a_policy():
    assert multigrid_rl.load_policy("blue-rookie", "blue_0").predict(np.zeros(27, np.uint8))[0] in range(7)
    with pytest.raises(ConfigError, match=r"^player: expected one that was trained, got hunter$"):
        multigrid_rl.load_policy("hunter")


@pytest.mark.parametrize("seen", [[1, 2, 3], {"image": 1}, None, "abc", [255] * 27, np.zeros((2, 3))])
def test_what_a_policy_cannot_read_is_told_in_one_line(seen):
    with pytest.raises(ConfigError, match=r"^observation: expected [^\n]*, got [^\n]*$"):
        multigrid_rl.load_policy("blue-rookie", "blue_0").predict(seen)


def test_a_callback_takes_rows_and_ends_the_run(tmp_path):
    seen = []

    def enough(row):
        seen.append(row["env_steps"])
        return len(seen) == 3

    run = multigrid_rl.train("1v1", *TINY, run_dir=tmp_path / "run", callback=enough)
    assert seen == [512, 1024, 1536]
    assert (run.verdict["ended"], run.metrics.index[-1]) == ("interrupted", 1536)
    multigrid_rl.train(resume=run, callback=lambda row: seen.append(row["env_steps"]))
    assert seen[3:] == [2048, 2560, 3072, 3584, 4096]
    assert run.verdict["ended"] == "until"


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (lambda row: 1 / 0, r"callback: ZeroDivisionError: division by zero \(test_python_api.py:"),
        (lambda row: np.zeros(2), "callback: ValueError: The truth value of an array"),
    ],
)
def test_a_callback_that_fails_ends_the_run_with_its_own_error(tmp_path, callback, message):
    with pytest.raises(RunError, match=message):
        multigrid_rl.train("1v1", *TINY, run_dir=tmp_path / "run", callback=callback)
    assert len(multigrid_rl.Run(tmp_path / "run").metrics) == 1


def test_two_players_play_a_game_to_look_at():
    shown = multigrid_rl.play("key-runner", Forward(), game="worst", episodes=6)
    assert shown._repr_html_().startswith("<iframe srcdoc=")
    assert "key-runner" in shown.page
    assert shown.game.actions == multigrid_rl.play("key-runner", Forward(), game="worst", episodes=6).game.actions
    with pytest.raises(ValueError, match="cheetah-expert"):
        multigrid_rl.play("cheetah-expert", "hunter")


def test_training_by_id_and_resumed(tmp_path, monkeypatch):
    """What is asked of training; no training starts."""
    asked = []
    monkeypatch.setattr("multigrid_rl.api.run_training", lambda settings, _: asked.append(compose(settings)))
    monkeypatch.setattr("multigrid_rl.api.resume_training", lambda *what: asked.append(what))
    monkeypatch.setattr("multigrid_rl.api.Run", Path)
    multigrid_rl.train(env_id="Acrobot-v1", until=1000)
    assert asked[0].scenario.env_id == "Acrobot-v1"
    assert multigrid_rl.train("1v1", f"run_dir={tmp_path / 'typed'}") == tmp_path / "typed"
    assert asked[1].run_dir == str(tmp_path / "typed")
    assert multigrid_rl.train(resume=tmp_path, until=2e5) == tmp_path
    assert asked[2] == (tmp_path, ["train.until=200000.0"], None)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: multigrid_rl.train("1v1", lrr=3), ConfigError, r"^train: expected keys of configs/, got lrr \(did"),
        (lambda: multigrid_rl.train(learning_rate=1), ConfigError, r"got learning_rate \(did you mean lr\?\)$"),
        (lambda: multigrid_rl.train("1v2"), ConfigError, "^scenario: expected .*1v1 .*, got 1v2"),
        (lambda: multigrid_rl.train("scenario=1v2"), ConfigError, "^scenario: expected .*1v1 .*, got 1v2"),
        (lambda: multigrid_rl.train(players={"blue_0": lambda spec: None}), ConfigError, "not one inside of another"),
        (lambda: multigrid_rl.evaluate("nobody"), PlayerError, "^player: expected random, .*, got nobody$"),
        (lambda: multigrid_rl.load_player("hunter", "red_7"), ValueError, "red_7"),
        (lambda: multigrid_rl.load_player("cheetah-expert", "red_0"), ConfigError, "^seat: expected agent_0, got"),
        (lambda: multigrid_rl.train(players={"blue_0": Forward()}), ConfigError, "a class, got an object of Forward$"),
        (lambda: multigrid_rl.evaluate(multigrid_rl.load_player("blue-rookie")), ConfigError, "object of FrozenPlayer"),
        (lambda: multigrid_rl.train("1v1", resume="runs/x"), ConfigError, "expected a run folder"),
        (lambda: multigrid_rl.make("1v1", "green"), ValueError, "^seat: expected blue_0, red_0, got 'green'$"),
        (lambda: multigrid_rl.Run("nowhere"), ConfigError, "nowhere"),
        (lambda: multigrid_rl.train(players="hunter"), ConfigError, "^players: expected a player for each seat"),
        (lambda: multigrid_rl.make(players=["hunter"]), ConfigError, "^players: expected a player for each seat"),
        (lambda: multigrid_rl.train(players={"blue_0": 3}), ConfigError, "^player: expected a name, .* of int$"),
        (lambda: multigrid_rl.evaluate(3), ConfigError, "^player: expected a name, .* an object of int$"),
        (lambda: multigrid_rl.evaluate("hunter", 5), ConfigError, "^5: expected key=value"),
        (lambda: multigrid_rl.train(callback=3), ConfigError, "^callback: expected a function of one row, got 3: "),
        (lambda: multigrid_rl.train(callback=lambda row, more: 0), ConfigError, "^callback: .*missing a required"),
        (lambda: multigrid_rl.train(callback=lambda: 0), ConfigError, "^callback: .*too many positional"),
        (lambda: multigrid_rl.train(resume=3), ConfigError, "^resume: expected a folder, got 3$"),
        (lambda: multigrid_rl.make(num_envs="x"), ConfigError, "^num_envs: expected a whole number of at least 1"),
        (lambda: multigrid_rl.make("2v2", "all", num_envs=8), ConfigError, "^num_envs: expected none with seat='all'"),
        (lambda: multigrid_rl.make(3), ConfigError, "^scenario: expected 1v1, .*, got 3$"),
        (lambda: multigrid_rl.train("1v1", algo="dqn"), ConfigError, r"got algo \(did you mean train\?\)$"),
        (lambda: multigrid_rl.trian, AttributeError, "no attribute 'trian'"),
    ],
)
def test_mistakes_are_reported_in_one_line(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert [path for path in tmp_path.iterdir() if path.name != "MUJOCO_LOG.TXT"] == []


def test_stub_names_the_whole_api():
    names = re.findall(r" as (\w+)$", Path(multigrid_rl.__file__).with_suffix(".pyi").read_text(), re.MULTILINE)
    assert sorted([*names, "__version__"]) == sorted(multigrid_rl.__all__)


def test_metrics_are_drawn_wherever_they_have_values(tmp_path):
    run = multigrid_rl.Run(write_run(tmp_path / "run"))
    file = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"explained_variance/red_0": None, "entropy/red_0": None if number % 2 else 0.25, "own/my_gates:slow": 1}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = [np.ma.masked_invalid(axes.lines[0].get_ydata()).count() for axes in run.plot()]
    assert drawn == [60, 60, 0, 59]
    assert len(run.plot(["entropy/red_0", "return_mean/*"])) == len(run.plot("entropy/red_0", "return_mean/*")) == 2
    run.config["scenario"]["gates"] = [{"metric": "my_gates:slow"}]
    assert len(run.plot()) == 1
    file.write_text("")
    assert run.metrics.empty


# ray and tensorboard warn about their own future at every start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    tiny_run(home / "one", "scenario=1v1", "train.until=1024")
    tiny_run(home / "two", "scenario=2v2", "scheme=dtde", "experiment=none", "train.until=1024")
    tiny_run(home / "team", "scenario=2v2", "scheme=ctce", "experiment=none", "train.until=1024")
    return home


def folder_of(run, player="red_0"):
    return run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip() / "players" / player


@pytest.mark.parametrize("seat", ["red_0", "blue_0"])
def test_a_run_sits_on_either_side_as_its_newest_player(runs, seat):
    spec = load_scenario("1v1").kind.spec
    loaded = Catalogue().seat(str(runs / "one"), spec, seat)
    assert loaded.sha256 == read_card(folder_of(runs / "one")).sha256
    assert loaded.player.mirrored == (seat == "blue_0")


def test_seats_of_a_team_have_the_players_of_their_counterparts(runs):
    spec, catalogue = load_scenario("2v2").kind.spec, Catalogue()
    seated = {seat: catalogue.seat(str(runs / "two"), spec, seat) for seat in spec.seats}
    weights = {seat: next(iter(loaded.player.network.state_dict().values())) for seat, loaded in seated.items()}
    networks = {seat: weight.sum().item() for seat, weight in weights.items()}
    assert networks["blue_0"] == networks["red_0"] != networks["red_1"] == networks["blue_1"]
    assert len({loaded.sha256 for loaded in seated.values()}) == 1  # one name, one hash


def test_a_team_that_acts_as_one_plays_for_either_side(runs):
    assert multigrid_rl.evaluate(runs / "team", opponent=runs / "team", episodes=4)["episodes"] == 4


@pytest.mark.parametrize(("run", "scenario"), [("one", "1v1"), ("two", "2v2"), ("team", "2v2")])
def test_a_run_takes_part_in_a_cup(runs, tmp_path, run, scenario):
    (tmp_path / "none").mkdir()
    also = ["--with", runs / run, "--with", "random"]
    result = works("cup", tmp_path / "none", "--scenario", scenario, "--games", 2, "-o", tmp_path / "out", *also)
    assert set(json.loads(result.output.splitlines()[-1])["ranking"]) == {run, "random"}
    assert call("cup", "verify", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("inside", ["checkpoints", "checkpoints/latest", "checkpoints/step_000001024/players/red_0"])
def test_a_folder_inside_of_a_run_that_is_resumed_names_the_run(runs, inside):
    said = complaint(call("train", "--resume", runs / "one" / inside))
    assert "expected a run folder, got " in said
    assert said.endswith(f" (did you mean {runs / 'one'}?)")


def test_an_override_where_a_run_is_resumed_names_the_run(runs):
    assert complaint(call("train", "--resume", f"run_dir={runs / 'one'}")).endswith(f" (did you mean {runs / 'one'}?)")


def test_a_run_takes_part_in_every_function(runs):
    run, other = multigrid_rl.Run(runs / "one"), str(runs / "one")
    by_name = multigrid_rl.evaluate(run, opponent=f"{folder_of(runs / 'one')}/", episodes=20)
    assert {**multigrid_rl.evaluate(run, opponent=run, episodes=20), "against": 0} == {**by_name, "against": 0}
    assert multigrid_rl.evaluate("hunter", "scenario=1v1", opponent=run, episodes=4)["episodes"] == 4
    assert multigrid_rl.play(run, run, episodes=2).game.players["blue_0"] == other
    assert multigrid_rl.load_player(run, "blue_0").mirrored
    for players in ({"blue_0": run}, {"blue_0": {run: 3, "random": 1}}, {"blue_0": other}):
        env = multigrid_rl.make("1v1", players=players)
        env.reset(seed=0)
        env.step(2)


@pytest.mark.parametrize(("name", "seats"), [("one", "blue_0"), ("two", "blue_0 blue_1")])
def test_a_run_trains_against_a_run_and_goes_on_against_it(runs, tmp_path, name, seats):
    """Whether the seat is told by a key or by Python; the rows are those against the player's own folder."""
    against = {seat: multigrid_rl.Run(runs / name) for seat in seats.split()}
    game = [f"scenario={'1v1' if name == 'one' else '2v2'}", "scheme=dtde", "experiment=none", "train.until=1024"]
    run = multigrid_rl.train(None, *TINY, *game, players=against, run_dir=tmp_path / "run")
    assert set(opponent_hashes(run.path)) == {str(runs / name)}
    typed = [f"scenario.seats.{seat}={folder_of(runs / name, seat.replace('blue', 'red'))}/" for seat in against]
    _, rows = tiny_run(tmp_path / "by-folder", *game, *typed)
    key = "learner/red_0/policy_loss"
    assert [row[key] for row in rows_of(run.path)] == [row[key] for row in rows]
    assert multigrid_rl.train(resume=run, until=2048).verdict["env_steps"] == 2048


@pytest.mark.slow
def test_a_run_is_handed_to_other_processes(runs, tmp_path):
    seat = f"scenario.seats.blue_0={runs / 'one'}"
    verdict, _ = tiny_run(tmp_path / "run", "scenario=1v1", seat, "cluster.num_env_runners=1", "train.until=1024")
    assert verdict["env_steps"] == 1024


def test_a_run_is_an_opponent_on_the_command_line(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    works("evaluate", "hunter", "scenario=1v1", "--opponent", "one", "--episodes", "4", "-o", tmp_path / "e")
    against = call("evaluate", "one", "--opponent", "./team", "--episodes", "4", "-o", tmp_path / "f")
    assert "does not fit" in complaint(against)


def test_a_run_that_is_no_player_says_why(runs, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "new", ignore=lambda *_: {"checkpoints"})
    with pytest.raises(PlayerError, match=r"new: expected a run with a checkpoint, got No such file"):
        multigrid_rl.evaluate("hunter", "scenario=1v1", opponent=tmp_path / "new", episodes=2)
    folder = tmp_path / "rllib"
    folder.mkdir()
    (folder / "rllib_checkpoint.json").write_text("{}")
    said = r"multigrid-rl export makes one of it, got .*rllib, a checkpoint of RLlib's$"
    with pytest.raises(PlayerError, match=said):
        multigrid_rl.evaluate(folder, episodes=2)


def test_players_lists_seats_strength_and_hash(root):
    result = works("players", "--checkpoints", root)
    listed, _, notes = result.stdout.partition("\n\n")
    rows = {line.split()[0]: line for line in listed.splitlines()}
    assert list(rows) == ["player", "random", "idle", "key-runner", "hunter", "rookie"]
    sha = read_card(root / "rookie").sha256[:8]
    for part in ("1v1 blue_0", "mlp, 0.12M", "75.0 / 0.0 / 25.0%", sha):
        assert part in rows["rookie"]
    assert "any seat" in rows["hunter"]
    assert "hunter: knows the board" in notes
    assert "1,000 games of 1v1" in notes


@pytest.mark.parametrize("changes", [{"provenance": {"env_steps": "many"}}, {"colour": "red"}])
def test_players_names_damaged_card(changes, root):
    edit(root / "rookie", **changes)
    result = call("players", "--checkpoints", root)
    assert str(root / "rookie" / CARD_FILE) in complaint(result)
    assert "hunter" in result.stdout  # all others are listed


@pytest.mark.parametrize("scenario", ["coop", "cartpole", "nowhere"])
def test_rate_rejects_scenario_without_frozen_players(scenario, root):
    assert re.search(f"scenario.*{scenario}", complaint(call("players", "rate", scenario, "--checkpoints", root)))
