"""A Ray cluster before a run: its nodes, whether they fit together, and how many env runners they have room for."""

from __future__ import annotations

import hashlib
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from multigrid_rl.config import ConfigError, RunConfig, data_root
from multigrid_rl.players.catalogue import LoadedPlayer
from multigrid_rl.rllib.stages import AllOpponents, Stage, seated_in
from multigrid_rl.runs.folder import versions

#: Seconds that a node has to answer: a busy one starts a Python process and imports torch in less.
PATIENCE_S = 60.0
_SOURCES = "multigrid-rl sources"


class ClusterError(ConfigError):
    """A cluster that cannot train this run; the message is one line naming node, value and what is allowed."""


class Node(NamedTuple):
    """One machine of a cluster, as Ray knows it."""

    id: str  # hexadecimal
    address: str  # IP address of its raylet
    cpus: float  # that Ray may use; 0 for a node that is gone
    gpus: float
    alive: bool

    def __str__(self) -> str:
        """Short enough for a message; several nodes may share an address."""
        return f"{self.address} ({self.id[:8]})"


class Loads(Protocol):
    """A factory whose players can be loaded where it arrives."""

    def load(self) -> dict[str, tuple[LoadedPlayer, ...]]:
        """Players by seat."""
        ...


class Answer(NamedTuple):
    """What a node says of itself."""

    hostname: str
    versions: dict[str, str]
    token: str | None  # content of the driver's file as this node sees it; None if it sees none
    opponents: dict[str, str]  # name -> sha256 of the frozen players that arrived


class Writers(NamedTuple):
    """Who writes into a folder beside the driver."""

    learners: int = 0  # remote ones write checkpoints
    gpus_per_learner: float = 0.0  # that each of them needs
    trials: bool = False  # of a search: they may come to any node


NOBODY_ELSE = Writers()


def nodes() -> list[Node]:
    """All nodes that the connected cluster has or had, living ones first."""
    rows = [
        Node(
            id=row["NodeID"],
            address=row["NodeManagerAddress"],
            cpus=float(row["Resources"].get("CPU", 0)),
            gpus=float(row["Resources"].get("GPU", 0)),
            alive=bool(row["Alive"]),
        )
        for row in ray.nodes()
    ]
    return sorted(rows, key=lambda node: (not node.alive, node.address, node.id))


def runners_for(cpus_free: int, num_envs: int) -> int:
    """Env runners of ``cluster.num_env_runners=all``: as many as share ``num_envs`` games evenly, one at least.

    Args:
        cpus_free: CPUs that nobody holds yet, the driver's own among them.
        num_envs: games of a batch, at least 1.
    """
    room = max(1, cpus_free - 1)
    return max(count for count in range(1, min(room, num_envs) + 1) if num_envs % count == 0)


def fitted(config: RunConfig, path: Path, stages: Sequence[Stage]) -> tuple[RunConfig, list[str]]:
    """A run as the connected cluster can train it: with a number of env runners, after a look at every node.

    Args:
        config: the run.
        path: its folder; need not exist yet.
        stages: all games of the run.

    Returns:
        The run, and lines to print.

    Raises:
        ClusterError: a node that cannot take part.
    """
    cluster = config.cluster
    if cluster.num_env_runners == "all":
        free = int(ray.available_resources().get("CPU", 0)) - cluster.num_learners
        cluster = cluster.model_copy(update={"num_env_runners": runners_for(free, config.train.num_envs)})
    folder = path if path.exists() else path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lines = look_over(folder, stages, Writers(cluster.num_learners, cluster.gpus_per_learner))
    return config.model_copy(update={"cluster": cluster}), lines


def look_over(folder: Path, stages: Sequence[Stage], writers: Writers) -> list[str]:
    """:func:`preflight` with the background players of all games; returns and raises what it does."""
    hashes = {player.name: player.sha256 for row in seated_in(stages).values() for player in row if player.sha256}
    opponents = AllOpponents(tuple(stage.factory.packed() for stage in stages))
    return preflight(folder, hashes, factory=opponents, writers=writers)


