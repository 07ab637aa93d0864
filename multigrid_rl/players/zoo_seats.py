"""Games of PettingZoo's kind as a kind of environments, and their seating rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray
from pydantic import Field, model_validator

from multigrid_rl.config.scenario import LEAGUE, LEARN, OneAgent
from multigrid_rl.envs.base import TRIAL_STEPS, UserReward, flat_actions
from multigrid_rl.envs.connect_four import CONNECT_FOUR, ConnectFourEnvs
from multigrid_rl.envs.particles import ParticleEnvs, plays
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec, kinds_of
from multigrid_rl.envs.zoo import GameDescription, describe_game
from multigrid_rl.players.match import Match
from multigrid_rl.players.places import RulesText, SeatedKind
from multigrid_rl.text import ConfigError, PlayerError, expected
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec, Policy, RunError, SeatView, UniformSource

if TYPE_CHECKING:
    from multigrid_rl.players.cards import Card


class PettingZoo(SeatedKind):
    """Games of PettingZoo's kind, parallel or turn by turn: every agent is a seat."""

    vectors: ClassVar[bool] = True
    may_not_end: ClassVar[bool] = True
    shaped: ClassVar[bool] = True

    env_id: str
    env_args: dict[str, Any]
    agents: OneAgent
    teams: dict[str, tuple[str, ...]] = Field(default={})
    symmetric: tuple[tuple[str, ...], ...] = ()
    outcome: Literal["win", "return"] | None = None

    @model_validator(mode="after")
    def _check_teams(self) -> PettingZoo:
        descriptions = describe_game(self.env_id, self.env_args).seats
        listed = [seat for members in self.teams.values() for seat in members]
        if self.teams and sorted(listed) != sorted(descriptions):
            raise ValueError(expected("teams", f"each of {', '.join(descriptions)} once", ", ".join(listed)))
        for group in self.symmetric:
            if not set(group) <= set(descriptions) or len({str(descriptions[seat]) for seat in group}) != 1:
                raise ValueError(expected("symmetric", "groups of agents that see and do alike", list(group)))
        return self

    def _check_pool(self) -> None:
        """Check that snapshots of the learners can play a league's seats."""
        super()._check_pool()
        seats = describe_game(self.env_id, self.env_args).seats
        sizes = {seat: (seats[seat].size, *flat_actions(seats[seat].action_space).shape) for seat in self.pool_seats}
        if len(set(sizes.values())) > 1:
            raise ValueError(expected("league", "seats that observe and choose equally many numbers", sizes))
        for seat in self.pool_seats:
            fitting = {other for group in self.symmetric if seat in group for other in group}
            if not fitting & set(self.learning):
                wanted = f"a seat that {' or '.join(self.learning)} can take by scenario.symmetric"
                raise ValueError(expected(f"seats.{seat}", wanted, f"{LEAGUE}; train roles in turns (docs/league.md)"))

    @property
    def spec(self) -> ZooSpec:
        """The game."""
        team_of = {seat: team for team, members in self.teams.items() for seat in members}
        teams = {seat: team_of.get(seat, seat) for seat in describe_game(self.env_id, self.env_args).seats}
        wins = len(set(teams.values())) > 1 if self.outcome is None else self.outcome == "win"
        return ZooSpec(self.env_id, self.env_args, teams, wins, self.symmetric)

    @property
    def seated(self) -> dict[str, str | dict[str, float]]:
        """Player of each seat; by default a learner."""
        return {**dict.fromkeys(describe_game(self.env_id, self.env_args).seats, LEARN), **self.seats}

    @property
    def sharing(self) -> dict[str, str]:
        """Seat -> its kind, whose network a learner is, even if players fill the other seats of the kind."""
        return kinds_of(describe_game(self.env_id, self.env_args).seats)

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:
        """Return the recipe for a run's games. Raises ``ConfigError``: a network or scheme that does not fit."""
        memory, info = config.model.recurrent, describe_game(self.env_id, self.env_args)
        learning_seats, shaping = [info.seats[seat] for seat in self.learning], config.train.shaping
        legal, images = any(seat.legal for seat in learning_seats), all(seat.image for seat in learning_seats)
        for key, valid, wanted, got in (
            ("model", images or not config.model.entry.images, "mlp, as not all seats see images", config.model.name),
            ("model", not (memory and info.turns), f"a network without memory, as {self.env_id} has turns", "memory"),
            ("model", not legal or config.model.entry.legal, "mlp with legal actions", config.model.name),
            ("scheme", config.scheme != "ctce", "dtde or ctde with this package", config.scheme),
            *(() if config.scheme == "dtde" else self._central(config, info)),
            ("train.shaping", not (shaping and info.turns), f"null, as {self.env_id} has turns", shaping),
        ):
            if not valid:
                raise ConfigError(expected(key, wanted, got))
        factory: Any = super().factory(config, hashes)
        matches: EnvFactory = replace(factory, spec=replace(factory.spec, gaps=not memory))
        return matches

    def _central(self, config: Any, info: GameDescription) -> Iterator[tuple[str, bool, str, Any]]:
        """Yield the requirements of central critics."""
        yield "scheme", not info.turns, f"dtde, as {self.env_id} has turns", config.scheme
        yield "model", config.model.name == "mlp", "mlp with scheme=ctde and this package", config.model.name
        for team, members in self.teams.items():
            sizes = [info.seats[seat].size for seat in members]
            yield "scheme", len(set(sizes)) == 1, f"dtde, as members of {team} see different numbers", sizes


