import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import NO_BLOCK_START
from penstock.engine.arena import Arena
from penstock.engine.block_cache import BlockCache
from penstock.engine.readers import FetchedBlock
from penstock.errors import SettingError

PAGE = 4096


class Asked:
    """Readers that only write down what they are asked."""

    def __init__(self):
        self.blocks = []
        self.places = {}

    def request(self, block, start, length):
        self.blocks.append(block)
        self.places[block] = start


class Room:
    def __init__(self, pages, in_flight=8, samples=64):
        self.arena = Arena(pages * PAGE)
        self.asked = Asked()
        self.supply = Numbers(samples)
        self.residency = BlockCache(self.arena, self.asked, self.supply, in_flight)

    def begin(self, **uses):
        counts = np.zeros(self.supply.blocks, np.int64)
        for block, count in uses.items():
            counts[int(block.removeprefix("b"))] = count
        self.residency.begin(counts.item)

    def want(self, *blocks):
        for block in blocks:
            self.residency.want(block)
        self.residency.pump()

    def arrive(self, *blocks):
        return [self.residency.arrived(FetchedBlock(block, PAGE, 0.0, None)) for block in blocks]


@pytest.fixture
def room(leaves_nothing):
    made = []

    def make(*args, **kwargs):
        made.append(Room(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.arena.close()


def ids(*blocks):
    return np.array(blocks, np.int64)


def test_blocks_are_read_in_the_order_of_need_and_only_once(room):
    room = room(8)
    room.begin(b0=1, b3=1, b5=1)
    room.want(5, 0, 5, 3, 0)
    assert room.asked.blocks == [5, 0, 3]
    room.want(5)
    assert room.asked.blocks == [5, 0, 3]


@pytest.mark.parametrize(("in_flight", "requested"), [(1, 2), (2, 3), (4, 6)])
def test_little_more_is_requested_than_readers_can_read_at_a_time(room, in_flight, requested):
    room = room(8, in_flight=in_flight)
    room.begin(**{f"b{block}": 1 for block in range(8)})
    room.want(*range(8))
    assert room.asked.blocks == list(range(requested))
    assert (room.residency.loading, room.residency.backlog) == (requested, 8 - requested)
    assert not room.residency.blocked
    room.arrive(1)
    room.residency.pump()
    assert room.asked.blocks == list(range(requested + 1))


def test_a_block_has_a_place_only_once_it_has_arrived(room):
    room = room(8)
    room.begin(b4=1)
    assert room.residency.base(4) is None
    room.want(4)
    assert room.residency.base(4) is None
    assert room.arrive(4) == [True]
    assert room.residency.base(4) == room.asked.places[4]


def test_a_block_is_freed_after_its_last_use_and_not_before(room):
    room = room(2)
    room.begin(b0=3)
    room.want(0)
    room.arrive(0)
    assert room.residency.pin_all(ids(0, -1, 0)).tolist() == [
        room.asked.places[0],
        NO_BLOCK_START,
        room.asked.places[0],
    ]
    room.residency.unpin_all(ids(0, -1, 0), done=True)
    assert room.arena.used == PAGE
    room.residency.pin_all(ids(0))
    room.residency.unpin_all(ids(0), done=True)
    assert room.arena.used == 0
    assert room.residency.base(0) is None


def test_nothing_is_remembered_of_blocks_that_are_done_with(room):
    room = room(2)
    room.begin(**{f"b{number}": 2 for number in range(8)})
    for number in range(8):
        room.want(number)
        room.arrive(number)
        for _ in range(2):
            room.residency.pin_all(ids(number))
            room.residency.unpin_all(ids(number), done=True)
    assert room.arena.used == 0
    assert not any((room.residency._left, room.residency._here, room.residency._asked))


def test_a_use_that_failed_does_not_count(room):
    room = room(2)
    room.begin(b0=1)
    room.want(0)
    room.arrive(0)
    room.residency.pin_all(ids(0))
    room.residency.unpin_all(ids(0), done=False)
    assert room.residency.base(0) == room.asked.places[0]


def test_a_full_arena_blocks_and_throws_nothing_out_by_itself(room):
    room = room(1)
    room.begin(b0=2, b1=1)
    room.want(0)
    room.arrive(0)
    room.want(1)
    assert room.residency.blocked
    assert room.asked.blocks == [0]
    assert room.residency.base(0) is not None


def test_make_room_throws_out_one_that_can_come_again_and_counts_it(room):
    room = room(1)
    room.begin(b0=2, b1=1)
    room.want(0)
    room.arrive(0)
    room.want(1)
    assert room.residency.make_room()
    room.residency.pump()
    assert room.asked.blocks == [0, 1]
    assert room.residency.rereads == 1
    room.arrive(1)
    room.want(0)
    room.residency.make_room()
    room.residency.pump()
    assert room.asked.blocks == [0, 1, 0]


def test_make_room_spares_what_a_worker_looks_at(room):
    room = room(2)
    room.begin(b0=2, b1=2, b2=1)
    room.want(0, 1)
    room.arrive(0, 1)
    room.residency.pin_all(ids(0))
    room.want(2)
    assert room.residency.make_room()
    assert room.residency.base(0) is not None
    assert room.residency.base(1) is None


def test_nothing_wanted_needs_no_room(room):
    room = room(1)
    room.begin(b0=1)
    room.want(0)
    room.arrive(0)
    assert not room.residency.make_room()
    assert room.residency.base(0) is not None


def test_a_block_larger_than_the_arena_is_refused_with_both_sizes(room):
    room = room(2)
    room.supply.block_size = 3 * PAGE
    room.begin(b0=1)
    room.want(0)
    with pytest.raises(SettingError, match=rf"{3 * PAGE} bytes does not fit into an arena of {2 * PAGE}"):
        room.residency.make_room()


def test_a_new_epoch_frees_what_nobody_looks_at_and_keeps_the_rest(room):
    room = room(4)
    room.begin(b0=1, b1=1, b2=1)
    room.want(0, 1, 2)
    room.arrive(0, 1)
    room.residency.pin_all(ids(0))
    room.begin(b5=1)
    assert room.residency.base(0) is not None
    assert room.residency.base(1) is None
    room.residency.unpin_all(ids(0), done=False)
    assert room.residency.base(0) is None
    assert room.arrive(2) == [False], "asked for by the epoch before"
    assert room.arena.used == 0


def test_a_new_epoch_uses_what_is_still_here_or_on_its_way(room):
    room = room(4)
    room.begin(b0=1, b1=1)
    room.want(0, 1)
    room.arrive(0)
    room.residency.pin_all(ids(0))
    room.begin(b0=1, b1=1)
    room.want(0, 1)
    assert room.asked.blocks == [0, 1]
    assert room.arrive(1) == [True]
    room.residency.pin_all(ids(0))
    room.residency.unpin_all(ids(0), done=True)
    assert room.residency.base(0) is not None, "the old epoch's worker still looks at it"
    room.residency.unpin_all(ids(0), done=False)
    assert room.residency.base(0) is None


def test_a_new_epoch_forgets_what_was_wanted(room):
    room = room(1)
    room.begin(b0=1, b1=1, b2=1)
    room.want(0, 1, 2)
    room.begin(b3=1)
    assert room.residency.backlog == 0
    assert not room.residency.blocked
    room.arrive(0)
    room.want(3)
    assert room.asked.blocks == [0, 3]
