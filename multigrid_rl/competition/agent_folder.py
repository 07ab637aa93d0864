"""Folder of an agent that plays networks of a user's own: weights, the files of their classes, a program."""

import json
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
from torch import Tensor

from multigrid_rl.competition import network_agent
from multigrid_rl.competition.agents import AGENT_FILE, read_agent
from multigrid_rl.players.cards import Card, PlayerError
from multigrid_rl.text import expected
from multigrid_rl.user_code import CODE
from multigrid_rl.world.constants import CELL, MISSIONS
from multigrid_rl.world.symmetry import SWAPPED, TURNED

_PROGRAM = "agent.py"


def write_agent(
    folder: Path, name: str, cards: Mapping[str, Card], weights: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write an agent into the new ``folder``.

    Args:
        folder: of the agent.
        name: of the agent.
        cards: as :func:`~multigrid_rl.competition.bundle.read_cards` returns them; their networks have been built.
        weights: of the same players.

    Raises:
        PlayerError: a network of this package, which needs no agent, or of a module without a file; a player of
            another environment, or a folder that is too large.
        OSError: it cannot be written.
    """
    folder.mkdir()
    rows = []
    for part, card in cards.items():
        code = card.architecture["name"]
        if not CODE.fullmatch(code) or card.env is not None or not isinstance(card.actions, int):
            what = code if card.env is None else card.env.env_id
            wanted = "a network of your own for the red/blue-door game (every other plays from its bundle)"
            raise PlayerError(expected("--agent", wanted, what))
        for path, content in _own_files(code.partition(":")[0]).items():
            if path == Path(_PROGRAM):
                raise PlayerError(expected("--agent", f"a module with another name than {_PROGRAM}", code))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        file = f"{part or 'model'}.safetensors"
        safetensors.torch.save_file({key: value.contiguous() for key, value in weights[part].items()}, folder / file)
        rows.append({
            "class": code, "weights": file, "hidden": card.architecture["hidden"], "actions": card.actions,
            "categories": card.observation.categories, "seats": card.seats, "members": card.members,
        })  # fmt: skip
    tables: dict[str, Any] = {"networks": rows, "cells": CELL.tolist(), "missions": list(MISSIONS)}
    tables |= {"swapped": SWAPPED.tolist(), "turned": TURNED.tolist()}
    (folder / network_agent.NETWORKS_FILE).write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    (folder / _PROGRAM).write_bytes(Path(network_agent.__file__).read_bytes())
    about = f"plays {', '.join(dict.fromkeys(row['class'] for row in rows))}, a network trained with multigrid-rl"
    (folder / AGENT_FILE).write_text(f"command: [python3, {_PROGRAM}]\nname: {name}\nabout: {about[:200]}\n")
    read_agent(folder)


def _own_files(module: str) -> dict[Path, bytes]:
    """Return the file of a module and those of the user's own modules that were imported with it, by relative path."""
    top = _file(sys.modules[module.partition(".")[0]])
    if top is None:
        raise PlayerError(expected("--agent", "a module of Python files, packages with an __init__.py", module))
    root = top.parent.parent if top.name == "__init__.py" else top.parent
    libraries = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    ours = Path(__file__).parents[1]
    files = {}
    for name, found in sorted(sys.modules.items()):
        path = _file(found)
        if path is None or not path.is_relative_to(root) or path.is_relative_to(ours):
            continue
        # Of a folder of installed packages, its own package alone.
        if name.partition(".")[0] == module.partition(".")[0] or not any(map(path.is_relative_to, libraries)):
            files[path.relative_to(root)] = path.read_bytes()
    return files


def _file(module: ModuleType) -> Path | None:
    path = Path(getattr(module, "__file__", None) or "")
    # Some modules name a file that is none: torch.ops is "_ops.py".
    return path.resolve() if path.is_absolute() and path.suffix == ".py" and path.is_file() else None
