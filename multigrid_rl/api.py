"""The Python API, for notebooks and scripts (docs/python.md): five names, and the run that training returns.

Values are those of the command line, players also classes and objects. Mistakes raise a one-line ``ValueError``.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid_rl.architecture import ModelConfig
from multigrid_rl.cli.app import one_thread
from multigrid_rl.cli.evaluate import find_env_target, find_target
from multigrid_rl.cli.train import run_training
from multigrid_rl.config import compose, default_run_dir, load_scenario
from multigrid_rl.judge import environments
from multigrid_rl.judge.evaluation import Mode, kept_games, summary
from multigrid_rl.judge.evaluation import evaluate as play
from multigrid_rl.judge.replays import GameRecord
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.players.gymnasium_env import SeatEnv, SeatVectorEnv
from multigrid_rl.recipes import override_value
from multigrid_rl.runs.players import run_player
from multigrid_rl.runs.reader import read_config, read_rows, read_verdict, run_config
from multigrid_rl.scenario import CODE, HANDED_OVER, ConfigError
from multigrid_rl.schema import RunConfig, TrainConfig
from multigrid_rl.show.page import render
from multigrid_rl.show.replay import Pack
from multigrid_rl.show.video import choose
from multigrid_rl.text import expected, suggestion
from multigrid_rl.types import Policy
from multigrid_rl.world.pettingzoo_env import RedBlueDoors, parallel_env

if TYPE_CHECKING:
    import pandas as pd

#: A player as functions take it: a name, a folder, a run, or a class.
Who = str | os.PathLike[str] | Callable[..., Any]


class Run(os.PathLike[str]):
    """A training run: its folder, configuration, metrics and verdict. ``Run("runs/mine")`` opens an existing one.

    Args:
        path: the folder.

    Raises:
        ConfigError: it is not the folder of a run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = read_config(self.path)

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be passed as a path."""
        return str(self.path)

    def __repr__(self) -> str:
        """Show the folder."""
        return f"Run({str(self.path)!r})"

    @property
    def metrics(self) -> pd.DataFrame:
        """Rows of the run by environment steps; docs/metrics.md explains every column."""
        import pandas as pd  # noqa: PLC0415 - half a second

        return pd.DataFrame(read_rows(self.path / "metrics.jsonl")).set_index("env_steps")

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether the gates were held, when, and at what values. Raises ``ConfigError`` while the run goes on."""
        return read_verdict(self.path)

    def replay(
        self, game: str = "median", *, opponent: Who | None = None, episodes: int = 100, seed: int = 0
    ) -> Replay:
        """Play fresh games and return one to step through: ``best``, ``median`` or ``worst``.

        Raises:
            ValueError: a run of another package's environment, or an unknown opponent.
        """
        one_thread()
        judged, sides = find_target(str(self.path), [], None, _name(opponent), None)
        evaluation = play(judged, episodes=episodes, seed=seed, modes=("stochastic",), sides=sides)
        return Replay(choose(kept_games(evaluation), game, f"{episodes} games of {self.path}"))


