"""What a bundle or an agent is, in lines; whether it plays, ``serve.judge`` finds out."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from multigrid_rl.competition.agents import read_agent
from multigrid_rl.competition.bundle import bundle_folders, folder_kind, read_cards
from multigrid_rl.players.cards import BoxSignature, Card, read_network
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.streams import Streams
from multigrid_rl.text import shown
from multigrid_rl.types import SeatView

#: Of a player, to find out how long one takes.
CALLS, SEED = 40, 1
#: Of what a card says about its strength: a stranger may say it of thousands of opponents.
ROWS = 30
_WHAT = {
    "bundle": "a frozen player",
    "team": "a team of frozen players, one for each seat",
    "agent": "an agent in a process of its own",
}


def about(folder: Path) -> Iterator[str]:
    """Yield lines about a bundle or an agent, of which nothing is run. Raises ``PlayerError``: it is damaged."""
    kind = folder_kind(folder)
    yield f"{shown(folder.resolve().name)}: {_WHAT[kind]}"
    if kind == "agent":
        agent = read_agent(folder)
        yield _line("name", shown(agent.title))
        yield _line("command", shown(" ".join(agent.file.command), 200))
        yield _line("about", agent.file.about or "unknown")
        yield _line("files", f"sha256 {agent.sha256}")
        return
    cards = read_cards(folder)
    for part, path in bundle_folders(folder).items():
        network = read_network(path, cards[part])
        yield from _about(cards[part], sum(weight.numel() for weight in network.state_dict().values()))
        yield _line("latency", f"{1e3 * seconds_per_action(cards[part], network):.2f} ms an action, one at a time")


def _line(key: str, value: object) -> str:
    return f"  {key:<12} {value}"


def _about(card: Card, weights: int) -> Iterator[str]:
    provenance: dict[str, Any] = card.provenance
    bounded = isinstance(card.actions, BoxSignature)
    silent = {"name"} if bounded else {"name", "bound", "log_std"}
    silent |= {key for key, value in card.architecture.items() if value in (None, False, "none")}
    kind = ", ".join(f"{key} {value}" for key, value in card.architecture.items() if key not in silent)
    acts = "numbers" if bounded else f"among {card.actions} actions"
    members = f"for {card.members} seats at once" if card.members > 1 else "for one seat"
    yield _line("name", card.name)
    yield _line("network", shown(f"{card.architecture['name']}, {kind}", 200))
    yield _line("weights", f"{weights:,} in {card.bytes:,} bytes, sha256 {card.sha256}")
    yield _line("reads", card.observation)
    yield _line("chooses", shown(f"{acts}, {members}"))
    yield _line("seats", f"{', '.join(card.seats)} of {card.scenario if card.env is None else card.env.env_id}")
    steps = provenance.get("env_steps")
    yield _line("trained for", "unknown" if steps is None else f"{steps:,} environment steps")
    for key in ("seed", "commit"):
        yield _line(key, shown(str(provenance.get(key, "unknown"))))
    versions = provenance.get("versions")
    pairs = versions.items() if isinstance(versions, dict) else ()
    yield _line("versions", shown(", ".join(f"{name} {version}" for name, version in pairs), 200) or "unknown")
    yield _line("opponents", _opponents(provenance.get("opponents")))
    rows = [
        f"{row.opponent}: win {row.win:.1%}, draw {row.draw:.1%}, loss {row.loss:.1%} of {row.episodes:,} games of "
        f"{row.scenario}"
        for row in card.strength
    ]
    if len(rows) > ROWS:
        rows[ROWS:] = [f"and {len(card.strength) - ROWS:,} rows more"]
    for k, row in enumerate(rows or ["not measured"]):
        yield _line("" if k else "strength", row)


def seconds_per_action(card: Card, network: nn.Module) -> float:
    """Return how long a player takes to act in one game: the median of some calls, the first ones left out."""
    player, streams = FrozenPlayer.of(card, network), Streams(SEED, np.zeros(1, np.int64))
    tokens = card.observation.categories
    seen: Any = np.ones((1, card.observation.size or 0), np.float32)  # every choice is legal
    view = SeatView(seen if tokens is None else np.zeros((1, len(tokens)), np.uint8), None, 0)
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        player.act(view, player.initial_state(1), streams)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[CALLS // 4 :]))


def _opponents(value: object) -> str:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    names = ", ".join(
        f"{row.get('seat')} {row.get('name')}" + (f" ({str(row['sha256'])[:16]}...)" if row.get("sha256") else "")
        for row in rows
    )
    return shown(names, 300) or "unknown"
