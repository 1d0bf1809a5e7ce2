"""Ranks that train together over gloo, each in a process of its own."""

import pytest
from ranks_shards import GLOBAL_BATCH, MIDDLE, SAMPLES, SHARDS, STEPS

from penstock.core.cores import usable_cores

RANKS = [1, 2, 4, 8]


def steps(ranks):
    """Return the samples of each step, over all ranks."""
    by_step = zip(*(rank["batches"] for rank in ranks), strict=True)
    return [sorted(key for batch in step for key in batch) for step in by_step]


@pytest.mark.parametrize("ranks", RANKS)
def test_every_sample_is_delivered_once_in_batches_of_one_size(results, ranks):
    found = results["epoch", ranks]
    keys = [key for rank in found for batch in rank["batches"] for key in batch]
    assert len(found) == ranks
    assert len(keys) == len(set(keys)) == SAMPLES
    assert {len(batch) for rank in found for batch in rank["batches"]} == {GLOBAL_BATCH // ranks}
    assert {rank["length"] for rank in found} == {STEPS}


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_global_batches_are_the_same_on_any_number_of_ranks(results, ranks):
    assert steps(results["epoch", ranks]) == steps(results["epoch", 1])
    assert len({tuple(step) for step in steps(results["epoch", 1])}) == STEPS


def test_training_on_four_ranks_has_the_losses_of_one(results):
    (alone,), four = results["train", 1], results["train", 4]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in four:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert rank["weight"] == pytest.approx(alone["weight"], rel=1e-9)


def test_two_ranks_resume_an_epoch_that_four_ranks_began(results):
    began, resumed = steps(results["begin", 4]), steps(results["resume", 2])
    assert len(began) == MIDDLE
    assert began + resumed == steps(results["epoch", 1])


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_all_ranks_together_read_the_bytes_of_one_epoch(results, ranks):
    assert sum(rank["bytes"] for rank in results["epoch", ranks]) == results["epoch", 1][0]["bytes"] > 0


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_of_a_machine_share_its_cores(results, ranks):
    assert 1 <= sum(rank["workers"] for rank in results["epoch", ranks]) <= max(ranks, usable_cores())


def test_each_shard_is_scanned_by_one_rank_and_all_use_its_index(results):
    found = results["index", 8]
    scanned = [shard for rank in found for shard in rank["scanned"]]
    assert len(scanned) == len(set(scanned)) == SHARDS
    assert {rank["samples"] for rank in found} == {SAMPLES}
