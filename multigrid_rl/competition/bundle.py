"""Bundles: a trained player as a folder to hand in. No Ray is needed to play it."""

import json
import os
import re
import shlex
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import safetensors.torch
from gymnasium import spaces
from torch import Tensor, nn

from multigrid_rl.competition import network_agent
from multigrid_rl.competition.agents import AGENT_FILE, SEATED_LIMITS, AgentPlayer, read_agent
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.files import atomic_path
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.players.cards import CARD_FILE, MODEL_FILE, Card, read_card, read_network, sha256_of, write_player
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.places import place_of
from multigrid_rl.runs.players import scenario_of, seat_folders
from multigrid_rl.streams import Streams
from multigrid_rl.text import PlayerError, expected, percent, shown
from multigrid_rl.trust import CODE
from multigrid_rl.types import Policy, Seats, SeatView
from multigrid_rl.world.constants import CELL, MISSIONS, SWAPPED, TURNED

#: ``bundle``: a frozen player; ``team``: a folder with one for each seat; ``agent``: an external agent.
Kind = Literal["bundle", "team", "agent"]
README_FILE = "README.md"
#: The program of an exported agent.
_PROGRAM = "agent.py"
#: The folders of an absolute path, and the character before it.
_FOLDERS = re.compile(r"""(^|[\s=:,\[{'"])/(?!/)(?:[^/,:\]}'"]*/)*(?=[^/\s])""")


def folder_kind(folder: Path) -> Kind:
    """Return the kind of a folder by its files. Raises :class:`PlayerError`: of no kind, or of two."""
    card, agent = (os.path.lexists(folder / name) for name in (CARD_FILE, AGENT_FILE))
    if card != agent:
        return "bundle" if card else "agent"
    if not card and seat_folders(folder):
        return "team"
    found = f"{'both' if card else 'neither'} {CARD_FILE} {'and' if card else 'nor'} {AGENT_FILE}"
    raise PlayerError(expected(folder, "a bundle, a folder with a bundle for each seat, or an agent", found))


def bundle_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of a bundle's players by seat, of a single one by ``""``. Raises ``PlayerError``."""
    if (kind := folder_kind(folder)) == "agent":
        raise PlayerError(expected(folder, "a bundle", "an agent"))
    homes = {"": folder} if kind == "bundle" else seat_folders(folder)
    for home in {folder, *homes.values()}:
        try:  # unknown files are refused; a desktop adds hidden ones
            names = sorted(path.name for path in home.iterdir() if not path.name.startswith("."))
        except OSError as error:
            raise PlayerError(f"{home}: cannot be read: {error.strerror}") from error
        known = (CARD_FILE, MODEL_FILE, README_FILE, *(homes if home == folder else ()))
        if unknown := [name for name in names if name not in known]:
            raise PlayerError(expected(home, f"{CARD_FILE}, {MODEL_FILE} and {README_FILE} alone", shown(unknown[0])))
    return homes


def read_cards(folder: Path) -> dict[str, Card]:
    """Read the cards of a bundle, by seat as :func:`bundle_folders`. Raises :class:`PlayerError`."""
    return {part: read_card(home) for part, home in bundle_folders(folder).items()}


def bundle_sha256(folder: Path) -> str:
    """Return the hash of a bundle's weights; of several models the hash over all hashes. Raises ``PlayerError``."""
    cards = read_cards(folder)
    if "" in cards:
        return cards[""].sha256
    return sha256_of("".join(f"{seat} {card.sha256}\n" for seat, card in cards.items()).encode())


def load_team(
    folder: Path, spec: Seats, team: str, *, greedy: bool = False, limits: Limits = SEATED_LIMITS
) -> dict[str, Policy]:
    """Load the players of all seats of ``team``, by seat, or by team where one acts for all of them.

    A player of one seat also plays equivalent seats, see ``players.places``. An agent plays each game once, within
    ``limits``, by default those of training. ``greedy``: take the likeliest action instead of drawing one. Raises
    ``PlayerError``: damaged, or made for another game or other seats.
    """
    if not (seats := spec.seats_of(team)):
        raise PlayerError(expected(f"{folder}: team", f"one with seats among {', '.join(spec.seats)}", team))
    if folder_kind(folder) == "agent":
        check_programs(folder, spec)
        player = AgentPlayer(read_agent(folder, folder.resolve().name), spec, seats, limits)
        return {team if len(seats) > 1 else seats[0]: player}
    homes = bundle_folders(folder)
    players: dict[str, Policy] = {}
    networks: dict[Path, nn.Module] = {}
    for seat in seats:
        home = _home(folder, homes, place_of(spec).interchangeable_seats(spec, seat))
        card = read_card(home)
        mirrored = place_of(spec).fits(spec, card, seat)
        network = networks[home] if home in networks else networks.setdefault(home, read_network(home, card))
        key = team if card.members > 1 else seat
        players[key] = FrozenPlayer.of(card, network, mirrored=mirrored, greedy=greedy)
    return players


