"""Ranks that are processes of their own and train together over gloo."""

import pytest
from ranks_material import GLOBAL_BATCH, MIDDLE, SAMPLES, SHARDS, STEPS

from penstock.core.cores import usable_cores

RANKS = [1, 2, 4, 8]


def steps(found):
    """Step by step, the samples of all ranks."""
    return [sorted(key for batch in step for key in batch) for step in zip(*(f["batches"] for f in found), strict=True)]


@pytest.mark.parametrize("ranks", RANKS)
def test_every_sample_comes_once_in_batches_of_one_size(crew, ranks):
    found = crew["epoch", ranks]
    keys = [key for rank in found for batch in rank["batches"] for key in batch]
    assert len(found) == ranks
    assert len(keys) == len(set(keys)) == SAMPLES
    assert {len(batch) for rank in found for batch in rank["batches"]} == {GLOBAL_BATCH // ranks}
    assert {rank["length"] for rank in found} == {STEPS}


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_global_batches_are_the_same_on_any_number_of_ranks(crew, ranks):
    assert steps(crew["epoch", ranks]) == steps(crew["epoch", 1])
    assert len({tuple(step) for step in steps(crew["epoch", 1])}) == STEPS


def test_training_on_four_ranks_has_the_losses_of_one(crew):
    (alone,), four = crew["train", 1], crew["train", 4]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in four:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert rank["weight"] == pytest.approx(alone["weight"], rel=1e-9)


def test_what_four_ranks_began_two_ranks_finish(crew):
    began, resumed = steps(crew["begin", 4]), steps(crew["resume", 2])
    assert len(began) == MIDDLE
    assert began + resumed == steps(crew["epoch", 1])


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_ranks_together_read_no_more_than_one_does(crew, ranks):
    assert sum(rank["bytes"] for rank in crew["epoch", ranks]) == crew["epoch", 1][0]["bytes"] > 0


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_of_a_machine_share_its_cores(crew, ranks):
    assert 1 <= sum(rank["workers"] for rank in crew["epoch", ranks]) <= max(ranks, usable_cores())


def test_of_the_ranks_of_a_machine_one_walks_a_shard_and_all_have_its_index(crew):
    found = crew["index", 8]
    walked = [shard for rank in found for shard in rank["walked"]]
    assert len(walked) == len(set(walked)) == SHARDS
    assert {rank["samples"] for rank in found} == {SAMPLES}
