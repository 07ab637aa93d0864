"""A trainer from outside: one file and one entry of the table, and a run of two iterations."""

import sys
from types import ModuleType

import pytest

from multigrid_rl import tables
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import Part
from multigrid_rl.config.schema import TrainConfig, trainer_of
from multigrid_rl.text import ConfigError
from multigrid_rl.training.trainers import Trainer
from tiny_runs import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")


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
