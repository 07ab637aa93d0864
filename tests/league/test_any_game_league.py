"""Leagues and best responses in games of others: exact exploitability, the learned bound, who takes whose part."""

import json
from dataclasses import replace

import numpy as np
import pytest

from commands import call, complaint, works
from multigrid_rl.config.compose import compose
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec
from multigrid_rl.league.exploit import exact_exploitability
from multigrid_rl.players.catalogue import Catalogue
from tiny_runs import rows_of

TINY = [
    *("train.num_envs=16", "train.num_steps=32", "train.minibatch_size=256", "train.epochs=2", "train.threads=1"),
    *("model.hidden=[16,16]", "train.entropy_coef=0.01", "train.entropy_final=0", "scenario.report_episodes=20"),
]
LEAGUE = """
description: Kuhn's poker against earlier selves
package: pettingzoo
env_id: openspiel:kuhn_poker
symmetric: [[player_0, player_1]]
outcome: return
seats: {player_0: learn, player_1: league}
report_episodes: 20
league: {anchors: {random: 1}, anchor_share: 0.3, latest_share: 0.3, weighting: squared, every: 2000, win: null,
  win_over: pool, most: 2, redraw: 1000}
"""


@pytest.mark.parametrize(("scenario", "known"), [("kuhn", 11 / 24), ("leduc", 2.373611)])
def test_exact_exploitability_of_random_play_is_what_openspiel_says(scenario, known):
    pyspiel = pytest.importorskip("pyspiel")
    spec = compose([f"scenario={scenario}"]).scenario.kind.spec
    found = exact_exploitability(spec, {seat: Catalogue().seat("random", spec, seat) for seat in spec.seats})
    assert found.exploitability == pytest.approx(known, abs=1e-6)
    assert np.mean(list(found.best.values())) == pytest.approx(found.exploitability)  # a game of zero sum
    game = pyspiel.load_game(f"{scenario}_poker")
    assert found.exploitability == pytest.approx(pyspiel.nash_conv(game, pyspiel.UniformRandomPolicy(game)) / 2)


@pytest.mark.slow
def test_learned_bound_of_a_trained_player_stays_below_the_exact_one(tmp_path):
    run, found = tmp_path / "run", tmp_path / "found"
    works("train", "scenario=kuhn", *TINY, "train.until=4000", f"run_dir={run}")
    asked = ["exploit", run, "scenario=kuhn", *TINY, "--exact", "--seeds", 1, "--games", 1000]
    result = works(*asked, "--budget", 8000, "--folder", found)
    written = json.loads((found / "exploit.json").read_text())
    best, perfect = written["best_response"], written["exact"]
    assert best["exact"] == pytest.approx(perfect["exploitability"], abs=1e-6)
    assert 0 < best["exact"] < 2
    assert best["low"] <= best["return_mean"] <= best["high"]
    assert best["low"] <= best["exact"]
    assert best["return_mean"] > 0.2 * best["exact"]  # it has learned something
    curves = [(curve["team"], curve["measure"]) for curve in written["curves"]]
    assert curves == [("player_0", "return"), ("player_1", "return")]
    assert f"exploitability {best['exact']:.4f} (NashConv / 2 by OpenSpiel" in result.output
    alone = call(*asked[:2], "scenario=kuhn", "--exact", "--budget", 0)
    assert alone.output.splitlines()[0] in result.output

    # Another player on one seat: what is gained there is not what was gained against the same on both.
    other = works(*asked[:2], "scenario=kuhn", "scenario.seats.player_1=random", "--exact", "--budget", 0)
    assert other.output != alone.output


