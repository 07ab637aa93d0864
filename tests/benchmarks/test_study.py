"""Studies: every arm is a run that composes, and the page says what came of the seeds."""

import json

import numpy as np
import pytest

from benchmarks.study import Arm, draw_group, keep, lines_of, read_arms, recovery
from benchmarks.study_runs import STUDIES, jobs_of, prepare, read_study
from multigrid_rl.config.compose import compose

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


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("imitation")])
def test_figures_of_imitation_say_which_kind_of_steps(name):
    kinds = ("recorded", "labelled", "played")
    groups = read_study(name).groups
    assert [group["name"] for group in groups if not any(kind in group.get("axis", "") for kind in kinds)] == []


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


def test_rejects_unknown_study():
    with pytest.raises(SystemExit, match=f"^NAME: expected {', '.join(NAMES)}, got gradients$"):
        read_study("gradients")


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
