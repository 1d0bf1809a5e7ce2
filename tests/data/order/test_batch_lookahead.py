"""How many batches are drawn ahead, and which of them the engine and the training loop get."""

import itertools

import numpy as np
import pytest

from penstock.core.contracts import BatchRequest
from penstock.data.order.batch_lookahead import DRAW_CHUNK, DRAWN_FIRST, BatchLookahead
from penstock.errors import PenstockError


def requests_of(sizes):
    return (BatchRequest(0, np.zeros(size, np.int64), 0) for size in sizes)


def test_an_endless_sampler_is_drawn_from_no_further_than_needed():
    drawn = []

    def endless():
        for number in itertools.count():
            drawn.append(number)
            yield BatchRequest(0, np.array([number]), number + 1)

    lookahead = BatchLookahead(endless(), itertools.count())
    assert len(drawn) == DRAWN_FIRST
    lookahead.start(slab_samples=1, min_ahead=100)
    assert len(drawn) == 100
    for number in range(50):
        request = lookahead.next_batch()
        assert (request.number, request.samples.tolist()) == (number, [number])
        assert 101 + number <= len(drawn) < 101 + number + DRAW_CHUNK
    assert not lookahead.exhausted


def test_the_engine_gets_the_batches_that_will_be_delivered_and_then_the_end():
    lookahead = BatchLookahead(requests_of([2, 2, 1]), itertools.count(7))
    lookahead.start(slab_samples=2, min_ahead=10)
    assert [request.number for request in lookahead] == [7, 8, 9]
    assert [lookahead.next_batch().number for _ in range(3)] == [7, 8, 9]
    assert lookahead.exhausted
    assert lookahead.next_batch() is None


def test_a_batch_larger_than_a_slab_ends_the_iteration_until_slabs_are_larger():
    lookahead = BatchLookahead(requests_of([2, 5, 1]), itertools.count())
    assert lookahead.largest_batch == 5
    lookahead.start(slab_samples=2, min_ahead=10)
    assert [request.number for request in lookahead] == [0]
    assert lookahead.next_batch().number == 0
    assert lookahead.next_batch() is None
    assert not lookahead.exhausted
    lookahead.start(slab_samples=lookahead.largest_batch, min_ahead=10)
    assert [len(request.samples) for request in lookahead] == [5, 1]


def test_an_engine_that_asks_for_too_many_batches_gets_an_error_and_not_an_early_end():
    lookahead = BatchLookahead(requests_of([1, 1, 1]), itertools.count())
    lookahead.start(slab_samples=1, min_ahead=2)
    assert [next(lookahead).number, next(lookahead).number] == [0, 1]
    with pytest.raises(PenstockError, match="not drawn yet"):
        next(lookahead)
