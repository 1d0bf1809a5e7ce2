"""A real Ray cluster of several nodes on this machine: the head only hands out, the others work, one core each."""

import os
import shutil
import tempfile

import psutil
import pytest

from penstock.shards.cluster.join import join_cluster
from penstock.shards.cluster.ray_runner import RayRunner

QUICK_TO_MISS_A_NODE = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
STORE_BYTES = 80 << 20


class Nodes:
    """The cluster, with what tests do to it."""

    def __init__(self, cluster, working):
        self.cluster = cluster
        self.address = cluster.address
        self.working = working

    def fill_up(self):
        """As many working nodes as there should be."""
        while len(self.cluster.worker_nodes) < self.working:
            self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def kill(self, node):
        self.cluster.remove_node(node, allow_graceful=False)

    def of(self, pid):
        """The node on which that process works."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(node for node in self.cluster.worker_nodes if parents & _pids(node, "raylet"))


def _pids(node, kind):
    return {info.process.pid for info in node.all_processes[kind]}


@pytest.fixture(scope="module")
def nodes():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of its sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": QUICK_TO_MISS_A_NODE})
        try:
            yield Nodes(cluster, working=2)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def member(nodes):
    """This process in the cluster."""
    nodes.fill_up()
    with join_cluster(nodes.address) as cluster:
        yield cluster


@pytest.fixture
def ray_runner(nodes, member):
    nodes.fill_up()

    def make(**settings):
        return RayRunner(member, **settings)

    return make


@pytest.fixture
def loose(tmp_path):
    """Loose files that pack to four shards of 1 MiB."""
    src = tmp_path / "loose"
    src.mkdir()
    for number in range(42):
        (src / f"{number:05d}.bin").write_bytes(os.urandom(100_000))
    return src
