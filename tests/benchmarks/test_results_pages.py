"""The table of docs/results, and what results.json keeps: honest numbers over seeds."""

import json

from benchmarks import results
from benchmarks.results import MARKS, RESULTS, STUDIES, Study, held_sentence, record_of, summary, summary_row
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import MODES
from multigrid_rl.runs.reader import read_run
from multigrid_rl.training import advice
from run_folders import Story, write_run

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
    for study in STUDIES:
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
