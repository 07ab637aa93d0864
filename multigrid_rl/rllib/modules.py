"""RLlib modules for any ``PPOConfig``: a frozen player, which does not learn, and our networks, which do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.config.network import ModelConfig
from multigrid_rl.config.scenario import validated
from multigrid_rl.models.registry import network_of
from multigrid_rl.players import frozen
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.rllib.learner import ActorCriticModule
from multigrid_rl.rllib.private import algorithms_keys
from multigrid_rl.streams import PLAYER_PURPOSE, Streams, purpose_of
from multigrid_rl.text import ConfigError, expected, unknown
from multigrid_rl.types import AgentSpec, SeatView
from multigrid_rl.world import spaces
from multigrid_rl.world.state import token_categories

#: Keys of a frozen player's ``model_config``.
KEYS = ("player", "seat", "scenario", "seed", "greedy")
#: Keys that RLlib writes into every module's, which have no effect here.
_DEFAULTS = {entry.name for entry in fields(DefaultModelConfig)}
#: The network where ``model_config`` names none, as ``configs/model/mlp.yaml``.
_NETWORK = {"name": "mlp", "hidden": (64, 64)}


class FrozenPlayerModule(RLModule):
    """Acts as a player of the catalogue in :class:`~multigrid_rl.rllib.environment.RedBlueDoors`.

    ``RLModuleSpec(FrozenPlayerModule, model_config={"player": "blue-master"})``; leave it out of ``policies_to_train``.

    It draws its actions whether RLlib explores or not: it is a part of the game. A row of its batch draws from the
    row's own stream, as a game of a :class:`~multigrid_rl.players.match.Match` does: in one environment and with its
    seed it plays the same actions.

    ``model_config``:

    * ``player``: name or folder of one with a network. Scripted players see the whole board, which is in no
      observation: they are background players of the environment (``env_config={"players": ...}``).
    * ``seat``: by default the first of its card. Several seats need a module each.
    * ``scenario``: by default its card's.
    * ``seed``: of its actions; by default the process's, which RLlib sets from ``debugging(seed=...)`` and the number
      of the env runner.
    * ``greedy``: take the likeliest action instead of drawing one.

    Raises:
        ConfigError: an unknown key, or spaces of another environment.
        PlayerError: an unknown or damaged player, or one that does not fit.
    """

    framework = "torch"  # batches are tensors
    model_config: Any

    def setup(self) -> None:
        """Load the player."""
        values = _user_values(self.model_config)
        for key in values:
            if key not in KEYS:
                raise ConfigError(unknown("model_config", key, KEYS))
        if "player" not in values:
            raise ConfigError(expected("model_config.player", "a player's name", "none"))
        self.model_config = {"max_seq_len": 20, **values}  # the learner's connectors ask every module with a memory
        name, catalogue = str(values["player"]), Catalogue()
        card = catalogue.card_of(name)
        if card is None or card.members != 1 or card.env is not None:
            wanted = "a frozen player of one seat (others are background players: env_config={'players': ...})"
            raise PlayerError(expected("model_config.player", wanted, name))
        seat = values.get("seat", card.seats[0])
        spec = load_scenario(str(values.get("scenario", card.scenario))).spec
        spec.team_of(seat)
        loaded = catalogue.seat(name, spec, seat, greedy=bool(_typed_value(values, "greedy", bool, "true or false")))
        assert isinstance(loaded.player, frozen.FrozenPlayer)
        self.player, self.sha256 = loaded.player, str(loaded.sha256)
        self._agent, self._categories = spec.seats.index(seat), token_categories(spec)
        flat, tokens = spaces.flat_space(spec), gymnasium.spaces.MultiDiscrete(self._categories)
        for key, got, allowed in (
            ("observation_space", self.observation_space, (flat, tokens)),
            ("action_space", self.action_space, (spaces.action_space(),)),
        ):
            if got is not None and got not in allowed:
                raise ConfigError(expected(f"{self.player.name}: {key}", " or ".join(map(str, allowed)), got))
        seed = _typed_value(values, "seed", int, "a whole number")
        # The process's seed: RLlib passes no generator to modules.
        self._seed = torch.initial_seed() if seed is None else seed
        self._rng = self._streams(1)

    def _streams(self, rows: int) -> Streams:
        return Streams(self._seed, np.arange(rows, dtype=np.int64), purpose_of(PLAYER_PURPOSE, self._agent))

    def get_initial_state(self) -> dict[str, Any]:
        """Return the empty memory (S,) of one game; nothing for a player without memory."""
        memory = self.player.initial_state(1)
        return {"memory": memory[0].numpy()} if memory.shape[1] else {}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        observations = np.asarray(batch[Columns.OBS])
        timed = self.is_stateful()  # then a row is a sequence of one step
        tokens = self._tokens(observations[:, 0] if timed else observations)
        memory = torch.as_tensor(batch[Columns.STATE_IN]["memory"]) if timed else self.player.initial_state(len(tokens))
        if len(tokens) > len(self._rng.state):
            streams = self._streams(len(tokens))
            streams.state[: len(self._rng.state)] = self._rng.state
            self._rng = streams
        rng = self._rng.rows(np.arange(len(tokens)))
        actions, memory = self.player.act(SeatView(tokens, None, self._agent), memory, rng)
        if not timed:
            return {Columns.ACTIONS: actions.astype(np.int64)}
        return {Columns.ACTIONS: actions.astype(np.int64)[:, None], Columns.STATE_OUT: {"memory": memory.numpy()}}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        raise ConfigError(expected("policies_to_train", "modules that learn", f"{self.player.name}, a frozen player"))

    def _tokens(self, observations: NDArray[Any]) -> NDArray[np.uint8]:
        """Return tokens (N, D) of one-hot vectors (N, sum of categories), or of tokens."""
        if observations.shape[1] == len(self._categories):
            return observations.astype(np.uint8)
        starts = np.cumsum([0, *self._categories[:-1]])
        # One 1 in each token's part: its index in the vector, minus the part's start.
        return np.asarray(np.nonzero(observations > 0.5)[1].reshape(len(observations), -1) - starts, np.uint8)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return the hash of the player: its weights stay out of checkpoints."""
        return {"sha256": self.sha256}

    def set_state(self, state: dict[str, Any]) -> None:
        """Check that the player is the same. Raises :class:`PlayerError`."""
        if state and str(state["sha256"]) != self.sha256:
            raise PlayerError(expected(f"{self.player.name}: sha256", str(state["sha256"]), self.sha256))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: it is compiled already."""


#: Its earlier name, which checkpoints of RLlib's have.
FrozenPlayer = FrozenPlayerModule


class NetworkModule(ActorCriticModule):
    """Policy and values of one of our networks over tokens: for ``env_config={"observation": "tokens"}``.

    ``RLModuleSpec(NetworkModule, model_config={"name": "mlp", "hidden": [64, 64]})``: keys as in ``model``
    (docs/cli.md), and ``seed`` of the initial weights; by default the process's, which RLlib sets. Raises
    ``ConfigError``: an unknown key, a network with memory, or spaces of another environment.
    """

    def setup(self) -> None:
        """Build the network."""
        values = {**_NETWORK, **_user_values(self.model_config)}
        seed = _typed_value(values, "seed", int, "a whole number")
        values.pop("seed", None)
        model = validated(ModelConfig, values, "model_config")
        if model.recurrent:
            raise ConfigError(expected("model_config.name", "a network without memory", model.name))
        for key, space, kind in (
            ("observation_space (env_config={'observation': 'tokens'})", self.observation_space, "MultiDiscrete"),
            ("action_space", self.action_space, "Discrete"),
        ):
            if type(space).__name__ != kind:
                raise ConfigError(expected(key, kind, space))
        choices = gymnasium.spaces.MultiDiscrete([self.action_space.n])
        agent = AgentSpec("agent", "module", ("seat",), self.observation_space, choices)
        self.architecture = model.model_dump(mode="json")
        self.net = network_of(agent, self.architecture, torch.initial_seed() % 2**62 if seed is None else seed)


def _typed_value(values: dict[str, Any], key: str, kind: type, wanted: str) -> Any:
    """Return a value of a ``model_config``, or ``None``. Raises :class:`ConfigError`: of another type."""
    value = values.get(key)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(expected(f"model_config.{key}", wanted, repr(value)))
    return value


def _user_values(config: Any) -> dict[str, Any]:
    """Return the user's keys of a ``model_config``, without RLlib's."""
    rllib_keys = _DEFAULTS | algorithms_keys()
    return {key: value for key, value in (config or {}).items() if key not in rllib_keys}