NO_OPENSPIEL = "--exact: expected a game of OpenSpiel's (env_id=openspiel:GAME)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["random", "scenario=tictactoe", "--exact"], NO_OPENSPIEL),
        (["random", "scenario=1v1", "--exact"], NO_OPENSPIEL),
        (["random", "env_id=openspiel:goofspiel", "--exact"], "expected a game in turns whose chance is known"),
        (["random", "scenario=leduc", "--exact"], "expected at most 1,000 positions"),
        (["random", "scenario=kuhn", "--budget", 0], "environment steps, above 0 without --exact, got 0.0"),
        (["key-runner", "scenario=kuhn"], "player: expected random, a folder or module:Class"),
    ],
)
def test_refuses_in_one_line_what_cannot_be_computed(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("multigrid_rl.league.exploit.MOST", 1000)
    assert message in complaint(call("exploit", *arguments))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_league_swaps_parts_and_knows_who_is_ahead_where_nobody_wins(tmp_path):
    (tmp_path / "league.yaml").write_text(LEAGUE)
    scenario = f"scenario={tmp_path / 'league.yaml'}"
    works("train", scenario, *TINY, "train.until=8000", f"run_dir={tmp_path / 'run'}")
    rows = rows_of(tmp_path / "run")
    assert len(list((tmp_path / "run" / "league").glob("step_*"))) >= 3
    assert rows[-1]["league/size"] >= 4
    assert len({row["league/min_win"] for row in rows if "league/min_win" in row}) > 2  # no draws alone
    works("exploit", tmp_path / "run", "scenario=kuhn", "--exact", "--budget", 0)  # it plays both parts


def test_league_of_roles_is_refused(tmp_path):
    (tmp_path / "league.yaml").write_text(LEAGUE.replace("symmetric: [[player_0, player_1]]", "symmetric: []"))
    message = complaint(call("train", f"scenario={tmp_path / 'league.yaml'}", f"run_dir={tmp_path / 'run'}"))
    wanted = "scenario.seats.player_1: expected a seat that player_0 can take by scenario.symmetric"
    assert f"{wanted}, got league" in message
    assert not (tmp_path / "run").exists()


def test_league_of_a_team_whose_seats_differ_is_refused(tmp_path):
    teams = "{first: [lead_0, help_0], second: [lead_1, help_1]}\nsymmetric: [[lead_0, lead_1], [help_0, help_1]]"
    text = LEAGUE.replace("openspiel:kuhn_poker", f"pettingzoo:strange_games:ranks\nteams: {teams}")
    text = text.replace("symmetric: [[player_0, player_1]]\n", "")
    seats = "{lead_0: learn, help_0: learn, lead_1: league, help_1: league}"
    (tmp_path / "league.yaml").write_text(text.replace("{player_0: learn, player_1: league}", seats))
    message = complaint(call("train", f"scenario={tmp_path / 'league.yaml'}", f"run_dir={tmp_path / 'run'}"))
    assert "league: expected seats that observe and choose equally many numbers, got " in message
    assert not (tmp_path / "run").exists()


def test_parts_are_drawn_for_each_episode_and_nothing_else_changes():
    seats = ("player_0", "player_1")
    game = ZooSpec("openspiel:kuhn_poker", {}, {seat: seat for seat in seats}, wins=False, symmetric=(seats,))
    first = {swaps: PettingZooEnvs(replace(game, swaps=swaps), 400, seed=5) for swaps in (False, True)}
    moves = {swapped: env.deciding()["player_0"] for swapped, env in first.items()}
    assert moves[False].all()
    assert 150 < moves[True].sum() < 250
    plain, mixed = (env.observations() for env in first.values())
    shown = np.where(moves[True][:, None], mixed["player_0"], mixed["player_1"])
    np.testing.assert_array_equal(shown, plain["player_0"])  # the same cards, whoever holds them
    for env in first.values():
        step = env.step({seat: np.ones(400, np.int64) for seat in seats})
        step = env.step({seat: np.ones(400, np.int64) for seat in seats})
        assert step.done.all()
    tables = [env.drain_episodes() for env in first.values()]
    np.testing.assert_array_equal(*(table.length for table in tables))
    returns = [table.returns for table in tables]
    np.testing.assert_array_equal(np.where(moves[True][:, None], returns[1], returns[1][:, ::-1]), returns[0])
