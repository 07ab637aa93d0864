"""A trained network as a player, and checks of its seat."""

from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multigrid_rl.fast import CompiledNetwork, compile_network, step
from multigrid_rl.models.distributions import Categorical, Distribution, Draw, choice_type, distribution_of
from multigrid_rl.players.cards import Card, ObservationSignature, PlayerError, signature
from multigrid_rl.streams import Streams
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import AgentSpec, GameSpec, SeatView, UniformSource
from multigrid_rl.world.constants import ACTIONS, other_seat, other_side
from multigrid_rl.world.state import token_categories


class FrozenPlayer:
    """Plays a network's policy.

    Args:
        network: see ``models.registry.build``.
        distribution: distribution of actions; by default one of the game's actions for each seat.
        members: number of seats ``C`` that it acts for at once; more than one for a team with a joint action.
        mirrored: trained on the other side of the board; observations are mirrored.
        greedy: take the likeliest action instead of drawing one.

    Attributes:
        card: the card that it was read from.
        env_seat: spaces of its environment (``AgentSpec.own``), for :meth:`predict`.
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
        self.card: Card | None = None
        self.env_seat: Any = None

    @classmethod
    def of(cls, card: Card, network: nn.Module, *, mirrored: bool = False, greedy: bool = False) -> "FrozenPlayer":
        """Return the player that a card describes."""
        distribution = distribution_of(card.action_space, card.architecture.get("bound", "clip"), network)
        options: dict[str, Any] = {"distribution": distribution, "members": card.members}
        player = cls(card.name, network, card.sha256, mirrored=mirrored, greedy=greedy, **options)
        player.card = card
        return player

    def initial_state(self, games: int) -> torch.Tensor:
        """Return the empty memory (N, S) of ``games`` new games; S is 0 for a network without memory."""
        return torch.zeros(games, self.network.state_size)

    def reset_state(self, state: torch.Tensor, done: NDArray[np.bool_]) -> torch.Tensor:
        """Return the memory with the games in ``done`` (N,) cleared."""
        if not state.shape[1]:
            return state
        return state * torch.from_numpy(~done).unsqueeze(1)

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Key of players that can act in one call (:class:`pool.PlayerStack`); ``None``: it acts in single calls."""
        if self.towers is None or not isinstance(self.distribution, Categorical):
            return None
        return (self.distribution.choices, self.greedy, self.towers.stack_key)

    def act(self, view: SeatView, state: torch.Tensor, rng: UniformSource) -> tuple[NDArray[Any], torch.Tensor]:
        """Draw actions (N,), of a team (N, C), or bounded numbers (N, A)."""
        outputs, state = self.outputs(view, state)
        return self.sample(outputs, rng), state

    def sample(self, outputs: NDArray[np.float32], rng: UniformSource) -> NDArray[Any]:
        """Draw actions (N,), of a team (N, C), or bounded numbers (N, A), from ``outputs`` (N, outputs)."""
        return self.native_actions(self.choose(outputs, rng).actions)

    def native_actions(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Return chosen actions (N, C) or (N, A) in the environment's form: (N,) if there is one choice."""
        actions = self.distribution.bounded(chosen)
        if not isinstance(self.distribution, Categorical):
            return actions
        choices: NDArray[Any] = actions[:, 0] if self.distribution.components == 1 else actions
        return choices.astype(choice_type(max(self.distribution.choices)))

    def predict(
        self, observation: Any, state: torch.Tensor | None = None, rng: np.random.Generator | Streams | None = None
    ) -> tuple[Any, torch.Tensor]:
        """Return the action for one observation (D,), or actions for several (N, D), and the next memory (N, S).

        Like ``predict`` of Stable-Baselines3 (https://stable-baselines3.readthedocs.io/en/master/modules/base.html).

        Args:
            observation: a flat vector, tokens, or an observation of its environment (with flags of ``info`` a mapping
                of ``observation`` and ``action_mask``); or several flat ones, or several of ``SeatEnv``.
            state: the memory that the last call returned; ``None`` at the start of an episode.
            rng: draws the actions; without it they are the likeliest ones.

        Raises ``ConfigError``: anything else.
        """
        if not isinstance(rng, np.random.Generator | Streams | None):
            raise ConfigError(expected("rng", "a numpy.random.Generator, such as default_rng(0)", shown(repr(rng), 80)))
        # Imported here: no run calls this method.
        from multigrid_rl.envs.zoo import rows_of  # noqa: PLC0415
        from multigrid_rl.world.spaces import token_rows  # noqa: PLC0415

        size = None if self.card is None else self.card.observation.size
        try:
            rows, several = token_rows(observation) if size is None else rows_of(observation, size, self.env_seat)
            memory = self.initial_state(len(rows)) if state is None else state
            outputs, state = self.outputs(SeatView(rows, None, 0), memory)
        except ConfigError:
            raise
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            got = f"{shown(repr(observation), 80)}: {shown(str(error), 80)}"
            raise ConfigError(expected("observation", f"what {self.name} was trained to read", got)) from error
        source: Any = rng
        if isinstance(rng, np.random.Generator):
            source = SimpleNamespace(uniform=lambda columns: rng.random((len(rows), columns)))
        chosen = self.distribution.mode(outputs) if source is None else self.distribution.draw(outputs, source).actions
        actions = self.native_actions(chosen)
        if self.card is not None and self.card.taken is not None:
            actions = self.card.taken(actions)
        return actions if several else actions[0], state

    def outputs(self, view: SeatView, state: torch.Tensor) -> tuple[NDArray[np.float32], torch.Tensor]:
        """Compute the policy's outputs (N, outputs) and the next memory."""
        tokens = other_side(view.tokens, self.members) if self.mirrored else np.ascontiguousarray(view.tokens)
        if self.towers is not None:
            return self.towers.policy(tokens), state
        with torch.inference_mode():
            if self.network.state_size:
                output, _, state = step(self.network, torch.from_numpy(tokens), state)
            else:
                output = self.network.logits(torch.from_numpy(tokens))
        return output.numpy(), state

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability (N, K) of each choice, drawn, for observations (N, D) without memory."""
        outputs, _ = self.outputs(SeatView(observations, None, 0), self.initial_state(len(observations)))
        logits = outputs.astype(np.float64)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    @cached_property
    def towers(self) -> CompiledNetwork | None:
        """The compiled policy over tokens, if there is one; torch computes policies over vectors."""
        # Cached: checking the weights' addresses takes as long as the network on a few rows.
        compiled = compile_network(self.network)
        return compiled if compiled is not None and compiled.stack_key is not None else None

    def choose(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw actions with their log-probabilities and entropies from ``outputs`` (N, outputs)."""
        draw = self.distribution.draw(outputs, rng)  # also if greedy, so that a game's stream advances equally
        return draw._replace(actions=self.distribution.mode(outputs)) if self.greedy else draw


def check_agent(card: Card, agent: AgentSpec) -> None:
    """Raise :class:`PlayerError` unless the player's spaces are the agent's."""
    expected_parts = signature(agent, card.observation.view_size)
    needed = Card.model_validate({**card.model_dump(), "taken": None, **expected_parts})
    for part, value in expected_parts.items():
        if getattr(card, part) != getattr(needed, part):
            got = card.model_dump(exclude_none=True)[part]
            raise PlayerError(f"{card.name} does not fit this environment: {part}: expected {value}, got {got}")


def check_fits(card: Card, spec: GameSpec, seat: str) -> bool:
    """Return whether the player needs mirrored observations to play ``seat`` of the game ``spec``.

    Raises :class:`PlayerError` if it cannot play that seat.
    """
    mirrored, other = seat not in card.seats, other_seat(seat)
    team, needed = spec.seats_of(spec.team_of(seat)), token_categories(spec) * card.members
    view = ObservationSignature(view_size=spec.view_size, categories=needed)
    for part, valid, wanted, got in (
        ("env", card.env is None, "the red/blue-door game", card.env and card.env.env_id),
        ("seats", not mirrored or other in card.seats, f"{seat} or {other}", ", ".join(card.seats)),
        ("members", card.members in {1, len(team)}, f"1 or {len(team)}", card.members),
        ("actions", card.actions == len(ACTIONS), str(len(ACTIONS)), card.actions),
        ("observation", card.observation.categories == needed, str(view), card.observation),
    ):
        if not valid:
            key = f"player {card.name} does not fit seat {seat}: {part}"
            raise PlayerError(expected(key, wanted, shown(str(got), 200)))
    return mirrored
