"""Run folders as they were written, and those that were damaged or made up: one line from every verb."""

import json
import time
from pathlib import Path

import pytest

from commands import call, complaint, has_verb
from multigrid_rl.cli.output import write_file
from multigrid_rl.gates import Gate
from multigrid_rl.runs.provenance import circumstances
from multigrid_rl.runs.reader import read_run
from multigrid_rl.text import ConfigError
from run_folders import three_seeds, write_run

BOMB = "a: &a [1, 1]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]\n" for k in range(1, 30)).replace("*a0", "*a")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two runs that nobody has touched; reading them costs no game."""
    root = tmp_path_factory.mktemp("whole")
    return [write_run(root / name) for name in ("one", "two")]


def damaged(whole, tmp_path, file, change):
    """A copy of the first run with another content of ``file``."""
    run = tmp_path / "damaged"
    run.mkdir()
    for part in whole[0].iterdir():
        (run / part.name).write_bytes(part.read_bytes())
    content = (run / file).read_bytes()
    (run / file).write_bytes(change(content))
    return run


def rows(**changes):
    def change(content):
        lines = [json.loads(line) for line in content.splitlines()]
        lines[30] |= changes
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    return change


def keys(*place, to):
    """Another value at a place of a JSON file."""

    def change(content):
        whole = node = json.loads(content)
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = to
        return json.dumps(whole).encode()

    return change


def instead(text):
    return lambda content: text if isinstance(text, bytes) else text.encode()


def behind(text):
    return lambda content: content + text


DEEP = "[" * 100_000
CASES = [
    ("metrics.jsonl", behind(b'\xff\xfe{"env_steps": 1}\n'), "that the run wrote, got 'utf-8' codec"),
    ("metrics.jsonl", rows(episodes=10**400), "metrics.jsonl: line 31: episodes: expected a number below 1e+100"),
    ("metrics.jsonl", rows(env_steps=10**400), "line 31: env_steps: expected a number"),
    ("metrics.jsonl", rows(**{"timing/sample_s": "0.1"}), "line 31: timing/sample_s: expected a number"),
    ("metrics.jsonl", rows(**{"timing/sample_s": [1]}), "or null, got a list"),
    ("metrics.jsonl", behind(DEEP.encode() + b"\n{}\n"), "metrics.jsonl: line 61: "),
    ("metrics.jsonl", behind(b"9" * 5000 + b"\n"), "metrics.jsonl: line 61: "),
    ("config.yaml", instead(b"a: \xff\n"), "got not valid yaml: "),
    ("config.yaml", instead(BOMB), "got not valid yaml: anchors and aliases"),
    ("config.yaml", instead(DEEP), "got not valid yaml: maximum recursion"),
    ("config.yaml", instead("- 1\n"), "config.yaml: expected a mapping"),
    ("config.yaml", instead("scenario: {name: 1v1}\n"), "config.yaml: seed: "),
    ("config.yaml", instead("scenario: {name: [1v1]}\nseed: 1\n"), "config.yaml: scenario.name: "),
    ("config.yaml", instead("scenario: {name: 1v1}\nseed: 1\ntrain: 3\n"), "config.yaml: train: "),
    ("verdict.json", instead(b"\xff"), "verdict.json: expected the file that the run wrote, got 'utf-8'"),
    ("verdict.json", instead(DEEP), "while decoding"),
    ("verdict.json", instead("[]"), "verdict.json: expected a mapping"),
    ("verdict.json", keys("gates", to="all"), "verdict.json: gates: "),
    ("verdict.json", keys("gates", to={"a": 1}), "verdict.json: gates: "),
    ("verdict.json", keys("gates", 0, to=3), "verdict.json: gates.0: expected a mapping"),
    ("verdict.json", keys("gates", 0, "metric", to=[1]), "verdict.json: gates.0.metric: "),
    ("verdict.json", keys("gates", 0, "window", to="100000"), "verdict.json: gates.0.window: "),
    ("verdict.json", keys("gates", 0, "bound", to=10**400), "verdict.json: gates.0.bound: "),
    ("verdict.json", keys("gates", 0, "first_held", to=7), "verdict.json: gates.0.first_held: "),
    ("verdict.json", keys("gates", 0, "first_held", to={"env_steps": 3}), "gates.0.first_held.policy_updates: "),
    ("verdict.json", keys("env_steps", to=10**400), "verdict.json: env_steps: "),
    ("verdict.json", keys("env_steps_to_held", to="soon"), "verdict.json: env_steps_to_held: "),
    ("verdict.json", keys("ended", to=3), "verdict.json: ended: "),
    ("provenance.json", instead(b"\xff"), "got 'utf-8'"),
    ("provenance.json", instead(DEEP), "while decoding"),
    ("provenance.json", keys("versions", to=[1, 2]), "provenance.json: versions: "),
    ("provenance.json", keys("opponents", to=3), "provenance.json: opponents: "),
    ("provenance.json", keys("opponents", to=["adept"]), "provenance.json: opponents.0: "),
    ("provenance.json", keys("commit", to={}), "provenance.json: commit: "),
    ("provenance.json", keys("command", to=None), "provenance.json: command: "),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_every_verb_rejects_damaged_files(whole, tmp_path, number):
    file, change, message = CASES[number]
    run, out = damaged(whole, tmp_path, file, change), tmp_path / "out.png"
    verbs = [("report", run, "--episodes", 0, "-o", out), ("compare", run, whole[1], "-o", out)]
    verbs = [words for words in verbs if has_verb(words[0])]
    # One reader reads for all of them: one kind of damage for each, and the first of each file for all three.
    first = all(case[0] != file for case in CASES[:number])
    began = time.process_time()
    for words in verbs if first else [verbs[number % len(verbs)]]:
        assert message in complaint(call(*words)), words
    assert time.process_time() - began < 20
    assert not out.exists()


@pytest.mark.parametrize("file", ["config.yaml", "provenance.json"])
@pytest.mark.parametrize(
    "content", [b"\xff", DEEP.encode(), BOMB.encode(), b"- 3\n"], ids=["bytes", "deep", "bomb", "list"]
)
def test_evaluate_rejects_damaged_files(whole, tmp_path, file, content):
    run = damaged(whole, tmp_path, file, instead(content))
    players = run / "checkpoints" / "step_000000001" / "players" / "red_0"
    players.mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("step_000000001\n")
    message = complaint(call("evaluate", run, "--episodes", 2, "-o", tmp_path / "out"))
    assert file in message or "red_0" in message


@pytest.mark.parametrize("name", [b"\xff\xfe", b"step\x1b[2J\nmore", b"", b"a" * 5000])
def test_rejects_damaged_names_of_latest_checkpoint(whole, tmp_path, name):
    run = damaged(whole, tmp_path, "config.yaml", lambda content: content)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest").write_bytes(name)
    message = complaint(call("evaluate", run, "--episodes", 2, "-o", tmp_path / "out"))
    assert "\x1b" not in message
    assert len(message) < 700
    # The page of such a run tells why there are no games, and the rest.
    assert not has_verb("report") or call("report", run, "-o", tmp_path / "page.html").exit_code == 0


def test_recorded_command_can_be_typed_again(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/home/ada/multigrid_rl/__main__.py", "train", "scenario=1v1"])
    assert circumstances()["command"] == "multigrid-rl train scenario=1v1"


# --- a whole folder is read as it was written


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    return three_seeds(tmp_path)


def test_series_holds_reports_and_skips_missing_values(runs):
    series = read_run(runs[0]).series
    assert series["episode_len_mean"].env_steps.tolist() == [100, 200, 300, 400]
    assert series["episode_len_mean"].values.tolist() == [40, 30, 20, 10]
    assert "entropy/red_0" not in series  # null at every report, 9 only between them


def test_skips_torn_last_line_and_rejects_damaged_lines(runs):
    file = runs[0] / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"env_steps": 500, "epis')
    assert read_run(runs[0]).env_steps == 400
    file.write_text("nonsense\n" + whole)
    with pytest.raises(ConfigError, match=r"metrics.jsonl: line 1: expected a JSON object, got"):
        read_run(runs[0])


def test_run_gates_come_from_its_verdict(runs):
    verdict = json.loads((runs[0] / "verdict.json").read_text())
    verdict["gates"][1] |= {"hold": "share", "share": 0.8}
    (runs[0] / "verdict.json").write_text(json.dumps(verdict))
    first, second = read_run(runs[0]).gates
    assert first == Gate("episode_len_mean", "<=", 20.0, hold="every", window=50)
    assert second == Gate("return_mean/red_0", ">=", 1.3, hold="share", share=0.8, window=50)


def test_failed_write_keeps_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "made" / "page.html"
    write_file(path, b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="expected a file that can be written, got No space left on device"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_folder_that_is_not_there_is_not_called_one_without_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: expected a run folder, got none there$"):
        read_run(tmp_path / "nowhere")
