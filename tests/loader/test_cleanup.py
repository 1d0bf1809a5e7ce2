"""A loader leaves no process, thread, descriptor or memory behind, however its epoch ends."""

import gc
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

import psutil
import pytest
from tests.support.loader_helpers import keys_of

import penstock
from penstock.data.device.transfer import HostTransfer
from penstock.errors import PenstockError
from penstock.testing import IMAGENET, REID, corrupt, make_shards, tar_bytes

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

RELEASE_TIMEOUT_S = 2.0
SAMPLES, LABELS = 24, 24
FIELDS = {
    "image": penstock.Image(".jpg", size=8),
    "id": penstock.Label(".json", key="identity"),
    "meta": penstock.Json(".json"),
}


LABEL_FIELDS = {"label": penstock.Label(".cls")}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    (shard,) = make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, scale=0.05)
    with tarfile.open(shard) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]


@pytest.fixture
def shard(tmp_path, members):
    """Write a shard in which the images of the samples with these numbers are damaged."""

    def make(*bad, copies=1):
        path = tmp_path / "reid.tar"
        damaged = [
            (f"{copy}{name}", corrupt.truncate(data, 40) if name.endswith(".jpg") and index // 2 in bad else data)
            for copy in range(copies)
            for index, (name, data) in enumerate(members)
        ]
        path.write_bytes(tar_bytes(damaged))
        return path

    return make


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards"), IMAGENET, samples=LABELS, shards=2, scale=0.05)


def resources():
    """Return the child processes, threads and descriptors of this process."""
    gc.collect()
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
    return {
        "children": {child.pid for child in psutil.Process().children(recursive=True)},
        "threads": {thread.ident for thread in threading.enumerate()},
        "fds": sorted(fds.items()),
    }


def _is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def wait_until_released(before):
    end = time.monotonic() + RELEASE_TIMEOUT_S
    while (now := resources()) != before and time.monotonic() < end:
        time.sleep(0.01)
    assert now == before


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_exception(loader):
    def train():
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def leave_by_closing(loader):
    keys_of(loader)
    loader.close()


def leave_by_deleting_the_iterator(loader):
    iterator = iter(loader)
    next(iterator)
    del iterator


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_exception, leave_by_closing, leave_by_deleting_the_iterator]
)
def test_nothing_is_left_behind_after_leaving_an_epoch(shard, executor, leave):
    path = shard()
    penstock.Loader(path, FIELDS, 4)  # what a process opens only once is open now
    before = resources()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor=executor),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    leave(loader)
    wait_until_released(before)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_nothing_is_left_behind_after_a_loader_is_collected(shard, executor):
    path = shard()
    before = resources()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor=executor),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    assert len(keys_of(loader)) == SAMPLES
    assert resources() != before  # workers wait for the next epoch
    del loader
    wait_until_released(before)


def test_nothing_is_left_behind_after_a_bad_sample(shard):
    path = shard(13)
    before = resources()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor="process"),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    with pytest.raises(PenstockError):
        keys_of(loader)
    wait_until_released(before)


def test_batches_kept_after_closing_do_not_write_to_reused_descriptors(shard, tmp_path):
    loader = penstock.Loader(
        shard(),
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor="thread"),
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    kept = list(loader)
    loader.close()
    files = [(tmp_path / f"file-{number}").open("wb+") for number in range(32)]  # these get the closed descriptors
    kept.clear()
    gc.collect()
    assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 32
    for file in files:
        file.close()


INTERRUPTED = """
import os, sys, threading, time
import psutil
import penstock

def remaining():
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(2)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.lexists(link)]
    files = [name for name in open_files if "penstock" in name or name.endswith(".tar")]
    return len(psutil.Process().children()), threading.active_count() - 1, files

loader = penstock.Loader(sys.argv[1], {"image": penstock.Image(".jpg", size=8)}, 4, device="numpy", num_workers=2,
                         engine=penstock.EngineOptions(sys.argv[2]), reading=penstock.ReadOptions(block_bytes=4096))
try:
    for batch in loader:
        while sys.argv[2] == "process" and len(psutil.Process().children()) < 2:
            time.sleep(0.01)  # until then threads decode
        print(*[child.pid for child in psutil.Process().children()], flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    del batch
    print(*remaining())
    sys.exit(7)
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_ctrl_c_leaves_nothing_behind(shard, tmp_path, executor):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, script, shard(), executor]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as training:
        workers = [int(pid) for pid in training.stdout.readline().split()]
        training.send_signal(signal.SIGINT)
        last = training.stdout.readline()
        assert training.wait(30) == 7
    assert last.strip() == "0 0 []"
    assert len(workers) == (2 if executor == "process" else 0)
    assert not any(map(runs, workers))


def test_workers_end_with_a_training_that_is_killed(shard, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, script, shard(), "process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        workers = [int(pid) for pid in training.stdout.readline().split()]
        training.kill()
        training.wait()
    end = time.monotonic() + 5 * RELEASE_TIMEOUT_S  # they may end late on a loaded machine
    while any(map(runs, workers)) and time.monotonic() < end:
        time.sleep(0.01)
    assert (len(workers), [pid for pid in workers if runs(pid)]) == (2, [])


def runs(pid):
    """Return whether the process runs. A zombie does not; process 1 reaps orphans at any time."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def succeeds_in_a_fork(action):
    """Return whether the action succeeds in a forked process, in a thread that holds no lock of this one."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        threading.Thread(target=lambda: os._exit(0 if action() else 1)).start()
        time.sleep(3600)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_fork_gets_an_error_and_can_close_the_loader_without_harm(make_loader, labels, executor):
    loader = make_loader(labels, LABEL_FIELDS, executor=executor)
    iterator = iter(loader)
    batches = [next(iterator)]

    def continue_in_fork():
        try:
            next(iterator)
        except PenstockError as error:
            loader.close()
            return "forked" in error.reason
        return False

    with loader._source.block_source._reader.local._lock:  # as if a reader held it at the time of the fork
        assert succeeds_in_a_fork(continue_in_fork)
    batches += iterator
    assert len(set(keys_of(batches))) == LABELS


def test_a_device_that_cannot_be_closed_leaves_no_worker_behind(make_loader, labels, monkeypatch):
    def broken(_transfer):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    loader = make_loader(labels, LABEL_FIELDS, executor="process")
    threads, children = threading.active_count(), set(psutil.Process().children())
    assert len(keys_of(loader)) == LABELS
    monkeypatch.setattr(HostTransfer, "close", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        loader.close()
    assert (threading.active_count(), set(psutil.Process().children())) == (threads, children)
    monkeypatch.undo()
    assert len(keys_of(loader)) == LABELS
