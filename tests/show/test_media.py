"""Films and histograms of episodes in TensorBoard: what is drawn, and what a run goes on without."""

from io import BytesIO

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.show.media import Media
from multigrid_rl.show.run_data import GAMES_SEED
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")
CARTPOLE = (
    *("env_id=CartPole-v1", "experiment=none", "train.num_envs=4", "train.num_steps=256"),
    "scenario.report_episodes=4",
)


def shown_in(folder):
    events = EventAccumulator(str(folder / "tensorboard" / "media"), size_guidance={"images": 0, "histograms": 0})
    return events.Reload()


@pytest.mark.parametrize("overrides", [("scenario=1v1",), CARTPOLE], ids=["board", "env"])
def test_each_checkpoint_has_a_film_and_histograms(overrides, tmp_path):
    tiny_run(tmp_path / "run", *overrides, "tracking=tensorboard-media")
    shown = shown_in(tmp_path / "run")
    assert shown.Tags()["histograms"] == ["episodes/return", "episodes/length"]
    films = shown.Images("episodes/median")
    assert [film.step for film in films] == [2048, 4096]
    with Image.open(BytesIO(films[-1].encoded_image_string)) as film:
        assert (film.format, film.size) == ("GIF", (films[-1].width, films[-1].height))
        assert film.n_frames > 5
    lengths = shown.Histograms("episodes/length")[-1].histogram_value
    assert lengths.num == sum(lengths.bucket) == 9
    assert 5 <= lengths.min <= lengths.max <= 500


def test_returns_are_those_of_the_whole_team(tmp_path):
    tiny_run(tmp_path / "run", "scenario=2v2", "tracking=tensorboard-media")
    earned = shown_in(tmp_path / "run").Histograms("episodes/return")[-1].histogram_value
    played = evaluate(find_target(str(tmp_path / "run")), episodes=9, seed=GAMES_SEED, modes=("stochastic",)).parts[0]
    assert earned.sum == pytest.approx(played.returns.sum())


def test_a_run_has_the_numbers_that_it_has_without(tmp_path):
    _, plain = tiny_run(tmp_path / "plain", *CARTPOLE)
    _, watched = tiny_run(tmp_path / "watched", *CARTPOLE, "tracking=tensorboard-media")
    assert without_time(watched) == without_time(plain)


def test_what_cannot_be_drawn_costs_one_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise ConfigError("no picture")

    monkeypatch.setattr("multigrid_rl.show.media.film_bytes", refuse)
    verdict, _ = tiny_run(tmp_path / "run", *CARTPOLE, "tracking=tensorboard-media")
    assert verdict["ended"] == "until"
    warned = [line for line in caplog.messages if "tensorboard-media" in line]
    assert warned == ["tracking=tensorboard-media: no picture; the run goes on without"]
    assert shown_in(tmp_path / "run").Tags()["histograms"] == ["episodes/return", "episodes/length"]


def test_a_run_that_broke_off_or_wrote_no_checkpoint_shows_nothing(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    media = Media()
    media.begin(tmp_path, {})
    media.row({"env_steps": 4})
    media.end(None)
    assert shown_in(tmp_path).Tags()["images"] == []
