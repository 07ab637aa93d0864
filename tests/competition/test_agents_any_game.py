"""Programs of strangers in any game: what they are told, what they may answer, and bundles of the same games."""

import json
import re
import sys
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

from agents import RECORDER, agent_of
from bundles import edit
from commands import call, complaint, works
from multigrid_rl.cli.train import run_training
from multigrid_rl.competition.agents import AgentPlayer, read_agent
from multigrid_rl.competition.messages import SeatsProtocol, StepRequest
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.places import place_of
from multigrid_rl.players.pool import OpponentPool
from multigrid_rl.trust import SAFE

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "examples" / "agents" / "any-game"
TICTACTOE = load_scenario("tictactoe").kind.spec
FIRST = "def act(m): say(json.dumps({'actions': [%s for game in m['games'] for view in game['seats'].values()]}))"


pytestmark = pytest.mark.usefixtures("trusted")


class Scripted:
    """Plays its moves one after the other, wherever it is its turn."""

    name = "scripted"

    def __init__(self, *moves: int) -> None:
        self.moves = list(moves)

    def initial_state(self, games):
        return None

    def reset_state(self, state, done):
        return None

    def act(self, view, state, rng):
        return np.array([self.moves.pop(0) if view.turn[0].any() else 0]), None


def played(agent, team="player_1", spec=TICTACTOE, games=6, others=None):
    """Games against random, and the player; its process has ended."""
    others = others or {
        seat: place_of(spec).scripted(spec, "random", seat) for seat in spec.seats if spec.team_of(seat) != team
    }
    with AgentPlayer(agent, spec, spec.seats_of(team), seed=7) as player:
        return play_games(spec, {team: player, **others}, games, seed=3), player


def recorder_of(folder: Path):
    """An agent that plays the first legal choice, and what it was told so far."""
    log, choice = folder.with_suffix(".log"), "view['legal'][0]"
    code = (RECORDER % str(log)).replace(
        '"actions": [{seat: game["game"] % 7 for seat in game["seats"]}',
        f'"debug": "why", "actions": [{{seat: {choice} for seat, view in game["seats"].items()}}',
    )
    return agent_of(folder, code), lambda: [*map(json.loads, log.read_text().splitlines())]


@pytest.mark.parametrize("team", ["player_1", "player_2"])
def test_is_asked_in_its_turn_alone_and_told_what_is_legal_and_paid(tmp_path, team):
    agent, heard = recorder_of(tmp_path / "recorder")
    found, player = played(agent, team)
    assert found.fault is None
    assert player.protocol.debug == "why"
    # It is asked in every second step, the second player from the second step on.
    told = {game: [*notes] for game, notes in player.notes.items()}
    assert {*told} == {*range(6)}
    assert all(steps[:3] == [k + (team == "player_2") for k in (0, 2, 4)] for steps in told.values())
    assert {words for notes in player.notes.values() for words in notes.values()} == {"why"}
    first, *steps, bye, _ = heard()
    seats = {team: {"size": 18, "encoding": "numbers", "choices": 9}}
    about = {"type": "hello", "protocol": 2, "game": "pettingzoo:classic/tictactoe-v3"}
    assert first == {**about, "seats": seats, "games": 6, "seed": 7}
    assert bye == {"type": "bye"}
    column, paid, asked = TICTACTOE.seats.index(team), np.zeros(6), np.zeros(6, int)
    for message in steps:
        if message["type"] == "end":
            for game, rewards in zip(message["games"], message["rewards"], strict=True):
                paid[game] += rewards[team]
            continue
        for game in message["games"]:
            (view,) = game["seats"].values()
            board = np.array(view["observation"]).reshape(9, 2)
            assert view["legal"] == np.flatnonzero(board.sum(axis=1) == 0).tolist()
            assert board.sum() == 2 * asked[game["game"]] + column  # it is its turn
            paid[game["game"]] += view["reward"]
            asked[game["game"]] += 1
    np.testing.assert_array_equal(paid, found.table.returns[:, column])
    assert {1.0, -1.0} <= set(paid)
    assert (asked == (found.table.length + 1 - column) // 2).all()
    assert sorted(game for m in steps if m["type"] == "end" for game in m["games"]) == list(range(6))


def test_documented_conversation_is_real(tmp_path):
    page = (ROOT / "docs" / "agents.md").read_text()
    block = page[page.index('> {"type":"hello","protocol":2') :].partition("```")[0].splitlines()
    told, answers = ([line[2:] for line in block if line.startswith(mark)] for mark in "><")
    moves = [json.loads(answer)["actions"][0]["player_2"] for answer in answers if "actions" in answer]
    code = (RECORDER % str(tmp_path / "log")).replace("note(json.dumps", "note(json")
    code += f"moves = {moves}\ndef act(m): note(m); say(json.dumps({{'actions': [moves.pop(0)]}}))\n"
    found, _ = played(agent_of(tmp_path / "told", code), "player_2", games=1, others={"player_1": Scripted(4, 8, 5, 7)})
    assert found.fault is None
    heard = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()][:-1]
    assert heard == [json.loads(line) for line in told]


