"""Games of PettingZoo's kind as a kind of environments, and how players are seated in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field, model_validator

from multigrid_rl.config.scenario import LEAGUE, LEARN, OneAgent
from multigrid_rl.envs.particles import ParticleEnvs, plays
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec, kinds_of
from multigrid_rl.envs.zoo import Described, described
from multigrid_rl.players.places import SeatByAgent, SeatedKind, Words
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec

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
        about = described(self.env_id, self.env_args).seats
        named = [seat for members in self.teams.values() for seat in members]
        if self.teams and sorted(named) != sorted(about):
            raise ValueError(expected("teams", f"each of {', '.join(about)} once", ", ".join(named)))
        for group in self.symmetric:
            if not set(group) <= set(about) or len({str(about[seat]) for seat in group}) != 1:
                raise ValueError(expected("symmetric", "groups of agents that see and do alike", list(group)))
        return self

    def _check_pool(self) -> None:
        """Check that snapshots of who learns can sit where a league plays."""
        super()._check_pool()
        for seat in self.pool_seats:
            alike = {other for group in self.symmetric if seat in group for other in group}
            if not alike & set(self.learning):
                wanted = f"a seat that {' or '.join(self.learning)} can take by scenario.symmetric"
                raise ValueError(expected(f"seats.{seat}", wanted, f"{LEAGUE}; train roles in turns (docs/league.md)"))

    @property
    def spec(self) -> ZooSpec:
        """The game."""
        of_teams = {seat: team for team, members in self.teams.items() for seat in members}
        teams = {seat: of_teams.get(seat, seat) for seat in described(self.env_id, self.env_args).seats}
        wins = len(set(teams.values())) > 1 if self.outcome is None else self.outcome == "win"
        return ZooSpec(self.env_id, self.env_args, teams, wins, self.symmetric)

    @property
    def seated(self) -> dict[str, str | dict[str, float]]:
        """Who sits on each seat: where nobody is named, a learner."""
        return {**dict.fromkeys(described(self.env_id, self.env_args).seats, LEARN), **self.seats}

    @property
    def sharing(self) -> dict[str, str]:
        """Seat -> its kind; with a player on the other seats of a kind one learner still is the network of the kind."""
        return kinds_of(described(self.env_id, self.env_args).seats)

    def factory(self, config: Any, hashes: dict[str, str]) -> EnvFactory:
        """Return the recipe for a run's games. Raises ``ConfigError``: a network or scheme that does not fit."""
        from multigrid_rl.players.factories import MatchFactory  # noqa: PLC0415 - it brings torch

        memory, about = config.model.recurrent, described(self.env_id, self.env_args)
        learns, shaping = [about.seats[seat] for seat in self.learning], config.train.shaping
        legal, images = any(seat.legal for seat in learns), all(seat.image for seat in learns)
        for key, good, wanted, got in (
            ("model", images or not config.model.entry.images, "mlp, as not all seats see images", config.model.name),
            ("model", not (memory and about.turns), f"a network without memory, as {self.env_id} has turns", "memory"),
            ("model", not legal or config.model.entry.legal, "mlp with legal actions", config.model.name),
            ("scheme", config.scheme != "ctce", "dtde or ctde with this package", config.scheme),
            *(() if config.scheme == "dtde" else self._central(config, about)),
            ("train.shaping", not (shaping and about.turns), f"null, as {self.env_id} has turns", shaping),
        ):
            if not good:
                raise ConfigError(expected(key, wanted, got))
        return MatchFactory(
            spec=replace(self.spec, gaps=not memory),
            opponents=self.opponents,
            checkpoints=config.checkpoint_root(),
            hashes=hashes,
            seed=config.seed,
            shared=config.shared,
            shaping=shaping,
            league=self.pool_seats,
            scheme=config.scheme,
        )

    def _central(self, config: Any, about: Described) -> Iterator[tuple[str, bool, str, Any]]:
        """Yield what central critics ask for."""
        yield "scheme", not about.turns, f"dtde, as {self.env_id} has turns", config.scheme
        yield "model", config.model.name == "mlp", "mlp with scheme=ctde and this package", config.model.name
        for team, members in self.teams.items():
            sizes = [about.seats[seat].size for seat in members]
            yield "scheme", len(set(sizes)) == 1, f"dtde, as members of {team} see different numbers", sizes


