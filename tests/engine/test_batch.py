"""How many batches of an epoch are planned ahead, and in which order their blocks are requested."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import BatchRequest
from penstock.engine.batch import MAX_PLANNED, PLANNED_AT_ONCE, RequestLookahead


class RecordedCache:
    """A block cache that records the requested blocks, and is full when the test sets that."""

    def __init__(self):
        self.requested = []
        self.blocked = False

    def request(self, block):
        self.requested.append(block)

    def start_reads(self):
        pass


@pytest.fixture
def begin():
    def begin(batches, *, one_worker=False, size=8):
        cache = RecordedCache()
        lookahead = RequestLookahead(Numbers(10_000), cache)
        lookahead.begin(
            BatchRequest(0, np.arange(number * size, (number + 1) * size), 0, number=number, one_worker=one_worker)
            for number in range(batches)
        )
        return SimpleNamespace(lookahead=lookahead, cache=cache)

    return begin


def test_a_few_batches_are_planned_at_a_time_up_to_the_maximum(begin):
    lookahead = begin(200).lookahead
    lengths = []
    while lookahead.can_plan(MAX_PLANNED):
        lookahead.plan(MAX_PLANNED)
        lengths.append(len(lookahead))
    assert lengths == list(range(PLANNED_AT_ONCE, MAX_PLANNED + 1, PLANNED_AT_ONCE))
    assert lookahead.is_full


def test_no_batch_is_planned_until_several_may_be(begin):
    lookahead = begin(200).lookahead
    while lookahead.can_plan(MAX_PLANNED):
        lookahead.plan(MAX_PLANNED)
    for popped in range(1, PLANNED_AT_ONCE + 1):
        lookahead.pop()
        lookahead.plan(MAX_PLANNED)
        assert len(lookahead) == (MAX_PLANNED if popped == PLANNED_AT_ONCE else MAX_PLANNED - popped)


def test_requests_come_out_in_order_and_their_blocks_are_requested_by_position(begin):
    made = begin(2, size=20)
    made.lookahead.plan(MAX_PLANNED)
    assert made.cache.requested == [0, 1, 2, 2, 3, 4]
    (first, blocks), (second, _) = made.lookahead.pop(), made.lookahead.pop()
    assert (first.number, second.number) == (0, 1)
    assert blocks.tolist() == [0] * 8 + [1] * 8 + [2] * 4


def test_a_limit_and_a_full_arena_end_the_planning(begin):
    made = begin(20)
    made.lookahead.plan(1)
    assert len(made.lookahead) == 1
    assert not made.lookahead.can_plan(1)
    made.cache.blocked = True
    made.lookahead.plan(MAX_PLANNED)
    assert len(made.lookahead) == 1
    assert not made.lookahead.can_plan(MAX_PLANNED)


def test_it_is_exhausted_when_the_last_request_has_been_removed(begin):
    lookahead = begin(1, one_worker=True).lookahead
    assert not lookahead.exhausted
    lookahead.plan(MAX_PLANNED)
    assert lookahead.one_worker
    assert not lookahead.exhausted
    lookahead.pop()
    assert lookahead.exhausted
    assert not lookahead.one_worker


def test_another_epoch_drops_the_planned_requests(begin):
    lookahead = begin(20).lookahead
    lookahead.plan(MAX_PLANNED)
    lookahead.begin(None)
    assert len(lookahead) == 0
    assert lookahead.exhausted
