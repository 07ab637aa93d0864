"""Finished games as RLlib's callbacks take episodes: ``on_episode_start`` and ``_end``, once for each game."""

from functools import cached_property
from typing import Any
from uuid import uuid4

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from multigrid_rl.text import expected
from multigrid_rl.types import EpisodeTable, MultiAgentSpec


class FinishedEpisode:
    """A finished game, whose parts are computed when they are asked for: there are hundreds in an iteration.

    Attributes:
        custom_data: for callbacks.
    """

    is_done = True

    def __init__(self, table: EpisodeTable, specs: MultiAgentSpec, row: int) -> None:
        self._table, self._specs, self._row = table, specs, row
        self.custom_data: dict[str, Any] = {}

    def __len__(self) -> int:
        """Return its steps."""
        return int(self._table.length[self._row])

    def __getattr__(self, name: str) -> Any:
        """Refuse what only an episode that is kept step by step has. Raises ``AttributeError``."""
        parts = ["custom_data", *(part for part in dir(type(self)) if not part.startswith("_"))]
        raise AttributeError(expected("episode", f"{', '.join(parts)}: games are played in batches", name))

    length, env_steps = property(__len__), __len__

    @property
    def returns(self) -> dict[str, float]:
        """Canonical return of each seat."""
        return dict(zip(self._specs.seats, self._table.returns[self._row].tolist(), strict=True))

    @property
    def agent_returns(self) -> dict[str, float]:
        """Those of each agent that learns."""
        returns = self.returns
        return {agent.name: sum(returns[seat] for seat in agent.seats) for agent in self._specs.agents}

    @property
    def events(self) -> dict[str, dict[str, float]]:
        """Sums of events by seat, such as ``episode.events["red_0"]["key_pickup"]``."""
        rows = zip(self._specs.seats, self._table.events[self._row].tolist(), strict=True)
        return {seat: dict(zip(self._specs.events, row, strict=True)) for seat, row in rows}

    @property
    def winner(self) -> str | None:
        """The team that has won; ``None``: nobody."""
        team = int(self._table.winner[self._row]) if self._specs.has_winner else -1
        return self._specs.team_names[team] if team >= 0 else None

    @property
    def players(self) -> dict[str, str]:
        """Who played the seats on which several players take turns."""
        chosen = zip(self._specs.pools, self._table.players[self._row].tolist(), strict=False)
        return {seat: names[min(number, len(names) - 1)] for (seat, names), number in chosen}

    @property
    def agent_ids(self) -> set[str]:
        """Names of the agents that learn."""
        return {agent.name for agent in self._specs.agents}

    @cached_property
    def id_(self) -> str:
        """A name that no other episode has."""
        return uuid4().hex

    def get_return(self) -> float:
        """Return the sum over all agents that learn."""
        return sum(self.agent_returns.values())


def tell(config: Any, callbacks: Any, table: EpisodeTable, specs: MultiAgentSpec, logger: MetricsLogger) -> bool:
    """Call what is called for each episode, with a logger below ``env_runners``; returns whether there is anything."""
    calls: list[Any] = []
    for name in ("on_episode_start", "on_episode_end"):
        plain = getattr(RLlibCallback, name)
        calls += [getattr(one, name) for one in force_list(callbacks) if getattr(type(one), name) is not plain]
        calls += force_list(getattr(config, f"callbacks_{name}"))
    rest = {"metrics_logger": logger, "env_runner": None, "env": None, "env_index": 0, "rl_module": None}
    for row in range(table.episodes) if calls else ():
        episode = FinishedEpisode(table, specs, row)
        for call in calls:
            call(episode=episode, **rest)
    return bool(calls and table.episodes)
