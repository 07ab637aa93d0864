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

from multigrid_rl.config.compose import changed, compose, load_scenario
from multigrid_rl.config.overrides import SHORT, parse
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
from multigrid_rl.runs.reader import check_of_games, run_config
from multigrid_rl.tables import IMPORTED, entries
from multigrid_rl.text import ConfigError, expected, shown, suggestion
from multigrid_rl.trust import CODE, check_code
from multigrid_rl.types import AgentSpec, MultiAgentSpec

_BOARD = "the red/blue-door game"
#: The folder of a player's seat among those of a team.
_SEAT = re.compile(r"(red|blue)_\d")
#: Settings that may differ between a network and one that begins with its weights.
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
        names = sorted(path.name for path in checkpoints.glob("step_*"))
        got = shown(name) + suggestion(name, names)
        raise PlayerError(expected("checkpoint", f"{', '.join(names) or 'none'} of {run}", got))
    return players


def run_player(run: Path, seat: str, checkpoint: str | None = None) -> Path:
    """Return the folder of a run's player, by its seat or its network, from its latest checkpoint or a named one.

    Raises ``PlayerError``.
    """
    players = run_players(run, checkpoint)
    names = sorted(path.name for path in players.iterdir())
    module = seat if seat in names else next((name for name in names if seat in read_card(players / name).seats), None)
    if module is None:
        raise PlayerError(expected("seat", f"{', '.join(names)}, trained in {run}", seat + suggestion(seat, names)))
    return players / module


def players_for(run: Path, seat: str, checkpoint: str | None = None) -> dict[str, Path]:
    """Return the folder of a seat's or team's player under the key ``""``; several of a team by their seats.

    Raises ``PlayerError``: no such player.
    """
    players = run_players(run, checkpoint)
    if (players / seat).is_dir():
        return {"": players / seat}
    cards = {path: read_card(path) for path in sorted(players.iterdir())}
    team = run_config(run).scenario.kind.seats_of(seat)
    homes = {mate: path for mate in team for path, card in cards.items() if mate in card.seats}
    same_player = len(set(homes.values())) == 1
    return {"": next(iter(homes.values()))} if same_player else homes or {"": run_player(run, seat, checkpoint)}


