"""An agent that plays by a map of what it has seen: it looks for its key, fetches it and opens its door.

Standard library only. It knows nothing but the views of its own seat and the rules: where games start, where walls and
doors are. Each game is a `Seat` with a memory of its own.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

Cell = tuple[int, int]  # (x, y), y grows downwards
Image = list[list[list[int]]]  # image[i][j] = [type, colour, state]

# Types of objects and colours of teams, as they stand in a view.
UNSEEN, WALL, A_DOOR, KEY, BALL, AGENT = 0, 2, 4, 5, 6, 10
COLOUR = {"red": 0, "blue": 2}
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)

# Headings 0 to 3 are +x, +y, -x, -y. All play is in the middle room; each team opens its door from one cell.
STEP = ((1, 0), (0, 1), (-1, 0), (0, -1))
ROOM = frozenset((x, y) for x in range(5, 11) for y in range(1, 7))
DOOR = {"red": (4, 6), "blue": (11, 1)}
FRONT = {"red": (5, 6), "blue": (10, 1)}
START = {"red_0": (9, 1), "red_1": (8, 1), "blue_0": (6, 6), "blue_1": (7, 6)}


def ahead(cell: Cell, heading: int) -> Cell:
    """Return the cell in front of `cell`."""
    return cell[0] + STEP[heading][0], cell[1] + STEP[heading][1]


def window(cell: Cell, heading: int, size: int) -> Iterator[tuple[Cell, Cell]]:
    """Cells that a view shows, as ((i, j), cell): j = size - 1 is the own row, i = size // 2 straight ahead."""
    fx, fy = STEP[heading]
    for i in range(size):
        for j in range(size):
            far, right = size - 1 - j, i - size // 2
            yield (i, j), (cell[0] + far * fx - right * fy, cell[1] + far * fy + right * fx)


class Seat:
    """One seat in one game."""

    def __init__(self, name: str, size: int) -> None:
        self.team = name.partition("_")[0]
        self.colour = COLOUR[self.team]
        self.size = size
        self.cell = START[name]
        self.moved_to: Cell | None = None  # where the last action leads if nobody was in the way
        self.things: dict[Cell, tuple[int, int]] = {}  # cell -> (type, colour) of keys and balls
        self.agents: dict[Cell, int] = {}  # where others are in sight, and their colour
        self.unknown = set(ROOM)  # cells never seen

    def act(self, view: dict[str, Any]) -> int:
        """Take in a view, return an action."""
        image, heading = view["image"], view["direction"]
        self.look(image, heading)
        action = self.choose(image, heading)
        self.moved_to = ahead(self.cell, heading) if action == FORWARD else None
        return action

    def look(self, image: Image, heading: int) -> None:
        """Find out where this is, then note what is in sight."""
        if self.moved_to is not None and self.fits(image, heading, self.moved_to):
            self.cell = self.moved_to
        self.agents.clear()
        for (i, j), cell in window(self.cell, heading, self.size):
            kind, colour, _ = image[i][j]
            if cell not in ROOM or kind == UNSEEN:
                continue
            self.unknown.discard(cell)
            self.things.pop(cell, None)
            if cell == self.cell:
                continue  # shows what is carried
            if kind in (KEY, BALL):
                self.things[cell] = (kind, colour)
            elif kind == AGENT:
                self.agents[cell] = colour

    def fits(self, image: Image, heading: int, cell: Cell) -> bool:
        """Whether a view could be seen from `cell`: walls and doors, and only they, lie outside of the room."""
        for (i, j), seen in window(cell, heading, self.size):
            kind = image[i][j][0]
            if kind != UNSEEN and (kind in (WALL, A_DOOR)) == (seen in ROOM):
                return False
        return True

    def choose(self, image: Image, heading: int) -> int:
        """Follow the plan: eliminate who stands in front, else key, then door."""
        size = self.size
        kind, colour, _ = image[size // 2][size - 2]
        if kind == AGENT and colour != self.colour:
            return TOGGLE
        carried, of, _ = image[size // 2][size - 1]
        front = FRONT[self.team]
        blocked = self.things.get(front) == (BALL, COLOUR["red"] + COLOUR["blue"] - self.colour)
        if carried == BALL or (carried == KEY and blocked):
            return self.put_down(heading)
        if (carried, of) == (KEY, self.colour):
            return self.go(heading, {DOOR[self.team]}, TOGGLE)
        if blocked:
            return self.go(heading, {front}, PICKUP)
        keys = {cell for cell, thing in self.things.items() if thing == (KEY, self.colour)}
        return self.go(heading, keys, PICKUP) if keys else self.explore(heading)

    def go(self, heading: int, targets: set[Cell], action: int) -> int:
        """Return `action` if one of the targets lies in front, else the first move on a shortest way to face one."""
        move = self.way(heading, lambda cell, to: ahead(cell, to) in targets, action)
        return self.clear_the_way(heading) if move is None else move

    def explore(self, heading: int) -> int:
        """Return the first move to where something new comes into sight."""
        move = self.way(heading, lambda cell, to: any(c in self.unknown for _, c in window(cell, to, self.size)), RIGHT)
        return self.clear_the_way(heading) if move is None else move

    def clear_the_way(self, heading: int) -> int:
        """Eliminate an opponent in sight; without one, turn and look for it."""
        opponents = {cell for cell, colour in self.agents.items() if colour != self.colour}
        move = self.way(heading, lambda cell, to: ahead(cell, to) in opponents, TOGGLE)
        return RIGHT if move is None else move

    def put_down(self, heading: int) -> int:
        """Drop what is carried, on a free cell that is in nobody's way."""
        free = ROOM - self.things.keys() - self.agents.keys() - set(FRONT.values()) - {self.cell}
        return self.go(heading, set(free), DROP)

    def way(self, heading: int, arrived: Callable[[Cell, int], bool], action: int) -> int | None:
        """First move of a shortest way over cells and headings, `action` on arrival, `None` if there is no way."""
        start = (self.cell, heading)
        first = {start: action}
        queue = deque([start])
        while queue:
            cell, to = pose = queue.popleft()
            if arrived(cell, to):
                return first[pose]
            following = ahead(cell, to)
            moves = [(LEFT, (cell, (to - 1) % 4)), (RIGHT, (cell, (to + 1) % 4))]
            if following in ROOM and following not in self.things and following not in self.agents:
                moves.insert(0, (FORWARD, (following, to)))
            for move, after in moves:
                if after not in first:
                    first[after] = move if pose == start else first[pose]
                    queue.append(after)
        return None


def main() -> None:
    """One JSON message a line in, one answer a line out."""
    games: dict[int, dict[str, Seat]] = {}
    size = 0
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any] | None = None
        if message["type"] == "hello":
            size = message["view_size"]
            answer = {"type": "ready", "name": "mapmaker"}
        elif message["type"] == "act":
            actions = []
            for game in message["games"]:
                number = game["game"]
                if number not in games:
                    games[number] = {name: Seat(name, size) for name in game["seats"]}
                actions.append({name: games[number][name].act(view) for name, view in game["seats"].items()})
            answer = {"actions": actions}
        elif message["type"] == "end":
            for number in message["games"]:
                games.pop(number, None)
        if answer is not None:
            print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
