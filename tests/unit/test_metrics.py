"""The arithmetic behind the metrics, against hand-computed and published numbers."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from multigrid_rl.cli.output import spread
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.seed_statistics import interval_of, mean_interval, wilson_interval
from multigrid_rl.metrics import explained_variance, glossary, matches, outcome_shares
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.world.constants import BLUE, EVENTS, RED
from multigrid_rl.world.events import BEHAVIOUR


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- explained variance


@pytest.mark.parametrize(
    ("targets", "values", "expected"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), 1.0),  # perfect
        ((1, 2, 3, 4), (7, 7, 7, 7), 0.0),  # a constant explains nothing, however wrong it is
        ((1, 2, 3, 4), (11, 12, 13, 14), 1.0),  # a constant offset costs nothing
        ((0, 2), (2, 0), -3.0),  # Var(t) = 1, errors -2 and 2: 1 - 4 / 1
        ((0, 0, 4, 4), (1, 1, 3, 3), 0.75),  # Var(t) = 4, errors -1, -1, 1, 1: 1 - 1 / 4
    ],
)
def test_explained_variance_by_hand(targets, values, expected):
    assert explained_variance(floats(*targets), floats(*values)) == pytest.approx(expected)


@pytest.mark.parametrize("values", [(0.1, 0.1, 0.1), (1.0, 2.0, 3.0)])
def test_explained_variance_of_constant_targets_is_nan(values):
    assert math.isnan(explained_variance(floats(0.1, 0.1, 0.1), floats(*values)))


def test_inexact_float32_constant_has_no_variance():
    targets = np.full(99_999, 0.1, np.float32)
    assert math.isnan(explained_variance(targets, np.zeros_like(targets)))


def test_explained_variance_keeps_small_error_of_large_targets():
    targets = np.arange(1000, dtype=np.float32)
    errors = np.tile(floats(-0.5, 0.5), 500)
    assert explained_variance(targets, targets + errors) == pytest.approx(1 - 0.25 / targets.var(dtype=np.float64))


# --- outcomes


def test_outcome_shares_follow_win_flag():
    winner = np.array([RED, RED, RED, BLUE, -1, -1, -1, -1], np.int8)
    assert outcome_shares(winner, RED) == pytest.approx((3 / 8, 4 / 8, 1 / 8))
    assert outcome_shares(winner, BLUE) == pytest.approx((1 / 8, 4 / 8, 3 / 8))
    for flag, expected in ((RED, (1, 0, 0)), (-1, (0, 1, 0)), (BLUE, (0, 0, 1))):
        assert outcome_shares(np.array([flag], np.int8), RED) == expected


# --- Wilson interval (values of the closed form as published, for example by statsmodels' method="wilson")


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_interval_matches_known_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_needs_trial():
    with pytest.raises(ValueError, match=r"^trials: .*got 0$"):
        wilson_interval(0, 0)


# --- names


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("env_steps", "env_steps"),
        ("return_mean/red_0", "return_mean/<seat>"),
        ("behaviour/blue_1/door_open", "behaviour/<seat>/door_open"),
        ("learner/red_0/lr", "learner/<module>/lr"),
        ("gates/entropy/red_0 <= 0.3/met", "gates/<gate>/met"),
        ("gates/episode_len_mean <= 20/held_steps", "gates/<gate>/held_steps"),
        ("gates/held", "gates/held"),
    ],
)
def test_name_matches_only_its_pattern(name, pattern):
    assert [known for known in glossary() if matches(name, known)] == [pattern]


@pytest.mark.parametrize(
    "name",
    [
        "env_step",
        "return_mean/",
        "return_mean/red_0/x",
        "behaviour/red_0/dance",
        "gates//met",
        "gates/met",
        "learner//lr",
    ],
)
def test_unknown_name_matches_nothing(name):
    assert [known for known in glossary() if matches(name, known)] == []


def test_every_metric_has_meaning_and_unit():
    assert [name for name, (meaning, unit) in glossary().items() if len(meaning) < 5 or not unit] == []


def test_behaviour_metrics_average_existing_documented_events():
    assert set(BEHAVIOUR) <= set(EVENTS)
    documented = {name.split("/")[2] for name in glossary() if name.startswith("behaviour/")}
    assert documented == set(BEHAVIOUR)


@pytest.mark.filterwarnings("ignore")  # tensorboard warns about its own future
def test_dashboards_group_gate_metrics(tmp_path):
    folder = RunFolder(tmp_path / "run", compose([]), {})
    folder.record({"env_steps": 8, "entropy/red_0": 0.5, "gates/entropy/red_0/met": 1.0, "gates/held": 0.0})
    folder.close()
    (events,) = (tmp_path / "run" / "tensorboard").glob("events*")
    board = EventAccumulator(str(events)).Reload()
    wanted = {"run/env_steps", "entropy/red_0", "gates/entropy/red_0", "gates/entropy/red_0/met", "gates/held"}
    assert set(board.Tags()["scalars"]) == wanted
    assert board.Scalars("gates/entropy/red_0")[0].value == 0.5


def test_only_learner_metrics_are_called_loss():
    losses = [name for name, (_, unit) in glossary().items() if "loss" in name.split("/")[0] or unit == "loss"]
    assert all(name.startswith("learner/") for name in losses)


# --- interval of a mean


@pytest.mark.parametrize("count", [2, 3, 5, 10, 50])
def test_interval_of_a_mean_holds_it_in_95_of_100_cases_for_few_values(count):
    draws = np.random.default_rng(count).normal(size=(4000, count))
    held = [low <= 0 <= high for _, low, high in map(mean_interval, draws)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_single_value_has_no_interval_and_no_value_no_mean():
    assert np.isnan([interval_of(np.zeros(0, kind)) for kind in (np.bool_, np.float64)]).all()
    mean, low, high = mean_interval(np.array([3.0]))
    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)
    assert spread(low, high, ".1f") == "-"
    assert spread(1, 2, ".1f") == "1.0 to 2.0"
