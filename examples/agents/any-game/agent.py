"""An agent of protocol 2 to start from: it plays any game, such as tictactoe, at random among what is legal.

Standard library only. What it sees and what it was paid is there, too: to use that is yours to add.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any


def act(acts: dict[str, Any], view: dict[str, Any], rng: random.Random) -> Any:
    """Return an action. `acts` is what hello says of the seat; `view` has observation, reward and maybe legal."""
    if "legal" in view:
        return rng.choice(view["legal"])
    if "low" in acts:  # numbers within bounds; null where there is none
        bounds = zip(acts["low"], acts["high"], strict=True)
        return [rng.uniform(-1 if low is None else low, 1 if high is None else high) for low, high in bounds]
    choices = acts["choices"]  # a number, or one for each part of an action
    return rng.randrange(choices) if isinstance(choices, int) else [rng.randrange(count) for count in choices]


def main() -> None:
    """One JSON message a line in, one answer a line out."""
    seats: dict[str, Any] = {}
    rng = random.Random()
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any] | None = None
        if message["type"] == "hello":
            seats, rng = message["seats"], random.Random(message["seed"])
            answer = {"type": "ready"}
        elif message["type"] == "act":
            actions = [
                {seat: act(seats[seat], view, rng) for seat, view in game["seats"].items()} for game in message["games"]
            ]
            answer = {"actions": actions}
        if answer is not None:
            print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
