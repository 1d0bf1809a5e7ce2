"""Which blocks are read, kept and evicted."""

import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import NO_BLOCK_START
from penstock.engine.arena import Arena
from penstock.engine.block_cache import BlockCache
from penstock.engine.readers import FetchedBlock
from penstock.errors import SettingError

PAGE = 4096


class RecordedRequests:
    """Readers that only record what they are requested to read."""

    def __init__(self):
        self.blocks = []
        self.starts = {}

    def request(self, block, start, length):
        self.blocks.append(block)
        self.starts[block] = start


class Stage:
    """A block cache with an arena of that many pages, and blocks of one page."""

    def __init__(self, pages, max_reads=8, samples=64):
        self.arena = Arena(pages * PAGE)
        self.requests = RecordedRequests()
        self.source = Numbers(samples)
        self.cache = BlockCache(self.arena, self.requests, self.source, max_reads)

    def begin(self, **uses):
        counts = np.zeros(self.source.blocks, np.int64)
        for block, count in uses.items():
            counts[int(block.removeprefix("b"))] = count
        self.cache.begin_epoch(counts.item)

    def request(self, *blocks):
        for block in blocks:
            self.cache.request(block)
        self.cache.start_reads()

    def fetched(self, *blocks):
        return [self.cache.add_fetched(FetchedBlock(block, PAGE, 0.0, None)) for block in blocks]


@pytest.fixture
def make(leaves_nothing):
    made = []

    def stage(*args, **kwargs):
        made.append(Stage(*args, **kwargs))
        return made[-1]

    yield stage
    for each in made:
        each.arena.close()


def ids(*blocks):
    return np.array(blocks, np.int64)


def test_blocks_are_read_in_the_order_of_need_and_only_once(make):
    stage = make(8)
    stage.begin(b0=1, b3=1, b5=1)
    stage.request(5, 0, 5, 3, 0)
    assert stage.requests.blocks == [5, 0, 3]
    stage.request(5)
    assert stage.requests.blocks == [5, 0, 3]


@pytest.mark.parametrize(("max_reads", "requested"), [(1, 2), (2, 3), (4, 6)])
def test_few_more_blocks_are_requested_than_are_read_at_a_time(make, max_reads, requested):
    stage = make(8, max_reads=max_reads)
    stage.begin(**{f"b{block}": 1 for block in range(8)})
    stage.request(*range(8))
    assert stage.requests.blocks == list(range(requested))
    assert (stage.cache.loading, stage.cache.queue_length) == (requested, 8 - requested)
    assert not stage.cache.blocked
    stage.fetched(1)
    stage.cache.start_reads()
    assert stage.requests.blocks == list(range(requested + 1))


def test_a_block_has_an_offset_only_once_it_has_been_read(make):
    stage = make(8)
    stage.begin(b4=1)
    assert stage.cache.start_of(4) is None
    stage.request(4)
    assert stage.cache.start_of(4) is None
    assert stage.fetched(4) == [True]
    assert stage.cache.start_of(4) == stage.requests.starts[4]


def test_a_block_is_freed_after_its_last_use_and_not_before(make):
    stage = make(2)
    stage.begin(b0=3)
    stage.request(0)
    stage.fetched(0)
    start = stage.requests.starts[0]
    assert stage.cache.pin(ids(0, -1, 0)).tolist() == [start, NO_BLOCK_START, start]
    stage.cache.unpin(ids(0, -1, 0), decoded=True)
    assert stage.arena.used_bytes == PAGE
    stage.cache.pin(ids(0))
    stage.cache.unpin(ids(0), decoded=True)
    assert stage.arena.used_bytes == 0
    assert stage.cache.start_of(0) is None


def test_decoded_blocks_are_forgotten(make):
    stage = make(2)
    stage.begin(**{f"b{number}": 2 for number in range(8)})
    for number in range(8):
        stage.request(number)
        stage.fetched(number)
        for _ in range(2):
            stage.cache.pin(ids(number))
            stage.cache.unpin(ids(number), decoded=True)
    assert stage.arena.used_bytes == 0
    assert not any((stage.cache._remaining, stage.cache._cached, stage.cache._queued))


