"""Films of episodes in Gymnasium and in TensorBoard: decoded again; what cannot be drawn is refused in one line."""

import base64
import re
from io import BytesIO

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands import call, complaint, works
from multigrid_rl.envs.base import AGENT
from multigrid_rl.evaluation.evaluation import evaluate
from multigrid_rl.evaluation.replays import EpisodeRecord
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.show import films, video
from multigrid_rl.show.films import GameDrawing
from multigrid_rl.show.media import Media
from multigrid_rl.show.report import write_run_report
from multigrid_rl.show.run_data import GAMES_SEED, play_fresh_games
from multigrid_rl.show.video import page_film, resized, write_video
from multigrid_rl.text import ConfigError
from tiny_runs import tiny_run, without_time

# ray and tensorboard warn about their own future; imageio's reader leaves its pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def pole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pole"
    tiny_run(path, "env_id=CartPole-v1", "seed=3")
    return path


def played(env_id: str, actions: list, total: float, **env_args) -> EpisodeRecord:
    about = {"label": "mine", "seed": 7, "game": 4, "players": {AGENT: "me"}, "returns": {AGENT: total}, "result": ""}
    return EpisodeRecord(env_id=env_id, env_args=env_args, actions={AGENT: actions}, **about)


def decoded(path) -> tuple[dict, int]:
    reader = imageio_ffmpeg.read_frames(str(path))
    return next(reader), sum(1 for _ in reader)


def page(run, **more) -> str:
    return write_run_report(run, **more).read_text(encoding="utf-8")


def test_page_has_curves_and_three_recordings(pole, tmp_path):
    text = page(pole)
    assert "<h1>Played 4,096 steps without gates</h1>" in text
    assert [name for name in ("Return", "Episode length") if f"<h3>{name}</h3>" not in text] == []
    assert "reward per episode" in text
    assert "Fresh episodes</h2>" in text
    assert 'id="behaviour"' not in text  # nobody wins, loses or picks up a key
    assert "<h3>Best</h3>" in text
    shown = re.findall(r'src="data:video/mp4;base64,([^"]+)"', text)
    assert len(shown) == 3
    assert "media-src data:" in text
    for data in shown:
        assert len(data) < 4 / 3 * 1_500_000
    (tmp_path / "film.mp4").write_bytes(base64.b64decode(shown[0]))
    about, count = decoded(tmp_path / "film.mp4")
    assert about["codec"] == "h264"
    assert about["size"][0] == video.PAGE_WIDTH
    assert count > 3
    lengths = [int(steps) for steps in re.findall(r"Return \d+ after (\d+) steps\.</p>", text)]
    assert lengths == sorted(lengths, reverse=True)


def test_recordings_match_named_episodes(pole):
    own = play_fresh_games(pole, 5, seed=9)
    again = play_fresh_games(pole, 5, seed=9)
    assert own == again
    assert [row["mode"] for row in own.rows] == ["stochastic", "argmax"]
    totals = [drawing.total for drawing in own.chosen.values()]
    assert totals[0] >= own.rows[0]["return_mean"] >= totals[-1]


def test_page_without_renderer_gives_reason_and_rest(pole, tmp_path, monkeypatch):
    class FatalError(Exception):
        """What MuJoCo raises: no RuntimeError."""

    def broken(self):
        raise FatalError("no OpenGL\nhere")

    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.render", broken)
    text = page(pole, output=tmp_path / "page.html")
    message = r"CartPole-v1: game \d of seed \d+: FatalError: no OpenGL here"
    assert re.search(f"There is no film of them: {message}", text)
    assert "Fresh episodes</h2>" in text
    assert "<video" not in text
    assert re.search(message, complaint(call("video", pole, "-o", tmp_path / "a.mp4")))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.slow
def test_report_names_each_film_while_it_draws_and_draws_none_if_asked(pole, tmp_path, monkeypatch):
    result = works("report", pole, "-o", tmp_path / "with.html")
    assert re.findall(r"drawing the (\w+) episode, \d+ pictures", result.stderr) == ["best", "median", "worst"]
    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.render", lambda _: pytest.fail("drawn"))
    result = call("report", pole, "--no-films", "-o", tmp_path / "without.html")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    text = (tmp_path / "without.html").read_text(encoding="utf-8")
    assert "There is no film of them: the report was written without films" in text
    assert "Fresh episodes</h2>" in text


