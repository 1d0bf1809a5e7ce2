"""Ranks beside each other: who was last, and what that cost."""

import pytest
from tests.support.made_ranks import STEPS, flat, of_ranks

from penstock.diagnose.ranks.waits import ENOUGH_STEPS, rank_waits


def test_in_every_step_the_longest_wait_counts():
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
    held = waits.each()[2]
    assert (held.rank, held.last) == (2, 1.0)
    assert held.alone_s == pytest.approx(0.028 * (STEPS - 1))
    assert [rank.alone_s for rank in waits.each() if rank.rank != 2] == [0.0, 0.0, 0.0]


def test_ranks_that_wait_alike_hold_nobody_back():
    waits = rank_waits(of_ranks(flat(0.03), flat(0.03), flat(0.03)))
    assert waits.holder is None
    assert waits.exposed_s == pytest.approx(0.03 * (STEPS - 1))


def test_where_nobody_waits_nobody_is_last():
    waits = rank_waits(of_ranks(flat(0.0), flat(0.0)))
    assert (waits.holder, waits.exposed_s) == (None, 0.0)
    assert [rank.last for rank in waits.each()] == [0.0, 0.0]


def test_a_little_more_waiting_is_not_holding_back():
    assert rank_waits(of_ranks(flat(0.001), flat(0.0))).holder is None


def test_only_steps_that_all_ranks_had_are_compared():
    waits = rank_waits(of_ranks(flat(0.01), flat(0.01)[:30]))
    assert waits.steps == 29


@pytest.mark.parametrize("count", [1, ENOUGH_STEPS])
def test_too_few_steps_in_common_say_nothing(count):
    assert rank_waits(of_ranks(flat(0.01), flat(0.01)[:count])) is None


def test_a_rank_alone_has_nobody_to_hold_back():
    assert rank_waits(of_ranks(flat(0.01))) is None
