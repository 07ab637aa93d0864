"""Plays the networks of a folder that `multigrid-rl export --agent` wrote; its copy there is ``agent.py``.

It needs torch, safetensors, gymnasium and the imports of the networks' files, but not multigrid_rl: changes and start
time of that package are no risk in a cup. Messages: docs/agents.md.
"""

import importlib
import json
import sys
from base64 import b64decode
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
    """One network of a ``row`` of ``networks.json`` on a seat, or all seats of a team, with its memory of all games."""

    def __init__(
        self, row: dict[str, Any], space: spaces.Space[Any], outputs: int, seats: list[str], games: int
    ) -> None:
        module, _, name = row["class"].partition(":")
        generator = torch.Generator().manual_seed(0)
        self.network = getattr(importlib.import_module(module), name)(space, outputs, tuple(row["hidden"]), generator)
        self.network.load_state_dict(load_file(HOME / row["weights"]))
        self.network.eval()
        self.row, self.seats, self.actions = row, seats, row["actions"]
        self.memory = torch.zeros(games, self.network.state_size)

    def outputs(self, observations: torch.Tensor, numbers: list[int]) -> torch.Tensor:
        """Return the network's outputs (n, outputs) in the games ``numbers``."""
        outputs: torch.Tensor
        with torch.inference_mode():
            if self.memory.shape[1]:
                outputs, _, self.memory[numbers] = self.network(observations, self.memory[numbers])
            else:
                outputs = self.network.logits(observations)
        return outputs


def draw(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return one choice for each row (n, choices)."""
    return torch.multinomial(torch.softmax(logits.double(), dim=1), 1, generator=generator)


class DoorsPlayer(Player):
    """Plays red/blue doors (protocol 1); ``mirrored``: trained on the other side of the board."""

    def __init__(
        self, row: dict[str, Any], tables: dict[str, Any], seats: list[str], games: int, *, mirrored: bool
    ) -> None:
        super().__init__(row, spaces.MultiDiscrete(row["categories"]), row["actions"] * len(seats), seats, games)
        self.mirrored = mirrored
        cells = np.array(tables["cells"])
        self.codes = np.zeros(cells.max(axis=0) + 1, np.uint8)
        self.codes[tuple(cells.T)] = np.arange(len(cells))
        self.swapped, self.turned = (np.array(tables[key], np.uint8) for key in ("swapped", "turned"))
        self.missions = tables["missions"]

    def act(self, games: list[dict[str, Any]], generator: torch.Generator) -> list[dict[str, Any]]:
        """Return the actions of each game, by seat."""
        tokens = np.concatenate([self._tokens([game["seats"][seat] for game in games]) for seat in self.seats], axis=1)
        outputs = self.outputs(torch.from_numpy(tokens), [game["game"] for game in games])
        chosen = draw(outputs.reshape(-1, self.actions), generator).reshape(len(games), len(self.seats))
        return [dict(zip(self.seats, row, strict=True)) for row in chosen.tolist()]

    def _tokens(self, views: list[dict[str, Any]]) -> NDArray[np.uint8]:
        """Return the tokens of one seat (games, tokens): cells, heading, mission."""
        image = np.array([view["image"] for view in views])
        cells = self.codes[tuple(np.moveaxis(image, -1, 0))].reshape(len(views), -1)
        heading = np.array([view["direction"] for view in views], np.uint8)
        if self.mirrored:  # for the other side: swapped colours, headings turned by two
            cells, heading = self.swapped[cells], self.turned[heading]
        mission = np.array([self.missions.index(view.get("mission", self.missions[0])) for view in views], np.uint8)
        return np.column_stack([cells, heading, mission])


class NumbersPlayer(Player):
    """Plays one seat of a game with numeric observations (protocol 2)."""

    def __init__(self, row: dict[str, Any], seats: list[str], games: int) -> None:
        acts, self.size = row["actions"], row["size"]
        self.box = isinstance(acts, dict)
        self.parts = [] if self.box else acts if isinstance(acts, list) else [acts]
        outputs = 2 * len(acts["low"]) if self.box else sum(self.parts)
        super().__init__(row, spaces.Box(-np.inf, np.inf, (self.size,)), outputs, seats, games)

    def act(self, games: list[dict[str, Any]], generator: torch.Generator) -> list[dict[str, Any]]:
        """Return the actions of each game by seat; empty at another seat's turn."""
        (seat,) = self.seats
        acting = [k for k, game in enumerate(games) if seat in game["seats"]]
        actions: list[dict[str, Any]] = [{} for _ in games]
        if acting:
            observations = torch.from_numpy(np.stack([self._numbers(games[k]["seats"][seat]) for k in acting]))
            outputs = self.outputs(observations, [games[k]["game"] for k in acting])
            for k, row in zip(acting, self._chosen(outputs, generator), strict=True):
                actions[k][seat] = row
        return actions

    def _numbers(self, view: dict[str, Any]) -> NDArray[np.float32]:
        values = view["observation"]
        numbers = np.frombuffer(b64decode(values), "<f4") if isinstance(values, str) else np.array(values, np.float32)
        flags = np.zeros(self.size - len(numbers), np.float32)
        flags[view.get("legal", [])] = 1.0
        return np.concatenate([numbers, flags])

    def _chosen(self, outputs: torch.Tensor, generator: torch.Generator) -> list[Any]:
        if self.box:
            low, high = (np.array(self.actions[key], np.float32) for key in ("low", "high"))
            mean, log_std = outputs.chunk(2, dim=1)
            raw = (mean + log_std.exp() * torch.randn(mean.shape, generator=generator)).numpy()
            share = np.tanh(raw) if self.row["bound"] == "tanh" else np.clip(raw, -3, 3) / 3
            inside = raw if self.row["bound"] == "clip" else low + (share + 1) / 2 * (high - low)
            bounded = np.clip(inside, np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf))
            return list(bounded.tolist())
        parts = [draw(part, generator) for part in torch.split(outputs, self.parts, dim=1)]
        chosen: list[Any] = torch.cat(parts, dim=1).tolist()
        return chosen if len(self.parts) > 1 else [row[0] for row in chosen]


