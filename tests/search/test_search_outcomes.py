"""What makes a trial better: one order, and a number that keeps it."""

import math
import random

import pytest

from multigrid_rl.gates import Gate, GateKeeper, Moment
from multigrid_rl.search.plans import Score, score_of


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
