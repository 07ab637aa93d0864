"""What makes a trial better: one order, and a number that keeps it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multigrid_rl.gates import Gate, GateKeeper, Moment
from multigrid_rl.search.objective import Score, margin_of, score_of, worst

scores = st.builds(
    Score,
    st.none() | st.integers(min_value=1, max_value=10**9),
    st.floats(allow_nan=False, min_value=-1e6, max_value=1e6) | st.just(-math.inf) | st.just(math.inf),
)


def test_held_comes_first_then_steps_then_margin():
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
    assert sorted(mixed) == order
    assert sorted(mixed, key=lambda score: score.number) == order
    assert worst(order[2:5]) == order[2]


@given(scores, scores)
def test_the_order_is_total(a, b):
    assert (a < b) + (b < a) + (a == b) == 1


@given(scores, scores, scores)
def test_the_order_is_transitive(a, b, c):
    low, middle, high = sorted([a, b, c])
    assert low <= middle <= high
    assert low <= high


@given(scores, scores)
def test_the_number_keeps_the_order(a, b):
    if a < b:
        assert a.number <= b.number
        far = (
            abs(a.margin / (1 + abs(a.margin)) - b.margin / (1 + abs(b.margin))) > 1e-4
            if a.margin != b.margin
            else False
        )
        if a.env_steps_to_held != b.env_steps_to_held or (far and math.isfinite(a.margin + b.margin)):
            assert a.number < b.number
    assert -1 <= a.number < 2
    assert (a.number > 1) == a.held or a.margin == math.inf


def keeper(reports):
    gates = [Gate("length", "<=", 40.0, window=100), Gate("return", ">=", 2.0, window=100), Gate("zero", ">=", 0.0)]
    result = GateKeeper(gates)
    for steps, length, gained in reports:
        result.report(Moment(steps, 1, 1.0), 100, {"length": length, "return": gained, "zero": 0.25})
    return result


def test_the_margin_is_the_smallest_in_units_of_its_bound():
    # Over the window: lengths 30 and 34, returns 2.2 and 2.6; 8 of 40 inside, 0.4 of 2, and 0.25 where the bound is 0.
    verdict = keeper([(50, 30.0, 2.2), (100, 34.0, 2.6)]).verdict()
    assert margin_of(verdict["gates"]) == pytest.approx(min(8 / 40, 0.4 / 2, 0.25))
    assert score_of(verdict) == Score(None, margin_of(verdict["gates"]))


def test_a_gate_that_is_missed_makes_the_margin_negative():
    assert score_of(keeper([(50, 100.0, 2.2)]).verdict()).margin == pytest.approx(-60 / 40)


def test_a_run_without_reports_is_worse_than_any_with():
    assert score_of(keeper([]).verdict()) == Score(None, -math.inf)
    assert score_of(keeper([]).verdict()) < score_of(keeper([(50, 1e6, -1e3)]).verdict())


def test_a_run_is_scored_by_when_all_gates_were_held_first():
    reports = [(steps, 30.0, 2.5) for steps in range(10, 200, 10)]
    held = keeper(reports)
    held.states.pop()  # its window is longer than this
    held.first_held = Moment(110, 11, 2.0)
    assert score_of(held.verdict()).env_steps_to_held == 110
