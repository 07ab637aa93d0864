"""Snapshots as players: written, read, damaged, seated on the other side, and taking turns with others."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bundles import bundle
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.grouping import agents_of
from multigrid_rl.league.snapshots import RunLeague
from multigrid_rl.models.registry import network_of
from multigrid_rl.players.cards import PlayerError, read_files, signature, write_player
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue
from multigrid_rl.players.factories import MatchFactory, match_of
from multigrid_rl.players.freeze import freeze
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.pool import Roster, TeamPlayer, snapshot_player
from multigrid_rl.players.scripted import RandomPlayer
from multigrid_rl.types import EpisodeTable, SeatView
from multigrid_rl.world.constants import ACTIONS, NUM_EVENTS
from multigrid_rl.world.state import token_categories

ONE = compose(
    ["scenario=1v1-league", "scenario.league.most=1", "scenario.league.redraw=1000", "scenario.game.max_steps=10"]
)
TWO = compose(["scenario=2v2-league", "experiment=none", "scenario.game.max_steps=10"])


def write(folder: Path, config=ONE, scheme="dtde", model="mlp", seed=0) -> dict[str, str]:
    """Write untrained networks of all who learn; returns their sha256."""
    spec, hashes = config.scenario.spec, {}
    view = tuple(token_categories(spec))
    agents = agents_of(scheme, shared=False, seats=config.scenario.kind.learning, view=view, choices=len(ACTIONS))
    torch.manual_seed(seed)
    for agent in agents:
        architecture = {"name": model, "hidden": [8], "activation": "tanh"}
        card = {
            "name": agent.module, "architecture": architecture, **signature(agent, spec.view_size),
            "scenario": config.scenario.name, "seats": list(agent.seats), "provenance": {},
        }  # fmt: skip
        network = network_of(agent, {**architecture, "log_std": 0.0})
        weights = {name: value + 0.01 * torch.randn(value.shape) for name, value in network.state_dict().items()}
        hashes[agent.module] = write_player(folder / agent.module, weights, card).sha256
    return hashes


def files(folder: Path):
    return {path.name: read_files(path) for path in folder.iterdir()}


def played(factory: MatchFactory, steps=30, games=16, first=0) -> np.ndarray:
    """(steps, N, A) what everybody did while those who learn did nothing."""
    match = factory.build(games, first).env
    rows = []
    for _ in range(steps):
        match.step({seat: np.full(games, 6) for seat in match.seats})
        rows.append(match.env.actions.copy())
    return np.array(rows)


def test_red_snapshot_plays_blue_mirrored(tmp_path):
    write(tmp_path / "s")
    player = snapshot_player("s", files(tmp_path / "s"), ONE.scenario.spec, ["blue_0"])
    assert isinstance(player, FrozenPlayer)
    assert player.mirrored


@pytest.mark.parametrize(("scheme", "model"), [("dtde", "mlp"), ("dtde", "gru"), ("ctce", "mlp"), ("ctce", "gru")])
def test_team_snapshot_plays_whole_team(tmp_path, scheme, model):
    write(tmp_path / "s", TWO, scheme, model)
    spec = TWO.scenario.spec
    player = snapshot_player("s", files(tmp_path / "s"), spec, ["blue_0", "blue_1"])
    assert isinstance(player, TeamPlayer if scheme == "dtde" else FrozenPlayer)
    games = []
    for number, first in ((8, 0), (1, 5)):  # whoever is beside it, a game is the same
        match = match_of(
            spec, {"blue": player, "red": TeamPlayer("x", [RandomPlayer()] * 2)}, number, seed=3, first=first
        )
        rows = [(match.step({}), match.env.actions.copy())[1] for _ in range(40)]
        games.append(np.array(rows))
    np.testing.assert_array_equal(games[0][:, 5], games[1][:, 0])
    assert len(np.unique(games[0][..., :2])) == len(ACTIONS)


def test_team_mates_are_separate_players():
    class Seat:
        name = "seat"

        def initial_state(self, games):
            return torch.zeros(games, 1)

        def reset_state(self, state, done):
            return state

        def act(self, view, state, rng):
            self.seen = view
            return np.full(len(view.tokens), view.seat, np.int8), state + 1 + view.seat

    one, two = Seat(), Seat()
    team = TeamPlayer("both", [one, two])
    state = team.initial_state(3)
    actions, state = team.act(SeatView(np.arange(12, dtype=np.uint8).reshape(3, 4), None, 2), state, None)
    assert actions.tolist() == [[2, 3]] * 3
    assert state.tolist() == [[3.0, 4.0]] * 3
    assert one.seen.tokens.tolist() == [[0, 1], [4, 5], [8, 9]]
    assert two.seen.tokens.tolist() == [[2, 3], [6, 7], [10, 11]]
    assert team.reset_state(state, np.array([True, False, False])).tolist() == [[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]]


def test_rejects_snapshot_lacking_network_for_seat(tmp_path):
    write(tmp_path / "s", TWO)
    found = files(tmp_path / "s")
    del found["red_1"]
    with pytest.raises(PlayerError, match=r"^league/s: expected a network of red_1, got red_0$"):
        snapshot_player("s", found, TWO.scenario.spec, ["blue_0", "blue_1"])


def test_newcomers_join_later_games_and_survive_state_restore(tmp_path):
    write(tmp_path / "s", seed=1)
    write(tmp_path / "t", seed=2)
    factory = env_factory(ONE)
    first, second = Roster({3: 1.0}, {3: files(tmp_path / "s")}), Roster({4: 1.0}, {4: files(tmp_path / "t")})
    env = factory.with_roster(first).build(12, 0)
    assert factory.playing(env) == [3]
    rng = np.random.default_rng(1)
    for k in range(35):
        if k == 13:  # no game lasts longer than 10 steps
            factory.join(env, second)
            assert factory.playing(env) == [3]
        env.step({"red_0": rng.integers(0, 7, (12, 1))})
    assert factory.playing(env) == [4]
    there = env.drain_episodes()
    assert set(there.players[:, 0].tolist()) == {3, 4}
    state, later = env.get_state(), rng.integers(0, 7, (30, 12, 1))
    needed = {n: its for n, its in {**first.files, **second.files}.items() if n in {*factory.playing(env), 4}}
    other = factory.with_roster(Roster({4: 1.0}, needed)).build(12, 0)
    other.set_state(state)
    for actions in later:
        mine, yours = (each.step({"red_0": actions}).rewards["red_0"].copy() for each in (env, other))
        np.testing.assert_array_equal(mine, yours)
    np.testing.assert_array_equal(env.env.env.actions, other.env.env.actions)


def test_metrics_share_one_name_for_all_snapshots():
    specs = env_factory(ONE).specs
    assert specs.pools == (("blue_0", ("random", "blue-rookie", "key-runner", "snapshots")),)
    table = EpisodeTable.empty(2, NUM_EVENTS, 1)._replace(players=np.array([[0], [2], [3], [90]], np.int16))
    found = table.with_players({0: specs.pools[0][1]})
    assert [found[name].sum() for name in specs.pools[0][1]] == [1, 0, 1, 2]


@pytest.fixture
def league(tmp_path) -> RunLeague:
    """With snapshots at 100,000, 200,000 and 300,000 steps; the last one plays."""
    one = RunLeague(ONE.scenario, env_factory(ONE).specs, 0, tmp_path)
    for steps in (100_000, 200_000, 300_000):
        one.advance(steps, lambda folder, steps=steps: write(folder, seed=steps))
    return one


def test_snapshot_joins_and_its_files_are_sent_once(league, tmp_path):
    assert sorted(path.name for path in (tmp_path / "league").iterdir()) == [f"step_000{k}00000" for k in (1, 2, 3)]
    assert league.advance(300_512, write) is None  # nothing to say yet
    before = set(league.roster().files)
    for k in range(1, 30):
        roster = league.advance(300_000 + 1000 * k, write)
        assert sum(roster.weights.values()) == pytest.approx(1)
        assert set(roster.files) == {n for n in roster.weights if n > 2} - before
        before = {n for n in roster.weights if n > 2}
        assert set(league.roster().files) == before
        assert len(before) == 1


def test_scores_are_from_learner_side(league):
    table = EpisodeTable.empty(2, NUM_EVENTS, 1)._replace(
        players=np.array([[0], [1], [5], [5]], np.int16), winner=np.array([0, 1, -1, 0], np.int8)
    )
    league.take(table)  # 0 red, who learns, 1 blue, -1 nobody
    assert league.win_rates()[[0, 1, 5]] == pytest.approx([1, 0, (0.99 * 0.5 + 1) / 1.99])


@pytest.mark.parametrize("damage", ["missing", "changed", "foreign"])
def test_lost_file_drops_snapshot_with_one_line(league, tmp_path, caplog, damage):
    folders = [tmp_path / "league" / f"step_000{k}00000" / "red_0" for k in (1, 2)]
    for folder in folders:
        if damage == "changed":
            (folder / "model.safetensors").write_bytes(b"0" * (folder / "model.safetensors").stat().st_size)
        else:
            shutil.rmtree(folder)
        if damage == "foreign":
            shutil.copytree(tmp_path / "league" / "step_000300000" / "red_0", folder)
    with caplog.at_level(logging.WARNING):
        for k in range(1, 30):
            roster = league.advance(300_000 + 1000 * k, write)
    assert league.metrics()["league/size"] == 4
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(line.endswith("; the league goes on without it") and "\n" not in line for line in lines)
    assert set(roster.weights) <= {0, 1, 2, 5}


def test_foreign_file_in_snapshot_place_is_moved_aside(league, tmp_path, caplog):
    place = tmp_path / "league" / "step_000400000"
    place.mkdir()
    (place / "note").write_text("mine")
    with caplog.at_level(logging.WARNING):
        league.advance(400_000, write)
    assert (tmp_path / "league" / "aside" / place.name / "note").read_text() == "mine"
    assert (place / "red_0" / "card.json").exists()
    assert len(caplog.records) == 1


def test_batched_players_act_as_each_alone(tmp_path, monkeypatch):
    for n in (3, 4, 6):
        write(tmp_path / str(n), seed=n)
    roster = Roster({0: 0.1, 1: 0.3, 3: 0.2, 4: 0.2, 6: 0.2}, {n: files(tmp_path / str(n)) for n in (3, 4, 6)})
    factory = env_factory(ONE).with_roster(roster)
    together = played(factory, steps=40, games=64)
    monkeypatch.setattr(FrozenPlayer, "kind", None)
    np.testing.assert_array_equal(together, played(factory, steps=40, games=64))


GAMES = 20


def test_league_player_is_rated_among_players_of_same_game(tmp_path):
    root = tmp_path / "frozen"
    root.mkdir()
    (root / CATALOGUE_FILE).write_text("players:\n")
    league = bundle(tmp_path / "league", ["blue_0"], scenario="1v1-league")
    assert freeze(league, "alone", Catalogue(root), GAMES).scenario == "1v1-league"
    (root / "alone").rename(tmp_path / "alone")
    (root / CATALOGUE_FILE).write_text("players:\n")
    freeze(bundle(tmp_path / "own", ["red_0"]), "fellow", Catalogue(root), GAMES)
    card = freeze(league, "newcomer", Catalogue(root), GAMES)
    assert [row.opponent for row in card.strength] == [*BUILT_IN, "fellow"]
    assert {row.scenario for row in card.strength} == {"1v1"}
    assert (card.scenario, Catalogue(root).entries["newcomer"]["scenario"]) == ("1v1", "1v1")
