"""Gates: when a bound is met, reached and held, on hand-made report series; the gates of a run."""

import json
import math
import sys

import pytest

from composing import gates, refused_gate, with_gate
from multigrid_rl.config.compose import compose
from multigrid_rl.gates import MIN_EPISODES, Gate, GateKeeper, Moment, value_text
from multigrid_rl.rllib.results import gate_results
from multigrid_rl.runs.reports import _gate_columns
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import stages_of

NAN = math.nan
GOOD, BAD = 10.0, 30.0  # for the bound <= 20
LENGTH, ENTROPY = "episode_len_mean", "entropy/red_0"


def moment(steps: int) -> Moment:
    """One update for each 10 steps, 1000 steps a second."""
    return Moment(env_steps=steps, policy_updates=steps // 10, seconds=steps / 1000)


def short(**changes) -> Gate:
    return Gate(**{"metric": LENGTH, "comparison": "<=", "bound": 20.0, "window": 100, **changes})


def feed(keeper: GateKeeper, values: dict[int, float], metric: str = LENGTH) -> list[bool]:
    """Report values by environment steps; whether everything was held after each."""
    held = []
    for steps, value in values.items():
        assert keeper.report(moment(steps), MIN_EPISODES, {metric: value})
        held.append(keeper.held)
    return held


# --- one value against its bound


@pytest.mark.parametrize(
    ("comparison", "value", "met"),
    [
        *(("<=", 19.9, True), ("<=", 20.0, True), ("<=", 20.1, False), ("<=", NAN, False)),
        *((">=", 19.9, False), (">=", 20.0, True), (">=", NAN, False)),
    ],
)
def test_bound_meets_gate_and_nan_never_does(comparison, value, met):
    assert short(comparison=comparison).is_met(value) is met


@pytest.mark.parametrize(
    ("value", "bound", "shown"),
    [
        (1.299986, 1.3, "1.29999"),
        (0.3000001, 0.3, "0.3000001"),
        (1.3, 1.3, "1.300"),
        (0.25, 1.3, "0.250"),
        (1e-20, 0, "0.00000000000"),
    ],
)
def test_shown_value_lies_on_its_side_of_the_bound(value, bound, shown):
    assert value_text(value, bound) == shown


def test_margin_is_positive_on_met_side():
    assert short().margin(15.0) == 0.25
    assert short(comparison=">=").margin(15.0) == -0.25
    assert short(bound=0.0).margin(15.0) == -15.0


# --- hold: whether all was held after each report

MEAN, SHARE = {"hold": "mean"}, {"hold": "share"}
THREE_OF_FOUR = {0: BAD, 25: GOOD, 50: BAD, 75: GOOD, 100: GOOD}
LATE_MISS = {**dict.fromkeys(range(0, 200, 5), GOOD), 200: BAD}
HELD = {
    "every: when the streak covers the window": ({}, {50: GOOD, 100: GOOD, 149: GOOD, 150: GOOD}, [0, 0, 0, 1]),
    "every: from the first met report, not from step 0": ({}, {100: GOOD}, [0]),
    "every: a miss resets the streak": ({}, {50: GOOD, 100: BAD, 149: GOOD, 248: GOOD, 249: GOOD}, [0] * 4 + [1]),
    "every: NaN is a miss": ({}, {0: GOOD, 50: NAN, 100: GOOD, 150: GOOD, 200: GOOD}, [0] * 4 + [1]),
    "every: one late miss": ({}, LATE_MISS, [0]),
    # Window (0, 100]: mean(30, 10) = 20 meets the bound, 30.1 instead of 30 does not.
    "mean: a miss is made up for": (MEAN, {0: GOOD, 50: 30.0, 100: 10.0}, [0, 0, 1]),
    "mean: not quite": (MEAN, {0: GOOD, 50: 30.1, 100: 10.0}, [0, 0, 0]),
    # At 100 the report at 0 is out: mean(25, 25). At 99 it would be in, but the run is not a window old then.
    "mean: a report that is a whole window old is out": (MEAN, {0: -1000.0, 50: 25.0, 100: 25.0}, [0, 0, 0]),
    "mean: and one step younger is in": (MEAN, {0: BAD, 1: -1e3, 50: 25.0, 100: 25.0, 101: 25.0}, [0, 0, 0, 1, 0]),
    "mean: waits for a whole window": (MEAN, {1: GOOD, 50: GOOD, 100: GOOD, 101: GOOD}, [0, 0, 0, 1]),
    "mean: NaN until it has left": (MEAN, {0: GOOD, 50: NAN, 100: GOOD, 149: GOOD, 150: GOOD}, [0] * 4 + [1]),
    "share: exactly": ({**SHARE, "share": 0.75}, THREE_OF_FOUR, [1]),
    "share: not quite": ({**SHARE, "share": 0.76}, THREE_OF_FOUR, [0]),
    "share: waits for a whole window": (SHARE, {1: GOOD, 100: GOOD, 101: GOOD}, [0, 0, 1]),
    "share: NaN is a miss": ({**SHARE, "share": 0.5}, {0: GOOD, 50: NAN, 100: GOOD}, [1]),
    "share: NaN is one too many": ({**SHARE, "share": 0.51}, {0: GOOD, 50: NAN, 100: GOOD}, [0]),
    "share: one late miss": ({**SHARE, "share": 0.95}, LATE_MISS, [1]),
}


@pytest.mark.parametrize(("changes", "values", "held"), HELD.values(), ids=HELD)
def test_gate_is_held(changes, values, held):
    assert feed(GateKeeper([short(**changes)]), values)[-len(held) :] == held


def test_miss_after_holding_is_remembered_in_verdict():
    keeper = GateKeeper([short()])
    assert feed(keeper, {0: GOOD, 100: GOOD, 200: BAD}) == [False, True, False]
    verdict = keeper.verdict()
    assert (verdict["held"], verdict["held_at_end"]) == (True, False)
    assert verdict["env_steps_to_held"] == 100


# --- what a report is


@pytest.mark.parametrize(("episodes", "taken"), [(0, False), (99, False), (100, True)])
def test_ignores_report_over_fewer_than_100_episodes(episodes, taken):
    keeper = GateKeeper([short()])
    assert keeper.report(moment(10), episodes, {LENGTH: GOOD}) is taken
    assert (keeper.last is not None) is taken
    assert (keeper.verdict()["env_steps_to_reached"] is not None) is taken


def test_ignored_report_keeps_streak():
    keeper = GateKeeper([short()])
    feed(keeper, {100: GOOD})
    keeper.report(moment(150), 99, {LENGTH: BAD})
    assert feed(keeper, {200: GOOD}) == [True]
    late = GateKeeper([short()])
    late.report(moment(0), 99, {LENGTH: GOOD})
    assert feed(late, {100: GOOD, 199: GOOD, 200: GOOD}) == [False, False, True]


@pytest.mark.parametrize("steps", [99, 100])
def test_environment_steps_must_grow(steps):
    keeper = GateKeeper([short()])
    feed(keeper, {100: GOOD})
    with pytest.raises(ValueError, match=rf"^env_steps: expected more than .* 100, got {steps}$"):
        keeper.report(moment(steps), MIN_EPISODES, {LENGTH: GOOD})


def test_rejected_report_leaves_no_trace():
    keeper = GateKeeper([short(), Gate(ENTROPY, "<=", 0.3)])
    before = json.dumps(keeper.verdict())
    with pytest.raises(KeyError, match=ENTROPY):
        keeper.report(moment(10), MIN_EPISODES, {LENGTH: GOOD})
    assert keeper.last is None
    assert json.dumps(keeper.verdict()) == before


# --- the verdict


def test_verdict_counts_steps_updates_and_seconds():
    keeper = GateKeeper([short()])
    feed(keeper, {1000: BAD, 1500: GOOD, 1550: BAD, 1600: GOOD, 1700: GOOD, 1800: GOOD})
    verdict = keeper.verdict()
    keys = ("env_steps_to_{}", "policy_updates_to_{}", "seconds_to_{}")
    assert [verdict[key.format("reached")] for key in keys] == [1500, 150, 1.5]
    assert [verdict[key.format("held")] for key in keys] == [1700, 170, 1.7]
    (gate,) = verdict["gates"]
    assert gate["first_reached"] == {"env_steps": 1500, "policy_updates": 150, "seconds": 1.5}
    assert gate["first_held"] == {"env_steps": 1700, "policy_updates": 170, "seconds": 1.7}


def test_unmet_gate_has_no_moments():
    keeper = GateKeeper([short()])
    feed(keeper, {0: BAD, 100: BAD, 200: NAN})
    verdict = json.loads(json.dumps(keeper.verdict(), allow_nan=False))
    nothing = ("env_steps_to_reached", "env_steps_to_held", "seconds_to_reached", "seconds_to_held")
    assert [verdict[key] for key in nothing] == [None] * 4
    assert verdict["gates"][0]["first_reached"] is None
    assert (verdict["gates"][0]["met"], verdict["gates"][0]["window_mean"]) == (False, None)


def test_gates_hold_together_only_while_all_hold():
    keeper = GateKeeper([short(), Gate(ENTROPY, "<=", 0.3, window=100)])
    held = []
    series = [(0, GOOD, 0.9), (100, GOOD, 0.2), (150, BAD, 0.2), (200, GOOD, 0.2), (300, GOOD, 0.1)]
    for steps, length, entropy in series:
        keeper.report(moment(steps), MIN_EPISODES, {LENGTH: length, ENTROPY: entropy})
        held.append(([state.held for state in keeper.states], keeper.held))
    # Each was held before 300, but never both at one report.
    assert [row for row, _ in held[:4]] == [[False, False], [True, False], [False, False], [False, True]]
    assert [joint for _, joint in held] == [False, False, False, False, True]
    verdict = keeper.verdict()
    assert verdict["env_steps_to_reached"] == 100
    assert verdict["env_steps_to_held"] == 300
    assert [gate["first_held"]["env_steps"] for gate in verdict["gates"]] == [100, 200]


def test_nothing_is_held_without_gates():
    keeper = GateKeeper([])
    assert keeper.report(moment(10**6), MIN_EPISODES, {})
    assert keeper.held is False
    verdict = keeper.verdict()
    assert (verdict["held"], verdict["held_at_end"], verdict["gates"]) == (False, False, [])
    assert verdict["env_steps_to_reached"] is None


# --- gates of a run: of its scenario, for the seats, teams and networks that it has


def names_of(*overrides: str) -> list[str]:
    return [gate.metric for gate in gates(*overrides)]


@pytest.mark.parametrize(
    ("scenario", "bounds"),
    [
        ("1v1", (20, 1.3, 0.4, 0.3)),
        ("coop", (40, 1.3, 0.9, 0.4)),
        ("single-obstacle", (40, 2.0, 0.6, 0.3)),
    ],
)
def test_gates_equal_course_gates(scenario, bounds):
    found = gates(f"scenario={scenario}")
    order = ["episode_len_mean", "return_mean", "explained_variance", "entropy"]
    triples = {(order.index(gate.metric.split("/")[0]), gate.comparison, gate.bound) for gate in found}
    assert sorted(triples) == list(zip(range(4), ("<=", ">=", ">=", "<="), bounds, strict=True))
    assert {(gate.hold, gate.window) for gate in found} == {("every", 100_000)}


FOUR = [f"scenario.seats.{seat}" for seat in ("blue_0", "blue_1", "red_0", "red_1")]
BLUE = [f"{seat}={player}" for seat, player in zip(FOUR, ("learn", "learn", "random", "random"), strict=True)]
KINDS = ("return_mean", "explained_variance", "entropy")
REDS, RED = ("red_0", "red_1"), ("explained_variance/red", "entropy/red")
#: Ways to have one network for a team.
ONE = ("shared=true", "scheme=ctce")


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ("scenario=coop", [f"{kind}/{seat}" for kind in KINDS for seat in REDS]),
        ("scenario=coop experiment=none scenario.seats.red_0=random", [f"{kind}/red_1" for kind in KINDS]),
        *((f"scenario=coop experiment=none {how}", ["return_mean/red_0", "return_mean/red_1", *RED]) for how in ONE),
        ("scenario=2v2", ["team_return_mean/red", *RED]),
        (
            "scenario=2v2 scheme=dtde",
            ["team_return_mean/red", *(f"{kind}/{seat}" for kind in KINDS[1:] for seat in REDS)],
        ),
        (" ".join(["scenario=2v2", *BLUE]), ["team_return_mean/blue", "explained_variance/blue", "entropy/blue"]),
    ],
)
def test_star_expands_to_seats_teams_or_networks(overrides, names):
    assert names_of(*overrides.split()) == ["episode_len_mean", *names]