def check_programs(key: object, spec: Seats) -> None:
    """Raise ``PlayerError`` for a game without seats for programs."""
    if not place_of(spec).protocol:
        wanted = f"a bundle, as {place_of(spec).title(spec)} has no seats for programs"
        raise PlayerError(expected(key, wanted, "an agent"))


def _home(folder: Path, homes: dict[str, Path], seats: tuple[str, ...]) -> Path:
    """Return the folder of the first of ``seats`` that has one."""
    if "" in homes:
        return folder
    if (found := next((seat for seat in seats if seat in homes), None)) is None:
        raise PlayerError(expected(f"{folder}: seat", f"one that has a folder, {', '.join(homes)}", seats[0]))
    card = read_card(homes[found])
    if found not in card.seats or card.members != 1:
        raise PlayerError(expected(f"{homes[found]}: seats", f"a player of {found} alone", ", ".join(card.seats)))
    return homes[found]


def export(sources: dict[str, Path], target: Path, *, name: str | None = None, agent: bool = False) -> dict[str, Card]:
    """Write players into the new folder ``target``; returns their cards as :func:`read_cards` does.

    ``sources``: the player's folder under the key ``""``, or one for each seat of a team; the new folder then has a
    bundle for each seat. ``agent``: write an agent that plays them, with the files of their networks' classes. Raises
    ``PlayerError`` and writes nothing: the folder exists, the name is not valid, or a player is damaged.
    """
    if os.path.lexists(target):
        raise PlayerError(expected(target, "a new folder", "one that exists already; nothing was written"))
    name = target.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise PlayerError(expected("--name", "1 to 64 letters, digits, dots, dashes and underscores", name))
    cards = {part: read_card(source) for part, source in sources.items()}
    weights = {part: read_network(source, cards[part]).state_dict() for part, source in sources.items()}
    try:
        with atomic_path(target) as temporary:  # never leaves half a bundle
            if agent:
                write_agent(temporary, name, cards, weights)
                return cards
            for part, card in cards.items():
                values = card.model_dump(exclude={"bytes", "sha256"})
                values["name"] = f"{name}-{part}" if part else name
                values["provenance"] = _without_folders(card.provenance)
                cards[part] = write_player(temporary / part, weights[part], values)
            (temporary / README_FILE).write_text(_readme(name, cards), encoding="utf-8")
    except OSError as error:
        raise PlayerError(f"{target}: cannot be written: {error.strerror}") from error
    return cards


