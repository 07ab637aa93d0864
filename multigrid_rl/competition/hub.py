"""Players on Hugging Face's hub: ``hf:user/name`` is fetched, a bundle pushed. What is fetched is data, never code."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multigrid_rl.files import installing
from multigrid_rl.players.cards import CARD_FILE, MAX_CARD_BYTES, MAX_MODEL_BYTES, MODEL_FILE, PlayerError, read_card
from multigrid_rl.players.catalogue import Naming
from multigrid_rl.text import expected, shown
from multigrid_rl.trust import CODE, check_code, strangers
from multigrid_rl.types import RunError

#: ``hf:user/name``, or with a branch, tag or commit behind an @.
HUB = re.compile(r"hf:([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?")
_MOST = {CARD_FILE: MAX_CARD_BYTES, MODEL_FILE: MAX_MODEL_BYTES}


def _library(key: str) -> Any:
    if find_spec("huggingface_hub") is None:
        raise PlayerError(expected(key, f"an installed huggingface_hub: {installing('hub')}", "none"))
    return import_module("huggingface_hub")


@contextmanager
def _hub_errors(key: str, wanted: str) -> Iterator[None]:
    """Turn what the hub answers into one line.

    Raises:
        PlayerError: it refuses what was asked for.
        RunError: it cannot be reached, or fails itself; or the disk is full.
    """
    errors = import_module("huggingface_hub.errors")
    try:
        yield
    except (errors.HTTPError, OSError, ValueError) as error:  # HTTPError is that of what it speaks HTTP with
        reason = shown(str(error), 200) or type(error).__name__
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, ValueError) or 400 <= status < 500:
            raise PlayerError(expected(key, wanted, reason)) from error
        raise RunError(f"{key}: no answer from the hub: {reason}") from error


@lru_cache(maxsize=64)  # asked once in a process: a run plays one version, even if another is pushed meanwhile
def fetched(name: str) -> Path:
    """Return the folder of a player of the hub, fetched, or as it was fetched before where the hub cannot be reached.

    Raises:
        PlayerError: no such player, or larger than one may be.
        ConfigError: its card names code, which is never run.
        RunError: no way to the hub.
    """
    found = HUB.fullmatch(name)
    if found is None:
        raise PlayerError(expected("player", "hf:user/name, or hf:user/name@revision", name))
    api = _library(f"player {name}").HfApi()
    homes = Path(import_module("huggingface_hub.constants").HF_HOME)
    home = homes / "multigrid_rl" / name.removeprefix("hf:").replace("/", "--")
    with _hub_errors(f"player {name}", "a bundle on the hub"):
        for file, most in _MOST.items():
            there = {"repo_id": found[1], "revision": found[2], "filename": file, "local_dir": home}
            size = api.hf_hub_download(**there, dry_run=True).file_size
            if size is not None and size > most:
                raise ValueError(f"{file} of {size} bytes, more than {most}")
            api.hf_hub_download(**there)
    card = read_card(home)
    names = [card.architecture["name"], *([card.env.env_id, str(card.env.env_args)] if card.env else [])]
    with strangers():
        check_code(f"player {name}", (code for text in names for code in CODE.findall(text)), "parts of this project")
    return home


def push(folder: Path, repo: str) -> str:
    """Put a bundle on the hub; returns its address. Raises as :func:`fetched`."""
    hub = _library("--push")
    with _hub_errors("--push", "user/name, and a token (hf auth login)"):
        api = hub.HfApi()
        api.create_repo(repo, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="A player, by multigrid-rl export")
    return str(commit.commit_url)


def _find(name: str) -> Path | None:
    return fetched(name) if name.startswith("hf:") else None


#: Entry of ``tables.PLAYERS``.
NAMING = Naming("hf:user/name", _find)
