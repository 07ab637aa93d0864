"""Agents in processes of their own: what they receive and may answer, and on which seats they play."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents import SPEC, agent_of, play, player_of, recorder_of
from composing import refusal
from games import Always
from multigrid_rl.competition import grading
from multigrid_rl.competition.agents import AgentPlayer, read_agent
from multigrid_rl.competition.copies import Originals
from multigrid_rl.competition.folders import folder_sha256
from multigrid_rl.competition.messages import DoorsProtocol, StepRequest, check_ready, encode
from multigrid_rl.competition.process import ProcessError
from multigrid_rl.competition.rubric import Check, Rubric, opponents
from multigrid_rl.competition.sandbox import Limits, bwrap_available
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import read_scenario
from multigrid_rl.evaluation.seed_statistics import Interval
from multigrid_rl.evaluation.targets import player_target
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import SAFE, TRUSTED
from multigrid_rl.types import RunError, SeatView
from multigrid_rl.world.constants import ACTIONS, BLUE, FORWARD, MISSIONS, RED
from multigrid_rl.world.spaces import observation

pytestmark = pytest.mark.usefixtures("trusted")


@pytest.fixture
def recorder(tmp_path):
    """An agent, and what it was told so far."""
    return recorder_of(tmp_path / "recorder")


def asked(games, seats: int = 1, tokens=None) -> StepRequest:
    """What a program is asked about some games."""
    games, turn = np.asarray(games), np.ones((len(games), seats), np.bool_)
    return StepRequest(0, games, np.zeros((len(games), 1)) if tokens is None else tokens, turn, np.zeros(turn.shape))


def read_actions(line: bytes, seats: tuple[str, ...], games):
    """The actions of an answer."""
    return DoorsProtocol(SPEC, seats).read(line, asked(games, len(seats)))


class Spy(AgentPlayer):
    """Keeps what it was shown."""

    def act(self, view: SeatView, state, rng):
        self.seen.append(view.tokens.copy())
        return super().act(view, state, rng)


def test_agent_receives_hello_act_end_bye_in_order(recorder):
    agent, heard = recorder
    with player_of(agent) as player:
        played = play(player, games=4)
    first, *steps, bye, rest = heard()
    about = {"type": "hello", "protocol": 1, "scenario": "1v1", "seats": ["red_0"], "view_size": 5}
    assert first == {**about, "actions": list(ACTIONS), "max_steps": 60, "games": 4, "seed": 7}
    assert (bye, rest) == ({"type": "bye"}, {"type": "rest", "text": ""})
    length = dict(enumerate(played.table.length.tolist()))
    acts = [message for message in steps if message["type"] == "act"]
    assert [message["step"] for message in acts] == list(range(max(length.values())))
    for message in acts:
        assert [game["game"] for game in message["games"]] == [k for k in length if length[k] > message["step"]]
    assert sorted(game for m in steps if m["type"] == "end" for game in m["games"]) == [0, 1, 2, 3]
    # An end stands behind the last step of its game, before the next step of the others.
    place = -1
    for message in steps:
        if message["type"] == "act":
            place = message["step"]
        else:
            assert {length[game] for game in message["games"]} == {place + 1}


def test_agent_sees_its_seat_view(recorder):
    agent, heard = recorder
    spec = replace(load_scenario("2v2").spec, max_steps=40)
    with Spy(agent, spec, spec.seats_of("blue")) as player:
        player.seen = []
        others = {seat: RandomPlayer() for seat in ("red_0", "red_1")}
        play_games(spec, {"blue": player, **others}, 2, seed=5)
        seen = player.seen
    acts = [message for message in heard() if message.get("type") == "act"]
    assert len(acts) == len(seen)
    for message, tokens in zip(acts, seen, strict=True):
        for game in message["games"]:
            assert list(game["seats"]) == ["blue_0", "blue_1"]
            for c, view in enumerate(game["seats"].values()):
                row = tokens[game["game"]].reshape(2, -1)[c]
                rules = observation(spec, row)
                np.testing.assert_array_equal(view["image"], rules["image"])
                assert (view["direction"], view["mission"]) == (rules["direction"], MISSIONS[rules["mission"]])


def test_game_without_missions_sends_none():
    spec = load_scenario("single").spec
    tokens = np.zeros((1, spec.num_tokens), np.uint8)
    message = json.loads(DoorsProtocol(spec, ("red_0",)).act(asked([3], tokens=tokens)))
    assert set(message["games"][0]["seats"]["red_0"]) == {"image", "direction"}
    assert message["games"][0]["game"] == 3


def test_agent_process_gets_small_environment_and_own_home(tmp_path):
    said = f"open({str(tmp_path / 'env')!r}, 'w').write(json.dumps([dict(os.environ), os.getcwd()]))"
    agent = agent_of(tmp_path / "curious", f'def hello(m): {said}; say(\'{{"type":"ready"}}\')')
    with player_of(agent) as player:
        player.start(1)
        environment, cwd = json.loads((tmp_path / "env").read_text())
        home = Path(environment["HOME"])
        assert home.is_dir()
        assert list(home.iterdir()) == []
        assert sorted(path.name for path in Path(cwd).iterdir()) == ["agent.py", "agent.yaml"]
    assert not home.exists()
    assert not Path(cwd).exists()
    assert cwd != str(agent.folder)
    assert environment.pop("TMPDIR") == environment.pop("HOME")
    assert environment.pop("PATH")
    environment.pop("LC_CTYPE", None)  # Python's own
    own = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1"}
    assert environment == {"LANG": "C.UTF-8", **own}


@pytest.mark.parametrize("team", ["red", "blue"])
@pytest.mark.parametrize("plain", [True, False], ids=["integers", "by seat"])
def test_plays_same_as_in_process_player(team, plain, tmp_path):
    code = "def act(m): say(json.dumps({'actions': [2] * len(m['games']), 'thought': 'none'}))" if plain else ""
    agent = agent_of(tmp_path / "forward", code)
    other = "blue_0" if team == "red" else "red_0"
    with player_of(agent, team=team) as player:
        there = play_games(SPEC, {team: player, other: RandomPlayer()}, 20, seed=2)
        assert player.answers == there.actions.shape[1]
        assert 0 < player.thought_s < 5
    here = play_games(SPEC, {f"{team}_0": Always(FORWARD), other: RandomPlayer()}, 20, seed=2)
    assert there.fault is None
    np.testing.assert_array_equal(there.actions, here.actions)
    np.testing.assert_array_equal(there.table.returns, here.table.returns)


def test_new_games_start_fresh(tmp_path):
    # It counts its answers: a process that went on would count further.
    code = "n = 0\ndef act(m):\n  global n; n += 1; say(json.dumps({'actions': [n // 20] * len(m['games'])}))"
    with player_of(agent_of(tmp_path / "counter", code)) as player:
        one, two = play(player), play(player)
        assert one.actions.max() >= 1
        np.testing.assert_array_equal(one.actions, two.actions)
    player.close()  # once more does no harm


def test_started_agent_is_not_restarted(recorder):
    agent, heard = recorder
    with player_of(agent) as player:
        player.start(3)
        play(player, games=3)
    assert [message["type"] for message in heard() if "type" in message].count("hello") == 1


def test_heavy_stderr_output_is_harmless(tmp_path):
    code = "def act(m): sys.stderr.write('x' * 200000); say(json.dumps({'actions': [2] * len(m['games'])}))"
    with player_of(agent_of(tmp_path / "talker", code)) as player:
        assert play(player, games=2).fault is None


def test_accepts_large_answer_and_many_games(tmp_path):
    code = "def act(m): say(json.dumps({'actions': [2] * len(m['games'])}) + ' ' * 500000)"
    with player_of(agent_of(tmp_path / "wide", code), Limits(memory_mb=512)) as player:
        player.start(3000)
        state = player.initial_state(3000)
        tokens = np.ones((3000, SPEC.num_tokens), np.uint8)
        actions, _ = player.act(SeatView(tokens, None, 1), state, None)
    assert actions.shape == (3000,)
    assert set(actions.tolist()) == {FORWARD}


def test_accepts_answers_by_seat_and_number():
    games = np.array([4, 9])
    team = b'{"actions":[{"red_1":1,"red_0":0},{"red_0":2,"red_1":3}],"more":[]}'
    np.testing.assert_array_equal(read_actions(team, ("red_0", "red_1"), games), [[0, 1], [2, 3]])
    np.testing.assert_array_equal(read_actions(b'{"actions":[{"red_0":5},6]}', ("red_0",), games), [[5], [6]])
    with pytest.raises(ProcessError, match=r"^game 4: expected an action for each of red_0, red_1, got 1$"):
        read_actions(b'{"actions":[1,2]}', ("red_0", "red_1"), games)
    with pytest.raises(ProcessError, match=r"^game 9: expected an action for each of red_0, red_1, got {.*}$"):
        read_actions(b'{"actions":[{"red_0":1,"red_1":1},{"red_0":1}]}', ("red_0", "red_1"), games)
    check_ready(b'{"type":"ready","name":"x"}\r')


@pytest.mark.parametrize("team", ["red", "blue"])
def test_python_example_beats_random(team):
    spec = load_scenario("1v1").spec
    other = "blue_0" if team == "red" else "red_0"
    with player_of(read_agent(data_root() / "examples/agents/python"), team=team, spec=spec) as player:
        played = play_games(spec, {team: player, other: RandomPlayer()}, 100, seed=4)
    assert played.fault is None
    assert 60 <= (played.table.winner == (RED if team == "red" else BLUE)).sum() <= 95  # beatable


@pytest.mark.parametrize("scenario", ["1v1", "2v2"])
def test_shell_example_plays_any_game(scenario):
    spec = replace(load_scenario(scenario).spec, max_steps=60)
    games = []
    for seed in (1, 1, 2):
        agent = read_agent(data_root() / "examples/agents/shell")
        with AgentPlayer(agent, spec, spec.seats_of("blue"), scenario=scenario, seed=seed) as player:
            others = {seat: RandomPlayer() for seat in spec.seats if seat.startswith("red")}
            games.append(play_games(spec, {"blue": player, **others}, 8, seed=4))
    assert [played.fault for played in games] == [None] * 3
    blue = games[0].actions[..., : spec.blue]
    assert set(range(len(ACTIONS))) <= set(blue.ravel().tolist())
    assert np.array_equal(games[0].actions, games[1].actions)
    assert games[0].actions.shape != games[2].actions.shape or (games[0].actions != games[2].actions).any()


def test_documented_conversation_is_real():
    page = (data_root() / "docs" / "agents.md").read_text()
    lines = [line[2:] for line in page.splitlines() if line.startswith("> {")]
    message = [line[2:] for line in page.splitlines() if line.startswith("< {")]
    spec = load_scenario("1v1").spec
    assert lines[0].encode() + b"\n" == encode(DoorsProtocol(spec, ("red_0",)).hello("1v1", 2, 7))
    tokens = match_of(spec, {}, 2, seed=7).observations()["red_0"]
    step = DoorsProtocol(spec, ("red_0",)).act(asked(range(2), tokens=tokens)).decode()
    shortened = re.sub(r'"image":\[\[\[.*?\]\]\]', '"image":[...]', step)
    head, _, tail = lines[1].partition('{"game":1,"seats":{...}}')
    assert shortened.startswith(head)
    assert shortened.endswith(tail + "\n")
    check_ready(message[0].encode())
    assert read_actions(message[1].encode(), ("red_0",), np.arange(2)).tolist() == [[2], [0]]
    assert lines[-1].encode() + b"\n" == encode({"type": "bye"})


def test_games_are_told_by_other_numbers_in_each_pairing_and_the_same_ones_again(tmp_path):
    told = {}
    for name, mixing in (("one", "key a b"), ("again", "key a b"), ("two", "key a c"), ("plain", "")):
        agent, messages = recorder_of(tmp_path / name)
        with player_of(agent) as player:
            player.mixing = mixing
            play(player, 8)
        acts = [message for message in messages() if message["type"] == "act"]
        assert [game["game"] for game in acts[0]["games"]] == list(range(8))
        told[name] = [game["seats"] for game in acts[0]["games"]]
        over = [game for message in messages() if message["type"] == "end" for game in message["games"]]
        assert sorted(over) == list(range(8))
    assert told["one"] == told["again"]
    assert told["plain"] not in (told["one"], told["two"])
    assert told["one"] != told["two"]


@pytest.fixture
def seated_recorder(tmp_path):
    """An agent's folder, and what it has received so far."""
    agent, messages = recorder_of(tmp_path / "recorder")
    return str(agent.folder), messages


