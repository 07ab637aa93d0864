"""Recorded play: of our players, of others' torch files, of games that persons played."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.cli.app import written_beside
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.evaluation.replays import read_games, replay
from multigrid_rl.imitation.demonstrations import DATA_FILE, Episode, read_demonstrations, write
from multigrid_rl.players.cards import signature
from multigrid_rl.players.episodes import turns
from multigrid_rl.runs.players import code_of_run, config_of, is_run, player_in_place_of
from multigrid_rl.runs.provenance import versions
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.trust import check_code
from multigrid_rl.types import AgentSpec, BatchedStep, EnvFactory, Policy

Array = NDArray[Any]
Space: TypeAlias = spaces.Space[Any]
TORCH, GAMES = (".pt", ".pth"), ".json"
#: Seconds of processor time, and bytes of memory beside three times the file's, for reading an untrusted torch file.
_SECONDS, _BYTES = 600, 8 << 30
_UNKNOWN = (-1, -1, -1)
#: Numbers so far outside of a bound are rounded ones.
_ROUNDED = 1e-6


def import_play(source: str, output: Path, overrides: list[str], who: str | None) -> Iterator[str]:
    """Write recorded play of others into a new folder; yields the lines that tell so. Raises ``ConfigError``."""
    config = compose(overrides)
    try:
        agent = env_factory(config).specs.agents[0]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game, env = config.scenario.game, env_signature(config.scenario)
    games = source.endswith(GAMES)
    who = who or ("you" if games else "unknown")
    facts = {"who": who, "scenario": config.scenario.name, "env": env, "versions": versions()}
    facts |= signature(agent, None if game is None else game.view_size)
    bounded = Bounded(agent.action_space)
    if games:
        spec = config.scenario.kind.spec if game is not None else None
        episodes, more = episodes_of_games(Path(source), agent, spec, who), dict[str, Any]()
    else:
        columns = {"observations": agent.observation_space, "actions": agent.action_space}
        if not source.endswith(TORCH) or not Path(source).is_file():
            raise ConfigError(expected("data import", "a torch file (.pt, .pth) or games (.json) that exists", source))
        episodes, more = _from_torch(Path(source), columns)
        episodes = bounded(episodes) if isinstance(agent.action_space, spaces.Box) else episodes
    with written_beside(output, "folder") as unfinished:
        try:
            card = write(unfinished, episodes, {**facts, **more})
            read_demonstrations(unfinished, agent, env)  # nothing is kept that cannot be learned from
        except ConfigError as error:  # of what was written, too: the file that it came from has the same rows
            raise ConfigError(str(error).replace(str(unfinished / DATA_FILE), source)) from error
        except ValueError as error:
            raise ConfigError(expected(source, "recorded steps", error)) from error
    yield f"imported {output}: {card.summary()}; {card.bytes:,} bytes"
    if str(bounded):
        yield str(bounded)


def episodes_of_games(path: Path, agent: AgentSpec, spec: Any, who: str) -> Iterator[Episode]:
    """Yield what one player did in a file of games of red/blue doors, such as that of ``play --record``.

    Args:
        path: of the file.
        agent: whom it is to teach.
        spec: of the scenario.
        who: name of the player in the file.

    Raises:
        ConfigError: no such file, a damaged one, games of another kind, or none in which that player sits on the seat.
    """
    games, (seat, *others), found = read_games(path), agent.seats, 0
    if others:
        raise ConfigError(expected("data import", "an agent of one seat (scheme=dtde)", ", ".join(agent.seats)))
    for game in games:
        if getattr(game, "spec", None) != spec:
            raise ConfigError(expected(f"data import: {path}", "games of the scenario", f"another: {game.label}"))
        if game.players[seat] != who:
            continue
        found += 1
        played, a = replay(game), spec.seats.index(seat)
        steps = int((~played.out[:-1, a]).sum())  # an agent that is out stays out
        ended = game.steps < spec.max_steps or played.winner >= 0 or steps < game.steps
        yield Episode(
            observations=played.tokens[:steps, a],
            actions=played.actions[:steps, a, None].astype(np.uint8),
            rewards=played.reward[:steps, a].astype(np.float32),
            terminated=ended,
            truncated=not ended,
            final_observation=played.tokens[steps, a],
            seed=(game.seed, game.game, 0),
        )
    if not found:
        names = ", ".join(sorted({game.players[seat] for game in games}))
        raise ConfigError(expected("--who", f"one of {names} on {seat} in {path}", who))


def _column(key: str, values: Any, space: Space) -> Array:
    """Return rows (M, D) in our format. Raises ``ConfigError`` for other shapes, and numbers that it cannot hold."""
    array, width = np.atleast_1d(np.asarray(values)), int(np.prod(space.shape or ()))
    if array.size != len(array) * width:
        raise ConfigError(expected(key, f"({width},) for each row", array.shape))
    rows = array.reshape(len(array), width)
    kind = np.float32 if isinstance(space, spaces.Box) else np.uint8
    with np.errstate(over="ignore", invalid="ignore"):
        found = rows.astype(kind)
    if kind == np.uint8 and not (found == rows).all():
        raise ConfigError(expected(key, "integers from 0 to 255", "other values"))
    return found


def _episode(key: str, given: Mapping[str, Any], columns: Mapping[str, Space]) -> Episode:
    """Return one episode of ``given`` observations and actions; one observation more is what was seen at last.

    Raises as :func:`_column`, and for observations without their actions.
    """
    widths = {name: int(np.prod(np.shape(given[name])[1:])) for name in columns}
    needed = {name: int(np.prod(space.shape or ())) for name, space in columns.items()}
    if widths != needed and [*widths.values()] == [*needed.values()][::-1]:
        raise ConfigError(expected(key, f"rows of {needed}", f"{widths}: are the two exchanged?"))
    obs, actions = (_column(f"{key}: column {name}", given[name], space) for name, space in columns.items())
    if len(obs) - len(actions) not in (0, 1) or not len(actions):
        wanted = "steps, as many actions as observations or one less in each episode"
        raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
    paid = np.zeros(len(actions), np.float32)
    return Episode(obs[: len(actions)], actions, paid, False, False, obs[-1], _UNKNOWN)


class Bounded:
    """Clips the actions of episodes to their bounds, as the environment does, and counts what lay outside."""

    def __init__(self, space: Space) -> None:
        self._space: Any = space
        self._numbers, self._outside, self._most = 0, 0, 0.0

    def __call__(self, episodes: Iterator[Episode]) -> Iterator[Episode]:
        """Yield the same episodes with clipped actions."""
        for episode in episodes:
            inside = np.clip(episode.actions, self._space.low, self._space.high)
            beyond = np.abs(inside - episode.actions)
            self._numbers, self._outside = self._numbers + beyond.size, self._outside + int((beyond > _ROUNDED).sum())
            self._most = max(self._most, float(beyond.max(initial=0)))
            yield episode._replace(actions=inside) if np.isfinite(beyond).all() else episode  # which is refused

    def __str__(self) -> str:
        """Tell what was clipped, if anything."""
        share, most = self._outside / max(self._numbers, 1), self._most
        told = f"{share:.1%} of the numbers in actions lay up to {most:.3g} outside of their bounds"
        return f"clipped:  {told}, where the environment clips them" if self._outside else ""


# --- torch files


@contextmanager
def converted(key: str, what: str, path: Path) -> Iterator[Path]:
    """Yield a folder with what ``torch_file.py`` found in a torch file, in a process with limits; it executes nothing.

    Raises ``ConfigError``: there is something else in it.
    """
    with TemporaryDirectory(prefix="multigrid-rl-") as folder:
        limits = [str(_BYTES + 3 * path.stat().st_size), str(_SECONDS)]
        command = [sys.executable, str(Path(__file__).with_name("torch_file.py")), what, str(path), folder, *limits]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            error = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
            raise ConfigError(expected(key, "a torch file of tensors", shown(error, 200)))
        yield Path(folder)


def _from_torch(path: Path, columns: Mapping[str, Space]) -> tuple[Iterator[Episode], dict[str, Any]]:
    """Read ``observations`` and ``actions``, one stretch (M, D) or episodes, and what a file says of returns."""
    key = f"data import: {path}"
    with converted(key, "steps", path) as folder:
        arrays = {name: np.atleast_1d(np.load(folder / f"{name}.npy", allow_pickle=False)) for name in columns}
        told = json.loads((folder / "told.json").read_text())
    lengths, facts = told.pop("lengths"), {"told": told} if told else {}
    obs, actions = (
        np.split(of, np.cumsum(lengths[name])[:-1]) if name in lengths else of for name, of in arrays.items()
    )
    width = np.prod(columns["observations"].shape or ())
    if len(obs) and np.ndim(obs[0]) > 1 and np.size(obs[0]) != width:  # episodes
        if len(obs) != len(actions):
            wanted = "as many episodes of actions as of observations"
            raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
        given = [dict(zip(columns, pair, strict=True)) for pair in zip(obs, actions, strict=True)]
        return (_episode(f"{key}: episode {k}", one, columns) for k, one in enumerate(given)), facts
    if len(obs) != len(actions):
        wanted = "as many actions as observations, or a list of episodes, which may end with an observation"
        raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
    # Such a file has neither rewards nor ends.
    return iter([_episode(key, arrays, columns)]), {"bounds": False, **facts}


# --- recording: any player acts in place of the learners, and every step is stored


def record_play(who: str, overrides: list[str], output: Path, steps: int, seed: int, **how: Any) -> str:
    """Write a player's steps into a new folder; returns the line that tells so.

    Args:
        who: a player, its folder or a run folder.
        overrides: of where it plays; by default its own.
        output: folder to write.
        steps: environment steps to keep.
        seed: of environments and drawn actions.
        how: whether it acts ``greedy``, and which ``checkpoint`` of a run.

    Raises ``ConfigError``, ``PlayerError``: no such player, or one that cannot play there.
    """
    run = is_run(who)
    if how["checkpoint"] is not None and not run:
        raise ConfigError(expected("--checkpoint", f"nothing for {who}, which is no run", how["checkpoint"]))
    config = config_of(who, overrides)
    if run and not overrides and config.scenario.env_id is None:
        check_code(f"{who}/config.yaml", code_of_run(config), "players of this project")
    try:
        factory = env_factory(config.canonical)
        factory.load()
        agents = factory.specs.agents
        loaded = {agent.name: player_in_place_of(agent, who, config, **how) for agent in agents}
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game = config.scenario.game
    kinds = [signature(agent, None if game is None else game.view_size) for agent in agents]
    if any(kind != kinds[0] for kind in kinds):
        wanted = "one whose agents see and do the same"
        raise ConfigError(expected("scenario", wanted, config.scenario.name))
    first = loaded[agents[0].name]
    facts = {
        "who": first.name if not run else Path(who).resolve().name[:100],
        "who_sha256": first.sha256,
        "scenario": config.scenario.name,
        "env": env_signature(config.scenario),
        **kinds[0],
        "seed": seed,
        "versions": versions(),
    }
    began = time.perf_counter()
    num_envs = max(1, min(64, steps // 5_000))  # few, so that most episodes are complete
    with written_beside(output, "folder") as unfinished:
        players = {name: row.player for name, row in loaded.items()}
        card = write(unfinished, record(factory, players, steps, num_envs, seed), facts)
    return f"recorded {output}: {card.summary()}; {card.bytes:,} bytes, {time.perf_counter() - began:.1f} s"


def record(
    factory: EnvFactory, players: Mapping[str, Policy], steps: int, num_envs: int, seed: int
) -> Iterator[Episode]:
    """Yield episodes in which ``players`` act in place of all agents, as they end.

    ``num_envs`` environments play equally many steps, to avoid a bias towards short episodes; unfinished episodes are
    cut at the end. Steps in which an agent is out of its game are not part of its episode; where agents decide now and
    then (``learn.rollout.Gaps``), a decision is paid all that comes before the next one, as in training.

    Args:
        factory: recipe of the environments.
        players: by agent.
        steps: environment steps, at least ``num_envs``, rounded up to equally many in each environment.
        num_envs: parallel environments.
        seed: of environments and action sampling.
    """
    agents, rounds, env = factory.specs.agents, -(-steps // num_envs), factory.build(num_envs, 0)
    gaps = hasattr(env, "deciding")
    buffers = {agent.name: _EpisodeBuffer(agent, num_envs, seed, gaps=gaps) for agent in agents}
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
        """Add one step of all environments."""
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
            paid, ended = rewards[active], terminated[active]
            if self._gaps:
                owner = np.cumsum(active) - 1  # of each step, the decision before it
                paid = np.bincount(owner[owner >= 0], rewards[owner >= 0], minlength=int(active.sum()))
                ended = np.array([terminated.any()])
            if active.any():  # an episode may end before it is an agent's turn
                yield Episode(
                    observations=obs[active],
                    actions=actions[active],
                    rewards=paid,
                    terminated=bool(ended[-1]),
                    truncated=bool(step.truncated[k] and not ended[-1]),
                    final_observation=(final if step.done[k] else after)[k, : self._width],
                    seed=(self._seed, k, int(self._number[k])),
                )
            self._start[k], self._number[k] = self._steps, self._number[k] + 1
