"""Games of PettingZoo's kind as a kind of environments, and how players are seated in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from multigrid_rl.config.scenario import LEARN, OneAgent
from multigrid_rl.envs.pettingzoo import PettingZooEnvs, ZooSpec, kinds_of
from multigrid_rl.envs.zoo import described
from multigrid_rl.players.places import SeatedKind, Words
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.types import AgentSpec, EnvFactory, MultiAgentSpec, Policy, SeatView, UniformSource

if TYPE_CHECKING:
    from multigrid_rl.players.cards import Card


class PettingZoo(SeatedKind):
    """Games of PettingZoo's kind, parallel or turn by turn: every agent is a seat."""

    vectors: ClassVar[bool] = True
    may_not_end: ClassVar[bool] = True

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
        from dataclasses import replace  # noqa: PLC0415

        from multigrid_rl.players.factories import MatchFactory  # noqa: PLC0415 - it brings torch

        memory, about = config.model.recurrent, described(self.env_id, self.env_args)
        learns = [about.seats[seat] for seat in self.learning]
        legal, images = any(seat.legal for seat in learns), all(seat.image for seat in learns)
        for key, good, wanted, got in (
            ("model", images or not config.model.entry.images, "mlp, as not all seats see images", config.model.name),
            ("model", not (memory and about.turns), f"a network without memory, as {self.env_id} has turns", "memory"),
            ("model", not legal or config.model.entry.legal, "mlp with legal actions", config.model.name),
            ("scheme", config.scheme == "dtde", "dtde with this package", config.scheme),
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
            league=self.pool_seats,
        )


class RandomLegal:
    """Draws every legal choice, or number within the bounds, with the same probability.

    Args:
        agent: what its seat sees and does.
    """

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
            low, high = (np.clip(bound, -10, 10) for bound in (space.low, space.high))
            return (low + uniform * (high - low)).astype(np.float32), None
        if not self._legal:
            return (uniform * space.nvec).astype(np.int64), None
        flags = np.split(view.tokens[:, -self._legal :], np.cumsum(space.nvec)[:-1], axis=1)
        return np.stack([_among(*part) for part in zip(flags, uniform.T, strict=True)], axis=1), None

    def probabilities(self, seen: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability (N, K) of each choice for observations (N, D) that end with what is legal."""
        flags = seen[:, -self._legal :].astype(np.float64)
        return np.asarray(flags / flags.sum(axis=1, keepdims=True))


def _among(flags: NDArray[Any], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one of the choices (N,) that ``flags`` (N, K) allow, each as likely, by numbers (N,) in [0, 1)."""
    order = np.cumsum(flags, axis=1)
    wanted = np.minimum(np.floor(uniform * order[:, -1]) + 1, order[:, -1])
    return np.asarray((order < wanted[:, None]).sum(axis=1), np.int64)


class ZooPlace:
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
        return PettingZooEnvs(
            *(game.env_id, num_envs),
            env_args=game.env_args,
            teams=tuple(names.index(team) for team in game.teams.values()) if game.wins else None,
            gaps=game.gaps,
            seed=seed,
            first=first,
            auto_reset=auto_reset,
            how=game.how,
        )

    def who(self, game: ZooSpec) -> MultiAgentSpec:
        """Return who is in a game in which players fill every seat."""
        return game.specs()

    def agents(
        self,
        game: ZooSpec,
        learning: dict[str, str],
        scheme: Any,  # noqa: ARG002 - dtde alone
        *,
        shared: bool,
    ) -> tuple[AgentSpec, ...]:
        """Group seats that learn into agents: each is one."""
        return game.specs(learning, shared=shared).agents

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

    def scripted(self, game: ZooSpec, name: str, seat: str) -> Policy:
        """Make the one built-in player. Raises ``PlayerError`` for another."""
        from multigrid_rl.players.cards import PlayerError  # noqa: PLC0415

        if name != RandomLegal.name:
            wanted = f"{RandomLegal.name}, a folder or module:Class in {game.env_id}"
            raise PlayerError(expected("player", wanted, name))
        return RandomLegal(*game.specs([seat or game.seats[0]]).agents)

    def own_class(self, game: ZooSpec, code: str, seat: str) -> Policy:
        """Make a player of a class of the user's own and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import in_place_of_agent  # noqa: PLC0415

        return in_place_of_agent(code, *game.specs([seat]).agents)

    def own(self, game: ZooSpec, name: str, player: Any, seat: str) -> Policy:
        """Take a player that was handed over as an object, and try it. Raises ``ConfigError``."""
        from multigrid_rl.players.classes import acting  # noqa: PLC0415

        return acting(name, player, *game.specs([seat]).agents)


#: Entry of ``tables.PLACES``.
PLACE = ZooPlace()