def preflight(
    run_folder: Path,
    opponents: Mapping[str, str],
    *,
    factory: Loads | None = None,
    writers: Writers = NOBODY_ELSE,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Ask every living node of the connected cluster whether it can take part; returns lines to print.

    Args:
        run_folder: the run's folder, or the search's; it must exist.
        opponents: sha256 that frozen players must have on every node, by name.
        factory: what env runners will get; every node loads its players and says which arrived.
        writers: who writes there beside the driver, and so must see the folder.
        patience_s: seconds that a node has to answer.

    Raises:
        ClusterError: a node does not answer, has other versions, got other players, or would write without seeing the
            folder.
        OSError: the run's folder cannot be written.
    """
    living = [node for node in nodes() if node.alive]
    content = secrets.token_hex(16)
    with _token_file(run_folder.absolute(), content) as path:
        answers = _ask(living, str(path), factory, patience_s)
    for node, answer in answers.items():
        _check_versions(node, answer)
        if factory is not None:
            _check_opponents(node, answer, opponents)
    blind = [node for node, answer in answers.items() if answer.token != content]
    _check_storage(run_folder, blind, writers)
    return _lines(run_folder, answers, blind, opponents if factory is not None else {})


def look_around(token: str, factory: Loads | None) -> Answer:
    """What this process sees: its versions, the file ``token``, and the frozen players of ``factory``, checked.

    Raises:
        PlayerError: a player did not arrive as it was sent.
    """
    seated = factory.load() if factory is not None else {}
    try:
        seen = Path(token).read_text(encoding="utf-8")
    except OSError:
        seen = None
    return Answer(
        hostname=platform.node(),
        versions=installed(),
        token=seen,
        opponents={row.name: row.sha256 for rows in seated.values() for row in rows if row.sha256},
    )


def installed() -> dict[str, str]:
    """Versions of what decides a run, and the hash of this package's sources, in this process."""
    return {**versions(), _SOURCES: sources_digest()}


def differences(found: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """What another process has other versions of than the driver. CPU and GPU builds of one release are the same."""
    return [
        f"{name} {found.get(name, 'missing')} (the driver has {version})"
        for name, version in own.items()
        if _release(found.get(name, "")) != _release(version)
    ]


def sources_digest() -> str:
    """Hash of this package's own files and of its configurations: two checkouts of one version may differ."""
    digest = hashlib.sha256()
    for root, ending in ((Path(__file__).parents[1], "*.py"), (data_root() / "configs", "*.yaml")):
        for source in sorted(root.rglob(ending)):
            digest.update(f"{source.relative_to(root).as_posix()}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _token_file(folder: Path, content: str) -> Iterator[Path]:
    path = folder / f".preflight-{content[:8]}"
    path.write_text(content, encoding="utf-8")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _ask(living: list[Node], token: str, factory: Loads | None, patience_s: float) -> dict[Node, Answer]:
    # No CPU is asked for: a node may be full of somebody else's actors and still answer.
    task: Any = ray.remote(num_cpus=0, max_retries=0)(look_around)
    sent = ray.put(factory)
    asked = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(token, sent)
        for node in living
    }
    _, late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=patience_s)
    for reference in late:
        ray.cancel(reference, force=True)
    for node, reference in asked.items():
        if reference in late:
            raise ClusterError(
                f"cluster node {node}: no answer within {patience_s:g} s; allowed is a node that starts a Python "
                "process in this time: is it overloaded, or can it not reach the others?"
            )
    return {node: _answer(node, reference) for node, reference in asked.items()}


def _answer(node: Node, reference: Any) -> Answer:
    try:
        answer: Answer = ray.get(reference)
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        # Ray tells of a failed import with a page, whose last line says what was missing.
        said = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
        raise ClusterError(
            f"cluster node {node}: cannot take part: {said[-1]}; allowed is a node with the same installation as the "
            "driver's"
        ) from error
    return answer


def _check_versions(node: Node, answer: Answer) -> None:
    different = differences(answer.versions, installed())
    if different:
        raise ClusterError(
            f"cluster node {node}, host {answer.hostname}: {', '.join(different)}; allowed are the driver's versions "
            "on every node"
        )


def _release(version: str) -> str:
    return version.partition("+")[0]


def _check_opponents(node: Node, answer: Answer, opponents: Mapping[str, str]) -> None:
    for name, sha256 in opponents.items():
        found = answer.opponents.get(name)
        if found != sha256:
            raise ClusterError(
                f"cluster node {node}, host {answer.hostname}: player {name} arrived with sha256 {found}; allowed is "
                f"{sha256}"
            )


def _check_storage(run_folder: Path, blind: list[Node], writers: Writers) -> None:
    if writers.trials and blind:
        raise ClusterError(
            f"{run_folder}: node {blind[0]} does not see it, and trials write there; allowed is a --folder on storage "
            "that all nodes share"
        )
    # Where Ray puts a learner is not known before it is there: any node with room counts.
    gpus = writers.gpus_per_learner
    could_learn = [node for node in blind if node.gpus >= gpus and (gpus or node.cpus >= 1)]
    if writers.learners and could_learn:
        raise ClusterError(
            f"cluster.num_learners={writers.learners}: node {could_learn[0]} does not see {run_folder}; allowed is 0 "
            "(the driver learns), or a run_dir on storage that all nodes share"
        )


def _lines(
    run_folder: Path, answers: Mapping[Node, Answer], blind: list[Node], opponents: Mapping[str, str]
) -> list[str]:
    cpus, gpus = (sum(getattr(node, kind) for node in answers) for kind in ("cpus", "gpus"))
    lines = [f"cluster:  {len(answers)} node(s), {cpus:g} CPUs, {gpus:g} GPUs"]
    lines += [
        f"node:     {node}, host {answer.hostname}: {node.cpus:g} CPUs, {node.gpus:g} GPUs"
        for node, answer in answers.items()
    ]
    shown = ", ".join(f"{name} {_release(version)}" for name, version in versions().items())
    lines.append(f"versions: the same on every node ({shown})")
    if blind:
        lines.append(
            f"storage:  {run_folder} is not seen by {', '.join(map(str, blind))}; the driver alone writes there, so "
            "env runners do not miss it"
        )
    else:
        lines.append(f"storage:  {run_folder} is shared by every node")
    if opponents:
        told = ", ".join(f"{name} (sha256 {sha256[:16]})" for name, sha256 in opponents.items())
        lines.append(f"arrived:  {told}: checked on every node")
    return lines
