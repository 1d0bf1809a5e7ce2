"""Tests of the diagnosis of several ranks: the sentence, and which rank is judged."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.rank_wait_recordings import STEPS, flat, of_ranks
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import HopsLine, LoaderLine


def recordings_of_ranks(*runs):
    recordings = [run.recording() for run in runs]
    return [
        replace(recording, run=msgspec.structs.replace(recording.run, rank=rank, world_size=len(recordings)))
        for rank, recording in enumerate(recordings)
    ]


def test_the_rank_that_computes_longer_is_named_and_judged():
    recording, found = diagnose_ranks(recordings_of_ranks(TorchRun(), TorchRun(), TorchRun(cpu_s=0.2)))
    assert recording.run.rank == found.ranks.holder == 2
    assert found.ranks.sentence.startswith("Rank 2 holds the others back: it was the last to have its batch in ")
    assert "a batch takes 200 ms to make there and 10 ms elsewhere, and most of the difference is computing." in (
        found.ranks.sentence
    )
    assert found.findings == diagnose(recording).findings
    assert "rank 2 holds the others back" in found.notes[-1]


def test_a_rank_that_waits_for_its_storage_is_distinguished_from_one_that_computes():
    _, found = diagnose_ranks(recordings_of_ranks(TorchRun(latency_s=0.15), TorchRun()))
    assert found.ranks.holder == 0
    assert "most of the difference is waiting for storage, the network or a lock" in found.ranks.sentence


def test_fewer_workers_are_named_as_the_reason():
    _, found = diagnose_ranks(
        recordings_of_ranks(TorchRun(cpu_s=0.06), TorchRun(cpu_s=0.06, workers=1), TorchRun(cpu_s=0.06))
    )
    assert found.ranks.holder == 1
    assert "it has 1 workers, the others 4" in found.ranks.sentence


def test_the_hops_of_a_penstock_loader_give_the_reason():
    ranks = of_ranks(flat(0.03), flat(0.0))
    loader = {0: LoaderLine(loader=0, type="penstock")}
    busy = [{"read": (4.5, 0.0, 0.0), "decode": (0.5, 0.0, 0.0)}, {"read": (0.5, 0.0, 0.0), "decode": (0.5, 0.0, 0.0)}]
    ranks = [
        replace(rank, loaders=loader, hops=(HopsLine(loader=0, at_s=9.0, hops=hops),))
        for rank, hops in zip(ranks, busy, strict=True)
    ]
    _, found = diagnose_ranks(ranks)
    assert "a batch takes 100 ms to make there and 20 ms elsewhere, and most of the difference is reading." in (
        found.ranks.sentence
    )


def test_a_loader_that_shows_nothing_leaves_the_reason_unknown():
    _, found = diagnose_ranks(of_ranks(flat(0.03), flat(0.0)))
    assert found.ranks.sentence.endswith("the reason is unknown: this loader does not show how its batches are made.")


def test_ranks_that_are_last_in_turns_are_described():
    first, second = flat(0.0), flat(0.0)
    first[::2], second[1::2] = 0.03, 0.03
    _, found = diagnose_ranks(of_ranks(first, second))
    assert found.ranks.holder is None
    assert "hold each other back in turns" in found.ranks.sentence


def test_ranks_that_wait_equally_do_not_hold_each_other_back():
    _, found = diagnose_ranks(of_ranks(flat(0.02), flat(0.02)))
    assert found.ranks.sentence == (
        "No rank holds the others back: all 2 together waited 980 ms for data, 50% of the time."
    )


def test_the_impact_is_the_maximum_wait_over_the_ranks():
    first, second = flat(0.0), flat(0.0)
    first[::2], second[1::2] = 0.03, 0.03
    ranks = of_ranks(first, second)
    recording, found = diagnose_ranks(ranks)
    own = diagnose(recording).impact
    assert found.impact.waited_s == pytest.approx(0.03 * STEPS)
    assert own.waited_s < found.impact.waited_s
    assert found.impact.gpu_hours == pytest.approx(0.03 * STEPS * 2 / 3600)


def test_a_single_rank_is_diagnosed_like_any_recording():
    recording = TorchRun().recording()
    assert diagnose_ranks([recording]) == (recording, diagnose(recording))


def test_without_common_steps_the_rank_that_waited_most_is_judged():
    short = of_ranks(flat(0.06)[:5], flat(0.02)[:5])
    recording, found = diagnose_ranks(short)
    assert (recording.run.rank, found.ranks) == (0, None)
    assert found.notes[-1] == "rank 0 waited most: it waited 0.3 s of 2 ranks' 0.4 s"
