"""The command line: what it prints, how it leaves, and that a mistake costs one line and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from commands import call, complaint
from multigrid_rl.cli import live
from multigrid_rl.config import available_cpus, compose, load_scenario
from multigrid_rl.metrics import STAGES
from multigrid_rl.models.registry import build
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, token_categories, write_player
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.world.constants import ACTIONS

TRACES = Path(__file__).parent.parent / "golden" / "traces"
TRACE, OTHER_TRACE = TRACES / "v3-CTCE-1v1.npz", TRACES / "v3-DTDE-Red-Single.npz"
TOO_MANY = available_cpus() + 1
MLP = {"name": "mlp", "hidden": [8], "activation": "tanh"}


def make_player(root: Path, name: str, seat: str = "blue_0", scenario: str = "1v1", wins: float = 0.75) -> Path:
    """A sound, untrained player in the catalogue of ``root``."""
    spec = load_scenario(scenario).spec
    strength = {"scenario": scenario, "opponent": "random", "episodes": 1000, "win": wins, "draw": 0.0}
    card = {
        "name": name,
        "architecture": MLP,
        "observation": {"view_size": spec.view_size, "categories": token_categories(spec)},
        "actions": len(ACTIONS),
        "scenario": scenario,
        "seats": [seat],
        "provenance": {"env_steps": 123_456},
        "strength": [{**strength, "loss": 1 - wins, "length_mean": 20.0, "seed": 1}],
    }
    written = write_player(root / name, build(MLP, token_categories(spec), len(ACTIONS)).state_dict(), card)
    Catalogue(root).add(name, {"scenario": scenario, "seats": [seat], "sha256": written.sha256})
    return root / name


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A folder of players with one of them; runs would land below the working directory ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    make_player(tmp_path / "players", "rookie")
    return tmp_path / "players"


@pytest.fixture(autouse=True)
def _halted(monkeypatch):
    """Training ends where the first game would be played, and its folder is none: no test here trains or writes."""

    class NoFolder:
        begun = False

        def __init__(self, path, config, seated):
            self.path = path

        def close(self):
            pass

        def discard(self):
            pass

    def halt(config, folder, *_):
        raise PlayerError(f"halted before {folder.path}")

    monkeypatch.setattr("multigrid_rl.rllib.session.ray_session", nullcontext)
    monkeypatch.setattr("multigrid_rl.runs.folder.RunFolder", NoFolder)
    monkeypatch.setattr("multigrid_rl.rllib.train.train", halt)


def train(root: Path, *args: object):
    """Train against the player ``rookie`` of ``root``, unless told otherwise."""
    return call("train", f"checkpoints={root}", "scenario.seats.blue_0=rookie", *args)


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


# --- train: refused before anything starts

MISTAKES = [
    (["scenario=nowhere"], ["scenario=nowhere", "unknown", "1v1"]),
    (["train.lrr=3"], ["train.lrr=3", "unknown key", "did you mean lr?"]),
    (["train.lr=-1"], ["train.lr=-1", "greater than 0"]),
    ([f"cluster.num_env_runners={TOO_MANY}"], [f"num_env_runners={TOO_MANY}", f"0 to {TOO_MANY - 1}"]),
    (["--until", "1.5"], ["--until 1.5", "whole number"]),
    (["--until", "nan"], ["--until nan", "whole number"]),
    (["--until", "inf"], ["--until inf", "whole number"]),
    (["--until", "0"], ["train.until=0", "greater than or equal to 1"]),
    (["seed"], ["seed", "key=value"]),
    (["scenario.seats.red_0=random"], ["at least one seat: learn"]),
    (["run_dir=/dev/null/runs/mine"], ["run_dir=/dev/null/runs/mine", "nothing can be made in /dev/null"]),
]


@pytest.mark.parametrize(("args", "said"), MISTAKES, ids=[" ".join(args) for args, _ in MISTAKES])
def test_train_refuses_a_mistake_in_one_line_and_writes_nothing(args, said, root, tmp_path):
    before = everything(tmp_path)
    text = complaint(train(root, *args))
    assert [part for part in said if part not in text] == []
    assert everything(tmp_path) == before


def test_train_refuses_mistakes_without_even_importing_ray(tmp_path):
    program = (
        "import json, sys\n"
        "from multigrid_rl.cli.main import app\n"
        "codes = []\n"
        "for args in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        app(['train', *args])\n"
        "    except SystemExit as left:\n"
        "        codes.append(left.code)\n"
        "print(json.dumps({'codes': codes, 'ray': 'ray' in sys.modules}))\n"
    )
    asked = json.dumps([args for args, _ in MISTAKES])
    done = subprocess.run(
        [sys.executable, "-c", program, asked], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"codes": [2] * len(MISTAKES), "ray": False}
    assert len(done.stderr.splitlines()) == len(MISTAKES)
    assert list(tmp_path.iterdir()) == []


def change_a_byte(folder: Path) -> None:
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / MODEL_FILE).write_bytes(data)


def truncate(folder: Path) -> None:
    (folder / MODEL_FILE).write_bytes((folder / MODEL_FILE).read_bytes()[:-10])


def edit_card(folder: Path, **changes) -> None:
    path = folder / CARD_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "file", "said"),
    [
        (change_a_byte, MODEL_FILE, "sha256"),
        (truncate, MODEL_FILE, "truncated"),
        (lambda folder: (folder / MODEL_FILE).unlink(), MODEL_FILE, "cannot be read"),
        (lambda folder: edit_card(folder, architecture={"name": "tree"}), CARD_FILE, "architecture.name=tree"),
        (lambda folder: edit_card(folder, colour="red"), CARD_FILE, "colour"),
    ],
    ids=["changed byte", "truncated", "missing", "unknown architecture", "unknown key"],
)
def test_train_refuses_a_damaged_player_and_writes_nothing(damage, file, said, root, tmp_path):
    damage(root / "rookie")
    before = everything(tmp_path)
    text = complaint(train(root))
    assert "scenario.seats.blue_0=rookie" in text
    assert str(root / "rookie" / file) in text
    assert said in text
    assert everything(tmp_path) == before


def test_train_refuses_a_player_of_another_seat_or_game(root, tmp_path):
    make_player(root, "red-player", seat="red_0")
    make_player(root, "soloist", seat="red_0", scenario="single")
    before = everything(tmp_path)
    assert "opponent: red-player on blue_0" in train(root, "scenario.seats.blue_0=red-player").stdout  # mirrored
    text = complaint(train(root, "scenario=2v2", "experiment=none", "scenario.seats.blue_1=red-player"))
    assert "scenario.seats.blue_1=red-player: player red-player does not fit seat blue_1: seats: expected" in text
    text = complaint(train(root, "scenario.seats.blue_0=learn", "scenario.seats.red_0=soloist"))
    assert "scenario.seats.red_0=soloist" in text
    assert "expected views of 5x5 cells" in text
    assert everything(tmp_path) == before


def test_train_refuses_an_unknown_player_with_the_known_ones(root, tmp_path):
    before = everything(tmp_path)
    text = complaint(train(root, "scenario.seats.blue_0=nobody"))
    assert "scenario.seats.blue_0=nobody" in text
    assert "random, idle, key-runner, hunter, rookie" in text
    assert everything(tmp_path) == before


@pytest.mark.parametrize("shaping", ["nowhere:f", "math", "math:nothing", "math:pi", ":"])
def test_train_refuses_a_shaping_that_is_no_function(shaping, root, tmp_path):
    before = everything(tmp_path)
    text = complaint(train(root, f"train.shaping={shaping}"))
    assert f"train.shaping={shaping}" in text
    assert "module:function" in text
    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file"])
def test_train_refuses_an_existing_run_folder_and_leaves_it_alone(kind, root, tmp_path):
    path = tmp_path / "mine"
    if kind == "file":
        path.write_text("notes")
    else:
        path.mkdir()
        if kind == "folder":
            (path / "metrics.jsonl").write_text("{}\n")
    before = everything(tmp_path)
    assert f"run_dir={path}: exists already" in complaint(train(root, f"run_dir={path}"))
    assert everything(tmp_path) == before


def test_preflight_tells_who_learns_who_plays_who_samples_and_where_it_lands(root, tmp_path):
    batch = ("train.num_envs=256", "train.num_steps=32", "train.minibatch_size=2048")
    result = train(root, f"run_dir={tmp_path / 'new'}", "seed=7", *batch, "--until", "3e5")
    assert f"halted before {tmp_path / 'new'}" in complaint(result)
    sha = read_card(root / "rookie").sha256[:16]
    for line in (
        "learns:   red_0",
        f"opponent: rookie on blue_0 (sha256 {sha}; wins 75.0% of 1000 games against random)",
        "sampling: the driver process, 0 env runners; 256 games x 32 steps = 8192 steps a batch",
        f"run:      {tmp_path / 'new'} (seed 7, at most 300,000 environment steps)",
    ):
        assert line in result.stdout


def preflight_of(*overrides: str) -> list[str]:
    """What ``train`` says of a run before it begins, without its opponents."""
    return live.preflight(compose(list(overrides)), {}, 1, Path("runs/x"))


ONLY = "(training reward only; gates score the game's own)"


def test_preflight_and_explain_tell_what_is_added_to_the_reward(root):
    said = f"key_pickup +1 for all {ONLY}"
    assert f"bonus:    {said}" in train(root, "scenario=1v1").stdout
    told = call("explain", "scenario=1v1").stdout
    assert said in told
    (row,) = [row for row in told.splitlines() if row.startswith("training reward")]
    assert row.split("  ", 1)[1].split()[:2] == ["with", "bonus"]  # nothing claims that nothing is added
    assert f"bonus:    key_pickup -0.5, success +2 for red_0 {ONLY}" in preflight_of(
        "train.bonus={red_0: {key_pickup: -0.5, success: 2}}"
    )
    assert f"shaping:  my.rewards:f {ONLY}" in preflight_of("train.shaping=my.rewards:f")
    plain = "\n".join(preflight_of("experiment=none"))
    assert "bonus: " not in plain
    assert "shaping: " not in plain
    assert "the game's own" in call("explain", "experiment=none").stdout


def test_preflight_and_explain_tell_which_schedules_act():
    line = "a straight line over the first {} steps, then constant"
    overrides = ["experiment=none", "train.lr=3e-4", "train.lr_final=1e-4", "train.until=300_000"]
    rate, entropy = ("learning rate", "0.0003 to 0.0001"), ("entropy bonus", "0.02 to 0")
    lines = preflight_of(*overrides)
    told = call("explain", *overrides).stdout
    for (name, values), steps in ((rate, "300,000"), (entropy, "400,000")):
        assert f"schedule: {name} {values}, {line.format(steps)}" in lines
        (row,) = [row for row in told.splitlines() if row.startswith(name)]
        assert values in row
        assert line.format(steps) in row
    constant = preflight_of("experiment=none", "train.entropy_final=null")
    assert "schedule: entropy bonus 0.02, the same all the time" in constant
    assert not any("learning rate" in line for line in constant)
    assert not any("schedule" in line for line in preflight_of("train.entropy_coef=0", "train.entropy_final=0"))


def test_preflight_names_an_environment_of_gymnasium():
    lines = preflight_of("env_id=Pendulum-v1", "env_args={g: 9.5}", "train.num_envs=8", "train.num_steps=64")
    assert "env_id:   Pendulum-v1 g=9.5" in lines
    (sampling,) = [line for line in lines if line.startswith("sampling:")]
    assert "8 environments x 64 steps" in sampling
    assert not any("games" in line for line in lines)


def test_the_live_line_tells_returns_where_there_is_nothing_to_win():
    row = {f"timing/{name}_s": 1.0 for name in (*STAGES, "other")} | {"env_steps": 1000, "env_steps_per_s": 10.0}
    row |= {"win/agent_0": 0.0, "return_mean/agent_0": -1234.5}
    line = live.headline(row, compose(["scenario=gymnasium"]))
    assert line.endswith("| agent_0 mean return -1,234.50")
    assert "wins" not in line
    assert live.headline(row, compose(["scenario=1v1"])).endswith("| agent_0 wins 0%")


@pytest.mark.parametrize("name", ["lr=3e-4 [a]", "x[red]y", "it's", "a[/b]"])
def test_preflight_shows_a_run_folder_as_it_was_typed(name, root, tmp_path):
    result = train(root, f"run_dir={tmp_path}/{name}")
    assert f"run:      {tmp_path}/{name} (seed 0" in result.stdout
    assert f"{tmp_path}/{name}" in complaint(result)


# --- players


def test_players_lists_everybody_with_seats_strength_and_hash(root):
    result = call("players", "--checkpoints", root)
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert list(rows) == ["player", "random", "idle", "key-runner", "hunter", "rookie"]
    sha = read_card(root / "rookie").sha256[:16]
    for part in ("blue_0", "frozen mlp of 1v1, 123,456 steps", "75.0% / 0.0% / 25.0% (1v1, 1000 games)", sha):
        assert part in rows["rookie"]
    assert "any" in rows["hunter"]


def test_players_can_be_measured_now(root):
    result = call("players", "--checkpoints", root, "--measure", 50, "--scenario", "1v1")
    assert result.exit_code == 0
    assert "(1v1, 50 games)" in result.stdout
    assert "1000 games" not in result.stdout
    assert "not measured" not in result.stdout


@pytest.mark.parametrize(
    ("args", "said"), [(["--measure", "5", "--scenario", "nowhere"], "scenario=nowhere"), (["--measure", "-1"], "-1")]
)
def test_players_refuses_what_it_cannot_play(args, said, root):
    result = call("players", "--checkpoints", root, *args)
    assert result.exit_code == 2
    assert said in result.stderr


# --- rate


def test_rate_plays_everybody_from_both_sides_and_writes_the_cards(root):
    make_player(root, "second")
    weights = read_card(root / "rookie").sha256
    result = call("rate", "1v1", "--episodes", 100, "--checkpoints", root)
    assert result.exit_code == 0
    for name, other in (("rookie", "second"), ("second", "rookie")):
        card = read_card(root / name)
        assert [row.opponent for row in card.strength] == ["random", "idle", "key-runner", "hunter", other]
        assert {row.episodes for row in card.strength} == {100}
    assert read_card(root / "rookie").sha256 == weights


@pytest.mark.parametrize("scenario", ["coop", "multigrid", "nowhere"])
def test_rate_refuses_a_scenario_without_frozen_players_in_one_line(scenario, root):
    text = complaint(call("rate", scenario, "--checkpoints", root))
    assert f"scenario={scenario}" in text


def test_players_cannot_be_measured_in_environments_of_another_package(root):
    text = complaint(call("players", "--checkpoints", root, "--measure", 5, "--scenario", "multigrid"))
    assert "scenario=multigrid: allowed is a scenario of the red/blue-door game" in text


@pytest.mark.parametrize("changes", [{"architecture": {}}, {"provenance": {"env_steps": "many"}}, {"colour": "red"}])
def test_players_names_a_damaged_card_in_one_line(changes, root):
    edit_card(root / "rookie", **changes)
    assert str(root / "rookie" / CARD_FILE) in complaint(call("players", "--checkpoints", root))


# --- freeze


@pytest.fixture
def run(tmp_path, root) -> Path:
    """A run folder with one checkpoint of one seat."""
    players = tmp_path / "run" / "checkpoints" / "step_000000001" / "players"
    players.mkdir(parents=True)
    make_player(tmp_path / "elsewhere", "blue_0").rename(players / "blue_0")
    (tmp_path / "run" / "checkpoints" / "latest").write_text("step_000000001\n")
    return tmp_path / "run"


def test_freeze_makes_a_player_that_train_accepts(run, root):
    result = call("freeze", run, "--seat", "blue_0", "--name", "fresh", "--episodes", 100, "--checkpoints", root)
    assert result.exit_code == 0, result.output
    assert read_card(root / "fresh").sha256 in result.stdout
    assert "100 games against random" in result.stdout
    assert "opponent: fresh on blue_0" in train(root, "scenario.seats.blue_0=fresh").stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--seat": "red_0"}, "seat=red_0"),
        ({"--name": "rookie"}, "got rookie"),
        ({"--name": "Bad Name"}, "got Bad Name"),
        ({"--checkpoint": "step_9"}, "checkpoint=step_9"),
    ],
)
def test_freeze_refuses_in_one_line_and_writes_nothing(changes, said, run, root, tmp_path):
    options = {"--seat": "blue_0", "--name": "fresh", "--checkpoints": str(root), **changes}
    before = everything(tmp_path)
    assert said in complaint(call("freeze", run, *(word for option in options.items() for word in option)))
    assert everything(tmp_path) == before


# --- verify-trace


@pytest.fixture
def changed(tmp_path) -> Path:
    """A recording whose step 7 of episode 3 has another reward."""
    with np.load(TRACE, allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    data["agent_reward"] = data["agent_reward"].copy()
    data["agent_reward"][data["ep_step_start"][3] + 6, 1] += 0.25
    np.savez(tmp_path / "changed.npz", **data)
    return tmp_path / "changed.npz"


def test_verify_trace_prints_one_line_for_each_good_file_and_leaves_with_0():
    result = call("verify-trace", TRACE, OTHER_TRACE)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(TRACE), str(OTHER_TRACE)]
    assert all(": identical (" in line and " episodes, " in line for line in lines)


def test_verify_trace_names_the_first_difference_and_leaves_with_1(changed):
    result = call("verify-trace", changed)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"{changed}: episode 3 step 7 array agent_reward[1] expected ")
    expected, got = (float(text) for text in line.split(" expected ")[1].split(" got "))
    assert expected - got == pytest.approx(0.25)


def test_verify_trace_names_a_missing_file_and_leaves_with_1(tmp_path):
    result = call("verify-trace", tmp_path / "nowhere.npz")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"{tmp_path / 'nowhere.npz'}: ")


def test_verify_trace_goes_on_after_a_bad_file_and_a_real_process_leaves_with_1(changed):
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "verify-trace", changed, OTHER_TRACE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [str(changed), str(OTHER_TRACE)]
    assert done.stderr == ""


def test_help_names_every_verb():
    result = call("--help")
    assert result.exit_code == 0
    assert [verb for verb in ("train", "players", "freeze", "verify-trace") if verb not in result.stdout] == []