def _seated(spec, **names):
    catalogue = Catalogue(data_root() / "checkpoints")
    return {
        seat: tuple(catalogue.seat(name, spec, seat)._replace(weight=1.0) for name in rows)
        for seat, rows in names.items()
    }


def test_games_restart_under_their_numbers(seated_recorder):
    folder, read_messages = seated_recorder
    match = match_of(SPEC, seat_players(SPEC, _seated(SPEC, red_0=[folder], blue_0=["idle"])), 2)
    for _ in range(SPEC.max_steps + 5):
        match.step({})
        assert match.env.actions[:, 1].tolist() == [0, 1]
    messages = read_messages()
    assert [message["type"] for message in messages].count("hello") == 1
    assert messages[0]["games"] == 2
    last = max(k for k, message in enumerate(messages) if message["type"] == "end")
    assert [game["game"] for game in messages[last + 1]["games"]] == [0, 1]


def test_finished_games_are_not_asked_about_again(seated_recorder):
    folder, messages = seated_recorder
    spec = replace(SPEC, max_steps=3)
    players = seat_players(spec, _seated(spec, red_0=[folder], blue_0=["idle"]), once=True)
    match = match_of(spec, players, 2, auto_reset=False)
    for _ in range(5):
        match.step({})
    players["red_0"].close()
    assert [message["type"] for message in messages()] == ["hello", "act", "act", "act", "end", "bye", "rest"]


