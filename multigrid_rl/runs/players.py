"""Players of runs and of the catalogue: their folders, where they play, and whether they fit there."""

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.recipes import names_in
from multigrid_rl.config.scenario import env_signature, kind_named, task_of
from multigrid_rl.config.schema import RunConfig
from multigrid_rl.models.distributions import distribution_of
from multigrid_rl.players.cards import (
    CARD_FILE,
    Card,
    EnvSignature,
    PlayerError,
    PlayerFiles,
    read_card,
    read_files,
    read_network,
)
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer, Naming, load_frozen, runs_code
from multigrid_rl.players.classes import agent_player_from_class, code_of
from multigrid_rl.players.frozen import FrozenPlayer, check_agent
from multigrid_rl.players.places import counterpart, place_of
from multigrid_rl.runs.reader import run_config
from multigrid_rl.tables import IMPORTED, entries
from multigrid_rl.text import ConfigError, expected, shown, suggestion
from multigrid_rl.trust import CODE, check_code
from multigrid_rl.types import AgentSpec, MultiAgentSpec

_BOARD = "the red/blue-door game"
#: The folder of a player's seat among those of a team.
_SEAT = re.compile(r"(red|blue)_\d")
#: What may differ between a network and one that begins with its weights.
FREE = {"log_std", "scale_values"}


def run_players(run: Path, checkpoint: str | None = None) -> Path:
    """Return the folder of all players of a run, from its latest checkpoint or a named one. Raises ``PlayerError``."""
    checkpoints = run / "checkpoints"
    try:
        name = checkpoint or (checkpoints / "latest").read_text(encoding="utf-8").strip()
        players = checkpoints / name / "players"
        complete, has_players = (checkpoints / name).is_dir(), players.is_dir() and any(players.iterdir())
    except OSError as error:  # also of a name that is too long for one
        raise PlayerError(expected(run, "a run with a checkpoint", error.strerror)) from error
    except ValueError as error:
        raise PlayerError(expected(checkpoints / "latest", "the name of a checkpoint", error)) from error
    if complete and not has_players:
        raise PlayerError(f"{checkpoints / name}: expected a run of the red/blue-door game, got one without players")
    if not has_players:
        known = sorted(path.name for path in checkpoints.glob("step_*"))
        got = shown(name) + suggestion(name, known)
        raise PlayerError(expected("checkpoint", f"{', '.join(known) or 'none'} of {run}", got))
    return players


def run_player(run: Path, seat: str, checkpoint: str | None = None) -> Path:
    """Return the folder of a run's player, by its seat or its network, from its latest checkpoint or a named one.

    Raises ``PlayerError``.
    """
    players = run_players(run, checkpoint)
    known = sorted(path.name for path in players.iterdir())
    found = seat if seat in known else next((name for name in known if seat in read_card(players / name).seats), None)
    if found is None:
        raise PlayerError(expected("seat", f"{', '.join(known)}, trained in {run}", seat + suggestion(seat, known)))
    return players / found


def players_for(run: Path, seat: str, checkpoint: str | None = None) -> dict[str, Path]:
    """Return the folder of a seat's or a team's player under the key ``""``; of a team with several, each by its seat.

    Raises ``PlayerError``: no such player.
    """
    players = run_players(run, checkpoint)
    if (players / seat).is_dir():
        return {"": players / seat}
    cards = {path: read_card(path) for path in sorted(players.iterdir())}
    team = run_config(run).scenario.kind.seats_of(seat)
    homes = {mate: path for mate in team for path, card in cards.items() if mate in card.seats}
    alone = len(set(homes.values())) == 1
    return {"": next(iter(homes.values()))} if alone else homes or {"": run_player(run, seat, checkpoint)}


