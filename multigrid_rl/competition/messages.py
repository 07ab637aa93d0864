"""Messages to a playing program and its answers: one line of JSON each (docs/agents).

A protocol is an entry of ``tables.PROTOCOLS``; a game's place (``players.places``) chooses it.
"""

import json
from base64 import b64encode
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.competition.process import unexpected
from multigrid_rl.players.cards import PlayerError, signature
from multigrid_rl.players.places import place_of
from multigrid_rl.text import expected, shown
from multigrid_rl.types import GameSpec, Seats
from multigrid_rl.world.constants import ACTIONS, CELL, DONE, MISSIONS

#: A longer observation is sent as base64 of float32, which is a third as long and parsed at once.
MOST_NUMBERS = 256
_MOST = float(np.finfo(np.float32).max)
_CELL_TEXT = [json.dumps(triple, separators=(",", ":")) for triple in CELL.tolist()]
_MISSION_TEXT = [json.dumps(text) for text in MISSIONS]


class StepRequest(NamedTuple):
    """The request of one step to a program that plays ``C`` seats."""

    step: int  # number of earlier answers
    games: NDArray[np.intp]  # (n,) their numbers
    observations: NDArray[Any]  # (n, D) of its seats, concatenated
    turn: NDArray[np.bool_]  # (n, C) whose turn it is
    rewards: NDArray[np.float64]  # (n, C) since each seat's last request


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message as one line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> dict[str, Any]:
    """Decode an answer. Raises :class:`ProcessError`."""
    try:
        answer = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise unexpected("answer", "JSON", shown(line) or "an empty line") from error
    if not isinstance(answer, dict):
        raise unexpected("answer", "a JSON object", shown(line))
    return answer


def check_ready(line: bytes) -> None:
    """Raise :class:`ProcessError` unless the agent answers "ready"."""
    if parse(line).get("type") != "ready":
        raise unexpected("answer", '{"type":"ready"}', shown(line))


