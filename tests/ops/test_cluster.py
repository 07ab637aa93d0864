"""What is asked of a cluster before a run, on real raylets: several nodes on this machine."""

import platform
import re
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from composing import refusal
from multigrid_rl.config.compose import compose
from multigrid_rl.ops import cluster as cluster_module
from multigrid_rl.ops import doctor
from multigrid_rl.ops.cluster import fit_to_cluster, nodes, preflight, runners_for
from multigrid_rl.rllib.session import free_cpus, ray_session
from multigrid_rl.runs.provenance import versions
from multigrid_rl.text import ConfigError
from multigrid_rl.training.stages import stages_of

# Ray warns about its own future at every start.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

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


def asked(*args, **kwargs) -> list[str]:
    """What a cluster answers; a busy machine has longer to start workers than a user would wait."""
    return preflight(*args, **{"patience_s": 300} | kwargs)


@pytest.fixture
def stages():
    return stages_of(compose(["scenario=1v1"]))


def test_matching_nodes_are_reported_in_full(cluster, tmp_path, stages):
    lines = asked(tmp_path, stages)
    assert lines[0] == "cluster:  2 node(s), 5 CPUs, 0 GPUs"
    lines_by_name = dict(line.split(":", 1) for line in lines if not line.startswith("node"))
    assert [line for line in lines if line.startswith("node")] == [
        f"node:     {node.address} ({node.id[:8]}), host {platform.node()}: {node.cpus:g} CPUs, 0 GPUs"
        for node in nodes()
    ]
    assert f"python {versions()['python']}, " in lines_by_name["versions"]
    assert lines_by_name["storage"] == f"  {tmp_path} is shared by every node"
    sha256 = stages[-1].factory.packed().hashes["blue-rookie"]
    assert lines_by_name["arrived"] == f"  blue-rookie (sha256 {sha256[:16]}): checked on every node"
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_the_same(cluster, tmp_path, monkeypatch):
    # What it says in a process of its own, said here, where a session is connected already.
    monkeypatch.setattr(doctor, "_isolated", lambda words, patience_s: doctor.run_check(*words))
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    findings = doctor.check_cluster(cluster.address, tmp_path, 300.0)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert findings[0].found == "cluster: 2 node(s), 5 CPUs, 0 GPUs"
    assert f"storage: {tmp_path} is shared by every node" in [finding.found for finding in findings]


def of_another_checkout(token, factories):
    """A function that travels by its name alone: no other process finds this file."""


def test_broken_installation_is_named_with_missing_package(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "probe_node", of_another_checkout)
    message = rf"\({nodes()[0].id[:8]}\): expected the driver's installation, got .*No module named '{__name__}'"
    assert re.search(message, refusal(asked, tmp_path))


def test_unresponsive_node_is_named(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "probe_node", lambda token, factories: time.sleep(600))
    assert f"({nodes()[0].id[:8]}): expected an answer within 1 s, got none" in refusal(asked, tmp_path, patience_s=1)


@pytest.fixture
def elsewhere(cluster, tmp_path, monkeypatch) -> tuple[Path, str]:
    """A run folder whose path means another folder to the third node, as on a machine with a disk of its own.

    That node has another numpy, too, and a build of torch for GPUs, which is no other version.
    """
    if not Path("/proc/self/cwd").exists():
        pytest.skip("the path of a process's own folder is Linux's")
    torch = versions()["torch"].partition("+")[0] + "+cu999"
    for name, version in (("numpy", "1.0.7"), ("torch", torch)):
        record = tmp_path / "site" / f"{name}-{version}.dist-info"
        record.mkdir(parents=True)
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    before = Path.cwd()
    monkeypatch.chdir(tmp_path)
    node = cluster.add_node(**EACH, env_vars={"PYTHONPATH": str(tmp_path / "site")})
    cluster.wait_for_nodes()
    monkeypatch.chdir(before)
    # The first two nodes and the driver work in one folder, the third in another.
    monkeypatch.setattr("tempfile.tempdir", None)
    local = tempfile.mkdtemp(prefix=".run-", dir=before)
    yield Path("/proc/self/cwd") / Path(local).name, node.node_id
    cluster.remove_node(node)
    shutil.rmtree(local)


