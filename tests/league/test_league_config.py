"""What a league may be told, and which gates it has."""

import pytest

from composing import refused_gate, unsaid, with_gate

#: Overrides, then words of the message, or patterns of it.
REFUSED = [
    ("scenario=1v1 scenario.seats.blue_0=league", "league: expected settings, as a seat is set to league, got"),
    ("scenario=1v1-league scenario.seats.blue_0=random", "league: expected null without a seat set to league"),
    ("scenario=2v2-league scenario.seats.blue_1=random", "seats.blue_1: expected league on all seats of one team"),
    ("scenario=2v2-league experiment=none scenario.seats.red_1=random", "seats.red_1: expected league on all seats"),
    ("scenario=2v2-league scenario.seats.red_1=league", "expected league on all seats of one team"),
    ("scenario=1v1 scenario.seats.blue_0=league:1,random:2", "seats.blue_0: expected players with weights above 0"),
    ("scenario=1v1-league scenario.league.every=null scenario.league.win=null", "every: expected a number of"),
    ("scenario=1v1-league scenario.league.latest_share=0.9", "latest_share: expected at most 0.7, got 0.9"),
    ("scenario=1v1-league scenario.league.anchors=league", "anchors: expected at least one player"),
    ("scenario=1v1-league scenario.league.weighting=best", "league.weighting: expected one of squared, variance"),
    ("scenario=1v1-league scenario.league.most=0", "league.most: "),
    ("scenario=1v1-league scenario.league.size=3", "league.size: expected one of the keys anchors"),
    ("scenario=1v1-robust scenario.held_out=[idle,key-runner]", "held_out: expected players that it does not meet"),
    (
        "scenario=1v1-robust scenario.held_out={test:[hunter]}",
        "held_out: expected players of one list alone, named once, got hunter",
    ),
    ("scenario=1v1-robust scenario.held_out={others:[idle]}", "expected 'validate' or 'test'"),
    ("scenario=1v1-robust scenario.seats.blue_0=learn curriculum=[]", "held_out: expected {} without opponents"),
    ("scenario=1v1-league curriculum=[{scenario:1v1,steps:5}]", "curriculum: expected [] with a league"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_rejects_override_in_one_line(row):
    assert unsaid(*row) == []


def test_gate_on_league_needs_one():
    refused_gate("scenario=1v1", "league/min_win", "there is no league")
    assert with_gate("scenario=1v1-league", "league/min_win") == ["league/min_win"]