@pytest.mark.parametrize(
    "metric", ["foo/red_0", "foo", "entropy/red_0", "return_mean/blue_0", "team_return_mean/red_0"]
)
def test_rejects_gates_on_unreported_metrics(metric):
    with pytest.raises(ConfigError) as caught:
        names_of("scenario=2v2", f"scenario.gates=[{{metric:{metric},at_least:1}}]")
    text = str(caught.value)
    assert text.startswith("scenario.gates: metric: expected ")
    assert f", got {metric}" in text
    assert "seats red_0, red_1, teams blue, red, networks red" in text


@pytest.mark.parametrize(
    ("overrides", "metric", "why"),
    [
        ("scenario=cartpole", "win/*", "cartpole has no winner"),
        ("scenario=cartpole", "behaviour/*/key_pickup", "no such event"),
        ("scenario=1v1", "timing/learn_s", "after the gates"),
        ("scenario=1v1", "env_steps_per_s", "after the gates"),
        ("scenario=1v1", "gates/held", "after the gates"),
        ("scenario=1v1", "own/<function>", None),
        ("scenario=1v1", "win_against/red_0/<player>", None),
    ],
)
def test_gate_on_what_a_run_never_reports_is_refused(overrides, metric, why):
    refused_gate(overrides, metric, why)


