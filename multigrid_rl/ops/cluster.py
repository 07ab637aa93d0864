"""Checks of a Ray cluster before a run: its nodes, their versions, and its room for env runners."""

import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from multigrid_rl.config.schema import RunConfig
from multigrid_rl.rllib.session import free_cpus, learner_cpus
from multigrid_rl.runs.provenance import local_versions, release, version_differences, versions
from multigrid_rl.text import ConfigError, expected
from multigrid_rl.training.stages import Stage, seated_players
from multigrid_rl.types import EnvFactory

#: Seconds for a node to answer: a busy node starts a Python process and imports torch in less time.
PATIENCE_S = 60.0


class Node(NamedTuple):
    """A living node of a cluster, as Ray reports it."""

    id: str  # hexadecimal
    address: str  # IP address of its raylet
    cpus: float  # available to Ray
    gpus: float

    def __str__(self) -> str:
        """Return a short name for messages; several nodes may share an address."""
        return f"cluster node {self.address} ({self.id[:8]})"


class Answer(NamedTuple):
    """A node's answer to the preflight."""

    hostname: str
    versions: dict[str, str]
    token: str | None  # content of the driver's file on this node; None if it is not there
    opponents: dict[str, str]  # name -> sha256 of the frozen players that the node loaded


def nodes() -> list[Node]:
    """Return all living nodes of the connected cluster."""
    rows = [(row["NodeID"], row["NodeManagerAddress"], row["Resources"]) for row in ray.nodes() if row["Alive"]]
    result = [Node(id, address, float(has.get("CPU", 0)), float(has.get("GPU", 0))) for id, address, has in rows]
    return sorted(result, key=lambda node: (node.address, node.id))


def runners_for(cpus_free: int, num_envs: int) -> int:
    """Return the env runners of ``num_env_runners=all``: the largest number that divides ``num_envs`` and fits, or 1.

    Args:
        cpus_free: unreserved CPUs, including the driver's.
        num_envs: games of a batch, at least 1.
    """
    room = max(1, cpus_free - 1)
    return max(count for count in range(1, min(room, num_envs) + 1) if num_envs % count == 0)


def fit_to_cluster(config: RunConfig, path: Path, stages: Sequence[Stage]) -> tuple[RunConfig, list[str]]:
    """Return a configuration with as many env runners as fit on the connected cluster, and lines of its preflight.

    ``path``: folder of the run; need not exist yet. Raises ``ConfigError``: a node cannot take part.
    """
    cluster = config.cluster
    if cluster.num_env_runners == "all":
        learning = learner_cpus(cluster)
        free = free_cpus(1 + learning) - learning
        cluster = cluster.model_copy(update={"num_env_runners": runners_for(free, config.train.num_envs)})
    folder = path if path.exists() else path.parent
    folder.mkdir(parents=True, exist_ok=True)
    lines = preflight(folder, stages, learners=cluster.num_learners, gpus_per_learner=cluster.gpus_per_learner)
    return config.model_copy(update={"cluster": cluster}), lines