def test_plays_only_its_own_games_in_mixture(seated_recorder):
    folder, messages = seated_recorder
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
        else:  # the end of a game that others played
            assert set(message["games"]) <= known
            known -= set(message["games"])


def test_plays_whole_team_or_one_seat_beside_others(seated_recorder):
    folder, messages = seated_recorder
    spec = replace(load_scenario("2v2").spec, max_steps=3)
    together = seat_players(spec, _seated(spec, red_0=[folder], red_1=[folder], blue_0=["idle"], blue_1=["idle"]))
    assert set(together) == {"red", "blue_0", "blue_1"}
    match_of(spec, together, 1).step({})
    assert messages()[0]["seats"] == ["red_0", "red_1"]
    apart = seat_players(spec, _seated(spec, red_0=["idle"], red_1=[folder], blue_0=["idle"], blue_1=["idle"]))
    match_of(spec, apart, 1).step({})
    assert messages()[-2]["seats"] == ["red_1"]


def test_fault_ends_run_with_one_line(tmp_path):
    agent_of(tmp_path / "liar", "def act(message): say('9')")
    match = match_of(SPEC, seat_players(SPEC, _seated(SPEC, red_0=[str(tmp_path / "liar")], blue_0=["idle"])), 2)
    with pytest.raises(RunError, match=r"player .*liar: step 0: answer: expected a JSON object, got 9"):
        match.step({})


