"""Recording of demonstrations: a player acts for the learning agents, and every step is stored."""

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid_rl.cli.output import temporary_output
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.imitation.demonstrations import Episode, write
from multigrid_rl.players.cards import signature
from multigrid_rl.players.episodes import turns
from multigrid_rl.runs.players import code_of_run, config_of, is_run, player_in_place_of
from multigrid_rl.runs.provenance import versions
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.trust import check_code
from multigrid_rl.types import AgentSpec, BatchedStep, EnvFactory, Policy

Array = NDArray[Any]


def record_play(who: str, overrides: list[str], output: Path, steps: int, seed: int, **options: Any) -> str:
    """Write a player's steps into a new folder; returns a line to print.

    Args:
        who: a player, its folder or a run folder.
        overrides: overrides of its environment; by default the player's.
        steps: environment steps to store.
        seed: seed of environments and sampled actions.
        options: ``greedy``, whether it takes the likeliest actions, and ``checkpoint`` of a run.

    Raises ``ConfigError``, ``PlayerError``: no such player, or one that cannot play there.
    """
    run = is_run(who)
    if options["checkpoint"] is not None and not run:
        raise ConfigError(expected("--checkpoint", f"nothing for {who}, which is no run", options["checkpoint"]))
    config = config_of(who, overrides)
    if run and not overrides and config.scenario.env_id is None:
        check_code(f"{who}/config.yaml", code_of_run(config), "players of this project")
    try:
        factory = env_factory(config.canonical)
        factory.load()
        agents = factory.specs.agents
        loaded = {agent.name: player_in_place_of(agent, who, config, **options) for agent in agents}
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game = config.scenario.game
    kinds = [signature(agent, None if game is None else game.view_size) for agent in agents]
    if any(kind != kinds[0] for kind in kinds):
        raise ConfigError(expected("scenario", "one whose agents see and do the same", config.scenario.name))
    first = loaded[agents[0].name]
    facts = {
        "who": first.name if not run else Path(who).resolve().name[:100],
        "who_sha256": first.sha256,
        "scenario": config.scenario.name,
        "env": env_signature(config.scenario),
        "seats": [seat for agent in agents for seat in agent.seats],
        **kinds[0],
        "seed": seed,
        "versions": versions(),
    }
    began = time.perf_counter()
    num_envs = max(1, min(64, steps // 5_000))  # few, so that most episodes are complete
    with temporary_output(output, "folder") as temporary_path:
        players = {name: row.player for name, row in loaded.items()}
        card = write(temporary_path, record(factory, players, steps, num_envs, seed), facts)
    return f"recorded {output}: {card.summary()}; {card.bytes:,} bytes, {time.perf_counter() - began:.1f} s"


def record(
    factory: EnvFactory, players: Mapping[str, Policy], steps: int, num_envs: int, seed: int
) -> Iterator[Episode]:
    """Yield episodes, as they end, in which ``players`` act for all agents.

    ``num_envs`` environments play equally many steps, to avoid a bias towards short episodes; unfinished episodes are
    cut at the end. Steps after an agent's elimination are not part of its episode. If agents do not decide in every
    step (``learn.decisions``), a decision gets all rewards before the next one, as in training.

    Args:
        players: by agent.
        steps: environment steps, at least ``num_envs``, rounded up to equally many in each environment.
        seed: seed of environments and action sampling.
    """
    agents, rounds, env = factory.specs.agents, -(-steps // num_envs), factory.build(num_envs, 0)
    buffers = {agent.name: _EpisodeBuffer(agent, num_envs, seed, gaps=hasattr(env, "deciding")) for agent in agents}
    played = turns(env, agents, players, seed=seed)
    for number, turn in enumerate(islice(played, rounds), 1):
        for name, buffer in buffers.items():
            buffer.add(turn.observations[name], turn.actions[name], turn.step)
            yield from buffer.close(turn.step.done if number < rounds else np.ones(num_envs, np.bool_), turn.step)


class _EpisodeBuffer:
    """Steps of one agent in ``N`` environments since the start of the oldest unfinished episode."""

    def __init__(self, agent: AgentSpec, num_envs: int, seed: int, *, gaps: bool) -> None:
        self._agent, self._seed, self._gaps = agent, seed, gaps
        self._width = int(np.prod(agent.observation_space.shape or (1,)))
        self._columns: list[Array] = []
        self._steps = 0
        self._start, self._number = np.zeros((2, num_envs), np.int64)

    def add(self, obs: Array, actions: Array, step: BatchedStep) -> None:
        name = self._agent.name
        row = (obs[:, : self._width], actions, step.rewards[name], step.mask[name].any(axis=1), step.terminated[name])
        if not self._columns:
            self._columns = [np.empty((256, *part.shape), part.dtype) for part in row]
        if self._steps == len(self._columns[0]):
            unused = int(self._start.min())
            growth = self._steps if unused < self._steps // 2 else 0
            self._columns = [
                np.concatenate([part[unused:], np.empty((growth + unused, *part.shape[1:]), part.dtype)])
                for part in self._columns
            ]
            self._steps -= unused
            self._start -= unused
        for column, part in zip(self._columns, row, strict=True):
            column[self._steps] = part
        self._steps += 1

    def close(self, which: NDArray[np.bool_], step: BatchedStep) -> Iterator[Episode]:
        """Yield the episodes of the environments ``which`` (N,), which end with this step."""
        final, after = (observations[self._agent.name] for observations in (step.final_observations, step.observations))
        for k in np.flatnonzero(which).tolist():
            obs, actions, rewards, active, terminated = (
                column[self._start[k] : self._steps, k] for column in self._columns
            )
            step_rewards, ended = rewards[active], terminated[active]
            if self._gaps:
                owner = np.cumsum(active) - 1  # of each step, the decision before it
                step_rewards = np.bincount(owner[owner >= 0], rewards[owner >= 0], minlength=int(active.sum()))
                ended = np.array([terminated.any()])
            if active.any():  # an episode may end before an agent's first turn
                yield Episode(
                    observations=obs[active],
                    actions=actions[active],
                    rewards=step_rewards,
                    terminated=bool(ended[-1]),
                    truncated=bool(step.truncated[k] and not ended[-1]),
                    final_observation=(final if step.done[k] else after)[k, : self._width],
                    seed=(self._seed, k, int(self._number[k])),
                )
            self._start[k], self._number[k] = self._steps, self._number[k] + 1
