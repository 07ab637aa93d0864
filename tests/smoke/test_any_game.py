"""Games of others, from training to a verdict: train, freeze, play against it, in a pool, in a league, resume."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from commands import has_verb, works
from multigrid_rl.cli.train import run_training
from multigrid_rl.config.compose import compose
from multigrid_rl.evaluation.evaluation import evaluate, report
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.players.cards import read_card
from multigrid_rl.players.catalogue import Catalogue, PlayerError
from multigrid_rl.players.freeze import freeze, rate
from multigrid_rl.runs.players import config_of, run_player
from multigrid_rl.text import ConfigError
from tiny_runs import rows_of, without_time

TINY = [
    *("train.num_envs=8", "train.num_steps=64", "train.minibatch_size=128", "train.epochs=1", "train.threads=1"),
    *("train.until=2000", "train.checkpoint_every=1000", "train.lr_final=null"),
    *("model.hidden=[8,8]", "scenario.report_episodes=5"),
]
TICTACTOE = "env_id=pettingzoo:classic/tictactoe-v3"
#: Ten of PettingZoo and its kin, with a seat that learns.
TEN = {
    "pettingzoo:classic/tictactoe-v3": "player_1",
    "pettingzoo:classic/connect_four-v3": "player_0",
    "pettingzoo:classic/rps-v2": "player_0",
    "pettingzoo:classic/leduc_holdem-v4": "player_0",
    "pettingzoo:mpe2.simple_v3": "agent_0",
    "pettingzoo:mpe2.simple_spread_v3": "agent_0",
    "pettingzoo:mpe2.simple_tag_v3": "adversary_0",
    "pettingzoo:mpe2.simple_speaker_listener_v4": "speaker_0",
    "openspiel:kuhn_poker": "player_0",
    "openspiel:leduc_poker": "player_0",
}


def train(path: Path, *overrides: str):
    run_training([*TINY, *overrides, f"run_dir={path}"])
    return rows_of(path)


def judged(who, *overrides, opponent=None, episodes=40, sides=None):
    target = find_target(str(who), list(overrides), opponent=opponent)
    return report(evaluate(target, episodes=episodes, seed=3, modes=("stochastic",), sides=sides))


def ten():
    """One of each kind belongs to every change."""
    few = ("tictactoe", "rps", "spread", "tag", "kuhn")
    for env_id, seat in TEN.items():
        marks = () if any(name in env_id for name in few) else pytest.mark.long
        yield pytest.param(env_id, seat, id=env_id.partition(":")[2], marks=marks)


@pytest.mark.parametrize(("env_id", "seat"), [*ten()])
def test_ten_games_from_training_to_a_verdict(tmp_path, env_id, seat):
    rows = train(tmp_path / "run", f"env_id={env_id}")
    assert rows[-1]["env_steps"] >= 2000
    assert rows[-1][f"return_mean/{seat}"] is not None
    catalogue = Catalogue(tmp_path / "players")
    card = freeze(run_player(tmp_path / "run", seat), "mine", catalogue, 100)
    assert card.env.env_id == env_id
    others = [other for other in rows[-1] if other.startswith("return_mean/") and other != f"return_mean/{seat}"]
    found = judged(tmp_path / "players" / "mine", opponent="random" if others else None)
    assert found["modes"]["stochastic"]["episodes"] == 40
    assert set(found["parts"][0]["players"].values()) == {f"{tmp_path}/players/mine", *(["random"] if others else [])}
    if not has_verb("cup"):
        return
    # Two checkpoints and the random player meet in a cup; who was trained for one seat forfeits the others.
    for folder in sorted((tmp_path / "run" / "checkpoints").glob("step_*")):
        one = ("--checkpoint", folder.name, "--seat", seat)
        works("export", tmp_path / "run", *one, "-o", tmp_path / "entries" / folder.name)
    few = ("--with", "random", "--games", 4, "--seed", 1)
    result = works("cup", tmp_path / "entries", f"env_id={env_id}", *few, "-o", tmp_path / "cup")
    last = json.loads(result.stdout.splitlines()[-1])
    assert len(last["ranking"]) == last["entries"] == 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of tic-tac-toe by one network, and the player that was frozen from it."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "run", TICTACTOE, "shared=true", "train.until=6000")
    catalogue = Catalogue(folder / "players")
    freeze(run_player(folder / "run", "player"), "mine", catalogue, 100)
    return folder


def test_player_of_both_seats_is_judged_from_both(trained):
    found = judged(trained / "players" / "mine", opponent="random", episodes=100)
    assert [part["side"] for part in found["parts"]] == ["player_1", "player_2"]
    whole = found["modes"]["stochastic"]
    assert whole["win"] + whole["draw"] + whole["loss"] == pytest.approx(1.0)
    assert whole["return_mean"] == pytest.approx(whole["win"] - whole["loss"])
    again = judged(trained / "players" / "mine", opponent="random", episodes=100)
    assert again["modes"] == found["modes"]


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    """Folder of a run of two roles, of which the second pays the first three in each game."""
    folder = tmp_path_factory.mktemp("roles")
    train(folder / "run", "env_id=pettingzoo:strange_games:toll", "scenario.outcome=return")
    return folder


def frozen(roles, seat, *words):
    name = "-".join(["player", *map(str, words)]).replace("--", "") + seat[:2]
    words = ["--seat", seat, "--name", name, "--episodes", 100, "--checkpoints", roles / "players", *words]
    works("players", "freeze", roles / "run", *words)
    return roles / "players" / name


@pytest.mark.parametrize("words", [(), ("--average", 2)])
def test_card_of_a_role_has_the_returns_of_that_role(roles, words):
    for seat, earned in (("up_0", 3), ("down_0", -3)):
        returns = read_card(frozen(roles, seat, *words)).returns
        assert [(row.episodes, row.mean) for row in returns.values()] == [(100, earned)] * 2


def test_baseline_on_a_card_is_random_in_the_same_role(roles, tmp_path):
    game = replace(find_target(str(roles / "run")).spec, wins=True)
    for seat, share in (("up_0", 1.0), ("down_0", 0.0)):
        card = freeze(run_player(roles / "run", seat), seat.replace("_", "-"), Catalogue(tmp_path), 10, game)
        assert [(row.win, row.loss) for row in (*card.strength, *card.baseline)] == [(share, 1 - share)] * 2


def test_player_of_one_role_is_judged_in_it_and_met_in_it(roles):
    toll, down = "env_id=pettingzoo:strange_games:toll", f"{run_player(roles / 'run', 'down_0')}/"
    found = judged(down, toll, opponent="random")
    assert [(part["side"], part["return_mean"]) for part in found["parts"]] == [("down_0", -3)]
    for overrides, opponent in (((toll, f"scenario.seats.down_0={down}"), None), ((toll,), down)):
        found = judged("random", *overrides, opponent=opponent)
        assert [(part["side"], part["players"]["down_0"]) for part in found["parts"]] == [("up_0", down)]
    assert len(judged("random", toll, opponent=str(roles / "run"))["parts"]) == 2


def test_overrides_change_the_game_of_a_run_and_not_another(roles, tmp_path):
    found = judged(roles / "run", "scenario.seats.down_0=random")
    assert [(part["players"]["down_0"], part["return_mean"]) for part in found["parts"]] == [("random", 3)]
    found = judged(roles / "run", "scenario.seats.up_0=random")
    assert [(part["side"], part["return_mean"]) for part in found["parts"]] == [("down_0", -3)]
    both = [judged(roles / "run", *words)["parts"] for words in ((), ("scenario.env_args.max_episode_steps=99",))]
    assert both[0] == both[1]
    long = "scenario.game.max_steps=500"
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(compose(["scenario=1v1-league", long]).model_dump(mode="json"))
    )
    scenario = config_of(str(tmp_path), ["scenario.seats.blue_0=hunter"]).scenario
    assert (scenario.game.max_steps, scenario.seats["blue_0"], scenario.league) == (500, "hunter", None)
    assert config_of(str(tmp_path), ["scenario=1v1"]).scenario.game.max_steps == 300


def test_strength_of_players_is_not_measured_without_a_winner(tmp_path):
    pytest.importorskip("pyspiel")
    with pytest.raises(PlayerError, match=r"scenario: expected one whose games are won, .*, got kuhn"):
        rate(Catalogue(tmp_path), "kuhn", 100)


def test_table_names_the_sides_without_a_winner(tmp_path):
    pytest.importorskip("pyspiel")
    shown = works(
        "evaluate", "random", "scenario=kuhn", "--opponent", "random", "--episodes", 4, "-o", tmp_path / "out"
    )
    rows = [line.split()[1] for line in shown.output.splitlines() if line.startswith("argmax")]
    assert rows == ["player_0", "player_1", "both"]


def test_opponents_take_turns_and_a_run_goes_on_as_if_unbroken(tmp_path, trained):
    seats = ["checkpoints=" + str(trained / "players"), "scenario.seats.player_2={random: 1, mine: 3}"]
    whole = train(tmp_path / "whole", TICTACTOE, *seats, "train.until=4000")
    train(tmp_path / "part", TICTACTOE, *seats, "train.until=2000")
    works("train", "--resume", tmp_path / "part", "--until", 4000)
    assert without_time(rows_of(tmp_path / "part")) == without_time(whole)
    last = whole[-1]
    assert {name for name in last if name.startswith("win_against/")} == {
        "win_against/player_1/random", "win_against/player_1/mine",
    }  # fmt: skip
    provenance = json.loads((tmp_path / "whole" / "provenance.json").read_text())
    assert "mine" in str(provenance["opponents"])
    found = judged(tmp_path / "whole")
    assert found["parts"][0]["players"]["player_2"].startswith("random:0.25+mine:0.75")


def test_own_class_is_shown_what_is_legal_and_its_mistakes_are_named(tmp_path, trained, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "class First:\n"
        "    def __init__(self, seen, acts):\n        self.size, self.count = seen.shape[0], int(acts.nvec[0])\n"
        "    def act(self, view, state, rng):\n"
        "        assert view.tokens.shape[1] == self.size\n"
        "        return view.tokens[:, -self.count:].argmax(axis=1), state\n"
        "class Wrong(First):\n"
        "    def act(self, view, state, rng):\n        return view.tokens[:, 0].astype(int) * 0 + 99, state\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = judged(trained / "players" / "mine", opponent="mine:First")
    assert found["parts"][0]["players"]["player_2"] == "mine:First"
    with pytest.raises(ConfigError, match="player mine:Wrong: actions: expected integers 0 to"):
        judged(trained / "players" / "mine", opponent="mine:Wrong")


def test_player_of_another_game_or_seat_is_refused_in_one_line(tmp_path, trained):
    mine = str(trained / "players" / "mine")
    for game in ("pettingzoo:classic/connect_four-v3", "openspiel:kuhn_poker"):
        with pytest.raises(PlayerError, match=f"does not fit seat player_0: env: expected {game}"):
            judged(mine, f"env_id={game}", opponent="random")
    known = r"expected random, a folder or module:Class in .*tictactoe-v3, got key-runner"
    with pytest.raises(PlayerError, match=known):
        judged(mine, opponent="key-runner")
    train(tmp_path / "apart", TICTACTOE)
    one = freeze(run_player(tmp_path / "apart", "player_1"), "one", Catalogue(tmp_path / "p"), 100)
    assert one.seats == ["player_1"]
    found = judged(tmp_path / "p" / "one", opponent="random")
    assert [part["side"] for part in found["parts"]] == ["player_1"]  # it was trained for no other seat
    with pytest.raises(PlayerError, match="seats: expected player_2, got player_1"):
        judged(tmp_path / "p" / "one", opponent="random", sides="both")
