"""Base classes and helpers of environments of other packages: episodes, seeds, time limits, actions, rewards."""

import operator
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.files import install_command
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import import_object, user_code
from multigrid_rl.types import MAX_CHOICES, BatchedStep, Clock, EpisodeTable, RunError

#: The one agent of a Gymnasium environment, and its team.
AGENT, TEAM = "agent_0", "agents"
#: Packages by module, if the names differ; our extras by module.
PACKAGE_OF = {"ale_py": "ale-py"}
EXTRA_OF = {"Box2D": "control", "mujoco": "control", "imageio": "control"} | dict.fromkeys(
    ("chess", "magent2", "mpe2", "pyspiel", "rlcard"), "games"
)
#: Environment variable: time limit in seconds of one reset or step of another package's environment; 0: none.
SECONDS = "MULTIGRID_RL_ENV_SECONDS"
_DEFAULT_SECONDS = 120.0
Array = NDArray[Any]
#: Sums of squares below it are sums of numbers that all fit float32.
_SMALL_SUM = 1e76
#: The highest bit of a seed, the sign of a number of 32 bits.
_SIGN_BIT = 1 << 31


def install_command_for(module: str) -> str:
    """Return the command that installs a module that an environment needs."""
    extra = EXTRA_OF.get(module)
    return f"pip install {PACKAGE_OF.get(module, module)}" if extra is None else install_command(extra)


