"""Plays the networks of a folder that `multigrid-rl export --agent` wrote; its copy there is called ``agent.py``.

It needs torch, safetensors, gymnasium and what the networks' own files import, and nothing of multigrid_rl: a change of
that package, or the time that it takes to start, is no risk in a cup. Messages: docs/agents.md.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors.torch import load_file

HOME = Path(__file__).parent
NETWORKS_FILE = "networks.json"


class Player:
    """One network on the seats that it plays, with its memory of all games.

    Args:
        row: of ``networks.json``.
        tables: the rest of that file.
        seats: one, or all seats of a team for which it acts at once.
        games: how many are played.
        mirrored: it was trained on the other side of the board.
    """

    def __init__(
        self, row: dict[str, Any], tables: dict[str, Any], seats: list[str], games: int, *, mirrored: bool
    ) -> None:
        module, _, name = row["class"].partition(":")
        reads, generator = spaces.MultiDiscrete(row["categories"]), torch.Generator().manual_seed(0)
        outputs = row["actions"] * len(seats)
        self.network = getattr(importlib.import_module(module), name)(reads, outputs, tuple(row["hidden"]), generator)
        self.network.load_state_dict(load_file(HOME / row["weights"]))
        self.network.eval()
        self.seats, self.mirrored, self.actions = seats, mirrored, row["actions"]
        self.memory = torch.zeros(games, self.network.state_size)
        cells = np.array(tables["cells"])
        self.codes = np.zeros(cells.max(axis=0) + 1, np.uint8)
        self.codes[tuple(cells.T)] = np.arange(len(cells))
        self.swapped, self.turned = (np.array(tables[key], np.uint8) for key in ("swapped", "turned"))
        self.missions = tables["missions"]

    def act(self, games: list[dict[str, Any]], generator: torch.Generator) -> NDArray[np.int64]:
        """Return actions (games, seats)."""
        tokens = np.concatenate([self._tokens([game["seats"][seat] for game in games]) for seat in self.seats], axis=1)
        seen, numbers = torch.from_numpy(tokens), [game["game"] for game in games]
        with torch.inference_mode():
            if self.memory.shape[1]:
                outputs, _, self.memory[numbers] = self.network(seen, self.memory[numbers])
            else:
                outputs = self.network.logits(seen)
            shares = torch.softmax(outputs.reshape(-1, self.actions).double(), dim=1)
            drawn = torch.multinomial(shares, 1, generator=generator)
        return drawn.reshape(len(games), len(self.seats)).numpy()

    def _tokens(self, views: list[dict[str, Any]]) -> NDArray[np.uint8]:
        """Return what one seat sees (games, tokens): cells, heading, mission."""
        image = np.array([view["image"] for view in views])
        cells = self.codes[tuple(np.moveaxis(image, -1, 0))].reshape(len(views), -1)
        heading = np.array([view["direction"] for view in views], np.uint8)
        if self.mirrored:  # from the other side the colours change places, and headings turn by two
            cells, heading = self.swapped[cells], self.turned[heading]
        mission = np.array([self.missions.index(view.get("mission", self.missions[0])) for view in views], np.uint8)
        return np.column_stack([cells, heading, mission])


def players_of(hello: dict[str, Any]) -> list[Player]:
    """Return the players of the seats that the first message names."""
    tables = json.loads((HOME / NETWORKS_FILE).read_text(encoding="utf-8"))
    players, seats = [], list(hello["seats"])
    while seats:
        other = seats[0].replace("red", "blue") if seats[0].startswith("red") else seats[0].replace("blue", "red")
        own = [row for row in tables["networks"] if seats[0] in row["seats"]]
        rows = own or [row for row in tables["networks"] if other in row["seats"]]
        if not rows:
            sys.exit(f"no network in this folder plays {seats[0]}")
        taken, seats = seats[: rows[0]["members"]], seats[rows[0]["members"] :]
        players.append(Player(rows[0], tables, taken, hello["games"], mirrored=not own))
    return players


def main() -> None:
    """Read one message a line, answer with one line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a network's file prints is no answer
    torch.set_num_threads(1)
    players: list[Player] = []
    generator = torch.Generator()
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any] | None = None
        if message["type"] == "hello":
            players, answer = players_of(message), {"type": "ready"}
            generator.manual_seed(message["seed"])
        elif message["type"] == "act":
            actions: list[dict[str, int]] = [{} for _ in message["games"]]
            for player in players:
                for chosen, row in zip(actions, player.act(message["games"], generator).tolist(), strict=True):
                    chosen.update(zip(player.seats, row, strict=True))
            answer = {"actions": actions}
        elif message["type"] == "end":
            for player in players:
                player.memory[message["games"]] = 0
        if answer is not None:
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
