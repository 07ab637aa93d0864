"""Plans and their record: the same seed tries the same, nothing runs twice, and what makes a trial better."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from composing import refusal
from multigrid_rl.gates import Gate, GateKeeper, Moment
from multigrid_rl.search.plans import Outcome, Score, TrialSpec, perturb, score_of, winner_of
from multigrid_rl.search.search_folder import STOP, SearchFolder, SearchRequest, load_settings
from multigrid_rl.search.space import load_space
from multigrid_rl.search.tuning import SearchRun

BASE = ["scenario=single-obstacle", "experiment=none"]
SMALL = {
    "three-stage": {"broad.trials": 4, "refine.trials": 3, "confirm.candidates": 2},
    "asha": {"trials": 8, "startup": 4, "until": 9000, "grace": 1000, "reduction": 2},
    "pbt": {"population": 5, "generations": 3, "interval": 1000},
}


@pytest.fixture(scope="module")
def spaces():
    return {kind: load_space("pbt" if kind == "pbt" else "default", BASE) for kind in SMALL}


@pytest.fixture
def started(spaces, tmp_path):
    """Start a search, or go on with it."""
    folders = {}

    def start(kind, name="search", seed=4, interrupted=lambda: False, **changes) -> SearchRun:
        if name not in folders:
            settings = load_settings(kind, SMALL[kind] | {k.replace("_", "."): v for k, v in changes.items()})
            folders[name] = SearchFolder.create(tmp_path / name, SearchRequest(kind, seed, settings, spaces[kind]))
        return SearchRun(SearchFolder.reopen(folders[name].path), lambda outcome: None, interrupted)

    return start


def score(spec: TrialSpec) -> Score:
    """A made-up trial: the nearer the step size is to 1e-3, the better; held only with a memory."""
    off = abs(np.log10(spec.params["train.lr"]) + 3)
    held = spec.params.get("model") == "gru"
    return Score(int(1e6 * off) + 1 if held else None, -off)


def not_held(spec):
    return replace(score(spec), env_steps_to_held=None)


def begun(run: SearchRun, name: str = "t") -> TrialSpec | None:
    """The trial that Tune gets next, by Tune's name for it."""
    config = run.suggest(name)
    return config["spec"] if isinstance(config, dict) else None


def ended(run: SearchRun, name: str, got: Score | None, status: str = "finished", **more) -> None:
    """What a trial's process records, and Tune then says."""
    more = more if got else {"reason": "no luck"}
    run.folder.end(Outcome(run.running[name], status if got else "failed", got, **more))
    run.on_trial_complete(name, error=got is None)


def carried_out(run: SearchRun, at_once: int = 1, seed: int = 0, judge=score, until: int = 10**9) -> list[TrialSpec]:
    """Run made-up trials, some at a time, ended in an order of chance; returns them in the order of their start."""
    chance, specs, going = random.Random(seed), [], []
    while len(specs) < until:
        while len(going) < at_once and (spec := begun(run, f"t{len(specs)}")) is not None:
            going.append((f"t{len(specs)}", spec))
            specs.append(spec)
        if not going:
            assert run.round is None
            break
        name, spec = going.pop(chance.randrange(len(going)))
        ended(run, name, judge(spec))
    return specs


def test_trial_whose_process_ends_without_a_record_has_failed(started):
    run = started("three-stage")
    spec = begun(run)
    run.on_trial_complete("t", error=True)
    (row,) = run.folder.outcomes()
    assert (row.spec, row.status, row.reason) == (spec, "failed", "its process ended without a reason")


@pytest.mark.parametrize("kind", ["three-stage", "pbt"])
def test_draws_are_independent_of_finish_order_and_follow_seed(started, kind):
    alone = carried_out(started(kind, "alone"))
    assert carried_out(started(kind, "crowd"), at_once=3, seed=9) == alone
    assert [s.params for s in carried_out(started(kind, "other", seed=5))] != [s.params for s in alone]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("before", [1, 6])
def test_interrupted_search_equals_an_unbroken_one(started, kind, before):
    whole = carried_out(started(kind, "whole"))
    first = carried_out(started(kind, "parts"), until=before)
    killed = begun(started(kind, "parts"))  # the search, while this one played
    rest = carried_out(started(kind, "parts"))
    assert killed == rest[0]
    assert first[:before] + rest == whole
    ids = [outcome.spec for outcome in started(kind, "parts").folder.outcomes()]
    assert sorted(ids, key=lambda spec: spec.id) == sorted(whole, key=lambda spec: spec.id)


