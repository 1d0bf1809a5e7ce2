"""Which batch is waited for, which one is on its way already, and in whose turn an error is raised."""

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.contracts import BatchRequest
from penstock.data.device.prefetch import DevicePrefetch
from penstock.data.device.transfer import NO_LOOKAHEAD, TransferLookahead
from penstock.data.order.batch_lookahead import BatchLookahead
from penstock.errors import DecodeError

ONE = TransferLookahead(1, 1)


class Desk:
    """Stands for engine and delivery, and writes down what was done in which order."""

    def __init__(self, batches, *, complete=(), bad=(), lead=ONE):
        self.done = []
        self.lookahead = lead
        self._bad = bad
        batch_requests = iter([BatchRequest(0, np.arange(4), 4 * number + 4) for number in range(batches)])
        ahead = BatchLookahead(batch_requests, iter(range(batches)))
        ahead.start(4, 3)
        self.coming = DevicePrefetch(ahead, self, self.take, complete.__contains__)

    def take(self, number):
        self.done.append(f"take {number}")
        return SimpleNamespace(number=number)

    def batch_requested(self):
        pass

    def reclaim_slabs(self):
        self.done.append("make room")

    def send(self, batch):
        if batch.number in self._bad:
            raise DecodeError(f"batch {batch.number}", stage="decode")
        self.done.append(f"send {batch.number}")
        return batch.number

    def deliver(self, prepared):
        self.done.append(f"hand over {prepared}")
        return prepared

    def all(self):
        handed = []
        while (request := self.coming.wait()) is not None:
            handed.append((request.end, self.coming.deliver()))
        return handed


def test_batches_come_in_order_with_their_portions():
    assert Desk(3, complete={1, 2}).all() == [(4, 0), (8, 1), (12, 2)]
    assert Desk(3).all() == [(4, 0), (8, 1), (12, 2)]
    assert Desk(0).all() == []


def test_a_complete_batch_sets_off_before_the_one_ahead_of_it_is_handed_over():
    desk = Desk(3, complete={1, 2})
    desk.coming.wait()
    desk.coming.deliver()
    assert desk.done == ["make room", "take 0", "send 0", "make room", "take 1", "send 1", "hand over 0"]


def test_small_ones_set_off_in_pairs_and_the_host_has_nothing_to_do_in_between():
    desk = Desk(5, complete={1, 2, 3, 4}, lead=TransferLookahead(1, 2))
    ends = []
    for _ in range(3):
        ends.append(desk.coming.wait().end)
        desk.done.append(f"handed over {desk.coming.deliver()}")
    sent = [done for done in desk.done if done.startswith(("send", "handed over"))]
    assert sent == ["send 0", "send 1", "send 2", "handed over 0", "handed over 1", "send 3", "send 4", "handed over 2"]
    assert ends == [4, 8, 12]
    assert Desk(5, complete={1, 3}, lead=TransferLookahead(1, 2)).all() == [
        (4 * number + 4, number) for number in range(5)
    ]


def test_where_two_are_to_be_on_their_way_one_sets_off_for_each_that_is_handed_over():
    desk = Desk(5, complete={1, 2, 3, 4}, lead=TransferLookahead(2, 2))
    for _ in range(3):
        desk.coming.wait()
        desk.done.append(f"handed over {desk.coming.deliver()}")
    sent = [done for done in desk.done if done.startswith(("send", "handed over"))]
    assert sent == ["send 0", "send 1", "send 2", "handed over 0", "send 3", "handed over 1", "send 4", "handed over 2"]


def test_nothing_sets_off_behind_one_that_failed():
    desk = Desk(4, complete={1, 2, 3}, bad={1}, lead=TransferLookahead(1, 2))
    desk.coming.wait()
    assert desk.coming.deliver() == 0
    assert "take 2" not in desk.done
    desk.coming.wait()
    with pytest.raises(DecodeError, match="batch 1"):
        desk.coming.deliver()
    assert not desk.coming.exhausted


def test_nothing_sets_off_behind_one_that_failed_when_the_good_one_before_it_is_handed_over():
    desk = Desk(5, complete={1, 2, 3, 4}, bad={2}, lead=TransferLookahead(2, 2))
    for number in range(2):
        desk.coming.wait()
        assert desk.coming.deliver() == number
    assert "take 3" not in desk.done
    desk.coming.wait()
    with pytest.raises(DecodeError, match="batch 2"):
        desk.coming.deliver()


def test_one_that_is_not_complete_is_not_waited_for_before_its_turn():
    desk = Desk(3)
    desk.coming.wait()
    desk.coming.deliver()
    assert desk.done == ["make room", "take 0", "send 0", "hand over 0"]


def test_nothing_sets_off_early_where_there_is_no_way_to_go():
    desk = Desk(3, complete={0, 1, 2}, lead=NO_LOOKAHEAD)
    desk.coming.wait()
    desk.coming.deliver()
    assert "take 1" not in desk.done


def test_an_error_is_raised_in_the_turn_of_its_own_batch():
    desk = Desk(3, complete={1, 2}, bad={1})
    desk.coming.wait()
    assert desk.coming.deliver() == 0
    assert desk.coming.wait().end == 8
    with pytest.raises(DecodeError, match="batch 1"):
        desk.coming.deliver()


def test_it_is_over_when_nothing_follows_neither_waiting_nor_on_its_way():
    desk = Desk(2, complete={1})
    overs = []
    while desk.coming.wait() is not None:
        desk.coming.deliver()
        overs.append(desk.coming.exhausted)
    assert overs == [False, True]
