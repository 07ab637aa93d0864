"""``multigrid-rl train`` on a Ray cluster of several nodes, all of them on this machine: how many, and CPUs of each.

    python -m benchmarks.nodes 2 1 scenario=1v1 cluster.num_env_runners=2 train.until=40960

Every node is a raylet with an object store of its own, so what goes from one node to another goes through sockets, as
between machines; only the wire itself is missing.
"""

import sys

import ray
from ray.cluster_utils import Cluster

from multigrid_rl.training.start import run_training

OBJECT_STORE_BYTES = 256 * 2**20


def train_on(nodes: int, cpus: int, overrides: list[str]) -> None:
    """Train on so many nodes with so many CPUs each."""
    each = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**each)
        cluster.wait_for_nodes()
        run_training([*overrides, f"address={cluster.address}"])
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    train_on(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
