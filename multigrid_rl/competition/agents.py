"""External agents: reading an agent's folder, and playing seats through its process (docs/agents)."""

import hashlib
import json
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator

from multigrid_rl.competition.folders import FolderPart, read_parts, sha256_of_parts
from multigrid_rl.competition.messages import DoorsProtocol, StepRequest, check_ready, encode
from multigrid_rl.competition.process import AgentProcess, ProcessError, TooSlowError
from multigrid_rl.competition.sandbox import Limits, uses_sandbox
from multigrid_rl.config.scenario import Strict
from multigrid_rl.files import parse_plain_yaml
from multigrid_rl.players.cards import OneLine, PlayerError, read_plain_file
from multigrid_rl.players.catalogue import Naming
from multigrid_rl.players.match import PlayerFaultError
from multigrid_rl.players.places import place_of
from multigrid_rl.tables import PROTOCOLS, find
from multigrid_rl.text import first_error, shown
from multigrid_rl.types import RunError, Seats, SeatView, UniformSource

AGENT_FILE = "agent.yaml"
MAX_AGENT_FILE_BYTES = 10_000
#: Limits of an agent in training, evaluation or play: its total time is as long as a training.
SEATED_LIMITS = Limits(total_s=30 * 86_400.0)

#: Maximum number of notes stored of an agent, and of characters of each.
_MOST_NOTES, _NOTE = 50_000, 200


class _AgentFile(Strict):
    command: list[OneLine] = Field(min_length=1, max_length=50)
    name: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._+-]*)?$")
    about: OneLine = Field(default="", max_length=200)

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, value: list[str]) -> list[str]:
        if not value[0]:
            raise ValueError("expected a program first")
        return value


@dataclass(frozen=True)
class Agent:
    """The folder of an agent, see :class:`~multigrid_rl.players.catalogue.Program`; it runs nothing.

    The folder is read once and stays in memory: every process runs the files that were handed in.
    """

    name: str  # the user's name for it; empty: the name in its file
    folder: Path

    @cached_property
    def file(self) -> _AgentFile:
        """Content of its ``agent.yaml``. Raises ``PlayerError``: the file is missing or not valid."""
        path = self.folder / AGENT_FILE
        data = read_plain_file(path, MAX_AGENT_FILE_BYTES)
        try:
            return _AgentFile.model_validate(parse_plain_yaml(data, as_text=True))
        except ValidationError as error:
            raise PlayerError(f"{path}: {first_error(error)}") from error
        except ValueError as error:
            raise PlayerError(f"{path}: {shown(str(error), 200)}") from error

    @property
    def title(self) -> str:
        """Its name in ``agent.yaml``, or its folder's name. Raises ``PlayerError``."""
        return self.file.name or self.folder.resolve().name

    @cached_property
    def parts(self) -> tuple[FolderPart, ...]:
        """All its files. Raises ``PlayerError`` as ``read_parts``."""
        return tuple(read_parts(self.folder))

    @cached_property
    def sha256(self) -> str:
        """Hash over all its files and their paths."""
        return sha256_of_parts(self.parts)

    def packed(self) -> "Agent":
        """Read all files and return the agent. Raises ``PlayerError``: damaged, too large, or not self-contained."""
        assert self.file.command
        assert self.sha256
        return self

    def seat(self, spec: Seats, seat: str) -> "SeatedAgent":
        """Return the agent on one seat; it starts with its first game. Raises ``PlayerError``."""
        return SeatedAgent(self.packed(), spec, (seat,))


def read_agent(folder: Path, name: str = "") -> Agent:
    """Read the agent in ``folder``. Raises ``PlayerError`` as :meth:`Agent.packed`."""
    return Agent(name, folder).packed()


def is_agent(folder: Path) -> bool:
    """Return whether a folder holds an agent."""
    return os.path.lexists(folder / AGENT_FILE)


def _find(name: str) -> Agent | None:
    return Agent(name, Path(name)) if is_agent(Path(name)) else None


#: Entry of ``tables.NAMINGS``.
NAMING = Naming("the folder of an agent", _find, runs_code=True)


