"""Why a rank's own step holds the others back, in words."""

import msgspec
import pytest
from tests.support.made_collectives import STEPS, Rank, trained

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.ranks.waits import rank_waits
from penstock.diagnose.verdict import diagnose

IDLE = {"cpu": 0.25, "thread_cpu": 0.25}


def sentence(*ranks, **how):
    return diagnose_ranks(trained(*ranks, **how))[1].ranks.sentence


def test_the_whole_of_it_is_said():
    recording, found = diagnose_ranks(trained(Rank(), Rank(forward_s=0.040), Rank()))
    assert found.ranks.sentence == (
        "Rank 1 holds the others back by its own step: outside of backward, where ranks meet, it takes 43 ms a step "
        "and the others 13 ms, and most of the difference is forward. The others stand in backward for 50 ms, it for "
        "20 ms, which cost all 3 ranks at least 1.8 s, 48% of the time; why is not known: nobody looked at what its "
        "process did."
    )
    assert recording.run.rank == found.ranks.holder == 1
    assert found.findings == diagnose(recording).findings
    assert found.sentence.startswith("Its data is healthy: 0% of the steady time")
    assert found.notes[-1] == "rank 1 holds the others back by its own step: what is said here is of it"


def test_numbers_are_there_for_programs_too():
    _, found = diagnose_ranks(trained(Rank(), Rank(forward_s=0.040)))
    quick, slow = msgspec.to_builtins(found)["ranks"]["each"]
    assert slow["held_s"] == pytest.approx(0.030 * (STEPS - 1))
    assert quick["held_s"] == pytest.approx(0.0, abs=1e-9)
    assert (quick["own_s"], quick["met_s"]) == pytest.approx((0.013, 0.050))
    assert (slow["own_s"], slow["met_s"]) == pytest.approx((0.043, 0.020))


def test_what_it_cost_is_counted_for_steps_that_nobody_looked_at_too():
    ranks = (Rank(), Rank(forward_s=0.040))
    whole, half = (
        diagnose_ranks(trained(*ranks, profiled=profiled))[1].ranks
        for profiled in (lambda number: True, lambda number: number % 2 == 0)
    )
    assert half.each[1].held_s == pytest.approx(whole.each[1].held_s)


def test_exposed_data_time_stays_the_longest_wait_of_any_rank():
    ranks = trained(Rank(wait_s=0.005), Rank(forward_s=0.040))
    _, found = diagnose_ranks(ranks)
    assert found.ranks.holder == 1
    assert found.ranks.exposed_s == rank_waits(ranks).exposed_s == pytest.approx(0.005 * (STEPS - 1))
    assert found.impact.waited_s == pytest.approx(0.005 * STEPS)


def test_a_rank_whose_data_is_slow_is_told_so_as_before():
    _, found = diagnose_ranks(trained(Rank(), Rank(wait_s=0.03)))
    assert found.ranks.holder == 1
    assert found.ranks.sentence.startswith("Rank 1 holds the others back: it was the last to have its batch")


def test_of_slow_data_and_a_slower_step_the_step_is_named():
    _, found = diagnose_ranks(trained(Rank(wait_s=0.010), Rank(forward_s=0.060)))
    assert found.ranks.holder == 1
    assert "by its own step" in found.ranks.sentence


def test_computing_more():
    said = sentence(Rank(main=IDLE), Rank(forward_s=0.040, main={"cpu": 0.95}))
    assert "it computes 60 ms a step and the others 16 ms: it has more to do, or slower cores" in said


def test_who_computes_more_stands_in_line_more_where_cores_are_short():
    busy = Rank(main={"cpu": 0.1, "queue": 0.11})
    said = sentence(busy, Rank(forward_s=0.040, main={"cpu": 0.45, "queue": 0.5}))
    assert "it computes 28 ms a step and the others 6.30 ms" in said


def test_standing_in_line_for_a_core():
    line = Rank(forward_s=0.040, main={**IDLE, "queue": 0.5}, system={"others_cpu": 1.9})
    said = sentence(Rank(main=IDLE), line)
    assert "it stands in line for a core 50% of its time, the others 0%: processes that are not of this run use" in said
    line.system = {}
    assert sentence(Rank(main=IDLE), line).endswith("for a core 50% of its time, the others 0%.")


def test_a_quota_that_stops_it():
    quota = Rank(forward_s=0.040, main=IDLE, system={"throttled": 0.6})
    assert "its cgroup's CPU quota stops it 60% of the time, the others 0%" in sentence(Rank(main=IDLE), quota)


def test_waiting_for_something_else():
    asleep = Rank(forward_s=0.040, main=IDLE, states={"running": 40, "sleep": 60})
    awake = Rank(main=IDLE, states={"running": 40, "lock": 60})
    said = sentence(awake, asleep)
    assert "it does not compute more, and has its core: it waits for something, most often in sleep" in said
    assert sentence(Rank(main=IDLE), Rank(forward_s=0.040, main=IDLE)).endswith("it waits for something.")


def test_larger_batches():
    said = sentence(Rank(main=IDLE), Rank(forward_s=0.040, samples=64, main=IDLE))
    assert "its batches have 64 samples, those of the others 16" in said


def test_a_device_that_is_slower():
    said = sentence(Rank(), Rank(forward_s=0.015, backward_s=0.030, optimizer_s=0.003), on_device=True)
    assert "by its own clock its device takes 15 ms for forward, those of the others 10 ms" in said
