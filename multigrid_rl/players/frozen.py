"""A trained network as a player, and which seats it fits."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multigrid_rl.models.distributions import Categorical, Distribution, Draw, distribution_of
from multigrid_rl.models.mlp import MLPActorCritic
from multigrid_rl.models.towers import Stack, TokenTowers
from multigrid_rl.players.cards import Card, ObservationSignature, PlayerError, signature
from multigrid_rl.text import expected, shown
from multigrid_rl.types import AgentSpec, GameSpec, SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS
from multigrid_rl.world.spaces import token_categories
from multigrid_rl.world.symmetry import other_seat, other_side


class FrozenPlayer:
    """Plays a network's policy.

    Args:
        name: what it is called.
        network: see ``models.registry.build``.
        sha256: of its file.
        distribution: what the network's outputs mean; one of the game's actions for each seat by default.
        members: seats ``C`` that it acts for at once; more than one for a team with a joint action.
        mirrored: it learned on the other side of the board, and sees it from there.
        greedy: take the likeliest action instead of drawing one.
    """

    def __init__(  # noqa: PLR0913 - three have defaults
        self,
        name: str,
        network: nn.Module,
        sha256: str,
        *,
        distribution: Distribution | None = None,
        members: int = 1,
        mirrored: bool = False,
        greedy: bool = False,
    ) -> None:
        self.name = name
        self.network: Any = network
        self.distribution = distribution or Categorical((len(ACTIONS),) * members)
        self.sha256 = sha256
        self.members = members
        self.mirrored = mirrored
        self.greedy = greedy

    @classmethod
    def of(cls, card: Card, network: nn.Module, *, mirrored: bool = False, greedy: bool = False) -> "FrozenPlayer":
        """Return the player that a card describes."""
        meaning = distribution_of(card.action_space, card.architecture.get("bound", "clip"), network)
        options: dict[str, Any] = {"distribution": meaning, "members": card.members}
        return cls(card.name, network, card.sha256, mirrored=mirrored, greedy=greedy, **options)

    def initial_state(self, games: int) -> torch.Tensor:
        """Return the empty memory (N, S) of ``games`` fresh games; S is 0 for a network without memory."""
        return torch.zeros(games, self.network.state_size)

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Return the memory with the games in ``done`` (N,) forgotten."""
        if not state.shape[1]:
            return state
        return state * torch.from_numpy(~done).unsqueeze(1)

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """What is the same of players that can act together (:class:`Alike`); ``None``: it acts for itself."""
        if self.towers is None or not isinstance(self.distribution, Categorical):
            return None
        return (self.distribution.choices, self.greedy, self.towers.shape)

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[Any], torch.Tensor]:
        """Draw actions (N,), of a team (N, C), or bounded numbers (N, A)."""
        outputs, state = self.outputs(view, state)
        return self.taken(outputs, rng), state

    def taken(self, outputs: NDArray[np.float32], rng: UniformSource) -> NDArray[Any]:
        """Draw actions (N,), of a team (N, C), or bounded numbers (N, A), out of ``outputs`` (N, outputs)."""
        actions = self.distribution.bounded(self.choose(outputs, rng).actions)
        if not isinstance(self.distribution, Categorical):
            return actions
        return (actions[:, 0] if self.distribution.components == 1 else actions).astype(np.int8)

    def outputs(self, view: SeatView, state: torch.Tensor) -> tuple[NDArray[np.float32], torch.Tensor]:
        """Compute what the policy puts out (N, outputs), and the next memory."""
        seen = other_side(view.tokens, self.members) if self.mirrored else np.ascontiguousarray(view.tokens)
        if self.towers is not None:
            return self.towers.policy(seen), state
        with torch.inference_mode():
            if self.network.state_size:
                output, _, state = self.network(torch.from_numpy(seen), state)
            else:
                output = self.network.logits(torch.from_numpy(seen))
        return output.numpy(), state

    @cached_property
    def towers(self) -> TokenTowers | None:
        """What computes its policy, if that is compiled."""
        # To look whether the weights are still where they were takes as long as the network on a few rows.
        return self.network.compiled() if isinstance(self.network, MLPActorCritic) else None

    def choose(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw actions with their log-probabilities and entropies out of ``outputs`` (N, outputs)."""
        drawn = self.distribution.draw(outputs, rng)  # in any case: a game's stream moves on alike
        return drawn._replace(actions=self.distribution.mode(outputs)) if self.greedy else drawn


class Alike:
    """Players of one kind (:attr:`FrozenPlayer.kind`) that act in one call, each as it would alone.

    Args:
        players: at least one.
    """

    def __init__(self, players: Sequence[FrozenPlayer]) -> None:
        self._first = players[0]
        self._stack = Stack([player.towers for player in players if player.towers is not None])
        self._mirrored = np.array([player.mirrored for player in players])

    def act(self, tokens: NDArray[np.uint8], numbers: NDArray[np.intp], rng: UniformSource) -> NDArray[Any]:
        """Draw actions (N,), of a team (N, C): of each row by the player with the place ``numbers`` (N,), ascending."""
        mirrored = self._mirrored[numbers]
        if mirrored.all():
            tokens = other_side(tokens, self._first.members)
        elif mirrored.any():
            tokens[mirrored] = other_side(tokens[mirrored], self._first.members)
        return self._first.taken(self._stack.policy(tokens, numbers), rng)


def check_fits(card: Card, spec: GameSpec, seat: str) -> bool:
    """Return whether the player sits on ``seat`` of the game ``spec`` as on the other side of the board.

    Raises :class:`PlayerError` if it cannot sit there at all.
    """
    mirrored = seat not in card.seats
    team, needed = spec.seats_of(spec.team_of(seat)), token_categories(spec) * card.members
    view = ObservationSignature(view_size=spec.view_size, categories=needed)
    for part, good, wanted, got in (
        ("env", card.env is None, "the red/blue-door game", card.env and card.env.env_id),
        (
            "seats",
            not mirrored or other_seat(seat) in card.seats,
            f"{seat} or {other_seat(seat)}",
            ", ".join(card.seats),
        ),
        ("members", card.members in {1, len(team)}, f"1 or {len(team)}", card.members),
        ("actions", card.actions == len(ACTIONS), str(len(ACTIONS)), card.actions),
        ("observation", card.observation.categories == needed, str(view), card.observation),
    ):
        if not good:
            raise PlayerError(
                expected(f"player {card.name} does not fit seat {seat}: {part}", wanted, shown(str(got), 200))
            )
    return mirrored


def check_agent(card: Card, agent: AgentSpec) -> None:
    """Raise :class:`PlayerError` unless the player reads and decides what ``agent`` does."""
    wanted = signature(agent, card.observation.view_size)
    needed = Card.model_validate({**card.model_dump(), **wanted})
    for part, theirs in wanted.items():
        if getattr(card, part) != getattr(needed, part):
            mine = card.model_dump(exclude_none=True)[part]
            raise PlayerError(f"{card.name} does not fit this environment: {part}: expected {theirs}, got {mine}")
