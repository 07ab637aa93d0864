"""The command line: what it prints, how it leaves, and that a mistake costs one line and nothing else."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from bundles import edit, make_player, unchanged
from commands import call, complaint, has_verb
from multigrid_rl.cli.app import _FORMER_VERBS
from multigrid_rl.cli.main import app
from multigrid_rl.config.compose import compose
from multigrid_rl.gates import Gate, GateKeeper, Moment
from multigrid_rl.metrics import STAGES
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card
from multigrid_rl.text import program
from multigrid_rl.training import advice
from multigrid_rl.training import screen as live


@pytest.fixture(autouse=True)
def _halted(monkeypatch):
    """Training ends where the first game would be played, and its folder is none: no test here trains or writes."""

    class NoFolder:
        is_started = False

        def __init__(self, path, *_):
            self.path = path

        def close(self):
            pass

        def discard(self):
            pass

    def halt(engine, config, folder, *_):
        raise PlayerError(f"halted before {folder.path}")

    monkeypatch.setattr("multigrid_rl.rllib.session.ray_session", nullcontext)
    monkeypatch.setattr("multigrid_rl.rllib.algorithm.built_algorithm", lambda *_: nullcontext())
    monkeypatch.setattr("multigrid_rl.cli.drive.RunFolder", NoFolder)
    monkeypatch.setattr("multigrid_rl.cli.drive.train", halt)


def train(root: Path, *args: object):
    """Train against the player ``rookie`` of ``root``, unless told otherwise."""
    return call("train", f"checkpoints={root}", "scenario.seats.blue_0=rookie", *args)


#: What is given, and what the one line must hold: the key and the value.
MISTAKES = [
    (["scenario.seats.blue_0=rooky"], r"blue_0=rooky: player: .*\(did you mean rookie\?\)"),
    (["--until", "1.5"], "--until: expected a whole number .*, got 1.5"),
    (["--until", "nan"], "--until: .*nan"),
    (["--until", "0"], r"train\.until: expected greater than or equal to 1, got 0"),
    (["seed"], "seed.*key=value"),
    (["run_dir=/dev/null/runs/mine"], "run_dir: .*made, got /dev/null/runs/mine: Not a directory"),
]


@pytest.mark.parametrize(("args", "message"), MISTAKES, ids=[" ".join(args) for args, _ in MISTAKES])
def test_train_rejects_mistakes_and_writes_nothing(args, message, root, tmp_path):
    with unchanged(tmp_path):
        assert re.search(message, complaint(train(root, *args)))


def change_a_byte(folder: Path) -> None:
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / MODEL_FILE).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_a_byte, f"{MODEL_FILE}.*sha256"),
        (lambda folder: (folder / MODEL_FILE).unlink(), MODEL_FILE),
        (lambda folder: edit(folder, architecture={"name": "tree"}), rf"{CARD_FILE}.*architecture\.name: expected"),
    ],
    ids=["changed byte", "missing", "unknown architecture"],
)
def test_train_rejects_damaged_player_and_writes_nothing(damage, message, root, tmp_path):
    damage(root / "rookie")
    with unchanged(tmp_path):
        assert re.search(rf"scenario\.seats\.blue_0.*rookie.*{root / 'rookie'}/{message}", complaint(train(root)))


def test_train_rejects_player_of_other_seat_or_game(root, tmp_path):
    make_player(root, "red-player", seat="red_0")
    make_player(root, "soloist", seat="red_0", scenario="single")
    with unchanged(tmp_path):
        assert "opponent: red-player on blue_0" in train(root, "scenario.seats.blue_0=red-player").stdout  # mirrored
        text = complaint(train(root, "scenario=2v2", "experiment=none", "scenario.seats.blue_1=red-player"))
        assert re.search(r"scenario\.seats\.blue_1.*red-player.*red_0", text)
        text = complaint(train(root, "scenario.seats.blue_0=learn", "scenario.seats.red_0=soloist"))
        assert re.search(r"scenario\.seats\.red_0.*soloist.*views of 5x5 cells", text)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_train_rejects_existing_run_folder(kind, root, tmp_path):
    path = tmp_path / "mine"
    path.write_text("notes") if kind == "file" else path.mkdir()
    with unchanged(tmp_path):
        assert f"run_dir: expected a new folder, got {path}" in complaint(train(root, f"run_dir={path}"))


def test_preflight(root, tmp_path):
    batch = ("train.num_envs=256", "train.num_steps=32", "train.minibatch_size=2048")
    result = train(root, f"run_dir={tmp_path / 'new'}", "seed=7", *batch, "--until", "3e5")
    assert f"halted before {tmp_path / 'new'}" in complaint(result)
    sha = read_card(root / "rookie").sha256[:16]
    for line in (
        "learns:   red_0",
        f"opponent: rookie on blue_0 (sha256 {sha}; wins 75.0% of 1000 games against random)",
        "sampling: the driver process, 0 env runners; 256 games x 32 steps = 8192 steps a batch",
        f"run:      {tmp_path / 'new'} (seed 7, at most 300,000 environment steps, 303,104 in whole batches)",
    ):
        assert line in result.stdout
    assert "at most 16,384 environment steps)" in train(root, *batch, "--until", 16_384).stdout


def preflight_of(*overrides: str) -> list[str]:
    """What ``train`` says of a run before it begins, without its opponents."""
    return live.preflight(compose(list(overrides)), {}, Path("runs/x"), "1 thread")


ONLY = "(training reward only; gates score the game's own)"


def test_preflight_and_explain_name_reward_changes(root):
    message = f"key_pickup +1 for all {ONLY}"
    assert f"bonus:    {message}" in train(root, "scenario=1v1").stdout
    output = call("explain", "scenario=1v1").stdout
    assert message in output
    (row,) = [row for row in output.splitlines() if row.startswith("training reward")]
    assert row.split("  ", 1)[1].split()[:2] == ["with", "bonus"]  # nothing claims that nothing is added
    assert f"bonus:    key_pickup -0.5, success +2 for red_0 {ONLY}" in preflight_of(
        "train.bonus={red_0: {key_pickup: -0.5, success: 2}}"
    )
    assert f"shaping:  my.rewards:f {ONLY}" in preflight_of("train.shaping=my.rewards:f")
    assert "bonus: " not in "\n".join(preflight_of("scenario=1v1", "train.bonus.all.key_pickup=0.0"))
    plain = "\n".join(preflight_of("experiment=none"))
    assert "bonus: " not in plain
    assert "shaping: " not in plain
    assert "the game's own" in call("explain", "experiment=none").stdout


VERDICT = {
    "gates": [], "held": False, "stage": 0, "stages": 1, "ended": "until", "env_steps": 4096, "policy_updates": 1,
    "seconds": 1.0, "env_steps_per_s": 4096.0, "checkpoint": "checkpoints/step_000004096", "last_report": {},
}  # fmt: skip


def test_notebook_gets_plain_lines_in_one_stream(monkeypatch, capsys):
    """Jupyter's display would make an output of each line, with codes of colours in its text."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    screen = live.live_console()
    screen.print("[bold green]HELD[/] all 4 gates")
    assert (screen.is_jupyter, capsys.readouterr().out) == (False, "HELD all 4 gates\n")


