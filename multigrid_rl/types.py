"""Data types and protocols that several subpackages share, with shapes after the fields.

Letters used in shapes: ``N`` games, ``A`` agents of a game in index order (blue team first), ``V`` view size,
``E`` event kinds, ``D = V * V + 2`` tokens of one observation.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.text import ConfigError, OneLineError

Colour = Literal["blue", "red"]

#: Most choices of one part of an action; most choices in recorded play, which stores one byte.
MAX_CHOICES, MAX_RECORDED = 8192, 256
#: Most numbers in one observation.
MAX_NUMBERS = 100_000
#: Team order of the game: blue agents come first (docs/game.md, section 2).
TEAM_ORDER: tuple[Colour, ...] = ("blue", "red")


@dataclass(frozen=True)
class Schedule:
    """A number that moves linearly from ``start`` to ``end`` over ``steps`` environment steps, and stays there."""

    start: float
    end: float
    steps: int
    between: tuple[tuple[int, float], ...] = ()  # points (environment steps, number) between start and end

    def at(self, env_steps: int) -> float:
        """Return the number after ``env_steps`` environment steps."""
        first, low = 0, self.start
        for last, high in (*self.between, (self.steps, self.end)):
            if env_steps < last:
                return low + (env_steps - first) / (last - first) * (high - low)
            first, low = last, high
        return self.end


@dataclass(frozen=True)
class Rules:
    """Differences between the two rule sets (docs/game.md, section 8).

    The defaults are the ``fair`` rules, the right column there; :meth:`classic` follows the recorded original bit for
    bit, the left one.
    """

    door_test: Literal["own", "any"] = "own"
    order: Literal["random", "given"] = "random"
    after_success: Literal["stop", "continue"] = "stop"
    eliminated: Literal["out", "linger"] = "out"
    mission_view: Literal["current", "lagged"] = "current"
    key_cells: Literal["not_before_doors", "any"] = "not_before_doors"
    final_view: Literal["after_results", "before_results"] = "after_results"

    @classmethod
    def classic(cls) -> "Rules":
        """Return the rules of the recorded original."""
        return cls(
            door_test="any",
            order="given",
            after_success="continue",
            eliminated="linger",
            mission_view="lagged",
            key_cells="any",
            final_view="before_results",
        )


#: Rule sets by name.
RULE_SETS: dict[str, Rules] = {"fair": Rules(), "classic": Rules.classic()}


@dataclass(frozen=True)
class RewardWeights:
    """Weights of an agent's events in its canonical reward (docs/game.md, section 5)."""

    key_pickup: float = 0.5
    ball_pickup: float = 0.5
    ball_discount: float = 0.9
    invalid_pickup: float = -0.001
    success: float = 1.0
    eliminated_opponent: float = 0.5
    got_eliminated: float = -1.0


class Seats(Protocol):
    """A game with seats: :class:`GameSpec`, or ``envs.pettingzoo.ZooSpec``. See ``tables.PLACES``."""

    @property
    def seats(self) -> tuple[str, ...]:
        """Seat names in index order."""

    def team_of(self, seat: str) -> str:
        """Return the team of a seat. Raises ``ValueError`` for a seat that the game does not have."""

    def seats_of(self, team: str) -> tuple[str, ...]:
        """Return the seats of a team, in index order."""
        return tuple(seat for seat in self.seats if self.team_of(seat) == team)


@dataclass(frozen=True)
class GameSpec(Seats):
    """One configuration of the game (docs/game.md, section 2)."""

    blue: int = 1
    red: int = 1
    obstacle: bool = False
    random_keys: bool = True
    death_match: bool = True
    max_steps: int = 300
    view_size: int = 5
    mission_observed: bool = True
    rules: Rules = field(default_factory=Rules)
    reward: RewardWeights = field(default_factory=RewardWeights)
    #: Seats whose weights differ from ``reward``.
    seat_reward: tuple[tuple[str, RewardWeights], ...] = ()

    @property
    def seats(self) -> tuple[str, ...]:
        """Seat names in index order, blue first: ``("blue_0", "red_0")`` for 1v1."""
        sizes: dict[Colour, int] = {"blue": self.blue, "red": self.red}
        return tuple(f"{team}_{k}" for team in TEAM_ORDER for k in range(sizes[team]))

    @property
    def num_agents(self) -> int:
        """Number of agents ``A``."""
        return self.blue + self.red

    @property
    def num_tokens(self) -> int:
        """Length ``D`` of one observation's token vector."""
        return self.view_size * self.view_size + 2

    def team_of(self, seat: str) -> Colour:
        """Return the team colour of a seat name. Raises ``ValueError`` for a seat this game does not have."""
        if seat not in self.seats:
            raise ConfigError(f"seat: expected {', '.join(self.seats)}, got {seat!r}")
        return "blue" if seat.startswith("blue") else "red"

    def weights_of(self, seat: str) -> RewardWeights:
        """Return the reward weights of a seat."""
        return dict(self.seat_reward).get(seat, self.reward)


