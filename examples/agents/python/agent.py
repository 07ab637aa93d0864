"""An agent to start from: it goes to what it sees, its key first and then its door, and wanders where it sees neither.

Standard library only. It remembers nothing between two steps: no map, no opponent. That is yours to add.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

# Types of objects and colours of teams, as they stand in a view.
EMPTY, A_DOOR, KEY = 1, 4, 5
COLOUR = {"red": 0, "blue": 2}
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)


def act(seat: str, view: dict[str, Any], rng: random.Random) -> int:
    """Return an action. `image[i][j]` is the cell i - middle to the right and last - j ahead: [type, colour, state]."""
    image = view["image"]
    middle, last = len(image) // 2, len(image) - 1
    colour = COLOUR[seat.partition("_")[0]]
    has_key = image[middle][last][:2] == [KEY, colour]  # the own cell shows what is carried
    wanted = [A_DOOR if has_key else KEY, colour]
    cells = [(i - middle, last - j) for i in range(last + 1) for j in range(last + 1) if image[i][j][:2] == wanted]
    if not cells:
        return wander(image[middle][last - 1][0], rng)
    right, ahead = min(cells, key=lambda cell: abs(cell[0]) + cell[1])
    if (right, ahead) == (0, 1):
        return TOGGLE if has_key else PICKUP
    if ahead > 0 and image[middle][last - 1][0] == EMPTY:
        return FORWARD
    return RIGHT if right > 0 else LEFT


def wander(in_front: int, rng: random.Random) -> int:
    """Return a random move, mostly forward where nothing stands in front."""
    if in_front == EMPTY and rng.random() < 0.8:
        return FORWARD
    return rng.choice([LEFT, RIGHT])


def main() -> None:
    """One JSON message a line in, one answer a line out."""
    games: dict[int, random.Random] = {}  # what is drawn in each
    seed = 0
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any] | None = None
        if message["type"] == "hello":
            seed = message["seed"]
            answer = {"type": "ready", "name": "starter"}
        elif message["type"] == "act":
            actions = []
            for game in message["games"]:
                rng = games.setdefault(game["game"], random.Random(f"{seed} {game['game']}"))
                actions.append({seat: act(seat, view, rng) for seat, view in game["seats"].items()})
            answer = {"actions": actions}
        elif message["type"] == "end":
            for number in message["games"]:
                games.pop(number, None)
        if answer is not None:
            print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