class DoorsProtocol:
    """Protocol 1: red/blue doors, where every seat acts in every step and observes cells; without rewards.

    Attributes:
        hears: whether messages contain rewards.
        idle: (W,) actions in a game without a request.
        debug: the last answer's note, or ``None``.
    """

    hears = False
    debug: Any = None

    def __init__(self, spec: GameSpec, seats: tuple[str, ...]) -> None:
        self.spec: Any = spec
        self.seats = seats
        self.idle: NDArray[Any] = np.full(len(seats), DONE, np.int8)

    def hello(self, scenario: str | None, games: int, seed: int) -> dict[str, Any]:
        """Return the first message; the default scenario is one with the same game."""
        return {
            "type": "hello",
            "protocol": 1,
            "scenario": scenario or place_of(self.spec).title(self.spec),
            "seats": list(self.seats),
            "view_size": self.spec.view_size,
            "actions": list(ACTIONS),
            "max_steps": self.spec.max_steps,
            "games": games,
            "seed": seed,
        }

    def act(self, request: StepRequest) -> bytes:
        """Encode the request with its seats' views."""
        # Joining prepared text is five times as fast as encoding every number of every cell.
        names, games = [json.dumps(seat) for seat in self.seats], []
        rows = request.observations.reshape(len(request.observations), len(self.seats), -1).tolist()
        for game, row in zip(request.games.tolist(), rows, strict=True):
            views = ",".join(f"{name}:{self._view(tokens)}" for name, tokens in zip(names, row, strict=True))
            games.append(f'{{"game":{game},"seats":{{{views}}}}}')
        return f'{{"type":"act","step":{request.step},"games":[{",".join(games)}]}}\n'.encode()

    def _view(self, tokens: list[int]) -> str:
        size, cells = self.spec.view_size, [_CELL_TEXT[code] for code in tokens[:-2]]
        columns = ",".join(f"[{','.join(cells[i : i + size])}]" for i in range(0, size * size, size))
        mission = f',"mission":{_MISSION_TEXT[tokens[-1]]}' if self.spec.mission_observed else ""
        return f'{{"image":[{columns}],"direction":{tokens[-2]}{mission}}}'

    def end(self, games: list[int], rewards: NDArray[np.float64]) -> dict[str, Any]:  # noqa: ARG002 - see ``hears``
        """Return the message about ended games (n,), and ``rewards`` (n, C) since each seat's last request."""
        return {"type": "end", "games": games}

    def read(self, line: bytes, request: StepRequest) -> NDArray[Any]:
        """Return the actions (n, W) of an answer. Raises :class:`ProcessError`."""
        answer = parse(line)
        actions, self.debug = answer.get("actions"), answer.get("debug")
        if not isinstance(actions, list):
            raise unexpected("answer", '{"actions":[...]}', shown(line))
        if len(actions) != len(request.games):
            raise unexpected("actions", f"one for each of the {len(request.games)} games", len(actions))
        chosen = np.tile(self.idle, (len(actions), 1))
        for k, entry in enumerate(actions):
            for seat, action in self._by_seat(entry, request, k).items():
                requirement = self._set_action(chosen[k], self.seats.index(seat), action, request.observations[k])
                if requirement:
                    raise unexpected(f"game {request.games[k]}: {seat}", requirement, shown(json.dumps(action)))
        return chosen

    def _by_seat(self, entry: Any, request: StepRequest, k: int) -> dict[str, Any]:
        """Return one game's actions by seat. Raises :class:`ProcessError`: not the seats on turn."""
        unnamed = len(self.seats) == 1 and not isinstance(entry, dict)
        by_seat = {self.seats[0]: entry} if unnamed else entry
        acting = [seat for seat, turn in zip(self.seats, request.turn[k], strict=True) if turn]
        if not isinstance(by_seat, dict) or by_seat.keys() != set(acting):
            wanted = f"an action for each of {', '.join(acting)}"
            raise unexpected(f"game {request.games[k]}", wanted, shown(json.dumps(entry)))
        return by_seat

    def _set_action(self, chosen: NDArray[Any], c: int, action: Any, observation: NDArray[Any]) -> str | None:  # noqa: ARG002
        """Write the action of the ``c``-th seat into ``chosen`` (W,), or return the requirement that it breaks."""
        # By type: a bool is an int in Python, and 2.0 equals 2.
        if type(action) is not int or not 0 <= action < len(ACTIONS):
            return f"an integer 0 to {len(ACTIONS) - 1}"
        chosen[c] = action
        return None


