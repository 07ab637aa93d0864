"""The Python API, for notebooks and scripts (docs/python.md): seven names, and the run that training returns.

Values are as on the command line; players may also be classes and objects. Mistakes raise a one-line ``ValueError``.
"""

from __future__ import annotations

import fnmatch
import html
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multigrid_rl import tables
from multigrid_rl.cli.train import resume_training, run_training
from multigrid_rl.config.compose import compose, default_run_dir, first_words, keyword_overrides, load_scenario, named
from multigrid_rl.evaluation.evaluation import GAME_LABELS, Mode, labelled_games, summary
from multigrid_rl.evaluation.evaluation import evaluate as play_games
from multigrid_rl.evaluation.replays import GameRecord, choose
from multigrid_rl.evaluation.targets import Target, find_target
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.classes import code_of
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.players.gymnasium_env import SeatEnv, SeatVectorEnv, by_seat
from multigrid_rl.runs.players import config_of, has_no_opponents, is_run
from multigrid_rl.runs.reader import read_config, read_rows, read_verdict, run_config
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.training.trainers import RowCallback
from multigrid_rl.trust import CODE
from multigrid_rl.types import Policy
from multigrid_rl.world.pettingzoo_env import RedBlueDoorsParallelEnv, parallel_env

if TYPE_CHECKING:
    import pandas as pd

#: A player as functions take it: a name, a folder, a run, or a class; where games are played here, also an object.
PlayerLike = str | os.PathLike[str] | Callable[..., Any] | Policy


class Run(os.PathLike[str]):
    """A training run: its folder, configuration, metrics and verdict. ``Run("runs/mine")`` opens an existing one.

    Args:
        path: the folder.

    Raises:
        ConfigError: it is not the folder of a run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _folder("run", path)
        self.config: dict[str, Any] = read_config(self.path)

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be passed as a path."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def metrics(self) -> pd.DataFrame:
        """Rows of the run by environment steps; docs/running.md explains every column."""
        import pandas as pd  # noqa: PLC0415 - half a second

        return pd.DataFrame(read_rows(self.path / "metrics.jsonl") or {"env_steps": []}).set_index("env_steps")

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether the gates were held, when, and at what values. Raises ``ConfigError`` while the run goes on."""
        return read_verdict(self.path)

    def plot(self, *metrics: str | Sequence[str]) -> Any:
        """Draw metrics, or a list of them, over environment steps, by default the gates'; returns matplotlib's axes.

        Raises ``ConfigError``: no such metric.
        """
        rows, gates = self.metrics, self.config["scenario"]["gates"]
        names: list[str] = []
        given = [name for part in metrics for name in ([part] if isinstance(part, str) else part)]
        wanted = given or [gate["metric"] for gate in gates] or ["return_mean/*"]  # * is every seat
        for name in (f"own/{name}" if CODE.fullmatch(name) else name for name in wanted):
            if not (found := fnmatch.filter(rows, name)):
                raise ConfigError(unknown("metric", name, rows))
            names += found
        return rows[names].astype(float).interpolate("index", limit_area="inside").plot(subplots=True)

    def replay(
        self, game: str = "median", *, opponent: PlayerLike | None = None, episodes: int = 100, seed: int = 0
    ) -> Replay:
        """Play fresh games and return one to step through: ``best``, ``median`` or ``worst``.

        Raises:
            ValueError: a run of another package's environment, or an unknown opponent.
        """
        return play(self, opponent, game=game, episodes=episodes, seed=seed)


class Replay:
    """A game as a page to step through, shown by notebooks; ``save`` writes it as a file."""

    def __init__(self, game: GameRecord) -> None:
        self.game = game
        self.page: str = tables.find(tables.PAGES, "game")(game)

    def __repr__(self) -> str:
        """Show which game it is, where no page can be shown."""
        return f"Replay({self.game.label!r})"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        # In an iframe, so that its styles and script affect nothing else; it needs no network.
        return f'<iframe srcdoc="{html.escape(self.page)}" style="width:100%;height:46rem;border:0"></iframe>'


