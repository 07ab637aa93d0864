"""docs/courses.md and the sheets: every command is one that would start, every cited line says what is cited."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from commands import has_verb
from doc_blocks import check_starts, loaded
from multigrid_rl import tables
from multigrid_rl.competition.rubric import Rubric
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.learn.advantages import Estimator, weigh
from tiny_runs import tiny_run

ROOT = Path(__file__).parents[2]
DOCS, WORKED = ROOT / "docs", ROOT / "tests" / "assignments" / "worked"
ASSIGNMENTS = DOCS / "assignments"
SHEETS = sorted(ASSIGNMENTS.glob("[1-6]-*.md"))
PAGES = [DOCS / "courses.md", *SHEETS]
VERBS = ("multigrid-rl ", "make ", "python ")
#: A row of a sheet's rubric: what was handed in, its return, its points; several with a comma and a blank.
ROW_OF_POINTS = r"^\| [^|]* \| ([-\d, ]*\d) \| ([\d, ]*\d) \|$"
#: What a student has written, and the solution that stands for it.
OWN = {"train.psi=my_estimates:gae": "train.psi=gae_forward:gae"}


def commands(page):
    """Every line of a fenced block and every code span that is a command."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for line in [*"".join(fenced).splitlines(), *spans] if line.startswith(VERBS)]


TYPED = sorted({(page.name, line) for page in PAGES for line in commands(page)})


@pytest.mark.parametrize(("page", "line"), TYPED, ids=[f"{page}-{k}" for k, (page, _) in enumerate(TYPED)])
def test_a_command_would_start(page, line, monkeypatch):
    if any("<" in word or "FILE" in word for word in shlex.split(line)):
        return
    monkeypatch.syspath_prepend(WORKED)
    program, *words = shlex.split(line)
    if program == "python":
        name = words[0] if "/" in words[0] else f"docs/assignments/templates/{words[0]}"
        assert (ROOT / name).is_file()
    elif program != "make" and words[0] in ("train", "explain"):
        compose([OWN.get(word, word) for word in words[1:] if word != "experiment=imported.yaml"])
    else:
        if program != "make" and not has_verb(words[0]) and words[0] in tables.VERBS:
            pytest.skip(f"{words[0]} was left out of this checkout")
        check_starts(line)


def points(rubric, value):
    """Points for a return by a rubric of returns alone."""
    return sum(
        check.row_of([Interval(value, value, value)])["points"] for exam in rubric.exams for check in exam.checks
    )


@pytest.mark.parametrize("sheet", [path for path in SHEETS if path.name[0] in "345"], ids=lambda path: path.stem)
def test_a_rubric_separates_what_the_sheet_says(sheet):
    rubric = Rubric.model_validate(yaml.safe_load((ASSIGNMENTS / "rubrics" / f"{sheet.stem}.yaml").read_text()))
    told = []
    for values, worths in re.findall(ROW_OF_POINTS, sheet.read_text(encoding="utf-8"), re.MULTILINE):
        returns = [float(value.replace(",", "")) for value in values.split(", ")]
        worth = [float(value) for value in worths.split(", ")]
        told += zip(returns, worth * (len(returns) if len(worth) == 1 else 1), strict=True)
    assert [row for row in told if abs(points(rubric, row[0]) - row[1]) > 1] == []
    assert max(worth for _, worth in told) >= 90
    assert min(worth for _, worth in told) < rubric.pass_points
    assert points(rubric, -1000) == 0


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.stem)
def test_a_rubric_tells_right_mediocre_and_broken_hand_ins_apart(sheet):
    table = sheet.read_text(encoding="utf-8").split("## Rubric")[1]
    cells = re.findall(r"^\|.* ([\d.,; ]+) \|$", table, re.MULTILINE)
    told = [float(points) for cell in cells for points in re.split("[,;] ", cell)]
    (linked,) = re.findall(r"\]\((\S+\.yaml)\)", table)
    rubric = Rubric.model_validate(yaml.safe_load((ASSIGNMENTS / linked).read_text(encoding="utf-8")))
    assert max(told) >= 90
    assert any(0.1 * rubric.pass_points < points < 90 for points in told)
    assert min(told) < 0.5 * rubric.pass_points
    assert sum(check.points for exam in rubric.exams for check in exam.checks) == 100


def test_gae_forwards_is_gae_backwards():
    rng, steps, games = np.random.default_rng(0), 9, 4
    rewards = rng.normal(size=(steps, games)).astype(np.float32)
    values = rng.normal(size=(steps + 1, games)).astype(np.float32)
    ends = rng.random((steps, games)) < 0.2

    class Steps:
        terminated = done = ends
        active = np.ones_like(ends)

    Steps.rewards = rewards
    expected = weigh(Steps, values[:-1], values[1:], Estimator(0.9, 0.8))
    for found, wanted in zip(
        loaded(WORKED / "gae_forward.py").gae(rewards, values, ends, 0.9, 0.8), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_gae_forwards_trains_as_gae_backwards(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(WORKED)
    runs = [
        tiny_run(tmp_path / str(k), "scenario=single-obstacle", "experiment=none", f"train.psi={psi}")[1]
        for k, psi in enumerate(("gae", "gae_forward:gae"))
    ]
    found, expected = ([row["learner/red_0/policy_loss"] for row in rows[:3]] for rows in runs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start
def test_the_callback_keeps_shares(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wins = loaded(WORKED / "callbacks.py").main(until=40_960)
    assert len(wins.shares) >= 2
    assert all(0 <= share <= 1 for share in wins.shares.values())


def test_arms_of_policy_gradients_compose():
    module = loaded(WORKED / "vpg.py")
    for own in module.ARMS.values():
        compose([*module.SETTING, *own])


def test_permutations_are_counted():
    chance = loaded(WORKED / "vpg.py").chance
    assert chance([240, 180, 60], [120, 90, 30]) == pytest.approx(0.15)
    assert chance([5, 6, 7, 8, 9], [0, 1, 2, 3, 4]) == pytest.approx(1 / 252)


def test_a_chart_of_own_runs(tmp_path):
    for seed in (0, 1):
        tiny_run(tmp_path / str(seed), "scenario=cartpole", f"seed={seed}")
    figure = loaded(WORKED / "chart.py").chart([("a", tmp_path / "0"), ("a", tmp_path / "1")])
    (axes,) = figure.axes
    assert len(axes.lines) == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a"]


def test_a_walker_is_paid_by_a_reward_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(WORKED.parent / "solutions")
    small = ["scenario=walker", "train.num_envs=4", "train.minibatch_size=64", "train.until=512"]
    plain = tiny_run(tmp_path / "plain", *small)[1]
    paid = tiny_run(tmp_path / "paid", *small, "train.shaping=walker_reward:shaped")[1]
    assert paid[0]["learner/agent_0/vf_loss"] != plain[0]["learner/agent_0/vf_loss"]
