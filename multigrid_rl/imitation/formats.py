"""Import and export of recorded play: torch files, games, Minari."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multigrid_rl.cli.output import temporary_output
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory, env_signature
from multigrid_rl.evaluation.replays import read_games, replay
from multigrid_rl.files import install_command
from multigrid_rl.imitation.demonstrations import DATA_FILE, Demonstrations, Episode, read_demonstrations, write
from multigrid_rl.players.cards import signature, space_of
from multigrid_rl.runs.provenance import versions
from multigrid_rl.runs.reader import check_of_games
from multigrid_rl.text import ConfigError, expected, shown
from multigrid_rl.types import AgentSpec

Array = NDArray[Any]
Space: TypeAlias = spaces.Space[Any]
TORCH, MINARI, GAMES = (".pt", ".pth"), "minari:", ".json"
SOURCES = "a torch file (.pt, .pth), games (.json) or minari:DATASET_ID"
#: Limits for reading an untrusted torch file: seconds of CPU time, and bytes of memory in addition to three file sizes.
_SECONDS, _BYTES = 600, 8 << 30
_UNKNOWN = (-1, -1, -1)
#: Actions up to this far outside a bound count as rounding errors.
_ROUNDED = 1e-6


def import_play(source: str, output: Path, overrides: list[str], who: str | None) -> Iterator[str]:
    """Import recorded play of another source into a new folder; yields lines to print. Raises ``ConfigError``."""
    check_of_games(overrides)
    config = compose(overrides)
    try:
        agent = env_factory(config).specs.agents[0]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    game, env = config.scenario.game, env_signature(config.scenario)
    games = source.endswith(GAMES)
    who = who or ("you" if games else "unknown")
    facts = {"who": who, "scenario": config.scenario.name, "env": env, "seats": [*agent.seats], "versions": versions()}
    facts |= signature(agent, None if game is None else game.view_size)
    columns = {"observations": agent.observation_space, "actions": agent.action_space}
    clip_actions, extra, path = ActionClipper(agent.action_space), dict[str, Any](), Path(source)
    if games:
        episodes = episodes_of_games(path, agent, config.scenario.kind.spec if game is not None else None, who)
    elif source.startswith(MINARI):
        episodes = _from_minari(source.removeprefix(MINARI), columns)
    elif path.is_file() and path.suffix in TORCH:
        episodes, extra = _from_torch(path, columns)
    else:
        raise ConfigError(expected("data import", SOURCES if path.is_file() else f"{SOURCES} that exists", source))
    if isinstance(agent.action_space, spaces.Box) and not games:
        episodes = clip_actions(episodes)
    with temporary_output(output, "folder") as temporary_path:
        try:
            card = write(temporary_path, episodes, {**facts, **extra})
            read_demonstrations(temporary_path, agent, env)  # check that a run can learn from it
        except ConfigError as error:  # name the source: it has the same rows as the written file
            raise ConfigError(str(error).replace(str(temporary_path / DATA_FILE), source)) from error
        except ValueError as error:
            raise ConfigError(expected(source, "recorded steps", error)) from error
    yield f"imported {output}: {card.summary()}; {card.bytes:,} bytes"
    if str(clip_actions):
        yield str(clip_actions)


def episodes_of_games(path: Path, agent: AgentSpec, spec: Any, who: str) -> Iterator[Episode]:
    """Yield the episodes of one player in a file of red/blue-door games, such as one of ``play --record``.

    Args:
        agent: the learner; its seat selects the steps.
        who: name of the player in the file.

    Raises ``ConfigError``: no such file, a damaged one, games of another kind, or no game with that player on the
    seat.
    """
    games, (seat, *others), count = read_games(path), agent.seats, 0
    if others:
        raise ConfigError(expected("data import", "an agent of one seat (scheme=dtde)", ", ".join(agent.seats)))
    for game in games:
        if getattr(game, "spec", None) != spec:
            raise ConfigError(expected(f"data import: {path}", "games of the scenario", f"another: {game.label}"))
        if game.players[seat] != who:
            continue
        count += 1
        replayed, a = replay(game), spec.seats.index(seat)
        steps = int((~replayed.out[:-1, a]).sum())  # an agent that is out stays out
        ended = game.steps < spec.max_steps or replayed.winner >= 0 or steps < game.steps
        yield Episode(
            observations=replayed.tokens[:steps, a],
            actions=replayed.actions[:steps, a, None].astype(np.uint8),
            rewards=replayed.reward[:steps, a].astype(np.float32),
            terminated=ended,
            truncated=not ended,
            final_observation=replayed.tokens[steps, a],
            seed=(game.seed, game.game, 0),
        )
    if not count:
        names = ", ".join(sorted({game.players[seat] for game in games}))
        raise ConfigError(expected("--who", f"one of {names} on {seat} in {path}", who))


def _column(key: str, values: Any, space: Space) -> Array:
    """Return rows (M, D) in our format. Raises ``ConfigError``: another shape, or numbers out of range."""
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


def _episode(
    key: str,
    values: Mapping[str, Any],
    columns: Mapping[str, Space],
    *,
    rewards: Any = None,
    ends: tuple[bool, bool] = (False, False),
) -> Episode:
    """Return one episode from ``values`` of observations and actions; an extra observation is the final one.

    Raises as :func:`_column`, and for other differences between the numbers of observations and actions.
    """
    widths = {name: int(np.prod(np.shape(values[name])[1:])) for name in columns}
    needed = {name: int(np.prod(space.shape or ())) for name, space in columns.items()}
    if widths != needed and [*widths.values()] == [*needed.values()][::-1]:
        raise ConfigError(expected(key, f"rows of {needed}", f"{widths}: are the two exchanged?"))
    obs, actions = (_column(f"{key}: column {name}", values[name], space) for name, space in columns.items())
    if len(obs) - len(actions) not in (0, 1) or not len(actions):
        wanted = "steps, as many actions as observations or one less in each episode"
        raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
    step_rewards = np.zeros(len(actions), np.float32) if rewards is None else rewards
    return Episode(obs[: len(actions)], actions, step_rewards, *ends, obs[-1], _UNKNOWN)


class ActionClipper:
    """Clips the actions of episodes to their bounds, as the environment does, and counts clipped numbers."""

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
            yield episode._replace(actions=inside) if np.isfinite(beyond).all() else episode  # rejected when checked

    def __str__(self) -> str:
        share = self._outside / max(self._numbers, 1)
        text = f"{share:.1%} of the numbers in actions lay up to {self._most:.3g} outside of their bounds"
        return f"clipped:  {text}, where the environment clips them" if self._outside else ""


# --- torch files


@contextmanager
def converted(key: str, what: str, path: Path) -> Iterator[Path]:
    """Yield a folder with the arrays of a torch file; ``torch_file.py`` converts it in a limited process.

    Raises ``ConfigError``: the file holds other objects.
    """
    with TemporaryDirectory(prefix="multigrid-rl-") as folder:
        limits = [str(_BYTES + 3 * path.stat().st_size), str(_SECONDS)]
        command = [sys.executable, str(Path(__file__).with_name("torch_file.py")), what, str(path), folder, *limits]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            error = (process.stderr.strip().splitlines() or [f"ended with status {process.returncode}"])[-1]
            raise ConfigError(expected(key, "a torch file of tensors", shown(error, 200)))
        yield Path(folder)


def _from_torch(path: Path, columns: Mapping[str, Space]) -> tuple[Iterator[Episode], dict[str, Any]]:
    """Read ``observations`` and ``actions``, one stretch (M, D) or episodes, and the stated returns."""
    key = f"data import: {path}"
    with converted(key, "steps", path) as folder:
        arrays = {name: np.atleast_1d(np.load(folder / f"{name}.npy", allow_pickle=False)) for name in columns}
        returns = json.loads((folder / "told.json").read_text())
    lengths, facts = returns.pop("lengths"), {"told": returns} if returns else {}
    obs, actions = (
        np.split(array, np.cumsum(lengths[name])[:-1]) if name in lengths else array for name, array in arrays.items()
    )
    width = np.prod(columns["observations"].shape or ())
    if "observations" in lengths or (len(obs) and np.ndim(obs[0]) > 1 and np.size(obs[0]) != width):  # episodes
        if len(obs) != len(actions):
            wanted = "as many episodes of actions as of observations"
            raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
        pairs = [dict(zip(columns, pair, strict=True)) for pair in zip(obs, actions, strict=True)]
        return (_episode(f"{key}: episode {k}", episode, columns) for k, episode in enumerate(pairs)), facts
    if len(obs) != len(actions):
        wanted = "as many actions as observations, or a list of episodes, which may end with an observation"
        raise ConfigError(expected(key, wanted, f"{len(obs)}, {len(actions)}"))
    # Such a file has neither rewards nor ends.
    return iter([_episode(key, arrays, columns)]), {"bounds": False, **facts}


# --- Minari (https://minari.farama.org), an extra


def _minari() -> Any:
    try:
        import minari  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(expected("minari", "an installed package", f"none: {install_command('minari')}")) from error
    return minari


def _from_minari(dataset_id: str, columns: Mapping[str, Space]) -> Iterator[Episode]:
    minari = _minari()
    try:
        dataset = minari.load_dataset(dataset_id)
    except (FileNotFoundError, ValueError, ImportError) as error:  # the last: h5py is missing
        raise ConfigError(expected(f"minari:{dataset_id}", "an installed data set", error)) from error
    for episode in dataset.iterate_episodes():
        if not isinstance(episode.observations, np.ndarray) or not isinstance(episode.actions, np.ndarray):
            raise ConfigError(expected(f"minari:{dataset_id}", "arrays of observations and actions", "other spaces"))
        # Recorded play counts choices from 0.
        taken = episode.actions - getattr(dataset.action_space, "start", 0)
        values = {"observations": episode.observations, "actions": taken}
        ends = bool(episode.terminations[-1]), bool(episode.truncations[-1])
        yield _episode(f"minari:{dataset_id}", values, columns, rewards=episode.rewards, ends=ends)


def write_minari(data: Demonstrations, dataset_id: str) -> None:
    """Install recorded play as a Minari data set.

    Raises ``ConfigError``: Minari is not installed, or the data set exists.
    """
    minari = _minari()
    action_space, tokens = space_of(data.card.actions, data.card.members), data.card.observation.categories
    vector = spaces.Box(-np.inf, np.inf, data.observations.shape[1:])
    obs_space = vector if tokens is None else spaces.MultiDiscrete(tokens)

    def buffers() -> Iterator[Any]:
        first = 0
        for number, end in enumerate(data.episode_ends.tolist()):
            rows = slice(first, end)
            obs = np.concatenate([data.observations[rows], data.final_observations[number][None]])
            steps = obs.astype(obs_space.dtype), data.actions[rows].astype(action_space.dtype)
            columns = (*steps, data.rewards[rows], data.terminated[rows], data.truncated[rows])
            yield minari.data_collector.EpisodeBuffer(number, None, None, *map(list, columns))
            first = end

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing authors and links
            minari.create_dataset_from_buffers(
                dataset_id, list(buffers()), observation_space=obs_space, action_space=action_space,
                algorithm_name=data.card.who, description=data.card.summary(), data_format="arrow",
            )  # fmt: skip
    except ValueError as error:
        raise ConfigError(expected(f"minari:{dataset_id}", "a new data set that Minari can store", error)) from error
