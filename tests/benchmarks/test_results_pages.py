"""The pages of docs/results: honest tables over seeds."""

from __future__ import annotations

from benchmarks.results import STUDIES, held_sentence, page, summary_row
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import MODES


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


def study_of(*rows):
    made = {"study": "x", "command": "c seed=SEED", "required": "much", "all": "all of them"}
    return {**made, "fresh": 100, "rows": list(rows)}


def test_run_that_never_held_counts_last_in_median():
    assert held_sentence([row(0, 100), row(1, 300), row(2, None)]).startswith(
        "Held on 2 of 3 seeds. Environment steps to held: median 300, 100 to never."
    )
    assert held_sentence([row(0, 100), row(1, None), row(2, None)]) == "Held on 1 of 3 seeds."
    assert held_sentence([row(0, None, gates=False)]) == "This scenario has no gates."


def test_page_and_summary_report_misses():
    text = page(study_of(row(0, 100), row(1, None)))
    assert "| 1 | no | - | - | 3 | 900 | 0.250 |" in text
    assert "Held on 1 of 2 seeds." in text
    assert "| 1/3 | - |" in summary_row(study_of(row(0, 100), row(1, None), row(2, None)))


def test_a_page_says_which_seeds_commit_and_processor():
    tuned, fresh = (page(study_of(row(first, 100), row(first + 1, 100))) for first in (0, 100))
    assert "Tuning seeds: " in tuned
    assert "Fresh seeds: " in fresh
    assert "Commit abc; processor XYZ 9: steps are exact on this kind of processor" in fresh
    tuned_on = {**study_of(row(100, 100), row(101, 100)), "fresh": 200}
    assert "Tuning seeds: " in page(tuned_on)
    assert "from 200 on" in page(tuned_on)
    assert "| tuning, abc |" in summary_row(tuned_on)
    assert "| tuning, abc |" in summary_row(study_of(row(99, 100), row(100, 100)))
    assert "| 100 (95 % interval 100 to 100) |" in summary_row(study_of(*(row(100 + k, 100) for k in range(5))))


def test_page_tells_the_worst_seed_of_each_opponent():
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
    text = page(study_of(*rows))
    assert "| perfect | argmax | player_1 | 0.0% | 0.0% | 0.0% | 25.0% | 2 of 3 | 1.00 | 0.75 |" in text
    assert "| prey | argmax | player_1 | - | - | - | - | - | 5.00 | 4.00 |" in text
    assert "opponent" not in page(study_of(row(0, 100)))


def test_every_study_command_composes():
    for study in STUDIES:
        config = compose([*study.overrides, "seed=0"])
        assert not study.recipe or config.experiment == study.recipe