class Clock:
    """Sums the seconds of each part of an iteration; call ``begin``, then ``lap`` after each part."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Start timing."""
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to ``part``."""
        now = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now

    def drain(self) -> dict[str, float]:
        """Return seconds by part since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class RunError(OneLineError, RuntimeError):
    """A run broke off; its reports and its last checkpoint are in its folder. The message is one line.

    Attributes:
        hint: how to continue, in one line; empty if there is nothing to continue from.
    """

    status = 3


class Board(NamedTuple):
    """The full state of ``N`` boards, which only scripted baselines read."""

    cells: NDArray[np.uint8]  # (N, 128) cell codes, index x * 8 + y, agents not drawn in
    position: NDArray[np.uint8]  # (N, A) cell index
    heading: NDArray[np.uint8]  # (N, A) 0 +x, 1 +y, 2 -x, 3 -y
    hand: NDArray[np.uint8]  # (N, A) code of the carried object, EMPTY for none
    out: NDArray[np.uint8]  # (N, A) 1 where the agent is eliminated or its game is over


class SeatView(NamedTuple):
    """A seat's observation of ``N`` games; in red/blue doors ``V * V`` cell codes by ``[i][j]``, heading, mission."""

    tokens: NDArray[Any]  # (N, D) uint8, in other environments possibly float32; for a team (N, C * D)
    board: Board | None  # the referee's view, for scripted players only
    seat: int  # agent index of the (first) seat
    turn: NDArray[np.bool_] | None = None  # (N, C) true if the seat decides now; None: every seat does


class UniformSource(Protocol):
    """A source of random numbers with one independent stream for each game."""

    def uniform(self, columns: int) -> NDArray[np.float64]:
        """Return ``(N, columns)`` numbers in [0, 1); each game's stream advances by ``columns``."""


class Policy(Protocol):
    """A player: a pure function from view and state to actions and next state, batched over games."""

    name: str

    def initial_state(self, games: int) -> Any:
        """Return the state of ``games`` fresh games (``None`` for a player without memory)."""

    def reset_state(self, state: Any, done: NDArray[np.bool_]) -> Any:
        """Return the state with the games in ``done`` (shape ``(N,)``) reset."""

    def act(self, view: SeatView, state: Any, rng: UniformSource) -> tuple[NDArray[Any], Any]:
        """Return actions ``(N,)``, or ``(N, C)`` for several components or a team, and the next state."""