def preflight(
    folder: Path,
    stages: Sequence[Stage] = (),
    *,
    learners: int = 0,
    gpus_per_learner: float = 0.0,
    trials: bool = False,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Check that every living node of the connected cluster can take part; returns lines to print.

    Args:
        folder: folder of the run or the search; it must exist.
        stages: stages whose frozen players every node loads, as env runners do, and reports.
        learners: number of remote learners, which write checkpoints and so need the folder.
        gpus_per_learner: GPUs of each learner.
        trials: whether trials of a search, which may run on any node, write to the folder.
        patience_s: seconds for a node to answer.

    Raises:
        ConfigError: a node does not answer, has other versions, got other players, or would write without seeing the
            folder.
        OSError: the folder cannot be written.
    """
    opponents = {p.name: p.sha256 for row in seated_players(stages).values() for p in row if p.sha256}
    token = secrets.token_hex(16)
    with NamedTemporaryFile("w", prefix=".preflight-", dir=folder.absolute()) as file:
        file.write(token)
        file.flush()
        answers = _ask(file.name, [stage.factory.packed() for stage in stages], patience_s)
    for node, answer in answers.items():
        differing = version_differences(answer.versions, local_versions())
        differing += [
            expected(f"player {name}", f"sha256 {sha256}", answer.opponents.get(name))
            for name, sha256 in opponents.items()
            if answer.opponents.get(name) != sha256
        ]
        if differing:
            raise ConfigError(f"{node}, host {answer.hostname}: {'; '.join(differing)}")
    blind = [node for node, answer in answers.items() if answer.token != token]
    if trials and blind:
        wanted = "storage that all nodes share: trials write there"
        raise ConfigError(expected(f"--folder {folder}", wanted, f"{blind[0]} that does not see it"))
    # Ray may put a learner on any node with room.
    could_learn = [node for node in blind if node.gpus >= gpus_per_learner and (gpus_per_learner or node.cpus >= 1)]
    if learners and could_learn:
        wanted = "0 (the driver learns), or a run_dir on storage that all nodes share"
        got = f"{learners}, and {could_learn[0]} does not see {folder}"
        raise ConfigError(expected("cluster.num_learners", wanted, got))
    return _lines(folder, answers, blind, opponents)


def probe_node(token: str, factories: Sequence[EnvFactory]) -> Answer:
    """Return this process's versions, its content of the file ``token``, and the loaded players of ``factories``.

    Raises ``PlayerError``: a player differs from the one that was sent.
    """
    try:
        content = Path(token).read_text(encoding="utf-8")
    except OSError:
        content = None
    arrived = [row for factory in factories for rows in factory.load().values() for row in rows]
    return Answer(platform.node(), local_versions(), content, {row.name: row.sha256 for row in arrived if row.sha256})


def _ask(token: str, factories: list[EnvFactory], patience_s: float) -> dict[Node, Answer]:
    # The task requests no CPU, so that a node with all CPUs in use can answer.
    task: Any = ray.remote(num_cpus=0, max_retries=0)(probe_node)
    sent = ray.put(factories)
    references = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(token, sent)
        for node in nodes()
    }
    _, pending = ray.wait(list(references.values()), num_returns=len(references), timeout=patience_s)
    for reference in pending:
        ray.cancel(reference, force=True)
    for node, reference in references.items():
        if reference in pending:
            wanted = f"an answer within {patience_s:g} s"
            raise ConfigError(expected(node, wanted, "none: is it overloaded, or can it not reach the others?"))
    answers: dict[Node, Answer] = {}
    for node, reference in references.items():
        try:
            answers[node] = ray.get(reference)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            # Ray reports a failed import as a long text; its last line names the missing module.
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
            raise ConfigError(expected(node, "the driver's installation", lines[-1])) from error
    return answers


def _lines(folder: Path, answers: Mapping[Node, Answer], blind: list[Node], opponents: Mapping[str, str]) -> list[str]:
    cpus, gpus = (sum(getattr(node, kind) for node in answers) for kind in ("cpus", "gpus"))
    packages = ", ".join(f"{name} {release(version)}" for name, version in versions().items())
    lines = [f"cluster:  {len(answers)} node(s), {cpus:g} CPUs, {gpus:g} GPUs"]
    lines += [
        f"node:     {node.address} ({node.id[:8]}), host {answer.hostname}: {node.cpus:g} CPUs, {node.gpus:g} GPUs"
        for node, answer in answers.items()
    ]
    lines.append(f"versions: the same on every node ({packages})")
    lines.append(f"storage:  {folder} is shared by every node")
    if blind:
        names = ", ".join(map(str, blind))
        lines[-1] = f"storage:  {folder} is not seen by {names}; only the driver writes there, which is enough"
    if opponents:
        hashes = ", ".join(f"{name} (sha256 {sha256[:16]})" for name, sha256 in opponents.items())
        lines.append(f"arrived:  {hashes}: checked on every node")
    return lines