def seat_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of single seats by seat, in order. Raises :class:`PlayerError` for one that is a link."""
    try:
        found = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_seat(path)]
    except OSError as error:
        raise PlayerError(f"{folder}: cannot be read: {error.strerror}") from error
    for path in found:
        if path.is_symlink():
            raise PlayerError(expected(path, "a folder", "a symbolic link"))
    return {path.name: path for path in found}


def _is_seat(folder: Path) -> bool:
    """Return whether a folder is named after a seat: of red/blue doors, or one that its card names."""
    with suppress(PlayerError):
        return bool(_SEAT.fullmatch(folder.name)) or folder.name in read_card(folder).seats
    return False


def is_run(who: str) -> bool:
    """Return whether ``who`` is the folder of a run, not a player."""
    return os.path.isfile(Path(who) / "config.yaml")  # noqa: PTH113 - false for a name that is too long, too


@dataclass(frozen=True)
class RunPlayers:
    """The players of a run's newest checkpoint under one name, see :class:`~multigrid_rl.players.catalogue.Program`."""

    title: str
    files: tuple[PlayerFiles, ...] = ()  # once they are packed
    folder: ClassVar[None] = None

    def packed(self) -> "RunPlayers":
        """Return the same with the files of all players in memory. Raises ``PlayerError``."""
        return self if self.files else replace(self, files=tuple(map(read_files, self._folders())))

    def _folders(self) -> list[Path]:
        return sorted(run_players(Path(self.title)).iterdir())

    def seat(self, spec: Any, seat: str) -> FrozenPlayer:
        """Load the player that was trained for a seat, for its counterpart, or for another that fits there.

        Raises ``PlayerError``: no checkpoint, or none of its players fits.
        """
        place, near = place_of(spec), (seat, counterpart(spec, seat))

        def fits(card: Card) -> bool:
            with suppress(PlayerError):
                place.fits(spec, card, seat)
                return True
            return False

        sources = [(read_card(source), source) for source in self.files or self._folders()]
        sources.sort(key=lambda row: [other not in row[0].seats for other in near])
        card, source = next((row for row in sources if fits(row[0])), sources[0])
        player: Any = load_frozen(self.title, source, card, spec, seat).player
        if len(sources) > 1:  # one name has one hash, whichever seats it fills
            player.sha256 = sha256("".join(sorted(card.sha256 for card, _ in sources)).encode()).hexdigest()
        loaded: FrozenPlayer = player
        return loaded


#: Entry of ``tables.NAMINGS``.
NAMING = Naming("a run", lambda name: RunPlayers(name) if is_run(name) else None)


def env_of(who: str) -> EnvSignature | None:
    """Return the environment of another package that a frozen player was made for; ``None`` for every other player.

    Raises ``PlayerError``: damaged, or a folder of something else.
    """
    card = Catalogue().card_of(who)
    return None if card is None else card.env


def of_other_package(who: str, overrides: Sequence[str] = ()) -> bool:
    """Return whether a player or a run is one of an environment without opponents. Raises as :func:`env_of`.

    A class of the user's own plays where ``overrides`` say.
    """
    if is_run(who):
        return not run_config(Path(who)).scenario.kind.rivals
    if code_of(who) is not None:
        return bool(overrides) and not compose(list(overrides)).scenario.kind.rivals
    env = env_of(who)
    return env is not None and not kind_named(env.package).rivals


def config_of(who: str, overrides: Sequence[str]) -> RunConfig:
    """Return where a player or a run plays: as ``overrides`` say, else in its own environment or scenario.

    Raises ``ConfigError``, ``PlayerError``: no such player or run, or an environment that its file may not name.
    """
    typed = {override.partition("=")[0].removeprefix("scenario.") for override in overrides}
    if is_run(who):
        if overrides:
            return compose(list(overrides))
        config = run_config(Path(who))
        check_env(f"{who}/config.yaml", config.scenario.env_id, config.scenario.env_args)
        return config
    if typed & {"scenario", "experiment", "env_id"}:
        return compose(list(overrides))
    env = env_of(who)
    if env is None:
        return compose([f"scenario={Catalogue().title_of(who)[1]}", *overrides])
    folder = Catalogue().folder(who)
    if (scenario := scenario_of(read_card(folder))) is not None:
        return compose([f"scenario={scenario}", *overrides])
    card = folder / CARD_FILE
    check_env(card, env.env_id, env.env_args)
    # A stranger's card opens no files, such as a body's model, and reads no environment variables.
    written = json.dumps(env.env_args, ensure_ascii=False)
    if re.search(r"[/\\]|\$\{", written) or not all(key.isidentifier() for key in env.env_args):
        wanted = f"no paths and ${{...}}; of a card that you trust, type env_id={env.env_id} env_args=..."
        raise ConfigError(expected(f"{card}: env.env_args", wanted, shown(str(env.env_args), 200)))
    own = [f"scenario={env.package}", f"scenario.env_id={env.env_id}"]
    own += [f"scenario.agents={env.agents}"] if env.agents != 1 else []
    own += [f"scenario.env_args.{key}={json.dumps(value)}" for key, value in env.env_args.items()]
    return compose([*own, *overrides])


def scenario_of(card: Card) -> str | None:
    """Return the scenario that a player was made for; ``None``: we have none of that name with its environment."""
    if card.env is None:
        return card.scenario
    known = card.scenario in names_in("scenario")
    same = known and env_signature(load_scenario(card.scenario)) == card.env.model_dump()
    return card.scenario if same else None


def code_of_run(config: RunConfig) -> list[str]:
    """Return what of other people's code a run's scenario names: environments, players, agents' folders."""
    scenario = config.scenario
    names = [name for row in scenario.opponents.values() for name in row]
    own = [name for name in names if runs_code(name)]
    return [*code_of_env(scenario.env_id, scenario.env_args), *own]


def code_of_env(env_id: str | None, env_args: dict[str, Any]) -> list[str]:
    """Return what an environment imports: the module of its id, and whatever its arguments name."""
    beginning, colon, rest = str(env_id).partition(":")
    # What is registered with a library that is installed is no stranger's.
    named = colon and (beginning not in entries("games") or (beginning in IMPORTED and "/" not in rest))
    return [*([str(env_id)] if named else []), *CODE.findall(str(env_args))]


