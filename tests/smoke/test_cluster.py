"""What is asked of a cluster before a run, on real raylets: several nodes on this machine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from multigrid_rl.config import ConfigError, compose
from multigrid_rl.players.cards import read_files
from multigrid_rl.players.factories import env_factory
from multigrid_rl.rllib.cluster import ClusterError, Writers, fitted, nodes, preflight, runners_for, sources_digest
from multigrid_rl.rllib.doctor import check_cluster
from multigrid_rl.rllib.stages import stages_of
from multigrid_rl.runs.folder import versions

pytestmark = pytest.mark.filterwarnings("ignore")  # ray warns about its own future at every start

EACH = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster(no_session):
    """A head and a second node. Ray's files lie in a folder of their own, its note of the current cluster, too."""
    # Short: a socket's path may have 107 characters.
    scratch = tempfile.mkdtemp(prefix="mg-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", scratch)
        cluster = Cluster(initialize_head=True, head_node_args=EACH)
        try:
            cluster.add_node(**{**EACH, "num_cpus": 3})
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def third(cluster):
    """Adds a third node with an environment of its own, and takes it away again."""
    added = []

    def add(**node):
        added.append(cluster.add_node(**{**EACH, **node}))
        cluster.wait_for_nodes()
        return added[-1].node_id

    yield add
    for node in added:
        cluster.remove_node(node)


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ClusterError) as caught:
        preflight(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_two_nodes_that_fit_together_are_told_in_full(cluster, tmp_path):
    factory = env_factory(compose(["scenario=1v1"])).packed()
    lines = preflight(tmp_path, factory.hashes, factory=factory)
    assert lines[0] == "cluster:  2 node(s), 5 CPUs, 0 GPUs"
    told = dict(line.split(":", 1) for line in lines if not line.startswith("node"))
    assert [line for line in lines if line.startswith("node")] == [
        f"node:     {node}, host {_hostname()}: {node.cpus:g} CPUs, 0 GPUs" for node in nodes()
    ]
    assert f"python {versions()['python']}, " in told["versions"]
    assert told["storage"] == f"  {tmp_path} is shared by every node"
    assert told["arrived"] == f"  blue-rookie (sha256 {factory.hashes['blue-rookie'][:16]}): checked on every node"
    assert list(tmp_path.iterdir()) == []


def _hostname() -> str:
    return Path("/proc/sys/kernel/hostname").read_text().strip()


def test_nodes_are_those_of_ray(cluster):
    found = nodes()
    assert {node.id for node in found if node.alive} == {node.node_id for node in cluster.list_all_nodes()}
    assert sorted(node.cpus for node in found) == [2, 3]


def test_the_doctor_reaches_it_by_its_address_and_tells_the_same(cluster, tmp_path):
    findings = check_cluster(cluster.address, tmp_path)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert findings[0].found == "cluster: 2 node(s), 5 CPUs, 0 GPUs"
    assert f"storage: {tmp_path} is shared by every node" in [finding.found for finding in findings]


def installed(folder: Path, name: str, version: str) -> None:
    """Put a package's record there: who has the folder first on its path has this version, as Python sees it."""
    record = folder / f"{name}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_node_with_another_version_of_a_package_is_named_with_both(third, tmp_path):
    installed(tmp_path / "site", "numpy", "1.0.7")
    # A build for GPUs of the same release is no other version.
    installed(tmp_path / "site", "torch", versions()["torch"].partition("+")[0] + "+cu999")
    node = third(env_vars={"PYTHONPATH": str(tmp_path / "site")})
    text = refusal(tmp_path, {})
    assert text.startswith("cluster node ")
    assert f"({node[:8]}), host {_hostname()}: numpy 1.0.7 (the driver has {versions()['numpy']}); allowed" in text


def test_a_node_with_a_broken_installation_is_named_with_what_is_missing(third, tmp_path):
    broken = tmp_path / "site" / "safetensors"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    node = third(env_vars={"PYTHONPATH": str(tmp_path / "site")})
    text = refusal(tmp_path, {})
    assert f"({node[:8]}): cannot take part: " in text
    assert "safetensors" in text
    assert "allowed is a node with the same installation" in text


def test_a_node_that_does_not_answer_in_time_is_named(third, tmp_path):
    slow = tmp_path / "site" / "safetensors"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    preflight(tmp_path, {})  # the others have started their processes
    node = third(env_vars={"PYTHONPATH": str(slow.parent)})
    text = refusal(tmp_path, {}, patience_s=2)
    assert f"({node[:8]}): no answer within 2 s; allowed is" in text


@pytest.fixture
def elsewhere(third, tmp_path, monkeypatch) -> tuple[Path, str]:
    """A run folder whose path means another folder to the third node, as on a machine with a disk of its own."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("the path of a process's own folder is Linux's")
    for name in ("here", "there"):
        (tmp_path / name / "run").mkdir(parents=True)
    before = Path.cwd()
    monkeypatch.chdir(tmp_path / "there")
    node = third()
    monkeypatch.chdir(before)
    # The first two nodes and the driver work in one folder, the third in another.
    monkeypatch.setattr("tempfile.tempdir", None)
    local = tempfile.mkdtemp(prefix=".run-", dir=before)
    yield Path("/proc/self/cwd") / Path(local).name, node
    shutil.rmtree(local)


def test_storage_that_is_not_shared_is_told_and_needed_by_remote_learners_alone(elsewhere):
    folder, node = elsewhere
    (line,) = [line for line in preflight(folder, {}) if line.startswith("storage")]
    assert line.startswith(f"storage:  {folder} is not seen by ")
    assert line.count("(") == 1
    assert f"({node[:8]})" in line
    text = refusal(folder, {}, writers=Writers(learners=2))
    assert text.startswith("cluster.num_learners=2: node ")
    assert f"({node[:8]}) does not see {folder}; allowed is 0" in text
    # It has no GPU: no learner that needs one can come there.
    assert preflight(folder, {}, writers=Writers(2, 1.0))[-1] == line
    text = refusal(folder, {}, writers=Writers(trials=True))
    assert f"({node[:8]}) does not see it, and trials write there; allowed is a --folder on storage" in text


def test_a_player_that_arrives_damaged_is_named_with_its_hash(cluster, tmp_path):
    factory = env_factory(compose(["scenario=1v1"])).packed()
    files = factory.catalogue._files
    model = read_files(files["blue-rookie"].home).model
    files["blue-rookie"] = files["blue-rookie"]._replace(model=bytes([model[0] ^ 1]) + model[1:])
    text = refusal(tmp_path, factory.hashes, factory=factory)
    assert "blue-rookie" in text
    assert f"sha256: expected {factory.hashes['blue-rookie'][:16]}... of its card" in text


def test_players_of_every_stage_are_looked_for(cluster, tmp_path):
    config = compose(["scenario=1v1", "curriculum=[{seats:{blue_0:blue-adept},steps:1000}]", "cluster=ray"])
    chosen, lines = fitted(config, tmp_path / "run", stages_of(config))
    assert chosen.cluster.num_env_runners == 4
    (line,) = [line for line in lines if line.startswith("arrived:")]
    assert "blue-adept (sha256 " in line
    assert "blue-rookie (sha256 " in line


def test_another_player_than_the_announced_one_is_refused(cluster, tmp_path):
    factory = env_factory(compose(["scenario=1v1"])).packed()
    text = refusal(tmp_path, {"blue-rookie": "a" * 64}, factory=factory)
    assert f"player blue-rookie arrived with sha256 {factory.hashes['blue-rookie']}; allowed is {'a' * 64}" in text


def test_a_cluster_error_is_a_mistake_in_the_configuration():
    assert issubclass(ClusterError, ConfigError)


def test_the_digest_of_the_sources_is_of_this_package():
    assert sources_digest() == sources_digest()
    assert len(sources_digest()) == 12


@pytest.mark.parametrize(
    ("cpus", "num_envs", "expected"),
    [(0, 256, 1), (1, 256, 1), (2, 256, 1), (3, 256, 2), (4, 256, 2), (5, 256, 4), (1001, 256, 256), (8, 30, 6),
     (8, 7, 7), (7, 7, 1), (100, 1, 1)],
)  # fmt: skip
def test_all_runners_are_as_many_as_share_the_games_evenly_and_leave_the_driver_a_cpu(cpus, num_envs, expected):
    assert runners_for(cpus, num_envs) == expected