class TimeLimit:
    """Raises ``TimeoutError`` within a block if one call takes too long: see :data:`SECONDS`.

    It uses a signal, which interrupts any Python code: only in the main thread, and not on Windows.

    Attributes:
        calls: number of calls that began; the caller increments it.
    """

    def __init__(self) -> None:
        self.calls, self._calls_before, self._seconds = 0, -1, 0.0
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            self._seconds = float(os.environ.get(SECONDS) or _DEFAULT_SECONDS)

    def __enter__(self) -> None:
        # Two system calls for many calls of an environment: a timer checks whether a new one has begun.
        main = threading.get_ident() == threading.main_thread().ident
        if self._seconds and main and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._check_progress)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)

    def __exit__(self, *error: object) -> None:
        if self._seconds and signal.getsignal(signal.SIGALRM) == self._check_progress:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _check_progress(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.calls == self._calls_before:
            raise TimeoutError(f"no answer in time; {SECONDS} says how many seconds it may take")
        self._calls_before = self.calls


def reset_seed(seed: int, number: int, episode: int) -> int:
    """Return the seed of one episode of environment ``number``, which determines all its randomness."""
    return int(np.random.SeedSequence((seed, number, episode)).generate_state(1)[0])


def reset_with_seed(reset: Callable[..., Any], seed: int) -> Any:
    """Start an episode by a seed of 32 bits, or of 31 bits if an environment takes no more."""
    try:
        return reset(seed=seed)
    except (Exception, SystemExit):  # untrusted code may raise anything
        if seed < _SIGN_BIT:
            raise
        return reset(seed=seed - _SIGN_BIT)


def single_agent_step(obs: Array, final: Array, rewards: Array, mask: Array, ended: tuple[Array, Array]) -> BatchedStep:
    """Return a step of one agent; ``ended``: which episodes terminated, and which others were truncated (N,)."""
    terminated, truncated = ended
    return BatchedStep(
        observations={AGENT: obs},
        final_observations={AGENT: final},
        rewards={AGENT: rewards},
        terminated={AGENT: terminated},
        mask={AGENT: mask},
        truncated=truncated,
        done=terminated | truncated,
    )


def unsupported_actions(space: spaces.Space[Any]) -> str:
    """Return the actions that our networks support, if those of ``space`` are others; else an empty text."""
    if isinstance(space, spaces.Box):
        return "" if np.less(*_bounds(space)).all() else "actions whose low bounds lie below the high ones, in float32"
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return "Discrete, MultiDiscrete, MultiBinary or Box actions"
    return "" if int(flat_actions(space).nvec.max()) <= MAX_CHOICES else f"at most {MAX_CHOICES} choices of an action"


def flat_actions(space: spaces.Space[Any]) -> Any:
    """Return the action space in the form of networks: components (C,) or numbers (A,)."""
    if isinstance(space, spaces.Box):
        return spaces.Box(*_bounds(space))
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete([2] * int(np.prod(space.shape)))
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    choices = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()
    return spaces.MultiDiscrete([int(count) for count in choices])


def _bounds(space: spaces.Box) -> tuple[Array, Array]:
    """Return the outermost bounds (A,) float32 that do not lie outside of the environment's."""
    with np.errstate(over="ignore"):
        low, high = (bounds.reshape(-1).astype(np.float32) for bounds in (space.low, space.high))
    # Compared as numbers of Python: numpy would round integers of 64 bits first.
    below = list(map(operator.lt, low.tolist(), space.low.reshape(-1).tolist()))
    above = list(map(operator.gt, high.tolist(), space.high.reshape(-1).tolist()))
    inner_low, inner_high = np.nextafter(low, np.float32(np.inf)), np.nextafter(high, np.float32(-np.inf))
    return np.where(below, inner_low, low), np.where(above, inner_high, high)


def native(space: spaces.Space[Any], actions: NDArray[Any]) -> NDArray[Any]:
    """Return actions (N, C) or (N, A), or single choices (N,), in the form of an environment with this space."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions.reshape(len(actions), -1)[:, 0] + space.start, space.dtype)
    shaped = actions.reshape(len(actions), *(space.shape or ()))
    if isinstance(space, spaces.MultiDiscrete):
        shaped = shaped + space.start
    elif np.issubdtype(space.dtype, np.integer):
        shaped = np.rint(shaped)  # a cast would cut off the fraction
    # A copy: these may be stored for `get_state`, and the caller overwrites its array.
    return np.array(shaped, space.dtype)


#: Random steps in which a user's training reward is tried before a run.
TRIAL_STEPS = 20
#: Most rewards are of the first type, so it is checked first.
_NUMBER_TYPES = (float, int, np.number, np.bool_)


def one_number(name: str, value: Any) -> Any:
    """Return a number, also from an array with one element. Raises ``ConfigError``: it is none."""
    if isinstance(value, _NUMBER_TYPES):
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        got = f"shape {array.shape}" if array.shape else shown(repr(value), 80)
        raise ConfigError(expected(name, "one number", got))
    return array.reshape(-1)[0]


class UserReward:
    """A user's training reward: a function of one step of one environment.

    It is called with the observation (D,) before the step, the action in the environment's form, the next observation,
    the environment's reward, and its ``info`` (empty for batched MuJoCo environments), and returns a number.
    ``name``: ``module:function``. Raises ``ConfigError``: it cannot be imported.
    """

    def __init__(self, name: str) -> None:
        self._key = f"train.shaping={name}"
        self._function = import_object("train.shaping", name)

    def __call__(self, obs: Any, actions: Any, next_obs: Any, rewards: Any, infos: Any) -> NDArray[np.float64]:
        """Return rewards (N,) for a step of ``N`` environments. Raises ``RunError``: failure, or no number."""
        rows = zip(*map(np.array, (obs, actions, next_obs)), rewards.tolist(), infos, strict=True)  # copies
        with user_code(self._key, RunError):
            shaped = np.array([one_number(self._key, self._function(*row)) for row in rows], np.float64)
        if not np.isfinite(shaped).all():
            raise RunError(expected(self._key, "a finite number for each step", shaped[~np.isfinite(shaped)][0]))
        return shaped


class Episodes(ABC):
    """Tracks episodes of ``num_envs`` environments with ``seats`` seats and no background players, and seconds.

    Attributes:
        shaping: training reward in place of the environments', which still counts in episodes.
    """

    shaping: UserReward | None = None

    def __init__(self, num_envs: int, seats: int) -> None:
        self.num_envs = num_envs
        self.actions = np.full((num_envs, 0), -1, np.int16)
        self._clock = Clock()
        self._returns = np.zeros((num_envs, seats))
        self._length = np.zeros(num_envs, np.int32)
        self._episode = np.zeros(num_envs, np.int64)
        self._finished: list[EpisodeTable] = []

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Reset all environments to their first episode under ``seed``; returns observations (N, D)."""
        self._seed = seed
        self._episode[:] = 0
        self._finished = []
        self._begin(np.ones(self.num_envs, np.bool_))
        return self.observations()

    @abstractmethod
    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the current observations (N, D)."""

    @abstractmethod
    def _begin(self, which: NDArray[np.bool_]) -> None:
        """Reset the environments in ``which`` (N,)."""

    def _finish(self, done: NDArray[np.bool_], winners: Any = -1) -> None:
        """Record the episodes of ``done`` (N,) with the winning teams, -1 for none, and reset their environments."""
        self._finished.append(self.unfinished(done, winners))
        self._episode[done] += 1
        self._begin(done)

    def unfinished(self, which: NDArray[np.bool_], winners: Any = -1) -> EpisodeTable:
        """Return rows of the current episodes in ``which`` (N,), by default without a winner."""
        count = int(which.sum())
        events, nothing = np.zeros((count, self._returns.shape[1], 0)), np.zeros((count, 0), np.int16)
        winner = np.broadcast_to(winners, count).astype(np.int8)
        return EpisodeTable(self._length[which], self._returns[which], events, winner, nothing)

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call; there are no event columns."""
        rows, self._finished = [EpisodeTable.empty(self._returns.shape[1], 0), *self._finished], []
        return EpisodeTable.concatenate(rows)

    def boards(self) -> NDArray[np.uint8]:
        """Return an empty array (N, 0): actions are enough for a replay."""
        return np.zeros((self.num_envs, 0), np.uint8)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Reset the environments in ``which`` (N,) before their episodes end; no table includes these."""
        self._episode[which] += 1
        self._begin(which)

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on the ``engine`` since the last call; there are no background players."""
        return {"players": 0.0, "engine": 0.0, **self._clock.drain()}

    def get_state(self) -> dict[str, Any]:
        """Return the state that determines all later steps; arrays are copies."""
        return {"seed": self._seed, "arrays": [array.copy() for array in self._arrays()]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`get_state`. Raises ``ValueError`` for a state of other environments."""
        count = len(state["arrays"][0])
        if state["seed"] != self._seed or count != self.num_envs:
            wanted = f"{self.num_envs} environments with seed {self._seed}"
            raise ValueError(expected("state", wanted, f"{count} with seed {state['seed']}"))
        for array, saved in zip(self._arrays(), state["arrays"], strict=True):
            array[...] = saved

    def _arrays(self) -> list[NDArray[Any]]:
        return [self._returns, self._length, self._episode]


class SingleAgentEnvs(Episodes):
    """``num_envs`` environments with one agent; implements ``types.BatchedEnv`` around two methods of a subclass.

    Finished environments reset at once. ``seed``, ``k``, the number of its episode and the actions determine
    environment ``k``.

    Args:
        env_id: its name in messages.
        size: length ``D`` of an observation.
    """

    def __init__(self, env_id: str, num_envs: int, action_space: spaces.Space[Any], size: int, first: int) -> None:
        super().__init__(num_envs, 1)
        self._infos: list[dict[str, Any]] = [{}] * num_envs
        self.env_id = env_id
        self.action_space = action_space
        self._first = first
        self._obs = np.zeros((num_envs, size), np.float32)
        self._mask = np.ones((num_envs, 1), np.bool_)

    @abstractmethod
    def _play(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Play one step with native actions; returns observations (N, D), rewards, terminated and truncated (N,)."""

    @abstractmethod
    def _start(self, seeds: dict[int, int]) -> NDArray[Any]:
        """Reset the environments in ``seeds`` (row -> seed); returns their observations, in that order."""

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the current observations (N, D) float32."""
        return {AGENT: self._obs}

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N, C) integers or (N, A) numbers within the bounds of the environment.

        Raises:
            RunError: an observation or a reward that is not finite.
            RunError: the user's training reward failed.
        """
        before, native_actions = self._obs, self.native(actions[AGENT])
        self._clock.begin()
        obs, rewards, terminated, truncated = self._play(native_actions)
        self._returns[:, 0] += rewards
        self._length += 1
        # If the sum of squares is small, all are finite; this takes a fifth of the time of checking each.
        is_small = float(np.vdot(obs, obs)) + float(np.vdot(rewards, rewards)) < _SMALL_SUM
        self._obs = final = obs.astype(np.float32) if is_small else self._finite(obs, rewards, native_actions)
        if self.shaping is not None:
            rewards = self.shaping(before, native_actions, final, rewards, self._infos)
        done = terminated | truncated
        if np.count_nonzero(done):
            self._finish(done)
        self._clock.lap("engine")
        return single_agent_step(self._obs, final, rewards, self._mask, (terminated, truncated & ~terminated))

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), self._obs]

    def native(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions (N, C) or (N, A) in the form of the environment's ``step``, one after the other."""
        return native(self.action_space, actions)

    def _finite(self, obs: Array, rewards: Array, actions: Array) -> Array:
        with np.errstate(over="ignore"):  # values beyond float32 become inf, which the next line finds
            numbers, paid = obs.astype(np.float32), rewards.astype(np.float32)
        bad = ~np.isfinite(numbers).all(axis=1) | ~np.isfinite(paid)
        if not bad.any():
            return numbers
        k = int(bad.argmax())
        value, kind = rewards[k], "a reward"
        if np.isfinite(paid[k]):
            value, kind = obs[k][~np.isfinite(numbers[k])][0], "an observation"
        note = "" if np.isfinite(actions[k]).all() else ", for an action that is not finite either"
        where = f"environment {self._first + k}, step {self._length[k]} of its episode {self._episode[k] + 1}"
        got = f"{kind} of {value} in {where}{note}"
        raise RunError(expected(f"env_id={self.env_id}", "observations and rewards within float32", got))

    def _begin(self, which: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(which).tolist()
        seeds = {k: reset_seed(self._seed, self._first + k, int(self._episode[k])) for k in rows}
        self._obs = self._obs.copy()  # the array before is the final observation
        self._obs[which] = self._start(seeds)
        if not (finite := np.isfinite(self._obs).all(axis=1)).all():
            k = int(finite.argmin())
            got = f"one that is not in environment {self._first + k}, from reset for its episode {self._episode[k] + 1}"
            raise RunError(expected(f"env_id={self.env_id}", "finite observations", got))
        self._returns[which] = 0.0
        self._length[which] = 0