@pytest.fixture
def chords(monkeypatch):
    """A game of one team whose seats see and do different things."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    return compose(["env_id=pettingzoo:own_seats"]).scenario.kind.spec


def test_seat_that_sees_much_is_told_base64_and_moves_in_parts(tmp_path, chords):
    log = tmp_path / "log"
    code = (RECORDER % str(log)).replace('{seat: game["game"] % 7 for seat in game["seats"]}', "[2, 4]")
    found, player = played(agent_of(tmp_path / "keys", code), "keys", chords, games=2)
    assert found.fault is None
    np.testing.assert_array_equal(found.table.returns[:, 0], [18.0, 18.0])
    hello, *steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert hello["seats"]["keys"] == {"size": 300, "encoding": "float32", "choices": [3, 5]}
    last = [message for message in steps if message["type"] == "act"][-1]["games"][1]["seats"]["keys"]
    np.testing.assert_allclose(np.frombuffer(b64decode(last["observation"]), "<f4"), np.full(300, 0.2), rtol=1e-6)
    assert "legal" not in last
    found, player = played(read_agent(STARTER), "pedal", chords, games=2)
    assert (found.fault, player.answers) == (None, 3)
    assert (np.abs(found.table.returns[:, 1]) <= 4.2).all()


@pytest.mark.parametrize(
    ("game", "team"),
    [("tictactoe", "player_1"), ("connect-four", "player_1"), ("simple-tag", "adversaries"), ("simple-tag", "prey")],
)
def test_starter_plays_to_the_end(game, team):
    found, player = played(read_agent(STARTER), team, load_scenario(game).kind.spec, games=4)
    assert (found.fault, found.finished.all(), player.answers > 0) == (None, True, True)


#: What an agent does, and why it loses its games; faults of any protocol are in ``faults/test_agents.py``.
FAULTS = {
    "occupied": (FIRST % "4", r"step 1: game \d: player_1: expected one of (\d, )+\d, got 4"),
    "outside": (FIRST % "9", "step 0: game 0: player_1: expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, got 9"),
    "true": (FIRST % "True", "step 0: game 0: player_1: expected one of 0, .*, got true"),
    "point": (FIRST % "2.0", "step 0: game 0: player_1: expected one of 0, .*, got 2.0"),
    "list": (FIRST % "[2]", r"step 0: game 0: player_1: expected one of 0, .*, got \[2\]"),
    "seat": (FIRST % "{'player_2': 1}", 'step 0: game 0: expected an action for each of player_1, got {"player_2": 1}'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_forfeits_with_one_line(tmp_path, fault):
    code, reason = FAULTS[fault]
    found, player = played(agent_of(tmp_path / "wrong", code))
    assert found.fault is not None
    assert found.fault.name == "wrong"
    (line,) = found.fault.reason.splitlines()
    assert re.search(reason, line), line
    assert not found.finished.any()
    assert (found.table.winner == -1).all()
    assert player._process is None


def test_numbers_outside_of_their_bounds_are_refused(chords):
    told = np.zeros(1, np.intp), np.zeros((1, 302), np.float32), np.ones((1, 1), np.bool_), np.zeros((1, 1))
    says, asked = SeatsProtocol(chords, ("pedal",)), StepRequest(0, *told)
    assert says.read(b'{"actions":[[0.7,-0.7]]}', asked).dtype == np.float32  # a bound itself, rounded to float32
    for wrong in ("[0.8,0]", "[0]", "[true,0]", "[NaN,0]", "[1e999,0]", f"[{10**400},0]", '["0",0]', "null"):
        with pytest.raises(Exception, match=r"^game 0: pedal: expected 2 numbers from \[-0.69.*, got "):
            says.read(b'{"actions":[%s]}' % (wrong if wrong[0] == "[" else f"[{wrong}]").encode(), asked)
    says = SeatsProtocol(chords, ("keys",))
    for wrong in ("3", "[3,0]", "[0,5]", "[0,1,2]", "[0,true]"):
        with pytest.raises(Exception, match=r"^game 0: keys: expected 2 integers from 0 to \[2, 4\], got "):
            says.read(b'{"actions":[%s]}' % wrong.encode(), asked)


def test_team_of_different_actions_is_no_seat_for_one_program(tmp_path, chords):
    (tmp_path / "duo.yaml").write_text(
        "description: one team\npackage: pettingzoo\nenv_id: pettingzoo:own_seats\nteams: {duo: [keys, pedal]}\n"
    )
    spec = load_scenario(str(tmp_path / "duo.yaml")).kind.spec
    with pytest.raises(PlayerError, match="actions: expected those of keys, pedal of one kind and length"):
        AgentPlayer(read_agent(STARTER), spec, spec.seats_of("duo"))


def test_is_asked_about_its_own_games_in_a_pool(tmp_path):
    agent, heard = recorder_of(tmp_path / "recorder")
    first, second = (place_of(TICTACTOE).scripted(TICTACTOE, "random", seat) for seat in TICTACTOE.seats)
    with AgentPlayer(agent, TICTACTOE, ("player_1",)) as player:
        pool = OpponentPool([player, first], [1.0, 1.0])
        table = play_games(TICTACTOE, {"player_1": pool, "player_2": second}, 8, seed=2).table
    own = np.flatnonzero(table.players[:, 0] == 0).tolist()
    assert 0 < len(own) < 8
    asked = {game["game"] for m in heard() if m["type"] == "act" for game in m["games"]}
    ends = [message for message in heard() if message["type"] == "end"]
    told = {game: row["player_1"] for m in ends for game, row in zip(m["games"], m["rewards"], strict=True)}
    assert asked == set(own)
    assert told == {game: table.returns[game, 0] for game in own}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which one network played both seats."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    tiny = ["num_envs=8", "num_steps=32", "minibatch_size=128", "epochs=1", "threads=1", "until=500"]
    given = ["scenario=tictactoe", "model.hidden=[8,8]", *(f"train.{value}" for value in tiny)]
    run_training([*given, f"run_dir={folder}"])
    return folder


def test_card_of_a_stranger_imports_no_game_where_code_is_refused(run, tmp_path, monkeypatch):
    exported = works("export", run, "--seat", "player", "-o", tmp_path / "mine")
    assert exported.output.rstrip().endswith(", plays player_1, player_2")
    lines = works("inspect", tmp_path / "mine", "--scenario", "tictactoe").output.splitlines()
    assert lines[-1] == "ok: plays tictactoe as player_1 and as player_2"
    refused = complaint(call("inspect", tmp_path / "mine", "--scenario", "connect-four"))
    assert "env: expected pettingzoo:classic/connect_four-v3, got pettingzoo:classic/tictactoe-v3" in refused
    edit(tmp_path / "mine", env={"package": "pettingzoo", "env_id": "pettingzoo:own_seats"})
    sys.modules.pop("own_seats", None)
    assert call("inspect", tmp_path / "mine").output.splitlines()[-1].startswith("ok: for pettingzoo:own_seats;")
    monkeypatch.setenv(SAFE, "1")
    refused = complaint(call("evaluate", f"{tmp_path / 'mine'}/", "--opponent", "random", "--episodes", 4))
    assert "code is refused here (--safe), got pettingzoo:own_seats" in refused
    assert "own_seats" not in sys.modules
