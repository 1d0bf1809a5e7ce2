"""Threads that wait for requests to a store."""

import sys
import threading
from pathlib import Path

import pytest
from tests.support.proxy import Hang

from penstock.errors import StorageError
from penstock.storage.object_store import io_thread as io_thread
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.io_thread import store_counts
from penstock.storage.object_store.remote_file import read_object
from penstock.storage.object_store.retry import RetryPolicy
from penstock.watcher.stack_sampler import STATES


def read_until_given_up(url):
    with pytest.raises(StorageError):
        read_object(url, 100)


@pytest.mark.skipif(sys.platform != "linux" or not STATES, reason="only Linux reports what a thread waits for")
def test_a_thread_that_waits_for_a_store_is_seen_to_wait_for_the_network(bucket, proxy, monkeypatch):
    """Otherwise a DataLoader worker that reads shards in a store would be reported as waiting for a lock."""
    monkeypatch.setattr(remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.0, stall_s=1.0))
    bucket.put("a", b"data")
    proxy.inject(Hang())
    thread = threading.Thread(target=read_until_given_up, args=(bucket.url("a"),))
    thread.start()
    proxy.wait_until(lambda counts: counts.in_flight == 1)
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]
    thread.join()
    if not call.isdigit():
        pytest.skip(f"the system does not report the thread's system call: {call}")
    assert STATES[int(call)] == "network"


def test_an_interrupted_wait_does_not_affect_the_next_read(bucket, monkeypatch):
    bucket.put("a", b"data")

    class Interrupted(io_thread._Wakeup):
        def wait(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(io_thread._wakeups, "idle", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            read_object(bucket.url("a"), 100)
    assert io_thread._wakeups.idle is None or type(io_thread._wakeups.idle) is io_thread._Wakeup
    assert read_object(bucket.url("a"), 100) == b"data"


def test_a_read_succeeds_when_no_descriptors_are_left_for_the_wakeup(bucket, monkeypatch):
    bucket.put("a", b"data")
    read_object(bucket.url("a"), 100)  # the I/O thread takes its own descriptors when it starts

    def no_descriptors():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(io_thread._wakeups, "idle", None)
    monkeypatch.setattr(io_thread.socket, "socketpair", no_descriptors)
    assert read_object(bucket.url("a"), 100) == b"data"


def test_latency_and_transfer_time_are_counted_separately(bucket, proxy):
    url = bucket.url("a")
    bucket.put("a", bytes(200_000))
    file = remote_file.RemoteFile(url)
    proxy.slow_down(latency_s=0.2)
    before = store_counts.answers, store_counts.answer_s, store_counts.body_s
    file.read_at(0, 1000)
    difference = [
        now - then
        for now, then in zip((store_counts.answers, store_counts.answer_s, store_counts.body_s), before, strict=True)
    ]
    assert difference[0] == 1
    assert difference[1] > 0.2
    assert difference[1] > difference[2]
    proxy.slow_down(bytes_per_s=400_000)
    before = store_counts.answer_s, store_counts.body_s
    file.read_at(0, 200_000)
    assert store_counts.body_s - before[1] > store_counts.answer_s - before[0]
