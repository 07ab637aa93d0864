"""An agent in a process of its own as a player: it sees what its side sees and answers with actions."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.players.agents import AGENT_FILE, AgentSpec, read_agent
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.games import PlayerFaultError
from multigrid_rl.players.protocol import AnswerError, act, encoded, hello, read_actions, read_ready
from multigrid_rl.players.sandbox import AgentProcess, Limits, ProcessError, TooSlowError
from multigrid_rl.types import GameSpec, SeatView, UniformSource
from multigrid_rl.world.constants import DONE

__all__ = ["AGENT_FILE", "AgentSpec", "ExternalPlayer", "Limits", "read_agent"]


class ExternalPlayer:
    """Plays all seats of a team through an agent's process; for ``play_games``, where each game is played once.

    One process plays all games of a ``play_games``: it starts with :meth:`start` or with the first step, and ends with
    :meth:`close`, with a fault, or when other games begin.

    Args:
        agent: see :func:`~multigrid_rl.players.agents.read_agent`.
        spec: the game.
        team: ``red`` or ``blue``, whose seats it plays.
        scenario: name of the game, told to the agent.
        seed: told to the agent, for whatever it draws.
        limits: what it may use.

    Attributes:
        members: number of seats ``C`` that it acts for: key of ``play_games`` is the team.
        answers: steps that it answered in these games.
        thought_s: seconds that its answers took.

    Raises:
        PlayerError: the game has no such team.
    """

    def __init__(
        self,
        agent: AgentSpec,
        spec: GameSpec,
        team: str,
        scenario: str,
        seed: int,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self.agent = agent
        self.name = agent.name
        self.spec = spec
        self.seats = tuple(seat for seat in spec.seats if spec.team_of(seat) == team)
        if not self.seats:
            raise PlayerError(f"agent {agent.name}: there is no {team} team in this game; its seats are {spec.seats}")
        self.members = len(self.seats)
        self.scenario = scenario
        self.seed = seed
        self.limits = limits
        self._process: AgentProcess | None = None
        self._forget()

    def _forget(self) -> None:
        self.answers = 0
        self.thought_s = 0.0
        self._over: list[int] = []
        self._fault: PlayerFaultError | None = None

    def start(self, games: int) -> None:
        """Start the process for ``games`` games and wait for its "ready".

        Raises:
            PlayerFaultError: it did not get that far.
        """
        self.close()
        self._forget()
        message = encoded(hello(self.spec, self.scenario, self.seats, games, self.seed))
        begin = time.monotonic()
        try:
            self._process = AgentProcess(self.agent, self.limits, self.seed)
            read_ready(self._process.ask(message, self.limits.start_s + begin - time.monotonic()))
        except TooSlowError as error:
            raise self._failed(f"start: not ready within {self.limits.start_s:g} s") from error
        except (ProcessError, AnswerError, OSError) as error:
            raise self._failed(f"start: {error}") from error

    def close(self) -> None:
        """Say goodbye and end the process with everything that it started."""
        if self._process is not None:
            self._process.close(self._ended() + encoded({"type": "bye"}))
            self._process = None

    def __enter__(self) -> ExternalPlayer:
        """The player itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self.close()

    def initial_state(self, games: int) -> NDArray[np.bool_]:
        """Which games (N,) are running: all. A process that has played other games ends."""
        if self.answers or self._fault is not None:
            self.close()
            self._forget()
        return np.ones(games, np.bool_)

    def reset_state(self, state: NDArray[np.bool_], done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which games (N,) are running when those in ``done`` (N,) are over."""
        self._over += np.flatnonzero(state & done).tolist()
        return state & ~done

    def act(
        self,
        view: SeatView,
        state: NDArray[np.bool_],
        rng: UniformSource,  # noqa: ARG002
    ) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Actions (N,), of a team (N, C); ``done`` in games that are over.

        Raises:
            PlayerFaultError: the agent broke a limit or the protocol. Its process has ended then.
        """
        if self._fault is not None:
            raise self._fault
        if self._process is None:
            self.start(len(state))
        actions = np.full((len(state), self.members), DONE, np.int8)
        running = np.flatnonzero(state)
        if len(running):
            actions[running] = self._ask(view.tokens[running], running)
        return (actions[:, 0] if self.members == 1 else actions), state

    def _ask(self, tokens: NDArray[np.uint8], running: NDArray[np.intp]) -> NDArray[np.int8]:
        assert self._process is not None
        message = self._ended() + act(self.spec, self.seats, self.answers, running, tokens)
        left = self.limits.total_s - self.thought_s
        begin = time.monotonic()
        try:
            line = self._process.ask(message, min(self.limits.step_s, left))
            self.thought_s += time.monotonic() - begin
            actions = read_actions(line, self.seats, running)
        except TooSlowError as error:
            each, total = self.limits.step_s, self.limits.total_s
            reason = f"more than {total:g} s for all answers" if left < each else f"no answer within {each:g} s"
            raise self._failed(f"step {self.answers}: {reason}") from error
        except (ProcessError, AnswerError) as error:
            raise self._failed(f"step {self.answers}: {error}") from error
        self.answers += 1
        return actions

    def _ended(self) -> bytes:
        """The message about games that ended since the last one; nothing if none did."""
        over, self._over = self._over, []
        return encoded({"type": "end", "games": over}) if over else b""

    def _failed(self, reason: str) -> PlayerFaultError:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._fault = PlayerFaultError(self.name, reason)
        return self._fault
