"""Which batches are sent before their turn, and when an error is raised."""

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.contracts import BatchRequest
from penstock.data.device.prefetch import DevicePrefetch
from penstock.data.device.transfer import NO_LOOKAHEAD, TransferLookahead
from penstock.data.order.batch_lookahead import BatchLookahead
from penstock.errors import DecodeError

ONE_AHEAD = TransferLookahead(1, 1)


class Pipeline:
    """A prefetch with this object as engine and delivery; it records the calls in order."""

    def __init__(self, batches, *, complete=(), bad=(), lookahead=ONE_AHEAD):
        self.calls = []
        self.lookahead = lookahead
        self._bad = bad
        requests = iter([BatchRequest(0, np.arange(4), 4 * number + 4) for number in range(batches)])
        batches = BatchLookahead(requests, iter(range(batches)))
        batches.start(4, 3)
        self.prefetch = DevicePrefetch(batches, self, self.take, complete.__contains__)

    def take(self, number):
        self.calls.append(f"take {number}")
        return SimpleNamespace(number=number)

    def batch_requested(self):
        pass

    def reclaim_slabs(self):
        self.calls.append("reclaim")

    def send(self, batch):
        if batch.number in self._bad:
            raise DecodeError(f"batch {batch.number}", stage="decode")
        self.calls.append(f"send {batch.number}")
        return batch.number

    def deliver(self, sent):
        self.calls.append(f"deliver {sent}")
        return sent

    def deliver_all(self):
        delivered = []
        while (request := self.prefetch.wait()) is not None:
            delivered.append((request.end, self.prefetch.deliver()))
        return delivered


def test_batches_are_delivered_in_order_with_their_requests():
    assert Pipeline(3, complete={1, 2}).deliver_all() == [(4, 0), (8, 1), (12, 2)]
    assert Pipeline(3).deliver_all() == [(4, 0), (8, 1), (12, 2)]
    assert Pipeline(0).deliver_all() == []


def test_a_complete_batch_is_sent_before_the_one_ahead_of_it_is_delivered():
    pipeline = Pipeline(3, complete={1, 2})
    pipeline.prefetch.wait()
    pipeline.prefetch.deliver()
    assert pipeline.calls == ["reclaim", "take 0", "send 0", "reclaim", "take 1", "send 1", "deliver 0"]


def test_with_a_lookahead_of_one_to_two_batches_are_sent_in_pairs():
    pipeline = Pipeline(5, complete={1, 2, 3, 4}, lookahead=TransferLookahead(1, 2))
    ends = []
    for _ in range(3):
        ends.append(pipeline.prefetch.wait().end)
        pipeline.calls.append(f"delivered {pipeline.prefetch.deliver()}")
    sent = [call for call in pipeline.calls if call.startswith(("send", "delivered"))]
    assert sent == ["send 0", "send 1", "send 2", "delivered 0", "delivered 1", "send 3", "send 4", "delivered 2"]
    assert ends == [4, 8, 12]
    assert Pipeline(5, complete={1, 3}, lookahead=TransferLookahead(1, 2)).deliver_all() == [
        (4 * number + 4, number) for number in range(5)
    ]


def test_with_a_lookahead_of_two_one_batch_is_sent_for_each_that_is_delivered():
    pipeline = Pipeline(5, complete={1, 2, 3, 4}, lookahead=TransferLookahead(2, 2))
    for _ in range(3):
        pipeline.prefetch.wait()
        pipeline.calls.append(f"delivered {pipeline.prefetch.deliver()}")
    sent = [call for call in pipeline.calls if call.startswith(("send", "delivered"))]
    assert sent == ["send 0", "send 1", "send 2", "delivered 0", "send 3", "delivered 1", "send 4", "delivered 2"]


def test_no_batch_is_sent_behind_one_that_failed():
    pipeline = Pipeline(4, complete={1, 2, 3}, bad={1}, lookahead=TransferLookahead(1, 2))
    pipeline.prefetch.wait()
    assert pipeline.prefetch.deliver() == 0
    assert "take 2" not in pipeline.calls
    pipeline.prefetch.wait()
    with pytest.raises(DecodeError, match="batch 1"):
        pipeline.prefetch.deliver()
    assert not pipeline.prefetch.exhausted


def test_with_a_lookahead_of_two_no_batch_is_sent_behind_one_that_failed():
    pipeline = Pipeline(5, complete={1, 2, 3, 4}, bad={2}, lookahead=TransferLookahead(2, 2))
    for number in range(2):
        pipeline.prefetch.wait()
        assert pipeline.prefetch.deliver() == number
    assert "take 3" not in pipeline.calls
    pipeline.prefetch.wait()
    with pytest.raises(DecodeError, match="batch 2"):
        pipeline.prefetch.deliver()


def test_an_incomplete_batch_is_not_waited_for_before_its_turn():
    pipeline = Pipeline(3)
    pipeline.prefetch.wait()
    pipeline.prefetch.deliver()
    assert pipeline.calls == ["reclaim", "take 0", "send 0", "deliver 0"]


def test_without_lookahead_no_batch_is_sent_early():
    pipeline = Pipeline(3, complete={0, 1, 2}, lookahead=NO_LOOKAHEAD)
    pipeline.prefetch.wait()
    pipeline.prefetch.deliver()
    assert "take 1" not in pipeline.calls


def test_an_error_is_raised_when_its_own_batch_is_delivered():
    pipeline = Pipeline(3, complete={1, 2}, bad={1})
    pipeline.prefetch.wait()
    assert pipeline.prefetch.deliver() == 0
    assert pipeline.prefetch.wait().end == 8
    with pytest.raises(DecodeError, match="batch 1"):
        pipeline.prefetch.deliver()


def test_it_is_exhausted_when_no_batch_follows_sent_or_not():
    pipeline = Pipeline(2, complete={1})
    exhausted = []
    while pipeline.prefetch.wait() is not None:
        pipeline.prefetch.deliver()
        exhausted.append(pipeline.prefetch.exhausted)
    assert exhausted == [False, True]