def test_closing_says_how_good_the_policy_is():
    report = {"report_episodes": 112.0, "episode_len_mean": 43.91, "return_mean/red_0": 1.234, "win/red_0": 0.9}
    gates = [
        {"metric": "episode_len_mean", "comparison": "<=", "bound": 20.0, "value": 43.91, "held": False},
        {"metric": "entropy/red_0", "comparison": "<=", "bound": 0.3, "value": None, "held": False},
    ]
    lines = live.closing_lines({**VERDICT, "last_report": report, "gates": gates}, Path("run"), compose([]))
    unmet = "episode_len_mean <= 20 (now 43.910), entropy/red_0 <= 0.3 (not measured)"
    assert lines[0].replace("[bold yellow]", "").replace("[/]", "") == f"NOT HELD: {unmet}"
    hint = "hint:     the recipe's median seed holds its gates at 497,664 steps; this run played less"
    assert lines[1].startswith(hint)
    assert lines[2] == "result:   mean return red_0 1.23; 43.9 steps an episode (112 episodes)"
    assert lines[3].startswith("played:   4,096 environment steps")


def test_strength_of_an_opponent_is_of_this_scenario_or_says_of_which():
    def opponent(*scenarios):
        rows = [SimpleNamespace(scenario=s, opponent="random", win=k / 4, episodes=9) for k, s in enumerate(scenarios)]
        return SimpleNamespace(name="x", sha256=None, strength=rows, weight=1, player=None)

    here, elsewhere = live._opponents({"a": [opponent("2v2", "1v1")], "b": [opponent("2v2", "battle")]}, "1v1")
    assert here.endswith("wins 25.0% of 9 games against random)")
    assert elsewhere.endswith("wins 0.0% of 9 games against random in 2v2)")


