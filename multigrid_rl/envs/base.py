"""What environments of other packages share: episodes, their seeds and their ends, and what a state must fit."""

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
#: Packages by the modules that they hold, where the names differ; extras of ours that bring a module.
PACKAGE_OF = {"ale_py": "ale-py"}
EXTRA_OF = {"Box2D": "control", "mujoco": "control", "imageio": "control"} | dict.fromkeys(
    ("chess", "magent2", "mpe2", "pyspiel", "rlcard"), "games"
)
#: Environment variable: seconds that one start or step of a stranger's environment may take; 0: as long as it likes.
SECONDS = "MULTIGRID_RL_ENV_SECONDS"
_PATIENCE = 120.0
Array = NDArray[Any]
#: A sum of squares of numbers that are float32, each of them.
_SMALL = 1e76
#: The highest bit of a seed, the sign of a number of 32 bits.
_SIGN = 1 << 31


def bringing(module: str) -> str:
    """Return what to type for a module that an environment asked for and that is not installed."""
    extra = EXTRA_OF.get(module)
    return f"pip install {PACKAGE_OF.get(module, module)}" if extra is None else install_command(extra)


class BrokenEnvError(RunError):
    """An environment showed or paid something that is not finite; nothing can be learned from that."""


class TimeLimit:
    """Raises ``TimeoutError`` within a block in which one call takes too long: see :data:`SECONDS`.

    By a signal, which interrupts Python wherever it is: in the main thread alone, and not on Windows.

    Attributes:
        calls: how many began; whoever makes them counts.
    """

    def __init__(self) -> None:
        self.calls, self._seen, self._seconds = 0, -1, 0.0
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            self._seconds = float(os.environ.get(SECONDS) or _PATIENCE)

    def __enter__(self) -> None:
        # Two calls of the system for many of an environment: it looks now and then whether a new one has begun.
        main = threading.get_ident() == threading.main_thread().ident
        if self._seconds and main and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)

    def __exit__(self, *error: object) -> None:
        if self._seconds and signal.getsignal(signal.SIGALRM) == self._look:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _look(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.calls == self._seen:
            raise TimeoutError(f"no answer in time; {SECONDS} says how many seconds it may take")
        self._seen = self.calls


def reset_seed(seed: int, number: int, episode: int) -> int:
    """Return what one episode of environment ``number`` is reset with: everything random in it follows from that."""
    return int(np.random.SeedSequence((seed, number, episode)).generate_state(1)[0])


def reset_by(reset: Callable[..., Any], seed: int) -> Any:
    """Start an episode by a seed of 32 bits, or by 31 of them where an environment takes no more."""
    try:
        return reset(seed=seed)
    except (Exception, SystemExit):  # a stranger's code may raise anything
        if seed < _SIGN:
            raise
        return reset(seed=seed - _SIGN)


def step_of(obs: Array, final: Array, rewards: Array, mask: Array, ended: tuple[Array, Array]) -> BatchedStep:
    """Return a step of one agent; ``ended`` (N,) says which episodes terminated, and which others were truncated."""
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


def unfit_actions(acts: spaces.Space[Any]) -> str:
    """Say which actions networks here decide, where those of ``acts`` are others; empty where they are not."""
    if isinstance(acts, spaces.Box):
        return ""
    if not isinstance(acts, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return "Discrete, MultiDiscrete, MultiBinary or Box actions"
    return "" if int(flat_actions(acts).nvec.max()) <= MAX_CHOICES else f"at most {MAX_CHOICES} choices of an action"


def flat_actions(space: spaces.Space[Any]) -> Any:
    """Return the action space as networks fill it: components (C,) or numbers (A,)."""
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32))
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete([2] * int(np.prod(space.shape)))
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    choices = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()
    return spaces.MultiDiscrete([int(count) for count in choices])


