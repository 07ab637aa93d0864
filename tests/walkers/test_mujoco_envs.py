"""Bodies side by side in MuJoCo: equal to Gymnasium's, on any number of threads, from any state; resumed."""

import pickle
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from multigrid_rl.cli.train import resume_training
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.envs.base import AGENT
from multigrid_rl.envs.gymnasium import GymnasiumEnvs, GymnasiumFactory, make_env
from multigrid_rl.jit import use_threads
from multigrid_rl.walkers.bodies import body_of
from multigrid_rl.walkers.mujoco import MujocoEnvs, threads_to_use
from tiny_runs import rows_of, tiny_run, without_time

pytestmark = pytest.mark.filterwarnings("ignore")  # ray and tensorboard warn about their own future at every start

SIGHT = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
BLIND = {f"include_{name}_in_observation": False for name in SIGHT}
BODIES = {
    "cheetah": ("HalfCheetah-v5", {}),
    "cheetah with its place": ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False}),
    "cheetah of other values": (
        "HalfCheetah-v5", {"frame_skip": 3, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.2}
    ),
    "walker": ("Walker2d-v5", {}),
    "walker that may lie": ("Walker2d-v5", {"terminate_when_unhealthy": False, "healthy_reward": 3.0}),
    "hopper": ("Hopper-v5", {}),
    "hopper of narrow bounds": ("Hopper-v5", {"healthy_state_range": (-1.0, 1.0), "healthy_z_range": (0.5, 1.3)}),
    "humanoid": ("Humanoid-v5", {}),
    "humanoid that is shown less": ("Humanoid-v5", BLIND),
    "humanoid that follows a target": ("Walker-v0", {}),
    "humanoid that is to run": ("Walker-v0", {"speed": 4}),
    "humanoid without contacts": ("Humanoid-v5", {**BLIND, "contact_cost_weight": 0.0}),
}  # fmt: skip


def bodies(env_id: str, num_envs: int = 3, args=None, **rest) -> MujocoEnvs:
    body = body_of(make_env(env_id, args or {}))
    return MujocoEnvs(env_id, body, num_envs, **rest)


def drawn(envs, steps: int, seed: int = 0):
    rng, space = np.random.default_rng(seed), envs.action_space
    return [{AGENT: rng.uniform(space.low, space.high, (envs.num_envs, *space.shape))} for _ in range(steps)]


def assert_equal(one, two):
    assert pickle.dumps(one) == pickle.dumps(two)


@pytest.mark.parametrize("name", BODIES)
def test_equals_gymnasium_exactly(name):
    env_id, args = BODIES[name]
    args = {**args, "max_episode_steps": 40}
    theirs = GymnasiumEnvs(env_id, 3, env_args=args, seed=3, first=2)
    ours = GymnasiumFactory(env_id, 3, args).build(3, 2)
    assert isinstance(ours, MujocoEnvs)
    assert_equal(ours.observations(), theirs.observations())
    for action in drawn(ours, 90):
        assert_equal(ours.step(action), theirs.step(action))
    episodes = theirs.drain_episodes()
    assert episodes.episodes
    assert_equal(list(ours.drain_episodes()), list(episodes))


def test_equals_gymnasium_from_any_set_state():
    """Step by step: Gymnasium's own class gets the state of a body that is long on its way."""
    envs, env = bodies("Hopper-v5"), gymnasium.make("Hopper-v5").unwrapped
    env.reset(seed=0)
    for action in drawn(envs, 60):
        state = envs.get_state()
        qpos, qvel, warm = (array[1] for array in state["arrays"][-3:])
        env.set_state(qpos, qvel)
        env.data.qacc_warmstart[:] = warm
        step = envs.step(action)
        shown, reward, terminated, *_ = env.step(np.float32(action[AGENT][1]))
        assert (step.final_observations[AGENT][1] == np.float32(shown)).all()
        assert (step.rewards[AGENT][1], step.terminated[AGENT][1]) == (reward, terminated)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5"])
def test_result_is_independent_of_threads(env_id):
    one, two, three = (bodies(env_id, 13, seed=4, threads=threads) for threads in (1, 2, 3))
    assert (one.threads, two.threads, three.threads) == (1, 2, 3)
    for action in drawn(one, 30):
        step = one.step(action)
        assert_equal(step, three.step(action))
        use_threads(2)  # those of passes, where there are two
        assert_equal(step, two.step(action))
        use_threads(1)


def test_body_is_independent_of_batch():
    crowd, alone = bodies("Walker2d-v5", 16, seed=5), bodies("Walker2d-v5", 1, seed=5, first=9)
    for action in drawn(crowd, 60):
        together, single = crowd.step(action), alone.step({AGENT: action[AGENT][9:10]})
        assert (together.observations[AGENT][9] == single.observations[AGENT][0]).all()
        assert together.rewards[AGENT][9] == single.rewards[AGENT][0]


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Walker-v0"])
def test_state_resumes_exactly(env_id):
    args = {"max_episode_steps": 50}
    envs, twin = (bodies(env_id, 5, args, seed=3) for _ in range(2))
    actions = drawn(envs, 30)
    for action in actions:
        envs.step(action)
    envs.drain_episodes()
    state = pickle.loads(pickle.dumps(envs.get_state()))
    ahead = [pickle.dumps(envs.step(action)) for action in actions]
    for _ in range(2):  # a state that was set is not written over
        twin.set_state(state)
        twin.drain_episodes()
        assert [pickle.dumps(twin.step(action)) for action in actions] == ahead
    assert_equal(list(twin.drain_episodes()), list(envs.drain_episodes()))
    with pytest.raises(ValueError, match=r"^state: expected 5 environments with seed 3, got 4 with seed 0$"):
        twin.set_state(bodies(env_id, 4).get_state())