def seat_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of single seats by seat, in order. Raises :class:`PlayerError` for one that is a link."""
    try:
        folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_seat(path)]
    except OSError as error:
        raise PlayerError(f"{folder}: cannot be read: {error.strerror}") from error
    for path in folders:
        if path.is_symlink():
            raise PlayerError(expected(path, "a folder", "a symbolic link"))
    return {path.name: path for path in folders}


def _is_seat(folder: Path) -> bool:
    """Return whether a folder is named after a seat: of red/blue doors, or one that its card names."""
    with suppress(PlayerError):
        return bool(_SEAT.fullmatch(folder.name)) or folder.name in read_card(folder).seats
    return False


def is_run(source: str) -> bool:
    """Return whether ``source`` is the folder of a run, not a player."""
    return os.path.isfile(Path(source) / "config.yaml")  # noqa: PTH113 - false for a name that is too long, too


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
        place, fitting_seats = place_of(spec), (seat, counterpart(spec, seat))

        def fits(card: Card) -> bool:
            with suppress(PlayerError):
                place.fits(spec, card, seat)
                return True
            return False

        sources = [(read_card(source), source) for source in self.files or self._folders()]
        sources.sort(key=lambda row: [other not in row[0].seats for other in fitting_seats])
        card, source = next((row for row in sources if fits(row[0])), sources[0])
        player: Any = load_frozen(self.title, source, card, spec, seat).player
        if len(sources) > 1:  # one name has one hash, whichever seats it fills
            player.sha256 = sha256("".join(sorted(card.sha256 for card, _ in sources)).encode()).hexdigest()
        loaded: FrozenPlayer = player
        return loaded


#: Entry of ``tables.NAMINGS``.
NAMING = Naming("a run", lambda name: RunPlayers(name) if is_run(name) else None)


def env_of(source: str) -> EnvSignature | None:
    """Return another package's environment that a frozen player was made for; ``None`` for every other player.

    Raises ``PlayerError``: damaged, or a folder of something else.
    """
    card = Catalogue().card_of(source)
    return None if card is None else card.env


def has_no_opponents(source: str, overrides: Sequence[str] = ()) -> bool:
    """Return whether the environment of a player or run has no opponents. Raises as :func:`env_of`.

    A user's class plays where ``overrides`` say.
    """
    if is_run(source):
        return not run_config(Path(source)).scenario.kind.rivals
    if code_of(source) is not None:
        return bool(overrides) and not compose(list(overrides)).scenario.kind.rivals
    env = env_of(source)
    return env is not None and not kind_named(env.package).rivals


def config_of(source: str, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration in which a player or run plays: of the scenario in ``overrides``, else of its own.

    Raises ``ConfigError``, ``PlayerError``: no such player or run, or an environment that its file may not name.
    """
    check_of_games(overrides)
    keys = {override.partition("=")[0].removeprefix("scenario.") for override in overrides}
    if keys & {"scenario", "experiment", "env_id"}:
        return compose(list(overrides))
    if is_run(source):
        config = run_config(Path(source))
        check_env(f"{source}/config.yaml", config.scenario.env_id, config.scenario.env_args)
        return _changed_game(source, config, overrides) if overrides else config
    if (env := env_of(source)) is None:
        return compose([f"scenario={Catalogue().title_of(source)[1]}", *overrides])
    folder = Catalogue().folder(source)
    if (scenario := scenario_of(read_card(folder))) is not None:
        return compose([f"scenario={scenario}", *overrides])
    card = folder / CARD_FILE
    check_env(card, env.env_id, env.env_args)
    # A stranger's card opens no files, such as a body's model, and reads no environment variables.
    arguments = json.dumps(env.env_args, ensure_ascii=False)
    if re.search(r"[/\\]|\$\{", arguments) or not all(key.isidentifier() for key in env.env_args):
        wanted = f"no paths and ${{...}}; of a card that you trust, type env_id={env.env_id} env_args=..."
        raise ConfigError(expected(f"{card}: env.env_args", wanted, shown(str(env.env_args), 200)))
    base = [f"scenario={env.package}", f"scenario.env_id={env.env_id}"]
    base += [f"scenario.agents={env.agents}"] if env.agents != 1 else []
    base += [f"scenario.env_args.{key}={json.dumps(value)}" for key, value in env.env_args.items()]
    return compose([*base, *overrides])


