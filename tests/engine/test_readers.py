"""Threads that read blocks into the arena."""

import queue
import threading

import pytest
from tests.support.engine_fakes import Numbers

from penstock.engine.readers import Readers
from penstock.engine.shared_memory import SharedMemory


@pytest.fixture
def arena(leaves_nothing):
    made = []

    def arena(size):
        made.append(SharedMemory.create(size, "arena"))
        return made[-1]

    yield arena
    for memory in made:
        memory.close()


@pytest.fixture
def make(arena):
    made = []

    def readers(source, size, count=2):
        fetched = queue.SimpleQueue()
        readers = Readers(source, arena(size), fetched.put)
        readers.resize(count)
        made.append(readers)
        return readers, fetched

    yield readers
    for reader in made:
        reader.stop()
        reader.join(10)


def test_a_block_is_read_to_the_requested_offset(arena):
    memory = arena(16384)
    readers = Readers(Numbers(), memory, (fetched := queue.SimpleQueue()).put)
    readers.resize(1)
    readers.request(2, 8192, 4096)
    result = fetched.get(timeout=10)
    assert (result.block, result.bytes_read, result.error) == (2, 4096, None)
    assert int.from_bytes(memory.view[8192:8200], "little") == 7 * 16
    assert not any(memory.view[:8192])
    readers.stop()
    readers.join(10)


@pytest.mark.parametrize("error", [OSError("disk on fire"), SystemExit(3), KeyboardInterrupt()])
def test_any_error_of_a_read_is_reported_and_the_thread_continues(make, error):
    source = Numbers()
    source.errors[1] = error
    readers, fetched = make(source, 8192, count=1)
    readers.request(1, 0, 4096)
    readers.request(0, 4096, 4096)
    assert fetched.get(timeout=10).error is error
    assert fetched.get(timeout=10).error is None


def test_as_many_reads_at_a_time_as_there_are_threads(make):
    source = Numbers()
    inside = threading.Barrier(4, timeout=10)
    source.gate = inside  # passes only if three reads run at the same time, and this test waits too
    readers, fetched = make(source, 4 * 4096, count=3)
    for block in range(3):
        readers.request(block, block * 4096, 4096)
    inside.wait()
    assert sorted(fetched.get(timeout=10).block for _ in range(3)) == [0, 1, 2]


def test_surplus_readers_end(make):
    source = Numbers()
    readers, fetched = make(source, 4 * 4096, count=3)
    readers.resize(1)
    assert readers.count == 1
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-reader")]
    while sum(thread.is_alive() for thread in threads) > 1:
        threads[0].join(0.01)
    readers.request(0, 0, 4096)
    assert fetched.get(timeout=10).block == 0
    readers.resize(2)
    assert readers.count == 2


def test_ended_threads_are_forgotten(make):
    readers, _ = make(Numbers(), 4096, count=1)
    for _ in range(5):
        readers.resize(4)
        readers.resize(1)
    threads = readers._threads
    while sum(thread.is_alive() for thread in threads) > 1:
        threads[0].join(0.01)
    readers.resize(2)
    assert len(readers._threads) == 2


def test_join_has_a_timeout_for_a_read_that_hangs(make):
    source = Numbers()
    source.gate = threading.Event()
    readers, fetched = make(source, 4096, count=1)
    readers.request(0, 0, 4096)
    readers.stop()
    readers.join(0.05)
    assert fetched.empty()
    source.gate.set()
    assert fetched.get(timeout=10).block == 0


def test_a_reader_thread_may_itself_call_join(arena):
    source = Numbers()
    joined = threading.Event()
    readers = None

    def fetched(_):
        readers.stop()
        readers.join(10)
        joined.set()

    readers = Readers(source, arena(4096), fetched)
    readers.resize(1)
    readers.request(0, 0, 4096)
    assert joined.wait(10)
    readers.join(10)


def test_memory_is_prefaulted_before_the_first_read_into_it(arena, monkeypatch):
    memory = arena(5 * 4096)
    prefaulted = []
    monkeypatch.setattr(memory, "prefault", lambda start, length: prefaulted.append((start, max(0, length))))
    readers = Readers(Numbers(), memory, (fetched := queue.SimpleQueue()).put)
    readers.resize(1)
    for block, (start, length) in enumerate([(0, 5000), (8192, 4096), (4096, 8192), (8192, 8192)]):
        readers.request(block, start, length)
        fetched.get(timeout=10)
    assert prefaulted == [(0, 8192), (8192, 4096), (12288, 0), (12288, 4096)]
    readers.stop()
    readers.join(10)