def write_agent(
    folder: Path, name: str, cards: Mapping[str, Card], weights: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write an agent that plays networks, which have been built, into the new ``folder``. Raises as :func:`export`."""
    folder.mkdir()
    rows = []
    for part, card in cards.items():
        code = card.architecture["name"]
        if not CODE.fullmatch(code) or not card.kind.rivals:
            subject = code if card.env is None or card.kind.rivals else card.env.env_id
            wanted = "a network of your own for the red/blue-door game or another with seats (others play from bundles)"
            raise PlayerError(expected("--agent", wanted, subject))
        for path, content in _own_files(code.partition(":")[0]).items():
            if path == Path(_PROGRAM):
                raise PlayerError(expected("--agent", f"a module with another name than {_PROGRAM}", code))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        file = f"{part or 'model'}.safetensors"
        safetensors.torch.save_file({key: value.contiguous() for key, value in weights[part].items()}, folder / file)
        distribution = distribution_of(card.action_space, card.architecture.get("bound", "clip"))
        rows.append({
            "class": code, "weights": file, "hidden": card.architecture["hidden"], "members": card.members,
            "bound": getattr(distribution, "bound", None), "seats": card.seats,
            **card.model_dump(include={"actions"}), **card.observation.model_dump(include={"categories", "size"}),
        })  # fmt: skip
    tables: dict[str, Any] = {"networks": rows, "cells": CELL.tolist(), "missions": list(MISSIONS)}
    tables |= {"swapped": SWAPPED.tolist(), "turned": TURNED.tolist()}
    (folder / network_agent.NETWORKS_FILE).write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    (folder / _PROGRAM).write_bytes(Path(network_agent.__file__).read_bytes())
    about = f"plays {', '.join(dict.fromkeys(row['class'] for row in rows))}, a network trained with multigrid-rl"
    (folder / AGENT_FILE).write_text(f"command: [python3, {_PROGRAM}]\nname: {name}\nabout: {about[:200]}\n")
    read_agent(folder)


def _own_files(module: str) -> dict[Path, bytes]:
    """Return the files of a module and of the user's other imported modules, by relative path."""
    if (top := _file(sys.modules[module.partition(".")[0]])) is None:
        raise PlayerError(expected("--agent", "a module of Python files, packages with an __init__.py", module))
    root = top.parent.parent if top.name == "__init__.py" else top.parent
    libraries = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    package = Path(__file__).parents[1]
    files = {}
    for name, loaded in sorted(sys.modules.items()):
        path = _file(loaded)
        if path is None or not path.is_relative_to(root) or path.is_relative_to(package):
            continue
        # From a folder of installed packages only the module's package.
        if name.partition(".")[0] == module.partition(".")[0] or not any(map(path.is_relative_to, libraries)):
            files[path.relative_to(root)] = path.read_bytes()
    return files


def _file(module: ModuleType) -> Path | None:
    path = Path(getattr(module, "__file__", None) or "")
    # Some modules name a missing file: torch.ops is "_ops.py".
    return path.resolve() if path.is_absolute() and path.suffix == ".py" and path.is_file() else None


def _without_folders(value: Any) -> Any:
    """Return provenance without folders: of absolute paths, in commands too, only the last name stays."""
    if isinstance(value, dict):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    if not isinstance(value, str) or not _FOLDERS.search(value):
        return value
    try:
        words = [] if value.startswith("/") else shlex.split(value)
    except ValueError:  # an open quote: no command
        words = []
    return shlex.join(_FOLDERS.sub(r"\1", word) for word in words) or _FOLDERS.sub(r"\1", value)


def needs_module(card: Card) -> str | None:
    """Return a line about the module that a player's network needs to play; ``None``: no module."""
    name = card.architecture["name"]
    if not CODE.fullmatch(name):
        return None
    module = name.partition(":")[0]
    return (
        f"its network {name} is code, which does not lie in this folder: it plays only where Python finds the module "
        f"{module}, and in no cup; export --agent writes a folder with the code in it, which plays everywhere"
    )


def _readme(name: str, cards: dict[str, Card]) -> str:
    card = next(iter(cards.values()))
    where = "\n".join(
        f"- {(part + '/') if part else 'this folder'}: {card.architecture['name']}, plays {', '.join(card.seats)}, "
        f"sha256 `{card.sha256}`"
        for part, card in cards.items()
    )
    where = f"But {needs}.\n\n{where}" if (needs := needs_module(card)) else where
    game = f"the red/blue-door game, scenario {card.scenario}" if card.env is None else card.env.env_id
    scenario = scenario_of(card) if card.kind.rivals else None
    plays = f"{name}/ scenario={scenario}" if scenario else f"{name}/"
    return _README.format(game=game, name=name, where=where, plays=plays)


#: The front matter is for Hugging Face's hub, which shows this page as the model's card.
_README = """---
library_name: multigrid-rl
tags: [reinforcement-learning, multi-agent, multigrid-rl]
---
# {name}

A trained player of {game}, as multigrid-rl exports it: weights in
`model.safetensors`, everything else in `card.json`. Nothing in here is code.

{where}

Look at it, let it play; docs/agents.md has the way into a cup, and into Python:

    multigrid-rl inspect {name}
    multigrid-rl evaluate {plays}
"""


# --- description of a folder

#: Timed calls of a player, and their seed.
CALLS, SEED = 40, 1
#: Shown rows of a card's strength: a stranger's card may have thousands.
ROWS = 30
_WHAT = {
    "bundle": "a frozen player",
    "team": "a team of frozen players, one for each seat",
    "agent": "an agent in a process of its own",
}


def about(folder: Path) -> Iterator[str]:
    """Yield lines about a bundle or an agent without running it. Raises ``PlayerError``: it is damaged."""
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
    bounded = isinstance(card.action_space, spaces.Box)
    hidden = {"name"} if bounded else {"name", "bound", "log_std"}
    hidden |= {key for key, value in card.architecture.items() if value in (None, False, "none")}
    kind = ", ".join(f"{key} {value}" for key, value in card.architecture.items() if key not in hidden)
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
    rows = [
        f"{row.opponent}: win {percent(row.win, 1)}, draw {percent(row.draw, 1)}, loss {percent(row.loss, 1)} of "
        f"{row.episodes:,} games of {row.scenario}"
        for row in card.strength
    ]
    if len(rows) > ROWS:
        rows[ROWS:] = [f"and {len(card.strength) - ROWS:,} rows more"]
    for k, row in enumerate(rows or ["not measured"]):
        yield _line("" if k else "strength", row)


def seconds_per_action(card: Card, network: nn.Module) -> float:
    """Return the median seconds of a player's calls in one game, the first calls left out."""
    player, streams = FrozenPlayer.of(card, network), Streams(SEED, np.zeros(1, np.int64))
    tokens = card.observation.categories
    observation: Any = np.ones((1, card.observation.size or 0), np.float32)  # every choice is legal
    view = SeatView(observation if tokens is None else np.zeros((1, len(tokens)), np.uint8), None, 0)
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        player.act(view, player.initial_state(1), streams)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[CALLS // 4 :]))
