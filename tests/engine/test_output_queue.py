"""Between the conductor and the training loop."""

import threading
import time

import numpy as np
import pytest

from penstock.core.contracts import BatchRequest
from penstock.engine.batch import Batch
from penstock.engine.output_queue import UNDER_WAY, OutputQueue
from penstock.errors import PenstockError


def batch(number, slab=0):
    return Batch(BatchRequest(0, np.arange(2), 0, number=number), np.zeros(2, np.int64), slab)


def test_batches_are_taken_by_number_in_whatever_order_they_came():
    shelf = OutputQueue(3)
    first, second = batch(0, slab=1), batch(1, slab=2)
    shelf.put(second)
    shelf.put(first)
    assert len(shelf) == 2
    assert [shelf.take(0), shelf.take(1)] == [first, second]
    assert len(shelf) == 0


def test_a_complete_batch_of_a_closed_engine_is_not_handed_out():
    shelf = OutputQueue(3)
    shelf.put(batch(0))
    shelf.close()
    with pytest.raises(PenstockError, match="has been closed"):
        shelf.take(0)


def test_what_is_complete_is_handed_out_before_a_failure_is_heard():
    shelf = OutputQueue(3)
    shelf.put(batch(0))
    shelf.fail(ValueError("broken"))
    assert shelf.take(0).request.number == 0
    with pytest.raises(ValueError, match="broken"):
        shelf.take(1)


def test_who_waits_for_a_batch_of_an_epoch_given_up_is_told():
    shelf = OutputQueue(3)
    left = batch(0)
    shelf.put(left)
    assert shelf.clear(first_number=5) == [left]
    with pytest.raises(PenstockError, match="another pass has begun"):
        shelf.take(0)


def test_waiting_is_counted_and_not_waiting_is_not():
    shelf = OutputQueue(3)
    shelf.put(batch(10))
    shelf.take(10)
    assert shelf.waited_s(now=100.0) == 0.0
    threading.Timer(0.02, shelf.put, [batch(11)]).start()
    shelf.take(11)
    assert shelf.waited_s(now=100.0) > 0.0


def test_the_first_batches_of_an_epoch_are_waited_for_whatever_we_do_and_do_not_count():
    shelf = OutputQueue(30)
    for first in (0, 9):
        shelf.clear(first_number=first)
        for number in range(first, first + UNDER_WAY):
            threading.Timer(0.01, shelf.put, [batch(number)]).start()
            shelf.take(number)
    assert shelf.waited_s(now=100.0) == 0.0


def test_what_is_ready_lasts_as_long_as_the_loop_takes_for_so_many(monkeypatch):
    shelf = OutputQueue(9)
    now = iter([0.0, *(10 + 0.1 * step for step in range(40)), 1000.0, 1000.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for number in range(41):
        shelf.put(batch(number))
        shelf.take(number)
    assert shelf.lasts_s() == 0.0
    shelf.put(batch(41))
    shelf.put(batch(42))
    assert 2 * 0.09 < shelf.lasts_s() < 2 * 0.12
    shelf.take(41)  # after an evaluation, which is no pace
    assert shelf.lasts_s() < 0.13