def players_of(hello: dict[str, Any]) -> list[Any]:
    """Return the players of the seats in the first message."""
    tables = json.loads((HOME / NETWORKS_FILE).read_text(encoding="utf-8"))
    players: list[Any] = []
    seats = list(hello["seats"])
    while seats:
        other = seats[0].replace("red", "blue") if seats[0].startswith("red") else seats[0].replace("blue", "red")
        trained = [row for row in tables["networks"] if seats[0] in row["seats"]]
        if not (rows := trained or [row for row in tables["networks"] if other in row["seats"]]):
            sys.exit(f"no network in this folder plays {seats[0]}")
        played, seats = seats[: rows[0]["members"]], seats[rows[0]["members"] :]
        if hello["protocol"] > 1:
            players.append(NumbersPlayer(rows[0], played, hello["games"]))
        else:
            players.append(DoorsPlayer(rows[0], tables, played, hello["games"], mirrored=not trained))
    return players


def main() -> None:
    """Read one message a line, answer with one line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # output of a network's file is no answer
    torch.set_num_threads(1)
    players: list[Any] = []
    generator = torch.Generator()
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any] | None = None
        if message["type"] == "hello":
            players, answer = players_of(message), {"type": "ready"}
            generator.manual_seed(message["seed"])
        elif message["type"] == "act":
            actions: list[dict[str, Any]] = [{} for _ in message["games"]]
            for player in players:
                for chosen, row in zip(actions, player.act(message["games"], generator), strict=True):
                    chosen.update(row)
            answer = {"actions": actions}
        elif message["type"] == "end":
            for player in players:
                player.memory[message["games"]] = 0
        if answer is not None:
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
