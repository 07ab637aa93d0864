"""Videos: what was written is decoded again; whatever cannot be shown is refused in one line and leaves no file."""

import json
from itertools import pairwise
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from commands import call, complaint, works
from composing import refusal
from multigrid_rl.config.compose import load_scenario
from multigrid_rl.evaluation.replays import GameRecord, choose, read_games, record
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import IdlePlayer, KeyRunner
from multigrid_rl.show.captions import fit_text, font
from multigrid_rl.show.video import find_games, pictures, write_video
from multigrid_rl.show.words import shortened
from multigrid_rl.text import ConfigError

SPEC = load_scenario("1v1").spec
BOARD = 8 * 32  # rows of pixels above the captions


@pytest.fixture(scope="module")
def games() -> list[GameRecord]:
    """Three games that red wins through its door."""
    played = play_games(SPEC, {"blue_0": IdlePlayer(), "red_0": KeyRunner(SPEC)}, 3, seed=5)
    names = {"blue_0": "idle", "red_0": "key-runner"}
    labels = ("best (argmax, red)", "median (argmax, red)", "worst (argmax, red)")
    return [record(SPEC, played, k, seed=5, players=names, label=label) for k, label in enumerate(labels)]


@pytest.fixture
def file(games, tmp_path) -> Path:
    path = tmp_path / "games.json"
    path.write_text(json.dumps([game.model_dump() for game in games]))
    return path


def gif_frames(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """Pictures and how long each is shown, in milliseconds."""
    with Image.open(path) as image:
        shots, durations = [], []
        for k in range(image.n_frames):
            image.seek(k)
            shots.append(np.asarray(image.convert("RGB")).astype(int))
            durations.append(image.info["duration"])
    return shots, durations


def test_gif_has_every_step(games, tmp_path):
    game = games[0]
    written = write_video(game, tmp_path / "game.gif", fps=5)
    shots, durations = gif_frames(tmp_path / "game.gif")
    assert len(shots) == game.steps + 1 == written.frames
    assert {shot.shape for shot in shots} == {(written.height, written.width, 3)}
    assert written.width == 512
    assert durations == [200] * game.steps + [2000]
    assert (shots[0][:BOARD] != shots[-1][:BOARD]).any()
    for before, after in pairwise(shots):
        assert (before[BOARD:] != after[BOARD:]).any()


def test_gif_keeps_colours(games, tmp_path):
    write_video(games[0], tmp_path / "game.gif")
    shots, _ = gif_frames(tmp_path / "game.gif")
    for shot, picture in zip(shots, pictures(games[0], 32), strict=True):
        differ = np.abs(shot - picture.astype(int)).max(axis=2)
        assert (differ[:BOARD] == 0).mean() > 0.98  # nearly all of the board to the last bit
        assert differ.max() < 32  # edges of letters may be off


# The library's reader leaves its pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mp4_format_and_last_frame(games, tmp_path):
    game, path = games[0], tmp_path / "game.mp4"
    written = write_video(game, path, fps=4)
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    assert (meta["codec"], meta["pix_fmt"].split("(")[0]) == ("h264", "yuv420p")
    assert meta["size"] == (written.width, written.height)
    assert written.width % 2 == written.height % 2 == 0
    shots = [np.frombuffer(data, np.uint8).reshape(written.height, written.width, 3).astype(int) for data in reader]
    assert len(shots) == game.steps + 1 + 7 == written.frames  # the last one for two seconds
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (written.frames, pytest.approx(written.seconds, abs=0.3))
    expected = list(pictures(game))
    for shot, picture in zip(shots, expected, strict=False):
        assert np.abs(shot - picture.astype(int)).mean() < 4
    assert np.abs(shots[-1] - expected[-1].astype(int)).mean() < 4
    assert (np.abs(shots[0] - shots[-1]) > 60).any()


def test_long_text_is_cut_off():
    face = font(14)
    assert fit_text("short", face, 200) == "short"
    cut = fit_text("a text far too long for so little room", face, 80)
    assert cut.endswith("…")
    assert face.getlength(cut) <= 80
    assert fit_text("x", face, 1) == ""
    assert shortened("a-name-of-more-than-twenty-letters") == "a-name-of-more-than…"
    assert shortened("runs/mine/checkpoints/step_000471040/players/red_0/") == "mine"
    assert shortened("some/where/red-mine") == "red-mine"


def test_finds_games_in_files_and_folders(file, games, tmp_path):
    assert find_games(file) == find_games(tmp_path) == file
    assert find_games(tmp_path / "nothing") is None
    assert [game.model_dump_json() for game in read_games(file)] == [game.model_dump_json() for game in games]
    cup = tmp_path / "cup"
    cup.mkdir()
    (cup / "results.json").write_text(json.dumps({"format": 1, "games": [games[2].model_dump()]}))
    assert [game.label for game in read_games(find_games(cup))] == ["worst (argmax, red)"]


@pytest.mark.parametrize(
    ("which", "place"), [(None, 0), ("best", 0), ("median (argmax, red)", 1), ("Worst", 2), ("1", 1)]
)
def test_chooses_game(which, place, games):
    assert choose(games, which, "here") is games[place]
    assert choose(games[1:], None, "here") is games[1]


@pytest.mark.parametrize("which", ["3", "-1", "longest"])
def test_rejects_unknown_game(which, games):
    with pytest.raises(ConfigError, match=rf"--game: expected 0 \(best \(argmax, red\)\), 1 .* of here, got {which}"):
        choose(games, which, "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[]", "no games in it"),
        ('{"games": []}', "no games in it"),
        ("7", "no games in it"),
        ('["x"]', "game 0"),
        ({"actions": {"blue_0": "1", "red_0": "19"}}, r"game 1\.actions"),
        ({"actions": {"red_0": "1"}}, r"game 1\.actions: expected blue_0, red_0.*got red_0"),
        ({"seed": "x"}, r"game 1\.seed"),
        ({"extra": 1}, r"game 1\.extra"),
    ],
)
def test_rejects_damaged_files(content, message, games, tmp_path):
    path = tmp_path / "games.json"
    if isinstance(content, dict):  # a change of the second record
        content = json.dumps([games[0].model_dump(), {**games[1].model_dump(), **content}])
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"{path}: .*{message}"):
        read_games(path)