class AgentPlayer(AbstractContextManager["AgentPlayer"]):
    """Plays the ``seats`` of one team through an agent's process, in a ``play_games`` where each game is played once.

    One process plays all games of a ``play_games`` in a fresh copy of the agent's files. It starts in :meth:`start` or
    at the first step, and ends in :meth:`close`, at a fault, or when other games begin. The state of a game is its
    number, -1 after its end.

    The first message contains the name of the ``scenario``, by default the game's title, and a ``seed``, by default
    from a hash of the agent's files.

    Attributes:
        mixing: text that seeds the permutation of game numbers, as boards have the same numbers in all pairings.
        members: number of seats ``C``: with several the key of ``play_games`` is the team.
        answers: number of answered steps in these games.
        started_s, thought_s: the agent's seconds for its start, and for its answers and parsing them here.
        hears: whether the agent receives rewards, see :meth:`hear`.
        protocol: encodes requests and decodes answers; its ``debug`` is the last answer's note.
        notes: notes of answers, by game and step.
    """

    def __init__(
        self,
        agent: Agent,
        spec: Seats,
        seats: tuple[str, ...],
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        scenario: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.agent, self.spec, self.limits = agent, spec, limits
        self.name, self.sha256 = agent.name or agent.title, agent.sha256
        self.seats, self.members, self.scenario = seats, len(seats), scenario
        self.protocol: DoorsProtocol = find(PROTOCOLS, place_of(spec).protocol)(spec, seats)
        self.hears = self.protocol.hears
        # The games follow from other seeds, which the agent does not receive.
        self.seed = int(agent.sha256[:8], 16) if seed is None else seed
        self.mixing = ""
        self._process: AgentProcess | None = None
        self._reset(0)

    def _reset(self, games: int) -> None:
        self.answers = 0
        self.started_s = self.thought_s = 0.0
        self.notes: dict[int, dict[int, str]] = {}
        self._note_count, self._step = 0, -1
        digest = hashlib.sha256(self.mixing.encode()).digest()
        order = np.random.default_rng([*digest]).permutation(games) if self.mixing else np.arange(games)
        self._games, self._game_numbers = games, order  # numbers (N,) of games in messages to the agent
        self._open_games: set[int] = set()  # games of requests whose end was not yet sent
        self._ended_games: list[tuple[int, NDArray[np.float64]]] = []  # their numbers and unsent rewards
        self._unsent_rewards = np.zeros((games, self.members))
        self._fault: PlayerFaultError | None = None

    def start(self, games: int) -> None:
        """Start the process for ``games`` games and wait for its "ready".

        Raises ``PlayerFaultError``: it does not start or answers wrongly; ``ScratchError``: no room for its files.
        """
        self.close()
        self._reset(games)
        message = encode(self.protocol.hello(self.scenario, games, self.seed))
        try:
            self._process = AgentProcess(self.agent.file.command, self.agent.parts, self.limits, self.seed)
            check_ready(self._process.ask(message, self.limits.start_s))
            self.started_s = self._process.took_s
        except TooSlowError as error:
            raise self._fail("start", f"not ready within {self.limits.start_s:g} s") from error
        except (ProcessError, OSError) as error:
            raise self._fail("start", error) from error

    def close(self) -> None:
        """Send the last message, then end the process with everything that it started."""
        if self._process is not None:
            self._process.close(self._end_message() + encode({"type": "bye"}))
            self._process = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def initial_state(self, games: int) -> NDArray[np.intp]:
        """Return the numbers of the games (N,), and end a process that has played other games."""
        if self.answers or self._fault is not None or games != self._games:
            self.close()
            self._reset(games)
        self._unsent_rewards[:] = 0.0
        return np.arange(games)

    def reset_state(self, state: NDArray[np.intp], done: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the numbers of the games (N,) after the end of those in ``done`` (N,)."""
        ended = self._open_games.intersection(state[done].tolist())
        self._ended_games += [(game, self._unsent_rewards[game].copy()) for game in sorted(ended)]
        self._open_games -= ended
        self._unsent_rewards[state[done & (state >= 0)]] = 0.0
        return np.where(done, -1, state)

    def hear(self, state: NDArray[np.intp], rewards: NDArray[np.float64]) -> None:
        """Add the rewards of its seats in a step (N, C) to the next message about the game."""
        self._unsent_rewards[state[state >= 0]] += rewards[state >= 0]

    def act(self, view: SeatView, state: NDArray[np.intp], rng: UniformSource) -> tuple[NDArray[Any], NDArray[np.intp]]:  # noqa: ARG002
        """Return actions (N,), of a team or of several parts (N, W); idle actions in games without a request.

        Raises ``PlayerFaultError``: the agent broke a limit or the protocol; its process has ended.
        """
        if self._fault is not None:
            raise self._fault
        if self._process is None:
            self.start(self._games)
        self._step += 1
        turn = np.ones((len(state), self.members), np.bool_) if view.turn is None else view.turn
        rows = np.flatnonzero((state >= 0) & turn.any(axis=1))
        rows = rows[np.argsort(self._game_numbers[state[rows]], kind="stable")]
        actions = np.tile(self.protocol.idle, (len(state), 1))
        if len(rows):
            games = state[rows]
            numbers, rewards = self._game_numbers[games], self._unsent_rewards[games]
            request = StepRequest(self.answers, numbers, view.tokens[rows], turn[rows], rewards)
            self._unsent_rewards[games] = np.where(request.turn, 0.0, request.rewards)
            actions[rows] = self._ask(request, games)
            self._open_games.update(games.tolist())
        return (actions[:, 0] if actions.shape[1] == 1 else actions), state

    def _ask(self, request: StepRequest, games: NDArray[np.intp]) -> NDArray[Any]:
        assert self._process is not None
        message = self._end_message() + self.protocol.act(request)
        remaining = self.limits.total_s - self.thought_s
        began = time.thread_time()
        try:
            try:
                line = self._process.ask(message, min(self.limits.step_s, remaining))
            finally:
                self.thought_s += self._process.took_s
                began = time.thread_time()
            actions = self.protocol.read(line, request)
            self._note(games)
        except TooSlowError as error:
            each, total = self.limits.step_s, self.limits.total_s
            reason = f"more than {total:g} s for all answers" if remaining < each else f"no answer within {each:g} s"
            raise self._fail(f"step {self.answers}", reason) from error
        except (ProcessError, RecursionError) as error:  # an answer nested too deeply for the parser
            raise self._fail(f"step {self.answers}", error) from error
        finally:
            self.thought_s += time.thread_time() - began
        self.answers += 1
        return actions

    def _note(self, games: NDArray[np.intp]) -> None:
        """Store the note of an answer: a list with an item for each game, or one value for all games."""
        note = self.protocol.debug
        self._note_count += len(games)
        if note is None or self._note_count > _MOST_NOTES:
            return
        by_game = isinstance(note, list) and len(note) == len(games)
        notes = note if by_game else [note]
        texts = [shown(value if isinstance(value, str) else json.dumps(value), _NOTE) for value in notes]
        for game, text in zip(games.tolist(), texts if by_game else texts * len(games), strict=True):
            self.notes.setdefault(game, {})[self._step] = text

    def _end_message(self) -> bytes:
        """Return the message about games that ended since the last one; empty if none did."""
        ended_games, self._ended_games = self._ended_games, []
        if not ended_games:
            return b""
        ended_games.sort(key=lambda each: self._game_numbers[each[0]])
        games, rewards = zip(*ended_games, strict=True)
        return encode(self.protocol.end(self._game_numbers[list(games)].tolist(), np.stack(rewards)))

    def _fail(self, when: str, reason: object) -> PlayerFaultError:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._fault = PlayerFaultError(self.name, f"{when}: {reason}", getattr(reason, "words", ""))
        return self._fault


class SeatedAgent(AgentPlayer):
    """An agent on a seat in training, evaluation or play.

    Games restart under the same number, unless ``once``. A fault is an error of the run, and the total time is long.
    Raises ``PlayerError``: there is no sandbox, and agents are not trusted.
    """

    def __init__(self, agent: Agent, spec: Seats, seats: tuple[str, ...], *, once: bool = False) -> None:
        uses_sandbox()
        super().__init__(agent, spec, seats, SEATED_LIMITS)
        self.once = once

    def seated(self, spec: Seats, seats: tuple[str, ...], once: bool) -> "SeatedAgent":
        """Return a new player for these seats of one team; ``once`` as above."""
        return SeatedAgent(self.agent, spec, seats, once=once)

    def reset_state(self, state: NDArray[np.intp], done: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the numbers of the games (N,) after those in ``done`` (N,) are over."""
        numbers = super().reset_state(state, done)
        return numbers if self.once else state

    def act(self, view: SeatView, state: NDArray[np.intp], rng: UniformSource) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """Return actions as above. Raises ``RunError``: the agent failed or answered wrongly."""
        try:
            return super().act(view, state, rng)
        except PlayerFaultError as error:
            raise RunError(f"player {self.name}: {error}") from error
