"""Tests of ranks that meet in `backward`: which one is late by its own step, and the sentence about the reason."""

import msgspec
import pytest
from tests.support.rank_step_recordings import STEPS, Rank, trained

from penstock.diagnose.ranks.steps import OUTSIDE, WAITING, collective_waits
from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.ranks.waits import rank_waits
from penstock.diagnose.verdict import diagnose

IDLE = {"cpu": 0.25, "thread_cpu": 0.25}


def test_the_rank_with_the_shortest_time_in_the_collective_is_the_slow_one():
    found = collective_waits(trained(Rank(), Rank(), Rank(forward_s=0.030), Rank()))
    assert found.slow == 2
    assert found.largest_difference(2) == "forward"
    assert (found.own_s(2), found.typical_s(2)) == pytest.approx((0.033, 0.013))
    assert (found.collective_s[2], found.typical_collective_s(2)) == pytest.approx((0.020, 0.040))
    assert found.alone_s == pytest.approx([0, 0, 0.020 * (STEPS - 1), 0])
    assert found.last(2).all()


@pytest.mark.parametrize(("more", "phase"), [({"optimizer_s": 0.02}, "optimizer"), ({"outside_s": 0.02}, OUTSIDE)])
def test_work_after_the_collective_counts_like_work_before_it(more, phase):
    found = collective_waits(trained(Rank(**more), Rank()))
    assert (found.slow, found.largest_difference(0)) == (0, phase)


def test_a_rank_that_is_slow_in_all_phases_is_recognised_by_those_outside_backward():
    found = collective_waits(trained(Rank(), Rank(forward_s=0.015, backward_s=0.030, optimizer_s=0.003)))
    assert found.slow == 1
    assert found.excess_s(1) == pytest.approx(0.006)


def pausing(every):
    return Rank(forward_s=lambda number: 0.5 if number % every == every - 1 else 0.01)


def test_repeated_pauses_of_one_rank_hold_the_others_back():
    assert collective_waits(trained(pausing(every=5), Rank())).slow == 0


def test_one_or_two_pauses_may_be_chance():
    found = collective_waits(trained(pausing(every=25), Rank()))
    assert found.holder == 0
    assert found.slow is None


def test_a_rank_that_is_late_because_of_its_data_has_no_slow_step():
    found = collective_waits(trained(Rank(), Rank(wait_s=0.03), Rank()))
    assert found.holder == 1
    assert found.largest_difference(1) == WAITING
    assert found.slow is None


def test_equal_ranks_do_not_hold_each_other_back():
    found = collective_waits(trained(Rank(), Rank(), Rank()))
    assert found.holder is None
    assert found.slow is None


def test_no_rank_is_slow_if_the_ranks_are_slow_in_turns():
    def slow_at(when):
        return lambda number: 0.030 if number % 2 == when else 0.010

    found = collective_waits(trained(Rank(forward_s=slow_at(0)), Rank(forward_s=slow_at(1))))
    assert found.slow is None


def test_ranks_that_do_not_train_together_do_not_hold_each_other_back():
    """A quick rank has a short `backward` too, but nothing takes it longer than the others."""
    found = collective_waits(trained(Rank(), Rank(forward_s=0.005, backward_s=0.010), together=False))
    assert found.holder == 1
    assert found.slow is None


def test_on_a_device_the_times_are_those_of_its_own_clock():
    found = collective_waits(trained(Rank(forward_s=0.025), Rank(), on_device=True))
    assert found.on_device
    assert (found.slow, found.largest_difference(0)) == (0, "forward")
    assert collective_waits(trained(Rank(), Rank(), on_device=True)).slow is None


def test_steps_without_phases_are_left_out():
    recordings = trained(Rank(), Rank(forward_s=0.030), profiled=lambda number: number % 2 == 0)
    found = collective_waits(recordings)
    assert found.steps == STEPS // 2 - 1
    assert found.slow == 1
    assert collective_waits(trained(Rank(), Rank(), profiled=lambda number: number < 10)) is None


def test_a_single_rank_has_no_collective_waits():
    assert collective_waits(trained(Rank())) is None


# -- the sentence about the reason -----------------------------------------------------------------------------------


def sentence(*ranks, **options):
    return diagnose_ranks(trained(*ranks, **options))[1].ranks.sentence


def test_the_sentence_gives_times_cost_and_reason():
    recording, found = diagnose_ranks(trained(Rank(), Rank(forward_s=0.040), Rank()))
    assert found.ranks.sentence == (
        "Rank 1 holds the others back by its own step: outside of backward, where ranks meet, it takes 43 ms a step "
        "and the others 13 ms, and most of the difference is forward. The others wait in backward for 50 ms, it for "
        "20 ms, which cost all 3 ranks at least 1.8 s, 48% of the time; the reason is unknown: the load of its "
        "process was not recorded."
    )
    assert recording.run.rank == found.ranks.holder == 1
    assert found.findings == diagnose(recording).findings
    assert found.sentence.startswith("Its data is healthy: 0% of the steady time")
    assert found.notes[-1] == "rank 1 holds the others back by its own step: this diagnosis is about it"