def _changed_game(source: str, config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a run with overrides; a player in a league's seat takes the league's place."""
    check_code(f"{source}: opponents", code_of_run(config), "a player of this project")
    settings = {SHORT.get(key, key): value for key, value in parse(overrides).items()}
    is_seated = any(key.startswith("scenario.seats.") for key in settings)
    training_only: dict[str, Any] = {"held_out": {}, **({"league": None} if is_seated else {})}
    return changed(config.model_copy(update={"scenario": config.scenario.model_copy(update=training_only)}), settings)


def scenario_of(card: Card) -> str | None:
    """Return the scenario that a player was made for; ``None``: we have none of that name with its environment."""
    if card.env is None:
        return card.scenario
    exists = card.scenario in names_in("scenario")
    same = exists and env_signature(load_scenario(card.scenario)) == card.env.model_dump()
    return card.scenario if same else None


def code_of_run(config: RunConfig) -> list[str]:
    """Return names of outside code in a run's scenario: environments, players, agents' folders."""
    scenario = config.scenario
    names = [name for row in scenario.kind.opponents.values() for name in row]
    code = [name for name in names if runs_code(name)]
    return [*code_of_env(scenario.env_id, scenario.env_args), *code]


def code_of_env(env_id: str | None, env_args: dict[str, Any]) -> list[str]:
    """Return names of code that an environment imports: the module of its id, and those in its arguments."""
    prefix, colon, rest = str(env_id).partition(":")
    # An id that an installed library registered is trusted.
    is_code = colon and (prefix not in entries("games") or (prefix in IMPORTED and "/" not in rest))
    return [*([str(env_id)] if is_code else []), *CODE.findall(str(env_args))]


def check_env(key: object, env_id: str | None, env_args: dict[str, Any]) -> None:
    """Check the code that an environment of a file runs. Raises ``ConfigError``: refused, see ``trust``."""
    module = next((part for part in str(env_id).split(":") if part not in entries("games")), "")
    names = [name for name in code_of_env(env_id, env_args) if name != env_id or module not in sys.modules]
    check_code(f"{key}: env_id", names, "an environment of Gymnasium or of this project")


def player_in_place_of(
    agent: AgentSpec,
    source: str,
    config: RunConfig,
    *,
    greedy: bool = False,
    checkpoint: str | None = None,
    any_env: bool = False,
) -> LoadedPlayer:
    """Load a player in place of ``agent`` in the environment of ``config``.

    Args:
        source: a player's name or folder, or a run's folder.
        greedy: a network takes its likeliest action.
        checkpoint: of a run; the latest by default.
        any_env: it may have been trained in another environment of another package, if the spaces are equal.

    Raises ``PlayerError``: no such player, a damaged one, or one that does not fit.
    """
    code = code_of(source)
    if not config.scenario.kind.rivals and code is not None:
        return LoadedPlayer(agent_player_from_class(code, agent), source)
    if not config.scenario.kind.rivals:
        folder = env_player(agent, source, config, checkpoint, any_env=any_env)
        card = read_card(folder)
        player = FrozenPlayer.of(card, read_network(folder, card), greedy=greedy)
        return LoadedPlayer(player, card.name, card.strength)
    name, catalogue = _folder_of(agent, source, checkpoint), Catalogue(config.checkpoint_root())
    loaded = catalogue.seat(name, config.scenario.kind.spec, agent.seats[0], greedy=greedy)
    if loaded.members != len(agent.seats):
        wanted = f"one that acts for {' and '.join(agent.seats)}"
        raise PlayerError(expected(f"player {source}", wanted, f"one for {loaded.members} seats at once"))
    return loaded


def env_player(
    agent: AgentSpec, source: str, config: RunConfig, checkpoint: str | None = None, *, any_env: bool = False
) -> Path:
    """Return the folder of the frozen player in place of ``agent`` in the environment of ``config``.

    Arguments as in :func:`player_in_place_of`. Raises ``PlayerError``: none, or one that does not fit.
    """
    scenario, catalogue = config.scenario, Catalogue(config.checkpoint_root())
    key, wanted = f"player {source} does not fit this environment: env", scenario.env_id or scenario.name
    if not is_run(source) and catalogue.card_of(source) is None:
        raise PlayerError(expected(key, wanted, _BOARD))
    folder = catalogue.folder(_folder_of(agent, source, checkpoint))
    card = read_card(folder)
    same_task = scenario.env_id and card.env and task_of(scenario.env_id) == task_of(card.env.env_id)
    if not (same_task or any_env):
        raise PlayerError(expected(key, wanted, _BOARD if card.env is None else card.env.env_id))
    check_agent(card, agent)
    return folder


def _folder_of(agent: AgentSpec, source: str, checkpoint: str | None) -> str:
    """Return a player's name or folder; for a run the folder of the player trained for ``agent``."""
    if is_run(source):
        return f"{run_player(Path(source), agent.module, checkpoint)}/"  # the slash marks a folder, not a name
    return source


def initial_weights(config: RunConfig, specs: MultiAgentSpec) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Return the weights by module that training begins with, and the steps behind their normalisers.

    Raises ``PlayerError``: no such player, or one whose network differs from the run's.
    """
    weights, steps = {}, 1
    for module in specs.modules:
        agent, key = specs.agent_of(module), f"init: {config.init}"
        try:
            player = player_in_place_of(agent, str(config.init), config, any_env=True).player
        except (PlayerError, ConfigError) as error:
            raise PlayerError(f"init: {error}") from error
        if not isinstance(player, FrozenPlayer) or player.card is None or player.mirrored:
            raise PlayerError(expected(key, f"a network that plays {agent.seats[0]}", player.name))
        ours = config.model.model_dump(mode="json", exclude=FREE)
        theirs = type(config.model).model_validate(player.card.architecture).model_dump(mode="json", exclude=FREE)
        for model in (ours, theirs):
            model["head"] = model["head"] or "gaussian"
            model["bound"] = getattr(distribution_of(agent.action_space, model["bound"]), "bound", None)
        for part, value in ours.items():
            if theirs[part] != value:
                raise PlayerError(expected(f"{key}: model.{part}", f"{value} of this run", theirs[part]))
        weights[module] = dict(player.network.state_dict())
        steps = max(steps, player.card.provenance.get("env_steps", 0))
    return weights, steps
