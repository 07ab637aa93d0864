"""Studies and docs/results: every arm is a run that composes, and pages say what came of the seeds."""

import json

import numpy as np
import pytest

from benchmarks import results
from benchmarks.results import MARKS, RESULTS, Study, held_sentence, record_of, summary, summary_row
from benchmarks.study import Arm, draw_group, keep, lines_of, read_arms, recovery
from benchmarks.study_runs import STUDIES, jobs_of, prepare, read_study
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import MODES
from multigrid_rl.runs.reader import read_run
from multigrid_rl.training import advice
from run_folders import Story, write_run

NAMES = sorted(path.stem for path in STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_composes(name, tmp_path):
    study = read_study(name)
    jobs = jobs_of(study, range(2), tmp_path)
    assert len(jobs) == 2 * len(study.arms)
    for job in jobs[: len(study.arms)]:
        assert compose(list(job.overrides)).scenario.package == "gymnasium"
    for claim in study.claims:
        assert {claim["better"], claim["worse"]} <= study.arms.keys()


@pytest.mark.parametrize("name", [name for name in NAMES if read_study(name).before])
def test_what_runs_need_is_written_where_they_look_for_it(name, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("benchmarks.study_runs.subprocess.run", lambda call, check: calls.append(call))
    study = read_study(name)
    prepare(study, tmp_path)
    places = [place.replace("{folder}", str(tmp_path)) for place in study.before]
    assert [call[-1].removeprefix("run_dir=") for call in calls] == places


def test_arms_name_runs_of_same_seed(tmp_path):
    jobs = jobs_of(read_study("imitation"), range(3), tmp_path)
    begun = [word for job in jobs if job.arm == "gail-from-clone" for word in job.overrides if word.startswith("init=")]
    assert begun == [f"init={tmp_path}/gaussian/{seed}" for seed in range(3)]


def test_runs_of_another_machine_count_beside_those_here(tmp_path):
    jobs = jobs_of(read_study("control"), range(2), tmp_path / "runs")[:1]
    jobs[0].folder.mkdir(parents=True)
    rows = [{"env_steps": 10 * k, "return_mean/agent_0": k / 3, "entropy/agent_0": 1.0} for k in range(1, 401)]
    (jobs[0].folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (jobs[0].folder / "study.json").write_text('{"draw": 7.0}')
    (jobs[0].folder / "provenance.json").write_text("{}")
    _, records = read_arms(jobs, ["entropy/agent_0"])
    others = [records[0] | {"seed": seed, "result": {"draw": 8.0}} for seed in (jobs[0].seed, 9)]
    keep(others, tmp_path / "kept.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept[0]["updates"][1] is None  # no divergence was measured
    arms, _ = read_arms(jobs, ["entropy/agent_0"], kept)
    assert arms[jobs[0].arm].scores().tolist() == [7, 8]  # the run here stands before its record
    whole, thinned = arms[jobs[0].arm].curves
    assert (len(whole[0]), len(thinned[0])) == (400, 150)
    np.testing.assert_allclose(thinned[1], np.interp(thinned[0], *whole), rtol=1e-4)
    assert thinned[0][[0, -1]].tolist() == [10, 4000]


def test_page_compares_arms_by_scores_over_seeds():
    study = read_study("policy-gradients")
    curve = (np.array([100, 200]), np.array([10.0, 30.0]))

    def arm(*scores: float) -> Arm:
        results = [{"draw": s, "argmax": s + 1, "env_steps_per_s": 5000.0} for s in scores]
        return Arm(results, [curve] * len(scores), [[s, 0.01, 0.1, 2.0] for s in scores], {})

    page = "\n".join(lines_of(study, {"gae": arm(400, 500, 500, 500), "vpg-20": arm(9, 10, 11, 450)}, "make study"))
    # The middle half of four is two; over training the curve holds 10 up to step 100 and rises to 30: 15 on average.
    assert "| gae | `-` | 4 | 500 | " in page
    assert "| 400 | 500 | 501 | 15 | 5,000 |" in page
    assert "| gae | 500 | 0.01 | 0.1 | 2 |" in page
    row = next(line for line in page.splitlines() if line.startswith("| gae | vpg-20 | after training |"))
    assert [cell.strip() for cell in row.split("|")[4:7]] == ["-", "-", "too few seeds"]
    assert "ppo-20 |" not in page  # nothing was trained


def test_sections_that_were_not_trained_stay():
    study = read_study("control")
    first, second = (group["title"] for group in study.groups[:2])
    before = f"# Control\n\nOld.\n\n## {first}\n\nold one\n\n## {second}\n\nold two\n\n## Gone\n\nno group\n"
    curve = (np.array([100, 200]), np.array([10.0, 30.0]))
    arm = Arm([{"draw": 1.0, "argmax": 2.0, "env_steps_per_s": 1.0}], [curve], [[1.0] * 4], {})
    page = "\n".join(lines_of(study, {"cartpole": arm}, "make study ARGS='--seeds {seeds} --arms {arms}'", before))
    assert "`make study ARGS='--seeds 1 --arms cartpole'`" in page
    assert [text in page for text in ("old one", "old two", "Gone", "Old.")] == [False, True, False, False]


def test_curves_begin_and_end_where_something_was_measured():
    study = read_study("policy-gradients")
    short, long = (np.array([100, 200]), np.array([10.0, 30.0])), (np.array([150, 400]), np.array([50.0, 50.0]))
    figure = draw_group(study, study.groups[0], {next(iter(study.groups[0]["arms"])): Arm([], [short, long], [], {})})
    steps, means = figure.axes[0].lines[0].get_data()
    assert (steps[0], steps[-1], means[0], means[-1]) == (100, 400, 10, 50)
    assert set(means[steps > 200]) == {50}  # the short one is not held on


def test_run_without_report_has_no_training_score():
    none, some = (np.array([]), np.array([])), (np.array([100, 300]), np.array([10.0, 30.0]))
    np.testing.assert_allclose(Arm([], [none, some], [], {}).scores("training"), [np.nan, 50 / 3], rtol=1e-3)


def test_recovery_is_of_what_came_after_the_best():
    fell = np.array([0.0] * 5 + [200.0] * 5 + [-300.0] * 5 + [100.0] * 5)
    np.testing.assert_allclose(recovery(fell), [200, -300, 100])
    np.testing.assert_allclose(recovery(fell[::-1]), [200, 0, 0])  # what came before the best does not count
    assert np.isnan(recovery(np.array([]))).all()


def test_page_and_figure_show_what_a_group_asks_for():
    study = read_study("lunarlander-policy-gradients")
    group = next(group for group in study.groups if group["name"] == "passes")
    steps = np.arange(1, 11) * 1000
    curves = [(steps, np.linspace(-200, 100, 10) + seed) for seed in range(5)]
    fallen = [(np.arange(15), np.repeat([100.0, -100.0, 100.0], 5))] * 5
    results = [{"draw": 100.0 + seed, "argmax": 0.0, "env_steps_per_s": 1.0} for seed in range(5)]
    worse = [row | {"draw": -row["draw"]} for row in results]
    updates, others = [[1.0] * 4] * 5, {"entropy/agent_0": [(steps, np.ones(10))] * 5}
    arms = {"vpg": Arm(results, curves, updates, others), "vpg-20": Arm(worse, fallen, updates, others)}
    figure = draw_group(study, group, arms)
    assert [len(axes.lines) for axes in figure.axes[:3]] == [2, 2, 0]  # returns, entropy, and no KL
    page = "\n".join(lines_of(study, arms, "make study"))
    assert "| vpg | 35 | 35 | 35 | 0 of 5 | 0 of 0 |" in page
    assert "| vpg-20 | 100 | -100 | 100 | 5 of 5 | 5 of 5 |" in page
    row = next(line for line in page.splitlines() if line.startswith("| vpg | vpg-20 | after training | 1.00 |"))
    p = float(row.split("|")[6])
    assert p == pytest.approx(2 / 252, abs=0.004)  # two of 252 deals of ten runs are as far apart


def test_scores_of_a_part_of_training():
    steps, returns = np.arange(1, 11) * 10, np.array([0.0] * 5 + [100.0] * 5)
    arm = Arm([], [(steps, returns)], [], {})
    assert [arm.scores("last", until)[0] for until in (50, 60, np.inf)] == [0, 20, 100]
    assert arm.scores("training", 50)[0] == 0 < arm.scores("training", 80)[0] < arm.scores("training")[0]


def test_curve_ends_where_most_seeds_have_no_report_any_more():
    study = read_study("policy-gradients")
    curves = [(np.array([0, end]), np.zeros(2)) for end in (100, 100, 300)]
    figure = draw_group(study, study.groups[0], {next(iter(study.groups[0]["arms"])): Arm([], curves, [], {})})
    assert figure.axes[0].lines[0].get_xdata()[-1] == pytest.approx(100, abs=300 / 39)


X = Study("x", ("scenario=x",), required="much")


def row(seed: int, held: int | None, *, gates: bool = True):
    policy = {"episodes": 10, "length": 5.0, "returns": {"red_0": 1.0}, "team_return": 1.0, "win": 1.0}
    gate = {"metric": "entropy/red_0", "comparison": "<=", "bound": 0.3, "window_mean": 0.25}
    return {
        "seed": seed, "held": held is not None, "env_steps_to_held": held, "policy_updates_to_held": 1,
        "seconds_to_held": 2.0, "seconds": 3.0, "env_steps": 900, "gates": [gate] if gates else [],
        "policy": {mode: {**policy, "draw": 0.0, "loss": 0.0} for mode in MODES},
        "matches": [],
        "provenance": {"commit": "abc", "versions": {"python": "3"}, "opponents": [],
                       "machine": {"processor": "XYZ 9"}},
    }  # fmt: skip


def cells(*rows):
    return summary_row(X, record_of(X, list(rows), fresh=True))


def test_run_that_never_held_counts_last_in_median():
    assert held_sentence([row(0, 100), row(1, 300), row(2, None)]).startswith(
        "Held on 2 of 3 seeds. Environment steps to held: median 300, 100 to never."
    )
    assert held_sentence([row(0, 100), row(1, None), row(2, None)]) == "Held on 1 of 3 seeds."
    assert held_sentence([row(0, None, gates=False)]) == "This scenario has no gates."


def test_misses_are_told():
    record = record_of(X, [row(0, 100), row(1, None)], fresh=True)
    assert record["rows"][1] | {"policy": None} == {
        "seed": 1, "held": False, "env_steps_to_held": None, "policy_updates_to_held": 1, "seconds": 3.0,
        "env_steps": 900, "policy": None, "gates": {"entropy/red_0 <= 0.3": 0.25},
    }  # fmt: skip
    assert cells(row(0, 100), row(1, None), row(2, None))[2:4] == ["1/3 (6% to 79%)", "-"]


def test_a_game_without_a_winner_has_no_share_of_wins():
    tied = row(0, 100)
    for policy in tied["policy"].values():
        policy |= {"win": 0.0, "draw": 1.0}
    assert cells(tied)[6:8] == ["-", "5.0, 1.00, -"]
    tied["policy"]["stochastic"] |= {"draw": 0.9}
    assert cells(tied)[6:8] == ["0.0%", "5.0, 1.00, 0.0%"]


def test_seeds_commit_and_processor_are_told():
    fresh = record_of(X, [row(100, 100), row(101, 100)], fresh=True)
    assert (fresh["seeds"], fresh["commit"], fresh["processor"]) == ("fresh", "abc", "XYZ 9")
    assert fresh["all"].endswith("--only x --fresh")
    assert cells(row(99, 100), row(100, 100))[-1] == "tuning, abc"
    assert cells(*(row(100 + k, 100) for k in range(5)))[3] == "100 (100 to 100)"


def test_worst_seed_of_each_opponent_is_kept():
    rows = []
    for seed, loss in enumerate((0.0, 0.25, 0.0)):
        match = {
            "opponent": "perfect",
            "actions": "argmax",
            "as": "player_1",
            "win": 0.0,
            "draw": 1 - loss,
            "wins": True,
        }
        paid = {**match, "opponent": "prey", "loss": 0.0, "wins": False, "return": 4.0 + seed}
        rows.append({**row(seed, 100), "matches": [{**match, "loss": loss, "return": 1 - loss}, paid]})
    perfect, prey = record_of(X, rows, fresh=False)["matches"]
    assert perfect["loss"] == {"median": 0.0, "highest": 0.25, "seeds_without": 2}
    assert perfect["return"] == {"median": 1.0, "lowest": 0.75}
    assert prey == {
        "opponent": "prey",
        "actions": "argmax",
        "side": "player_1",
        "return": {"median": 5.0, "lowest": 4.0},
    }


def test_page_has_the_table_of_the_file():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    kept = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    assert page.partition(MARKS[0])[2].partition(MARKS[1])[0].strip().splitlines() == summary(kept)


def test_every_study_command_composes():
    for study in results.STUDIES:
        config = compose([*study.overrides, "seed=0"])
        assert not study.recipe or config.experiment == study.recipe


def test_curves_as_they_are_saved_tell_what_a_run_may_expect(tmp_path, monkeypatch):
    curves = tmp_path / "configs" / "recipe" / "curves"
    curves.mkdir(parents=True)
    monkeypatch.setattr(results, "CURVES", curves)
    monkeypatch.setattr(advice, "data_root", lambda: tmp_path)
    runs = [write_run(tmp_path / str(seed), Story(overrides=(f"seed={seed}",))) for seed in (1, 2)]
    results.save_curves([read_run(run) for run in runs], "1v1")
    assert advice.expectation(compose(["scenario=1v1"])).seeds == 2
