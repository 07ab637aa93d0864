"""``compare``: two sets of runs on disk, what is said about them, and what is refused."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from bundles import unchanged
from commands import call, complaint, works
from multigrid_rl.cli.evaluate import _shares, sentence
from multigrid_rl.evaluation.seed_statistics import Interval, bootstrap_band, iqm
from multigrid_rl.evaluation.sets import HELD, SetComparison, compare_sets, final_value, find_runs, notes, read_set
from multigrid_rl.runs.reader import Series

LENGTH, ENTROPY = "episode_len_mean", "entropy/red_0"


def write_run(path: Path, seed: int, held: int | None = 200_000, *, length: float = 15.0, **changes) -> Path:
    """A run folder as training writes it: four reports, the last at 200,000 steps; ``length`` at the end."""
    path.mkdir(parents=True)
    scenario = {"name": changes.get("scenario", "1v1"), "seats": {"blue_0": "blue-rookie", "red_0": "learn"}}
    config = {"scenario": scenario, "seed": seed, "train": {"lr": changes.get("lr", 0.1)}, "run_dir": str(path)}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    rows = []
    for k in range(1, 5):
        values = {LENGTH: length + 40 - 10 * k, ENTROPY: 0.5 / k, "win/red_0": 0.2 * k, "win/blue_0": 1 - 0.2 * k}
        rows.append({"env_steps": 50_000 * k, "report_episodes": 100.0, **values})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gates = [
        {"metric": m, "comparison": c, "bound": b, "hold": "every", "window": 100_000, "first_held": None}
        for m, c, b in ((LENGTH, "<=", 20.0), (ENTROPY, "<=", 0.3))
    ]
    verdict = {"ended": changes.get("ended", "held" if held else "until"), "env_steps": 200_000}
    verdict |= {"env_steps_to_held": held, "gates": gates if changes.get("gates", True) else []}
    if not changes.get("running"):
        (path / "verdict.json").write_text(json.dumps(verdict))
    (path / "provenance.json").write_text(json.dumps({"commit": "abc", "versions": {"ray": "2"}}))
    return path


@pytest.fixture
def sides(tmp_path, monkeypatch) -> tuple[str, str]:
    """Five runs against five; those of B hold later or never, and end no differently. The working directory."""
    monkeypatch.chdir(tmp_path)
    for k in range(5):
        write_run(tmp_path / "a" / str(k), k, 100_000 + 1000 * k, length=15 + 0.1 * k)
        held, ended = (None, "plateau") if k == 4 else (150_000 + 1000 * k, "held")
        write_run(tmp_path / "b" / str(k), k, held, length=15 + 0.1 * (4 - k), lr=0.3, ended=ended)
    return "a", "b"


def test_compares_two_folders(sides):
    done = works("compare", *sides)
    text = done.output
    assert "A: 1v1, 5 runs, seeds 0, 1, 2, 3, 4 (a)" in text
    assert "note: A and B differ in train.lr 0.1 / 0.3" in text
    assert "warning" not in text
    assert (
        f"{HELD}: A is sooner in 100% of the pairs, 95 % interval 100% to 100%; never held: 0 of 5 in A, 1 of 5" in text
    )
    assert "a significant difference (permutation test, p = 0.0" in text
    assert f"{LENGTH}: A is lower in 50% of the pairs" in text
    assert "no significant difference." in text
    assert "significant differences: 1 of 4 metrics" in text
    rows = [line.split() for line in text.splitlines() if line.split()[1:2] in (["less"], ["more"])]
    assert [(row[0], row[1]) for row in rows][-1] == ("win/red_0", "more")
    assert rows[0][2] == "102,000"
    assert "never" in " ".join(rows[0])


def test_sides_accept_several_words(sides):
    words = ["a/0", "a/1", "--against", "b/0", "b/1", "b/2", "-o", "c.png", "a/2"]
    done = works("compare", *words)
    assert "A: 1v1, 3 runs, seeds 0, 1, 2 (a)" in done.output
    assert "B: 1v1, 3 runs, seeds 0, 1, 2 (b)" in done.output


@pytest.mark.parametrize("given", [["b"], ["b/*"], ["b/[0-2]", "b/3", "b/4"]], ids=["folder", "pattern", "both"])
def test_side_may_be_folder_or_pattern(given, sides):
    assert find_runs(given) == [Path("b") / str(k) for k in range(5)]
    assert find_runs([str(Path.cwd() / text) for text in given]) == [Path.cwd() / "b" / str(k) for k in range(5)]


def test_several_scenarios_are_strata(sides):
    for k in range(3):
        write_run(Path("a") / "more" / str(k), k, 50_000, scenario="coop", length=100)
        write_run(Path("b") / "more" / str(k), k, 50_000, scenario="coop", length=100, lr=0.3)
    done = works("compare", *sides)
    assert "note: several scenarios" in done.output
    # Certain in one scenario and even in the other.
    assert f"{HELD}: A is sooner in 75% of the pairs" in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a"], "runs: expected two folders of runs, or A... --against B..., got 1"),
        (["a", "b", "a/0"], "got 3 without --against"),
        (["a", "nowhere"], "nowhere: expected a run folder"),
        (["a", "b/*/config.yaml"], "b/*/config.yaml: expected a run folder"),
        (["a", "a/3"], "a/3: expected a run of A or of B"),
        (["a", "other"], "scenarios: expected those of A, 1v1, in B, too, got coop"),
        (["a", "running"], "running: expected a run that ended by itself, got no verdict.json"),
        (["a", "stopped"], "stopped: expected a run that ended by itself, got interrupted"),
        (["a", "b", "-o", "a/0/config.yaml"], "a/0/config.yaml"),
    ],
)
def test_rejects_mistakes_and_writes_nothing(args, message, sides, tmp_path):
    write_run(tmp_path / "other", 0, scenario="coop")
    write_run(tmp_path / "running", 0, running=True)
    write_run(tmp_path / "stopped", 0, ended="interrupted")
    with unchanged(tmp_path):
        assert message in complaint(call("compare", *args))


def test_reports_runs_differing_in_more_than_seed(tmp_path):
    for k, (seed, lr) in enumerate([(0, 0.1), (1, 0.2), (1, 0.1)]):
        write_run(tmp_path / "a" / str(k), seed, lr=lr)
    for k in range(2):
        write_run(tmp_path / "b" / str(k), k)
    ours, theirs = (read_set(name, [str(tmp_path / name.lower())]) for name in ("A", "B"))
    message = list(notes(ours, theirs))
    assert message[0] == "warning: A: seed 1 of 1v1 twice; the same seed is no second run"
    assert message[1].startswith("warning: A: not only the seed differs: train.lr 0.1 / 0.2 in ")
    assert message[2] == "A and B differ in nothing that a run records"
    assert message[3] == "fewer than 3 runs on a side: intervals mean little"
    assert message[4].startswith("final values are means over the last 20,000 steps of a run")
    assert len(message) == 5


def test_seeds_trained_alone_and_side_by_side_are_one_recipe(tmp_path):
    from multigrid_rl.show.reference import build_reference  # noqa: PLC0415 - an add-on may be left out

    for k, threads in enumerate((1, 1, "auto")):
        file = write_run(tmp_path / str(k), k) / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["train"]["threads"] = threads
        file.write_text(yaml.safe_dump(config))
    runs = read_set("A", [str(tmp_path)])
    assert not [line for line in notes(runs, runs) if line.startswith("warning")]
    assert len(build_reference(list(runs.runs), "seeds").runs) == 3


def comparison(better: tuple[float, float, float], p: float, **changes) -> SetComparison:
    values = {"metric": LENGTH, "smaller": True, "difference": None, "never": (0, 0)}
    any_interval = Interval(1.0, 1.0, 1.0)
    return SetComparison(**{**values, **changes}, ours=any_interval, theirs=any_interval, better=Interval(*better), p=p)


def test_wording_matches_uncertainty_of_seeds():
    assert sentence(comparison((0.38, 0.16, 0.62), 0.4), 5, 5) == (
        f"{LENGTH}: B is lower in 62% of the pairs, 95 % interval 38% to 84%: no significant difference."
    )
    # The bootstrap of three against three has no width; the permutation test says that it means nothing.
    assert sentence(comparison((1, 1, 1), 0.1), 3, 3).endswith(
        "no significant difference (permutation test, p = 0.100: so few runs differ as much by chance)."
    )
    assert sentence(comparison((1, 1, 1), 1.0), 1, 5) == (
        f"{LENGTH}: A is lower in 100% of the pairs (one run has no interval): no significant difference "
        "(permutation test, p = 1.000: so few runs differ as much by chance)."
    )
    assert "A is lower in >99% of the pairs, 95 % interval 99% to 100%" in sentence(
        comparison((0.996, 0.99, 1), 0), 9, 9
    )
    result = sentence(comparison((0.04, 0, 0.12), 0.0005, metric=HELD, never=(3, 0)), 5, 6)
    assert result == (
        f"{HELD}: B is sooner in 96% of the pairs, 95 % interval 88% to 100%; never held: 3 of 5 in A, 0 of 6 in B: "
        "a significant difference (permutation test, p < 0.001)."
    )
    assert "A is higher in 90%" in sentence(comparison((0.9, 0.7, 1), 0.01, smaller=False), 5, 5)


def test_final_value_uses_gate_window():
    series = Series(np.array([50.0, 100.0, 150.0, 200.0]), np.array([1.0, 2.0, 4.0, 8.0]))
    assert final_value(series, 100) == 6  # reports after 100
    assert final_value(series, 101) == pytest.approx(14 / 3)
    assert final_value(series, 1) == 8


def test_never_held_is_worse_than_every_run_that_held(sides):
    ours, theirs = read_set("A", ["a"]), read_set("B", ["b"])
    held, length, *_ = compare_sets(ours, theirs, 1000, np.random.default_rng(0))
    assert (held.ours.value, held.theirs.value) == (102_000, 152_000)
    assert math.isinf(held.theirs.high)
    assert held.difference is None
    assert held.significant
    assert not length.significant
    # The window takes the reports at 150,000 and 200,000: 10 and 0 above each run's own end.
    assert length.ours.value == pytest.approx(15 + 0.2 + 5)


def test_missing_metrics_and_gates_are_left_out(tmp_path):
    write_run(tmp_path / "a" / "0", 0, gates=False)
    write_run(tmp_path / "b" / "0", 0)
    rows = compare_sets(*(read_set(n, [str(tmp_path / n)]) for n in ("a", "b")), 1000, np.random.default_rng(0))
    assert [row.metric for row in rows] == ["win/red_0"]


def test_repeated_runs_are_counted_once(sides):
    assert find_runs(["a", "a/0", "./a/1", "a/*"]) == [Path("a") / str(k) for k in range(5)]


def test_two_runs_of_one_folder_have_names_of_their_own(sides):
    done = works("compare", "a/0", "a/1")
    assert "A: 1v1, 1 run, seeds 0 (a/0)" in done.output
    assert "B: 1v1, 1 run, seeds 1 (a/1)" in done.output
    assert [read_set(name, [path]).title for name, path in (("A", "a/0"), ("B", "a/1"))] == ["A: a/0", "B: a/1"]


def test_band_covers_curve_and_closes_where_runs_agree():
    values = np.stack([np.linspace(0, 1, 5) * k for k in range(8)])
    middle, low, high = bootstrap_band(values, np.random.default_rng(0), iqm)
    assert (middle[0], low[0], high[0]) == (0, 0, 0)
    np.testing.assert_allclose(middle, np.linspace(0, 1, 5) * 3.5)
    assert (low[1:] < middle[1:]).all()
    assert (high[1:] > middle[1:]).all()


@pytest.mark.parametrize("seats", [{}, {"agent_1": "random"}])
def test_runs_of_other_packages_are_compared_by_returns_of_who_learns(tmp_path, monkeypatch, seats):
    monkeypatch.chdir(tmp_path)
    for side, total in (("a", 30.0), ("b", 20.0)):
        folder = write_run(tmp_path / side / "0", 1, None, gates=False)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["scenario"]["seats"] = seats
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        steps = (50_000, 100_000) if side == "a" else (50_000, 200_000)
        rows = [{"env_steps": k, "report_episodes": 20.0, "return_mean/agent_0": total} for k in steps]
        rows = [row | {f"return_mean/{seat}": 1.0 for seat in seats} for row in rows]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = works("compare", "a", "b", "--reps", 1000)
    assert "return_mean/agent_0: A is higher in 100% of the pairs (one run has no interval): no signif" in done.output
    assert "return_mean/agent_1" not in done.output
    assert re.search(r"return_mean/agent_0 +more +30 +20 +\+10 +100%$", done.output, re.MULTILINE)
    assert "A: 1v1, 1 run, seeds 1 (a/0)" in done.output
    assert "note: runs report last after 100,000 to 200,000 steps" in done.output
    assert "gates are held" not in done.output


def test_notes_of_runs_that_ended_with_their_budget_name_no_held_gates(tmp_path):
    for name, rows in (("A", 4), ("B", 3)):
        file = write_run(tmp_path / name, 0, held=None) / "metrics.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:rows]))
    ours, theirs = (read_set(name, [str(tmp_path / name)]) for name in "AB")
    assert [line[:16] for line in notes(ours, theirs) if " after " in line] == ["runs report last"]


@pytest.mark.parametrize(("until", "window"), [(20_000, 2_000), (10**7, 100_000)])
def test_final_values_look_back_a_tenth_of_the_budget_at_most_and_say_so(tmp_path, until, window):
    for side in "ab":
        folder = write_run(tmp_path / side / "0", 0)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["train"]["until"] = until
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    ours, theirs = (read_set(name, [str(tmp_path / name.lower())]) for name in ("A", "B"))
    assert f"means over the last {window:,} steps" in list(notes(ours, theirs))[-1]


def test_some_games_are_never_shown_as_all_or_none():
    row = {"episodes": 10_000, "win": 0.9999, "draw": 0.0, "loss": 1e-4, "win_interval": [0.9994, 1.0]}
    assert _shares(row) == ["10,000", ">99.9% (99.9% to 100.0%)", "0.0%", "<0.1%"]
