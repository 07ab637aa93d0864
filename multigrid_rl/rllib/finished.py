"""Finished games as RLlib's callbacks take episodes: ``on_episode_start`` and ``_end``, once for each game."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, MultiAgentSpec

#: Callbacks of episodes that a finished game has, in this order.
CALLED = ("on_episode_start", "on_episode_end")


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished game.

    Attributes:
        length: its steps.
        returns: canonical return of each seat.
        agent_returns: of each agent that learns.
        events: sums of events by seat, such as ``episode.events["red_0"]["key_pickup"]``.
        winner: the team that has won; ``None``: nobody.
        players: who played the seats on which several players take turns.
        custom_data: for callbacks.
    """

    length: int
    returns: dict[str, float]
    agent_returns: dict[str, float]
    events: dict[str, dict[str, float]]
    winner: str | None
    players: dict[str, str]
    custom_data: dict[str, Any] = field(default_factory=dict)
    id_: str = field(default_factory=lambda: uuid4().hex)
    is_done = True

    def __len__(self) -> int:
        """Return its steps."""
        return self.length

    def __getattr__(self, name: str) -> Any:
        """Refuse what only an episode that is kept step by step has. Raises ``AttributeError``."""
        wanted = ", ".join([*self.__dataclass_fields__, "get_return", "env_steps"])
        raise AttributeError(expected("episode", f"{wanted}: games are played in batches", name))

    @property
    def agent_ids(self) -> set[str]:
        """Names of the agents that learn."""
        return set(self.agent_returns)

    def get_return(self) -> float:
        """Return the sum over all agents that learn."""
        return sum(self.agent_returns.values())

    def env_steps(self) -> int:
        """Return its steps."""
        return self.length


def episodes_of(table: EpisodeTable, specs: MultiAgentSpec) -> Iterator[FinishedEpisode]:
    """Yield finished games one by one."""
    for k in range(table.episodes):
        returns = dict(zip(specs.seats, table.returns[k].tolist(), strict=True))
        winner = int(table.winner[k]) if specs.has_winner else -1
        chosen = zip(specs.pools, table.players[k].tolist(), strict=False)
        yield FinishedEpisode(
            length=int(table.length[k]),
            returns=returns,
            agent_returns={agent.name: sum(returns[seat] for seat in agent.seats) for agent in specs.agents},
            events={
                seat: dict(zip(specs.events, row, strict=True))
                for seat, row in zip(specs.seats, table.events[k].tolist(), strict=True)
            },
            winner=specs.team_names[winner] if winner >= 0 else None,
            players={seat: names[min(number, len(names) - 1)] for (seat, names), number in chosen},
        )


def tell_of_episodes(
    config: Any, callbacks: Any, table: EpisodeTable, specs: MultiAgentSpec, logger: MetricsLogger
) -> bool:
    """Call what is called for each episode, with a logger below ``env_runners``; returns whether there is anything."""
    callbacks = force_list(callbacks)
    functions = {name: getattr(config, f"callbacks_{name}") for name in CALLED}
    own = [
        name
        for name in CALLED
        if functions[name] or any(getattr(type(one), name) is not getattr(RLlibCallback, name) for one in callbacks)
    ]
    for episode in episodes_of(table, specs) if own else ():
        for name in own:
            make_callback(
                name,
                callbacks_objects=callbacks,
                callbacks_functions=functions[name],
                kwargs={
                    "episode": episode,
                    "metrics_logger": logger,
                    "env_runner": None,
                    "env": None,
                    "env_index": 0,
                    "rl_module": None,
                },
            )
    return bool(own and table.episodes)
