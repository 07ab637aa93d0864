"""A node of a cluster is lost and another one joins: training goes on, smaller meanwhile. Real raylets."""

import itertools
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.rllib.algorithm import built_algorithm
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.training.loop import train
from multigrid_rl.training.stages import stages_of
from processes import PATIENCE_S, SMALL, rows_of

pytestmark = pytest.mark.long
STORE = {"object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster():
    """A head without CPUs to play on; nodes are added by the test."""
    one = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE})
    yield one
    ray.shutdown()
    one.shutdown()


class Story:
    """What happens to the nodes while the run goes on, told by the rows."""

    def __init__(self, cluster: Cluster, lost) -> None:
        self.cluster, self.lost = cluster, lost
        self.rows = []
        self.chapter = "both play"
        self.began = time.monotonic()

    def observe(self, row, keeper) -> None:
        assert time.monotonic() - self.began < PATIENCE_S, f"nothing came after {self.chapter}"
        self.rows.append(row)
        if self.chapter == "both play" and len(self.rows) == 4:
            self.cluster.remove_node(self.lost, allow_graceful=False)
            self.chapter = "one is lost"
        elif self.chapter == "one is lost" and row["env_runners"] == 1:
            self.cluster.add_node(num_cpus=1, **STORE)
            self.chapter = "another joins"
        elif self.chapter == "another joins" and row["env_runners"] == 2:
            self.chapter = "both play again"

    def over(self) -> bool:
        return self.chapter == "both play again"


def test_run_survives_lost_node_and_uses_new_one(cluster, tmp_path, caplog):
    nodes = [cluster.add_node(num_cpus=1, **STORE) for _ in range(2)]
    cluster.wait_for_nodes()
    config = compose([*SMALL, f"address={cluster.address}", "cluster.num_env_runners=2", "train.until=1e9"])
    folder = RunFolder(tmp_path / "run", config, env_factory(config).load())
    story = Story(cluster, nodes[1])
    try:
        with built_algorithm(config, stages_of(config)) as algorithm:
            verdict = train(algorithm, config, folder, story.observe, story.over)
    finally:
        folder.close()
    assert verdict["ended"] == "interrupted"
    assert verdict["env_runner_restarts"] >= 1  # a replacement may be sent to the lost node, too
    rows = rows_of(tmp_path / "run")
    assert rows == story.rows
    assert [count for count, _ in itertools.groupby(row["env_runners"] for row in rows)] == [2, 1, 2]
    for before, after in itertools.pairwise(rows):
        assert after["env_steps"] - before["env_steps"] == 256 * after["env_runners"]
    assert "was lost" in caplog.text
    assert "is back, with new games" in caplog.text