def native(space: spaces.Space[Any], actions: NDArray[Any]) -> NDArray[Any]:
    """Return actions (N, C) or (N, A), or single choices (N,), as an environment with this space takes them."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions.reshape(len(actions), -1)[:, 0] + space.start, space.dtype)
    taken = actions.reshape(len(actions), *(space.shape or ()))
    if isinstance(space, spaces.MultiDiscrete):
        taken = taken + space.start
    elif np.issubdtype(space.dtype, np.integer):
        taken = np.rint(taken)  # a cast would cut off the fraction
    # A copy: these may be kept for `get_state`, and the caller writes over its own.
    return np.array(taken, space.dtype)


#: Random steps in which a training reward of the user's own is tried before a run.
TRIED = 20


#: Most rewards are the first, which is found quickest.
_NUMBERS = (float, int, np.number, np.bool_)


def single(what: str, value: Any) -> Any:
    """Return a number, also one that stands in an array alone. Raises ``ConfigError``: it is none."""
    if isinstance(value, _NUMBERS):
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        got = f"shape {array.shape}" if array.shape else shown(repr(value), 80)
        raise ConfigError(expected(what, "one number", got))
    return array.reshape(-1)[0]


class OwnReward:
    """A training reward of the user's own: a function of one step of one environment.

    It is called with the observation (D,) before the step, the action as the environment took it, the observation after
    it, what the environment paid, and its ``info`` (empty where bodies are stepped by MuJoCo itself), and returns a
    number. ``name``: ``module:function``. Raises ``ConfigError``: it cannot be imported.
    """

    def __init__(self, name: str) -> None:
        self._key = f"train.shaping={name}"
        self._function = import_object("train.shaping", name)

    def __call__(self, obs: Any, actions: Any, after: Any, rewards: Any, infos: Any) -> NDArray[np.float64]:
        """Return what is paid (N,) in a step of ``N`` environments. Raises ``ConfigError``: it failed, or no number."""
        with user_code(self._key):
            rows = zip(obs, actions, after, rewards.tolist(), infos, strict=True)
            paid = [self._function(*row) for row in rows]
        found = np.array([single(self._key, value) for value in paid], np.float64)
        if not np.isfinite(found).all():
            raise ConfigError(expected(self._key, "a finite number for each step", found[~np.isfinite(found)][0]))
        return found


class Episodes(ABC):
    """Tracks episodes by ``seats``, and seconds, of ``num_envs`` environments without background players.

    Attributes:
        shaping: what trains instead of the environments' own rewards, which episodes are counted by.
    """

    shaping: OwnReward | None = None

    def __init__(self, num_envs: int, seats: int) -> None:
        self.num_envs = num_envs
        self.actions = np.full((num_envs, 0), -1, np.int16)
        self._clock = Clock()
        self._returns = np.zeros((num_envs, seats))
        self._length = np.zeros(num_envs, np.int32)
        self._episode = np.zeros(num_envs, np.int64)
        self._finished: list[EpisodeTable] = []

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Start all environments afresh under ``seed``, from their first episode; returns what they show (N, D)."""
        self._seed = seed
        self._episode[:] = 0
        self._finished = []
        self._begin(np.ones(self.num_envs, np.bool_))
        return self.observations()

    @abstractmethod
    def observations(self) -> dict[str, NDArray[Any]]:
        """Return what is seen (N, D) as the environments stand."""

    @abstractmethod
    def _begin(self, which: NDArray[np.bool_]) -> None:
        """Start the environments in ``which`` (N,) afresh."""

    def _finish(self, done: NDArray[np.bool_], winners: Any = -1) -> None:
        """Write down the episodes of ``done`` (N,) and which team won them, -1 where none did, and begin afresh."""
        self._finished.append(self._table(done, winners))
        self._episode[done] += 1
        self._begin(done)

    def _table(self, which: NDArray[np.bool_], winners: Any = -1) -> EpisodeTable:
        """Return rows of the episodes in ``which`` (N,) as they stand."""
        count = int(which.sum())
        events, nothing = np.zeros((count, self._returns.shape[1], 0)), np.zeros((count, 0), np.int16)
        winner = np.broadcast_to(winners, count).astype(np.int8)
        return EpisodeTable(self._length[which], self._returns[which], events, winner, nothing)

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call; there are no event columns."""
        rows, self._finished = [EpisodeTable.empty(self._returns.shape[1], 0), *self._finished], []
        return EpisodeTable.concatenate(rows)

    def boards(self) -> NDArray[np.uint8]:
        """Return nothing (N, 0): it is played again by its actions."""
        return np.zeros((self.num_envs, 0), np.uint8)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Start the environments in ``which`` (N,) afresh before their episodes end; no table includes these."""
        self._episode[which] += 1
        self._begin(which)

    def unfinished(self, which: NDArray[np.bool_]) -> EpisodeTable:
        """Return rows of the unfinished episodes in ``which`` (N,), without a winner."""
        return self._table(which)

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on the ``engine`` since the last call; there are no background players."""
        return {"players": 0.0, "engine": 0.0, **self._clock.drain()}

    def get_state(self) -> dict[str, Any]:
        """Return what everything that the environments will do follows from; arrays are copies."""
        return {"seed": self._seed, "arrays": [array.copy() for array in self._arrays()]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`get_state` was asked. Raises ``ValueError`` for a state of other environments."""
        theirs = len(state["arrays"][0])
        if state["seed"] != self._seed or theirs != self.num_envs:
            wanted = f"{self.num_envs} environments with seed {self._seed}"
            raise ValueError(expected("state", wanted, f"{theirs} with seed {state['seed']}"))
        for array, saved in zip(self._arrays(), state["arrays"], strict=True):
            array[...] = saved

    def _arrays(self) -> list[NDArray[Any]]:
        return [self._returns, self._length, self._episode]


