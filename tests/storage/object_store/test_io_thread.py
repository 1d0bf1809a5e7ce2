"""How a thread waits for a store."""

import sys
import threading
from pathlib import Path

import pytest
from tests.support.proxy import Hang

from penstock.errors import StorageError
from penstock.storage.object_store import io_thread as channel
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.io_thread import store_counts
from penstock.storage.object_store.remote_file import read_object
from penstock.storage.object_store.retry import RetryPolicy
from penstock.watcher.stack_sampler import STATES


def given_up(url):
    with pytest.raises(StorageError):
        read_object(url, 100)


@pytest.mark.skipif(sys.platform != "linux" or not STATES, reason="what a thread waits for is told on Linux only")
def test_whoever_looks_at_a_thread_that_waits_for_a_store_sees_a_network(bucket, proxy, monkeypatch):
    """A worker of torch's DataLoader over shards in a store would else be taken for one that waits for a lock."""
    monkeypatch.setattr(remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.0, stall_s=1.0))
    bucket.put("a", b"data")
    proxy.inject(Hang())
    thread = threading.Thread(target=given_up, args=(bucket.url("a"),))
    thread.start()
    proxy.wait_until(lambda store_counts: store_counts.in_flight == 1)
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]
    thread.join()
    if not call.isdigit():
        pytest.skip(f"the system does not tell what the thread is in: {call}")
    assert STATES[int(call)] == "network"


def test_a_wait_that_was_interrupted_leaves_nothing_to_the_next_one(bucket, monkeypatch):
    bucket.put("a", b"data")

    class Interrupted(channel._Wakeup):
        def wait(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(channel._wakeups, "bell", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            read_object(bucket.url("a"), 100)
    assert channel._wakeups.bell is None or type(channel._wakeups.bell) is channel._Wakeup
    assert read_object(bucket.url("a"), 100) == b"data"


def test_without_descriptors_to_wait_with_it_is_waited_all_the_same(bucket, monkeypatch):
    bucket.put("a", b"data")

    def none_left():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(channel._wakeups, "bell", None)
    monkeypatch.setattr(channel.socket, "socketpair", none_left)
    assert read_object(bucket.url("a"), 100) == b"data"


def test_latency_and_bandwidth_are_counted_apart(bucket, proxy):
    url = bucket.url("a")
    bucket.put("a", bytes(200_000))
    file = remote_file.RemoteFile(url)
    proxy.slow_down(latency_s=0.2)
    before = store_counts.answers, store_counts.answer_s, store_counts.body_s
    file.read_at(0, 1000)
    late = [
        now - then
        for now, then in zip((store_counts.answers, store_counts.answer_s, store_counts.body_s), before, strict=True)
    ]
    assert late[0] == 1
    assert late[1] > 0.2
    assert late[1] > late[2]
    proxy.slow_down(bytes_per_s=400_000)
    before = store_counts.answer_s, store_counts.body_s
    file.read_at(0, 200_000)
    assert store_counts.body_s - before[1] > store_counts.answer_s - before[0]