class EpisodeTable(NamedTuple):
    """Finished episodes, one row each (``M`` rows)."""

    length: NDArray[np.int32]  # (M,) steps
    returns: NDArray[np.float64]  # (M, A) canonical return
    events: NDArray[np.float64]  # (M, A, E) sums over the episode
    winner: NDArray[np.int8]  # (M,) 0 red, 1 blue, -1 a draw
    players: NDArray[np.int16]  # (M, P) number of the player in each of the ``MultiAgentSpec.pools``

    @classmethod
    def empty(cls, agents: int, events: int, pools: int = 0, rows: int = 0) -> "EpisodeTable":
        """Return a table without rows, or with ``rows`` of zeros."""
        return cls(
            np.zeros(rows, np.int32),
            np.zeros((rows, agents), np.float64),
            np.zeros((rows, agents, events), np.float64),
            np.zeros(rows, np.int8),
            np.zeros((rows, pools), np.int16),
        )

    @classmethod
    def concatenate(cls, tables: "list[EpisodeTable]") -> "EpisodeTable":
        """Return the rows of all ``tables`` (at least one), in order."""
        return cls(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))

    def rows(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> "EpisodeTable":
        """Return the rows in ``which``, by number or as a mask (M,)."""
        return EpisodeTable._make(column[which] for column in self)

    def with_players(self, pools: dict[int, tuple[str, ...]]) -> dict[str, NDArray[np.bool_]]:
        """Return a mask (M,) of each player's episodes; ``pools``: column of ``players`` -> names of its players.

        Numbers beyond the last name count for it: all snapshots of a league share one name.
        """
        masks: dict[str, NDArray[np.bool_]] = {}
        for column, names in pools.items():
            for k, name in enumerate(names):
                present = np.minimum(self.players[:, column], len(names) - 1) == k
                masks[name] = masks[name] | present if name in masks else present
        return masks

    @property
    def episodes(self) -> int:
        """Number of rows ``M``."""
        return len(self.length)


#: A user's training reward: (events (N, A, E), canonical reward (N, A)) -> reward (N, A). Never used for gates.
Shaping = Callable[[NDArray[np.float32], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class AgentSpec:
    """A learning agent: one seat (DTDE, CTDE) or a team with a joint action (CTCE).

    Spaces: a ``MultiDiscrete`` (D,) of tokens or a ``Box`` (D,) of floats; a ``MultiDiscrete`` (C,) or a ``Box`` (A,).
    """

    name: str
    module: str  # name of its network; several agents may share one
    seats: tuple[str, ...]  # its seats: columns of the episode table
    observation_space: spaces.Space[Any]  # observations of its actor
    action_space: spaces.Space[Any]  # joint actions of all its seats
    critic_space: spaces.Space[Any] | None = None  # additional observations of its critic, after those of the actor
    legal: int = 0  # number of values at the end of an observation that mark legal choices
    image: tuple[int, ...] = ()  # shape (height, width, channels) of an image at the start of an observation
    own: Any = None  # spaces of the environment (``envs.zoo.Seat``) if those of the network differ

    @property
    def observation_size(self) -> int:
        """Length of one observation, the critic's part included."""
        parts = [self.observation_space, *([] if self.critic_space is None else [self.critic_space])]
        return sum(int(np.prod(part.shape)) for part in parts if part.shape is not None)


@dataclass(frozen=True)
class MultiAgentSpec:
    """Agents, seats and teams of an environment, known before any environment is built."""

    agents: tuple[AgentSpec, ...]  # learning agents
    seats: tuple[str, ...]  # columns of the episode table
    teams: tuple[str, ...]  # team of each seat
    team_names: tuple[str, ...]  # ``EpisodeTable.winner`` is an index into these
    events: tuple[str, ...]  # names of the event columns
    pools: tuple[tuple[str, tuple[str, ...]], ...] = ()  # seats with a pool of players, and the players' names
    has_winner: bool = True  # whether ``EpisodeTable.winner`` has a meaning

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the networks, each once, in order."""
        return tuple(dict.fromkeys(agent.module for agent in self.agents))

    @property
    def learning(self) -> tuple[str, ...]:
        """Seats that learn, in order."""
        return tuple(seat for agent in self.agents for seat in agent.seats)

    def members(self, team: str) -> tuple[str, ...]:
        """Return the seats of a team."""
        return tuple(seat for seat, other in zip(self.seats, self.teams, strict=True) if other == team)

    def agent_of(self, module: str) -> AgentSpec:
        """Return the first agent of ``module`` (all have the same spaces). Raises ``StopIteration``: none."""
        return next(agent for agent in self.agents if agent.module == module)


class BatchedStep(NamedTuple):
    """One step of ``N`` environments. Arrays may change at the next step: copy them to store them.

    Keys are seats, or agents if a scheme grouped seats (``envs.grouping``).
    """

    observations: dict[str, NDArray[Any]]  # (N, D) observations for the next actions
    final_observations: dict[str, NDArray[Any]]  # (N, D) valid only in rows of ``done`` environments
    rewards: dict[str, NDArray[np.float64]]  # (N,) training reward
    terminated: dict[str, NDArray[np.bool_]]  # (N,)
    mask: dict[str, NDArray[np.bool_]]  # (N,), of agents (N, C): that seat was in the game when the step began
    truncated: NDArray[np.bool_]  # (N,)
    done: NDArray[np.bool_]  # (N,) the episode ended in this step


class BatchedEnv(Protocol):
    """``N`` parallel environments, by seat or, in training, by agent: the interface for training."""

    num_envs: int

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Reset all environments; returns observations (N, D) of each agent."""

    def observations(self) -> dict[str, NDArray[Any]]:
        """Return the current observations."""

    def step(self, actions: dict[str, NDArray[Any]]) -> BatchedStep:
        """Play one step with auto-reset; ``actions`` holds (N,) or (N, C) numbers for each agent."""

    def drain_episodes(self) -> EpisodeTable:
        """Return the episodes that finished since the last call."""

    def drain_seconds(self) -> dict[str, float]:
        """Return the seconds spent on ``engine`` and background ``players`` since the last call."""

    def get_state(self) -> dict[str, Any]:
        """Return the complete state for an exact continuation; arrays are copies."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the state of :meth:`get_state`. Raises ``ValueError`` for a state of other environments."""


class EnvFactory(Protocol):
    """Builds environments; it can be sent to another process."""

    @property
    def specs(self) -> MultiAgentSpec:
        """Agents, seats and teams of the environments."""

    def load(self) -> dict[str, tuple[Any, ...]]:
        """Load and check background players, by seat. Raises ``ValueError``: a player or an id cannot play."""
        _ = self.specs
        return {}

    def check_reward(self) -> None:
        """Try the user's training reward, if there is one. Raises ``ConfigError``: it cannot be used."""
        return

    def packed(self) -> "EnvFactory":
        """Return a factory with the content of its files, for a process that cannot read them."""
        return self

    def build(self, num_envs: int, first: int) -> BatchedEnv:
        """Build environments number ``first`` to ``first + num_envs - 1``, by agent."""
