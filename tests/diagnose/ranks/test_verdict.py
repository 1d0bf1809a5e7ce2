"""Ranks judged together: the sentence, and whose diagnosis it is."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.made_ranks import STEPS, flat, of_ranks
from tests.support.made_recordings import Made

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import HopsLine, LoaderLine


def job(*runs):
    """A recording for each rank."""
    made = [run.recording() for run in runs]
    return [
        replace(one, run=msgspec.structs.replace(one.run, rank=rank, world_size=len(made)))
        for rank, one in enumerate(made)
    ]


def test_the_rank_that_computes_longer_is_named_and_judged():
    recording, found = diagnose_ranks(job(Made(), Made(), Made(cpu_s=0.2)))
    assert recording.run.rank == found.ranks.holder == 2
    assert found.ranks.sentence.startswith("Rank 2 holds the others back: it was the last to have its batch in ")
    assert "a batch takes 200 ms to make there and 10 ms elsewhere, and most of the difference is computing." in (
        found.ranks.sentence
    )
    assert found.findings == diagnose(recording).findings
    assert "rank 2 holds the others back" in found.notes[-1]


def test_a_rank_that_waits_for_its_storage_is_told_from_one_that_computes():
    _, found = diagnose_ranks(job(Made(latency_s=0.15), Made()))
    assert found.ranks.holder == 0
    assert "most of the difference is waiting for storage, the network or a lock" in found.ranks.sentence


def test_a_rank_with_fewer_workers_is_told_so():
    _, found = diagnose_ranks(job(Made(cpu_s=0.06), Made(cpu_s=0.06, workers=1), Made(cpu_s=0.06)))
    assert found.ranks.holder == 1
    assert "it has 1 workers, the others 4" in found.ranks.sentence


def test_hops_of_our_own_loader_say_why():
    ranks = of_ranks(flat(0.03), flat(0.0))
    loader = {0: LoaderLine(loader=0, type="penstock")}
    busy = [{"read": (4.5, 0.0, 0.0), "decode": (0.5, 0.0, 0.0)}, {"read": (0.5, 0.0, 0.0), "decode": (0.5, 0.0, 0.0)}]
    ranks = [
        replace(rank, loaders=loader, hops=(HopsLine(loader=0, at_s=9.0, hops=of_rank),))
        for rank, of_rank in zip(ranks, busy, strict=True)
    ]
    _, found = diagnose_ranks(ranks)
    assert "a batch takes 100 ms to make there and 20 ms elsewhere, and most of the difference is reading." in (
        found.ranks.sentence
    )


def test_an_iterable_that_shows_nothing_leaves_why_open():
    _, found = diagnose_ranks(of_ranks(flat(0.03), flat(0.0)))
    assert found.ranks.sentence.endswith("why is not known: this loader does not show how its batches are made.")


def test_ranks_that_are_last_in_turns_are_said_to_be():
    first, second = flat(0.0), flat(0.0)
    first[::2], second[1::2] = 0.03, 0.03
    _, found = diagnose_ranks(of_ranks(first, second))
    assert found.ranks.holder is None
    assert "hold each other back in turns" in found.ranks.sentence


def test_ranks_that_wait_alike_hold_nobody_back():
    _, found = diagnose_ranks(of_ranks(flat(0.02), flat(0.02)))
    assert found.ranks.sentence == (
        "No rank holds the others back: all 2 together waited 980 ms for data, 50% of the time."
    )


def test_what_waiting_costs_is_the_maximum_over_ranks():
    first, second = flat(0.0), flat(0.0)
    first[::2], second[1::2] = 0.03, 0.03
    ranks = of_ranks(first, second)
    recording, found = diagnose_ranks(ranks)
    own = diagnose(recording).impact
    assert found.impact.waited_s == pytest.approx(0.03 * STEPS)
    assert own.waited_s < found.impact.waited_s
    assert found.impact.gpu_hours == pytest.approx(0.03 * STEPS * 2 / 3600)


def test_one_recording_is_diagnosed_as_it_always_was():
    recording = Made().recording()
    assert diagnose_ranks([recording]) == (recording, diagnose(recording))


def test_ranks_without_common_steps_are_judged_by_who_waited_most():
    short = of_ranks(flat(0.06)[:5], flat(0.02)[:5])
    recording, found = diagnose_ranks(short)
    assert (recording.run.rank, found.ranks) == (0, None)
    assert found.notes[-1] == "rank 0 waited most: it waited 0.3 s of 2 ranks' 0.4 s"
