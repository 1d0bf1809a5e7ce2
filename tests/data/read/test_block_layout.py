"""Rows by the group, in room for some of them: whoever asks gets the right ones, however little room there is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.read.block_layout import RowCache

WIDTH = 3


def row_of(sample):
    return [0, sample, sample * 7]


class Made:
    """Makes rows, and counts how often."""

    def __init__(self, firsts):
        self.firsts = firsts
        self.groups = []

    def __call__(self, group):
        self.groups.append(group)
        return np.array([row_of(sample) for sample in range(self.firsts[group], self.firsts[group + 1])])


def kept(sizes, most):
    made = Made(np.cumsum([0, *sizes]))
    return RowCache(made.firsts, WIDTH, made, most), made


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 40))
def test_every_sample_has_its_own_row_however_few_are_kept(data, sizes, most):
    rows, _ = kept(sizes, most)
    for _ in range(4):
        samples = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20))
        taken = rows.take(np.array(samples, np.int64))
        assert taken.tolist() == [row_of(sample) for sample in samples]


def test_a_group_is_made_once_while_there_is_room():
    rows, made = kept([4, 4, 4], 12)
    for _ in range(3):
        rows.take(np.array([0, 5, 9, 3, 11]))
    assert made.groups == [0, 1, 2]


def test_the_group_that_was_made_first_makes_room():
    rows, made = kept([4, 4, 4], 8)
    for samples in ([0, 4], [8], [5], [1]):
        rows.take(np.array(samples))
    assert made.groups == [0, 1, 2, 0]


def test_a_group_larger_than_the_room_is_kept_all_the_same():
    rows, made = kept([9], 2)
    assert rows.take(np.array([8, 0])).tolist() == [row_of(8), row_of(0)]
    rows.take(np.array([4]))
    assert made.groups == [0]


def test_what_was_taken_stays_when_its_group_is_gone():
    rows, _ = kept([2, 2], 2)
    taken = rows.take(np.array([0]))
    rows.take(np.array([2]))
    assert taken.tolist() == [row_of(0)]


def test_of_nothing_there_is_nothing():
    rows, made = kept([], 4)
    assert rows.take(np.zeros(0, np.int64)).shape == (0, WIDTH)
    assert made.groups == []
