"""What stands in ``rllib.private`` is still there in the pinned Ray, and nothing private of it is used elsewhere."""

import inspect
from pathlib import Path

from ray._private import ray_constants, services
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from tools import house

PACKAGE = Path(__file__).parents[2] / "multigrid_rl"


def test_private_names_are_there_and_take_what_they_are_given():
    assert isinstance(ray_constants.ENABLE_RAY_CLUSTER, bool)
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    assert list(inspect.signature(services.get_ray_address_from_environment).parameters) == ["addr", "temp_dir"]
    assert callable(services.ConsolePopen)
    # Of a class that was made an actor Ray has methods take a keyword more.
    inspect.signature(PPO._setup_logdir).bind("self")
    inspect.signature(PPOTorchLearner._make_modules_ddp_if_necessary).bind("self")


def test_private_names_stand_in_one_file():
    modules = house.modules_of(PACKAGE)
    users = {name for name, module in modules.items() if house.private_names_of_ray({name: module})}
    assert users == {"multigrid_rl.rllib.private"}
