"""Games of one person against players, without window and keys."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.cli.output import write_file
from multigrid_rl.config.scenario import ScenarioConfig
from multigrid_rl.evaluation.replays import GameRecord
from multigrid_rl.files import json_text
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue, LoadedPlayer
from multigrid_rl.players.factories import match_of, seat_players
from multigrid_rl.players.freeze import team_players
from multigrid_rl.players.places import counterpart
from multigrid_rl.runs.players import seat_folders
from multigrid_rl.show.captions import Caption, Commentator
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import GameSpec, Policy, Seats
from multigrid_rl.world.constants import ACTIONS, DONE, HEIGHT, WIDTH
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import visible_cells

#: Name of the person in captions and records.
PERSON = "you"


# --- seats


class OtherPlayers(NamedTuple):
    """All players except the person."""

    seat: str  # the person's
    players: dict[str, Policy]  # by seat, or by team where one acts for all its seats; the person's seat has none
    names: dict[str, str]  # seat -> name of its player, the person included
    goal: str = ""  # of the game, in words


def find_seat(spec: Seats, seat: str | None) -> str:
    """Return the person's seat: the given one, else the first, of red if it plays. Raises ``ConfigError``: unknown."""
    if seat not in (None, *spec.seats):
        raise ConfigError(expected("--seat", ", ".join(spec.seats), seat))
    return seat or (spec.seats_of("red") or spec.seats)[0]


def find_other_players(
    scenario: ScenarioConfig, catalogue: Catalogue, seat: str, opponent: str | None, mate: str | None
) -> OtherPlayers:
    """Fill every seat except the person's.

    Args:
        opponent: a name, a run folder or a bundle; by default an opponent of the scenario, else random.
        mate: the same for team mates; by default the opponent if it can play that single seat, else random.

    Raises:
        ConfigError, PlayerError: no seat for them, an unknown or damaged player, or one that cannot play there.
    """
    spec = scenario.kind.spec
    team = spec.team_of(seat)
    opponent_seats = [s for s in spec.seats if spec.team_of(s) != team]
    mates = [s for s in spec.seats if spec.team_of(s) == team and s != seat]
    for option, name, seats in (("opponent", opponent, opponent_seats), ("mate", mate, mates)):
        if name is not None and not seats:
            raise ConfigError(expected(f"--{option}", f"nothing for {scenario.name}, which has no seat for it", name))
    names: dict[str, str] = {seat: PERSON}
    players: dict[str, Policy] = {}
    weights = next(iter(scenario.kind.opponents.values()), {"random": 1.0})  # of a mixture the most frequent one
    opponent_name = opponent or max(weights, key=lambda name: weights[name])
    for team_name in dict.fromkeys(map(spec.team_of, opponent_seats)):
        if opponent_name not in catalogue.names() and Path(opponent_name).is_dir():
            seats = spec.seats_of(team_name)
            players |= seat_players(spec, {s: (_load_seat(catalogue, opponent_name, spec, s),) for s in seats})
        else:
            players |= team_players(catalogue, opponent_name, spec, team_name)
    names |= {s: _display_name(opponent_name, players.get(s) or players[spec.team_of(s)]) for s in opponent_seats}
    for s in mates:
        players[s] = _mate(catalogue, mate, opponent_name, spec, s)
        names[s] = _display_name(mate or opponent_name, players[s])
    return OtherPlayers(seat, players, {s: names[s] for s in spec.seats}, scenario.description)


def _display_name(name: str, player: Policy) -> str:
    folder = Path(name)
    return folder.resolve().name if folder.is_dir() and "/" in name and player.name != "random" else player.name


def _load_seat(catalogue: Catalogue, name: str, spec: Seats, seat: str) -> LoadedPlayer:
    """Load the player of a name for a seat: of a folder with a player for each seat, that seat's player."""
    folder = Path(name)
    players = {name: f"{home}/" for name, home in seat_folders(folder).items()} if folder.is_dir() else {}
    player = (players.get(seat) or players.get(counterpart(spec, seat))) if players else name
    if player is None:
        raise PlayerError(expected(name, f"a player of {seat} or its counterpart", f"one of {', '.join(players)}"))
    return catalogue.seat(player, spec, seat)


def _mate(catalogue: Catalogue, name_given: str | None, default: str, spec: Seats, seat: str) -> Policy:
    name = name_given or default
    try:
        seated = _load_seat(catalogue, name, spec, seat)
        if seated.members > 1:
            raise PlayerError(expected("--mate", "a player of one seat", f"{name}, which plays a whole team"))
    except PlayerError:
        if name_given is not None:
            raise
        return catalogue.seat("random", spec, seat).player
    return seated.player