def play(
    who: PlayerLike,
    opponent: PlayerLike | None = None,
    *overrides: str,
    game: str = "median",
    episodes: int = 100,
    seed: int = 0,
) -> Replay:
    """Let two players play fresh games, and return one of them to step through, as notebooks show it.

    Args:
        who: as for ``evaluate``.
        opponent: player on every seat of the other team; by default whom the scenario or the run has there.
        overrides: of the game: ``"scenario=2v2"``.
        game: ``best``, ``median`` or ``worst``, as seen by ``who``.
        episodes: games that are played.
        seed: decides the games.

    Raises:
        ValueError: a mistake, in one line; an environment of another package.
    """
    if game not in GAME_LABELS:
        raise ConfigError(unknown("game", str(game), GAME_LABELS))
    result = play_games(_target_of(who, overrides, opponent), episodes=episodes, seed=seed, modes=("stochastic",))
    return Replay(choose(labelled_games(result), game, f"{episodes} games of {_name(who, {})}"))


def train(
    scenario: str | None = None,
    *overrides: str,
    resume: str | os.PathLike[str] | None = None,
    players: Mapping[str, PlayerLike | Mapping[Any, float]] | None = None,
    callback: RowCallback | None = None,
    **values: Any,
) -> Run:
    """Train and return the run; it prints as it goes, and Ctrl-C (or a notebook's stop) ends it with a checkpoint.

    ``train("1v1", lr=3e-4, until=2e5, players={"blue_0": "hunter"})``, ``train(env_id="Acrobot-v1")``

    Args:
        scenario: name, or file (``./mine.yaml``); 1v1 by default.
        overrides: as on the command line: ``"train.bonus.all.step=-0.01"``.
        resume: a run to continue from its newest whole checkpoint; ``until`` is its new number of steps in all.
        players: by seat: a player, or a mixture of players with their weights.
        callback: takes each row of the run (``metrics.jsonl``); a true answer ends it, with a checkpoint and a verdict.
        values: keys of the configuration by their last name (``lr``, ``hidden``, ``seed``, ``run_dir``, ...); a class
            or function stands for its ``module:name``.

    Raises:
        ValueError: a mistake, in one line, before anything starts.
        RunError: the run broke off; what it had reported stays in its folder.
    """
    settings = [*first_words(scenario), *overrides]
    settings += [f"scenario.seats.{seat}={_seat_value(who)}" for seat, who in by_seat(players).items()]
    settings += keyword_overrides(values)
    _check_callback(callback)
    if resume is not None:
        resume_training(_folder("resume", resume), settings, callback)
        return Run(resume)
    config = compose(settings)
    run_dir = config.run_dir or default_run_dir(config, datetime.now())
    run_training([*settings, f"run_dir={run_dir}"], callback)
    return Run(run_dir)


def evaluate(
    who: PlayerLike,
    *overrides: str,
    opponent: PlayerLike | None = None,
    episodes: int = 1000,
    seed: int = 10_000,
    mode: Mode = "stochastic",
) -> dict[str, Any]:
    """Play fresh games and return the mode, and shares and means with their 95 % intervals.

    Args:
        who: a player, a run, a folder with a player, or an object with ``act``.
        overrides: of the game: ``"scenario=2v2"``; by default a run's own, of a player where it was made.
        opponent: player on every seat of the other team.
        episodes: games, half from each side where a player has two.
        seed: decides the games.
        mode: draw actions as in training, or take the likeliest (``argmax``).

    Raises:
        ValueError: a mistake, in one line.
    """
    result = play_games(_target_of(who, overrides, opponent), episodes=episodes, seed=seed, modes=(mode,))
    return {"mode": mode, **summary(result.parts)}


def load_player(who: PlayerLike, seat: str | None = None, *, scenario: str | None = None) -> Policy:
    """Load a player for a seat: one to hand to ``make``, or to ask for actions (``types.Policy``).

    One that was trained has ``predict(observation)`` as well, which returns an action and the next memory.

    Args:
        who: a player, a run (its player of that seat), or a folder with a player.
        seat: where it will sit; by default the first that a run trained, else ``red_0`` or the game's first.
        scenario: its game; by default a run's or a player's own environment, else 1v1.

    Raises:
        ValueError: a mistake, in one line.
    """
    name = str(_name(who))
    if has_no_opponents(name):
        players = find_target(name, [f"scenario={scenario}"] if scenario else []).players(greedy=False)
        if seat is not None and seat not in players:
            raise ConfigError(unknown("seat", seat, players))
        return players[seat or next(iter(players))]
    catalogue, seats = Catalogue(), ["red_0"]
    card = None if is_run(name) or code_of(name) is not None else catalogue.card_of(name)
    if scenario is None and is_run(name):
        scenario_config = run_config(Path(name)).scenario
        seats = [*scenario_config.kind.learning]
    elif scenario is None and card is not None and card.env is not None:
        scenario_config, seats = config_of(name, []).scenario, card.seats
    else:
        scenario_config = load_scenario(scenario or "1v1")
    spec = scenario_config.kind.spec
    seat = seat or next(s for s in (*seats, *spec.seats) if s in spec.seats)
    spec.team_of(seat)
    return catalogue.seat(name, spec, seat).player