class SeatsProtocol(DoorsProtocol):
    """Protocol 2: any game with seats, with numbers, legal choices and rewards.

    Raises ``PlayerError``: seats of a team have different kinds of actions.
    """

    hears = True

    def __init__(self, spec: Seats, seats: tuple[str, ...]) -> None:
        self.spec, self.seats = spec, seats
        self._agents = place_of(spec).agents(spec, {seat: spec.team_of(seat) for seat in seats}, "dtde", shared=False)
        self._sizes = [agent.observation_size for agent in self._agents]
        acts = [agent.action_space for agent in self._agents]
        if len({(type(space), space.shape) for space in acts}) > 1:
            wanted = f"those of {', '.join(seats)} of one kind and length for one program"
            raise PlayerError(expected("actions", wanted, ", ".join(map(str, acts))))
        self._width = int(np.prod(acts[0].shape or (1,)))
        self.idle = np.zeros(self._width * len(acts), np.float32 if isinstance(acts[0], spaces.Box) else np.int64)

    def hello(self, scenario: str | None, games: int, seed: int) -> dict[str, Any]:  # noqa: ARG002 - the game is named
        """Return the first message."""
        seats = {}
        for agent, size in zip(self._agents, self._sizes, strict=True):
            acts = signature(agent, None)["actions"]
            limits = acts if isinstance(acts, dict) else {"choices": acts}
            numbers = size - agent.legal
            encoding = "float32" if numbers > MOST_NUMBERS else "numbers"
            seats[agent.name] = {"size": numbers, "encoding": encoding, **limits}
        game = place_of(self.spec).title(self.spec)
        return {"type": "hello", "protocol": 2, "game": game, "seats": seats, "games": games, "seed": seed}

    def act(self, request: StepRequest) -> bytes:
        """Encode observations, legal choices and new rewards of its seats on turn."""
        parts = np.split(request.observations, np.cumsum(self._sizes)[:-1], axis=1)
        columns = [self._seat_views(agent.legal, part) for agent, part in zip(self._agents, parts, strict=True)]
        games = []
        for k, (game, rewards) in enumerate(zip(request.games.tolist(), request.rewards.tolist(), strict=True)):
            due = np.flatnonzero(request.turn[k]).tolist()
            games.append({"game": game, "seats": {self.seats[c]: {**columns[c][k], "reward": rewards[c]} for c in due}})
        return encode({"type": "act", "step": request.step, "games": games})

    def _seat_views(self, legal: int, observations: NDArray[np.float32]) -> list[dict[str, Any]]:
        """Return the message parts of one seat for each game (n, D)."""
        numbers, flags = np.split(observations, [observations.shape[1] - legal], axis=1)
        long = numbers.shape[1] > MOST_NUMBERS
        rows = [b64encode(row.astype("<f4").tobytes()).decode() for row in numbers] if long else _to_json(numbers)
        legal_choices = [{"legal": np.flatnonzero(row).tolist()} if legal else {} for row in flags]
        return [{"observation": row, **choices} for row, choices in zip(rows, legal_choices, strict=True)]

    def end(self, games: list[int], rewards: NDArray[np.float64]) -> dict[str, Any]:
        """Return the message about ended games, with their last rewards."""
        by_seat = [dict(zip(self.seats, row, strict=True)) for row in rewards.tolist()]
        return {"type": "end", "games": games, "rewards": by_seat}

    def _set_action(self, chosen: NDArray[Any], c: int, action: Any, observation: NDArray[Any]) -> str | None:
        agent, own = self._agents[c], chosen[c * self._width : (c + 1) * self._width]
        space, end = agent.action_space, sum(self._sizes[: c + 1])
        if isinstance(space, spaces.Box):
            wanted = f"{self._width} numbers from {_to_json(space.low)} to {_to_json(space.high)}"
            parts = action if isinstance(action, list) else [action]
            # A bool is an int in Python, and no number may become infinite as float32.
            valid = all(type(part) in (int, float) and -_MOST <= part <= _MOST for part in parts)
            own[:] = parts if valid and len(parts) == self._width else np.nan
            return None if ((own >= space.low) & (own <= space.high)).all() else wanted
        most = space.nvec - 1
        if agent.legal:
            legal = np.flatnonzero(observation[end - agent.legal : end])
            wanted, valid = f"one of {shown(', '.join(map(str, legal)), 100)}", type(action) is int and action in legal
        elif self._width == 1:
            wanted, valid = f"an integer 0 to {most[0]}", type(action) is int and 0 <= action <= most[0]
        else:
            wanted = f"{self._width} integers from 0 to {most.tolist()}"
            valid = isinstance(action, list) and len(action) == self._width
            valid = valid and all(type(n) is int and 0 <= n <= top for n, top in zip(action, most, strict=True))
        own[:] = action if valid else 0
        return None if valid else wanted


def _to_json(numbers: NDArray[np.float32]) -> list[Any]:
    """Return numbers for JSON: integers without a decimal point."""
    exact = np.abs(numbers) < 2**24
    rows: list[Any] = (numbers.astype(np.int64) if (exact & (numbers == np.rint(numbers))).all() else numbers).tolist()
    return rows
