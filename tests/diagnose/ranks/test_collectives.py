"""Ranks that meet in `backward`: who comes last."""

import pytest
from tests.support.made_collectives import STEPS, Rank, trained

from penstock.diagnose.ranks.collectives import REST, WAITING, collective_waits


def test_the_rank_that_stands_there_shortest_is_the_slow_one():
    found = collective_waits(trained(Rank(), Rank(), Rank(forward_s=0.030), Rank()))
    assert found.slow == 2
    assert found.differs(2) == "forward"
    assert (found.own_s(2), found.usual_s(2)) == pytest.approx((0.033, 0.013))
    assert (found.met_s[2], found.usual_met_s(2)) == pytest.approx((0.020, 0.040))
    assert found.alone_s == pytest.approx([0, 0, 0.020 * (STEPS - 1), 0])
    assert found.last(2).all()


@pytest.mark.parametrize(("more", "part"), [({"optimizer_s": 0.02}, "optimizer"), ({"rest_s": 0.02}, REST)])
def test_what_comes_after_the_meeting_counts_as_what_comes_before_it(more, part):
    found = collective_waits(trained(Rank(**more), Rank()))
    assert (found.slow, found.differs(0)) == (0, part)


def test_a_rank_that_is_slow_all_through_is_named_by_what_is_seen_outside_of_backward():
    found = collective_waits(trained(Rank(), Rank(forward_s=0.015, backward_s=0.030, optimizer_s=0.003)))
    assert found.slow == 1
    assert found.excess_s(1) == pytest.approx(0.006)


def pausing(every):
    return Rank(forward_s=lambda number: 0.5 if number % every == every - 1 else 0.01)


def test_pauses_of_one_rank_are_waited_for_by_all():
    assert collective_waits(trained(pausing(every=5), Rank())).slow == 0


def test_a_pause_or_two_may_be_chance():
    found = collective_waits(trained(pausing(every=25), Rank()))
    assert found.holder == 0
    assert found.slow is None


def test_ranks_that_wait_for_one_anothers_data_have_steps_alike():
    found = collective_waits(trained(Rank(), Rank(wait_s=0.03), Rank()))
    assert found.holder == 1
    assert found.differs(1) == WAITING
    assert found.slow is None


def test_ranks_alike_hold_nobody_back():
    found = collective_waits(trained(Rank(), Rank(), Rank()))
    assert found.holder is None
    assert found.slow is None


def test_ranks_that_are_slow_in_turns_hold_nobody_back():
    def slow_at(when):
        return lambda number: 0.030 if number % 2 == when else 0.010

    found = collective_waits(trained(Rank(forward_s=slow_at(0)), Rank(forward_s=slow_at(1))))
    assert found.slow is None


def test_ranks_that_do_not_train_together_hold_nobody_back():
    """A quick one has a short `backward`, too: but nothing that it takes longer for."""
    found = collective_waits(trained(Rank(), Rank(forward_s=0.005, backward_s=0.010), together=False))
    assert found.holder == 1
    assert found.slow is None


def test_on_a_device_its_own_clock_counts():
    found = collective_waits(trained(Rank(forward_s=0.025), Rank(), on_device=True))
    assert found.on_device
    assert (found.slow, found.differs(0)) == (0, "forward")
    assert collective_waits(trained(Rank(), Rank(), on_device=True)).slow is None


def test_steps_without_phases_are_not_looked_at():
    recordings = trained(Rank(), Rank(forward_s=0.030), profiled=lambda number: number % 2 == 0)
    found = collective_waits(recordings)
    assert found.steps == STEPS // 2 - 1
    assert found.slow == 1
    assert collective_waits(trained(Rank(), Rank(), profiled=lambda number: number < 10)) is None


def test_a_rank_alone_meets_nobody():
    assert collective_waits(trained(Rank())) is None