def test_stages_follow_best_trials(started):
    specs = carried_out(started("three-stage"))
    assert [spec.stage for spec in specs] == ["broad"] * 4 + ["refine"] * 3 + ["confirm"] * 6
    assert {spec.guided for spec in specs[:4]} == {False}
    assert {spec.guided for spec in specs[4:7]} == {True}
    assert len({tuple(spec.params.items()) for spec in specs[:7]}) == 7
    best = sorted(specs[:7], key=lambda spec: score(spec).number, reverse=True)[:2]
    assert {(spec.origin, tuple(spec.params.items())) for spec in specs[7:]} == {
        (spec.id, tuple(spec.params.items())) for spec in best
    }
    assert sorted({spec.seed for spec in specs[7:]}) == [5, 6, 7]
    assert {spec.seed for spec in specs[:7]} == {4}


def test_drops_candidates_that_miss_one_seed(started):
    def judge(spec):
        return Score(None, -1.0) if spec.stage == "confirm" else score(spec)

    confirming = [spec for spec in carried_out(started("three-stage"), judge=judge) if spec.stage == "confirm"]
    # Two attempts with two candidates each, and each candidate shows one seed only.
    assert len(confirming) == len({spec.origin for spec in confirming}) == 4
    assert {spec.seed for spec in confirming} == {5}


@pytest.mark.parametrize(("kind", "count"), [("three-stage", 4), ("pbt", 5), ("asha", 8)])
def test_ends_when_all_trials_fail(started, kind, count):
    assert len(carried_out(started(kind), judge=lambda spec: None)) == count


def test_rejects_records_of_another_version(started):
    run = started("three-stage")
    run.folder.begin(TrialSpec("s1-000", "broad", None, 4, until=77))
    assert "trial s1-000: expected the values that this version draws" in refusal(begun, run)


@pytest.mark.parametrize("what", ["begin", "end"])
def test_ends_when_folder_cannot_be_written(started, monkeypatch, what):
    def refused(*args):
        raise OSError(28, "No space left on device")

    run = started("three-stage")
    monkeypatch.setattr(run.folder, what, refused)
    assert not run.is_ending
    spec = begun(run)
    if spec is not None:
        run.on_trial_complete("t", error=True)  # its process could not write its end either
    assert (spec is None) == (what == "begin")
    assert run.is_ending
    assert run.write_error.errno == 28


def test_asks_trials_to_stop_and_waits(started):
    asked = []
    run = started("three-stage", interrupted=lambda: bool(asked))
    begun(run)
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
    assert winner.params == {"train.lr": 2.0}
    # Nobody held on all seeds: the best that is known, and it is said.
    none = winner_of([broad, confirming("c3", 1, Score(50, 0.1)), confirming("c3", 2, Score(None, 0.1))], seeds=2)
    assert (none.confirmed, none.score) == (False, Score(None, 0.1))
    assert winner_of([broad], seeds=2).confirmed is False
    assert winner_of([broad], seeds=0).confirmed is True
    assert winner_of([confirming("c4", 1, None)], seeds=2) is None


# --- asha


@pytest.mark.slow
def test_tpe_learns_from_outcomes(started):
    specs = carried_out(started("asha", trials=30, startup=10), judge=not_held)
    off = [-not_held(spec).margin for spec in specs]
    assert np.mean(off[15:]) < 0.6 * np.mean(off[:10])


def test_halving_compares_with_trials_of_earlier_sessions(started):
    run = started("asha")
    for margin, stops in ((0.9, False), (0.1, True), (0.95, False), (0.5, True)):
        name, record = begun(run).id, run.folder
        assert record.report_progress(name, 500, margin) is False  # every trial may play its grace
        assert record.report_progress(name, 1000, margin) is stops
        record.report_progress(name, 1000, margin)  # as a trial that goes on from before this report does: no warning
        ended(run, "t", Score(None, margin), "stopped" if stops else "finished", env_steps=1000)
        run = started("asha")
    assert [row.status for row in run.folder.outcomes()] == ["finished", "stopped", "finished", "stopped"]


# --- pbt


