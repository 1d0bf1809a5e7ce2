"""The head node dies in the middle of a pack. The test has a cluster of its own, because it destroys it."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import wait_until

from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(sys.platform != "linux", reason="Ray's own clusters of several nodes on one machine need Linux"),
]

DEADLINE_S = 90
OBJECT_STORE_BYTES = 80 << 20
CHILD = """
import pickle, sys
from pathlib import Path
from penstock.errors import PenstockError
from penstock.shards.cluster import join
from penstock.shards.cluster.ray_runner import RayRunner
from penstock.shards.pack.run import pack, plan_path
from penstock.shards.task_pool import use_task_runner

join.HEAD_ABSENCE_LIMIT_S = 2.0
address, plan, folder = sys.argv[1], pickle.loads(Path(sys.argv[2]).read_bytes()), Path(sys.argv[3])
try:
    with join.join_cluster(address) as cluster, use_task_runner(RayRunner(cluster, [str(plan_path(folder))])):
        print(len(list(pack(plan, folder))))
except PenstockError as error:
    print(f"{error.reason}. {error.advice}")
    sys.exit(2)
"""


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of a head node, which runs no tasks, and one other node."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of Ray's sockets must be short
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES)
    yield cluster
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start_packing(tmp_path):
    """A function that starts a process that packs on the cluster at an address."""
    started = []

    def start(plan, folder, address):
        (tmp_path / "child.py").write_text(CHILD)
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        command = [sys.executable, tmp_path / "child.py", address, tmp_path / "plan", folder]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def shards_of(folder):
    """Return inode, modification time and content of every shard, by name."""
    shards = {}
    for path in sorted(folder.glob("*.tar")):
        status = path.stat()
        shards[path.name] = (status.st_ino, status.st_mtime_ns, path.read_bytes())
    return shards


def test_the_run_fails_with_advice_and_the_next_run_writes_only_the_missing_shard(
    cluster, start_packing, loose, tmp_path
):
    options = PackOptions(shard_bytes=1 << 20)
    plan = make_plan(list(find_pack_sources(str(loose), options)), options)
    folder, source_file, original = tmp_path / "packed", loose / "00025.bin", tmp_path / "original"
    source_file.rename(original)
    os.mkfifo(source_file)  # the worker that reads it blocks in the middle of its shard
    running = start_packing(plan, folder, cluster.address)
    wait_until(lambda: len(shards_of(folder)) == 3, "all shards but one")
    [temporary] = wait_until(lambda: list(folder.glob(".*.tmp")), "the blocked worker")
    worker_pid = int(re.search(r"(\d+)\.tmp$", temporary.name)[1])
    assert psutil.pid_exists(worker_pid)

    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2, err
    assert out.startswith(f"the head node of the Ray cluster, {cluster.address}, is gone. Run the same command again")
    wait_until(lambda: not psutil.pid_exists(worker_pid), "the worker to end with the run")

    source_file.unlink()
    original.rename(source_file)
    kept = shards_of(folder)
    assert len(kept) == 3
    second_run = start_packing(plan, folder, "local")
    out, err = second_run.communicate(timeout=DEADLINE_S)
    assert (second_run.returncode, out) == (0, "4\n"), err
    shards = shards_of(folder)
    assert {name: shards[name] for name in kept} == kept
    local_folder = tmp_path / "local"
    list(pack(plan, local_folder, workers=1))
    local_shards = shards_of(local_folder)
    assert {name: data for name, (*_, data) in shards.items()} == {
        name: data for name, (*_, data) in local_shards.items()
    }
    assert len(shards) == 4
    assert (folder / "manifest.json").read_bytes() == (local_folder / "manifest.json").read_bytes()
    assert [path.name for path in Path(folder).glob(".*.tmp")] == []