def check_env(key: object, env_id: str | None, env_args: dict[str, Any]) -> None:
    """Say which code an environment of a file runs. Raises ``ConfigError`` where that is refused, see ``trust``."""
    module = next((part for part in str(env_id).split(":") if part not in entries("games")), "")
    names = [name for name in code_of_env(env_id, env_args) if name != env_id or module not in sys.modules]
    check_code(f"{key}: env_id", names, "an environment of Gymnasium or of this project")


def player_in_place_of(
    agent: AgentSpec,
    who: str,
    config: RunConfig,
    *,
    greedy: bool = False,
    checkpoint: str | None = None,
    any_env: bool = False,
) -> LoadedPlayer:
    """Load a player for what ``agent`` does in the environment of ``config``.

    Args:
        who: a player's name or folder, or a run's folder.
        greedy: a network takes its likeliest action.
        checkpoint: of a run; the latest by default.
        any_env: it may have been trained in another environment of another package, if the spaces are equal.

    Raises ``PlayerError``: no such player, a damaged one, or one that does not fit.
    """
    code = code_of(who)
    if not config.scenario.kind.rivals and code is not None:
        return LoadedPlayer(agent_player_from_class(code, agent), who)
    if not config.scenario.kind.rivals:
        folder = env_player(agent, who, config, checkpoint, any_env=any_env)
        card = read_card(folder)
        player = FrozenPlayer.of(card, read_network(folder, card), greedy=greedy)
        return LoadedPlayer(player, card.name, card.strength)
    name, catalogue = _folder_of(agent, who, checkpoint), Catalogue(config.checkpoint_root())
    loaded = catalogue.seat(name, config.scenario.kind.spec, agent.seats[0], greedy=greedy)
    if loaded.members != len(agent.seats):
        wanted = f"one that acts for {' and '.join(agent.seats)}"
        raise PlayerError(expected(f"player {who}", wanted, f"one for {loaded.members} seats at once"))
    return loaded


def env_player(
    agent: AgentSpec, who: str, config: RunConfig, checkpoint: str | None = None, *, any_env: bool = False
) -> Path:
    """Return the folder of the frozen player for what ``agent`` does in the environment of ``config``.

    Arguments as in :func:`player_in_place_of`. Raises ``PlayerError``: none, or one that does not fit.
    """
    scenario, catalogue = config.scenario, Catalogue(config.checkpoint_root())
    key, wanted = f"player {who} does not fit this environment: env", scenario.env_id or scenario.name
    if not is_run(who) and catalogue.card_of(who) is None:
        raise PlayerError(expected(key, wanted, _BOARD))
    folder = catalogue.folder(_folder_of(agent, who, checkpoint))
    card = read_card(folder)
    same = scenario.env_id and card.env and task_of(scenario.env_id) == task_of(card.env.env_id)
    if not (same or any_env):
        raise PlayerError(expected(key, wanted, _BOARD if card.env is None else card.env.env_id))
    check_agent(card, agent)
    return folder


def _folder_of(agent: AgentSpec, who: str, checkpoint: str | None) -> str:
    """Return a player's name or folder; for a run the folder of the player trained for ``agent``."""
    if is_run(who):
        return f"{run_player(Path(who), agent.module, checkpoint)}/"  # the slash marks a folder, not a name
    return who


def initial_weights(config: RunConfig, specs: MultiAgentSpec) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Return the weights by module that training begins with, and the steps behind their normalisers.

    Raises ``PlayerError``: no such player, or one whose network is another than the run's.
    """
    weights, steps = {}, 1
    for module in specs.modules:
        agent, key = specs.agent_of(module), f"init: {config.init}"
        try:
            player = player_in_place_of(agent, str(config.init), config, any_env=True).player
        except PlayerError as error:
            raise PlayerError(f"init: {error}") from error
        if not isinstance(player, FrozenPlayer) or player.mirrored:
            raise PlayerError(expected(key, f"a network that plays {agent.seats[0]}", player.name))
        card = read_card(Catalogue(config.checkpoint_root()).folder(_folder_of(agent, str(config.init), None)))
        own = config.model.model_dump(mode="json", exclude=FREE)
        of_card = type(config.model).model_validate(card.architecture).model_dump(mode="json", exclude=FREE)
        for model in (own, of_card):
            model["bound"] = getattr(distribution_of(agent.action_space, model["bound"]), "bound", None)
        for part, value in own.items():
            if of_card[part] != value:
                raise PlayerError(expected(f"{key}: model.{part}", f"{value} of this run", of_card[part]))
        weights[module] = dict(player.network.state_dict())
        steps = max(steps, card.provenance.get("env_steps", 0))
    return weights, steps
