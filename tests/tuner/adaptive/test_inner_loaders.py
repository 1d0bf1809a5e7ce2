import pytest

from penstock.tuner.adaptive.inner_loaders import IndexShare, OrderCursor


class Eager:
    """A sampler that throws its dice when iter() is called, not when the first index is drawn."""

    def __init__(self, count):
        self.count = count
        self.asked = 0

    def __iter__(self):
        self.asked += 1
        return iter(range(self.count))


def rest_of(share):
    """Without iter(): torch does not call it in the middle of an epoch."""
    found = []
    while (taken := next(share, None)) is not None:
        found.append(taken)
    return found


def test_two_shares_have_the_whole_order_between_them():
    cursor = OrderCursor(range(6))
    first = IndexShare(cursor)
    taken = [next(iter(first)), next(first)]
    first.close()
    with pytest.raises(StopIteration):
        next(first)
    second = IndexShare(cursor)
    assert taken + list(second) == list(range(6))


def test_the_first_share_asks_the_sampler_as_often_as_torch_asks_it_and_others_never():
    sampler = Eager(4)
    cursor = OrderCursor(sampler)
    first = IndexShare(cursor)
    iter(first)
    iter(first)
    assert (sampler.asked, next(first)) == (2, 0)
    assert next(iter(IndexShare(cursor))) == 1
    assert sampler.asked == 2


def test_what_a_loader_took_that_never_started_comes_next():
    cursor = OrderCursor(range(6))
    first = IndexShare(cursor)
    assert next(iter(first)) == 0
    first.settle()
    first.close()
    second = IndexShare(cursor)
    assert [next(iter(second)), next(second)] == [1, 2]
    second.undo()
    first.reopen()
    assert rest_of(first) == [1, 2, 3, 4, 5]


def test_a_loader_that_has_started_keeps_what_it_took():
    share = IndexShare(OrderCursor(range(3)))
    next(iter(share))
    share.settle()
    share.undo()
    assert rest_of(share) == [1, 2]


def test_a_share_is_used_again_for_the_next_epoch():
    share = IndexShare(OrderCursor(range(3)))
    assert list(share) == [0, 1, 2]
    share.close()
    share.open(OrderCursor(range(2)))
    assert list(share) == [0, 1]
