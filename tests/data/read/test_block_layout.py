"""The cache of rows: it returns the right rows however few it can hold."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.read.block_layout import RowCache

WIDTH = 3


def row_of(sample):
    return [0, sample, sample * 7]


class RowMaker:
    """Makes the rows of a group, and records which."""

    def __init__(self, first_samples):
        self.first_samples = first_samples
        self.groups = []

    def __call__(self, group):
        self.groups.append(group)
        return np.array([row_of(sample) for sample in range(self.first_samples[group], self.first_samples[group + 1])])


def cache_of(sizes, max_rows):
    maker = RowMaker(np.cumsum([0, *sizes]))
    return RowCache(maker.first_samples, WIDTH, maker, max_rows), maker


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 40))
def test_every_sample_gets_its_row_however_few_rows_are_kept(data, sizes, max_rows):
    cache, _ = cache_of(sizes, max_rows)
    for _ in range(4):
        samples = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20))
        taken = cache.take(np.array(samples, np.int64))
        assert taken.tolist() == [row_of(sample) for sample in samples]


def test_a_group_is_made_once_while_all_groups_fit():
    cache, maker = cache_of([4, 4, 4], 12)
    for _ in range(3):
        cache.take(np.array([0, 5, 9, 3, 11]))
    assert maker.groups == [0, 1, 2]


def test_the_oldest_group_is_dropped_for_a_new_one():
    cache, maker = cache_of([4, 4, 4], 8)
    for samples in ([0, 4], [8], [5], [1]):
        cache.take(np.array(samples))
    assert maker.groups == [0, 1, 2, 0]


def test_a_group_with_more_rows_than_the_limit_is_kept():
    cache, maker = cache_of([9], 2)
    assert cache.take(np.array([8, 0])).tolist() == [row_of(8), row_of(0)]
    cache.take(np.array([4]))
    assert maker.groups == [0]


def test_rows_that_were_taken_stay_valid_when_their_group_is_dropped():
    cache, _ = cache_of([2, 2], 2)
    taken = cache.take(np.array([0]))
    cache.take(np.array([2]))
    assert taken.tolist() == [row_of(0)]


def test_a_cache_without_samples_is_empty():
    cache, maker = cache_of([], 4)
    assert cache.take(np.zeros(0, np.int64)).shape == (0, WIDTH)
    assert maker.groups == []
