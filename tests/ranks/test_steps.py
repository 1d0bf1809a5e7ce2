"""The slow rank is found in the recordings of ranks that train with DistributedDataParallel over gloo."""

import pytest

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.recording.ranks import load_ranks


@pytest.fixture
def diagnose(results, results_folder):
    def diagnose(job, ranks):
        recordings = load_ranks(results_folder / f"{job}-{ranks}.jsonl")
        assert [recording.run.rank for recording in recordings] == list(range(ranks))
        return diagnose_ranks(recordings)

    return diagnose


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("sleeping", "it waits for something, most often in sleep"),
        pytest.param(
            # Where other processes take the cores, this rank does wait for one, and that is what the diagnosis says.
            "computing",
            "it has more to do, or slower cores",
            marks=pytest.mark.bench,
        ),
    ],
)
def test_the_rank_with_slow_steps_is_named_with_the_phase_and_the_cause(diagnose, job, ranks, why):
    recording, found = diagnose(job, ranks)
    assert found.ranks.holder == recording.run.rank == ranks - 1, found.ranks.sentence
    assert f"Rank {ranks - 1} holds the others back by its own step" in found.ranks.sentence
    assert "most of the difference is forward" in found.ranks.sentence
    assert why in found.ranks.sentence
    *others, slow = found.ranks.each
    assert all(slow.met_s < other.met_s and slow.own_s > other.own_s for other in others)
    assert slow.held_s > sum(other.held_s for other in others)


def test_no_rank_is_named_if_all_are_the_same(diagnose):
    _, found = diagnose("even", 2)
    assert "by its own step" not in found.ranks.sentence