def test_gate_of_a_mean_shows_the_mean_that_decides(capsys):
    gates = [Gate("win/red_0", ">=", 0.8, hold=hold, window=300) for hold in ("mean", "every", "share")]
    keeper = GateKeeper(gates)
    for k, value in enumerate((0.2, 0.3, 0.9, 0.1, 0.85), 1):
        keeper.report(Moment(100 * k, k, 1.0 * k), 200, {"win/red_0": value})
    verdict = {**VERDICT, **keeper.verdict()}
    mean, every, _ = live.closing_lines(verdict, Path("run"), compose([]))[0].split("), ")
    assert mean.endswith("win/red_0 >= 0.8 (now 0.850, mean 0.617 of up to 300 steps")
    assert every == "win/red_0 >= 0.8 (now 0.850, not yet for 300 steps"
    # Means are judged from the first report on, after a window: no streak is missing.
    assert live.plain_gates(keeper).split("; ") == [
        "win/red_0 >= 0.8 now 0.850 met",
        "win/red_0 >= 0.8 now 0.850 met (300 to hold)",
        "win/red_0 >= 0.8 now 0.850 met",
    ]
    live.live_console().print(live.gate_table(keeper))
    assert "steps still to hold" in capsys.readouterr().out


def gate(metric: str, *, met: bool = False):
    return {"metric": metric, "comparison": "<=", "bound": 1.0, "window": 9, "value": 0.5, "held": False, "met": met}


@pytest.mark.parametrize(
    ("gates", "steps", "changed", "said"),
    [
        ([gate("entropy/red_0", met=True)], 2e6, [], "every gate is met now, and not yet long enough"),
        ([gate("entropy/red_0")], 2e6, ["train.lr=1"], "held on 30 of 30 seeds, median 497,664 steps, with the recipe"),
        ([gate("entropy/red_0")], 2e6, [], "train.entropy_decay"),
        ([gate("return_mean/red_0")], 2e6, [], "it loses too often"),
        ([gate("return_mean/red_0"), gate("episode_len_mean")], 2e6, [], "report run` draws where"),
        ([gate("episode_len_mean")], 2e4, [], "497,664 steps; this run played less"),
        ([{**gate("episode_len_mean"), "value": None}], 2e6, [], "no report has judged the gates yet"),
    ],
)
def test_a_run_that_misses_its_gates_gets_one_hint(gates, steps, changed, said):
    verdict = {**VERDICT, "gates": gates, "env_steps": steps}
    assert said in advice.hint(verdict, Path("run"), compose(["scenario=1v1"]), changed)


def test_a_recipe_says_what_to_expect():
    known = advice.expectation(compose(["scenario=1v1"]))
    assert (known.held, known.seeds, known.steps) == (30, 30, 497_664)
    assert "expect:   held on 30 of 30 seeds, median 497,664 steps, with the recipe as it is" in preflight_of()
    for other in ("experiment=none", "experiment=1v1-selfplay", "scenario.gates=[]"):
        assert advice.expectation(compose([other])) is None, other
    assert str(advice.expectation(compose(["experiment=1v1-vs-adept"]))).startswith("held on 28 of 30 seeds")