def test_the_numbers_are_serialised_for_programs():
    _, found = diagnose_ranks(trained(Rank(), Rank(forward_s=0.040)))
    quick, slow = msgspec.to_builtins(found)["ranks"]["each"]
    assert slow["held_s"] == pytest.approx(0.030 * (STEPS - 1))
    assert quick["held_s"] == pytest.approx(0.0, abs=1e-9)
    assert (quick["own_s"], quick["met_s"]) == pytest.approx((0.013, 0.050))
    assert (slow["own_s"], slow["met_s"]) == pytest.approx((0.043, 0.020))


def test_the_cost_includes_steps_that_were_not_profiled():
    ranks = (Rank(), Rank(forward_s=0.040))
    whole, half = (
        diagnose_ranks(trained(*ranks, profiled=profiled))[1].ranks
        for profiled in (lambda number: True, lambda number: number % 2 == 0)
    )
    assert half.each[1].held_s == pytest.approx(whole.each[1].held_s)


def test_the_exposed_data_time_is_the_longest_wait_of_any_rank():
    ranks = trained(Rank(wait_s=0.005), Rank(forward_s=0.040))
    _, found = diagnose_ranks(ranks)
    assert found.ranks.holder == 1
    assert found.ranks.exposed_s == rank_waits(ranks).exposed_s == pytest.approx(0.005 * (STEPS - 1))
    assert found.impact.waited_s == pytest.approx(0.005 * STEPS)


def test_a_rank_with_slow_data_is_described_by_its_waits():
    _, found = diagnose_ranks(trained(Rank(), Rank(wait_s=0.03)))
    assert found.ranks.holder == 1
    assert found.ranks.sentence.startswith("Rank 1 holds the others back: it was the last to have its batch")


def test_if_data_and_step_are_slow_the_slower_one_is_named():
    _, found = diagnose_ranks(trained(Rank(wait_s=0.010), Rank(forward_s=0.060)))
    assert found.ranks.holder == 1
    assert "by its own step" in found.ranks.sentence


def test_a_rank_that_computes_more_is_described():
    text = sentence(Rank(main=IDLE), Rank(forward_s=0.040, main={"cpu": 0.95}))
    assert "it computes 60 ms a step and the others 16 ms: it has more to do, or slower cores" in text


def test_waiting_for_a_core_that_follows_from_computing_more_is_attributed_to_computing():
    busy = Rank(main={"cpu": 0.1, "queue": 0.11})
    text = sentence(busy, Rank(forward_s=0.040, main={"cpu": 0.45, "queue": 0.5}))
    assert "it computes 28 ms a step and the others 6.30 ms" in text


def test_a_rank_that_waits_for_a_core_is_described():
    queued = Rank(forward_s=0.040, main={**IDLE, "queue": 0.5}, system={"others_cpu": 1.9})
    text = sentence(Rank(main=IDLE), queued)
    assert "it waits for a core 50% of its time, the others 0%: processes that are not of this run use" in text
    queued.system = {}
    assert sentence(Rank(main=IDLE), queued).endswith("for a core 50% of its time, the others 0%.")


def test_a_rank_that_a_quota_stops_is_described():
    quota = Rank(forward_s=0.040, main=IDLE, system={"throttled": 0.6})
    assert "its cgroup's CPU quota stops it 60% of the time, the others 0%" in sentence(Rank(main=IDLE), quota)


def test_a_rank_that_waits_for_something_else_is_described_by_its_state():
    asleep = Rank(forward_s=0.040, main=IDLE, states={"running": 40, "sleep": 60})
    awake = Rank(main=IDLE, states={"running": 40, "lock": 60})
    text = sentence(awake, asleep)
    assert "it does not compute more, and has its core: it waits for something, most often in sleep" in text
    assert sentence(Rank(main=IDLE), Rank(forward_s=0.040, main=IDLE)).endswith("it waits for something.")


def test_a_rank_with_larger_batches_is_described():
    text = sentence(Rank(main=IDLE), Rank(forward_s=0.040, samples=64, main=IDLE))
    assert "its batches have 64 samples, those of the others 16" in text


def test_a_rank_with_a_slower_device_is_described():
    text = sentence(Rank(), Rank(forward_s=0.015, backward_s=0.030, optimizer_s=0.003), on_device=True)
    assert "by its own clock its device takes 15 ms for forward, those of the others 10 ms" in text
