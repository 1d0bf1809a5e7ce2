"""Ranks that train with DistributedDataParallel over gloo, of which the last is slow: found in their recordings."""

import pytest

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.recording.ranks import load_ranks


@pytest.fixture
def diagnosed(crew, crew_folder):
    def of(job, ranks):
        recordings = load_ranks(crew_folder / f"{job}-{ranks}.jsonl")
        assert [recording.run.rank for recording in recordings] == list(range(ranks))
        return diagnose_ranks(recordings)

    return of


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("job", "why"),
    [("sleeping", "it waits for something, most often in sleep"), ("computing", "it has more to do, or slower cores")],
)
def test_the_rank_whose_step_is_slow_is_named_with_its_part_and_why(diagnosed, job, ranks, why):
    recording, found = diagnosed(job, ranks)
    assert found.ranks.holder == recording.run.rank == ranks - 1, found.ranks.sentence
    assert f"Rank {ranks - 1} holds the others back by its own step" in found.ranks.sentence
    assert "most of the difference is forward" in found.ranks.sentence
    assert why in found.ranks.sentence
    *others, slow = found.ranks.each
    assert all(slow.met_s < other.met_s and slow.own_s > other.own_s for other in others)
    assert slow.held_s > sum(other.held_s for other in others)


def test_ranks_alike_are_not_blamed(diagnosed):
    _, found = diagnosed("even", 2)
    assert "by its own step" not in found.ranks.sentence
