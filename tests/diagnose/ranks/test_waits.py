"""Tests of the waits of ranks: which rank is the last, and the cost of that."""

import pytest
from tests.support.rank_wait_recordings import STEPS, flat, of_ranks

from penstock.diagnose.ranks.waits import rank_waits
from penstock.diagnose.verdict import STEPS_MIN


def test_the_longest_wait_of_every_step_counts():
    first, second = flat(0.01), flat(0.01)
    first[::2], second[1::2] = 0.03, 0.03
    waits = rank_waits(of_ranks(first, second))
    assert waits.steps == STEPS - 1
    assert waits.exposed_s == pytest.approx(0.03 * (STEPS - 1))
    assert waits.startups_s == pytest.approx(0.03)
    assert [rank.waited_s for rank in waits.each()] == pytest.approx([0.01 * 25 + 0.03 * 24, 0.01 * 24 + 0.03 * 25])
    assert waits.holder is None


def test_the_rank_that_is_last_in_most_steps_holds_the_others_back():
    waits = rank_waits(of_ranks(flat(0.001), flat(0.0), flat(0.03), flat(0.002)))
    assert waits.holder == 2
    holder = waits.each()[2]
    assert (holder.rank, holder.last) == (2, 1.0)
    assert holder.alone_s == pytest.approx(0.028 * (STEPS - 1))
    assert [rank.alone_s for rank in waits.each() if rank.rank != 2] == [0.0, 0.0, 0.0]


def test_ranks_that_wait_equally_do_not_hold_each_other_back():
    waits = rank_waits(of_ranks(flat(0.03), flat(0.03), flat(0.03)))
    assert waits.holder is None
    assert waits.exposed_s == pytest.approx(0.03 * (STEPS - 1))


def test_without_waits_no_rank_is_the_last():
    waits = rank_waits(of_ranks(flat(0.0), flat(0.0)))
    assert (waits.holder, waits.exposed_s) == (None, 0.0)
    assert [rank.last for rank in waits.each()] == [0.0, 0.0]


def test_a_slightly_longer_wait_does_not_hold_the_others_back():
    assert rank_waits(of_ranks(flat(0.001), flat(0.0))).holder is None


def test_only_steps_that_all_ranks_had_are_compared():
    waits = rank_waits(of_ranks(flat(0.01), flat(0.01)[:30]))
    assert waits.steps == 29


@pytest.mark.parametrize("count", [1, STEPS_MIN])
def test_too_few_common_steps_give_no_result(count):
    assert rank_waits(of_ranks(flat(0.01), flat(0.01)[:count])) is None


def test_a_single_rank_gives_no_result():
    assert rank_waits(of_ranks(flat(0.01))) is None
