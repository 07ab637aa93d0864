"""Agents on seats that their own user gives them: in training, evaluation, mixtures, teams, grading."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents import SPEC, agent_of, recorder_of
from composing import refusal
from multigrid_rl.competition import grading
from multigrid_rl.competition.copies import Originals
from multigrid_rl.competition.folders import folder_sha256
from multigrid_rl.competition.rubric import Check, Rubric, opponents
from multigrid_rl.competition.sandbox import bwrap_available
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import read_scenario
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.evaluation.targets import player_target
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import SAFE
from multigrid_rl.types import RunError


@pytest.fixture
def recorder(tmp_path, trusted):
    """An agent's folder, and what it was told so far."""
    agent, messages = recorder_of(tmp_path / "recorder")
    return str(agent.folder), messages


def _seated(spec, **names):
    catalogue = Catalogue(data_root() / "checkpoints")
    return {
        seat: tuple(catalogue.seat(name, spec, seat)._replace(weight=1.0) for name in rows)
        for seat, rows in names.items()
    }


def test_games_restart_under_their_numbers(recorder):
    folder, read_messages = recorder
    match = match_of(SPEC, seat_players(SPEC, _seated(SPEC, red_0=[folder], blue_0=["idle"])), 2)
    for _ in range(SPEC.max_steps + 5):
        match.step({})
        assert match.env.actions[:, 1].tolist() == [0, 1]
    messages = read_messages()
    assert [message["type"] for message in messages].count("hello") == 1
    assert messages[0]["games"] == 2
    last = max(k for k, message in enumerate(messages) if message["type"] == "end")
    assert [game["game"] for game in messages[last + 1]["games"]] == [0, 1]


def test_finished_games_are_not_asked_about_again(recorder):
    folder, messages = recorder
    spec = replace(SPEC, max_steps=3)
    players = seat_players(spec, _seated(spec, red_0=[folder], blue_0=["idle"]), once=True)
    match = match_of(spec, players, 2, auto_reset=False)
    for _ in range(5):
        match.step({})
    players["red_0"].close()
    assert [message["type"] for message in messages()] == ["hello", "act", "act", "act", "end", "bye", "rest"]


def test_plays_only_its_own_games_in_mixture(recorder):
    folder, messages = recorder
    spec = replace(SPEC, max_steps=4)
    match = match_of(spec, seat_players(spec, _seated(spec, red_0=[folder, "idle"], blue_0=["idle"])), 12, seed=3)
    for _ in range(10):
        # It sits on the second column; `idle` does nothing, which is action 6.
        its = match._seated[0].memory.chosen == 0
        match.step({})
        assert match.env.actions[its, 1].tolist() == [k % 7 for k in np.flatnonzero(its)]
    known = set()
    for message in messages()[1:]:
        if message["type"] == "act":
            known |= {game["game"] for game in message["games"]}
        else:  # the end of a game that somebody else played is none of its business
            assert set(message["games"]) <= known
            known -= set(message["games"])


def test_plays_whole_team_or_one_seat_beside_others(recorder):
    folder, messages = recorder
    spec = replace(load_scenario("2v2").spec, max_steps=3)
    together = seat_players(spec, _seated(spec, red_0=[folder], red_1=[folder], blue_0=["idle"], blue_1=["idle"]))
    assert set(together) == {"red", "blue_0", "blue_1"}
    match_of(spec, together, 1).step({})
    assert messages()[0]["seats"] == ["red_0", "red_1"]
    apart = seat_players(spec, _seated(spec, red_0=["idle"], red_1=[folder], blue_0=["idle"], blue_1=["idle"]))
    match_of(spec, apart, 1).step({})
    assert messages()[-2]["seats"] == ["red_1"]


def test_fault_ends_run_with_one_line(tmp_path, trusted):
    agent_of(tmp_path / "liar", "def act(message): say('9')")
    match = match_of(SPEC, seat_players(SPEC, _seated(SPEC, red_0=[str(tmp_path / "liar")], blue_0=["idle"])), 2)
    with pytest.raises(RunError, match=r"player .*liar: step 0: answer: expected a JSON object, got 9"):
        match.step({})


def test_agent_files_are_sent_to_processes_without_folder(recorder):
    folder, messages = recorder
    catalogue = Catalogue(data_root() / "checkpoints").packed([folder, "idle"])
    sha256 = folder_sha256(Path(folder))
    shutil.rmtree(folder)
    row = catalogue.seat(folder, SPEC, "red_0")
    assert row.sha256 == sha256
    match_of(SPEC, seat_players(SPEC, {"red_0": (row,), **_seated(SPEC, blue_0=["idle"])}), 1).step({})
    assert messages()[0]["scenario"] == "own"


def test_file_seats_no_program_where_code_is_refused(recorder, tmp_path, monkeypatch):
    scenario = tmp_path / "duel.yaml"
    scenario.write_text(f"seats: {{red_0: learn, blue_0: {{idle: 1, {recorder[0]}: 2}}}}\n")
    assert read_scenario(str(scenario))
    monkeypatch.setenv(SAFE, "1")
    assert "nor imports code" in refusal(read_scenario, str(scenario))


def test_agent_is_evaluated_under_own_name(recorder):
    target = player_target(recorder[0], compose(["scenario=1v1"]))
    assert target.name == "recorder"
    assert target.lineup("red", greedy=True).names["red_0"] == recorder[0]


def _rubric(**exam):
    checks = [{"metric": "win/*", "at_least": 0.0, "points": 1}]
    return Rubric(scenario="1v1", pass_points=1, exams=[{"name": "one", "episodes": 100, "checks": checks, **exam}])


@pytest.mark.slow
@pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not available")
def test_grades_agent_only_in_sandbox(tmp_path, monkeypatch):
    folder = tmp_path / "forward"
    agent_of(folder)
    originals = Originals(load_scenario("1v1").spec, Catalogue(tmp_path / "nobody"))
    monkeypatch.setattr(grading, "bwrap_available", lambda: False)
    assert "bubblewrap" in refusal(grading.Examiner(_rubric(opponent="idle"), tmp_path, originals).grade, folder)
    monkeypatch.undo()
    result = grading.Examiner(_rubric(opponent="idle"), tmp_path, originals).grade(folder)
    assert (result["passed"], result["sha256"]) == (True, folder_sha256(folder))
    entropy = [{"metric": "entropy/*", "at_most": 1, "points": 1}]
    with pytest.raises(PlayerError, match="entropy"):
        grading.Examiner(_rubric(opponent="idle", checks=entropy), tmp_path, originals).grade(folder)


@pytest.mark.parametrize(("bound", "shown"), [({"at_least": 0.5}, 0.4), ({"at_most": 0.5}, 0.9)], ids=str)
def test_worst_of_several_seats_decides(bound, shown):
    check = Check(metric="win/*", points=3, **bound)
    found = check.row_of([Interval(0.4, 0.3, 0.45), Interval(0.9, 0.85, 1.0)])
    assert (found["value"], found["met"], found["points"]) == (shown, False, 0)
    assert found["interval"][0] < shown < found["interval"][1]


def test_rubric_runs_code_only_if_allowed(tmp_path, monkeypatch):
    agent_of(tmp_path / "forward")
    spec = load_scenario("1v1").spec
    assert list(opponents("forward", "blue", spec, tmp_path)) == ["blue_0"]
    monkeypatch.setenv(SAFE, "1")
    with pytest.raises(ConfigError, match=r"opponent: .*code is refused here.*, got forward"):
        opponents("forward", "blue", spec, tmp_path)
