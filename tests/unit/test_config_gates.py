"""The gates of a run are those of its scenario, for the seats, teams and networks that it has."""

import pytest

from composing import gates, refused_gate, with_gate
from multigrid_rl.text import ConfigError


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