def test_a_sample_that_was_not_decoded_does_not_count(make):
    stage = make(2)
    stage.begin(b0=1)
    stage.request(0)
    stage.fetched(0)
    stage.cache.pin(ids(0))
    stage.cache.unpin(ids(0), decoded=False)
    assert stage.cache.start_of(0) == stage.requests.starts[0]


def test_a_full_arena_blocks_reading_and_evicts_nothing_by_itself(make):
    stage = make(1)
    stage.begin(b0=2, b1=1)
    stage.request(0)
    stage.fetched(0)
    stage.request(1)
    assert stage.cache.blocked
    assert stage.requests.blocks == [0]
    assert stage.cache.start_of(0) is not None


def test_an_evicted_block_is_counted_and_can_be_read_again(make):
    stage = make(1)
    stage.begin(b0=2, b1=1)
    stage.request(0)
    stage.fetched(0)
    stage.request(1)
    assert stage.cache.evict_one()
    stage.cache.start_reads()
    assert stage.requests.blocks == [0, 1]
    assert stage.cache.rereads == 1
    stage.fetched(1)
    stage.request(0)
    stage.cache.evict_one()
    stage.cache.start_reads()
    assert stage.requests.blocks == [0, 1, 0]


def test_a_pinned_block_is_not_evicted(make):
    stage = make(2)
    stage.begin(b0=2, b1=2, b2=1)
    stage.request(0, 1)
    stage.fetched(0, 1)
    stage.cache.pin(ids(0))
    stage.request(2)
    assert stage.cache.evict_one()
    assert stage.cache.start_of(0) is not None
    assert stage.cache.start_of(1) is None


def test_nothing_is_evicted_while_no_block_is_queued(make):
    stage = make(1)
    stage.begin(b0=1)
    stage.request(0)
    stage.fetched(0)
    assert not stage.cache.evict_one()
    assert stage.cache.start_of(0) is not None


def test_a_block_larger_than_the_arena_is_refused_with_both_sizes(make):
    stage = make(2)
    stage.source.block_size = 3 * PAGE
    stage.begin(b0=1)
    stage.request(0)
    with pytest.raises(SettingError, match=rf"{3 * PAGE} bytes does not fit into an arena of {2 * PAGE}"):
        stage.cache.evict_one()


def test_a_new_epoch_frees_unpinned_blocks_and_keeps_the_others(make):
    stage = make(4)
    stage.begin(b0=1, b1=1, b2=1)
    stage.request(0, 1, 2)
    stage.fetched(0, 1)
    stage.cache.pin(ids(0))
    stage.begin(b5=1)
    assert stage.cache.start_of(0) is not None
    assert stage.cache.start_of(1) is None
    stage.cache.unpin(ids(0), decoded=False)
    assert stage.cache.start_of(0) is None
    assert stage.fetched(2) == [False], "it was requested by the epoch before"
    assert stage.arena.used_bytes == 0


def test_a_new_epoch_uses_blocks_that_are_cached_or_being_read(make):
    stage = make(4)
    stage.begin(b0=1, b1=1)
    stage.request(0, 1)
    stage.fetched(0)
    stage.cache.pin(ids(0))
    stage.begin(b0=1, b1=1)
    stage.request(0, 1)
    assert stage.requests.blocks == [0, 1]
    assert stage.fetched(1) == [True]
    stage.cache.pin(ids(0))
    stage.cache.unpin(ids(0), decoded=True)
    assert stage.cache.start_of(0) is not None, "a worker still uses it for the old epoch"
    stage.cache.unpin(ids(0), decoded=False)
    assert stage.cache.start_of(0) is None


def test_a_new_epoch_clears_the_queue(make):
    stage = make(1)
    stage.begin(b0=1, b1=1, b2=1)
    stage.request(0, 1, 2)
    stage.begin(b3=1)
    assert stage.cache.queue_length == 0
    assert not stage.cache.blocked
    stage.fetched(0)
    stage.request(3)
    assert stage.requests.blocks == [0, 3]
