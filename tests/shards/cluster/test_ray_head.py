"""The head node dies in the middle of a pack: a cluster of its own for this test, since nothing is left of it."""

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
STORE_BYTES = 80 << 20
PACKING = """
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
    """A head that only hands out, and a node that works."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of its sockets must be short
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    yield cluster
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def packing(tmp_path):
    """Starts a process that packs on the cluster of that address."""
    started = []

    def start(plan, folder, address):
        (tmp_path / "packing.py").write_text(PACKING)
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        command = [sys.executable, tmp_path / "packing.py", address, tmp_path / "plan", folder]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def shards_of(folder):
    """What each is, and what is in it."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        facts = path.stat()
        found[path.name] = (facts.st_ino, facts.st_mtime_ns, path.read_bytes())
    return found


def test_the_run_says_so_and_the_next_one_does_only_what_is_missing(cluster, packing, loose, tmp_path):
    options = PackOptions(shard_bytes=1 << 20)
    plan = make_plan(list(find_pack_sources(str(loose), options)), options)
    folder, held, aside = tmp_path / "packed", loose / "00025.bin", tmp_path / "aside"
    held.rename(aside)
    os.mkfifo(held)  # the worker that comes to it stands still, in the middle of its shard
    running = packing(plan, folder, cluster.address)
    wait_until(lambda: len(shards_of(folder)) == 3, "all shards but one")
    [scratch] = wait_until(lambda: list(folder.glob(".*.tmp")), "the worker that stands still")
    worker = int(re.search(r"(\d+)\.tmp$", scratch.name)[1])
    assert psutil.pid_exists(worker)

    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2, err
    assert out.startswith(f"the head node of the Ray cluster, {cluster.address}, is gone. Run the same command again")
    wait_until(lambda: not psutil.pid_exists(worker), "the worker to end with the run")

    held.unlink()
    aside.rename(held)
    kept = shards_of(folder)
    assert len(kept) == 3
    again = packing(plan, folder, "local")
    out, err = again.communicate(timeout=DEADLINE_S)
    assert (again.returncode, out) == (0, "4\n"), err
    found = shards_of(folder)
    assert {name: found[name] for name in kept} == kept
    list(pack(plan, tmp_path / "here", workers=1))
    here = shards_of(tmp_path / "here")
    assert {name: data for name, (*_, data) in found.items()} == {name: data for name, (*_, data) in here.items()}
    assert len(found) == 4
    assert (folder / "manifest.json").read_bytes() == (tmp_path / "here" / "manifest.json").read_bytes()
    assert [path.name for path in Path(folder).glob(".*.tmp")] == []