class SingleAgentEnvs(Episodes):
    """``num_envs`` environments with one agent; implements ``types.BatchedEnv`` around two methods of a subclass.

    Finished environments start afresh at once. What environment ``k`` does follows from ``seed``, ``k``, the number of
    its episode and the actions alone.

    Args:
        env_id: what messages call it.
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
        """Start the environments in ``seeds`` (row -> seed) afresh; returns their observations, in that order."""

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the observations (N, D) float32 as the environments stand."""
        return {AGENT: self._obs}

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step; ``actions`` holds (N, C) integers or (N, A) numbers within the bounds of the environment.

        Raises:
            BrokenEnvError: an observation or a reward that is not finite.
            RunError: the training reward of the user's own failed.
        """
        before, taken = self._obs, self.native(actions[AGENT])
        self._clock.begin()
        obs, rewards, terminated, truncated = self._play(taken)
        self._returns[:, 0] += rewards
        self._length += 1
        # Where the squares' sum is small, all are finite; this takes a fifth of the time of looking at each.
        small = float(np.vdot(obs, obs)) + float(np.vdot(rewards, rewards)) < _SMALL
        self._obs = final = obs.astype(np.float32) if small else self._finite(obs, rewards, taken)
        if self.shaping is not None:
            try:
                rewards = self.shaping(before, taken, final, rewards, self._infos)
            except ConfigError as error:
                raise RunError(str(error)) from error
        done = terminated | truncated
        if np.count_nonzero(done):
            self._finish(done)
        self._clock.lap("engine")
        return step_of(self._obs, final, rewards, self._mask, (terminated, truncated & ~terminated))

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), self._obs]

    def native(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions (N, C) or (N, A) as the environment's own ``step`` takes them, one after the other."""
        return native(self.action_space, actions)

    def _finite(self, obs: Array, rewards: Array, taken: Array) -> Array:
        with np.errstate(over="ignore"):  # what is no float32 becomes inf, which the next line finds
            obs = obs.astype(np.float32)
        bad = ~np.isfinite(obs).all(axis=1) | ~np.isfinite(rewards)
        if not bad.any():
            return obs
        k = int(np.flatnonzero(bad)[0])
        values, what = (rewards[k : k + 1], "a reward") if not np.isfinite(rewards[k]) else (obs[k], "an observation")
        value = values[~np.isfinite(values)][0]
        of = "" if np.isfinite(taken[k]).all() else ", for an action that is not finite either"
        where = f"environment {self._first + k}, step {self._length[k]} of its episode {self._episode[k] + 1}"
        got = f"{what} of {value} in {where}{of}"
        raise BrokenEnvError(expected(f"env_id={self.env_id}", "finite observations and rewards", got))

    def _begin(self, which: NDArray[np.bool_]) -> None:
        seeds: dict[int, int] = {}
        for k in np.flatnonzero(which).tolist():
            seeds[k] = reset_seed(self._seed, self._first + k, int(self._episode[k]))
        self._obs = self._obs.copy()  # the one before is kept as the final observation
        self._obs[which] = self._start(seeds)
        if not (finite := np.isfinite(self._obs).all(axis=1)).all():
            k = int(finite.argmin())
            got = f"one that is not in environment {self._first + k}, from reset for its episode {self._episode[k] + 1}"
            raise BrokenEnvError(expected(f"env_id={self.env_id}", "finite observations", got))
        self._returns[which] = 0.0
        self._length[which] = 0
