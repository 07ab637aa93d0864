"""Players, trainers and kinds of environments from outside; and the shipped players, without playing."""

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from composing import SCENARIOS, read
from multigrid_rl import tables
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import files_of
from multigrid_rl.config.scenario import Part, env_factory, env_signature, packages
from multigrid_rl.config.schema import TrainConfig, trainer_of
from multigrid_rl.files import data_root
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, PlayerError, read_card, read_network, sha256_of
from multigrid_rl.players.catalogue import BUILT_IN, CATALOGUE_FILE, Catalogue, Naming, runs_code
from multigrid_rl.players.frozen import check_fits
from multigrid_rl.players.scripted import Hunter
from multigrid_rl.text import ConfigError
from multigrid_rl.training.trainers import Trainer
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")

SPEC = load_scenario("1v1").spec


class Guest:
    """A player that the table of another package knows."""

    title, folder = "the guest", None

    def packed(self):
        return self

    def seat(self, spec, seat):
        return Hunter(spec)


def _find(name: str) -> Guest | Path | None:
    if name == "friend/rookie":
        return data_root() / "checkpoints" / "blue-rookie"
    return Guest() if name == "friend/guest" else None


@pytest.fixture
def friends(monkeypatch):
    """Give players a name of another form, by a module of another package."""
    module = ModuleType("not_ours")
    module.__spec__ = ModuleSpec("not_ours", None)
    module.NAMING = Naming("friend/NAME", _find, runs_code=True, known=lambda: ["friend/guest"])
    monkeypatch.setitem(sys.modules, "not_ours", module)
    monkeypatch.setitem(tables.NAMINGS, "friend", "not_ours:NAMING")


def test_entry_names_players_wherever_one_is_named(friends):
    catalogue = Catalogue()
    assert catalogue.title_of("friend/guest") == ("the guest", "1v1")
    assert isinstance(catalogue.packed(["friend/guest"]).seat("friend/guest", SPEC, "red_0").player, Hunter)
    card = catalogue.card_of("friend/rookie")
    assert catalogue.seat("friend/rookie", SPEC, "blue_0").sha256 == card.sha256
    assert runs_code("friend/guest")
    config = compose(["scenario=1v1", "scenario.seats.blue_0=friend/guest"])
    assert env_factory(config).load()["blue_0"][0].name == "friend/guest"
    with pytest.raises(PlayerError, match=r" or friend/NAME, got x"):
        catalogue.folder("x")


def test_players_are_found_where_add_ons_were_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "find_spec", lambda name: name if name.endswith("players") else None)
    (tmp_path / "agent.yaml").write_text("command: [true]\n")
    catalogue = Catalogue()
    assert catalogue.seat("blue-rookie", SPEC, "blue_0").sha256
    assert catalogue.card_of("some_module:Class") is None
    assert not runs_code(str(tmp_path))
    with pytest.raises(PlayerError, match=r"a folder with a frozen player or module:Class, got snorer"):
        catalogue.folder("snorer")


class WalkOptions(Part):
    """Options of the trainer."""

    spread: float = 0.1


class WalkTrain(TrainConfig):
    """PPO's settings, and a section of its own."""

    walk: WalkOptions = WalkOptions()


class RandomWalk:
    """Learns nothing: weights take random steps."""

    def __init__(self, networks, spread: float, seed: int) -> None:
        import torch  # noqa: PLC0415

        self.networks, self.spread = networks, spread
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizers = {name: [torch.optim.SGD(net.parameters(), 0.1)] for name, net in networks.items()}

    def learn(self, batches, env_steps, paths):
        import torch  # noqa: PLC0415

        with torch.no_grad():
            for name in batches:
                for weights in self.networks[name].parameters():
                    weights.add_(self.spread * torch.randn(weights.shape, generator=self.generator))
        return {name: {"gradient_steps": 1.0, "step_length": self.spread} for name in batches}

    def schedule(self, env_steps):
        pass

    def get_state(self):
        return {"rng": self.generator.get_state()}

    def set_state(self, state):
        self.generator.set_state(state["rng"])


class WalkTrainer(Trainer):
    """The entry."""

    settings = WalkTrain
    learns_values = False
    brings = ("learner/*/step_length",)

    def updater(self, config, networks, action_spaces, **options):
        return RandomWalk(networks, config.train.walk.spread, config.seed)


@pytest.fixture
def door(monkeypatch):
    module = ModuleType("trainer_from_outside")
    module.TRAINER = WalkTrainer()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(tables.TRAINERS, "walk", "trainer_from_outside:TRAINER")


@pytest.mark.slow
def test_trainer_from_outside_runs_and_refuses(door, tmp_path):
    verdict, rows = tiny_run(tmp_path / "run", "train.trainer=walk", "train.until=1024", "seed=5")
    assert verdict["policy_updates"] == len(rows) > 1
    assert all(row["learner/red_0/step_length"] == 0.1 for row in rows)
    walk = ["scenario=1v1", "experiment=none", "train.trainer=walk"]
    assert compose(walk).train.walk.spread == 0.1
    assert compose([*walk, "train.walk.spread=0.2"]).train.walk.spread == 0.2
    for wrong, message in (("train.walk.spred=0.2", "spread"), ("data=x", "data: expected null")):
        with pytest.raises(ConfigError, match=message):
            compose([*walk, wrong])


def test_installed_package_cannot_replace_a_trainer_of_ours(monkeypatch):
    monkeypatch.setattr(tables, "installed", lambda group: {"ppo": "not_there:TRAINER"})
    assert trainer_of("ppo") is tables.find(tables.TRAINERS, "ppo")