def load_policy(who: PlayerLike, seat: str | None = None, *, scenario: str | None = None) -> FrozenPlayer:
    """Load a trained policy, of a run of any kind: ``load_policy(run).predict(observation)``.

    Args:
        who: a run, or a folder with a trained player, or its name.
        seat: whose; by default the first that the run trained. A team's policy acts for all its members.
        scenario: its game, as for ``load_player``.

    Raises:
        ValueError: a mistake, in one line; a player that was not trained.
    """
    player = load_player(who, seat, scenario=scenario)
    if not isinstance(player, FrozenPlayer):
        raise ConfigError(expected("player", "one that was trained", player.name))
    return player


def make(
    scenario: str = "1v1", seat: str = "red_0", *, num_envs: int | None = None, **options: Any
) -> SeatEnv | SeatVectorEnv | RedBlueDoorsParallelEnv:
    """Make the environment of a scenario: Gymnasium's of one seat, or PettingZoo's of ``all`` seats.

    Args:
        scenario: name, or file (``./mine.yaml``).
        seat: the seat that the caller plays.
        num_envs: many games at once, as Gymnasium's vector environment.
        options: those of ``SeatEnv`` (``players={"blue_0": "hunter"}``) or of ``parallel_env``.

    Raises:
        ValueError: a mistake, in one line.
    """
    if seat == "all":
        if num_envs is not None:
            raise ConfigError(expected("num_envs", "none with seat='all', one game of PettingZoo's", num_envs))
        return parallel_env(scenario, **options)
    return (
        SeatEnv(scenario, seat, **options) if num_envs is None else SeatVectorEnv(num_envs, scenario, seat, **options)
    )


def _target_of(who: PlayerLike, overrides: Sequence[str], opponent: PlayerLike | None) -> Target:
    """Return the evaluation target for a player or run; in the red/blue-door game both players may be objects."""
    torch.set_num_threads(1)  # small networks gain nothing from more
    objects: dict[str, Any] = {}
    names = [_name(player, objects) for player in (who, opponent)]
    return find_target(str(names[0]), list(map(str, overrides)), opponent=names[1], objects=objects)


def _name(who: PlayerLike | None, objects: dict[str, Any] | None = None) -> str | None:
    """Return a player's name; an object is added to ``objects`` under its name, or refused without ``objects``."""
    if who is None:
        return None
    kind = type(who)
    if (isinstance(who, type) or not hasattr(who, "act")) and isinstance(name := named(who), str | os.PathLike):
        return os.fspath(name)
    if objects is None or not hasattr(who, "act") or isinstance(who, FrozenPlayer):  # loaded for one side of the board
        raise ConfigError(expected("player", "a name, a folder, a run or a class", f"an object of {kind.__name__}"))
    name = f"{kind.__module__}:{kind.__name__}" + "_" * len(objects)
    objects[name] = who
    return name


def _seat_value(who: PlayerLike | Mapping[Any, float]) -> str:
    if isinstance(who, Mapping):
        return ",".join(f"{_name(player)}:{weight}" for player, weight in who.items())
    return str(_name(who))


def _folder(key: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(expected(key, "a folder", repr(path)))
    return Path(path)


def _check_callback(callback: Any) -> None:
    """Raise ``ConfigError`` if ``callback`` cannot be called with a row."""
    if callback is None:
        return
    try:
        inspect.signature(callback).bind({})
    except TypeError as error:
        raise ConfigError(expected("callback", "a function of one row", f"{callback!r}: {error}")) from error
    except ValueError:  # a function in C without a signature
        return