@pytest.mark.parametrize("name", ["game.gif", "game.mp4"])
@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text + "6"], ids=["too short", "too long"])
def test_record_of_part_of_game_leaves_no_file(name, change, games, tmp_path):
    actions = {seat: change(text) for seat, text in games[0].actions.items()}
    broken = games[0].model_copy(update={"actions": actions})
    # Without its last step the game would go on; with one more it is over before.
    assert "game 0 of seed 5" in refusal(write_video, broken, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_overwrites_only_with_force(games, tmp_path):
    path = tmp_path / "game.gif"
    path.write_text("mine")
    assert "--output: expected a new file" in refusal(write_video, games[0], path)
    assert path.read_text() == "mine"
    write_video(games[0], path, force=True)
    assert path.read_bytes().startswith(b"GIF89a")
    (tmp_path / "folder.gif").mkdir()
    assert "--output: expected a new file" in refusal(write_video, games[0], tmp_path / "folder.gif", force=True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "game.avi"], "--output: expected a file that ends with .gif or .mp4, got game.avi"),
        (["-o", "game"], "--output"),
        (["--fps", "0"], "--fps: expected 0.5 to 50 steps a second, got 0"),
        (["--fps", "nan"], "got nan"),
        (["--game", "9"], "got 9"),
        (["--opponent", "idle"], "games.json: expected --game alone"),
        (["--seed", "3"], "games.json: expected --game alone"),
        (["--mode", "argmax"], "games.json: expected --game alone"),
        (["--episodes", "5"], "games.json: expected --game alone"),
    ],
)
def test_verb_rejects_options(args, message, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in complaint(call("video", file, *args))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nobody", "player: expected random"),
        ("no/such/file.json", "no such file or folder"),
        (".", ".: expected a folder with games.json, results.json, a run or a player"),
    ],
)
def test_verb_rejects_unknown_sources(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in complaint(call("video", source))
    assert list(tmp_path.iterdir()) == []


def test_choice_is_judged_before_anything_is_played(tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.evaluation.targets.find_target", lambda *_, **__: pytest.fail("it played"))
    said = complaint(call("video", "blue-rookie", "--game", "bestest", "-o", tmp_path / "a.txt"))
    wanted = "best, median or worst, or the number of a game from 0, of at most 18 digits"
    assert said == f"multigrid-rl: --game: expected {wanted}, got bestest"


def test_rejects_gif_too_large_for_memory(games, tmp_path, monkeypatch):
    monkeypatch.setattr("multigrid_rl.show.video._MOST_GIF_PIXELS", 10_000)
    assert "--output: expected an .mp4" in refusal(write_video, games[0], tmp_path / "game.gif")
    assert list(tmp_path.iterdir()) == []


def test_rejects_unwritable_output(games, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output: expected a file that can be written"):
        write_video(games[0], tmp_path / "file" / "game.gif")


def test_verb_shows_game_of_file(file, games, tmp_path):
    done = works("video", tmp_path, "--game", "worst", "-o", tmp_path / "worst.gif")
    assert "worst (argmax, red), game 2 of seed 5: blue_0 idle, red_0 key-runner" in done.output
    assert f"{games[2].steps} steps, {games[2].steps + 1} frames of 512 x 350 pixels" in done.output
    assert len(gif_frames(tmp_path / "worst.gif")[0]) == games[2].steps + 1


def test_verb_plays_games_of_players(tmp_path):
    args = ("video", "key-runner", "scenario=1v1", "--opponent", "idle", "--seed", "5")
    one = works(*args, "--game", "2", "-o", tmp_path / "one.gif")
    assert "game 2 of seed 5: blue_0 idle, red_0 key-runner" in one.output
    best = call(*args, "--episodes", "4", "-o", tmp_path / "best.gif")
    assert "best (stochastic, red)" in best.output
    other = call(*args, "--game", "2", "--side", "blue", "-o", tmp_path / "other.gif")
    assert "blue_0 key-runner, red_0 idle" in other.output
