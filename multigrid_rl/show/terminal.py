"""Games of PettingZoo's kind in the terminal: a person reads them as text and types actions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import typer
from gymnasium import spaces

from multigrid_rl.envs.pettingzoo import ZooSpec
from multigrid_rl.envs.zoo import describe_game, open_game
from multigrid_rl.evaluation.replays import ZooRecord, zoo_record
from multigrid_rl.players.factories import match_of
from multigrid_rl.players.places import place_of
from multigrid_rl.show.play import GameScore, OtherPlayers
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import EpisodeTable

#: Input that ends all games, as do Ctrl-C and the end of the input.
QUIT = "q"


def terminal(
    spec: ZooSpec, others: OtherPlayers, game_over: Callable[["TerminalSession"], None], *, seed: int
) -> tuple["TerminalSession", Callable[[], None], str]:
    """Begin to play in the terminal; returns the games, the function that plays them, and a hint.

    Raises ``ConfigError``: the game has no text.
    """
    acts = describe_game(spec.env_id, spec.env_args).seats[others.seat].action_space
    try:
        open_game(spec.env_id, spec.env_args, "text")
        if not isinstance(acts, spaces.Discrete):
            raise ValueError(expected(others.seat, "Discrete actions", acts))
    except ValueError as error:
        raise ConfigError(f"{error}: it cannot be played in the terminal") from error
    session = TerminalSession(replace(spec, draw_mode="text"), others, seed=seed)
    return session, lambda: session.run(game_over), f"{QUIT} quits"


class TerminalSession:
    """One person's games, one after the other, against the same players. Game ``k`` follows from ``seed`` and ``k``.

    Args:
        spec: the game, to be drawn as text.
        others: players of all other seats.
    """

    def __init__(self, spec: ZooSpec, others: OtherPlayers, *, seed: int) -> None:
        self.spec, self.others, self.seed, self.game = spec, others, seed, 0
        self.score, self.result = GameScore(), ""
        self.records: list[ZooRecord] = []
        self._about = describe_game(spec.env_id, spec.env_args).seats

    def run(self, game_over: Callable[["TerminalSession"], None]) -> None:
        """Play until the person quits; ``game_over`` is called after every game that has ended."""
        try:
            while True:
                self._play()
                game_over(self)
                self.game += 1
                _ask(f"Enter: next game, {QUIT}: quit ")
        except (KeyboardInterrupt, EOFError):
            typer.echo()  # a new line after the question

    def _play(self) -> None:
        """Play one game; while it goes on it counts as left unfinished."""
        person_seat, done = self.others.seat, False
        match = match_of(self.spec, self.others.players, 1, seed=self.seed, first=self.game, auto_reset=False)
        env: Any = match.env
        game = env.games[0]
        while not done:
            names = {seat: self._names(env, seat) for seat, deciding in env.deciding().items() if deciding[0]}
            action = 0
            if person_seat in names:
                typer.echo(game.drawn("text", person_seat))
                action = self._choice(names[person_seat])
            done = bool(match.step({person_seat: np.array([[action]])}).done[0])
            self.score = self.score._replace(unfinished=1)
            for seat, taken in env.played[0][-1].items():
                if seat != person_seat:
                    typer.echo(f"{seat} ({self.others.names[seat]}): {names[seat].get(str(taken), taken)}")
        typer.echo(game.drawn("text"))
        self._finish(match.drain_episodes(), env.played[0])

    def _names(self, env: Any, seat: str) -> dict[str, str]:
        """Return number -> name of the legal choices of a seat; nothing where its space is not Discrete."""
        about = self._about[seat]
        if not isinstance(about.action_space, spaces.Discrete):
            return {}
        legal = env.observations()[seat][0, -about.legal :] if about.legal else np.ones(about.action_space.n)
        numbers = (np.flatnonzero(legal) + about.action_space.start).tolist()
        return {str(number): env.games[0].named(seat, number) for number in numbers}

    def _choice(self, names: dict[str, str]) -> int:
        """Ask until the number or name of a legal choice is typed; returns it counted from 0, as networks count."""
        choices = ", ".join(number if number == name else f"{number} {name}" for number, name in names.items())
        by_word = {**{name.lower(): number for number, name in names.items()}, **{number: number for number in names}}
        while (answer := _ask(f"{self.others.seat} ({choices}): ").lower()) not in by_word:
            typer.echo(expected("action", choices, shown(answer)))
        return int(by_word[answer]) - int(self._about[self.others.seat].action_space.start)

    def _finish(self, table: EpisodeTable, moves: list[dict[str, Any]]) -> None:
        roles, spec = place_of(self.spec).who(self.spec), self.spec
        returns, winner, outcome = table.returns[0].tolist(), int(table.winner[0]), "played"
        if roles.has_winner:
            team_index = roles.team_names.index(spec.team_of(self.others.seat))
            outcome = "drawn" if winner < 0 else "won" if winner == team_index else "lost"
        self.score = self.score._replace(unfinished=0).after(outcome)
        label = f"{len(self.records) + 1}: {outcome} as {self.others.seat}"
        about = {"label": label, "seed": self.seed, "game": self.game, "players": self.others.names}
        self.records.append(zoo_record(spec, moves, returns=returns, winner=winner, **about))
        self.result = self.records[-1].result or ", ".join(
            f"{seat} {total:.6g}" for seat, total in self.records[-1].returns.items()
        )


def _ask(question: str) -> str:
    """Return a person's input. Raises ``EOFError``: they quit."""
    text = input(question).strip()
    if text.lower() == QUIT:
        raise EOFError
    return text