def test_worst_members_copy_one_of_best_with_other_values(started):
    specs = carried_out(started("pbt"), judge=not_held)
    assert [spec.until for spec in specs] == [1000] * 5 + [2000] * 5 + [3000] * 5
    for generation in (1, 2):
        before = {s.id: s for s in specs if s.id.startswith(f"g{generation - 1:02d}")}
        order = sorted(before.values(), key=lambda spec: not_held(spec).number, reverse=True)
        best, worst = {s.id for s in order[:2]}, {s.id for s in order[-2:]}
        for spec in (s for s in specs if s.id.startswith(f"g{generation:02d}")):
            own = f"g{generation - 1:02d}{spec.id[3:]}"
            assert spec.warm_start
            if own in worst:
                assert spec.origin in best
                assert spec.params != before[spec.origin].params
            else:
                assert (spec.origin, spec.params) == (own, before[own].params)


def test_population_replaces_failed_members(started):
    specs = carried_out(started("pbt"), judge=lambda spec: None if spec.id == "g00-m01" else not_held(spec))
    assert next(s for s in specs if s.id == "g01-m01").origin != "g00-m01"


def test_perturbed_numbers_move_and_stay_inside(spaces):
    rng, space = np.random.default_rng(0), spaces["pbt"]
    numbers = [v for v in space.variables if v.name != "epochs"]
    for edge in (0.0, 0.5, 1.0):
        params = {v.key: v.at(edge) for v in space.variables}
        for _ in range(100):
            moved = perturb(space, params, load_settings("pbt", {"resample": 0}), rng)
            shares = [v.share(moved[v.key]) for v in numbers]
            assert all(-1e-9 <= c <= 1 + 1e-9 and 0.07 < abs(c - edge) <= 0.15 + 1e-9 for c in shares)
            assert 2 <= moved["train.epochs"] <= 8
            assert moved["train.epochs"] != params["train.epochs"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["search.space=default", *BASE],
            "space=default: expected what can change during a run .*, got train.entropy_",
        ),
        (["scenario=1v1-selfplay"], "^search: expected another one than pbt with a league, .* got pbt$"),
    ],
)
def test_pbt_rejects_what_cannot_change_during_a_run(given, message):
    assert re.search(message, refusal(SearchRequest.parse, ["search=pbt", *given]))


# --- what makes a trial better: one order, and a number that keeps it


def test_orders_scores_by_gates_then_steps_then_margin():
    order = [
        Score(None, -math.inf),
        Score(None, -24.0),
        Score(None, -0.01),
        Score(None, 0.5),  # met at the end, but not for long enough
        Score(900_000, 0.4),
        Score(400_000, 0.1),
        Score(400_000, 0.2),
    ]
    mixed = random.Random(3).sample(order, len(order))
    assert mixed != order
    assert sorted(mixed, key=lambda score: score.number) == order
    # What held comes before all that did not, whose numbers end at 1; infinite margins are numbers, too.
    assert max(score.number for score in (*order[:4], Score(None, math.inf))) <= 1 < order[4].number < 2


def keeper(reports):
    gates = [Gate("length", "<=", 40.0, window=100), Gate("return", ">=", 2.0, window=100), Gate("zero", ">=", 0.0)]
    result = GateKeeper(gates)
    for steps, length, gained in reports:
        result.report(Moment(steps, 1, 1.0), 100, {"length": length, "return": gained, "zero": 0.25})
    return result


def test_margin_is_smallest_in_units_of_its_bound():
    # Over the window: lengths 30 and 34, returns 2.2 and 2.6; 8 of 40 inside, 0.4 of 2, and 0.25 where the bound is 0.
    verdict = keeper([(50, 30.0, 2.2), (100, 34.0, 2.6)]).verdict()
    assert score_of(verdict) == Score(None, pytest.approx(min(8 / 40, 0.4 / 2, 0.25)))


def test_margin_of_missed_gate_is_negative():
    assert score_of(keeper([(50, 100.0, 2.2)]).verdict()).margin == pytest.approx(-60 / 40)


def test_ranks_run_without_reports_last():
    assert score_of(keeper([]).verdict()) == Score(None, -math.inf)
    assert score_of(keeper([]).verdict()).number < score_of(keeper([(50, 1e6, -1e3)]).verdict()).number


def test_scores_by_first_step_with_all_gates_held():
    reports = [(steps, 30.0, 2.5) for steps in range(10, 200, 10)]
    held = keeper(reports)
    held.states.pop()  # its window is longer than this
    held.first_held = Moment(110, 11, 2.0)
    assert score_of(held.verdict()).env_steps_to_held == 110