class RandomLegal:
    """Draws every legal choice, or number within the bounds, with the same probability."""

    name = "random"

    def __init__(self, agent: AgentSpec) -> None:
        self._space, self._legal = agent.action_space, agent.legal

    def initial_state(self, games: int) -> None:
        """Return nothing: it has no memory."""

    def reset_state(self, state: None, done: NDArray[np.bool_]) -> None:
        """Return nothing."""

    def act(self, view: SeatView, state: None, rng: UniformSource) -> tuple[NDArray[Any], None]:  # noqa: ARG002
        """Return choices (N, C) or numbers (N, A)."""
        space, uniform = self._space, rng.uniform(int(np.prod(self._space.shape)))
        if hasattr(space, "low"):
            low = np.where(np.isfinite(space.low), space.low, np.minimum(space.high - 10, -10))
            high = np.where(np.isfinite(space.high), space.high, np.maximum(space.low + 10, 10))
            return (low + 2 * uniform * (high / 2 - low / 2)).astype(np.float32), None  # halves cannot overflow
        if not self._legal:
            return (uniform * space.nvec).astype(np.int64), None
        flags = np.split(view.tokens[:, -self._legal :], np.cumsum(space.nvec)[:-1], axis=1)
        return np.stack([_draw_allowed(*part) for part in zip(flags, uniform.T, strict=True)], axis=1), None

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability (N, K) of each choice for observations (N, D) that end with legal flags."""
        flags = observations[:, -self._legal :].astype(np.float64)
        return np.asarray(flags / flags.sum(axis=1, keepdims=True))


def _draw_allowed(flags: NDArray[Any], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw one of the choices (N,) that ``flags`` (N, K) allow, all equally likely, by numbers (N,) in [0, 1)."""
    order = np.cumsum(flags, axis=1)
    wanted = np.minimum(np.floor(uniform * order[:, -1]) + 1, order[:, -1])
    return np.asarray((order < wanted[:, None]).sum(axis=1), np.int64)


class SeatByAgent:
    """Base of places in which each seat is a separate agent."""

    def title(self, game: Any) -> str:
        """Return the name of a game, or of an environment."""
        return str(game.env_id)

    def scripted(self: Any, game: Any, name: str, seat: str) -> Policy:
        """Make the only built-in player, random. Raises ``PlayerError`` for another."""
        if name != RandomLegal.name:
            wanted = f"{RandomLegal.name}, a folder or module:Class in {self.title(game)}"
            raise PlayerError(expected("player", wanted, name))
        return RandomLegal(self.agent(game, seat or game.seats[0]))

    def training_reward(
        self: Any,
        game: Any,  # noqa: ARG002 - it is a function of one agent's step in any
        name: str | None,
        bonus: dict[str, dict[str, float]],  # noqa: ARG002 - there are no events
    ) -> UserReward | None:
        """Return a function of one step of one agent."""
        return UserReward(name) if name else None

    def try_reward(self: Any, game: Any, name: str) -> None:
        """Play some random steps with a training reward. Raises ``ConfigError``: it cannot be used."""
        players = {seat: self.scripted(game, RandomLegal.name, seat) for seat in game.seats}
        match = Match(self.environment(game, 1, seed=0, first=0), {s: game.team_of(s) for s in game.seats}, players)
        match.env.shaping = UserReward(name)
        try:
            for _ in range(TRIAL_STEPS):
                match.step({})
        except RunError as error:
            raise ConfigError(str(error)) from error

    def from_class(self: Any, game: Any, code: str, seat: str) -> Policy:
        """Make a player from a user's class and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import agent_player_from_class  # noqa: PLC0415

        return agent_player_from_class(code, self.agent(game, seat))

    def from_object(self: Any, game: Any, name: str, player: Any, seat: str) -> Policy:
        """Wrap a player that a user passes as an object, and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import agent_player  # noqa: PLC0415

        return agent_player(name, player, self.agent(game, seat))

    def agent(self: Any, game: Any, seat: str) -> AgentSpec:
        """Return the agent of one seat."""
        (agent,) = self.agents(game, {seat: game.team_of(seat)}, "dtde", shared=False)
        found: AgentSpec = agent
        return found


