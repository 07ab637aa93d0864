"""Plans: the same seed tries the same, whichever trial ends first, and what has ended is not run again."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from multigrid_rl.config.compose import ConfigError
from multigrid_rl.search.folder import STOP, SearchFolder, SearchRequest
from multigrid_rl.search.outcomes import Outcome, Score, TrialSpec, winner_of
from multigrid_rl.search.plans import OptunaPlan, RoundsPlan, perturbed, plan_of, population, three_stage
from multigrid_rl.search.results import FEWEST, importance_of
from multigrid_rl.search.settings import load_settings
from multigrid_rl.search.space import load_space
from multigrid_rl.search.tuning import SearchRun

BASE = ["scenario=single-obstacle", "experiment=none"]


@pytest.fixture(scope="module")
def space():
    return load_space("default", BASE)


@pytest.fixture(scope="module")
def pbt_space():
    return load_space("pbt", BASE)


def three(**changes: float):
    small = {"broad.trials": 6, "refine.trials": 4, "refine.best": 2, "confirm.candidates": 2}
    return load_settings("three-stage", {**small, **{k.replace("_", "."): v for k, v in changes.items()}})


def score(spec: TrialSpec) -> Score:
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


def test_three_stages_draws_are_independent_of_finish_order(space):
    alone = carried_out(RoundsPlan(three_stage(space, three(), seed=4)))
    crowd = carried_out(RoundsPlan(three_stage(space, three(), seed=4)), at_once=3, seed=9)
    assert alone == crowd
    other = carried_out(RoundsPlan(three_stage(space, three(), seed=5)))
    assert [spec.point for spec in alone] != [spec.point for spec in other]


def test_more_broad_trials_keep_earlier_trials(space):
    few = RoundsPlan(three_stage(space, three(), seed=4))
    many = RoundsPlan(three_stage(space, three(broad_trials=9), seed=4))
    assert [few.propose() for _ in range(6)] == [many.propose() for _ in range(6)]


def test_stages_follow_best_trials(space):
    specs = carried_out(RoundsPlan(three_stage(space, three(), seed=4)))
    stages = [spec.stage for spec in specs]
    assert stages == ["broad"] * 6 + ["refine"] * 4 + ["confirm"] * 6
    ranking = sorted(specs[:6], key=lambda spec: score(spec).number, reverse=True)
    assert [spec.origin for spec in specs[6:10]] == [ranking[k % 2].id for k in range(4)]
    for spec in specs[6:10]:
        centre = next(each for each in specs[:6] if each.id == spec.origin)
        assert abs(spec.point["train.lr"] - centre.point["train.lr"]) <= 0.12 + 1e-9
    best = sorted(specs[:10], key=lambda spec: score(spec).number, reverse=True)[:2]
    assert {spec.origin for spec in specs[10:]} == {spec.id for spec in best}
    assert sorted({spec.seed for spec in specs[10:]}) == [5, 6, 7]
    assert {spec.seed for spec in specs[:10]} == {4}


def test_drops_candidates_that_miss_one_seed(space):
    def judge(spec):
        return Score(None, -1.0) if spec.stage == "confirm" else score(spec)

    specs = carried_out(RoundsPlan(three_stage(space, three(), seed=4)), judge=judge)
    confirming = [spec for spec in specs if spec.stage == "confirm"]
    # Two attempts with two candidates each, and each candidate shows one seed only.
    assert len(confirming) == len({spec.origin for spec in confirming}) == 4
    assert {spec.seed for spec in confirming} == {5}


def test_three_stages_end_when_all_trials_fail(space):
    specs = carried_out(RoundsPlan(three_stage(space, three(), seed=4)), judge=lambda spec: None)
    assert [spec.stage for spec in specs] == ["broad"] * 6


@pytest.fixture
def started(space, tmp_path):
    """Start a three-stage search on what an earlier session recorded."""

    def start(known=(), begun=(), on_outcome=lambda outcome: None, interrupted=lambda: False) -> SearchRun:
        folder = SearchFolder.create(tmp_path / "search", SearchRequest("three-stage", 4, three(), space))
        for spec in begun:
            folder.begin(spec)
        for outcome in known:
            folder.record(outcome)
        return SearchRun(folder, on_outcome, interrupted)

    return start


def test_does_not_repeat_trials_that_have_ended(space, started):
    whole = carried_out(RoundsPlan(three_stage(space, three(), seed=4)))
    known = [Outcome(spec, "finished", score(spec)) for spec in whole if spec.id not in ("s1-002", "s2-001")][:8]
    run = started(known)
    rerun = []
    while (trial := run.start_next()) is not None:
        rerun.append(trial.spec)
        run.complete(trial.spec.id, "finished", score(trial.spec))
    assert rerun == [spec for spec in whole if spec.id not in {o.spec.id for o in known}]
    assert run.plan.finished
    assert {o.spec.id for o in run.folder.outcomes()} == {spec.id for spec in whole}
    assert run.folder.begun() == rerun


@pytest.mark.parametrize("where", ["known", "begun"])
def test_rejects_records_of_another_version(space, started, where):
    other = replace(RoundsPlan(three_stage(space, three(), seed=4)).propose(), until=77)
    known, begun = ([Outcome(other, "finished", score(other))], []) if where == "known" else ([], [other])
    with pytest.raises(ConfigError, match="trial s1-000: expected the values that this version draws"):
        started(known, begun).start_next()


def test_resumes_started_trial(space, started):
    first = RoundsPlan(three_stage(space, three(), seed=4)).propose()
    run = started(begun=[first])
    assert run.start_next().spec == first
    assert run.folder.begun() == [first]


@pytest.mark.parametrize("what", ["begin", "record"])
def test_ends_when_folder_cannot_be_written(started, monkeypatch, what):
    def refused(*args):
        raise OSError(28, "No space left on device")

    run = started()
    monkeypatch.setattr(run.folder, what, refused)
    assert not run.ending
    trial = run.start_next()
    if trial is not None:
        run.complete(trial.spec.id, "finished", score(trial.spec))
    assert (trial is None) == (what == "begin")
    assert run.ending
    assert run.broken.errno == 28


def test_asks_trials_to_stop_and_waits(started):
    asked = []
    run = started(interrupted=lambda: bool(asked))
    run.start_next()
    stop = run.folder.path / STOP
    assert (run.stop_all(), stop.exists()) == (False, False)
    asked.append(True)
    assert (run.stop_all(), stop.exists()) == (False, True)
    run.running.clear()
    assert run.stop_all()


def confirming(origin: str, number: int, got: Score | None) -> Outcome:
    spec = TrialSpec(f"s3-{origin}-seed{number}", "confirm", {"train.lr": float(origin[1:])}, number, 9, origin=origin)
    return Outcome(spec, "finished" if got else "failed", got)


def test_winner_holds_on_all_seeds_and_worst_seed_decides():
    broad = Outcome(TrialSpec("s1-000", "broad", {"train.lr": 0.0}, 0, 9), "finished", Score(10, 0.1))
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


def asha(**changes: float):
    return load_settings("asha", {"trials": 14, "startup": 6, **changes})


def test_optuna_is_reproducible_with_sequential_trials(space):
    first, again = (carried_out(OptunaPlan(space, asha(), seed=2)) for _ in range(2))
    assert first == again
    assert [spec.id for spec in first] == [f"a{k:03d}" for k in range(14)]
    assert carried_out(OptunaPlan(space, asha(), seed=3)) != first


def test_optuna_learns_from_outcomes(space):
    specs = carried_out(OptunaPlan(space, asha(trials=60), seed=2))
    off = [abs(spec.point["train.lr"] - 0.5) for spec in specs]
    assert np.mean(off[30:]) < 0.6 * 0.25  # what random draws are off on average


def test_optuna_resumes_after_interruption(space):
    known = [Outcome(s, "finished", score(s)) for s in carried_out(OptunaPlan(space, asha(), seed=2))[:9]]
    failed = replace(known[3], status="failed", score=None)
    rest = carried_out(OptunaPlan(space, asha(), 2, [*known[:3], failed, *known[4:]]))
    assert [spec.id for spec in rest] == [f"a{k:03d}" for k in range(9, 14)]
    assert not {tuple(s.point.values()) for s in rest} & {tuple(o.spec.point.values()) for o in known}


def test_optuna_resumes_started_trials_first(space):
    whole = carried_out(OptunaPlan(space, asha(), seed=2))
    known = [Outcome(spec, "finished", score(spec)) for spec in (whole[0], whole[2])]
    begun = [whole[1], whole[3]]
    rest = carried_out(OptunaPlan(space, asha(), 2, known, begun), at_once=2)
    assert rest[:2] == begun
    assert [spec.id for spec in rest[2:]] == [f"a{k:03d}" for k in range(4, 14)]


def test_optuna_keeps_points_of_earlier_sessions(space):
    plan = OptunaPlan(space, asha(), seed=2)
    for k in range(5):
        point = space.sample(np.random.default_rng(k))
        assert space.values(plan._ask(f"a{k:03d}", point)) == space.values(point)


# --- pbt


def pbt(**changes: float):
    return load_settings("pbt", {"population": 5, "generations": 3, "interval": 1000, **changes})


def not_held(spec):
    return Score(None, -abs(spec.point["train.lr"] - 0.5))


def test_population_draws_are_independent_of_finish_order(pbt_space):
    alone = carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), judge=not_held)
    assert alone == carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), at_once=3, seed=5, judge=not_held)
    assert len(alone) == 15
    assert [spec.until for spec in alone] == [1000] * 5 + [2000] * 5 + [3000] * 5


def test_worst_members_copy_one_of_best_with_other_values(pbt_space):
    specs = carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), judge=not_held)
    for generation in (1, 2):
        before = {s.id: s for s in specs if s.id.startswith(f"g{generation - 1:02d}")}
        order = sorted(before.values(), key=lambda spec: not_held(spec).number, reverse=True)
        best, worst = {s.id for s in order[:2]}, {s.id for s in order[-2:]}
        for spec in (s for s in specs if s.id.startswith(f"g{generation:02d}")):
            own = f"g{generation - 1:02d}{spec.id[3:]}"
            assert spec.warm_start
            if own in worst:
                assert spec.origin in best
                assert all(spec.point[key] != value for key, value in before[spec.origin].point.items())
            else:
                assert (spec.origin, spec.point) == (own, before[own].point)


def test_population_replaces_failed_members_and_ends_without_any(pbt_space):
    def judge(spec):
        return None if spec.id == "g00-m01" else not_held(spec)

    specs = carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), judge=judge)
    assert next(s for s in specs if s.id == "g01-m01").origin != "g00-m01"
    assert len(carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), judge=lambda spec: None)) == 5


def test_population_ends_when_member_has_held_its_gates(pbt_space):
    specs = carried_out(RoundsPlan(population(pbt_space, pbt(), seed=1)), judge=lambda spec: Score(900, 0.1))
    assert len(specs) == 5


def test_perturbed_numbers_move_and_stay_inside(pbt_space):
    rng = np.random.default_rng(0)
    for edge in (0.0, 0.5, 1 - 1e-12):
        point = {v.key: edge for v in pbt_space.variables}
        for _ in range(200):
            moved = perturbed(pbt_space, point, pbt(resample=0), rng)
            assert all(0 <= c < 1 and 0.07 < abs(c - edge) <= 0.15 + 1e-9 for c in moved.values())


def test_pbt_rejects_keys_fixed_during_run(space):
    with pytest.raises(
        ConfigError, match=r"space=default: expected what can change during a run .*, got train.entropy_"
    ):
        plan_of(pbt(), space, 0)


# --- importance


def outcomes(space, count, judge):
    specs = [TrialSpec(f"s1-{k:03d}", "broad", space.sample(np.random.default_rng(k)), 0, 9) for k in range(count)]
    return [Outcome(spec, "finished", judge(spec)) for spec in specs]


def test_importance_finds_deciding_variable(space):
    found = importance_of(space, outcomes(space, 80, not_held))
    assert next(iter(found.shares)) == "train.lr"
    assert found.shares["train.lr"] > 0.4
    assert sum(found.shares.values()) == pytest.approx(1)
    assert "80 trials" in found.note


def test_importance_explains_why_it_is_unknown(space):
    few = importance_of(space, outcomes(space, FEWEST - 1, not_held))
    assert (few.shares, few.note) == ({}, "19 trials were drawn over the whole space: importance needs 20")
    alike = importance_of(space, outcomes(space, 30, lambda spec: Score(None, -1.0)))
    assert (alike.shares, alike.note) == ({}, "all 30 trials were equally good")