def test_what_is_set_is_told():
    typed = ["scenario=1v1", "seed=3", "train.lr=3e-4", "model=gru", "scenario.seats.blue_0=random", "env_args={a: 1}"]
    assert advice.settings(typed) == [
        "train.lr=0.0003 instead of 0.001", "model=gru", "scenario.seats.blue_0=random instead of blue-rookie",
        "env_args={a: 1}",
    ]  # fmt: skip
    for needed in (
        ["train=dagger", "train.dagger.expert=random"],
        ["train=dagger", "expert=random"],
        ["train=bc", "data=x"],
    ):
        assert advice.settings([*needed, "train.lr=0.1"])[-1] == "train.lr=0.1 instead of 0.001"


@pytest.mark.parametrize(
    ("verb", "typed", "ran"),
    [
        ("train", "--scenario 1v1 --until 5 train.lr=1", "--until 5 train.lr=1 scenario=1v1"),
        ("evaluate", "--scenario=2v2 who --seed 4 --model gru", "who --seed 4 scenario=2v2 model=gru"),
        ("train", "+seeds=0..1 +seed=3", "seeds=0..1 seed=3"),
        ("evaluate", "who seed=4", "who --seed 4"),
        ("cup", "all scenario=2v2", "all --scenario 2v2"),
        ("players", "rate --scenario 1v1", "1v1"),
        ("players", "rate scenario=1v1", "1v1"),
        ("report", "run --scenario 1v1", "run --scenario 1v1"),
    ],
)  # fmt: skip
def test_a_scenario_may_be_written_either_way(verb, typed, ran):
    group = typer.main.get_command(app)
    assert group.resolve_command(typer.Context(group), [verb, *typed.split()])[2] == ran.split()