COINS = '''
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from multigrid_rl.config.scenario import EnvironmentKind, OneAgent
from multigrid_rl.envs.base import AGENT, TEAM, SingleAgentEnvs
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec


class Coins(SingleAgentEnvs):
    """Pays 1 for the sign of the number that is shown; an episode has 16 of them."""

    def __init__(self, num_envs, seed, first):
        super().__init__("coins", num_envs, spaces.Discrete(2), 1, first)
        self.reset(seed)

    def _start(self, seeds):
        return np.array([[np.random.default_rng(seed).uniform(-1, 1)] for seed in seeds.values()])

    def _play(self, actions):
        right = (self._obs[:, 0] > 0) == (actions == 1)
        over = self._length + 1 >= 16
        return -0.9 * self._obs, right.astype(float), over, np.zeros_like(over)


@dataclass(frozen=True)
class CoinsFactory(EnvFactory):
    seed: int

    @cached_property
    def specs(self):
        agent = AgentSpec(AGENT, AGENT, (AGENT,), spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([2]))
        return MultiAgentSpec((agent,), (AGENT,), (TEAM,), (TEAM,), (), has_winner=False)

    def build(self, num_envs, first):
        return Coins(num_envs, self.seed, first)


class Kind(EnvironmentKind):
    vectors: ClassVar[bool] = True
    env_id: str
    agents: OneAgent

    def factory(self, config: Any, hashes: Any):
        return CoinsFactory(config.seed)
'''
SCENARIO = "description: Coins.\ngame: null\npackage: coins\nenv_id: coins\nseats: {}\ngates: []\nreport_episodes: 4\n"


@pytest.mark.filterwarnings("ignore")
def test_kind_of_environments_from_outside_trains(tmp_path, monkeypatch):
    (tmp_path / "my_coins.py").write_text(COINS)
    (tmp_path / "coins.yaml").write_text(SCENARIO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tables.ENVIRONMENTS, "coins", "my_coins:Kind")
    scenario = f"scenario={tmp_path / 'coins.yaml'}"
    assert packages()[-1] == "coins"
    assert env_signature(compose([scenario]).scenario)["package"] == "coins"
    verdict, rows = tiny_run(tmp_path / "run", scenario, "train.until=1024")
    assert (verdict["policy_updates"], len(rows)) == (2, 2)
    assert 0 < rows[-1]["return_mean/agent_0"] <= 16


ROOT = data_root() / "checkpoints"
LISTED = yaml.safe_load((ROOT / CATALOGUE_FILE).read_text(encoding="utf-8"))["players"] or {}
FROZEN = [name for name in LISTED if name not in BUILT_IN]
#: Who was trained in another environment, and has no opponents.
EXPERTS = [name for name in FROZEN if read_card(ROOT / name).env is not None]
OPPONENTS = [name for name in FROZEN if name not in EXPERTS]
MAX_BYTES = 1_000_000
MIN_EPISODES = 1000


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(ROOT)


def test_catalogue_lists_each_player_once(catalogue):
    names = catalogue.names()
    assert len(names) == len(set(names))
    assert set(names) == set(BUILT_IN) | set(LISTED)


def test_catalogue_entries_match_folders():
    folders = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
    assert folders == sorted(FROZEN)


def test_only_players_are_shipped():
    stray = [p for p in ROOT.rglob("*") if p.is_file() and p.name not in (MODEL_FILE, CARD_FILE, CATALOGUE_FILE)]
    assert stray == []


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_player_is_small_and_matches_entry_and_card(name):
    card, data = read_card(ROOT / name), (ROOT / name / MODEL_FILE).read_bytes()
    assert card.name == name
    assert LISTED[name] == {"scenario": card.scenario, "seats": card.seats, "sha256": card.sha256}
    assert sha256_of(data) == card.sha256
    assert len(data) < MAX_BYTES
    assert {"command", "seed", "commit", "versions", "env_steps"} <= set(card.provenance)
    assert card.provenance["env_steps"] > 0
    read_network(ROOT / name, card)  # raises unless architecture, shapes and values are sound
    assert card.seats
    for seat in card.seats if card.env is None else []:
        check_fits(card, load_scenario(card.scenario).spec, seat)


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_return_was_measured(name):
    returns = read_card(ROOT / name).returns
    assert set(returns) == {"stochastic", "argmax"}
    assert all(row.episodes >= 100 and row.low < row.mean < row.high for row in returns.values())


@pytest.mark.parametrize("name", OPPONENTS)
def test_frozen_player_has_measured_strength_and_baseline(name):
    card = read_card(ROOT / name)
    for rows in (card.strength, card.baseline):
        measured = [row for row in rows if row.opponent == "random" and row.scenario == card.scenario]
        assert measured
        assert all(row.episodes >= MIN_EPISODES for row in measured)
        assert all(row.win + row.draw + row.loss == pytest.approx(1, abs=2e-4) for row in measured)
    # A player worth shipping beats the player that it could have been without any training.
    assert card.strength[0].win > card.baseline[0].win


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_default_opponents_are_in_catalogue_and_fit(scenario, catalogue):
    loaded = load_scenario(scenario)
    for seat, name in [(seat, name) for seat, names in loaded.kind.opponents.items() for name in names]:
        assert name in catalogue.names()
        catalogue.seat(name, loaded.spec, seat)


def test_every_frozen_player_is_used_as_opponent():
    files = [*files_of("scenario").values(), *files_of("experiment").values()]
    used = set(re.findall(r"[\w-]+", str([read(path) for path in files])))
    assert set(OPPONENTS) - {"blue-sentinel", "blue-legend", "2v2-champion"} <= used  # the top of each ladder


def test_built_in_strengths_rest_on_enough_games(catalogue):
    rows = {name: catalogue.strength(name) for name in BUILT_IN}
    assert [name for name, listed in rows.items() if any(row.episodes < MIN_EPISODES for row in listed)] == []
