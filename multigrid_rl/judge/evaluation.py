"""Playing a run's exported policies again: fresh games, no training, no Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import yaml
from pydantic import ValidationError

from multigrid_rl.config import ConfigError
from multigrid_rl.players.cards import PlayerError, read_card, read_network
from multigrid_rl.players.catalogue import Seated
from multigrid_rl.players.factories import env_factory
from multigrid_rl.players.factory import seat_players
from multigrid_rl.players.freeze import run_player
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.games import play_episodes
from multigrid_rl.schema import RunConfig
from multigrid_rl.types import EpisodeTable

#: ``stochastic`` draws actions as in training, ``argmax`` takes the likeliest.
Mode = Literal["stochastic", "argmax"]
MODES: tuple[Mode, ...] = ("stochastic", "argmax")


def run_config(run: Path) -> RunConfig:
    """The configuration of a run folder. Raises ``ConfigError`` if there is none that this version understands."""
    path = run / "config.yaml"
    try:
        return RunConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{run}: holds no run: {path.name}: {error.strerror}") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path}: not a run's configuration: {' '.join(str(error).split())}") from error


def _opponent_hashes(run: Path) -> dict[str, str]:
    # The ladder may have been trained anew since: the run is judged against those that it met.
    path = run / "provenance.json"
    try:
        opponents = json.loads(path.read_text(encoding="utf-8"))["opponents"]
        return {row["name"]: row["sha256"] for row in opponents if row["sha256"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: does not say who the opponents were") from error


def replay_policy(
    run: Path, *, episodes: int, seed: int, mode: Mode, checkpoint: str | None = None
) -> tuple[RunConfig, EpisodeTable]:
    """Play ``episodes`` fresh games with a run's exported policies against the opponents it trained against.

    Returns the run's configuration and the finished games.

    Args:
        run: run folder.
        episodes: number of games.
        seed: of the games; another one than the run's gives games that training never saw.
        mode: how the run's own policies act; its opponents always act as they did in training.
        checkpoint: name of a checkpoint, the latest by default.

    Raises:
        ConfigError, PlayerError: no run, no such checkpoint, a damaged player.
    """
    config = run_config(run)
    factory = env_factory(config, _opponent_hashes(run))
    seated = factory.load()
    for unit in factory.cast.units:
        folder = run_player(run, unit.module, checkpoint)
        card = read_card(folder)
        for seat in unit.seats:
            if seat not in card.seats:
                raise PlayerError(f"{folder}: seats={card.seats}: allowed is a player of {seat}")
            network = read_network(folder, card)
            player = FrozenPlayer(card.name, network, card.sha256, members=card.members, greedy=mode == "argmax")
            seated[seat] = (Seated(player, card.name, card.sha256, [], members=card.members),)
    spec = config.scenario.spec
    return config, play_episodes(spec, seat_players(spec, seated), episodes, seed=seed)