@pytest.mark.parametrize(("name", "every"), [("a.mp4", 3), ("a.gif", 3)])
def test_file_has_every_third_step_of_fast_environment(pole, name, every, tmp_path):
    done = works("video", pole, "--seed", 5, "--game", 2, "-o", tmp_path / name)
    found = re.search(
        r"game 2 of seed 5: .*, return (\d+)\n.*: (\d+) steps, (\d+) frames of 600 x (\d+) pixels", done.output
    )
    assert found is not None
    total, steps, count, height = map(int, found.groups())
    assert total == steps
    if name.endswith(".gif"):
        with Image.open(tmp_path / name) as image:
            assert image.n_frames == count == 1 + -(-steps // every)
            assert (image.size, image.info["duration"]) == ((600, height), 60)
    else:
        assert decoded(tmp_path / name)[1] == count


def test_median_is_usual_choice(pole, tmp_path):
    shown = {}
    for which in (None, "best", "median", "worst"):
        options = [] if which is None else ["--game", which]
        done = call("video", pole, *options, "--episodes", 5, "-o", tmp_path / f"{which}.gif")
        shown[which] = float(done.output.splitlines()[0].rpartition(" ")[2])
    assert shown["best"] >= shown["median"] == shown[None] >= shown["worst"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--game", "finest"], "number of a game from 0, of at most 18 digits, got finest"),
        (["--game", str(10**18)], "digits, got 1000000000000000000"),
        (["--game", "3", "--episodes", "5"], "--episodes: expected nothing beside the number of one --game, got 5"),
        (["--side", "red"], "--side: expected nothing"),
        (["--tile", "48"], "--tile: expected nothing for an environment without cells, got 48"),
        (["--opponent", "random"], "--opponent: expected nothing"),
        (["--fps", "99"], "--fps: expected 0.5 to 50"),
        (["env_id=Pendulum-v1"], "does not fit this environment: env: expected Pendulum-v1, got CartPole-v1"),
    ],
)
def test_verb_rejects_options(pole, args, message, tmp_path):
    assert message in complaint(call("video", pole, *args, "-o", tmp_path / "a.gif"))
    assert list(tmp_path.iterdir()) == []


def test_rejects_environments_without_rendering(tmp_path):
    game = played("hostile_agents:Target-v0", [[0.0, 0.0]], -0.45)
    with pytest.raises(ConfigError, match=r"hostile_agents:Target-v0: expected one that draws itself \(rgb_array\)"):
        write_video(game, tmp_path / "a.gif", fps=9)


@pytest.mark.parametrize(
    "change", [{"returns": {AGENT: 9.0}}, {"actions": {AGENT: [5, 5]}}, {"actions": {AGENT: [5] * 4}}]
)
def test_rejects_episode_that_replays_differently(tmp_path, change):
    game = played("hostile_agents:Echo-v0", [5, 6, 7], 18.0, ends=3)
    assert write_video(game, tmp_path / "a.gif").frames == 3
    with pytest.raises(ConfigError, match="game 4 of seed 7: expected the same game, got another one"):
        write_video(game.model_copy(update=change), tmp_path / "b.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_long_episodes_play_faster_on_page(monkeypatch):
    monkeypatch.setattr(video, "_PAGE_PICTURES", 4)
    shown = page_film(GameDrawing(played("hostile_agents:Echo-v0", [5] * 30, 150.0, ends=30)), "best")
    assert (shown.speed, shown.steps) == (4, 30)  # 30 steps a second: every second one as it is


@pytest.mark.parametrize(("size", "widest", "wanted"), [
    ((4, 4), 400, (256, 256)), ((400, 600), 400, (266, 400)), ((401, 301), 640, (400, 300)),
    ((480, 480), 640, (480, 480)),
])  # fmt: skip
def test_pictures_have_even_sizes_within_bounds(size, widest, wanted):
    assert resized(np.zeros((*size, 3), np.uint8), widest).shape == (*wanted, 3)


def test_body_rendering_uses_available_backend(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(films, "find_library", lambda name: "lib" if name == "OSMesa" else None)
    monkeypatch.setenv("MUJOCO_GL", "unset")  # so that it is put back
    monkeypatch.delenv("MUJOCO_GL")
    films._choose_headless_driver()
    assert films.os.environ.pop("MUJOCO_GL") == "osmesa"


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
