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

    def readers(supply, size, count=2):
        fetched = queue.SimpleQueue()
        readers = Readers(supply, arena(size), fetched.put)
        readers.resize(count)
        made.append(readers)
        return readers, fetched

    yield readers
    for reader in made:
        reader.stop()
        reader.join(10)


def test_a_block_lands_where_it_was_asked_for(arena):
    memory = arena(16384)
    readers = Readers(Numbers(), memory, (fetched := queue.SimpleQueue()).put)
    readers.resize(1)
    readers.request(2, 8192, 4096)
    got = fetched.get(timeout=10)
    assert (got.block, got.bytes_read, got.error) == (2, 4096, None)
    assert int.from_bytes(memory.view[8192:8200], "little") == 7 * 16
    assert not any(memory.view[:8192])
    readers.stop()
    readers.join(10)


@pytest.mark.parametrize("error", [OSError("disk on fire"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_read_raises_is_reported_and_the_thread_goes_on(make, error):
    supply = Numbers()
    supply.error_at[1] = error
    readers, fetched = make(supply, 8192, count=1)
    readers.request(1, 0, 4096)
    readers.request(0, 4096, 4096)
    assert fetched.get(timeout=10).error is error
    assert fetched.get(timeout=10).error is None


def test_as_many_reads_at_a_time_as_there_are_threads(make):
    supply = Numbers()
    inside = threading.Barrier(4, timeout=10)
    supply.gate = inside  # opens only if three reads are under way at once, and this test with them
    readers, fetched = make(supply, 4 * 4096, count=3)
    for block in range(3):
        readers.request(block, block * 4096, 4096)
    inside.wait()
    assert sorted(fetched.get(timeout=10).block for _ in range(3)) == [0, 1, 2]


def test_of_too_many_readers_some_end(make):
    supply = Numbers()
    readers, fetched = make(supply, 4 * 4096, count=3)
    readers.resize(1)
    assert readers.count == 1
    gone = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-reader")]
    while sum(thread.is_alive() for thread in gone) > 1:
        gone[0].join(0.01)
    readers.request(0, 0, 4096)
    assert fetched.get(timeout=10).block == 0
    readers.resize(2)
    assert readers.count == 2


def test_turning_them_up_and_down_again_and_again_piles_nothing_up(make):
    readers, _ = make(Numbers(), 4096, count=1)
    for _ in range(5):
        readers.resize(4)
        readers.resize(1)
    kept = readers._threads
    while sum(thread.is_alive() for thread in kept) > 1:
        kept[0].join(0.01)
    readers.resize(2)
    assert len(readers._threads) == 2


def test_join_does_not_wait_for_a_read_that_hangs(make):
    supply = Numbers()
    supply.gate = threading.Event()
    readers, fetched = make(supply, 4096, count=1)
    readers.request(0, 0, 4096)
    readers.stop()
    readers.join(0.05)
    assert fetched.empty()
    supply.gate.set()
    assert fetched.get(timeout=10).block == 0


def test_a_reader_may_be_the_one_who_joins(arena):
    supply = Numbers()
    joined = threading.Event()
    readers = None

    def fetched(_):
        readers.stop()
        readers.join(10)
        joined.set()

    readers = Readers(supply, arena(4096), fetched)
    readers.resize(1)
    readers.request(0, 0, 4096)
    assert joined.wait(10)
    readers.join(10)


def test_memory_that_is_read_into_for_the_first_time_is_made_in_one_go(arena, monkeypatch):
    memory = arena(5 * 4096)
    settled = []
    monkeypatch.setattr(memory, "settle", lambda start, length: settled.append((start, max(0, length))))
    readers = Readers(Numbers(), memory, (fetched := queue.SimpleQueue()).put)
    readers.resize(1)
    for block, (start, length) in enumerate([(0, 5000), (8192, 4096), (4096, 8192), (8192, 8192)]):
        readers.request(block, start, length)
        fetched.get(timeout=10)
    assert settled == [(0, 8192), (8192, 4096), (12288, 0), (12288, 4096)]
    readers.stop()
    readers.join(10)