@pytest.mark.parametrize(("ended", "more"), [("until", " --until 8192"), ("interrupted", "")])
def test_closing_names_next_steps(ended, more):
    reported = {"episode_len_mean": 20.0, "report_episodes": 100.0}
    lines = live.closing_lines({**VERDICT, "ended": ended, "last_report": reported}, Path("runs/my run"), compose([]))
    run = "'runs/my run'"
    wanted = [f"report {run}", f"evaluate {run}", f"train --resume {run}{more}"]
    assert lines[-3:] == [f"next:     multigrid-rl {words}" for words in wanted]
    # A page needs a report, which the episodes at the end of a short clone are not.
    unmeasured = {"metric": "episode_len_mean", "comparison": "<=", "bound": 20.0, "value": None, "held": False}
    for early in ({"last_report": {}}, {"last_report": reported, "gates": [unmeasured]}):
        lines = live.closing_lines({**VERDICT, "ended": ended, **early}, Path("runs/my run"), compose([]))
        assert lines[-2:] == [f"next:     multigrid-rl {words}" for words in wanted[1:]]
        assert "next" not in lines[-3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --scenario 1v7", "scenario: expected "),
        ("train --lr 3e-4", "(did you mean train.lr=...?)"),
        ("train -m", "(did you mean seeds=...?)"),
        ("train 1v1", "1v1: expected key=value, did you mean scenario=1v1 or experiment=1v1?"),
        ("train gru", "gru: expected key=value, did you mean model=gru?"),
        ("train x.yaml", "did you mean scenario=x.yaml or experiment=x.yaml?"),
        ("train seed=0,1,2", "for several runs seeds=0,1,2 or seeds=0..9, got 0,1,2"),
        ("train scenario.max_steps=50", "got max_steps (did you mean scenario.game.max_steps?)"),
        ("train max_steps=50", "got max_steps (did you mean scenario.game.max_steps or train.until?)"),
        ("train until=abc", "--until: expected a number"),
        ("train resume=/nowhere", "/nowhere: expected a run folder, got none there"),
        ("evaluate hunter mode=greedy", "--mode: expected stochastic, argmax, both, got greedy"),
        ("train --total-timesteps 5", "expected no option but an override (did you mean train.until=...?)"),
        ("train --config x.yaml", "(did you mean experiment=...?)"),
        ("train algo=dqn", "got algo (did you mean train?)"),
        ("train device=cuda", "got device (did you mean cluster.gpus_per_learner?)"),
        ("train cluster.num_gpus=1", "got num_gpus (did you mean cluster.gpus_per_learner?)"),
        ("cup . --with hf:u/x", "expected a folder, as `hf download USER/NAME --local-dir FOLDER` makes, got hf:u/x"),
        ("enjoy", "No such command 'enjoy'. Did you mean play, watch or video?"),
        ("overlay runs/x", "Did you mean report, which draws a run over its recipe's curves?"),
        ("reference", "Did you mean report, which draws a run over its"),
        ("export x --push u/x", "--push: expected no option (did you mean hf upload USER/NAME FOLDER, of what is"),
        ("evaluate x --parquet", "--parquet: expected no option (did you mean pandas.read_csv('episodes.csv')"),
        ("resume", "Did you mean train --resume RUN?"),
        ("help", "Did you mean --help?"),
        ("grade x --rubric 1v2", "--rubric: expected a file in yaml, 1v1, "),
        ("train --untill 5", "got --untill (did you mean --until?)"),
        ("train --until soon", "--until: expected a number"),
        ("trian", "No such command 'trian'. Did you mean 'train'?"),
        ("evaluate", "who: expected a value, got none"),
        ("explain scenario=1v1 model.scale_values=true", "multigrid-rl: model.scale_values: expected false"),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(words, said):
    assert said in complaint(call(*words.split()))


def test_warns_of_step_size_that_cannot_learn():
    assert any("warning:  train.lr=100: " in line for line in preflight_of("train.lr=100"))
    assert not any("warning" in line for line in preflight_of())


def test_next_steps_can_be_pasted(tmp_path, monkeypatch):
    started = tmp_path / "a venv" / "bin" / "multigrid-rl"
    started.parent.mkdir(parents=True)
    started.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(started), "train"])
    monkeypatch.setenv("PATH", "/usr/bin")  # after `make train` nothing is activated
    assert program() == f"'{started}'"
    monkeypatch.setenv("PATH", str(started.parent))
    assert program() == "multigrid-rl"


def test_live_line_shows_returns_where_nothing_is_won():
    row = {f"timing/{name}_s": 1.0 for name in (*STAGES, "other")} | {"env_steps": 1000, "env_steps_per_s": 10.0}
    row |= {"return_mean/agent_0": -1234.5}
    line = live.headline(row, compose(["scenario=gymnasium"]))
    assert line.endswith("| agent_0 mean return -1,234.50")
    assert "wins" not in line
    for share, text in ((0.0, "0%"), (0.996, ">99%")):
        assert live.headline({**row, "win/a": share}, compose(["scenario=1v1"])).endswith(f"| a wins {text}")
    row |= {"learner/a/policy_loss": -0.5, "learner/b/policy_loss": 0.25, "learner/a/vf_loss": 12.3456, "x_loss": 1.0}
    assert live.headline(row, compose(["scenario=gymnasium"])).endswith("| loss: policy -0.125, values 12.3")


@pytest.mark.parametrize("name", ["lr=3e-4 [a]", "it's", "a[/b]"])
def test_preflight_shows_run_folder_as_typed(name, root, tmp_path):
    result = train(root, f"run_dir={tmp_path}/{name}")
    assert f"run:      {tmp_path}/{name} (seed 0" in result.stdout
    assert f"{tmp_path}/{name}" in complaint(result)


@pytest.mark.parametrize(("word", "now"), _FORMER_VERBS.items())
def test_verbs_of_earlier_versions_still_do(word, now):
    if has_verb(now):
        assert call(word, "--help").output == call(*now.split(), "--help").output