class Replay:
    """A game as a page to step through, shown by notebooks; :meth:`save` writes it as a file."""

    def __init__(self, game: GameRecord) -> None:
        self.game = game
        seats = ", ".join(f"{seat} {player}" for seat, player in game.players.items())
        lead = f"{game.label}, game {game.game} of seed {game.seed}: {seats}"
        self.page = render("game.html", kind="Game", title=game.label, lead=lead, data=Pack.of([game]).data())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page and return its path."""
        Path(path).write_text(self.page, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        # In an iframe, so that its styles and script affect nothing else; it needs no network.
        return f'<iframe srcdoc="{html.escape(self.page)}" style="width:100%;height:46rem;border:0"></iframe>'


def train(
    scenario: str = "1v1",
    *overrides: str,
    players: Mapping[str, Who | Mapping[Any, float]] | None = None,
    **values: Any,
) -> Run:
    """Train and return the run; it prints as it goes, and Ctrl-C (or a notebook's stop) ends it with a checkpoint.

    ``train("1v1", lr=3e-4, until=2e5, players={"blue_0": "hunter"})``

    Args:
        scenario: name, or file (``./mine.yaml``).
        overrides: as on the command line: ``"train.bonus.all.step=-0.01"``.
        players: by seat: a player, or a mixture of players with their weights.
        values: keys of the configuration by their last name (``lr``, ``hidden``, ``seed``, ``run_dir``, ...); a class
            or function stands for its ``module:name``.

    Raises:
        ValueError: a mistake, in one line, before anything starts.
        RunError: the run broke off; what it had reported stays in its folder.
    """
    settings = [f"scenario={scenario}", *overrides]
    settings += [f"scenario.seats.{seat}={_seated(who)}" for seat, who in (players or {}).items()]
    settings += [f"{_key(name)}={override_value(_named(value))}" for name, value in values.items()]
    if "run_dir" not in values:
        settings.append(f"run_dir={default_run_dir(compose(settings), datetime.now())}")
    run_training(settings)
    return Run(values.get("run_dir", settings[-1].partition("=")[2]))


def evaluate(
    who: Who,
    *overrides: str,
    opponent: Who | None = None,
    episodes: int = 1000,
    seed: int = 10_000,
    mode: Mode = "stochastic",
) -> dict[str, Any]:
    """Play fresh games and return shares and means with their 95 % intervals.

    Args:
        who: a player, a run, or a folder with a player.
        overrides: of the game: ``"scenario=2v2"``; by default a run's own, of a player where it was made.
        opponent: player on every seat of the other team.
        episodes: games, half from each side where a player has two.
        seed: decides the games.
        mode: draw actions as in training, or take the likeliest (``argmax``).

    Raises:
        ValueError: a mistake, in one line.
    """
    one_thread()
    name, settings = str(_name(who)), list(overrides)
    environment = find_env_target(name, settings, None, {})
    if environment is not None:
        if opponent is not None:
            raise ConfigError(expected("opponent", f"none for {name}, whose environment has no opponents", opponent))
        report = environments.report(environment, episodes=episodes, seed=seed, modes=(mode,))
        row: dict[str, Any] = report["modes"][mode]
        return row
    judged, sides = find_target(name, settings, None, _name(opponent), None)
    evaluation = play(judged, episodes=episodes, seed=seed, modes=(mode,), sides=sides)
    return summary(list(evaluation.parts), evaluation.spec)


def load_player(who: Who, seat: str = "red_0", *, scenario: str | None = None) -> Policy:
    """Load a player for a seat: one to hand to :func:`make`, or to ask for actions (``types.Policy``).

    Args:
        who: a player, a run (its player of that seat), or a folder with a player.
        seat: where it will sit.
        scenario: its game; by default a run's own, else 1v1.

    Raises:
        ValueError: a mistake, in one line.
    """
    name = str(_name(who))
    run = Path(name) if (Path(name) / "config.yaml").is_file() else None
    trained = None if run is None or scenario is not None else run_config(run).scenario
    spec = (trained or load_scenario(scenario or "1v1")).spec
    spec.team_of(seat)
    ref = name if run is None else f"{run_player(run, seat)}/"
    return Catalogue().seat(ref, spec, seat).player


def make(
    scenario: str = "1v1", seat: str = "red_0", *, num_envs: int | None = None, **options: Any
) -> SeatEnv | SeatVectorEnv | RedBlueDoors:
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
        return parallel_env(scenario, **options)
    return (
        SeatEnv(scenario, seat, **options) if num_envs is None else SeatVectorEnv(num_envs, scenario, seat, **options)
    )


def _key(name: str) -> str:
    if name in TrainConfig.model_fields:
        return f"train.{name}"
    known = {*RunConfig.model_fields, "address", "env_id", "env_args"}
    if name not in known and name in ModelConfig.model_fields:
        return f"model.{name}"
    if name not in known:
        all_names = {*known, *TrainConfig.model_fields, *ModelConfig.model_fields}
        raise ConfigError(expected("train", "keys of configs/", f"{name}{suggestion(name, all_names)}"))
    return name


def _named(value: Any) -> Any:
    """Return what a class or function is called in a configuration: ``module:name``; anything else as it is."""
    if not callable(value):
        return value
    name = f"{value.__module__}:{getattr(value, '__qualname__', '')}"
    if not CODE.fullmatch(name):
        raise ConfigError(expected("value", "a class or function of a module, not one inside of another", name))
    HANDED_OVER.add(value.__module__)
    return name


def _name(who: Who | None) -> str | None:
    return None if who is None else os.fspath(_named(who))


def _seated(who: Who | Mapping[Any, float]) -> str:
    if isinstance(who, Mapping):
        return ",".join(f"{_name(player)}:{weight:g}" for player, weight in who.items())
    return str(_name(who))
