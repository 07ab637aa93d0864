"""``multigrid-rl train`` on a Ray cluster of several nodes, all of them on this machine.

    python -m benchmarks.nodes 2 scenario=1v1 cluster.num_env_runners=2 train.until=40960

Every node is a raylet with a share of the CPUs and an object store of its own, so what goes from one node to another
goes through sockets, as between machines; only the wire itself is missing.
"""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster

from multigrid_rl.cli.train import run_training
from multigrid_rl.schema import available_cpus

OBJECT_STORE_BYTES = 256 * 2**20


def train_on(nodes: int, overrides: list[str]) -> None:
    """Train on so many nodes, each with an equal share of the CPUs.

    Raises:
        ValueError: fewer CPUs than nodes.
    """
    share = available_cpus() // nodes
    if share < 1:
        raise ValueError(f"{nodes} nodes: allowed is at most one for each of {available_cpus()} CPUs")
    each = {"num_cpus": share, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**each)
        cluster.wait_for_nodes()
        # The training loop uses a session that is there already.
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        run_training(overrides)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    train_on(int(sys.argv[1]), sys.argv[2:])
