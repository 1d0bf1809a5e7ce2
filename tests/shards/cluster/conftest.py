"""A real Ray cluster of several nodes on this machine. The head node runs no tasks; the others have one core each."""

import os
import shutil
import tempfile

import psutil
import pytest

from penstock.shards.cluster.join import join_cluster
from penstock.shards.cluster.ray_runner import RayRunner

FAST_HEALTH_CHECKS = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
OBJECT_STORE_BYTES = 80 << 20


class Nodes:
    """The cluster, with methods to add, find and kill its nodes."""

    def __init__(self, cluster, node_count):
        self.cluster = cluster
        self.address = cluster.address
        self.node_count = node_count
        """Number of nodes without the head node."""

    def replace_killed(self):
        """Add nodes until the cluster is complete again."""
        while len(self.cluster.worker_nodes) < self.node_count:
            self.cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    def kill(self, node):
        self.cluster.remove_node(node, allow_graceful=False)

    def of(self, pid):
        """Return the node on which the process runs."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(node for node in self.cluster.worker_nodes if parents & _pids(node, "raylet"))


def _pids(node, kind):
    return {info.process.pid for info in node.all_processes[kind]}


@pytest.fixture(scope="module")
def nodes():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of Ray's sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": FAST_HEALTH_CHECKS})
        try:
            yield Nodes(cluster, node_count=2)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def joined_cluster(nodes):
    """The `RayCluster` of this process, which joins it for all tests of a file."""
    nodes.replace_killed()
    with join_cluster(nodes.address) as cluster:
        yield cluster


@pytest.fixture
def ray_runner(nodes, joined_cluster):
    nodes.replace_killed()

    def make(**settings):
        return RayRunner(joined_cluster, **settings)

    return make


@pytest.fixture
def loose(tmp_path):
    """Loose files that pack to four shards of 1 MiB."""
    src = tmp_path / "loose"
    src.mkdir()
    for number in range(42):
        (src / f"{number:05d}.bin").write_bytes(os.urandom(100_000))
    return src