class ZooPlace(SeatByAgent):
    """Seating rules of games of PettingZoo's kind; see ``players.places.Place``."""

    protocol = "2"
    built_in = False
    words = RulesText("every side", "starts", "A game is won by the side with the largest return.")

    def environment(
        self, game: ZooSpec, num_envs: int, *, seed: int, first: int, auto_reset: bool = True
    ) -> PettingZooEnvs:
        """Build games that show all their seats."""
        return _environments_of(game)(game, num_envs, seed=seed, first=first, auto_reset=auto_reset)

    def of_league(self, game: ZooSpec) -> ZooSpec:
        """Return the game with symmetric seats that swap roles: otherwise a learner would only learn to move first."""
        return replace(game, swaps=True)

    def who(self, game: ZooSpec) -> MultiAgentSpec:
        """Return the seats and teams of a game without learning agents."""
        return game.specs()

    def agents(self, game: ZooSpec, learning: dict[str, str], scheme: Any, *, shared: bool) -> tuple[AgentSpec, ...]:
        """Make an agent of each learning seat; its critic may read its team mates' observations."""
        agents = game.specs(learning, shared=shared).agents
        if scheme == "dtde":
            return agents
        sizes = {
            agent.name: agent.observation_size * (len(game.seats_of(learning[agent.name])) - 1) for agent in agents
        }
        return tuple(replace(agent, critic_space=Box(-np.inf, np.inf, (sizes[agent.name],))) for agent in agents)

    def interchangeable_seats(self, game: ZooSpec, seat: str) -> tuple[str, ...]:
        """Return a seat and the seats that are symmetric to it."""
        groups = [group for group in game.symmetric if seat in group]
        return tuple(dict.fromkeys((seat, *(other for group in groups for other in group))))

    def fits(self, game: ZooSpec, card: Card, seat: str) -> bool:
        """Return False: nothing is mirrored. Raises ``PlayerError``: the player cannot play the seat."""
        from multigrid_rl.players.cards import signature  # noqa: PLC0415

        (agent,) = game.specs([seat]).agents
        needed = signature(agent, None)
        fitting = self.interchangeable_seats(game, seat)
        env_id = None if card.env is None else card.env.env_id
        observation = {name: value for name, value in card.observation.model_dump().items() if value}
        actions = card.actions if isinstance(card.actions, int | list) else card.actions.model_dump()
        for part, valid, wanted, got in (
            ("env", env_id == game.env_id, game.env_id, env_id or "the red/blue-door game"),
            ("seats", bool({*fitting} & {*card.seats}), " or ".join(sorted(fitting)), ", ".join(card.seats)),
            ("observation", observation == needed["observation"], needed["observation"], observation),
            ("actions", actions == needed["actions"], needed["actions"], actions),
        ):
            if not valid:
                raise PlayerError(expected(f"player {card.name} does not fit seat {seat}: {part}", wanted, got))
        return False


def _environments_of(game: ZooSpec) -> type[PettingZooEnvs]:
    """Return the class that plays a game: all its boards or worlds in one call where one of ours can."""
    if game.draw_mode:
        return PettingZooEnvs
    if game.env_id == CONNECT_FOUR and not game.env_args:
        return ConnectFourEnvs
    return ParticleEnvs if plays(game.env_id, game.env_args) and not game.swaps else PettingZooEnvs


#: Entry of ``tables.PLACES``.
PLACE = ZooPlace()