# --- playing


class GameScore(NamedTuple):
    """Results so far, for the person."""

    won: int = 0
    drawn: int = 0
    lost: int = 0
    unfinished: int = 0
    played: int = 0  # games without a winner

    def after(self, outcome: str) -> "GameScore":
        """Return the score after one more game with this outcome."""
        return self._replace(**{outcome: getattr(self, outcome) + 1})

    def __str__(self) -> str:
        """Return for example ``3 games: 2 won, 0 drawn, 1 lost; 1 left unfinished``."""
        games = self.won + self.drawn + self.lost + self.played
        results = "" if self.played else f": {self.won} won, {self.drawn} drawn, {self.lost} lost"
        text = f"{games} game{'' if games == 1 else 's'}{results}"
        return f"{text}; {self.unfinished} left unfinished" if self.unfinished else text


class Session:
    """A person's games, one after the other, against the same players. Game ``k`` follows from ``seed`` and ``k``."""

    def __init__(self, spec: GameSpec, others: OtherPlayers, *, seed: int) -> None:
        self.spec, self.others, self.seed = spec, others, seed
        self.agent = spec.seats.index(others.seat)
        self.score = GameScore()
        self.records: list[GameRecord] = []
        self._start(0)

    def _start(self, game: int) -> None:
        self.game = game
        self._match = match_of(self.spec, self.others.players, 1, seed=self.seed, first=game, auto_reset=False)
        self._commentator = Commentator(self.world, self.others.names)
        self._taken: list[NDArray[np.int8]] = []
        self.over = False
        self.caption: Caption = self._commentator.start()

    @property
    def result(self) -> str:
        """The winner and the way of winning; empty until the end."""
        return self.caption.result

    @property
    def world(self) -> World:
        """The current game, a batch of one."""
        world: World = self._match.env.world
        return world

    @property
    def steps(self) -> int:
        """Steps of this game so far."""
        return len(self._taken)

    @property
    def out(self) -> bool:
        """Whether the person has been eliminated; the game may go on without them."""
        return self.caption.agents[self.agent].out

    def step(self, action: int) -> Caption:
        """Play one step in which the person takes an action (ignored once they are out).

        Raises ``ValueError``: the game is over, or there is no such action.
        """
        if self.over:
            raise ValueError("step: expected restart() first, got an action in a game that is over")
        if not 0 <= action < len(ACTIONS):
            raise ValueError(expected("action", f"0 to {len(ACTIONS) - 1}", action))
        done = self._match.step({self.others.seat: np.array([DONE if self.out else action], np.int8)}).done
        self._taken.append(self._match.env.actions[0].copy())
        self.caption = self._commentator.step(self.world.outputs, self._taken[-1])
        if done[0]:
            self._finish()
        return self.caption

    def _finish(self) -> None:
        self.over = True
        winner, team = int(self.world.outputs.winner[0]), int(self.world.flags.team[self.agent])
        outcome = "drawn" if winner < 0 else "won" if winner == team else "lost"
        self.score = self.score.after(outcome)
        label = f"{len(self.records) + 1}: {outcome} as {self.others.seat}"
        taken = np.stack(self._taken)  # (T, A)
        actions = {seat: "".join(map(str, taken[:, a].tolist())) for a, seat in enumerate(self.spec.seats)}
        fields = {"spec": self.spec, "seed": self.seed, "game": self.game, "players": self.others.names}
        self.records.append(GameRecord(label=label, **fields, actions=actions))

    def restart(self) -> None:
        """Begin the next game; one in progress counts as unfinished."""
        self.leave()
        self._start(self.game + 1)

    def leave(self) -> None:
        """Count a game in progress as unfinished; nothing can be played before a restart."""
        if self.steps and not self.over:
            self.score = self.score._replace(unfinished=self.score.unfinished + 1)
        self.over = True

    def seen_cells(self) -> NDArray[np.bool_]:
        """Return the board cells (16, 8) that the person sees now: all after the game or once the person is out."""
        if self.over or self.out:
            return np.ones((WIDTH, HEIGHT), np.bool_)
        return visible_cells(self.world, 0, [self.agent])


def save_games(records: list[Any], path: Path) -> None:
    """Write records as ``video`` reads them; replaces an existing file. Raises ``ConfigError``."""
    write_file(path, (json_text([game.model_dump() for game in records]) + "\n").encode())