class ZooPlace(SeatByAgent):
    """How players are seated in games of PettingZoo's kind; see ``players.places.Place``."""

    protocol = "2"
    built_in = False
    words = Words("every side", "starts", "A game is won by the side with the largest return.")

    def title(self, game: ZooSpec) -> str:
        """Return what a game is called."""
        return game.env_id

    def environment(
        self, game: ZooSpec, num_envs: int, *, seed: int, first: int, auto_reset: bool = True
    ) -> PettingZooEnvs:
        """Build games by all their seats."""
        names = tuple(dict.fromkeys(game.teams.values()))
        batched = plays(game.env_id, game.env_args) and not game.swaps
        return (ParticleEnvs if batched else PettingZooEnvs)(
            *(game.env_id, num_envs),
            env_args=game.env_args,
            teams=tuple(names.index(team) for team in game.teams.values()) if game.wins else None,
            gaps=game.gaps,
            seed=seed,
            first=first,
            auto_reset=auto_reset,
            swapped=game.symmetric if game.swaps else (),
        )

    def of_league(self, game: ZooSpec) -> ZooSpec:
        """Return the game with alike seats that swap parts: who moves first alone learns nothing of moving second."""
        return replace(game, swaps=True)

    def who(self, game: ZooSpec) -> MultiAgentSpec:
        """Return who is in a game in which players fill every seat."""
        return game.specs()

    def agents(
        self,
        game: ZooSpec,
        learning: dict[str, str],
        scheme: Any,
        *,
        shared: bool,
    ) -> tuple[AgentSpec, ...]:
        """Group seats that learn into agents: each is one, whose critic may read what its team mates see."""
        agents = game.specs(learning, shared=shared).agents
        if scheme == "dtde":
            return agents
        seen = {agent.name: agent.observation_size * (len(game.seats_of(learning[agent.name])) - 1) for agent in agents}
        return tuple(replace(one, critic_space=Box(-np.inf, np.inf, (seen[one.name],))) for one in agents)

    def alike(self, game: ZooSpec, seat: str) -> tuple[str, ...]:
        """Return a seat and those that are symmetric to it."""
        groups = [group for group in game.symmetric if seat in group]
        return tuple(dict.fromkeys((seat, *(other for group in groups for other in group))))

    def fits(self, game: ZooSpec, card: Card, seat: str) -> bool:
        """Return that nothing is mirrored. Raises ``PlayerError``: the player cannot play the seat."""
        from multigrid_rl.players.cards import PlayerError, signature  # noqa: PLC0415

        (agent,) = game.specs([seat]).agents
        own = signature(agent, None)
        alike = self.alike(game, seat)
        env_id = None if card.env is None else card.env.env_id
        seen = {name: value for name, value in card.observation.model_dump().items() if value}
        acts = card.actions if isinstance(card.actions, int | list) else card.actions.model_dump()
        for part, good, wanted, got in (
            ("env", env_id == game.env_id, game.env_id, env_id or "the red/blue-door game"),
            ("seats", bool({*alike} & {*card.seats}), " or ".join(sorted(alike)), ", ".join(card.seats)),
            ("observation", seen == own["observation"], own["observation"], seen),
            ("actions", acts == own["actions"], own["actions"], acts),
        ):
            if not good:
                raise PlayerError(expected(f"player {card.name} does not fit seat {seat}: {part}", wanted, got))
        return False


#: Entry of ``tables.PLACES``.
PLACE = ZooPlace()
