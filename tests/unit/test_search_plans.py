"""Plans: the same seed tries the same, whichever trial ends first, and what has ended is not run again."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from multigrid_rl.config import ConfigError
from multigrid_rl.search.asha import OptunaPlan, as_parameters, as_point
from multigrid_rl.search.importance import FEWEST, importance_of
from multigrid_rl.search.objective import Score
from multigrid_rl.search.pbt import check_space, perturbed, population
from multigrid_rl.search.plans import InRounds, Outcome, Spec, three_stage, winner_of
from multigrid_rl.search.settings import load_settings
from multigrid_rl.search.space import load_space, space_of
from multigrid_rl.search.tuning import Search

BASE = ["scenario=single-obstacle", "experiment=none"]


@pytest.fixture(scope="module")
def space():
    return space_of(*load_space("default"), BASE)


@pytest.fixture(scope="module")
def pbt_space():
    return space_of(*load_space("pbt"), BASE)


def three(**changes: str):
    small = {"broad.trials": "6", "refine.trials": "4", "refine.best": "2", "confirm.candidates": "2"}
    return load_settings("three-stage", {**small, **{k.replace("_", "."): v for k, v in changes.items()}})


def score(spec: Spec) -> Score:
    """A made-up trial: the nearer the step size is to the middle, the better; held only with a memory."""
    off = abs(spec.point["train.lr"] - 0.5)
    held = spec.point.get("model", 1.0) >= 0.5
    return Score(int(1e6 * off) + 1 if held else None, -off)


def carried_out(plan, at_once: int = 1, seed: int = 0, judge=score):
    """Run a plan on made-up trials, some at a time, ended in an order of chance."""
    chance, specs, running = random.Random(seed), [], []
    while True:
        while len(running) < at_once and (spec := plan.propose()) is not None:
            running.append(spec)
            specs.append(spec)
        if not running:
            break
        spec = running.pop(chance.randrange(len(running)))
        got = judge(spec)
        plan.complete(Outcome(spec, "finished" if got else "failed", got))
    assert plan.finished
    return specs


def test_three_stages_try_the_same_whatever_ends_first(space):
    alone = carried_out(InRounds(three_stage(space, three(), seed=4)))
    crowd = carried_out(InRounds(three_stage(space, three(), seed=4)), at_once=3, seed=9)
    assert alone == crowd
    other = carried_out(InRounds(three_stage(space, three(), seed=5)))
    assert [spec.point for spec in alone] != [spec.point for spec in other]


def test_more_broad_trials_leave_the_earlier_ones_as_they_were(space):
    few = InRounds(three_stage(space, three(), seed=4))
    many = InRounds(three_stage(space, three(broad_trials="9"), seed=4))
    assert [few.propose() for _ in range(6)] == [many.propose() for _ in range(6)]


def test_stages_follow_the_best(space):
    specs = carried_out(InRounds(three_stage(space, three(), seed=4)))
    stages = [spec.stage for spec in specs]
    assert stages == ["broad"] * 6 + ["refine"] * 4 + ["confirm"] * 6
    ranking = sorted(specs[:6], key=score, reverse=True)
    assert [spec.origin for spec in specs[6:10]] == [ranking[k % 2].id for k in range(4)]
    for spec in specs[6:10]:
        centre = next(each for each in specs[:6] if each.id == spec.origin)
        assert abs(spec.point["train.lr"] - centre.point["train.lr"]) <= 0.12 + 1e-9
    best = sorted(specs[:10], key=score, reverse=True)[:2]
    assert {spec.origin for spec in specs[10:]} == {spec.id for spec in best}
    assert sorted({spec.seed for spec in specs[10:]}) == [5, 6, 7]
    assert {spec.seed for spec in specs[:10]} == {4}


def test_a_candidate_that_misses_one_seed_is_out_and_the_next_best_follow(space):
    def judge(spec):
        return Score(None, -1.0) if spec.stage == "confirm" else score(spec)

    specs = carried_out(InRounds(three_stage(space, three(), seed=4)), judge=judge)
    confirming = [spec for spec in specs if spec.stage == "confirm"]
    # Two attempts with two candidates each, and each candidate shows one seed only.
    assert len(confirming) == len({spec.origin for spec in confirming}) == 4
    assert {spec.seed for spec in confirming} == {5}


def test_a_search_whose_trials_all_fail_ends(space):
    specs = carried_out(InRounds(three_stage(space, three(), seed=4)), judge=lambda spec: None)
    assert [spec.stage for spec in specs] == ["broad"] * 6


def search(plan, known, begun=(), record=lambda outcome: None):
    ended, started = {o.spec.id: o for o in known}, {spec.id: spec for spec in begun}
    return Search(plan, ended, started, lambda spec: spec, record, lambda: False, Path("stop"))


def test_what_has_ended_is_not_run_again(space):
    whole = carried_out(InRounds(three_stage(space, three(), seed=4)))
    known = [Outcome(spec, "finished", score(spec)) for spec in whole if spec.id not in ("s1-002", "s2-001")][:8]
    going_on = search(InRounds(three_stage(space, three(), seed=4)), known)
    rerun = []
    while (spec := going_on.next_spec()) is not None:
        rerun.append(spec)
        going_on.running[spec.id] = (spec, 0.0)
        going_on.complete(spec.id, lambda spec, seconds: Outcome(spec, "finished", score(spec)))
    assert rerun == [spec for spec in whole if spec.id not in {o.spec.id for o in known}]
    assert going_on.plan.finished


def test_a_folder_of_another_version_is_refused(space):
    first = InRounds(three_stage(space, three(), seed=4)).propose()
    other = Outcome(replace(first, seed=77), "finished", score(first))
    with pytest.raises(ConfigError, match="trial s1-000: recorded with other values than this version draws"):
        search(InRounds(three_stage(space, three(), seed=4)), [other]).next_spec()


def test_a_trial_that_was_begun_with_other_values_is_refused(space):
    first = InRounds(three_stage(space, three(), seed=4)).propose()
    assert search(InRounds(three_stage(space, three(), seed=4)), [], [first]).next_spec() == first
    with pytest.raises(ConfigError, match="trial s1-000: recorded with other values than this version draws"):
        search(InRounds(three_stage(space, three(), seed=4)), [], [replace(first, until=5)]).next_spec()


def test_an_outcome_that_cannot_be_written_down_ends_the_search_and_is_not_lost_in_it(space):
    def refused(outcome):
        raise OSError(28, "No space left on device")

    run = search(InRounds(three_stage(space, three(), seed=4)), [], record=refused)
    assert not run.ending
    spec = run.next_spec()
    run.running[spec.id] = (spec, 0.0)
    run.complete(spec.id, lambda spec, seconds: Outcome(spec, "finished", score(spec)))
    assert run.ending
    assert run.broken.errno == 28


def test_a_search_that_ends_tells_its_trials_and_waits_for_them(space, tmp_path):
    asked = []
    plan = InRounds(three_stage(space, three(), seed=4))
    run = Search(plan, {}, {}, None, None, lambda: bool(asked), tmp_path / "stop")
    spec = run.next_spec()
    run.running[spec.id] = (spec, 0.0)
    assert (run.over(), run.stop_file.exists()) == (False, False)
    asked.append(True)
    assert (run.over(), run.stop_file.exists()) == (False, True)
    run.running.clear()
    assert run.over()


def confirming(origin: str, number: int, got: Score | None) -> Outcome:
    spec = Spec(f"s3-{origin}-seed{number}", "confirm", {"train.lr": float(origin[1:])}, number, 9, origin=origin)
    return Outcome(spec, "finished" if got else "failed", got)


def test_the_winner_held_on_all_seeds_and_the_worst_seed_decides():
    broad = Outcome(Spec("s1-000", "broad", {"train.lr": 0.0}, 0, 9), "finished", Score(10, 0.1))
    rows = [
        broad,
        *(confirming("c1", n, Score(steps, 0.1)) for n, steps in ((1, 100), (2, 900))),  # fast once, slow once
        *(confirming("c2", n, Score(500, 0.1)) for n in (1, 2)),
        *(confirming("c3", n, got) for n, got in ((1, Score(50, 0.1)), (2, Score(None, 0.1)))),
        *(confirming("c4", n, got) for n, got in ((1, Score(50, 0.1)), (2, None))),
    ]
    winner = winner_of(rows, seeds=2)
    assert (winner.trials, winner.score, winner.confirmed) == (("s3-c2-seed1", "s3-c2-seed2"), Score(500, 0.1), True)
    assert winner.point == {"train.lr": 2.0}
    # Nobody held on all seeds: the best that is known, and it is said.
    none = winner_of([broad, confirming("c3", 1, Score(50, 0.1)), confirming("c3", 2, Score(None, 0.1))], seeds=2)
    assert (none.confirmed, none.score) == (False, Score(None, 0.1))
    assert winner_of([broad], seeds=2).confirmed is False
    assert winner_of([broad], seeds=0).confirmed is True
    assert winner_of([confirming("c4", 1, None)], seeds=2) is None


# --- asha


def asha(**changes: str):
    return load_settings("asha", {"trials": "14", "startup": "6", **changes})


def test_optuna_proposes_the_same_with_one_trial_at_a_time(space):
    first, again = (carried_out(OptunaPlan(space, asha(), seed=2)) for _ in range(2))
    assert first == again
    assert [spec.id for spec in first] == [f"a{k:03d}" for k in range(14)]
    assert carried_out(OptunaPlan(space, asha(), seed=3)) != first


def test_optuna_learns_from_outcomes(space):
    specs = carried_out(OptunaPlan(space, asha(trials="60"), seed=2))
    off = [abs(spec.point["train.lr"] - 0.5) for spec in specs]
    assert np.mean(off[30:]) < 0.6 * 0.25  # what random draws are off on average


def test_optuna_goes_on_after_an_interruption(space):
    known = [Outcome(s, "finished", score(s)) for s in carried_out(OptunaPlan(space, asha(), seed=2))[:9]]
    failed = replace(known[3], status="failed", score=None)
    rest = carried_out(OptunaPlan(space, asha(), 2, [*known[:3], failed, *known[4:]]))
    assert [spec.id for spec in rest] == [f"a{k:03d}" for k in range(9, 14)]
    assert not {tuple(s.point.values()) for s in rest} & {tuple(o.spec.point.values()) for o in known}


def test_what_optuna_had_begun_goes_on_with_its_own_values_before_anything_new(space):
    whole = carried_out(OptunaPlan(space, asha(), seed=2))
    known = [Outcome(spec, "finished", score(spec)) for spec in (whole[0], whole[2])]
    begun = [whole[1], whole[3]]
    rest = carried_out(OptunaPlan(space, asha(), 2, known, begun), at_once=2)
    assert rest[:2] == begun
    assert [spec.id for spec in rest[2:]] == [f"a{k:03d}" for k in range(4, 14)]


def test_points_go_to_optuna_and_back(space):
    point = space.sample(np.random.default_rng(6))
    back = as_point(space.variables, as_parameters(space.variables, point))
    assert space.values(back) == space.values(point)


# --- pbt


def pbt(**changes: str):
    return load_settings("pbt", {"population": "5", "generations": "3", "interval": "1000", **changes})


def not_held(spec):
    return Score(None, -abs(spec.point["train.lr"] - 0.5))


def test_a_population_is_the_same_whatever_ends_first(pbt_space):
    alone = carried_out(InRounds(population(pbt_space, pbt(), seed=1)), judge=not_held)
    assert alone == carried_out(InRounds(population(pbt_space, pbt(), seed=1)), at_once=3, seed=5, judge=not_held)
    assert len(alone) == 15
    assert [spec.until for spec in alone] == [1000] * 5 + [2000] * 5 + [3000] * 5


def test_the_worst_go_on_from_one_of_the_best_with_other_values(pbt_space):
    specs = carried_out(InRounds(population(pbt_space, pbt(), seed=1)), judge=not_held)
    for generation in (1, 2):
        before = {s.id: s for s in specs if s.id.startswith(f"g{generation - 1:02d}")}
        order = sorted(before.values(), key=not_held, reverse=True)
        best, worst = {s.id for s in order[:2]}, {s.id for s in order[-2:]}
        for spec in (s for s in specs if s.id.startswith(f"g{generation:02d}")):
            own = f"g{generation - 1:02d}{spec.id[3:]}"
            assert spec.goes_on
            if own in worst:
                assert spec.origin in best
                assert all(spec.point[key] != value for key, value in before[spec.origin].point.items())
            else:
                assert (spec.origin, spec.point) == (own, before[own].point)


def test_who_failed_is_replaced_and_a_dead_population_ends(pbt_space):
    def judge(spec):
        return None if spec.id == "g00-m01" else not_held(spec)

    specs = carried_out(InRounds(population(pbt_space, pbt(), seed=1)), judge=judge)
    assert next(s for s in specs if s.id == "g01-m01").origin != "g00-m01"
    assert len(carried_out(InRounds(population(pbt_space, pbt(), seed=1)), judge=lambda spec: None)) == 5


def test_a_population_ends_when_a_member_has_held_its_gates(pbt_space):
    specs = carried_out(InRounds(population(pbt_space, pbt(), seed=1)), judge=lambda spec: Score(900, 0.1))
    assert len(specs) == 5


def test_perturbed_numbers_always_move_and_stay_inside(pbt_space):
    rng = np.random.default_rng(0)
    for edge in (0.0, 0.5, 1 - 1e-12):
        point = {v.key: edge for v in pbt_space.variables}
        for _ in range(200):
            moved = perturbed(pbt_space, point, pbt(resample="0"), rng)
            assert all(0 <= c < 1 and 0.07 < abs(c - edge) <= 0.15 + 1e-9 for c in moved.values())


def test_pbt_refuses_what_cannot_change_during_a_run(space):
    with pytest.raises(ConfigError, match=r"space=default: train.entropy_decay cannot change during a run"):
        check_space(space)


# --- importance


def outcomes(space, count, judge):
    specs = [Spec(f"s1-{k:03d}", "broad", space.sample(np.random.default_rng(k)), 0, 9) for k in range(count)]
    return [Outcome(spec, "finished", judge(spec)) for spec in specs]


def test_importance_finds_what_decides(space):
    found = importance_of(space.variables, outcomes(space, 80, not_held))
    assert next(iter(found.shares)) == "train.lr"
    assert found.shares["train.lr"] > 0.4
    assert sum(found.shares.values()) == pytest.approx(1)
    assert "80 trials" in found.note


def test_importance_says_when_it_knows_nothing(space):
    few = importance_of(space.variables, outcomes(space, FEWEST - 1, not_held))
    assert (few.shares, few.note) == ({}, "19 trials were drawn over the whole space: importance needs 20")
    alike = importance_of(space.variables, outcomes(space, 30, lambda spec: Score(None, -1.0)))
    assert (alike.shares, alike.note) == ({}, "all 30 trials were equally good")