@pytest.mark.long  # a third node, and two more looks at all of them
def test_rejects_other_versions_and_unshared_storage(elsewhere, monkeypatch):
    folder, node = elsewhere
    numpy = f"numpy: expected {versions()['numpy']}, got 1.0.7"
    assert refusal(asked, folder).endswith(f"({node[:8]}), host {platform.node()}: {numpy}")
    monkeypatch.setattr(cluster_module, "version_differences", lambda found, own: [])
    (line,) = [line for line in asked(folder) if line.startswith("storage")]
    assert line.startswith(f"storage:  {folder} is not seen by ")
    assert line.count("(") == 1
    assert f"({node[:8]})" in line
    text = refusal(asked, folder, learners=2)
    assert text.startswith("cluster.num_learners: expected 0 (the driver learns)")
    assert text.endswith(f"({node[:8]}) does not see {folder}")
    # It has no GPU: no learner that needs one can come there.
    assert asked(folder, learners=2, gpus_per_learner=1.0)[-1] == line
    text = refusal(asked, folder, trials=True)
    assert text.startswith(f"--folder {folder}: expected storage that all nodes share")
    assert text.endswith(f"({node[:8]}) that does not see it")


def with_factory(stage, **changes):
    """The stage with other answers of its factory."""
    return stage._replace(factory=SimpleNamespace(**{"load": stage.factory.load, **changes}))


def test_damaged_arriving_player_is_named_with_hash(cluster, tmp_path, stages):
    factory = stages[-1].factory.packed()
    files = factory.catalogue.given
    model = files["blue-rookie"].model
    files["blue-rookie"] = files["blue-rookie"]._replace(model=bytes([model[0] ^ 1]) + model[1:])
    text = refusal(asked, tmp_path, [with_factory(stages[-1], packed=lambda: factory)])
    assert "blue-rookie" in text
    assert f"sha256: expected {factory.hashes['blue-rookie'][:16]}... of its card" in text


def test_rejects_player_differing_from_driver(cluster, tmp_path, stages):
    (player,) = stages[-1].factory.load()["blue_0"]
    announced = {"blue_0": (player._replace(player=SimpleNamespace(sha256="a" * 64)),)}
    text = refusal(
        asked, tmp_path, [with_factory(stages[-1], load=lambda: announced, packed=stages[-1].factory.packed)]
    )
    assert f"player blue-rookie: expected sha256 {'a' * 64}, got {player.sha256}" in text


def test_checks_players_of_every_stage(cluster, tmp_path):
    config = compose(["scenario=1v1", "curriculum=[{seats:{blue_0:blue-adept},steps:1000}]", "cluster=ray"])
    chosen, lines = fit_to_cluster(config, tmp_path / "run", stages_of(config))
    assert chosen.cluster.num_env_runners == 4
    (line,) = [line for line in lines if line.startswith("arrived:")]
    assert "blue-adept (sha256 " in line
    assert "blue-rookie (sha256 " in line


@pytest.mark.parametrize(
    ("values", "line"),
    [(["cluster.num_env_runners=4"], "cluster.num_env_runners: expected 0 to 3, the free CPUs of the cluster, got 4"),
     (["cluster.num_env_runners=2", "cluster.num_learners=2"], "cluster.num_env_runners: expected 0 to 1, .* got 2"),
     (["cluster.num_learners=4", "cluster.num_env_runners=0"], "cluster.num_learners: expected 0 to 3, .* got 4")],
)  # fmt: skip
def test_processes_without_a_free_cpu_are_refused_not_waited_for(cluster, monkeypatch, values, line):
    """Two of the five CPUs are another job's."""
    other = ray.remote(num_cpus=2)(type("Other", (), {})).remote()
    ray.get(other.__ray_ready__.remote())
    monkeypatch.setattr("multigrid_rl.rllib.session.PATIENCE_S", 2.0)
    train = [*values, "train.num_envs=32", "train.num_steps=16", "train.minibatch_size=256"]
    config = compose(["scenario=1v1", f"address={cluster.address}", *train])
    with pytest.raises(ConfigError, match=line), ray_session(config):
        raise AssertionError
    ray.kill(other)
    with ray_session(config):  # which waits for the CPUs that it leaves
        pass


def test_a_trial_counts_the_cpus_of_its_placement_group(cluster):
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    count = ray.remote(num_cpus=1, scheduling_strategy=inside)(free_cpus)
    assert ray.get(count.remote(3)) == 1
    ray.util.remove_placement_group(group)


@pytest.mark.parametrize(
    ("cpus", "num_envs", "expected"),
    [(0, 256, 1), (1, 256, 1), (2, 256, 1), (3, 256, 2), (4, 256, 2), (5, 256, 4), (1001, 256, 256), (8, 30, 6),
     (8, 7, 7), (7, 7, 1), (100, 1, 1)],
)  # fmt: skip
def test_runner_count_shares_games_and_spares_driver_cpu(cpus, num_envs, expected):
    assert runners_for(cpus, num_envs) == expected
