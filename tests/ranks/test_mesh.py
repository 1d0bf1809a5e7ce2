"""Ranks that share one model get the same samples, if the loader is given their rank among those that share the
data."""

import pytest
from ranks_shards import STEPS


def test_the_ranks_of_a_row_get_the_same_batches(results):
    batches = [rank["batches"] for rank in results["mesh", 4]]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert [batches[0], batches[2]] == [rank["batches"] for rank in results["epoch", 2]]


def test_training_by_fsdp_and_tensor_parallelism_has_the_losses_of_one_rank(results):
    (alone,) = results["mesh", 1]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in results["mesh", 4]:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
