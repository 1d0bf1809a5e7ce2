"""Complete batches between the scheduler and the training loop."""

import threading
import time

import numpy as np
import pytest

from penstock.core.contracts import BatchRequest
from penstock.engine.batch import Batch
from penstock.engine.output_queue import WARMUP_BATCHES, OutputQueue
from penstock.errors import PenstockError


def batch(number, slab=0):
    return Batch(BatchRequest(0, np.arange(2), 0, number=number), np.zeros(2, np.int64), slab)


def test_batches_are_taken_by_number_in_whatever_order_they_were_put():
    output_queue = OutputQueue(3)
    first, second = batch(0, slab=1), batch(1, slab=2)
    output_queue.put(second)
    output_queue.put(first)
    assert len(output_queue) == 2
    assert [output_queue.take(0), output_queue.take(1)] == [first, second]
    assert len(output_queue) == 0


def test_a_complete_batch_is_not_delivered_after_closing():
    output_queue = OutputQueue(3)
    output_queue.put(batch(0))
    output_queue.close()
    with pytest.raises(PenstockError, match="has been closed"):
        output_queue.take(0)


def test_a_complete_batch_is_delivered_before_a_failure_is_raised():
    output_queue = OutputQueue(3)
    output_queue.put(batch(0))
    output_queue.fail(ValueError("broken"))
    assert output_queue.take(0).request.number == 0
    with pytest.raises(ValueError, match="broken"):
        output_queue.take(1)


def test_waiting_for_a_batch_of_an_abandoned_epoch_is_an_error():
    output_queue = OutputQueue(3)
    not_taken = batch(0)
    output_queue.put(not_taken)
    assert output_queue.clear(first_number=5) == [not_taken]
    with pytest.raises(PenstockError, match="another iteration has begun"):
        output_queue.take(0)


def test_only_the_time_of_waiting_is_counted():
    output_queue = OutputQueue(3)
    output_queue.put(batch(10))
    output_queue.take(10)
    assert output_queue.waited_s(now=100.0) == 0.0
    threading.Timer(0.02, output_queue.put, [batch(11)]).start()
    output_queue.take(11)
    assert output_queue.waited_s(now=100.0) > 0.0


def test_waiting_for_the_first_batches_of_an_epoch_does_not_count():
    output_queue = OutputQueue(30)
    for first in (0, 9):
        output_queue.clear(first_number=first)
        for number in range(first, first + WARMUP_BATCHES):
            threading.Timer(0.01, output_queue.put, [batch(number)]).start()
            output_queue.take(number)
    assert output_queue.waited_s(now=100.0) == 0.0


def test_complete_batches_last_as_long_as_the_training_loop_takes_for_so_many(monkeypatch):
    output_queue = OutputQueue(9)
    now = iter([0.0, *(10 + 0.1 * step for step in range(40)), 1000.0, 1000.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for number in range(41):
        output_queue.put(batch(number))
        output_queue.take(number)
    assert output_queue.buffered_s() == 0.0
    output_queue.put(batch(41))
    output_queue.put(batch(42))
    assert 2 * 0.09 < output_queue.buffered_s() < 2 * 0.12
    output_queue.take(41)  # after a long evaluation, which is not part of the period
    assert output_queue.buffered_s() < 0.13
