"""What this program can do, a real command for each: a change of the house that loses one fails here."""

import json
import shlex
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("sqlalchemy", reason="the extra serve is not installed")

from commands import call
from demonstrated import pusher
from multigrid_rl.serve.supervisor import open_prepared, place_of
from multigrid_rl.tables import HEADS
from tiny_runs import TINY

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = "train.num_envs=4 train.num_steps=32 train.minibatch_size=64 train.threads=1 train.until=256"
PENDULUM = f"env_id=Pendulum-v1 'env_args={{max_episode_steps: 20}}' scenario.report_episodes=2 {SMALL}"
ASHA = "search=asha search.max_concurrent=1 search.trials=1 search.startup=1 search.until=1024 search.grace=512"
#: What trains: each is typed behind `train`, with a new run_dir.
TRAINS = {
    "fair-rules": f"scenario=1v1 {SMALL}",
    "classic-rules": f"scenario=1v1 scenario.game.rules=classic {SMALL}",
    "gymnasium": f"env_id=CartPole-v1 {SMALL}",
    "mixture": f"scenario=1v1 scenario.seats.blue_0=random:3,key-runner:1 {SMALL}",
    "self-play": f"scenario=1v1-selfplay {SMALL}",
    "league": f"scenario=1v1-league {SMALL}",
    "centralised-critic": f"scenario=coop scheme=ctde {SMALL}",
    "vpg": f"scenario=cartpole experiment=none train=vpg {SMALL}",
    "a2c": f"scenario=1v1 experiment=none train=a2c {SMALL}",
    "gru": f"scenario=1v1 model=gru {SMALL}",
    "env-runners": f"scenario=1v1 cluster.num_env_runners=1 {SMALL}",
    "sac": f"train=sac train.sac.learning_starts=64 {PENDULUM}",
    "dagger": f"train=dagger expert=key-runner scenario=1v1 {SMALL}",
    "gail": f"train=gail data=pusher {PENDULUM}",
    "airl": f"train=airl data=pusher {PENDULUM}",
    **{
        f"clone-{head}": f"train=bc data=pusher train.cloning.held_out=0 model.head={head} {PENDULUM}"
        for head in HEADS
        if not head.endswith("clamped")
    },
}  # fmt: skip
#: What is done with a run, an exported player and recorded play.
VERBS = {
    "resume": "train --resume mine --until 16384",
    "evaluate": "evaluate mine --episodes 20 -o judged",
    "compare": "compare mine other -o same.png",
    "report": "report mine --episodes 2",
    "watch": "watch mine",
    "video": "video mine -o film.gif --episodes 2",
    "explain": "explain scenario=1v1",
    "config": "config",
    "players": "players",
    "export": "export mine --seat red_0 -o entries/mine",
    "onnx": "export mine --seat red_0 --onnx -o mine.onnx",
    "inspect": "inspect entries/mine",
    "grade": "grade entries/mine --rubric quick.yaml -o grade.json",
    "cup": "cup entries --scenario 1v1 --games 4 --with random -o cup",
    "cup-verify": "cup verify cup",
    "cup-report": "report cup",
    "freeze": "players freeze mine --seat red_0 --name red-mine --episodes 100 --checkpoints frozen",
    "exploit": "exploit random scenario=1v1 --budget 131072 --seeds 1 --games 100 --folder exploited",
    "record": "data record key-runner scenario=1v1 --steps 1000 -o played",
    "data": "data show played",
    "data-pt": "data import pusher.pt env_id=Pendulum-v1 -o taken",
    "import-mlagents": "config import-mlagents walker.yaml -o recipe.yaml",
    "asha": f"search scenario=1v1 {ASHA} search.report_every=512 --folder asha",
    "serve": "serve links course.yaml",
}
#: The verbs whose results a verb reads: a worker may get any verb first.
AFTER = {
    "inspect": ["export"],
    "grade": ["export"],
    "cup": ["export"],
    "cup-verify": ["export", "cup"],
    "cup-report": ["export", "cup"],
    "data": ["record"],
}
RUBRIC = """
scenario: 1v1
team: red
pass_points: 1
exams:
  - {name: random, opponent: random, episodes: 200, checks: [{metric: win/*, at_least: 0.0, points: 1}]}
"""
COURSE = "title: A course\nscenario: 1v1\nanchors: [random]\n"
MLAGENTS = "behaviors: {Walker: {trainer_type: ppo}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run, recorded play and what else the commands read."""
    path = tmp_path_factory.mktemp("all")
    tiny = ["scenario=1v1", *TINY, "tracking=tensorboard-media", "train.until=8192"]  # enough for a report
    for seed, name in enumerate(("mine", "other")):
        done = call("train", *tiny, f"seed={seed}", f"run_dir={path / name}")
        assert done.exit_code == 0, done.output
    pusher(path, 20)
    torch.save({"observations": torch.zeros(40, 3), "actions": torch.zeros(40, 1)}, path / "pusher.pt")
    for name, text in (("quick.yaml", RUBRIC), ("course.yaml", COURSE), ("walker.yaml", MLAGENTS)):
        (path / name).write_text(text, encoding="utf-8")
    (path / "roster.csv").write_text("id,name\ns1,Ada\n", encoding="utf-8")
    open_prepared(place_of(path / "course.yaml")).engine.dispose()
    (path / "frozen").mkdir()
    (path / "entries").mkdir()
    return path


@pytest.fixture(scope="module")
def verbs_done():
    return set()


@pytest.mark.parametrize("name", TRAINS)
def test_it_still_trains(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = call("train", *shlex.split(TRAINS[name]), f"run_dir=runs/{name}")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(Path("runs", name, "verdict.json").read_text(encoding="utf-8"))["env_steps"] >= 256


@pytest.mark.parametrize("name", VERBS)
def test_verb_still_works(name, folder, verbs_done, monkeypatch):
    monkeypatch.chdir(folder)
    for verb in [*AFTER.get(name, []), name]:
        if verb not in verbs_done:
            done = call(*shlex.split(VERBS[verb]))
            assert done.exit_code == 0, (verb, done.output, done.exception)
            verbs_done.add(verb)