def test_compiles_only_supported_bodies(tmp_path):
    for env_id in ("CartPole-v1", "Ant-v5"):
        assert type(GymnasiumFactory(env_id, 0, {}).build(1, 0)) is GymnasiumEnvs
    own = gymnasium.make("Hopper-v5").unwrapped.fullpath
    muscle = '<general joint="foot_joint" dyntype="filter" ctrlrange="-1 1"/></actuator>'  # it has a state of its own
    muscles = tmp_path / "muscles.xml"
    muscles.write_text(Path(own).read_text().replace("</actuator>", muscle))
    assert type(GymnasiumFactory("Hopper-v5", 0, {"xml_file": str(muscles)}).build(1, 0)) is GymnasiumEnvs
    assert type(GymnasiumFactory("Hopper-v5", 0, {"xml_file": own}).build(1, 0)) is MujocoEnvs
    assert body_of(gymnasium.wrappers.ClipAction(gymnasium.make("Hopper-v5"))) is None


@pytest.mark.parametrize(("value", "wanted"), [("", 4), ("2", 2), ("9", 4), ("0", 4), ("all", 4)])
def test_threads_respect_cores_and_process_share(monkeypatch, value, wanted):
    monkeypatch.setattr("multigrid_rl.walkers.mujoco.available_cpus", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_to_use() == wanted


@pytest.mark.parametrize("scenario", ["halfcheetah", "walker2d", "hopper", "humanoid", "walker"])
def test_body_scenarios_are_supported(scenario):
    assert isinstance(env_factory(compose([f"scenario={scenario}"])).build(1, 0), MujocoEnvs)


# --- Walker-v0


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is")
def test_walker_passes_gymnasium_checker():
    env = gymnasium.make("multigrid_rl.envs:Walker-v0").unwrapped
    assert env.model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER  # a quarter of the time of Humanoid's
    check_env(env, skip_render_check=True)


def walker_at(velocity, yaw=0.0, height=1.4, target=(5.0, 0.0)):
    """Reward, fall and observation of a body at the origin whose parts moved with one velocity in the last step."""
    body = body_of(make_env("Walker-v0", {"speed": 2.0}))
    qpos, qvel = np.zeros((1, body.model.nq)), np.zeros((1, body.model.nv))
    qpos[0, [2, 3, 6]] = height, np.cos(yaw / 2), np.sin(yaw / 2)
    read = [np.zeros((1, body.model.nbody, 3)), np.zeros((1, body.task_state_size))]
    read[1][0, 1:5] = *target, 9.0, 9.0
    moved = np.array([velocity]) * body.env.dt
    rewards, fallen = body.reward_and_termination(moved, np.zeros((1, 17)), (qpos, qvel), read)
    return float(rewards[0]), bool(fallen[0]), body.observe(qpos, qvel, read)[0], body.target(read[1])[0]


@pytest.mark.parametrize(
    ("velocity", "yaw", "reward"),
    [
        ((2.0, 0.0, 0.0), 0.0, 1.0),
        ((0.0, 0.0, 0.0), 0.0, 0.0),
        ((-9.0, 0.0, 0.0), 0.0, 0.0),  # a difference larger than the speed counts as the speed
        ((2.0, 1.0, 0.0), 0.0, (1 - 0.25) ** 2),
        ((2.0, 0.0, 0.0), np.pi / 2, 0.5),
        ((2.0, 0.0, 0.0), np.pi, 0.0),
    ],
)
def test_walker_reward_equals_ml_agents(velocity, yaw, reward):
    assert walker_at(velocity, yaw)[0] == pytest.approx(reward, abs=1e-12)


def test_walker_falls_and_target_moves_when_reached():
    assert [walker_at((2, 0, 0), height=height)[1] for height in (0.9, 1.4, 2.1)] == [True, False, True]
    assert walker_at((2, 0, 0), target=(1.1, 0))[3].tolist() == [1.1, 0]
    assert walker_at((2, 0, 0), target=(0.9, 0))[3].tolist() == [9, 9]


def test_walker_observation_is_relative_to_target():
    turned = walker_at((0, 0, 0), yaw=1.0, target=(5 * np.cos(1.0), 5 * np.sin(1.0)))[2]
    assert turned == pytest.approx(walker_at((0, 0, 0))[2])
    assert turned != pytest.approx(walker_at((0, 0, 0), yaw=1.0)[2])


def test_walker_rejects_invalid_speed():
    message = r"^env_args: expected arguments of Walker-v0, .*speed: expected a number above 0"
    with pytest.raises(ValueError, match=message):
        make_env("Walker-v0", {"speed": 0})


@pytest.mark.slow
def test_body_run_resumes_exactly(tmp_path):
    """Episodes of these cut hoppers end within and between batches."""
    hopper = [
        "scenario=hopper",
        "env_args={max_episode_steps: 25}",
        "model.normalise=true",
        "train.checkpoint_every=1024",
    ]
    steady = ["train.lr=3e-4", "train.lr_final=3e-4"]  # a step size that falls would know where the first half ends
    tiny_run(tmp_path / "halves", *hopper, *steady, "train.until=1024")
    resume_training(tmp_path / "halves", ["train.until=2048"])
    _, unbroken = tiny_run(tmp_path / "unbroken", *hopper, *steady, "train.until=2048")
    assert without_time(rows_of(tmp_path / "halves")) == without_time(unbroken)