def test_agent_files_are_sent_to_processes_without_folder(seated_recorder):
    folder, messages = seated_recorder
    catalogue = Catalogue(data_root() / "checkpoints").packed([folder, "idle"])
    sha256 = folder_sha256(Path(folder))
    shutil.rmtree(folder)
    row = catalogue.seat(folder, SPEC, "red_0")
    assert row.sha256 == sha256
    match_of(SPEC, seat_players(SPEC, {"red_0": (row,), **_seated(SPEC, blue_0=["idle"])}), 1).step({})
    assert messages()[0]["scenario"] == "own"


def test_file_seats_no_program_where_code_is_refused(seated_recorder, tmp_path, monkeypatch):
    scenario = tmp_path / "duel.yaml"
    scenario.write_text(f"seats: {{red_0: learn, blue_0: {{idle: 1, {seated_recorder[0]}: 2}}}}\n")
    assert read_scenario(str(scenario))
    monkeypatch.setenv(SAFE, "1")
    assert "nor imports code" in refusal(read_scenario, str(scenario))


def test_agent_is_evaluated_under_own_name(seated_recorder):
    target = player_target(seated_recorder[0], compose(["scenario=1v1"]))
    assert target.name == "recorder"
    assert target.lineup("red", greedy=True).names["red_0"] == seated_recorder[0]


def _rubric(**exam):
    checks = [{"metric": "win/*", "at_least": 0.0, "points": 1}]
    return Rubric(scenario="1v1", pass_points=1, exams=[{"name": "one", "episodes": 100, "checks": checks, **exam}])


@pytest.mark.slow
@pytest.mark.skipif(not bwrap_available(), reason="bubblewrap is not available")
def test_grades_agent_only_in_sandbox(tmp_path, monkeypatch):
    monkeypatch.delenv(TRUSTED)
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