def test_gate_on_what_other_runs_report_is_taken():
    assert with_gate("scenario=1v1", "behaviour/*/key_pickup") == ["behaviour/red_0/key_pickup"]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_bounds_on_one_metric_the_columns_are_of_the_one_that_is_not_met(order):
    keeper = GateKeeper([short(bound=1000.0), short()][::order])
    feed(keeper, {100: 15.0, 200: 15.0, 300: 25.0})
    row, result = _gate_columns(keeper), gate_results(keeper)
    assert (row[f"gates/{LENGTH}/met"], row[f"gates/{LENGTH}/held_steps"], row["gates/held"]) == (0.0, 0.0, 0.0)
    assert result[LENGTH] == {"value": 25.0, "bound": 20.0, "met": False, "held": False}
    feed(keeper, {400: 15.0, 450: 15.0})
    assert _gate_columns(keeper)[f"gates/{LENGTH}/held_steps"] == 50.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("episodes.length", r"expected one number, got array\(\[ +1, "),
        ("None", "expected one number, got None"),
        ("'x'", "expected one number, got 'x'"),
        ("episodes.lengths", "AttributeError: .*lengths"),
    ],
)
def test_gate_function_that_cannot_be_used_is_refused_before_a_run(tmp_path, monkeypatch, body, message):
    (tmp_path / "plugged_trial.py").write_text(f"def mine(episodes): return {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugged_trial", raising=False)
    config = compose(["scenario=single", "scenario.gates=[{metric:plugged_trial:mine,at_most:40}]"])
    with pytest.raises(ConfigError, match=f"^scenario.gates: metric own/plugged_trial:mine: {message}"):
        stages_of(config)
