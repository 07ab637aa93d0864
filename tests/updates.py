"""How an update is set up, for tests."""

from multigrid_rl.learn.losses import UpdateConfig
from multigrid_rl.types import Schedule


def steady(value: float) -> Schedule:
    """The same all the time."""
    return Schedule(value, value, 1)


PPO = UpdateConfig(
    objective="ppo", epochs=4, minibatch_size=64, lr=steady(5e-3), entropy_coef=steady(0.0), clip=steady(0.2),
    vf_coef=0.5, grad_clip=0.5, seed=0,
)  # fmt: skip
