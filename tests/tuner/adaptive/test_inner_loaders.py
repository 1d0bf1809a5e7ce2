"""The order of an epoch, divided between inner loaders."""

import pytest

from penstock.tuner.adaptive.inner_loaders import IndexShare, OrderCursor


class Eager:
    """A sampler that fixes its order when iter() is called, not when the first index is taken."""

    def __init__(self, count):
        self.count = count
        self.requests = 0

    def __iter__(self):
        self.requests += 1
        return iter(range(self.count))


def rest_of(share):
    """Return the rest without iter(), which torch does not call in the middle of an epoch."""
    found = []
    while (taken := next(share, None)) is not None:
        found.append(taken)
    return found


def test_two_shares_together_have_the_whole_order():
    cursor = OrderCursor(range(6))
    first = IndexShare(cursor)
    taken = [next(iter(first)), next(first)]
    first.close()
    with pytest.raises(StopIteration):
        next(first)
    second = IndexShare(cursor)
    assert taken + list(second) == list(range(6))


def test_only_the_first_share_requests_the_order_as_often_as_torch_does():
    sampler = Eager(4)
    cursor = OrderCursor(sampler)
    first = IndexShare(cursor)
    iter(first)
    iter(first)
    assert (sampler.requests, next(first)) == (2, 0)
    assert next(iter(IndexShare(cursor))) == 1
    assert sampler.requests == 2


def test_indices_of_a_loader_that_did_not_start_come_next():
    cursor = OrderCursor(range(6))
    first = IndexShare(cursor)
    assert next(iter(first)) == 0
    first.commit()
    first.close()
    second = IndexShare(cursor)
    assert [next(iter(second)), next(second)] == [1, 2]
    second.roll_back()
    first.reopen()
    assert rest_of(first) == [1, 2, 3, 4, 5]


def test_committed_indices_are_not_given_back():
    share = IndexShare(OrderCursor(range(3)))
    next(iter(share))
    share.commit()
    share.roll_back()
    assert rest_of(share) == [1, 2]


def test_share_can_be_used_for_the_next_epoch():
    share = IndexShare(OrderCursor(range(3)))
    assert list(share) == [0, 1, 2]
    share.close()
    share.open(OrderCursor(range(2)))
    assert list(share) == [0, 1]
